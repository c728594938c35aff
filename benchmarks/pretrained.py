"""Makes the model that ships: public development tables and the project's own rows, together.

Run `.venv/bin/python benchmarks/pretrained.py TABLES --out MODEL_DIR`; TABLES has a folder per source with a form
file per family. Rows with a split take part if it is `train`; what else there is stays unseen, to judge the model by
(`benchmarks/accuracy.py`). Takes about ten minutes on two cores.

Families train apart. `--only embedding,rope --beside models/pretrained/kernels` trains these alone, and takes all others from
that model, as they would come out again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernelcast.datasets.rows.splits import file_sha256
from kernelcast.datasets.shipped import SHIPPED_DIR, read_shipped, shipped_families
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import Artifact, load_family, read_manifest, save_artifact
from kernelcast.models.training.labelled_cases import LabelledCases, joined, labelled_files, labelled_tables
from kernelcast.models.training.training import train, with_utilisation
from llm_ops import TABLES as OPERATOR_FILES
from llm_ops import read_llm_ops

SOURCES: Mapping[str, Mapping[str, str]] = {
    "aiconfigurator": {
        "what": "LLM kernels in vLLM, TensorRT-LLM and SGLang on A100, L40S, H100, H200, B200 and B300; power on H200 and B200",
        "licence": "Apache-2.0 (NVIDIA)",
        "link": "github.com/ai-dynamo/aiconfigurator",
    },
    "neusight": {
        "what": "fp32 PyTorch kernels on P100, P4, T4, V100, A100 and MI100",
        "licence": "MIT (Georgia Tech, Microsoft)",
        "link": "github.com/sitar-lab/NeuSight",
    },
    "vidur": {
        "what": "fp16 LLM products in Sarathi on A40 and A100",
        "licence": "MIT (Microsoft)",
        "link": "github.com/microsoft/vidur",
    },
    "llmservingsim": {
        "what": "bf16 LLM products, attention and norms in vLLM on RTX 3090 and RTX A6000",
        "licence": "MIT (KAIST)",
        "link": "github.com/casys-kaist/LLMServingSim",
    },
    "xla": {
        "what": "bf16, fp8 and tf32 products in XLA on MI300X and B200",
        "licence": "Apache-2.0 (OpenXLA)",
        "link": "github.com/openxla/xla",
    },
    "aiter": {
        "what": "fp8, bf16 and int8 products and experts tuned by AITER on MI300X and MI308X, each by the fastest kernel",
        "licence": "MIT (AMD)",
        "link": "github.com/ROCm/aiter",
    },
    "tensile": {
        "what": "fp32, fp16 and int8 products tuned by Tensile on R9 Nano, Vega 10 and Vega 20, each by the fastest kernel",
        "licence": "MIT (AMD)",
        "link": "github.com/ROCm/Tensile",
    },
    "miopen": {
        "what": "fp32, fp16 and bf16 convolutions of MIOpen on MI25, MI50, MI100, MI300X and Vega 56, by the fastest solver",
        "licence": "MIT (AMD)",
        "link": "github.com/ROCm/MIOpen",
    },
    "deepbench": {
        "what": "fp32, fp16 and int8 products and convolutions on M40, Titan X, P100, V100, T4, MI25 and Vega FE",
        "licence": "Apache-2.0 (Baidu)",
        "link": "github.com/baidu-research/DeepBench",
    },
    "apex_plus": {
        "what": "fp16 LLM products in PyTorch on V100",
        "licence": "MIT (APEX+)",
        "link": "github.com/microsoft/apex_plus",
    },
    "kernel_tuner": {
        "what": "configurations of an fp32 product and a convolution on seven RTX-class and data-centre GPUs",
        "licence": "MIT (Netherlands eScience Center)",
        "link": "github.com/KernelTuner/kernel_tuner",
    },
}
"""Whose measurements the tables hold, by the name of their folder."""

_CALLED = (
    ("aiconfigurator", "vllm fp8_block"),
    *((name, "") for name in ("neusight", "vidur", "llmservingsim", "xla", "deepbench", "apex_plus", "kernelbench")),
)
"""Sources, and their impl and dtype, whose times are those of calls: they wait for the host, for 14 to 93 us in NeuSight's, for
some 12 in Vidur's and LLMServingSim's, for 50 to 350 in vLLM's products in fp8_block. The others are of CUDA graphs or of
kernels alone."""

_TUNERS, _LEAST_OF_LIMIT = ("aiter", "tensile", "miopen"), 0.6
"""Tuners keep the fastest time, slips of the clock too: 50 of 68,000 rows, such as 1 us for a product of 57 ms. Caches and
boost clocks explain times a little below the bound on paper."""

FAMILY_FILES = (
    "gemm",
    "attention",
    "attention_prefill",
    "attention_decode",
    "moe",
    "conv2d",
    "elementwise",
    "softmax",
    "layernorm",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--without", help="a device whose rows are left out, to judge how it is answered as a stranger")
    parser.add_argument("--only", default="", help="families to train, separated by commas; needs --beside")
    parser.add_argument("--beside", type=Path, help="the model whose other families are kept")
    options = parser.parse_args(argv)
    if bool(options.only) != bool(options.beside):
        parser.error("--only and --beside go together")
    start = time.monotonic()
    files = [
        path
        for source in SOURCES
        for name in FAMILY_FILES
        if (path := source_folder(options.tables, source) / f"{name}.parquet").exists()
    ]
    # DeepBench measured three phones, which the catalogue does not have.
    public = labelled_files(files, split="train", skip_bad_rows=True)
    local = labelled_tables({family: read_shipped(family) for family in shipped_families()})
    by_family: dict[str, list[LabelledCases]] = {}
    left_out = "" if options.without is None else catalogue().get(options.without).name
    operators = [path for name in OPERATOR_FILES if (path := options.tables / "llm_ops" / f"{name}.parquet").exists()]
    public = [possible(with_timing(rows)) for rows in public]
    public += [rows for path in operators for rows in read_llm_ops(path)]
    every = (rows.take(np.flatnonzero(rows.cases.device != left_out)) for rows in (*public, *local))
    for rows in every:
        by_family.setdefault(rows.cases.family.name, []).append(rows)
    tables = [joined(by_family[name]) for name in sorted(by_family)]
    facts = {
        "data": [
            {"name": f"{path.parent.name}/{path.name}", "sha256": file_sha256(path)} for path in (*files, *operators)
        ],
        "split": "train",
        "sources": {name: {**facts, "rows": _rows_of(tables, name)} for name, facts in SOURCES.items()},
        "own_data": [
            {"name": path.name, "sha256": file_sha256(path)} for path in sorted(SHIPPED_DIR.glob("*.parquet"))
        ],
        "own_rows": sum(map(len, local)),
    }
    chosen = [rows for rows in tables if not options.only or rows.cases.family.name in options.only.split(",")]
    artifact = train(chosen, facts=facts, progress=lambda what, done, total: _say(start, what, done, total))
    if options.beside is not None:
        artifact = _beside(artifact, options.beside, tables)
    save_artifact(artifact, options.out)
    _say(start, f"{sum(map(len, tables))} rows, saved in {options.out}", len(tables), len(tables))


def _beside(trained: Artifact, directory: Path, tables: Sequence[LabelledCases]) -> Artifact:
    """A model of the families of both; those without a power of their own have it from the rows of all others."""
    manifest = read_manifest(directory)
    kept = {
        name: load_family(directory, manifest, name) for name in manifest["families"] if name not in trained.families
    }
    families = kept | dict(trained.families)
    own = {
        name: family if family.utilisation is None else replace(family, targets={"latency": family.targets["latency"]})
        for name, family in families.items()
    }
    powered = with_utilisation({name: own[name] for name in sorted(own)}, tables, catalogue(), manifest["seed"])
    return replace(trained, families=powered)


def source_folder(tables: Path, source: str) -> Path:
    """The folder of a source; those of few devices are below `devices`."""
    return tables / source if (tables / source).is_dir() else tables / "devices" / source


def with_timing(rows: LabelledCases) -> LabelledCases:
    """The rows with what their times contain."""
    assert rows.source is not None
    cases = rows.cases
    library = np.char.partition(cases.impl, "-")[:, 0]
    kind = np.char.add(np.char.add(library, " "), cases.dtype)
    called = np.any([(rows.source == source) & np.char.startswith(kind, what) for source, what in _CALLED], axis=0)
    return replace(rows, cases=replace(cases, timing=np.where(called, "call", "device")))


def possible(rows: LabelledCases) -> LabelledCases:
    """The rows without those of tuners' records that take less than `_LEAST_OF_LIMIT` of the lower bound."""
    paper = work(rows.cases.with_catalogue_names(catalogue()).with_core_counts(catalogue()), catalogue())
    is_slip = np.isin(rows.source, _TUNERS) & (rows.latency_s < _LEAST_OF_LIMIT * paper.lower_bound_s)
    return rows.take(np.flatnonzero(~is_slip))


def _rows_of(tables: Sequence[LabelledCases], source: str) -> int:
    return sum(int((rows.source == source).sum()) for rows in tables if rows.source is not None)


def _say(start: float, what: str, done: int, total: int) -> None:
    print(f"{time.monotonic() - start:6.0f} s  {done}/{total}  {what}", flush=True)


if __name__ == "__main__":
    main()
