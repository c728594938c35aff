"""Plans: what is read, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kernelcast.nightly.record.plan import Plan, differences
from kernelcast.nightly.record.plan_file import PlanError, read_plan


def test_two_lines_are_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "my night.yaml"
    path.write_text("minutes: 20\nfamilies: gemm\n")
    plan = read_plan(path)
    assert (plan.minutes, plan.families, plan.collector, plan.name) == (20.0, ("gemm",), "cpu", "my-night")
    assert plan.choose.usage == 0.3
    assert plan.train.regressors == ("blend",)


def test_every_key(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(
        "{name: n, minutes: 30, device: d, collector: gpu, store: 's3://b/rows', families: [gemm, copy], dtypes: [bf16],\n"
        "threads: [1, 2], impls: [torch], seed: 3, energy_minutes: 2, registry: 'sqlite:///x.db',\n"
        "characterise: {every_days: 1}, choose: {space_filling: 0.1, usage: 0.1, repeats: 0.1, usage_log: u},\n"
        "train: {regressors: [analytic, roofline], data: [a.csv], with_shipped: false, most_rows: 500, challengers: [past],\n"
        " software: current},\n"
        "gate: {hold_out: 0.2, confidence: 0.9, may_forget: true}, keep: {nights: 3, models: 2},\n"
        "fleet: {address: '127.0.0.1:1', devices: [x]}}\n"
    )
    plan = read_plan(path)
    assert plan.train.regressors == ("analytic", "roofline")
    assert plan.keep.nights == 3
    assert msgspec.convert(plan.to_json(), Plan) == plan  # as it is written into a night's folder, and read again


def test_equal_plans_have_equal_hashes_and_others_differ() -> None:
    assert Plan().hash == Plan().hash != Plan(seed=1).hash
    assert differences(Plan().to_json(), Plan(minutes=6.0, seed=1).to_json()) == [
        "minutes: 20.0 -> 6.0",
        "seed: 0 -> 1",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("minuts: 20", "unknown key 'minuts': did you mean minutes?"),
        ("train: {regresors: blend}", "unknown key 'train.regresors': did you mean train.regressors?"),
        ("minutes: ten", "minutes is 'ten'; it must be a number from 0.1 to 1440"),
        ("minutes: true", "minutes is True; it must be a number"),
        ("minutes: .nan", "minutes is nan; it must be a number"),
        ("minutes: -1", "minutes is -1; it must be"),
        ("minutes: 20\nminutes: 30", "'minutes' is given twice (line 2)"),
        ("train: {most_rows: 200, most_rows: 300}", "'most_rows' is given twice"),
        ("families: [gem]", "did you mean gemm?"),
        ("families: [gemm, gemm]", "nothing in it twice"),
        ("families: {gemm: 1}", "families is {'gemm': 1}"),
        ("dtypes: fp31", "dtypes is 'fp31'"),
        ("threads: [0]", "a whole number from 1 to 4096"),
        ("seed: 1.5", "seed is 1.5; it must be a whole number"),
        ("collector: cpus", "one of cpu, gpu, fleet, replay; did you mean cpu?"),
        ("collector: replay", "replay.rows is ''; it must be a file or folder of recorded rows"),
        ("replay: {rows: x}", "collector is 'cpu'; it must be replay"),
        ("energy_minutes: 1", "energy_minutes is 1.0; it must be 0 where collector is not gpu"),
        ("{collector: gpu, minutes: 4, energy_minutes: 3}", "at most half of minutes, 2"),
        ("choose: {usage: 0.9, repeats: 0.9}", "choose is '1.8 in all'; it must be shares that add up to 1"),
        ("choose: {usage: 1.1}", "a number from 0 to 1"),
        ("train: {regressors: [blende]}", "train.regressors is ['blende']; it must be a regressor"),
        ("train: {challengers: [best]}", "one of adapted, retrained, past"),
        ("train: {software: new}", "train.software is 'new'; it must be one of all, current"),
        ("choose: {bridge: 0.1}", "unknown key 'choose.bridge'"),
        ("gate: {hold_out: 0.9}", "gate.hold_out is 0.9; it must be a number from 0.02 to 0.5"),
        ("gate: yes", "gate is True; it must be keys with values"),
        ("gate: {may_forget: 1}", "true or false"),
        ("keep: {nights: 0}", "a whole number from 1"),
        ("name: ../../etc", "since it names a folder"),
        ("name: ''", "since it names a folder"),
        ("store: ''", "text that is not empty"),
        ("- minutes", "holds no keys; a plan of one line is: minutes: 20"),
        ("", "holds no keys"),
        ("minutes: [", "is no YAML that can be read"),
        ("minutes: !!python/object/apply:os.system ['true']", "is no YAML that can be read"),
        ("families: &a [gemm]\ndtypes: *a", "aliases (*a) are not read"),
        ("<<: {minutes: 5}\nseed: 1", "merge keys (<<) are not read; write the keys out (line 1)"),
        ("minutes: 1:30", "'1:30' is not read as a number; write it in plain digits (line 1)"),
        ("seed: 020", "'020' is not read as a number"),
        ("seed: 0x10", "'0x10' is not read as a number"),
        ("gate.confidence: 0.9", "gate.confidence is written as gate: {confidence: …}"),
        ("every_days: 3", "characterise.every_days is written as characterise: {every_days: …}"),
        ("name: 7", "name is 7; it must be text in quotes of 1 to 40"),
        ('store: "a\\nb"', "text that is not empty, on one line"),
        ("train: {regressors: " + "a" * 5000 + "}", "must be a regressor"),
        ("minutes: 1\n---\nminutes: 2", "found another document (line 2)"),
        ("? [1]\n: 2", "a key is no plain text"),
        ("1: 2", "unknown key '1'"),
        ("\x00", "is no YAML that can be read"),
        ("[" * 5000, "is no YAML that can be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as refused:
        read_plan(path)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 600


def test_files_that_are_none(tmp_path: Path) -> None:
    for place, words in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(PlanError, match=words):
            read_plan(place)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 64_001)
    with pytest.raises(PlanError, match="larger than"):
        read_plan(large)
