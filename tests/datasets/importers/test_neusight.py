"""NeuSight's tables, in its columns with numbers made up: names of sizes, milliseconds, throttled and repeated rows, layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.datasets.form.importer import ImportedTables, get_importer

T4, P4 = "Tesla T4", "Tesla P4"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(path: Path) -> ImportedTables:
    return get_importer("neusight").read(path, None, lambda what, done, total: None)


def rows(found: ImportedTables, family: str) -> list[dict[str, object]]:
    return found.tables[family].to_pylist()  # type: ignore[no-any-return]


def left_out(found: ImportedTables) -> dict[str, int]:
    return {note.reason: note.rows for note in found.notes if not note.included}


def products(*lines: str) -> str:
    return "OPName,Latency,Device,Kernel Name,B,M,N,K\n" + "".join(f"{line}\n" for line in lines)


def test_n_is_the_inner_size_and_latency_is_in_milliseconds(tmp_path: Path) -> None:
    write(tmp_path / "test/linear.csv", products(f"linear,2.5,{T4},volta_sgemm_128x64_tn,1,512,768,3072"))
    write(tmp_path / "test/bmm.csv", products(f"bmm,0.5,{T4},volta_sgemm_128x64_nn,12,128,64,256"))
    linear, batched = rows(read(tmp_path), "gemm")[::-1]
    assert [linear[name] for name in ("batch", "m", "n", "k", "variant")] == [1, 512, 3072, 768, "bias"]
    assert linear["latency_s"] == pytest.approx(2.5e-3)
    assert [batched[name] for name in ("batch", "m", "n", "k", "variant")] == [12, 128, 256, 64, "batched"]
    assert (linear["dtype"], linear["impl"], linear["split"], linear["device"]) == ("fp32", "torch", "test", T4)
    assert (linear["timing"], batched["timing"]) == ("call", "call")


def test_throttled_rows_of_the_p4_are_left_out_and_no_others(tmp_path: Path) -> None:
    for campaign in ("train", "test"):
        write(tmp_path / campaign / "linear.csv", products(
            f"linear,9.0,{P4},k,1,512,768,3072", f"linear,2.0,{T4},k,1,512,768,3072"))  # fmt: skip
        write(tmp_path / campaign / "bmm.csv", products(f"bmm,1.0,{P4},k,4,64,64,64"))
    found = read(tmp_path)
    (why,) = [reason for reason in left_out(found) if "throttled" in reason]
    assert left_out(found)[why] == 1
    remaining = {(row["device"], row["variant"], row["split"]) for row in rows(found, "gemm")}
    assert (P4, "bias", "train") not in remaining
    assert {(P4, "bias", "test"), (T4, "bias", "train"), (P4, "batched", "train")} <= remaining


def test_rows_of_merged_tables_count_once_but_repeats_in_one_table_stay(tmp_path: Path) -> None:
    once = f"bmm,0.5,{T4},k,12,128,64,256"
    write(tmp_path / "train/collect/bmm/p2.1.0/Tesla T4.csv", products(once, once))
    write(tmp_path / "train/bmm.csv", products(once))
    found = read(tmp_path)
    assert len(rows(found, "gemm")) == 2
    assert left_out(found) == {"the same row stands in another table of the clone": 1}


def test_vectors_and_convolutions(tmp_path: Path) -> None:
    head = "OPName,Latency,Device,B,H\n"
    write(
        tmp_path / "train/vec.csv",
        head + "".join(f"{op},0.1,{T4},64,1024\n" for op in ("add", "divu", "softmax", "ln", "what")),
    )
    sizes = "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding"
    write(tmp_path / "train/conv.csv", f"OPName,Latency,Device,{sizes}\n"
          f"conv,0.7,{T4},8,64,128,3,56,2,1\n")  # fmt: skip
    found = read(tmp_path)
    assert {row["variant"] for row in rows(found, "elementwise")} == {"add", "divu"}
    assert {(row["rows"], row["cols"]) for row in (*rows(found, "softmax"), *rows(found, "layernorm"))} == {(64, 1024)}
    (conv,) = rows(found, "conv2d")
    names = ("batch", "in_channels", "out_channels", "height", "width", "kernel", "stride", "padding")
    assert [conv[name] for name in names] == [8, 64, 128, 56, 56, 3, 2, 1]
    assert left_out(found) == {"no family of kernels for the operator 'what'": 1}


def test_layers_are_told_by_their_operands_not_by_their_label(tmp_path: Path) -> None:
    write(tmp_path / "label/Tesla_T4/gpt2_large-inf-1024-4.csv", "".join(
        f"{line}\n" for line in (
            "Name,meta,input_shapes,output_shape,fw_latency",
            'truediv,{},"[[4, 20, 1024, 1024], [1]]","(4, 20, 1024, 1024)",1.5',
            'add_3,{},"[[4, 1024, 1280], [4, 1024, 1280]]","(4, 1024, 1280)",0.2',
            'mul_1,{},"[[4, 1024, 1280], [1024, 1280]]","(4, 1024, 1280)",0.2',
            'addmm,{},"[[3840], [4096, 1280], [1280, 3840]]","(4096, 3840)",3.0',
            'matmul,{},"[[4, 20, 1024, 64], [4, 20, 64, 1024]]","(4, 20, 1024, 1024)",2.0',
            'transformer_h_0_ln_1,{},"[[4, 1024, 1280]]","(4, 1024, 1280)",0.1',
            'bert_pooler_act,{},"[[4, 1280]]","(4, 1280)",0.1',
            'view_1,{},"[[4, 1280]]","(4, 1280)",0',
        )
    ))  # fmt: skip
    found = read(tmp_path)
    scaled, added = rows(found, "elementwise")
    assert (scaled["variant"], scaled["rows"], scaled["cols"]) == ("divu", 4 * 20 * 1024, 1024)
    assert added["variant"] == "add"
    linear, scores = rows(found, "gemm")
    assert [linear[name] for name in ("m", "n", "k")] == [4096, 3840, 1280]
    assert [scores[name] for name in ("batch", "m", "n", "k")] == [80, 1024, 1024, 64]
    assert rows(found, "layernorm")[0]["latency_s"] == pytest.approx(1e-4)
    assert scaled["device"] == "Tesla T4"
    assert sum(left_out(found).values()) == 3


def test_other_tables_are_none_of_its(tmp_path: Path) -> None:
    write(tmp_path / "results.csv", "name,latency\nx,1\n")
    assert not get_importer("neusight").looks_like(tmp_path)
    write(tmp_path / "test/bmm.csv", products())
    assert get_importer("neusight").looks_like(tmp_path)
