"""aiconfigurator's tables, in its columns with numbers made up: formats, versions, power, kernels and mixed-up folders."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.form.import_source import import_source
from kernelcast.datasets.form.importer import ImportedTables, get_importer
from kernelcast.datasets.store.store import Store
from kernelcast.features.errors import SpecError

H200, B200 = "NVIDIA H200", "NVIDIA B200"
BASE = "framework,version,device,op_name,kernel_source"
GEMM = f"{BASE},gemm_dtype,m,n,k,latency,power,power_limit"
ATTENTION = (
    f"{BASE},batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,attn_dtype,kv_cache_dtype,step,latency"
)
MOE = (
    f"{BASE},moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency"
)


def table(root: Path, where: str, header: str, *lines: str) -> Path:
    path = root / "systems/data" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def vllm_gemm(dtype: str, latency: str, power: str = "", device: str = H200, m: int = 4096) -> str:
    return f"VLLM,0.24.0,{device},gemm,vllm_default,{dtype},{m},4096,4096,{latency},{power},{'700' if power else ''}"


def read(path: Path) -> ImportedTables:
    return get_importer("aiconfigurator").read(path, None, lambda what, done, total: None)


def notes(found: ImportedTables, *, included: bool) -> dict[str, int]:
    return {note.reason: note.rows for note in found.notes if note.included is included}


def test_formats_versions_and_milliseconds(tmp_path: Path) -> None:
    table(tmp_path, "h200_sxm/vllm/0.24.0/gemm_perf.txt", GEMM,
          *(vllm_gemm(dtype, "0.5") for dtype in ("bfloat16", "fp8", "fp8_block", "int4_wo")))  # fmt: skip
    found = read(tmp_path)
    rows = found.tables["gemm"].to_pylist()
    assert [row["dtype"] for row in rows] == ["bf16", "fp8", "fp8_block"]
    assert {row["impl"] for row in rows} == {"vllm-0.24.0"}
    assert [row["timing"] for row in rows] == ["device", "device", "call"]
    assert rows[0]["latency_s"] == pytest.approx(0.5e-3)
    assert rows[0]["power_w"] is None
    ((reason, count),) = notes(found, included=False).items()
    assert "int4_wo" in reason
    assert count == 1


def test_power_of_short_kernels_is_flagged_and_power_limits_are_no_power(tmp_path: Path) -> None:
    table(tmp_path, "h200_sxm/gemm/vllm/0.24.0/gemm_perf.txt", f"{GEMM},compute_bound",
          vllm_gemm("bfloat16", "0.5", "600") + ",0", vllm_gemm("bfloat16", "0.2", "250") + ",0",
          vllm_gemm("bfloat16", "0.6", "700") + ",1", vllm_gemm("bfloat16", "0.7", "0") + ",0")  # fmt: skip
    found = read(tmp_path)
    assert found.tables["gemm"]["power_w"].to_pylist() == [600, 250, None, None]
    message = notes(found, included=True)
    assert [count for reason, count in message.items() if "333" in reason] == [1]
    assert [count for reason, count in message.items() if "power limit" in reason] == [1]


def test_prefill_decode_and_window(tmp_path: Path) -> None:
    start = f"TRTLLM,1.3.0rc15,{B200}"
    table(tmp_path, "b200_sxm/trtllm/1.3.0rc15/context_attention_perf.txt", f"{ATTENTION},window_size",
          f"{start},context_attention,torch_flow,2,1024,32,8,128,1,fp8,fp8,0,0.4,128")  # fmt: skip
    table(tmp_path, "b200_sxm/trtllm/1.3.0rc15/generation_attention_perf.txt", ATTENTION,
          f"{start},generation_attention,torch_flow,64,1,32,0,128,1,float16,fp8,4096,0.4",
          f"{start},generation_attention,torch_flow,64,1,32,8,128,4,float16,fp8,4096,0.4")  # fmt: skip
    found = read(tmp_path)
    prefill, decode = sorted(found.tables["attention"].to_pylist(), key=lambda row: -row["q_len"])
    assert [prefill[name] for name in ("variant", "q_len", "kv_len", "window", "dtype", "kv_dtype")] == [
        "prefill", 1024, 1024, 128, "fp8", "fp8"]  # fmt: skip
    assert [decode[name] for name in ("variant", "q_len", "kv_len", "window", "dtype", "kv_dtype", "kv_heads")] == [
        "decode", 1, 4096, 0, "bf16", "fp8", 32]  # fmt: skip
    assert prefill["impl"] == "trtllm-1.3.0rc15"
    assert any("float16" in reason for reason in notes(found, included=True))
    assert any("beams" in reason for reason in notes(found, included=False))


def test_attention_of_encoders_sees_every_key(tmp_path: Path) -> None:
    table(tmp_path, "b200_sxm/sglang/0.5.14/encoder_attention_perf.txt",
          f"{BASE},batch_size,isl,num_heads,head_dim,attn_dtype,latency",
          f"SGLang,0.5.14,{B200},encoder_attention,flash_attention_v4,4,576,16,72,bfloat16,0.05")  # fmt: skip
    (row,) = read(tmp_path).tables["attention"].to_pylist()
    assert [row[name] for name in ("variant", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window", "dtype")] == [
        "full", 576, 576, 16, 16, 72, 0, "bf16"]  # fmt: skip
    assert (row["impl"], row["timing"]) == ("sglang-0.5.14", "device")


def test_quantisation_by_an_engines_kernel_and_by_operators(tmp_path: Path) -> None:
    header = f"{BASE},m,k,quant_dtype,latency"
    for name, kernel in (("scale_matrix", "torch_ops"), ("computescale", "torch_ops"), ("scale_matrix", "sglang")):
        library = "SGLang,0.5.14" if kernel == "sglang" else "TRTLLM,1.3.0rc20"
        table(tmp_path, f"b200_sxm/{library.partition(',')[0].lower()}/1/{name}_perf.txt", header,
              f"{library},{B200},{name},{kernel},512,4096,fp8,0.01")  # fmt: skip
    found = read(tmp_path)
    rows = [
        (row["variant"] or "", row["dtype"], row["rows"], row["cols"]) for row in found.tables["quantize"].to_pylist()
    ]
    assert sorted(rows) == [("", "fp8", 512, 4096), ("scale", "fp8", 512, 4096)]
    assert [count for reason, count in notes(found, included=False).items() if "by operators" in reason] == [1]


def test_latent_attention_is_a_whole_part_of_a_layer(tmp_path: Path) -> None:
    header = f"{BASE},model,mla_dtype,kv_cache_dtype,gemm_type,num_heads,batch_size,isl,tp_size,step,latency"
    start = f"VLLM,0.24.0,{B200},mla,FLASH_ATTN,deepseek-ai/DeepSeek-V3"
    table(tmp_path, "b200_sxm/vllm/0.24.0/mla_context_module_perf.txt", header,
          f"{start},bfloat16,fp8,fp8_block,16,4,512,1,0,0.4", f"{start},bfloat16,bfloat16,nvfp4,16,4,1,1,0,0.1",
          f"{start},fp8,fp8,nvfp4,16,4,512,1,0,0.3")  # fmt: skip
    table(tmp_path, "b200_sxm/vllm/0.24.0/mla_generation_module_perf.txt", header,
          f"{start},bfloat16,fp8,bfloat16,128,32,1,1,4096,0.2")  # fmt: skip
    found = read(tmp_path)
    names = ("variant", "dtype", "kv_dtype", "batch", "heads", "q_len", "kv_len", "timing")
    rows = [tuple(row[name] for name in names) for row in found.tables["latent_attention"].to_pylist()]
    assert rows == [
        ("prefill", "fp8_block", "fp8", 4, 16, 512, 512, "device"), ("decode", "nvfp4", "bf16", 4, 16, 1, 1, "device"),
        ("decode", "bf16", "fp8", 32, 128, 1, 4096, "device"),
    ]  # fmt: skip
    assert any("scores in fp8" in reason for reason in notes(found, included=False))


def test_convolutions_and_scans_of_linear_attention_are_told_apart(tmp_path: Path) -> None:
    header = (f"{BASE},phase,batch_size,seq_len,num_tokens,d_model,d_conv,num_k_heads,head_k_dim,num_v_heads,head_v_dim,"
              "model_name,latency")  # fmt: skip
    start = f"VLLM,0.24.0,{B200},gdn"
    for library, version in (("vllm", "0.24.0"), ("trtllm", "1.3.0rc20")):
        named = start.replace("VLLM,0.24.0", f"{library},{version}")
        table(tmp_path, f"b200_sxm/{library}/{version}/gdn_perf.txt", header,
              f"{named},causal_conv1d_fn,context,2,64,128,2048,4,16,128,32,128,m,0.01",
              f"{named},fused_recurrent,generation,8,1,8,2048,4,16,128,32,128,m,0.02",
              f"{named},fused_kda_decode,generation,8,1,8,2048,4,16,128,32,128,m,0.02")  # fmt: skip
    found = read(tmp_path)
    convolutions = {row["impl"].partition("-")[0]: row for row in found.tables["causal_conv1d"].to_pylist()}
    assert {library: row["channels"] for library, row in convolutions.items()} == {"vllm": 8192, "trtllm": 2048}
    assert (convolutions["vllm"]["variant"], convolutions["vllm"]["width"]) == (None, 4)
    steps = {row["impl"].partition("-")[0]: row for row in found.tables["linear_attention"].to_pylist()}
    assert {library: row["kv_dtype"] for library, row in steps.items()} == {"vllm": "fp32", "trtllm": "bf16"}
    assert {row["variant"] for row in steps.values()} == {"gated_delta_step"}
    assert notes(found, included=False) == {"a step fused with its convolution and norm": 2}


def test_other_kernels_of_a_case_are_told_apart(tmp_path: Path) -> None:
    line = f"TRTLLM,1.0.0,{B200},moe,{{}},nvfp4,64,7168,2048,8,256,1,8,power_law_1.01,0.3"
    table(tmp_path, "b200_sxm/trtllm/1.0.0/moe_perf.txt", MOE,
          *map(line.format, ("moe_torch_flow", "moe_torch_flow_min_latency", "moe_torch_flow_nongated")))  # fmt: skip
    found = read(tmp_path)
    assert found.tables["moe"]["impl"].to_pylist() == ["trtllm-1.0.0", "trtllm_min_latency-1.0.0"]
    assert [row["ep"] for row in found.tables["moe"].to_pylist()] == [8, 8]
    assert any("without a gate" in reason for reason in notes(found, included=False))


def test_parquet_comes_before_text_and_incomplete_collections_are_not_read(tmp_path: Path) -> None:
    old = table(tmp_path, "h200_sxm/vllm/0.24.0/gemm_perf.txt", GEMM, vllm_gemm("fp8", "0.5"))
    pq.write_table(pa_csv.read_csv(old), old.with_suffix(".parquet"))
    half = table(tmp_path, "h200_sxm/vllm/0.25.0/gemm_perf.txt", GEMM, vllm_gemm("fp8", "0.5"), vllm_gemm("fp8", "0.6"))
    (half.parent / "INCOMPLETE.txt").write_text("")
    found = read(tmp_path)
    assert found.tables["gemm"].num_rows == 1
    assert [count for reason, count in notes(found, included=False).items() if "incomplete" in reason] == [2]


def test_rows_in_another_systems_folder_and_ragged_lines_are_left_out(tmp_path: Path) -> None:
    table(tmp_path, "h200_sxm/vllm/0.24.0/gemm_perf.txt", GEMM, vllm_gemm("fp8", "0.5"), vllm_gemm("fp8", "0.5", device=B200),
          vllm_gemm("fp8", "0.5") + ",1,2")  # fmt: skip
    found = read(tmp_path)
    assert found.tables["gemm"]["device"].to_pylist() == [H200]
    assert notes(found, included=False) == {
        "the rows say NVIDIA B200, their folder h200_sxm": 1, "lines with more or fewer cells than the header": 1,
    }  # fmt: skip


def test_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    path = table(
        tmp_path, "h200_sxm/vllm/0.24.0/gemm_perf.parquet", "version https://git-lfs.github.com/spec/v1", "oid x"
    )
    with pytest.raises(SpecError, match="git lfs pull"):
        read(path)


def test_rows_faster_than_the_device_are_refused_and_those_beside_them_doubted(tmp_path: Path) -> None:
    start = f"TRTLLM,1.3.0rc15,{B200},generation_attention,torch_flow"
    # A cache of 2 * 256 * 4096 * 8 * 256 * 2 B takes 1.1 ms at 8 TB/s.
    lines = [f"{start},256,1,64,8,256,1,bfloat16,bfloat16,4096,{latency}" for latency in ("0.5", "1.5", "1.6")]
    table(tmp_path, "b200_sxm/trtllm/1.3.0rc15/generation_attention_perf.txt", ATTENTION, *lines,
          f"{start},256,1,64,8,128,1,bfloat16,bfloat16,4096,0.9",
          "TRTLLM,1.3.0rc15,NVIDIA B900,generation_attention,torch_flow,256,1,64,8,128,1,bfloat16,bfloat16,4096,0.9",
          f"{start},256,1,64,7,128,1,bfloat16,bfloat16,4096,0.9")  # fmt: skip
    report = import_source(get_importer("aiconfigurator"), tmp_path, Store(tmp_path / "store"))
    assert report.imported == {"attention": 3}
    by_reason = {note.reason: note for note in report.notes}
    (fast,) = [
        note for reason, note in by_reason.items() if "faster than the device can be" in reason and not note.included
    ]
    assert fast.rows == 1
    assert "head_dim=256" in fast.reason
    (doubted,) = [note for note in report.notes if "mislabelled" in note.reason]
    assert (doubted.rows, doubted.included) == (2, True)
    assert any("NVIDIA B900" in reason and "not in the catalogue" in reason for reason in by_reason)
    assert any("multiple of kv_heads" in reason for reason in by_reason)
