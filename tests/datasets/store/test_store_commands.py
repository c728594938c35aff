"""The store on the command line: the same commands for a folder and for a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast import cli

TABLE = "family,device,dtype,m,n,k,latency_s\n" + "".join(f"gemm,nvidia-t4,fp32,{m},64,64,1e-3\n" for m in (8, 16))


@pytest.fixture
def run(capsys):
    def run(*args):
        code = cli.main([str(arg) for arg in args])
        message = capsys.readouterr()
        assert "Traceback" not in message.err
        return code, message.out, message.err

    return run


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    return tmp_path / "rows" if request.param == "folder" else f"s3://{request.getfixturevalue('s3_bucket')}/rows"


def test_rows_go_in_are_packed_and_verified(run, place, tmp_path):
    for at in range(2):
        table = tmp_path / f"mine{at}.csv"
        table.write_text(TABLE.replace(",64,64", f",64,{64 + at}"))
        assert run("import", table, "--source", "me", "--store", place)[0] == 0
    assert json.loads(run("data", "list", "--store", place, "--json")[1])[0]["rows"] == 4
    code, out, err = run("data", "verify", "--store", place, "--json")
    message = json.loads(out)
    assert (code, message["clean"], message["found"]["rows"], message["store"]) == (0, True, 4, str(place))
    assert err.endswith("clean\n")
    code, out, _ = run("data", "compact", "--out", tmp_path / "out", "--store", place, "--json")
    assert (code, json.loads(out)) == (0, [str(tmp_path / "out" / "gemm.parquet")])
    code, _, err = run("collect-gpu", "--dry-run", "--device", "nvidia-t4", "--minutes", "0.5", "--out", place)
    assert code == 0
    assert "4 of nvidia-t4 are measured already" in err


def test_damage_is_told_and_moved_away_when_asked(run, tmp_path):
    table, store = tmp_path / "mine.csv", tmp_path / "rows"
    table.write_text(TABLE)
    run("import", table, "--source", "me", "--store", store)
    (path,) = store.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = run("data", "verify", "--store", store, "--json")
    message = json.loads(out)
    name = str(path.relative_to(store))
    assert (code, message["clean"], message["quarantined"]) == (2, False, [])
    assert message["found"]["damaged"] == [[name, "its content is not what its name says"]]
    assert f"{name}: its content is not what its name says" in err
    assert "add --quarantine" in err
    code, out, _ = run("data", "verify", "--quarantine", "--store", store, "--json")
    assert (code, json.loads(out)["quarantined"]) == (2, [f".quarantine/{name}"])
    assert (store / ".quarantine" / name).exists()
    code, _, err = run("data", "verify", "--store", store)
    assert (code, "0 files" in err) == (0, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["data", "list", "--store", "nothing://x"], "fsspec knows no protocol 'nothing'"),
        (["data", "verify", "--store", "s3://u:secret@b/x"], "holds a password"),
        (["data", "compact", "--out", "x", "--store", "nothing://x"], "fsspec knows no protocol"),
        (
            ["collect", "--rows", "1", "--device", "amd-epyc-9005-vm-2c", "--store", "nothing://x"],
            "fsspec knows no protocol",
        ),
        (["collect-gpu", "--dry-run", "--device", "nvidia-t4", "--out", "nothing://x"], "fsspec knows no protocol"),
        (["import", "mine.csv", "--source", "me", "--store", "nothing://x"], "fsspec knows no protocol"),
        (["data", "compact"], "--out"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run, tmp_path, monkeypatch, args, words):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(TABLE)
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(err)
    assert "secret" not in err


def test_a_bucket_that_is_not_there_is_one_sentence(run, s3_bucket):
    for command in (["data", "list"], ["data", "verify"], ["data", "compact", "--out", "x"]):
        code, _, err = run(*command, "--store", "s3://no-such-bucket/x")
        assert code == 2
        assert "there is no such bucket" in err
        assert "hidden-key" not in err
