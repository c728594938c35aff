"""Writes Triton IR of many programs, as a table: `python benchmarks/triton_programs.py --out FILE`.

The programs are in `programs/triton/`; the shipped table was drawn so. Compile them with
`kernelcast measure triton --texts FILE`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from programs.triton.case import TritonCase
from programs.triton.lowering import ttir_of
from programs.triton.plan import targets_of, triton_plan

LONGEST_S = 240.0


def lowered(case: TritonCase, target: str) -> dict[str, Any]:
    """The text of a case for a target.

    Raises:
        Exception: whatever Triton raises.
    """
    with tempfile.TemporaryDirectory(prefix="kernelcast-triton-") as folder:
        text = ttir_of(case, int(target.removeprefix("sm_")), Path(folder))
    return {"program": case.program, "case_id": case.case_id, "target": target, "num_warps": case.num_warps,
            "num_stages": case.num_stages, "text": text}  # fmt: skip


def all_lowered(jobs: list[tuple[TritonCase, str]]) -> list[dict[str, Any]]:
    """The texts of all jobs that Triton takes; a refusal, a hang or a crash costs that job alone."""
    texts: list[dict[str, Any]] = []
    pool = None
    for done, (case, target) in enumerate(jobs, 1):
        pool = pool or ProcessPoolExecutor(1, get_context("spawn"))
        try:
            texts.append(pool.submit(lowered, case, target).result(LONGEST_S))
        except (BrokenProcessPool, TimeoutError):
            for process in pool._processes.values():
                process.kill()
            pool.shutdown()
            pool = None
        except Exception as error:  # noqa: BLE001  Triton refuses some drawn programs, with exceptions of any kind
            print(f"{case.program}: {str(error).strip().splitlines()[-1:]}")
        if done % 100 == 0:
            print(f"{done} of {len(jobs)}", flush=True)
    if pool is not None:
        pool.shutdown()
    return texts


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=None, help="how many; default: all")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal programs")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    jobs = [
        (case, target) for number, case in enumerate(triton_plan(options.seed)) for target in targets_of(case, number)
    ]
    texts = all_lowered(jobs[: options.count])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(texts), options.out)
    print(f"{options.out}: {len(texts)} texts of {len(jobs[: options.count])} programs")


if __name__ == "__main__":
    main()
