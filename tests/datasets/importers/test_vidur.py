"""Vidur's profiles, in its columns with numbers made up: what tensor parallelism divides, gated layers, decode rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.datasets.form.importer import ImportedTables, get_importer
from kernelcast.features.errors import SpecError

MODEL = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
OPERATORS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act", "input_layernorm",
             "post_attention_layernorm", "add", "attn_rope")  # fmt: skip
STATS = ",".join(f"time_stats.{name}.{stat}" for name in OPERATORS for stat in ("min", "median"))
ATTENTION = ("time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,block_size,"
             "num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,"
             "attention_backend")  # fmt: skip


def profile(root: Path, device: str, name: str, *lines: str) -> Path:
    path = root / "data/profiling/compute" / device / "meta-llama/Llama-2-70b-hf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def layer(*, gated: bool, normed_twice: bool = True, workers: int = 4) -> str:
    cells = ["0.9,1.0" if name != "post_attention_layernorm" or normed_twice else "," for name in OPERATORS]
    return ",".join(cells) + f",64,8,8192,28672,32000,{gated},512,{workers}"


def read(path: Path, device: str | None = None) -> ImportedTables:
    return get_importer("vidur").read(path, device, lambda what, done, total: None)


def test_products_are_those_of_one_worker(tmp_path: Path) -> None:
    profile(tmp_path, "a100", "mlp.csv", f"{STATS},{MODEL}", layer(gated=True))
    result = read(tmp_path)
    rows = result.tables["gemm"].to_pylist()
    assert [(row["m"], row["n"], row["k"]) for row in rows] == [
        (512, 128 * (16 + 2 * 2), 8192), (512, 8192, 2048), (512, 2 * 7168, 8192), (512, 8192, 7168),
    ]  # fmt: skip
    assert {(row["device"], row["dtype"], row["impl"]) for row in rows} == {("a100", "fp16", "sarathi")}
    assert rows[0]["latency_s"] == pytest.approx(1e-3)
    assert "timing" not in rows[0]
    assert result.tables["layernorm"]["variant"].to_pylist() == ["rmsnorm", "rmsnorm"]
    assert result.tables["elementwise"]["variant"].to_pylist() == ["add"]
    message = {note.reason: note.rows for note in result.notes}
    assert message["gated activations are no operator of the elementwise family"] == 1
    assert message["no family of kernels for the operator 'attn_rope'"] == 1


def test_models_normed_once_keep_gelu_and_lose_what_is_not_known(tmp_path: Path) -> None:
    profile(tmp_path, "a100", "mlp.csv", f"{STATS},{MODEL}", layer(gated=False, normed_twice=False))
    result = read(tmp_path)
    (act,) = result.tables["elementwise"].to_pylist()
    assert (act["variant"], act["rows"], act["cols"]) == ("gelu", 512, 7168)
    assert "layernorm" not in result.tables
    message = {note.reason for note in result.notes}
    assert {
        "which norm the model has is not in the table",
        "sums of three tensors are no operator of the elementwise family",
    } <= message


def test_attention_by_phase(tmp_path: Path) -> None:
    profile(tmp_path, "h100", "attention.csv", ATTENTION,
            "0.4,,8192,64,8,16,4,4096,1,256,1024,True,AttentionBackend.FLASHINFER",
            ",0.2,8192,64,8,16,4,4096,32,0,2047,False,AttentionBackend.FLASHINFER")  # fmt: skip
    prefill, decode = read(tmp_path).tables["attention"].to_pylist()
    names = ("variant", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "impl")
    assert [prefill[name] for name in names] == ["prefill", 1, 16, 2, 256, 1280, 128, "sarathi_flashinfer"]
    assert [decode[name] for name in names] == ["decode", 32, 16, 2, 1, 2048, 128, "sarathi_flashinfer"]
    assert decode["latency_s"] == pytest.approx(0.2e-3)


def test_the_device_is_the_folders_or_named(tmp_path: Path) -> None:
    path = profile(tmp_path, "h100", "mlp.csv", f"{STATS},{MODEL}", layer(gated=True))
    with pytest.raises(SpecError, match="is from h100, not from nvidia-a40"):
        read(path, "nvidia-a40")
    alone = tmp_path / "mlp.csv"
    path.rename(alone)
    assert set(read(alone, "nvidia-a40").tables["gemm"]["device"].to_pylist()) == {"nvidia-a40"}
    with pytest.raises(SpecError, match="--device"):
        read(alone)
