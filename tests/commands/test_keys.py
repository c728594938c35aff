"""`kernelcast serve keys`: keys are shown once, kept as hashes, and revoked by name."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from pathlib import Path

import pytest
from kernelcast.api.middleware.api_keys import MAX_KEYS, Key, KeyRing, add_key, new_key, read_key_file, read_keys
from kernelcast.features.errors import SpecError

HASH = hashlib.sha256(b"kc_something").hexdigest()


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "folder" / "keys"


def test_a_key_is_shown_once_and_kept_as_its_hash(run, file):
    done = run("keys", "new", "--name", "grafana", "--file", file)
    token = done.out.strip()
    assert done.code == 0
    assert token.startswith("kc_")
    assert len(token) >= 3 + 160 / 6
    assert str(file) in done.err
    assert token not in done.err
    text = file.read_text()
    assert token not in text
    assert text.startswith(f"grafana:read:{hashlib.sha256(token.encode()).hexdigest()}:20")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_keys_differ_and_are_listed_by_name(run, file):
    made = [json.loads(run("keys", "new", "--name", name, "--scope", scope, "--file", file, "--json").out)
            for name, scope in (("a", "read"), ("b", "admin"))]  # fmt: skip
    assert made[0]["key"] != made[1]["key"]
    listed = json.loads(run("keys", "list", "--file", file, "--json").out)
    assert [(item["name"], item["scope"]) for item in listed] == [("a", "read"), ("b", "admin")]
    shown = run("keys", "list", "--file", file).out
    assert "admin" in shown
    assert made[0]["key"] not in shown + json.dumps(listed)


def test_a_revoked_key_is_gone_and_what_else_the_file_says_stays(run, file):
    for name in ("a", "b"):
        run("keys", "new", "--name", name, "--file", file)
    file.write_text("# of the team\n" + file.read_text())
    assert "revoked a (read)" in run("keys", "revoke", "a", "--file", file).out
    lines = file.read_text().splitlines()
    assert lines[0] == "# of the team"
    assert [line.split(":")[0] for line in lines[1:]] == ["b"]
    assert json.loads(run("keys", "revoke", "b", "--file", file, "--json").out)["revoked"] == "b"
    assert read_key_file(file) == ()


def test_where_the_file_is_unless_it_is_given(run, tmp_path, monkeypatch):
    run("keys", "new", "--name", "a")
    assert (tmp_path / "home" / "api-keys").exists()
    monkeypatch.setenv("KERNELCAST_API_KEYS_FILE", str(tmp_path / "other"))
    run("keys", "new", "--name", "a")
    assert (tmp_path / "other").exists()


REFUSALS = [
    pytest.param(("new",), "", "--name", id="no name"),
    pytest.param(("new", "--name", "a b"), "", "1 to 64 letters, digits and . _ -", id="a space in the name"),
    pytest.param(("new", "--name", "a:admin"), "", "1 to 64 letters", id="a colon in the name"),
    pytest.param(("new", "--name", "a\n"), "", "1 to 64 letters", id="a line's end in the name"),
    pytest.param(("new", "--name", "x" * 65), "", "1 to 64 letters", id="a long name"),
    pytest.param(("new", "--name", "a", "--scope", "root"), "", "choose one of read, admin", id="scope"),
    pytest.param(("new", "--name", "a"), f"a:read:{HASH}\n", "has a key named a; choose another name", id="name taken"),
    pytest.param(("new", "--name", "a"), "what is this\n", "line 1 of the key file", id="no key file"),
    pytest.param(("revoke", "b"), f"a:read:{HASH}\n", "no key named 'b'; it has: a", id="no such key"),
    pytest.param(("revoke", "b"), None, "cannot be read: No such file", id="no file to revoke from"),
    pytest.param(("list",), None, "`kernelcast serve keys new --name NAME --file", id="no file to list"),
    pytest.param(("list",), "kc_" + "x" * 43, "it contains a key instead of the hash of one", id="a key itself"),
    pytest.param(("list",), f"\na:read:{HASH}0\n", "line 2 of the key file", id="a hash too long"),
    pytest.param(("list",), f"a:write:{HASH}", "the scope of key a is none of read, admin", id="scope in the file"),
    pytest.param(("list",), f"a:read:{HASH}:today", "the day of key a is not of the form 2026-01-31", id="day"),
    pytest.param(("list",), f"a:read:{HASH}\na:admin:{HASH}", "two keys are named a", id="two of a name"),
    pytest.param(("list",), "\x00\xff" * 40, "line 1 of the key file", id="no text"),
    pytest.param(("list",), "#" * (2 << 20), "longer than 1048576 bytes", id="a huge file"),
]


@pytest.mark.parametrize(("args", "text", "words"), REFUSALS)
def test_what_is_refused_and_in_which_words(run, tmp_path, args, text, words):
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
        file.chmod(0o600)
    message = run("keys", *args, "--file", file).error
    assert words in message
    assert "xxxxx" not in message or "--name" in message
    if text is not None:
        assert file.read_text() == text


def test_a_folder_is_no_key_file(run, tmp_path):
    assert "--file is the key file itself" in run("keys", "list", "--file", tmp_path).error


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(run, tmp_path, mode):
    file = tmp_path / "keys"
    file.write_text(f"a:read:{HASH}\n")
    file.chmod(mode)
    assert "add keys to it; run: chmod 600" in run("keys", "list", "--file", file).error


def test_keys_made_at_the_same_time_are_all_kept(file):
    def make(number: int) -> None:
        add_key(file, new_key(f"key-{number}", "read")[1])

    threads = [threading.Thread(target=make, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in read_key_file(file)} == {f"key-{number}" for number in range(12)}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    add_key(tmp_path / "link", new_key("a", "read")[1])
    assert (tmp_path / "link").is_symlink()
    assert len(read_key_file(tmp_path / "real")) == 1


def test_a_variable_holds_several_keys_and_is_not_repeated():
    first, second = (new_key(name, "read")[1] for name in "ab")
    assert read_keys(f"{first.line()}, {second.line()}\n") == (first, second)
    assert read_keys(f"a:admin:{HASH}")[0].scope == "admin"
    with pytest.raises(ValueError, match="contains a key instead of the hash") as caught:
        read_keys("kc_secret-by-mistake")
    assert "mistake;" not in str(caught.value)
    assert "secret-by" not in str(caught.value)
    with pytest.raises(ValueError, match="at most 1000"):
        read_keys(" ".join(f"k{number}:read:{HASH}" for number in range(MAX_KEYS + 1)))


def test_a_ring_follows_its_file_and_keeps_its_keys_when_the_file_is_damaged(file, caplog):
    token, key = new_key("a", "read")
    add_key(file, key)
    ring = KeyRing((), file)
    assert ring.find(token) == key
    assert ring.find(token[:-1]) is None
    assert ring.find("x" * 100_000) is None
    assert not ring.refresh()
    other_token, other = new_key("b", "admin")
    add_key(file, other)
    assert ring.refresh()
    assert ring.find(other_token) == other
    good = file.read_text()
    for bad in ("damaged", None):
        if bad is None:
            file.unlink()
        else:
            file.write_text(bad)
        assert not ring.refresh()
        assert not ring.refresh()
        assert ring.find(token) == key
    assert caplog.text.count("the keys were not read") == 2
    assert "the 2 keys read before stay in use" in caplog.text
    file.write_text(good.splitlines()[1])
    file.chmod(0o600)
    assert ring.refresh()
    assert ring.find(token) is None
    file.write_text("")
    assert not ring.refresh(), "whoever writes it may only have begun"
    assert ring.refresh()
    assert ring.find(other_token) is None
    assert ring.is_set


def test_a_ring_without_a_readable_file_lets_nobody_in(tmp_path):
    ring = KeyRing((), tmp_path / "none")
    assert ring.is_set
    assert ring.find("") is None
    assert not KeyRing().is_set
    assert KeyRing([Key("a", "read", bytes.fromhex(HASH))]).find("kc_something") is not None


def test_a_name_cannot_smuggle_a_line():
    with pytest.raises(SpecError, match="1 to 64 letters"):
        new_key(f"a:admin:{HASH}\nb", "read")
