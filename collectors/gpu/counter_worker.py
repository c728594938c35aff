"""The process that Nsight Compute profiles: runs each case once between a start and a stop of the profiler.

Called as `... counter_worker REQUEST REPORT`: REQUEST is JSON, `{"index": GPU, "specs": [...]}`. REPORT gets a JSON line before
every case, `{"at": case_id}`, and one after it, `{"status": ..., "message": ...}`. Standard output is ncu's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ...datasets.schema import spec_of
from ...features.kernel import KernelSpec
from ..child import die_with_parent
from ..runner import UnsupportedCaseError
from .bench import gpu_status_of
from .cuda_start import enter_inference, need_cuda
from .operands import make_operands
from .probes import reason
from .runner import gpu_runners

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
            spec = spec_of(row)
            try:
                call = _warm(torch, spec)
            except Exception as error:  # noqa: BLE001  whatever a library raises is this case's result
                report.write(_line(at=spec.case_id) + _line(status=gpu_status_of(error), message=reason(error)))
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
