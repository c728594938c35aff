"""The routes of measured rows: filters, sorting, paging, rows like a spec, and what each refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from kernelcast.api.browse import measurements as measured_route
from kernelcast.api.browse.measurements import MeasuredRows, child_failure
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.datasets.rows.schema import arrow_schema
from kernelcast.datasets.shipped import SHIPPED_DIR, read_shipped, shipped_families
from kernelcast.features.device import catalogue

PATH = "/v1/measurements"
SETS_PATH = "/v1/measurements/sets"
LIKE_PATH = "/v1/measurements/like"

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"
DEVICES = [
    "amd-epyc-7003-vm-2c", "amd-epyc-9004-vm-2c", CPU, "intel-xeon-emerald-rapids-vm-2c", "nvidia-h100-sxm-80gb", GPU,
]  # fmt: skip
SHIPPED_ROWS = sum(read_shipped(family, columns=["status"]).num_rows for family in shipped_families())


@pytest.fixture(scope="module")
def browse(serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service without any model and with an empty store: measured rows are answered nevertheless."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELCAST_HOME", str(tmp_path_factory.mktemp("home")))
        with serve(FixedSource(None, catalogue()), Settings()) as client:
            yield client


def page(client: Any, **parameters: Any) -> dict[str, Any]:
    response = client.get(f"{PATH}?{urlencode(parameters, doseq=True)}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    assert all(len(row) == len(found["columns"]) for row in found["rows"])
    return found


def column(found: dict[str, Any], name: str) -> list[Any]:
    at = found["columns"].index(name)
    return [row[at] for row in found["rows"]]


def test_the_sets_are_listed_with_their_cards(browse: Any) -> None:
    found = {item["name"]: item for item in browse.get(SETS_PATH).json()["sets"]}
    assert list(found) == ["shipped", "tiles", "store"]
    shipped = found["shipped"]
    assert shipped["rows"] == SHIPPED_ROWS
    assert shipped["families"] == shipped_families()
    assert shipped["devices"] == DEVICES
    assert {"ok", "failed"} <= set(shipped["statuses"])
    texts = {path.read_text(encoding="utf-8") for path in SHIPPED_DIR.glob("*.md")}
    assert {card["text"] for card in shipped["cards"]} == texts
    assert all(card["text"].startswith(f"# {card['title']}\n") for card in shipped["cards"])
    assert shipped["notes"] == []
    assert found["tiles"]["impls"] == ["iree", "mlir-opt", "triton"]


def test_all_rows_are_there(browse: Any) -> None:
    found = page(browse, set="shipped", limit=1)
    assert found["total"] == SHIPPED_ROWS
    assert {"sizes", "config"} < set(found["columns"])
    assert set(column(found, "sizes")[0]) == {"batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "window"}
    assert page(browse)["total"] > SHIPPED_ROWS
    assert len(page(browse)["rows"]) == 50


def test_one_family_has_its_sizes_as_columns(browse: Any) -> None:
    found = page(browse, family="copy", limit=2)
    assert found["columns"] == ["set", *arrow_schema("copy").names]
    shipped = read_shipped("copy").slice(0, 2).to_pylist()
    assert [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]] == [
        {"set": "shipped", **row} for row in shipped
    ]


@pytest.mark.parametrize(
    "filters",
    [
        {"set": "shipped", "family": "moe", "limit": 200},
        {"family": ["copy", "softmax"], "device": GPU, "dtype": "fp16", "limit": 97},
        {"set": "shipped", "family": "copy", "sort": "latency_s", "limit": 200},
        {"family": "reduction", "sort": "power_w", "descending": "true", "limit": 199},
    ],
)
def test_paging_to_the_end_gives_every_row_once(browse: Any, filters: dict[str, Any]) -> None:
    total = page(browse, **filters)["total"]
    keys: list[tuple[Any, ...]] = []
    for offset in range(0, total + filters["limit"], filters["limit"]):
        found = page(browse, **filters, offset=offset)
        assert (found["total"], found["offset"]) == (total, offset)
        keys += zip(column(found, "case_id"), column(found, "measured_at"), column(found, "latency_s"), strict=True)
    assert len(keys) == total > filters["limit"]
    unpaged = read_shipped("moe") if filters["family"] == "moe" else None
    assert unpaged is None or [key[0] for key in keys] == unpaged["case_id"].to_pylist()
    assert page(browse, **filters, offset=10**9)["rows"] == []


def test_filters_are_met_by_every_row_and_add_up(browse: Any) -> None:
    found = page(browse, family="gemm", device=CPU, dtype="bf16", impl="torch", status="ok", limit=200)
    for name, value in (("family", "gemm"), ("device", CPU), ("dtype", "bf16"), ("impl", "torch"), ("status", "ok")):
        assert set(column(found, name)) == {value}
    totals = [page(browse, family="gemm", device=item)["total"] for item in DEVICES]
    assert page(browse, family="gemm", device=DEVICES)["total"] == sum(totals) == page(browse, family="gemm")["total"]
    assert page(browse, family="gemm", device="")["total"] == sum(totals)


def test_devices_go_by_any_of_their_names(browse: Any) -> None:
    alias = catalogue().get(GPU).aliases[0]
    assert alias != GPU
    assert page(browse, device=alias)["total"] == page(browse, device=GPU)["total"] > 0


def test_none_is_the_empty_name(browse: Any) -> None:
    found = page(browse, set="shipped", family="copy", variant="none", limit=200)
    assert set(column(found, "variant")) == {""}
    assert (
        found["total"] + page(browse, set="shipped", family="copy", variant="transpose")["total"]
        == read_shipped("copy").num_rows
    )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ["latency_s", "power_w", "impl", "noisy", "n_samples", "set", "message"])
def test_sorting_puts_what_is_missing_last(browse: Any, name: str, descending: bool) -> None:
    filters = {"family": ["moe", "conv2d"], "sort": name, "descending": str(descending).lower(), "limit": 200}
    total = page(browse, **filters)["total"]
    values = [
        value
        for offset in (0, total // 2, total - 200)
        for value in column(page(browse, **filters, offset=offset), name)
    ]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=descending)
    assert values[len(known) :] == [None] * (len(values) - len(known))


def test_sorting_by_a_size_of_the_family(browse: Any) -> None:
    found = column(page(browse, family="gemm", sort="k", descending=1, limit=200), "k")
    assert found == sorted(found, reverse=True)


def test_a_filter_over_all_rows_is_fast(browse: Any) -> None:
    page(browse)
    spent_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        page(browse, status="ok", dtype="fp32", sort="latency_s", limit=50)
        spent_s.append(time.perf_counter() - start_s)
    assert min(spent_s) < 0.3


def test_questions_at_once_get_their_own_answers(browse: Any) -> None:
    wanted = {family: page(browse, family=family, limit=1)["total"] for family in shipped_families()}
    found: dict[str, int] = {}

    def ask(family: str) -> None:
        found[family] = page(browse, family=family, sort="latency_s", limit=200)["total"]

    threads = [threading.Thread(target=ask, args=(family,)) for family in wanted for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("famly=gemm", "famly", "possible are: set, family"),
        ("set=../../etc", "set", "the sets are: shipped, tiles, store"),
        ("set=%2Fetc%2Fpasswd", "set", "the sets are"),
        ("family=gem", "family", "families: attention"),
        ("device=h900", "device", f"those rows have: {', '.join(DEVICES)}"),
        ("family=gemm&dtype=fp3", "dtype", "those rows have: bf16, fp16"),
        ("impl=nosuch", "impl", "torch, torch-cudnn"),
        ("variant=x", "variant", "none"),
        ("status=OK", "status", "failed, ok"),
        ("set=store&impl=torch", "impl", "in store has the impl 'torch'; there are no rows yet"),
        ("cache_state=warm", "cache_state", "cold, hot"),
        ("sort=sizes", "sort", "with one family given, its sizes too"),
        ("sort=__index_level_0__", "sort", "possible are: set, family"),
        ("family=copy&sort=m", "sort", "rows, cols"),
        ("sort=latency_s&sort=m", "sort", "more than once"),
        ("descending=maybe", "descending", "true or false, got 'maybe'"),
        ("limit=0", "limit", "between 1 and 200, got '0'"),
        ("limit=201", "limit", "between 1 and 200"),
        ("limit=1e2", "limit", "whole number"),
        ("limit=%D9%A3", "limit", "whole number"),
        ("offset=-1", "offset", "between 0 and 1000000000"),
        ("offset=99999999999999999999999999", "offset", "between 0 and"),
        ("limit=5&limit=6", "limit", "more than once"),
        ("device=" + "x" * 200, "device", "200 characters"),
        ("x" * 500 + "=1", "x" * 128, "unknown parameter"),
    ],
)
def test_what_rows_refuse(browse: Any, query: str, field: str, said: str) -> None:
    found = problem(browse.get(f"{PATH}?{query}"), 422)
    assert found["errors"][0]["field"] == field
    assert said in found["detail"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"{PATH}?device=%ff", "percent-encoded UTF-8"),
        (f"{PATH}?{'device=a&' * 70}", "more than 64 parameters"),
        (f"{SETS_PATH}?set=store", "this address takes none"),
    ],
)
def test_queries_that_cannot_be_read(browse: Any, url: str, said: str) -> None:
    assert said in problem(browse.get(url), 422)["detail"]


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("POST", SETS_PATH), ("GET", LIKE_PATH)])
def test_other_methods_are_refused(browse: Any, method: str, path: str) -> None:
    problem(browse.request(method, path), 405)


class Failing(MeasuredRows):
    """A reader whose process always dies, or that never answers."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.go = threading.Event()

    def ask(self, question: object) -> bytes:
        self.go.wait(120)
        raise child_failure(
            self.status, "the process that reads measured rows ended with signal 9 (SIGKILL); try again"
        )

    def close(self) -> None:
        self.go.set()


@pytest.mark.parametrize(("status", "header"), [(503, "2"), (500, None)])
def test_a_lost_process_is_a_problem(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, status: int, header: str | None
) -> None:
    failing = Failing(status)
    failing.go.set()
    monkeypatch.setattr("kernelcast.api.app.MeasuredRows", lambda: failing)
    with serve(FixedSource(None, catalogue()), Settings()) as client:
        response = client.get(SETS_PATH)
        assert "SIGKILL" in problem(response, status)["detail"]
        assert response.headers.get("retry-after") == header


def test_too_many_at_once_are_sent_away_and_others_are_answered(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(503)
    monkeypatch.setattr("kernelcast.api.app.MeasuredRows", lambda: failing)
    monkeypatch.setattr(measured_route, "MAX_WAITING", 2)
    with serve(FixedSource(None, catalogue()), Settings()) as client:
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(client.get(SETS_PATH).json()["detail"])) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while len(found) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert client.get("/healthz").status_code == 200
        assert found == ["too many queries of measured rows are waiting; try again"] * 3
        failing.go.set()
        for thread in threads:
            thread.join()
    assert sum("SIGKILL" in detail for detail in found) == 3


def test_the_server_never_imports_arrow() -> None:
    script = (
        "import sys, kernelcast.api.app; assert not {'pyarrow', 'kernelcast.datasets'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=240)
