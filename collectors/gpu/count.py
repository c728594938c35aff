"""Counting the traffic of cases with Nsight Compute where it is installed and may read counters.

One `ncu` per family, since its table comes only at its end: a family that hangs costs its own cases alone. Caches are
flushed and invalidated by ncu before every kernel, and clocks are left alone. So a case counts as a cold one; what a kernel
leaves in L2 for the next kernel of the same call counts as memory traffic, and what stays in L2 at the end as not written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ...datasets.traces import CountedCase
from ...features.kernel import KernelSpec, View, get_family
from ..process import spec_row
from .counters import METRICS, CountedKernel, by_case, parse_kernels, summed

LIMIT_S = 240.0
"""Longest for the cases of one family; each kernel is replayed once for every set of counters that fit together."""

_RETRIES = 4
_UNKNOWN_METRIC = re.compile(r"Failed to find metric (?:regex:)?\^?([\w.]+)")
_MAY_NOT = "ERR_NVGPUCTRPERM"

Run = Callable[[Sequence[str], float], tuple[int, str]]
"""Runs a command within seconds; its exit status and what it printed. Raises TimeoutError."""


class CountersUnavailableError(Exception):
    """Counters cannot be read on this machine; the message says why and what to do."""


def count_cases(
    specs: Sequence[KernelSpec],
    device: str = "",
    *,
    index: int = 0,
    ncu: str | None = None,
    run: Run | None = None,
    limit_s: float = LIMIT_S,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[CountedCase]:
    """What counters say of one call of each case; one record per case, in order of families.

    Raises:
        CountersUnavailableError: there is no ncu, or it may not or cannot read this GPU's counters.
        CounterOutputError: its output cannot be read.
    """
    ncu = ncu or shutil.which("ncu")
    if ncu is None:
        raise CountersUnavailableError(
            "ncu (NVIDIA Nsight Compute) is not on PATH; install it, it comes with the CUDA toolkit"
        )
    found: list[CountedCase] = []
    ordered = sorted(specs, key=lambda spec: spec.family)
    for name, group in groupby(ordered, key=lambda spec: spec.family):
        if progress is not None:
            progress(f"counting {name}", len(found), len(ordered))
        found += _family(list(group), device, index, ncu, run or run_command, limit_s)
    return found


def run_command(command: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run a command in a process group of its own, killed whole when it takes longer.

    Raises:
        TimeoutError: it did.
    """
    # The C locale: another's could print a comma for the decimal point.
    process = subprocess.Popen(  # noqa: S603  ncu, and our own interpreter and module
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"ncu took longer than {limit_s:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, said


def ncu_command(ncu: str, metrics: Sequence[str], log: Path, request: Path, report: Path) -> list[str]:
    """The command line; only kernels between a start and a stop of the profiler are looked at."""
    return [
        ncu, "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off", "--csv",
        "--print-units", "base", "--metrics", ",".join(metrics), "--log-file", str(log),
        sys.executable, "-P", "-m", "kernelcast.collectors.gpu.counter_worker", str(request), str(report),
    ]  # fmt: skip


def _family(
    specs: Sequence[KernelSpec], device: str, index: int, ncu: str, run: Run, limit_s: float
) -> list[CountedCase]:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        log, request, report = (Path(folder) / name for name in ("ncu.csv", "request.json", "report.jsonl"))
        request.write_text(json.dumps({"index": index, "specs": [spec_row(spec) for spec in specs]}))
        metrics = list(METRICS)
        for _ in range(_RETRIES):
            report.unlink(missing_ok=True)
            try:
                status, said = run(ncu_command(ncu, metrics, log, request, report), limit_s)
            except TimeoutError as error:
                return [_record(spec, device, "timeout", str(error)) for spec in specs]
            logged = log.read_text(errors="replace") if log.exists() else ""
            unknown = set(_UNKNOWN_METRIC.findall(said + logged))
            if not unknown & set(metrics):
                break
            metrics = [metric for metric in metrics if metric not in unknown]
        kernels = parse_kernels(logged.splitlines())
        if not kernels:
            _explain(status, said + logged)
        return _records(specs, device, _told(report), kernels)


def _explain(status: int, text: str) -> None:
    """Raise for what ncu says went wrong; a run in which no case was launched is no error.

    Raises:
        CountersUnavailableError: the reason.
    """
    if _MAY_NOT in text:
        raise CountersUnavailableError(
            f"this user may not read the GPU's counters ({_MAY_NOT}); run as root, or have the driver loaded with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    if errors:
        raise CountersUnavailableError(f"ncu cannot read this GPU's counters: {errors[0]}")
    if status != 0:
        last = (text.strip().splitlines() or ["it printed nothing"])[-1]
        raise CountersUnavailableError(f"ncu ended with status {status}: {last[:300]}")


def _told(report: Path) -> Mapping[str, Mapping[str, Any]]:
    """What the worker said of each case it came to, by id: whether it was marked, status and message."""
    told: dict[str, dict[str, Any]] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        message = json.loads(line)
        if "at" in message:
            last = told.setdefault(message["at"], {"marked": message.get("marked", False), "status": "crashed"})
        else:
            last |= message
    return told


def _records(
    specs: Sequence[KernelSpec], device: str, told: Mapping[str, Mapping[str, Any]], kernels: Sequence[CountedKernel]
) -> list[CountedCase]:  # fmt: skip
    cases = iter(by_case(kernels))
    mine = {case: next(cases, []) for case, said in told.items() if said["marked"]}
    records: list[CountedCase] = []
    for spec in specs:
        said = told.get(spec.case_id, {"status": "crashed", "message": "the process ended before it"})
        counted = mine.get(spec.case_id, [])
        if said["status"] == "ok" and not counted:
            said = {"status": "failed", "message": "ncu saw no kernel of it; copies by the driver are none"}
        counts = summed(counted) if said["status"] == "ok" else {}
        records.append(_record(spec, device, said["status"], said.get("message"), len(counted), counts))
    return records


def _record(
    spec: KernelSpec, device: str, status: str, message: str | None, kernels: int = 0,
    counts: Mapping[str, float | None] | None = None,
) -> CountedCase:  # fmt: skip
    paper_b, paper_flops = _paper(spec)
    return CountedCase(
        device=device, family=spec.family, case_id=spec.case_id, spec=str(spec), status=status, kernels=kernels,
        paper_b=paper_b, paper_flops=paper_flops, message=message, **(counts or {}),
    )  # fmt: skip


def _paper(spec: KernelSpec) -> tuple[float, float]:
    family, view = get_family(spec.family), View.of(spec)
    return float(family.bytes_moved(view)), float(family.flops(view))
