"""Questions about kernels in Python: the answers are those of the service's routes, tables are DataFrames."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import kernelcast
import kernelcast as kc
import msgspec
import pytest
from kernelcast import SpecError
from kernelcast.client import answers
from kernelcast.features.device import catalogue

SIZES = {"m": 512, "n": 4096, "k": 4096}
GEMM: dict[str, Any] = {"dtype": "bf16", **SIZES}
CPU = "amd-epyc-9005-vm-2c"


class Frame:
    """What a DataFrame does here, where pandas is not needed to tell."""

    def __init__(self, rows: list[dict[str, Any]], index: Any = None) -> None:
        self.rows, self.index = rows, list(range(len(rows))) if index is None else index

    columns = SimpleNamespace(is_unique=True)

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [{name: row.get(name, float("nan")) for name in names} for row in self.rows]


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))


def test_a_kernel_beside_others_is_a_colocation_with_all_of_them():
    copy = {"family": "copy", "dtype": "fp32", "rows": 2048, "cols": 2048, "threads": 1}
    result = kernelcast.predict(
        device=CPU, beside=[{"family": "softmax", "dtype": "bf16", "rows": 9, "cols": 9, "threads": 1}], **copy
    )
    alone = kernelcast.predict(device=CPU, **copy)
    assert [item.spec.family for item in result.kernels] == ["copy", "softmax"]
    assert result.kernels[0].alone.latency_s == alone.latency_s
    for question in ({"device": [CPU]}, {"device": CPU, "power_limit_w": 3}):
        with pytest.raises(SpecError, match="beside goes with one kernel"):
            kernelcast.predict(beside=[copy], **copy, **question)
    with pytest.raises(SpecError, match="beside goes with one kernel"):
        kernelcast.predict([copy], device=CPU, beside=[copy])


def test_several_devices_are_rows_of_what_each_answers(pandas):
    frame = kernelcast.predict("gemm", device=["h200", CPU], threads=1, **GEMM | {"dtype": "fp32"})
    assert [row["device"] for row in frame.rows] == ["nvidia-h200-sxm-141gb", CPU]
    gpu = kernelcast.predict("gemm", device="h200", **GEMM | {"dtype": "fp32"})
    cpu = kernelcast.predict("gemm", device=CPU, threads=1, **GEMM | {"dtype": "fp32"})
    for row, one in zip(frame.rows, (gpu, cpu), strict=True):
        assert (row["latency_s"], row["latency_s_lower"]) == (one.latency_s.value, one.latency_s.lower)
        assert row["energy_j"] == (None if one.energy_j is None else one.energy_j.value)
        assert (row["family"], row["m"], row["in_domain"]) == ("gemm", 512, one.in_domain)


def test_a_list_of_specs_flat_or_nested_with_their_devices_or_those_of_all(pandas):
    specs = [
        {"family": "gemm", "device": "h200", **GEMM},
        {"family": "softmax", "device": "h100-sxm", "dtype": "bf16", "sizes": {"rows": 64, "cols": 64}},
    ]
    frame = kernelcast.predict(specs)
    assert [row["device"] for row in frame.rows] == ["nvidia-h200-sxm-141gb", "nvidia-h100-sxm-80gb"]
    assert frame.rows[0]["latency_s"] == kernelcast.predict("gemm", device="h200", **GEMM).latency_s.value
    bare = [{name: value for name, value in spec.items() if name != "device"} for spec in specs]
    crossed = kernelcast.predict(bare, device=["h200", "l40s"])
    assert [(row["family"], row["device"]) for row in crossed.rows] == [
        (family, name) for family in ("gemm", "softmax") for name in ("nvidia-h200-sxm-141gb", "nvidia-l40s")
    ]


def test_a_frame_gives_a_frame_with_its_index_and_empty_cells_are_left_out(pandas):
    rows = [{"family": "gemm", **GEMM, "m": 512.0}, {"family": "softmax", "dtype": "bf16", "rows": 64, "cols": 64}]
    frame = kernelcast.predict(Frame(rows, ["a", "b"]), device="h200")
    assert frame.index == ["a", "b"]
    assert frame.rows[0]["latency_s"] == kernelcast.predict("gemm", device="h200", **GEMM).latency_s.value
    assert "rows" not in frame.rows[0]
    assert kernelcast.predict(Frame(rows, ["a", "b"]), device=["h200", "l40s"]).index == ["a", "a", "b", "b"]


@pytest.mark.skipif(
    importlib.util.find_spec("pandas") is None, reason="pandas is not installed; a double is tested above"
)
def test_pandas_itself():
    import pandas as pd

    frame = pd.DataFrame(
        [{"family": "gemm", **GEMM}, {"family": "softmax", "dtype": "bf16", "rows": 64, "cols": 64}], index=[7, 3]
    )
    result = kernelcast.predict(frame, device="h200")
    assert list(result.index) == [7, 3]
    assert result.loc[7, "latency_s"] == kernelcast.predict("gemm", device="h200", **GEMM).latency_s.value
    assert len(kernelcast.compare("gemm", devices=["h200", "l40s"], **GEMM).to_pandas()) == 2
    assert {"m", "latency_s"} <= set(
        kernelcast.sweep("gemm", devices=["h200"], dim="m", values=[1, 2], **GEMM).to_pandas()
    )


@pytest.mark.parametrize(
    ("ask", "field", "said"),
    [
        (lambda: kc.predict([{"family": "gemm", **GEMM}]), "specs[0].device", "give a `device` field, or `device=`"),
        (lambda: kc.predict([{"family": "gemm", "device": "h200", **GEMM}], device="h200"), "specs[0].device", "twice"),
        (lambda: kc.predict([{"family": "gemm", **GEMM | {"m": 0}}], device="h200"), "specs[0].m", "between 1 and"),
        (lambda: kc.predict([{"family": "gemm", **GEMM, "layer": 1}], device="h200"), "specs[0].layer", "has no field 'layer'"),
        (lambda: kc.predict([], device="h200"), "specs", "no spec"),
        (lambda: kc.predict([3], device="h200"), "specs", "got list"),
        (lambda: kc.predict(3, device="h200"), "specs", "got int"),
        (lambda: kc.predict([{}], device="h200", m=3), "specs", "its own dtype"),
        (lambda: kc.predict("gemm", **GEMM), "device", "device is missing"),
        (lambda: kc.predict("gemm", device="h200", **SIZES), "dtype", "dtype is one of fp64, fp32"),
        (lambda: kc.predict("matmul", device="h200", dtyp="bf16", **SIZES), "dtyp", "gemm has no field 'dtyp'"),
        (lambda: kc.predict([{"family": "gemm", **SIZES}], device="h200"), "specs[0].dtype", "dtype is one of fp64, fp32"),
        (lambda: kc.predict("gemm", device=[], **GEMM), "devices", "at least one"),
        (lambda: kc.predict("gemm", device=["h200", "H200"], **GEMM), "devices[1]", "named twice"),
        (lambda: kc.predict("gemm", device=3, **GEMM), "device", "named by text, several by a list, got int"),
        (lambda: kc.predict([{"family": "gemm", **GEMM}], device=3), "device", "got int"),
        (lambda: kc.predict_mlir(None, "h200"), "mlir", "text or the path of a file, got NoneType"),
        (lambda: kc.sweep("gemm", devices=["h200"], dim="m", start=1, **GEMM), "values", "give values of m, or start and stop"),
        (lambda: kc.predict("gemm", device="h900", **GEMM), "device", "no device 'h900'"),
        (lambda: kc.compare("gemm", devices=["h900"], **GEMM), "device", "no device 'h900'"),
        (lambda: kc.compare("gemm", devices=["h200"], price_per_hour={"l40s": 1}, **GEMM), "price_per_hour.l40s", "not among"),
        (lambda: kc.compare("gemm", devices=["h200"], **GEMM | {"q": 1}), "q", "unknown field"),
        (lambda: kc.sweep("gemm", devices=["h200"], dim="q", values=[1], **GEMM), "sweep.dim", "size or knob of gemm"),
        (lambda: kc.sweep("gemm", devices=["h200"], dim="m", values=[1], start=1, **GEMM), "values", "cannot be combined"),
        (lambda: kc.sweep("gemm", devices=["h200"], dim="m", start=8, stop=1, **GEMM), "sweep.to", "at least"),
        (lambda: kc.sweep("gemm", devices=["h200"], dim="m", values=[0], **GEMM), "sweep.values[0]", "between 1 and"),
        (lambda: kc.rank("gemm", device="h200", top=0, **GEMM), "top", "between 1 and 1000"),
        (lambda: kc.rank("gemm", device="h200", configs=[{"q": 1}], **GEMM), "configs[0].q", "has no config"),
        (lambda: kc.rank("gemm", device="h200", configs=[], **GEMM), "configs", "at least one"),
        (lambda: kc.roofline("gemm", devices=["t4"], **GEMM | {"dtype": "fp8"}), "devices[0]", "no peak"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_an_error_that_names_it(ask, field, said):
    with pytest.raises(SpecError) as caught:
        ask()
    assert caught.value.field == field
    assert said in str(caught.value)


def test_without_pandas_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (
        lambda: kernelcast.predict("gemm", device=["h200"], **GEMM),
        lambda: kernelcast.families().to_pandas(),
    ):
        with pytest.raises(SpecError, match=r"pip install 'kernelcast\[pandas\]'") as caught:
            ask()
        assert caught.value.field == "pandas"


def same(answer: msgspec.Struct, kind: type[Any], client: Any, path: str, body: dict[str, Any]) -> None:
    """An answer in Python is that of a route."""
    response = client.request("POST", path, json=body)
    assert response.status_code == 200, response.text
    assert isinstance(answer, kind)
    assert msgspec.json.decode(msgspec.json.encode(answer)) == response.json()


@pytest.fixture(scope="module")
def service():
    from kernelcast.api.app import create_app
    from kernelcast.api.model_source import FixedSource
    from kernelcast.api.settings import Settings

    from ..api.conftest import serving

    with serving(create_app(FixedSource(kernelcast.load(), catalogue()), Settings())) as client:
        yield client


def test_answers_are_those_of_the_routes(service):
    spec = {"family": "gemm", "dtype": "bf16", "sizes": SIZES}
    names = ["h200", "l40s"]
    prices = {"l40s": 0.9}
    compared = kernelcast.compare("gemm", devices=names, price_per_hour=prices, **GEMM)
    same(compared, answers.Comparison, service, "/v1/compare", spec | {"devices": names, "price_per_hour": prices})
    swept = kernelcast.sweep("gemm", devices=names, dim="m", start=1, stop=64, points=4, dtype="bf16", n=512, k=512)
    body = {"sizes": {"n": 512, "k": 512}, "devices": names, "sweep": {"dim": "m", "from": 1, "to": 64, "points": 4}}
    same(swept, answers.Sweep, service, "/v1/sweep", spec | body)
    ranked = kernelcast.rank("gemm", device="h200", impl="triton", top=3, **GEMM)
    same(ranked, answers.Ranking, service, "/v1/rank", spec | {"device": "h200", "impl": "triton", "top": 3})
    roofs = kernelcast.roofline("gemm", devices=names, **GEMM)
    same(roofs, answers.Roofline, service, "/v1/roofline", spec | {"devices": names})


def test_the_whole_catalogue_is_compared_and_a_refusal_is_an_answer():
    compared = kernelcast.compare("gemm", **GEMM | {"dtype": "fp8"})
    assert [item.device for item in compared.answers] == catalogue().names()
    refused = [row for row in compared.rows() if row["refusal"]]
    assert refused
    assert all(row["latency_s"] is None for row in refused)
    assert "… " in repr(compared)


def test_tables_are_read_and_drawn():
    compared = kernelcast.compare("gemm", devices=["t4", "h200"], price_per_hour={"t4": 1}, **GEMM | {"dtype": "fp16"})
    swept = kernelcast.sweep("gemm", devices=["h200"], dim="m", values=[1, 64], **GEMM)
    ranked = kernelcast.rank("gemm", device="h200", impl="triton", top=2, **GEMM)
    roofs = kernelcast.roofline("gemm", devices=["h200"], **GEMM)
    assert repr(swept).startswith("m at 2 values on 1 device (")
    assert "on 2 devices (" in repr(compared)
    # The fastest first.
    assert repr(compared).index("nvidia-h200") < repr(compared).index("nvidia-t4")
    assert [row["device"] for row in compared.rows()] == ["nvidia-t4", "nvidia-h200-sxm-141gb"]
    assert [row["m"] for row in swept.rows()] == [1, 64]
    assert ranked.rows()[0]["tile_m"] == ranked.ranked[0].config["tile_m"]
    assert roofs.rows()[0]["peak_flops_per_s"] > 1e14
    for item, bars in ((compared, 2), (swept, 2), (ranked, 2), (roofs, 1)):
        assert item._repr_html_().count("<svg") == bars
        assert " µs" in repr(item)


def test_the_catalogue_of_devices_says_which_are_measured():
    table = kernelcast.devices()
    assert len(table) == len(catalogue().names())
    by_name = {item["name"]: item for item in table}
    assert "gemm" in by_name["nvidia-h200-sxm-141gb"]["measured"]
    assert by_name["nvidia-h200-sxm-141gb"]["memory_b"] == pytest.approx(141e9, rel=0.02)
    assert "nvidia-a10" in repr(table) or "… " in repr(table)


def test_the_families_have_sizes_and_defaults():
    gemm = next(item for item in kernelcast.families() if item["name"] == "gemm")
    assert gemm["sizes"] == {"batch": 1, "m": None, "n": None, "k": None}
    assert "tile_m" in gemm["config"]
    assert "batch=1 m n k" in repr(kernelcast.families())
    assert "<table>" in kernelcast.families()._repr_html_()


def test_boards_may_be_set_to_a_limit_or_a_clock(pandas: None) -> None:
    spec = {"family": "gemm", "device": "h200", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}
    usual, limited = kc.predict(**spec), kc.predict(**spec, power_limit_w=400)
    assert kc.predict(**spec, power_limit_w=700) == usual
    assert limited.latency_s > usual.latency_s
    assert limited.power_w is not None
    assert limited.power_w.value == pytest.approx(400, rel=1e-3)
    rows = kc.predict([spec, spec | {"power_limit_w": 400}]).rows
    assert [row["latency_s"] for row in rows] == [usual.latency_s.value, limited.latency_s.value]
    for_all = kc.predict([spec, spec | {"power_limit_w": 700}], power_limit_w=400).rows
    assert [row["latency_s"] for row in for_all] == [limited.latency_s.value, usual.latency_s.value]


def test_a_setting_that_cannot_be_says_which_row() -> None:
    spec = {"family": "gemm", "device": "h200", "dtype": "bf16", "m": 64, "n": 64, "k": 64, "clock_hz": 1980}
    with pytest.raises(SpecError, match=r"specs\[0\].clock_hz: clock_hz is 1980 Hz"):
        kc.predict([spec])
