"""Writing whole files, appending lines and locking, with crashes and full disks."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kernelcast.files import (
    LockedError,
    append_line,
    is_locked,
    lock,
    whole_file,
    whole_folder,
    write_together,
    write_whole,
)


def _full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "model.json"
    write_whole(path, "Größe\n")
    assert path.read_text(encoding="utf-8") == "Größe\n"
    write_whole(path, b"\x00\xff", durable=False)
    assert path.read_bytes() == b"\x00\xff"
    assert _names(path.parent) == ["model.json"]


def test_the_mode_is_that_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old")
    write_whole(path, "new", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    if call == "replace":
        monkeypatch.setattr(Path, "replace", _full_disk)
    else:
        monkeypatch.setattr(os, call, _full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(path, "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["record.json"]


def test_a_place_that_is_no_folder_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"record\.json"):
        write_whole(tmp_path / "file" / "record.json", "new")


def test_a_body_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with pytest.raises(UnicodeEncodeError), whole_file(path) as temporary:
        temporary.write_text("half, then ü", encoding="ascii")
    assert _names(tmp_path) == []
    with whole_file(path) as temporary:
        temporary.write_text("all")
        assert not path.exists()
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")
    assert path.read_text() == "all"
    assert _names(tmp_path) == ["table.csv"]


def test_of_files_that_belong_together_none_appears_before_all_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a" / "1.parquet", tmp_path / "b" / "2.parquet"
    flush, calls = os.fsync, []

    def second_fails(handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            calls.append(handle)
            if len(calls) == 2:
                _full_disk()
        flush(handle)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(OSError, match="No space left") as caught:
        write_together([(first, b"1"), (second, b"2")])
    assert caught.value.filename == str(second)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    write_together([(first, b"1"), (second, b"2")])
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "v1"
    for content in ("1", "2"):
        with whole_folder(folder) as new:
            (new / "manifest").write_text(content)
        assert (folder / "manifest").read_text() == content
        assert _names(folder.parent) == ["v1"]
    with pytest.raises(FileNotFoundError), whole_folder(folder) as new:
        (new / "missing" / "manifest").write_text("3")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, to: _full_disk() if self == new else rename(self, to))
    with pytest.raises(OSError, match="No space left"), whole_folder(folder) as new:
        (new / "manifest").write_text("3")
    assert (folder / "manifest").read_text() == "2"
    assert _names(folder.parent) == ["v1"]


def test_a_line_after_a_torn_one_stands_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "nights" / "ledger.jsonl"
    append_line(path, "first")
    with path.open("ab") as file:
        file.write(b'{"torn": ')
    append_line(path, "second")
    append_line(path, "third")
    assert path.read_text().splitlines() == ["first", '{"torn": ', "second", "third"]


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    code = (
        "import sys\nfrom pathlib import Path\nfrom kernelcast.files import append_line\n"
        "for _ in range(50): append_line(Path(sys.argv[1]), sys.argv[2] * 200)"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    assert sorted(path.read_text().splitlines()) == ["a" * 200] * 50 + ["b" * 200] * 50


def test_a_lock_names_its_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "gpu.lock"
    assert not is_locked(path)
    with lock(path, holder="night of plan weekly, process 7"):
        assert is_locked(path)
        with pytest.raises(LockedError, match="night of plan weekly, process 7") as caught, lock(path):
            pass
        assert (caught.value.holder, caught.value.path) == ("night of plan weekly, process 7", path)
    assert not is_locked(path)
    with lock(path) as handle:
        assert os.fstat(handle).st_size > 0  # no holder was given, so the content is left alone


def test_shared_holders_share_and_keep_an_exclusive_one_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path, shared=True), lock(path, shared=True), pytest.raises(LockedError), lock(path):
        pass


def test_a_waiting_lock_gets_its_turn_or_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    free = threading.Event()

    def hold() -> None:
        with lock(path):
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    while not is_locked(path):
        time.sleep(0.01)
    with pytest.raises(LockedError), lock(path, wait_s=0.05):
        pass
    timer = threading.Timer(0.1, free.set)
    timer.start()
    with lock(path, wait_s=None):
        assert free.is_set()
    thread.join()


def test_a_folder_can_be_locked_and_a_missing_file_refused(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(LockedError), lock(tmp_path):
        pass
    assert _names(tmp_path) == []
    with pytest.raises(FileNotFoundError), lock(tmp_path / "missing", create=False):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom kernelcast.files import lock\n"
        "with lock(Path(sys.argv[1]), holder='child'):\n    print('locked', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(LockedError, match="child"), lock(path):
            pass
        child.kill()
        child.wait()
    with lock(path):
        pass
