"""Writes MLIR programs to measure, as a table of texts: `python benchmarks/mlir_programs.py --count 2000 --out FILE`.

JAX, torch-mlir and a generator of random programs write them (`programs/`); the shipped modules were drawn so.
Measure them with `kernelcast measure mlir --texts FILE`.
Those of public descriptions: `--sources described --count 2100`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq
from kernelcast.datasets.records.mlir_modules import texts_table
from programs.module_texts import SHARES, module_texts


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many modules")
    parser.add_argument(
        "--sources", nargs="+", default=["jax", "torch", "generated"], choices=sorted(SHARES), help="who writes them"
    )
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal modules")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    options = parser.parse_args()
    texts = list(module_texts(options.count, seed=options.seed, sources=options.sources))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(texts_table(texts), options.out)
    print(f"{options.out}: {len(texts)} modules")


if __name__ == "__main__":
    main()
