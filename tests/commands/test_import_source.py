"""`kernelcast data import --from`: into the store, into files of the form, and what is said when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.form.form import read_form
from kernelcast.datasets.form.importer import importers

HEAD = "OPName,Latency,Device,Kernel Name,B,M,N,K\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of NeuSight with two tables of made-up numbers; one row is of an unknown device, one faster than its own."""
    folder = tmp_path / "NeuSight/data/dataset/train"
    folder.mkdir(parents=True)
    (folder / "bmm.csv").write_text(
        HEAD + "bmm,0.5,Tesla T4,k,8,64,64,64\nbmm,0.6,Tesla T9,k,8,64,64,64\nbmm,0.01,Tesla T4,k,512,512,512,512\n"
    )
    (folder / "softmax.csv").write_text("OPName,Latency,Device,B,H\nsoftmax,0.1,Tesla T4,64,1024\n")
    return tmp_path / "NeuSight"


def test_a_clone_goes_into_the_store_once(run, clone):
    done = run("import", clone, "--from", "neusight", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)[str(clone)]
    assert report["kept"] == {"gemm": 1, "softmax": 1}
    assert "faster than the device can be" in done.err
    assert "'Tesla T9' is not in the catalogue" in done.err
    again = json.loads(run("import", clone, "--from", "neusight", "--json").out)[str(clone)]
    assert (again["kept"], again["duplicates"], again["files"]) == ({"gemm": 0, "softmax": 0}, 2, [])
    listed = json.loads(run("data", "list", "--json").out)
    assert [(row["family"], row["device"], row["rows"]) for row in listed] == [
        ("gemm", "nvidia-t4", 1),
        ("softmax", "nvidia-t4", 1),
    ]


def test_a_folder_of_the_form_or_one_file(run, clone, tmp_path):
    assert run("import", clone, "--from", "neusight", "--out", tmp_path / "form").code == 0
    assert sorted(file.name for file in (tmp_path / "form").iterdir()) == ["gemm.parquet", "softmax.parquet"]
    (row,) = pq.read_table(tmp_path / "form/gemm.parquet").to_pylist()
    assert (row["device"], row["latency_s"], row["source"]) == (
        "nvidia-t4",
        0.5e-3,
        "https://github.com/sitar-lab/NeuSight",
    )
    assert run("import", clone, "--from", "neusight", "--source", "me", "--out", tmp_path / "all.parquet").code == 0
    form = read_form(tmp_path / "all.parquet")
    assert {family: len(rows) for family, rows in form.parts.items()} == {"gemm": 1, "softmax": 1}
    assert set(form.parts["gemm"].source) == {"me"}
    assert json.loads(run("data", "list", "--json").out) == []


def test_a_file_without_a_device_needs_one(run, tmp_path):
    path = tmp_path / "products.gemm.csv"
    path.write_text(
        "Problem,Provider,OperationKind,Operation,Disposition,Status,m,n,k,A,B,C,op_class,cta_m,cta_n,cta_k,stages,Runtime\n"
        "1,CUTLASS,gemm,x,passed,success,512,512,512,f16:row,f16:row,f16:row,tensorop,128,128,32,3,0.1\n"
    )
    assert "name it with --device" in run("import", path, "--from", "cutlass-profiler").error
    assert "no device 'h900'" in run("import", path, "--from", "cutlass-profiler", "--device", "h900").error
    done = run("import", path, "--from", "cutlass-profiler", "--device", "a40", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert read_form(tmp_path / "out/gemm.parquet").parts["gemm"].cases.config["tile_m"].tolist() == [128]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--from", "newsight"), "no importer 'newsight'; importers: aiconfigurator, cutlass-profiler"),
        (("--from", "vidur"), "it looks like neusight: --from neusight"),
        (("--from", "neusight", "--device", "nvidia-t4"), "leave --device out"),
        (("--from", "neusight", "--family", "gemm"), "leave --family out"),
        (("--from", "neusight", "--out", "x.csv"), "name a .parquet file or a folder"),
        (("--from", "neusight", "--out", "x", "--store", "y"), "not both"),
        (("--source", "me"), "looks like neusight; add --from neusight"),
        (("--source", "me", "--device", "nvidia-t4"), "--device goes with --from"),
        (("--source", "me", "--out", "x"), "--out goes with --from"),
    ],
)
def test_mistakes_are_one_sentence(run, clone, args, said):
    assert said in run("import", clone, *args).error


def test_nothing_to_import_says_why(run, tmp_path):
    assert "no such file" in run("import", tmp_path / "none", "--from", "vidur").error
    (tmp_path / "bmm.csv").write_text(HEAD + "bmm,0.6,Tesla T9,k,8,64,64,64\n")
    assert "Tesla T9" in run("import", tmp_path, "--from", "neusight").error


def test_a_device_file_adds_a_device(run, clone, tmp_path):
    text = (Path(__file__).parents[2] / "features/devices/nvidia-t4.yaml").read_text()
    mine = text.replace("name: nvidia-t4", "name: my-t9")
    start = mine.index("aliases:")
    (tmp_path / "t9.yaml").write_text(mine[:start] + 'aliases: ["Tesla T9"]\n' + mine[mine.index("\n", start) + 1 :])
    out = tmp_path / "form"
    assert run("import", clone, "--from", "neusight", "--device-file", tmp_path / "t9.yaml", "--out", out).code == 0
    assert pq.read_table(out / "gemm.parquet")["device"].to_pylist() == ["nvidia-t4", "my-t9"]


def test_every_importer_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs/importing.md").read_text()
    for name, importer in importers().items():
        assert f"`{name}`" in page
        assert importer.title
