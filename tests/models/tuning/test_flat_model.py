"""Model files: what is written is read back, and whatever else is in a file ends in one sentence."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.tuning.flat_model import FlatModel, decode, encode, read_model, write_model
from kernelcast.models.tuning.model_file import MOST_BYTES, Measured, ModelFileError

from .made_up import (
    DEVICE,
    FACTS,
    KIND,
    broken_files,
    model,
    patched,
    random_forest,
    resealed,
    section,
    space,
    task,
    walked,
)

MEASURED = Measured(
    (DEVICE, DEVICE),
    ("fp32", "fp32"),
    np.array([[300, 200, 500], [300, 200, 500]]),
    np.array([[8, 8, 1], [0, 0, 0]]),
    np.array([1e-3, 2e-3]),
)
WHOLE = model(energy=True, measured=MEASURED)
CONTENT = encode(WHOLE)


def answers(flat: FlatModel) -> Any:
    """Seconds and joules; inputs by their place, so that files with changed names answer too."""
    candidates = space(task())
    raw = [*task().sizes.values(), *candidates.knobs.values(), *flat.facts_for(DEVICE, "fp32").values()]
    features = flat.features(dict(zip(flat.formula.inputs, raw, strict=True)))
    seconds = flat.seconds(features, len(candidates))
    return seconds, flat.joules(features, seconds) if flat.energy is not None else None


@pytest.mark.parametrize("whole", [WHOLE, model(), model(latency=random_forest(depth=0, trees=3)), model(table={})])
def test_what_is_written_is_read_back(whole: FlatModel, tmp_path: Path) -> None:
    write_model(whole, tmp_path / "deep" / "made-up.kcm")
    result = read_model(tmp_path / "deep" / "made-up.kcm", "made-up")
    assert (result.kind, result.sizes, result.knobs, result.facts) == (
        whole.kind,
        whole.sizes,
        whole.knobs,
        whole.facts,
    )
    assert result.formula == whole.formula
    assert result.table == whole.table
    assert result.metadata == whole.metadata
    assert (result.energy is None) == (whole.energy is None)
    assert (result.measured is None) == (whole.measured is None)
    assert encode(result) == encode(whole)
    if whole.table:
        np.testing.assert_array_equal(answers(result)[0], answers(whole)[0])


def test_measurements_are_read_back() -> None:
    result = decode(CONTENT, "it").measured
    assert result is not None
    assert (result.devices, result.dtypes) == (MEASURED.devices, MEASURED.dtypes)
    for name in ("sizes", "knobs", "seconds"):
        np.testing.assert_array_equal(getattr(result, name), getattr(MEASURED, name))


def test_seconds_are_the_bound_times_what_trees_say_and_joules_follow() -> None:
    candidates = space(task())
    matrix = KIND.formula().columns({**task().sizes, **candidates.knobs, **FACTS}, len(candidates))
    seconds, joules = answers(WHOLE)
    bound = matrix[:, KIND.formula().names.index("bound_s")]
    np.testing.assert_allclose(seconds, bound * np.exp(walked(WHOLE.latency, matrix)), rtol=1e-12)
    assert WHOLE.energy is not None
    np.testing.assert_allclose(joules, seconds * np.exp(walked(WHOLE.energy, matrix)), rtol=1e-12)


def test_every_part_begins_at_a_multiple_of_eight() -> None:
    for tag in ("KIND", "FACT", "FORM", "TREE", "TRE2", "META", "SEEN", "STRS"):
        assert section(CONTENT, tag)[0] % 8 == 0


def test_sections_of_other_writers_are_skipped() -> None:
    at = CONTENT.index(b"TRE2")
    result = decode(resealed(CONTENT[:at] + b"XTRA" + CONTENT[at + 4 :]), "it")
    assert result.energy is None
    np.testing.assert_array_equal(answers(result)[0], answers(WHOLE)[0])


def test_tags_that_are_no_ascii_are_skipped_too_and_told_apart() -> None:
    def renamed(first: bytes, second: bytes) -> bytes:
        content = bytearray(CONTENT)
        for tag, other in ((b"TRE2", first), (b"SEEN", second)):
            at = CONTENT.index(tag)
            content[at : at + 4] = other
        return resealed(bytes(content))

    result = decode(renamed(b"\xff\xfeAB", b"\xff\xfdAB"), "it")
    assert result.energy is None
    assert result.measured is None
    np.testing.assert_array_equal(answers(result)[0], answers(WHOLE)[0])
    with pytest.raises(ModelFileError, match="twice"):
        decode(renamed(b"\xff\xfeAB", b"\xff\xfeAB"), "it")


@pytest.mark.parametrize("name", broken_files(CONTENT))
def test_a_file_that_cannot_be_used_gives_one_sentence(name: str, tmp_path: Path) -> None:
    content, says = broken_files(CONTENT)[name]
    path = tmp_path / "made-up.kcm"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=says) as caught:
        read_model(path, "made-up")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[1]", b'"x"', b'{"a": NaN}', b"[" * 100_000, b'{"a": "\xff"}'],
    ids=["empty", "open", "list", "text", "nan", "deep", "bytes"],
)
def test_metadata_that_is_no_json_object_is_refused(text: bytes) -> None:
    odd = replace(WHOLE, metadata={"filler": "x" * 100_000})
    content = encode(odd)
    at, length = section(content, "META")
    with pytest.raises(ModelFileError, match="in section META there is no"):
        decode(resealed(content[:at] + text.ljust(length) + content[at + length :]), "it")


def test_names_that_are_no_text_are_refused() -> None:
    at, _ = section(CONTENT, "STRS")
    count = int.from_bytes(CONTENT[at : at + 4], "little")
    with pytest.raises(ModelFileError, match="not UTF-8"):
        decode(patched(CONTENT, "STRS", 8 + 4 * count, "<B", 255), "it")


def test_any_damage_that_a_new_checksum_hides_is_a_sentence_or_an_answer() -> None:
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        changed = bytearray(CONTENT)
        for at in draw.integers(8, len(changed), draw.integers(1, 4)):
            changed[at] = draw.integers(0, 256) if draw.random() < 0.5 else changed[at] ^ (1 << draw.integers(0, 8))
        if draw.random() < 0.2:
            del changed[draw.integers(40, len(changed)) :]
        try:
            seconds, _ = answers(decode(resealed(bytes(changed)), "it"))
        except SpecError:
            refused += 1
        else:
            assert np.isfinite(seconds).all()
            assert (seconds > 0).all()
    assert refused > 40


def test_damage_without_a_new_checksum_is_always_found() -> None:
    draw = np.random.default_rng(1)
    for _ in range(200):
        at, bit = int(draw.integers(0, len(CONTENT))), int(draw.integers(0, 8))
        with pytest.raises(ModelFileError):
            decode(CONTENT[:at] + bytes([CONTENT[at] ^ 1 << bit]) + CONTENT[at + 1 :], "it")


def test_missing_other_kind_and_unreadable_files_have_their_own_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"there is no model file .*gone\.kcm; train one with `kernelcast train tuning`"
    ):
        read_model(tmp_path / "gone.kcm")
    with pytest.raises(ModelFileError, match="cannot read the model file"):
        read_model(tmp_path)
    write_model(WHOLE, tmp_path / "other.kcm")
    with pytest.raises(ModelFileError, match=re.escape("is a model of made-up, not of iree-contraction")):
        read_model(tmp_path / "other.kcm", "iree-contraction")
    with pytest.raises(ModelFileError, match="cannot write the model file"):
        write_model(WHOLE, tmp_path / "other.kcm" / "below.kcm")
    with (tmp_path / "large.kcm").open("wb") as file:
        file.truncate(MOST_BYTES + 10)
    with pytest.raises(ModelFileError, match="is larger than"):
        read_model(tmp_path / "large.kcm")


def test_devices_and_dtypes_not_in_the_file_are_named_with_those_that_are() -> None:
    with pytest.raises(ModelFileError, match=f"the device 'toaster'; it knows: {DEVICE}, nvidia-t4"):
        WHOLE.facts_for("toaster", "fp32")
    with pytest.raises(ModelFileError, match=f"does not know fp64 on {DEVICE}; it knows: bf16, fp32"):
        WHOLE.facts_for(DEVICE, "fp64")


def test_numbers_too_large_for_a_time_are_refused() -> None:
    huge = replace(WHOLE, latency=replace(WHOLE.latency, bias=1e6), table={(DEVICE, "fp32"): (1e-300, 1.0, 1.0)})
    with pytest.raises(SpecError, match="has no time for these sizes"):
        answers(huge)


def test_a_model_without_a_second_forest_predicts_no_energy() -> None:
    with pytest.raises(SpecError, match="predicts no energy"):
        model().joules([0.0] * 12, np.ones(1))


def test_who_reads_while_a_file_is_replaced_sees_the_old_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "made-up.kcm"
    versions = [replace(WHOLE, metadata={"version": i}) for i in range(2)]
    write_model(versions[0], path)
    seen: set[int] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(int(read_model(path).metadata["version"]))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(20):
        write_model(versions[i % 2], path)
    stop.set()
    reader.join()
    assert seen <= {0, 1}
    assert seen
    assert os.listdir(tmp_path) == ["made-up.kcm"]  # noqa: PTH208
