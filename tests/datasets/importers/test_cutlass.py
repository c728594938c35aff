"""Tables of cutlass_profiler and of GPPerf, in their columns with numbers made up: layouts, tiles and verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.datasets.form.importer import ImportedTables, get_importer
from kernelcast.datasets.importers.cutlass_profiler import parse_kernel, variant_of
from kernelcast.features.errors import SpecError

HEAD = ("Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,split_k_mode,"
        "split_k_slices,batch_count,raster_order,op_class,accum,cta_m,cta_n,cta_k,cluster_m,cluster_n,cluster_k,stages,warps_m,warps_n,warps_k,"
        "inst_m,inst_n,inst_k,min_cc,max_cc,Bytes,Flops,Flops/Byte,Runtime,GB/s,GFLOPs")  # fmt: skip


def line(**changes: object) -> str:
    raw = {
        "Problem": 1, "Provider": "CUTLASS", "OperationKind": "gemm", "Operation": "cutlass_x", "Disposition": "passed",
        "Status": "success", "gemm_kind": "universal", "m": 1024, "n": 512, "k": 256, "A": "f16:row", "B": "f16:column",
        "C": "f16:column", "D": "f16:column", "alpha": 1, "beta": 0, "split_k_slices": 2, "batch_count": 1,
        "op_class": "tensorop",
        "cta_m": 256, "cta_n": 128, "cta_k": 32, "cluster_m": 1, "cluster_n": 1, "cluster_k": 1, "stages": 3, "warps_m": 4,
        "warps_n": 2, "warps_k": 1, "Runtime": 0.5,
    } | changes  # fmt: skip
    return ",".join(str(raw.get(name, "")) for name in HEAD.split(","))


def profile(folder: Path, *lines: str) -> Path:
    path = folder / "products.gemm.csv"
    path.write_text("\n".join((HEAD, *lines)) + "\n")
    return path


def read(path: Path, name: str = "cutlass-profiler", device: str | None = "nvidia-a40") -> ImportedTables:
    return get_importer(name).read(path, device, lambda what, done, total: None)


def reasons(found: ImportedTables) -> dict[str, int]:
    return {note.reason: note.rows for note in found.notes}


def test_a_product_with_c_by_column_changes_sides(tmp_path: Path) -> None:
    by_column, by_row = read(profile(tmp_path, line(), line(C="f16:row"))).tables["gemm"].to_pylist()
    names = ("m", "n", "k", "variant", "tile_m", "tile_n", "tile_k", "inner_m", "inner_n", "warps", "stages", "split_k")
    assert [by_column[name] for name in names] == [512, 1024, 256, "nt", 128, 256, 32, 64, 64, 8, 3, 2]
    assert [by_row[name] for name in names] == [1024, 512, 256, "nt", 256, 128, 32, 64, 64, 8, 3, 2]
    assert (by_row["impl"], by_row["dtype"], by_row["device"]) == ("cutlass", "fp16", "nvidia-a40")
    assert (by_column["timing"], by_row["timing"]) == ("device", "device")
    assert by_row["latency_s"] == pytest.approx(0.5e-3)


def test_what_did_not_pass_is_left_out_with_its_verdict(tmp_path: Path) -> None:
    found = read(profile(
        tmp_path, line(), line(Disposition="not_verified"), line(Disposition="incorrect"), line(Status="error_not_supported"),
        line(Runtime=0), line(beta=1), line(A="f16:row", B="s8:column"), line(OperationKind="conv2d"),
        line(A="u4:row", B="u4:row"),
    ))  # fmt: skip
    assert found.tables["gemm"].num_rows == 1
    message = reasons(found)
    assert message["disposition 'not_verified', not 'passed'; profile with --verification-enabled=true"] == 1
    assert message["disposition 'incorrect', not 'passed'"] == 1
    assert message["beta is not 0: the kernel reads C too"] == 1
    assert sum(message.values()) == 8


def test_formats_batches_clusters_and_cublas(tmp_path: Path) -> None:
    found = read(profile(
        tmp_path, line(A="f32:row", B="f32:column"), line(A="f32:row", B="f32:column", op_class="simt"), line(batch_count=4),
        line(Provider="cuBLAS", cta_m=0, cta_n=0, cta_k=0), line(cluster_m=2),
    ))  # fmt: skip
    rows = found.tables["gemm"].to_pylist()
    assert [row["dtype"] for row in rows] == ["tf32", "fp32", "fp16", "fp16", "fp16"]
    assert [(row["batch"], row["variant"]) for row in rows][2] == (4, "batched")
    assert (rows[3]["impl"], rows[3]["tile_m"]) == ("cublas", None)
    assert [count for reason, count in reasons(found).items() if "cluster" in reason] == [1]


def test_the_device_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="name it with --device"):
        read(profile(tmp_path, line()), device=None)


def test_names_of_kernels() -> None:
    kernel = parse_kernel("cutlass_simt_sgemm_128x64_8x2_tn_align1")
    assert kernel is not None
    assert (kernel.dtype, kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.stages) == ("fp32", 128, 64, 8, 2)
    tensor = {name: parse_kernel(f"cutlass_tensorop_{name}_128x128_32x3_nn_align8") for name in (
        "h16816gemm", "s16816gemm_bf16", "s1688tf32gemm", "s16816gemm")}  # fmt: skip
    assert [item and item.dtype for item in tensor.values()] == ["fp16", "bf16", "tf32", None]
    assert parse_kernel("volta_sgemm_128x64_tn") is None
    assert [variant_of(a, b, True) for a in (True, False) for b in (True, False)] == ["", "tn", "nt", "tt"]
    assert [variant_of(a, b, False) for a in (True, False) for b in (True, False)] == ["tt", "tn", "nt", ""]


GPPERF = ("Timestamp,M,N,K,Kernel Name,Layout,Blocksize1,Blocksize2,Blocksize3,Stage,Alpha,Beta,Runtime,Power,GPU Name,"
          "Power Limit,Kernel Name,Energy")  # fmt: skip


def gpperf(
    power: float, *, runtime: float = 1.2, beta: float = 0, kernel: str = "cutlass_simt_sgemm_128x64_8x2_tn_align1"
) -> str:
    return f"1,2048,1024,2048,{kernel},nn,64,64,32,2,1,{beta},{runtime},{power},NVIDIA GeForce RTX 4070,200.00 W,{kernel},8e4"


def test_power_read_after_the_kernel_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(
        "\n".join((GPPERF, gpperf(165), gpperf(31), gpperf(38), gpperf(45, runtime=300), gpperf(160, beta=1))) + "\n"
    )
    found = read(path, "gpperf", None)
    rows = found.tables["gemm"].to_pylist()
    assert len(rows) == 4
    assert not {"power_w", "energy_j"} & {name for row in rows for name, value in row.items() if value is not None}
    assert [count for reason, count in reasons(found).items() if "without power" in reason] == [4]
    first = rows[0]
    # The kernel's name is what ran; the columns of layout and block size were not obeyed.
    assert [first[name] for name in ("m", "n", "k", "variant", "tile_m", "tile_n", "tile_k", "stages")] == [
        1024, 2048, 2048, "nt", 64, 128, 8, 2]  # fmt: skip
    assert first["latency_s"] == pytest.approx(1.2e-3)
    assert first["timing"] == "device"
    assert reasons(found)["beta is not 0: the kernel reads C too"] == 1


def test_tiled_products_come_without_the_power_of_their_process(tmp_path: Path) -> None:
    (tmp_path / "execution_times_all.csv").write_text("M,N,K,Tile Size,Execution Time\n512,1024,256,16,2.5\n")
    (tmp_path / "power_usage_results_all.csv").write_text(
        "M,N,K,Tile Size,Average Power Usage (W)\n512,1024,256,16,40\n"
    )
    (tmp_path / "results.csv").write_text("Size,Kernel,Runtime_ms,Power_Watts\n512,sgemm,1,40\n")
    found = read(tmp_path, "gpperf", None)
    (row,) = found.tables["gemm"].to_pylist()
    assert [row[name] for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k", "impl")] == [
        512,
        1024,
        256,
        16,
        16,
        16,
        "cuda_tiled",
    ]
    assert row["timing"] == "call"
    assert row["latency_s"] == pytest.approx(2.5e-3)
    assert sum(note.rows for note in found.notes if not note.included) == 2


def test_gpperf_is_of_one_device(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"{GPPERF}\n{gpperf(165)}\n")
    with pytest.raises(SpecError, match="not from nvidia-t4"):
        read(path, "gpperf", "nvidia-t4")
