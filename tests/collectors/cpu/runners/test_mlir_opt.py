"""The mlir-opt runner compiles, runs and checks tiled products."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kernelcast.collectors.cpu.runners import mlir_opt
from kernelcast.collectors.runner import Prepared, UnsupportedCaseError, runners
from kernelcast.features.kernel import KernelSpec

TILES = {"tile_m": 4, "tile_n": 16, "tile_k": 2}


def gemm(variant: str = "", batch: int = 1, **config: int) -> KernelSpec:
    return KernelSpec.of(
        "gemm", "fp32", variant=variant, impl="mlir-opt", threads=1, config=config, batch=batch, m=17, n=33, k=65
    )


def prepare(spec: KernelSpec) -> Prepared:
    for tool in ("mlir-opt-19", "mlir-translate-19", "opt-19", "llc-19", "cc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    try:
        return runners()["mlir-opt"].prepare(spec)
    except UnsupportedCaseError as error:
        if "make mlir-plugin" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(("variant", "batch"), [("", 1), ("nt", 1), ("tn", 1), ("batched", 3)])
@pytest.mark.parametrize("config", [{}, TILES], ids=["untiled", "tiled"])
def test_every_layout_gives_the_right_product(variant: str, batch: int, config: dict[str, int]) -> None:
    # prepare() itself compares with numpy; the sizes are ones that no tile divides.
    prepared = prepare(gemm(variant, batch, **config))
    for _ in range(3):
        prepared.call()
    assert 0.0 < prepared.setup_s < mlir_opt.COMPILE_LIMIT_S


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (KernelSpec.of("softmax", "fp32", rows=4, cols=4, threads=1), "runs gemm"),
        (KernelSpec.of("gemm", "fp32", variant="bias", m=4, n=4, k=4, threads=1), "runs gemm"),
        (KernelSpec.of("gemm", "bf16", m=4, n=4, k=4, threads=1), "fp32 on one thread"),
        (KernelSpec.of("gemm", "fp32", m=4, n=4, k=4, threads=2), "fp32 on one thread"),
        (KernelSpec.of("gemm", "fp32", m=4, n=4, k=4, threads=1, config={"tile_m": 4}), "together"),
        (KernelSpec.of("gemm", "fp32", m=4, n=4, k=4, threads=1, config={"inner_m": 4}), "together"),
    ],
)
def test_what_it_does_not_measure_is_refused(spec: KernelSpec, why: str) -> None:
    with pytest.raises(UnsupportedCaseError, match=why):
        runners()["mlir-opt"].prepare(spec)


def test_a_missing_plugin_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("mlir-opt-19") is None:
        pytest.skip("mlir-opt-19 is not installed")
    monkeypatch.setenv(mlir_opt.PLUGIN_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(UnsupportedCaseError, match="make mlir-plugin"):
        runners()["mlir-opt"].prepare(gemm(**TILES))
