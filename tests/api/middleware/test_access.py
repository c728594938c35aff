"""Who may ask: keys and scopes on every route, and what a service without keys does about pages of others."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.middleware.access import check_exposure, is_own
from kernelcast.api.middleware.api_keys import KeyRing, add_key, new_key, read_key_file, revoke_key
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.transport.responses import PAGE_POLICY
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError

from ..conftest import Client, FakePredictor, create_app, serving

READ, READ_KEY = new_key("reader", "read")
ADMIN, ADMIN_KEY = new_key("boss", "admin")
OPEN = {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/", "/favicon.ico", "/docs", "/openapi.json"}


def source() -> FixedSource:
    return FixedSource(FakePredictor(), catalogue())


@pytest.fixture(scope="module")
def keyed() -> Iterator[Client]:
    keys = tuple(key.line() for key in (READ_KEY, ADMIN_KEY))
    with serving(create_app(source(), Settings(api_keys=keys))) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def routes() -> list[tuple[str, str]]:
    """Method and path of every route, with a word for each part of a path."""
    result = []
    for route in create_app(source()).routes:
        for method in getattr(route, "methods", ()):
            parts = [part if not part.startswith("{") else "x" for part in route.path.split("/")]
            result.append((method, "/".join(parts)))
    return sorted(set(result))


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_needs_a_key_but_for_health_and_the_page(keyed, method, path):
    status = keyed.request(method, path).status_code
    if path in OPEN or path.startswith(("/static/", "/docs/")):
        assert status in (200, 307, 404, 405)
    else:
        assert status == 401
        assert keyed.request(method, path, headers=bearer(READ)).status_code not in (401, 500)


ODD_PATHS = (
    "/nowhere", "/V1/models", "//v1/models", "/healthz/", "/static", "/v1/admin", "/docs/../v1/models",
    "/static/..%2fv1/models", "/v2/health/live/x", "/readyz%00", "/v2/health/livex",
)  # fmt: skip


@pytest.mark.parametrize("path", ODD_PATHS)
def test_nothing_is_opened_by_how_a_path_is_written(keyed, path):
    answer = keyed.get(path)
    assert answer.status_code in (401, 404)
    assert "pretrained" not in answer.text
    assert "fixed" not in answer.text


CHALLENGE = 'Bearer realm="kernelcast"'
REFUSALS = [
    pytest.param("/v1/models", {}, 401, "send the header `Authorization: Bearer kc_…`", CHALLENGE, id="no key"),
    pytest.param("/v1/models", {"authorization": "Basic YTpi"}, 401, "scheme 'Basic'; send `Authorization: Bearer", CHALLENGE,
                 id="basic"),
    pytest.param("/v1/models", {"authorization": READ}, 401, "scheme 'kc_", CHALLENGE, id="no scheme"),
    pytest.param("/v1/models", {"authorization": "Bearer "}, 401, "unknown or revoked; ask the operator", "invalid_token",
                 id="empty"),
    pytest.param("/v1/models", bearer(READ[:-1]), 401, "unknown or revoked", "invalid_token", id="cut off"),
    pytest.param("/v1/models", bearer("kc_" + "ü" * 20), 401, "unknown or revoked", "invalid_token", id="not ASCII"),
    pytest.param("/v1/models", bearer("k" * 20_000), 401, "unknown or revoked", "invalid_token", id="long"),
    pytest.param("/v1/models", bearer(READ_KEY.digest.hex()), 401, "unknown or revoked", "invalid_token", id="hash of a key"),
    pytest.param("/v1/models?key=" + READ, {}, 401, "send the header", CHALLENGE, id="in the address"),
    pytest.param("/metrics", {}, 401, "send the header", CHALLENGE, id="metrics"),
    pytest.param("/v1/admin/reload", {}, 401, "send the header", CHALLENGE, id="admin without a key"),
    pytest.param("/v1/admin/reload", bearer(READ), 403, "the key reader is of scope read; /v1/admin/reload needs one of",
                 'scope="admin"', id="scope"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "headers", "status", "words", "challenge"), REFUSALS)
def test_what_is_refused_and_in_which_words(keyed, path, headers, status, words, challenge):
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    answer = keyed.request("POST" if "admin" in path else "GET", path, headers=raw)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in problem["detail"]
    assert problem["errors"][0]["field"] == "headers.authorization"
    assert challenge in answer.headers["www-authenticate"]
    assert READ not in answer.text


def test_keys_open_what_their_scope_says(keyed, gemm):
    for token in (READ, ADMIN):
        assert keyed.request("GET", "/v1/models", headers=bearer(token)).status_code == 200
        assert keyed.request("GET", "/metrics", headers=bearer(token)).status_code == 200
        assert keyed.request("POST", "/v1/predict", json=gemm, headers=bearer(token)).status_code == 200
        # RFC 9110, 11.1: the name of a scheme is not case-sensitive.
        assert keyed.request("GET", "/v1/models", headers={"authorization": f"bearer {token}"}).status_code == 200
    answer = keyed.request("POST", "/v1/admin/reload", headers=bearer(ADMIN))
    assert answer.status_code == 200
    assert answer.json() | {"loaded_at": ""} == {
        "changed": False, "name": "fixed", "version": "unversioned", "loaded_at": "", "problem": None,
    }  # fmt: skip


def test_refusals_are_counted(keyed):
    def count(reason: str) -> float:
        text = keyed.request("GET", "/metrics", headers=bearer(READ)).text
        return next(float(line.split()[-1]) for line in text.splitlines()
                    if line.startswith("kernelcast_http_refusals_total{") and reason in line)  # fmt: skip

    before = {reason: count(reason) for reason in ("key_missing", "key_unknown", "key_scope")}
    keyed.get("/v1/models")
    keyed.request("GET", "/v1/models", headers=bearer("kc_no"))
    keyed.request("POST", "/v1/admin/reload", headers=bearer(READ))
    assert {reason: count(reason) - value for reason, value in before.items()} == dict.fromkeys(before, 1)


def test_a_large_body_without_a_key_is_not_read(keyed):
    sent = 0

    async def body() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 65536
            yield b" " * 65536

    answer = keyed.request("POST", "/v1/predict", content=body(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["connection"]) == (401, "close")
    assert sent <= 9 << 20


def test_a_key_file_that_is_being_written_lets_nobody_in_or_out(tmp_path):
    file = tmp_path / "keys"
    add_key(file, READ_KEY)
    ring = KeyRing(file=file)
    whole = file.read_text()
    file.write_text("")
    assert not ring.refresh()
    assert ring.find(READ) is not None
    file.write_text(whole)
    assert not ring.refresh()
    revoke_key(file, "reader")
    assert not ring.refresh()
    assert ring.refresh(), "it stays empty"
    assert ring.find(READ) is None


def test_a_revoked_key_is_refused_without_a_restart(tmp_path):
    file = tmp_path / "keys"
    for key in (READ_KEY, ADMIN_KEY):
        add_key(file, key)

    def wait(client: Client, token: str, status: int) -> None:
        deadline = time.monotonic() + 60
        while client.request("GET", "/v1/models", headers=bearer(token)).status_code != status:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with serving(create_app(source(), Settings(api_keys_file=file, reload_s=0.05))) as client:
        wait(client, READ, 200)
        revoke_key(file, "reader")
        wait(client, READ, 401)
        wait(client, ADMIN, 200)
        file.write_text("damaged")
        time.sleep(0.2)
        wait(client, ADMIN, 200)
        late, key = new_key("late", "read")
        file.unlink()
        add_key(file, key)
        wait(client, late, 200)
        wait(client, ADMIN, 401)
        revoke_key(file, "late")
        wait(client, late, 401)


OWN, OTHER = "http://127.0.0.1:8000", "http://10.1.2.3:8000"
JSON = {"content-type": "application/json"}
PLACES = [
    pytest.param({}, f"{OWN}/v1/models", {}, None, id="own machine"),
    pytest.param({}, f"{OWN}/v1/models", {"host": "localhost:9000"}, None, id="through a tunnel"),
    pytest.param({}, f"{OWN}/v1/models", {"host": "[::1]:8000"}, None, id="IPv6"),
    pytest.param({}, f"{OWN}/v1/models", {"host": "evil.example:8000"}, "the host name 'evil.example'; use localhost",
                 id="rebinding"),
    pytest.param({}, f"{OWN}/v1/models", {"host": "127.0.0.1.evil.example"}, "not allow the host", id="rebinding, long name"),
    pytest.param({}, f"{OWN}/v1/models", {"host": "0.0.0.0:8000"}, "not allow the host", id="the address of every interface"),
    pytest.param({}, f"{OWN}/", {"host": "evil.example"}, "KERNELCAST_ALLOWED_HOSTS", id="rebinding, the page"),
    pytest.param({}, f"{OWN}/healthz", {"host": "evil.example"}, None, id="health under any name"),
    pytest.param({}, f"{OWN}/v1/models", {"origin": "http://127.0.0.1:8000"}, None, id="own page"),
    pytest.param({}, f"{OWN}/v1/models", {"origin": "https://evil.example"}, "refuses requests from pages of 'https://evil.example'",
                 id="a page of others"),
    pytest.param({}, f"{OWN}/v1/models", {"origin": "http://127.0.0.1:3000"}, "refuses requests from pages", id="another port"),
    pytest.param({}, f"{OWN}/v1/models", {"origin": "null"}, "refuses requests from pages of 'null'", id="page without name"),
    pytest.param({}, f"{OWN}/v1/models", {"origin": "http://[::1"}, "refuses requests from pages", id="no origin at all"),
    pytest.param({}, f"{OTHER}/v1/models", {}, "reached at 10.1.2.3 and has no API keys", id="reached by others"),
    pytest.param({"allow_open": True}, f"{OTHER}/v1/models", {}, None, id="reached by others, allowed"),
    pytest.param({"allow_open": True}, f"{OWN}/v1/models", {"host": "site.example"}, None, id="behind a proxy, allowed"),
    pytest.param({"allowed_hosts": ("site.example",)}, f"{OWN}/v1/models", {"host": "site.example"}, None, id="a name allowed"),
    pytest.param({"allowed_hosts": ("site.example",)}, f"{OWN}/v1/models",
                 {"host": "site.example", "origin": "https://site.example:444"}, None, id="a page of a name allowed"),
    pytest.param({"allowed_hosts": ("site.example",)}, f"{OWN}/v1/models", {"host": "evil.example"}, "not allow the host",
                 id="another name"),
    pytest.param({"allowed_hosts": ("site.example",), "allow_open": True}, f"{OTHER}/v1/models", {"host": "evil.example"},
                 "not allow the host", id="another name, open"),
    pytest.param({"host": "my-box"}, f"{OWN}/v1/models", {"host": "my-box:8000"}, None, id="the name it listens on"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "url", "headers", "words"), PLACES)
def test_a_service_without_keys_answers_its_own_machine_alone(settings, url, headers, words):
    with serving(create_app(source(), Settings(**settings))) as client:
        answer = client.request("GET", url, headers=headers)
    if words is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 403
        assert words in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict/mlir", "/v1/predict/model", "/v2/models/gemm/infer"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_no_form_of_another_site_can_post(client, path, kind):
    headers = {"content-type": kind, "origin": "https://evil.example"}
    answer = client.request("POST", f"{OWN}{path}", content=b"a=b", headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.request("OPTIONS", f"{OWN}{path}", headers=headers).status_code == 403


def test_reload_needs_a_key_even_on_this_machine(client):
    answer = client.request("POST", f"{OWN}/v1/admin/reload")
    assert answer.status_code == 403
    assert (
        "needs a key of scope admin, and this service has no keys; `kernelcast serve keys new`"
        in answer.json()["detail"]
    )


@pytest.mark.parametrize(("host", "own"), [
    ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("::ffff:127.0.0.1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("", False), ("10.1.2.3", False), ("::ffff:10.1.2.3", False), ("no.such.invalid", False),
    ("x" * 300, False), ("fe80::1", False),
])  # fmt: skip
def test_which_hosts_only_this_machine_reaches(host, own):
    assert is_own(host) is own


def test_a_start_that_would_be_open_to_others_is_refused(tmp_path):
    file = tmp_path / "keys"
    with pytest.raises(
        SpecError, match=r"others can reach 0\.0\.0\.0, and there are no API keys.*--keys.*--allow-open"
    ):
        check_exposure("0.0.0.0", has_keys=False)
    with pytest.raises(SpecError, match="cannot be read"):
        check_exposure("127.0.0.1", has_keys=False, keys_file=file)
    file.write_text("# none yet\n")
    with pytest.raises(
        SpecError, match="holds no key, so no request could be answered; run: kernelcast serve keys new"
    ):
        check_exposure("127.0.0.1", has_keys=False, keys_file=file)
    file.unlink()
    add_key(file, READ_KEY)
    check_exposure("127.0.0.1", has_keys=False)
    check_exposure("0.0.0.0", has_keys=False, keys_file=file)
    check_exposure("0.0.0.0", has_keys=False, allow_open=True)
    check_exposure("0.0.0.0", has_keys=True)


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("API_KEYS", "kc_a-secret", "KERNELCAST_API_KEYS: it contains a key instead of the hash"),
        ("API_KEYS", "a:read:a-secret", "KERNELCAST_API_KEYS: a key is name:scope:hash"),
        ("ALLOW_OPEN", "maybe", "KERNELCAST_ALLOW_OPEN is 'maybe': it must be true or false"),
        ("ALLOWED_HOSTS", "a.example:80", "no host name or address without its port"),
        ("ALLOWED_HOSTS", "https://a.example", "no host name or address"),
        ("MAX_CONCURRENCY", "39", "a whole number between 1 and 38"),
        ("MAX_HELD_B", "1", "a whole number between 1048576 and"),
        ("REQUEST_TIMEOUT_S", "0", "a number of seconds between"),
        ("BODY_TIMEOUT_S", "nan", "a number of seconds between"),
    ],
)
def test_settings_that_are_refused(variable, text, words):
    with pytest.raises(SpecError) as caught:
        Settings.from_env({f"KERNELCAST_{variable}": text})
    assert words in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_settings_that_are_taken():
    key = READ_KEY.line()
    result = Settings.from_env({"KERNELCAST_API_KEYS": f"{key},", "KERNELCAST_ALLOWED_HOSTS": "A.example, [::1]"})
    assert (result.api_keys, result.allowed_hosts) == ((key,), ("a.example", "::1"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--host", "0.0.0.0"), "others can reach 0.0.0.0, and there are no API keys"),
        (("--keys", "/no/where"), "the key file /no/where cannot be read"),
    ],
)
def test_the_command_refuses_in_one_sentence(args, words):
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("method", "path", "headers"), [
    ("GET", "/", {}), ("GET", "/healthz", {}), ("GET", "/nowhere", {}), ("POST", "/v1/predict", {}), ("GET", "/v1/models", {}),
    ("GET", "/v1/models", {"authorization": "Bearer no"}), ("DELETE", "/healthz", {}), ("GET", "/docs", {}),
    ("GET", "/docs/api", {}),
])  # fmt: skip
def test_every_answer_binds_the_browser(keyed, method, path, headers):
    answer = keyed.request(method, path, headers=headers)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    policy = answer.headers["content-security-policy"]
    # The page's one script of its own is known by its hash.
    assert re.match(r"default-src 'none'; script-src 'self'( 'sha256-[A-Za-z0-9+/=]{44}')?; style-src 'self'; ", policy)
    assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert not [word for word in ("unsafe", "http:", "https:", "*", "blob:") if word in policy]
    assert re.sub(r" 'sha256-[^']+'", "", policy) == PAGE_POLICY or path == "/docs/api"
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_pages_hold_nothing_inline():

    folder = Path(__file__).parents[3] / "api"
    pages = [*folder.glob("page/static/**/*.html"), *folder.glob("page/swagger/*.html")]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), page
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), page
        assert not re.search(r'(?:src|href)="(?:https?:)?//(?!github\.com)', text), page


def test_a_settings_object_travels_to_workers_whole():
    settings = Settings(api_keys=(READ_KEY.line(),), api_keys_file=Path("/a"), allowed_hosts=("b",), allow_open=True)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_document_says_how_keys_are_sent(keyed):
    document = keyed.request("GET", "/openapi.json", headers=bearer(READ)).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{}, {"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in OPEN:
                assert operation["security"] == []
                assert not {"401", "403"} & operation["responses"].keys()
            else:
                assert {"401", "403"} <= operation["responses"].keys()
    assert document["paths"]["/v1/admin/reload"]["post"]["security"] == [{"key": []}]


def test_a_pipe_as_key_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(SpecError, match="is no regular file"):
        read_key_file(tmp_path / "keys")
