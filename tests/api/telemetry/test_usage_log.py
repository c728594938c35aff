"""What the service counts of the kernels it is asked for, where its operator wants that."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.telemetry import usage_log
from kernelcast.api.telemetry.usage_log import FILE_NAME, UsageLog, sample_size
from kernelcast.datasets.records.usage_log import read_usage, read_usage_log
from kernelcast.features.batch.cases import Cases
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.workloads.mlir.predictor import load_module_predictor

DAY = date(2026, 11, 22)
H100, CPU = "nvidia-h100-sxm-80gb", "amd-epyc-9005-vm-2c"
GEMM = {"family": "gemm", "dtype": "fp32", "sizes": {"m": 64, "n": 32, "k": 16}}
BARE = {**GEMM, "devices": [H100, CPU], "threads": 2}
PROGRAM = """func.func @f(%a: tensor<64x16xf32>, %b: tensor<16x32xf32>) -> tensor<64x32xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}"""


def spec(m: int, **more: Any) -> KernelSpec:
    return KernelSpec.of("gemm", "fp32", m=m, n=32, k=16, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "usage"


@pytest.fixture
def asking(serve: Any, fake: Any, folder: Path) -> Callable[[str, Any], dict[str, dict[KernelSpec, float]]]:
    """Asks one question of a service that counts, ends it, and gives what was counted by device."""

    def ask(path: str, body: Any) -> dict[str, dict[KernelSpec, float]]:
        source = FixedSource(fake, catalogue(), programs=load_module_predictor(fake))
        with serve(source, Settings(usage_log=folder)) as client:
            answer = client.request("POST", path, json=body)
            assert answer.status_code == 200, answer.text
            text = client.get("/metrics").text
        result = read_usage_log(folder).by_device
        counted = float(text.partition("\nkernelcast_usage_kernels_total ")[2].partition("\n")[0])
        assert counted == pytest.approx(sum(sum(item.values()) for item in result.values()))
        return result

    return ask


ONE = spec(64)
ON_CPU = spec(64, threads=2)
QUESTIONS: dict[str, tuple[str, Any, dict[str, dict[KernelSpec, float]]]] = {
    "single": ("/v1/predict", {**GEMM, "device": "h100-sxm"}, {H100: {ONE: 1}}),
    "batch": ("/v1/predict", {"requests": [{**GEMM, "device": "h100-sxm"}] * 3}, {H100: {ONE: 3}}),
    "columns": ("/v1/predict/columns", {"family": "gemm", "columns": {
        "device": ["h100-sxm", CPU], "dtype": "fp32", "threads": [None, 2], "sizes": {"m": [8, 64], "n": 32, "k": 16}}},
        {H100: {spec(8): 1}, CPU: {ON_CPU: 1}}),
    "infer": ("/v2/models/gemm/infer", {"inputs": [
        {"name": "device", "shape": [1], "datatype": "BYTES", "data": [H100]},
        {"name": "dtype", "shape": [1], "datatype": "BYTES", "data": ["fp32"]},
        *({"name": name, "shape": [1], "datatype": "INT64", "data": [size]} for name, size in GEMM["sizes"].items())]},
        {H100: {ONE: 1}}),
    "compare": ("/v1/compare", BARE, {H100: {ONE: 1}, CPU: {ON_CPU: 1}}),
    "roofline": ("/v1/roofline", BARE, {H100: {ONE: 1}, CPU: {ON_CPU: 1}}),
    "sweep": ("/v1/sweep", {**BARE, "sweep": {"dim": "m", "values": [8, 64]}},
              {H100: {spec(8): 1, ONE: 1}, CPU: {spec(8, threads=2): 1, ON_CPU: 1}}),
    "rank": ("/v1/rank", {**GEMM, "device": CPU, "threads": 2, "configs": [{"tile_m": 8}, {"tile_m": 16}]},
             {CPU: {spec(64, threads=2, config={"tile_m": size}): 1 for size in (8, 16)}}),
    "model": ("/v1/predict/model", {"devices": [H100], "kernels": [{**GEMM, "count": 7}]}, {H100: {ONE: 1}}),
    "program": ("/v1/predict/mlir", {"text": PROGRAM, "devices": [H100, CPU], "threads": 2},
                {H100: {ONE: 1}, CPU: {ON_CPU: 1}}),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "wanted"), QUESTIONS.values(), ids=QUESTIONS.keys())
def test_kernels_of_every_question_are_counted(asking: Any, path: str, body: Any, wanted: Any) -> None:
    assert asking(path, body) == wanted


def test_nothing_is_kept_unless_asked_for_and_nothing_says_who_asked(
    serve: Any, fake: Any, folder: Path, tmp_path: Path
) -> None:
    body = {**GEMM, "device": "h100-sxm"}
    with serve(FixedSource(fake, catalogue()), Settings()) as client:
        assert client.post(body).status_code == 200
        assert "kernelcast_usage_kernels_total 0.0" in client.get("/metrics").text
    assert list(tmp_path.iterdir()) == []
    with serve(FixedSource(fake, catalogue()), Settings(usage_log=folder)) as client:
        headers = {"user-agent": "somebody", "x-request-id": "somebody"}
        assert client.request("POST", "/v1/predict", json=body, headers=headers).status_code == 200
        assert client.post({}).status_code == 422
    (path,) = folder.iterdir()
    head, line = map(json.loads, path.read_text().splitlines())
    assert set(head) == {"format_version", "day", "asked", "missed", "left_out"}
    assert set(line) == {*KernelSpec.__slots__, "sizes", "device", "count"} - {"dims", "timing"}
    assert "somebody" not in path.read_text()


def cases(n: int) -> Cases:
    return Cases.from_specs([spec(1 + i) for i in range(n)], [H100] * n)


@pytest.mark.parametrize("n", [1, 8, 9, 2000, 20_000])
def test_long_requests_are_sampled_and_counts_scaled(folder: Path, n: int) -> None:
    assert (sample_size(n), n <= usage_log.ALL) in {(n, True), (8, False), (31, False), (256, False)}
    log = UsageLog(folder)
    log.cases(cases(n))
    log.specs([spec(1 + i) for i in range(n)], [H100] * n)
    log.write()
    result = read_usage(folder)
    assert sum(result.values()) == pytest.approx(2 * n)
    assert len(result) <= 2 * sample_size(n)
    assert all(1 <= item["m"] <= n for item in result)


def test_a_sample_is_of_the_whole_request(folder: Path) -> None:
    log, many = UsageLog(folder), cases(20_000)
    for _ in range(20):
        log.cases(many)
    log.write()
    result = read_usage(folder)
    # 5,120 draws: half of a request's rows get half of its counts, within four standard deviations.
    assert sum(count for item, count in result.items() if item["m"] <= 10_000) / sum(result.values()) == pytest.approx(
        0.5, abs=0.03
    )


def test_what_is_asked_most_survives_bounded_memory(folder: Path) -> None:
    draws = random.Random(7)
    query = [min(int(draws.paretovariate(0.8)), 200_000) for _ in range(10_000)]
    log = UsageLog(folder, capacity=200)
    for m in query:
        log.specs([spec(m)], [H100])
    log.write()
    (path,) = folder.iterdir()
    head, *lines = map(json.loads, path.read_text().splitlines())
    counted = {line["sizes"]["m"]: line["count"] for line in lines}
    truth = Counter(query)
    assert len(counted) <= 400
    assert head["asked"] == len(query) == sum(counted.values()) + head["missed"]
    assert all(count <= truth[m] for m, count in counted.items())
    assert all(counted[m] == times for m, times in truth.most_common(20))


def dated(folder: Path, days: Iterator[date], keep: int = 30) -> UsageLog:
    return UsageLog(folder, keep, today=lambda: next(days))


def test_a_file_a_day_and_old_ones_go(folder: Path) -> None:
    folder.mkdir()
    old, other = folder / f"{DAY - timedelta(days=8)}-1-00000000.jsonl", folder / "2020-01-01.jsonl"
    half = folder / f".{DAY - timedelta(days=8)}-1-00000000.jsonl.new"
    recent = folder / f"{DAY - timedelta(days=7)}-1-00000000.jsonl"
    for path in (old, other, half, recent):
        path.write_text("{}")
    log = dated(folder, iter([DAY, DAY, DAY + timedelta(days=1), DAY + timedelta(days=1)]), keep=8)
    log.specs([ONE], [H100])
    log.write()
    log.specs([ONE, ONE], [H100, H100])
    log.write()  # the day is over: its last minute is written to its own file
    log.specs([ON_CPU], [CPU])
    log.write()
    assert (old.exists(), half.exists(), other.exists(), recent.exists()) == (False, False, True, True)
    heads = {
        path.name[:10]: json.loads(path.read_text().splitlines()[0])
        for path in folder.iterdir()
        if path not in (other, recent)
    }
    assert {day: head["asked"] for day, head in heads.items()} == {str(DAY): 3.0, str(DAY + timedelta(days=1)): 1.0}
    assert all(head["day"] == day for day, head in heads.items())


def test_a_file_and_the_folder_stay_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "MAX_FILE_B", 4000)
    monkeypatch.setattr(usage_log, "MAX_FOLDER_B", 6000)
    logs = [dated(folder, iter([day] * 9)) for day in (DAY - timedelta(days=2), DAY - timedelta(days=1), DAY)]
    for log in logs:
        log.specs([ONE], [H100])
        for m in range(1, 40):
            log.specs([spec(m)], [H100])
        log.specs([ONE], [H100])
        log.write()
    paths = sorted(folder.iterdir())
    assert sum(path.stat().st_size for path in paths) <= 6000
    assert paths[-1].name.startswith(str(DAY))
    head, first, *rest = map(json.loads, paths[-1].read_text().splitlines())
    assert (first["sizes"]["m"], first["count"]) == (64, 2.0)
    assert head["left_out"] == 40 - len(rest) - 1 > 0


@pytest.mark.parametrize("what", ["a file in its place", "no room"])
def test_a_disk_that_fails_disturbs_nobody(
    serve: Any, fake: Any, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "usage"
    if what == "a file in its place":
        folder.write_text("")
    else:

        def full(path: Path, _: bytes, *, durable: bool) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(usage_log, "write_whole", full)
    monkeypatch.setattr("kernelcast.api.app.WRITE_S", 0.02)
    with caplog.at_level(logging.WARNING), serve(FixedSource(fake, catalogue()), Settings(usage_log=folder)) as client:
        failures, deadline = 0.0, time.monotonic() + 120
        while failures < 2:  # however long two writings take
            assert time.monotonic() < deadline, "no writing failed in time"
            assert client.post({**GEMM, "device": "h100-sxm"}).status_code == 200
            text = client.get("/metrics").text
            failures = float(text.partition("\nkernelcast_usage_write_failures_total ")[2].partition("\n")[0])
    assert len([item for item in caplog.records if "answers are not affected" in item.message]) == 1
    assert not any(item.exc_info for item in caplog.records)


def test_failures_end_and_begin_again_with_one_line_each(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.joinpath("usage").write_text("")
    log = UsageLog(folder)
    written = []
    with caplog.at_level(logging.INFO):
        for turn in range(6):
            log.specs([ONE], [H100])
            if turn == 3:
                folder.unlink()
            written.append(log.write())
    assert [item.message.split(" (")[0].partition("usage ")[0] for item in caplog.records] == ["", ""]
    assert written == [False] * 3 + [True] * 3
    assert read_usage(folder) == {ONE: 6.0}
    assert all(FILE_NAME.fullmatch(path.name) for path in folder.iterdir())


def test_threads_lose_nothing(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    log = UsageLog(folder, capacity=50)

    def ask(start: int) -> None:
        for m in range(500):
            log.specs([spec(1 + (start + m) % 40)], [H100])
            if m % 100 == 0:
                log.write()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    log.write()
    assert sum(read_usage(folder).values()) == 2000


def test_settings_name_the_folder(tmp_path: Path) -> None:
    result = Settings.from_env({"KERNELCAST_USAGE_LOG": str(tmp_path), "KERNELCAST_USAGE_DAYS": "7"})
    assert (result.usage_log, result.usage_days) == (tmp_path, 7)
    assert Settings.from_env({}).usage_log is None
    with pytest.raises(SpecError, match="KERNELCAST_USAGE_DAYS is '0': it must be a whole number between 1 and 3650"):
        Settings.from_env({"KERNELCAST_USAGE_DAYS": "0"})
