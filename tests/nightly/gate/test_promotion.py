"""What serves after a promotion is what was judged, or what served before; every way back works."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import default_model_dir, manifest_sha256, pointer, shipped_model_dir
from kernelcast.models.family_model.artifact_files import ArtifactError
from kernelcast.models.registry import registry
from kernelcast.nightly.gate import promotion
from kernelcast.nightly.gate.answer_changes import _settings, prediction_changes, probes, unexplained
from kernelcast.nightly.gate.challengers import past
from kernelcast.nightly.gate.model_ledger import Ledger
from kernelcast.nightly.gate.promotion import Promotion, promote_challenger, restore_loadable, roll_back
from typer.testing import CliRunner

NIGHT = "20261122T220000Z-home"


def promoted(model: Path, name: str = "new", **options) -> Promotion:
    return promote_challenger(past(model, name), NIGHT, registry=False, probes=probes(model, each=4), **options)


def test_a_promotion_serves_what_was_judged_and_is_written_down(home: Path, champion: Path, better: Path) -> None:
    first, second = promoted(champion), promoted(better, software={"nvidia-t4": "driver=2"})
    assert (first.previous, second.previous) == ("shipped", first.version)
    assert manifest_sha256(default_model_dir()) == manifest_sha256(better)
    entries = Ledger().entries()
    assert [item.previous for item in entries] == ["shipped", first.version]
    assert entries[1].software == {"nvidia-t4": "driver=2"}
    assert second.summary == f"version {second.version} (new) serves in place of {first.version}"


def test_rolling_back_step_by_step_to_the_shipped_model(home: Path, champion: Path, better: Path) -> None:
    first, second = promoted(champion), promoted(better)
    assert roll_back(why="try").version == first.version
    assert manifest_sha256(default_model_dir()) == manifest_sha256(champion)
    assert roll_back(why="try").version == "shipped"
    assert default_model_dir() == shipped_model_dir()
    with pytest.raises(SpecError, match="nothing says what served before shipped"):
        roll_back(why="try")
    assert roll_back(second.version, why="try").version == second.version
    assert [what for _, what, _ in Ledger().served()] == ["promoted"] * 2 + ["rolled-back"] * 3


def test_what_was_promoted_by_hand_has_a_way_back(home: Path, champion: Path, better: Path) -> None:
    from kernelcast.cli import app

    versions = [manifest_sha256(model)[:12] for model in (champion, better)]
    for model in (champion, better, better):
        done = CliRunner().invoke(app, ["serve", "models", "promote", str(model)])
        assert done.exit_code == 0, done.output
    assert [item.previous for item in Ledger().entries()] == ["shipped", versions[0]]
    assert roll_back(why="try").version == versions[0]
    assert roll_back(why="try").version == "shipped"


@pytest.mark.parametrize(
    ("version", "said"),
    [("nonsense", "no model 'nonsense' is kept"), ("../..", "no model '../..' is kept"), ("", "nothing says"),
     ("shipped", "shipped serves already")],
)  # fmt: skip
def test_rolling_back_refuses(home: Path, version: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        roll_back(version or None, why="try")


def test_a_rollback_to_a_model_that_is_gone_changes_nothing(home: Path, champion: Path, better: Path) -> None:
    first, second = promoted(champion), promoted(better)
    shutil.rmtree(home / "models" / str(first.version))
    with pytest.raises(ArtifactError):
        roll_back(why="try")
    assert pointer().version == second.version


def test_a_rollback_to_a_model_that_was_changed_changes_nothing(home: Path, champion: Path, better: Path) -> None:
    first, second = promoted(champion), promoted(better)
    shutil.rmtree(home / "models" / str(first.version))
    shutil.copytree(better, home / "models" / str(first.version))
    with pytest.raises(ArtifactError, match="is not the model that version"):
        roll_back(why="try")
    assert pointer().version == second.version


def test_a_damaged_pointer_is_mended_by_naming_a_version(home: Path, champion: Path) -> None:
    first = promoted(champion)
    (home / "champion.json").write_text("{")
    with pytest.raises(ArtifactError, match="unreadable"):
        roll_back(why="try")
    assert roll_back(first.version, why="try").version == first.version
    assert pointer().version == first.version


def test_a_model_that_answers_otherwise_once_it_serves_is_taken_back(
    home: Path, champion: Path, better: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = promoted(champion)

    def swapped(artifact_dir: Path) -> registry.Promoted:
        done = registry.promote_directory(artifact_dir)
        shutil.rmtree(done.artifact)
        shutil.copytree(champion, done.artifact)
        return done

    monkeypatch.setattr(promotion, "promote_directory", swapped)
    result = promoted(better)
    assert result.version is None
    assert "rolled back at once" in result.summary
    assert pointer().version == first.version
    assert [item.level for item in result.findings] == ["needs-person"]


def test_a_ledger_that_cannot_be_written_leaves_the_model_before(home: Path, champion: Path, better: Path) -> None:
    first = promoted(champion)
    (home / "nights" / "ledger.jsonl").unlink()
    (home / "nights" / "ledger.jsonl").mkdir()
    with pytest.raises(SpecError, match="cannot"):
        promoted(better)
    assert pointer().version == first.version


def test_without_its_registry_nothing_is_promoted(
    home: Path, champion: Path, better: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = promoted(champion)
    monkeypatch.setenv("KERNELCAST_REGISTRY_URI", "mysql://nowhere/models")
    result = promote_challenger(past(better, "new"), NIGHT, registry=True, probes=[])
    assert result.version is None
    assert result.registry.startswith("unreachable: the model registry's address")
    assert pointer().version == first.version
    # A rollback does not wait for it.
    assert roll_back(why="try").version == "shipped"
    again = roll_back(first.version, why="try")
    assert pointer().version == first.version
    assert again.version == first.version


def test_a_champion_that_does_not_load_goes_back_without_any_rows(home: Path, champion: Path, better: Path) -> None:
    first, second = promoted(champion), promoted(better)
    assert restore_loadable(catalogue()) is None
    (home / "models" / str(second.version) / "manifest.json").write_text("{}")
    back = restore_loadable(catalogue())
    assert back is not None
    assert back.version == first.version
    assert "cannot be loaded" in back.summary
    assert back.findings[0].kind == "rollback"
    assert Ledger().find(str(second.version)).rolled_back


def champions() -> list[int]:
    return [version.version for version in registry.versions() if "champion" in version.aliases]


def test_alias_and_pointer_stay_together(
    home: Path, champion: Path, better: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    challenger = past(champion, "new")
    first = promote_challenger(challenger, NIGHT, registry=True, probes=[])
    assert (first.version, first.registry) == ("1", "ok")
    with monkeypatch.context() as broken:
        broken.setattr(registry, "_point_at", _refuse)
        with pytest.raises(ArtifactError, match="no room"):
            promote_challenger(past(better, "newer"), NIGHT, registry=True, probes=[])
    assert (champions(), pointer().version) == ([1], "1")
    assert promote_challenger(past(better, "newer"), NIGHT, registry=True, probes=[]).version == "2"
    assert roll_back(why="try").registry == "ok"
    assert (champions(), pointer().version) == ([1], "1")


def _refuse(*_: object) -> None:
    raise ArtifactError("no room")


def test_changes_are_told_by_family_and_need_a_person_when_unexplained(champion: Path, better: Path) -> None:
    cases = probes(champion)
    assert [len(item) for item in cases] == [40, 40]
    same = prediction_changes(champion, champion, cases)
    assert (same.cases, same.largest_pct) == (80, 0.0)
    result = prediction_changes(champion, better, cases)
    assert result.median_pct > 30
    assert len(result.largest) == 10
    assert result.largest[0]["before_s"] > result.largest[0]["after_s"]
    assert {item.subject for item in unexplained(result)} == {"gemm", "softmax"}
    assert [item.subject for item in unexplained(result, ["gemm"])] == ["softmax"]
    json.dumps(asdict(result), allow_nan=False)


def test_probes_stay_the_same_and_take_in_what_users_ask(champion: Path, rows) -> None:
    query = [KernelSpec.of("gemm", "fp32", m=7, n=7, k=7), KernelSpec.of("copy", "fp32", rows=3, cols=3)]
    first, again = probes(champion, query), probes(champion, query)
    assert [item.sizes["m"].tolist() for item in first[:1]] == [item.sizes["m"].tolist() for item in again[:1]]
    assert first[0].sizes["m"][-1] == 7
    assert len(first[0]) == 41


def test_a_device_only_adapted_to_is_probed_in_what_its_kind_runs() -> None:
    cpu = catalogue().get("amd-epyc-9005-vm-2c")
    words = [f"nvidia-h200 gpu  {dtype}/{dtype} vllm hot " for dtype in ("fp8", "bf16")]
    entry = {"measured": {"latency": [*words, "another cpu bias bf16/bf16 torch hot ", "another cpu  fp8/fp8 x hot "]}}
    assert _settings(entry, cpu, "matrix") == [("bias", "bf16", None)]
    wanted = KernelSpec.of("gemm", "fp8", m=7, n=7, k=7)
    assert all(
        cpu.name not in item.device[item.dtype == "fp8"] for item in probes(shipped_model_dir(), [wanted], each=1)
    )


def test_probes_of_the_shipped_model_are_answered() -> None:
    cases = probes(shipped_model_dir(), each=1)
    result = prediction_changes(shipped_model_dir(), shipped_model_dir(), cases)
    assert result.unknown == 0
    assert result.largest_pct == 0.0


def test_history_and_rollback_on_the_command_line(home: Path, champion: Path, better: Path) -> None:
    from kernelcast.cli import app

    run = CliRunner().invoke
    first, second = promoted(champion), promoted(better)
    shown = json.loads(run(app, ["models", "history", "--json"]).stdout)
    assert [(item["version"], item["serves"]) for item in shown] == [(first.version, False), (second.version, True)]
    assert run(app, ["models", "rollback", "--json"]).exit_code == 0
    assert pointer().version == first.version
    assert str(second.version) in run(app, ["models", "history"]).stdout


def test_a_model_promoted_by_hand_can_be_gone_back_to(home: Path, champion: Path, better: Path) -> None:
    by_hand = registry.promote_directory(champion)
    promoted(better)
    assert next(item.version for item in Ledger().entries()) == by_hand.version
    assert roll_back(why="try").version == by_hand.version
    assert manifest_sha256(default_model_dir()) == manifest_sha256(champion)
