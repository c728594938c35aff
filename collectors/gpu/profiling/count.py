"""Counting the traffic of cases with Nsight Compute where it is installed and may read counters.

`ncu` profiles `python -P -m kernelcast.collectors.gpu.profiling.count REQUEST REPORT`, which runs each case once between a
start and a stop of the profiler. REQUEST is JSON, `{"index": GPU, "specs": [...]}`. REPORT gets a JSON line before every case,
`{"at": case_id}`, and one after it, `{"status": ..., "message": ...}`. Standard output is ncu's.

One `ncu` per family, since its table comes only at its end: a family that hangs costs its own cases alone. Caches are
flushed and invalidated by ncu before every kernel, and clocks are left alone. So a case counts as a cold one; what a kernel
leaves in L2 for the next kernel of the same call counts as memory traffic, and what stays in L2 at the end as not written.

The cases are, of every family, one that fits in any L2, one about as large, and one far larger.
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

from ....datasets.records.launch_traces import CountedCase
from ....features.kernel import KernelSpec, View, get_family
from ....features.spec_io.rows import spec_from_row, spec_row
from ....process import die_with_parent
from ...runner import UnsupportedCaseError, gpu_runners, status_of
from ..characterize.probes import reason
from ..measure.operands import make_operands
from ..measure.torch_gpu import enter_inference, need_cuda
from .ncu_output import METRICS, CountedKernel, by_case, parse_kernels, summed

Sizes = Mapping[str, int]


def _square(*sizes: int) -> tuple[Sizes, ...]:
    return tuple({"m": size, "n": size, "k": size} for size in sizes)


def _rows(*shapes: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"rows": rows, "cols": cols} for rows, cols in shapes)


def _attention(*shapes: tuple[int, int]) -> tuple[Sizes, ...]:
    """Llama 3 8B's heads over `batch` sequences of `length`."""
    return tuple({"batch": batch, "heads": 32, "kv_heads": 8, "q_len": length, "kv_len": length, "head_dim": 128}
                 for batch, length in shapes)  # fmt: skip


def _conv2d(*shapes: tuple[int, int, int]) -> tuple[Sizes, ...]:
    """3 x 3 convolutions of `channels` at `side` over `batch` images."""
    return tuple({"batch": batch, "in_channels": channels, "out_channels": channels, "height": side, "width": side,
                  "kernel": 3, "padding": 1} for batch, channels, side in shapes)  # fmt: skip


def _moe(*tokens: int) -> tuple[Sizes, ...]:
    return tuple({"tokens": count, "hidden": 2048, "inter": 1024, "topk": 4, "experts": 16} for count in tokens)


_CASES: Mapping[str, tuple[str, tuple[Sizes, ...]]] = {
    "attention": ("prefill", _attention((1, 512), (4, 2048), (16, 4096))),
    "conv2d": ("", _conv2d((1, 64, 56), (32, 64, 56), (128, 128, 56))),
    # A plain copy is no kernel but the driver's own.
    "copy": ("transpose", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "elementwise": ("gelu", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "gemm": ("", _square(1024, 4096, 8192)),
    "layernorm": ("layernorm", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "moe": ("balanced", _moe(16, 512, 4096)),
    "reduction": ("sum", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "softmax": ("", _rows((512, 4096), (8192, 4096), (65536, 4096))),
}
"""Variant and sizes of each family's cases."""


def counted_cases(families: Sequence[str] = (), per_family: int = 3, dtype: str = "bf16") -> list[KernelSpec]:
    """The cases of these families, all by default: up to `per_family` of each, the largest first.

    Raises:
        SpecError: unknown dtype.
    """
    return [
        KernelSpec.of(name, dtype, variant=variant, impl="torch", cache_state="cold", **sizes)  # type: ignore[arg-type]
        for name, (variant, shapes) in _CASES.items()
        if not families or name in families
        for sizes in shapes[::-1][:per_family]
    ]


LIMIT_S = 240.0
"""Longest for the cases of one family; each kernel is replayed once for every set of counters that fit together."""

_RETRIES = 4
"""Runs of ncu: a metric that this GPU does not have is left out of the next one."""
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

    Args:
        specs: The cases.
        device: The name records carry.
        index: Number of the GPU, in CUDA's order.
        ncu: Path of Nsight Compute; None looks for it on PATH.
        run: Runs a command; None is `subprocess`.
        limit_s: Longest run of ncu for a family, in seconds.
        progress: Called with what is being done, cases done, and cases in all.

    Raises:
        CountersUnavailableError: there is no ncu, or it may not or cannot read this GPU's counters.
        CounterOutputError: its output cannot be read.
    """
    ncu = ncu or shutil.which("ncu")
    if ncu is None:
        raise CountersUnavailableError(
            "ncu (NVIDIA Nsight Compute) is not on PATH; install it, it comes with the CUDA toolkit"
        )
    results: list[CountedCase] = []
    ordered = sorted(specs, key=lambda spec: spec.family)
    for name, group in groupby(ordered, key=lambda spec: spec.family):
        if progress is not None:
            progress(f"counting {name}", len(results), len(ordered))
        results += _family(list(group), device, index, ncu, run or run_command, limit_s)
    return results


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
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"ncu took longer than {limit_s:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output


def ncu_command(ncu: str, metrics: Sequence[str], log: Path, request: Path, report: Path) -> list[str]:
    """The command line; only kernels between a start and a stop of the profiler are looked at."""
    return [
        ncu, "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off", "--csv",
        "--print-units", "base", "--metrics", ",".join(metrics), "--log-file", str(log),
        sys.executable, "-P", "-m", "kernelcast.collectors.gpu.profiling.count", str(request), str(report),
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
                status, output = run(ncu_command(ncu, metrics, log, request, report), limit_s)
            except TimeoutError as error:
                return [_record(spec, device, "timeout", str(error)) for spec in specs]
            logged = log.read_text(errors="replace") if log.exists() else ""
            unknown = set(_UNKNOWN_METRIC.findall(output + logged))
            if not unknown & set(metrics):
                break
            metrics = [metric for metric in metrics if metric not in unknown]
        kernels = parse_kernels(logged.splitlines())
        if not kernels:
            _explain(status, output + logged)
        return _records(specs, device, _outcomes(report), kernels)


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


def _outcomes(report: Path) -> Mapping[str, Mapping[str, Any]]:
    """What the worker said of each case it came to, by id: whether it was marked, status and message."""
    outcomes: dict[str, dict[str, Any]] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        message = json.loads(line)
        if "at" in message:
            last = outcomes.setdefault(message["at"], {"marked": message.get("marked", False), "status": "crashed"})
        else:
            last |= message
    return outcomes


def _records(
    specs: Sequence[KernelSpec], device: str, outcomes: Mapping[str, Mapping[str, Any]], kernels: Sequence[CountedKernel]
) -> list[CountedCase]:  # fmt: skip
    cases = iter(by_case(kernels))
    mine = {case: next(cases, []) for case, output in outcomes.items() if output["marked"]}
    records: list[CountedCase] = []
    for spec in specs:
        output = outcomes.get(spec.case_id, {"status": "crashed", "message": "the process ended before it"})
        counted = mine.get(spec.case_id, [])
        if output["status"] == "ok" and not counted:
            output = {"status": "failed", "message": "ncu saw no kernel of it; copies by the driver are none"}
        counts = summed(counted) if output["status"] == "ok" else {}
        records.append(_record(spec, device, output["status"], output.get("message"), len(counted), counts))
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


_WARM_UPS = 3


def main(argv: list[str]) -> None:
    """Run the cases of the request `argv[1]`, telling the report `argv[2]`."""
    die_with_parent()
    import torch

    need_cuda(torch)
    request = json.loads(Path(argv[1]).read_text())
    torch.cuda.set_device(request["index"])
    enter_inference(torch)
    with Path(argv[2]).open("w", encoding="utf-8", buffering=1) as report:
        for row in request["specs"]:
            spec = spec_from_row(row)
            try:
                call = _warm(torch, spec)
            except Exception as error:  # noqa: BLE001  whatever a library raises is this case's result
                report.write(_line(at=spec.case_id) + _line(status=status_of(error), message=reason(error)))
                continue
            report.write(_line(at=spec.case_id, marked=True))
            _profiled(torch, call)
            report.write(_line(status="ok", message=None))


def _warm(torch: Any, spec: KernelSpec) -> Any:
    runner = gpu_runners().get(spec.impl)
    if runner is None:
        raise UnsupportedCaseError(f"no GPU runner for impl {spec.impl!r}")
    call = runner.launch(spec, make_operands(torch, spec, "cuda")).call
    for _ in range(_WARM_UPS):
        call()
    torch.cuda.synchronize()
    return call


def _profiled(torch: Any, call: Any) -> None:
    """One call under the profiler, behind a kernel that nothing else launches."""
    torch.cuda.profiler.start()
    torch.cuda._sleep(1)
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def _line(**message: Any) -> str:
    return json.dumps(message) + "\n"


if __name__ == "__main__":
    main(sys.argv)
