"""The models that ship: their parameters are the published ones, their facts those of published tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import facts_of, model_facts, model_names, published_parameters
from kernelcast.workloads.architectures.facts import ModelFacts
from kernelcast.workloads.architectures.layers.attention import Attention

TABLE = Path(__file__).parents[5] / "shared" / "benchmarks" / "serving" / "model_facts.parquet"


def test_thirty_models_ship_with_a_source() -> None:
    assert len(model_names()) >= 30
    assert all("huggingface.co/" in model_facts(name).source for name in model_names())


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_those_published(name: str) -> None:
    assert model_facts(name).parameters == pytest.approx(published_parameters(name), rel=0.01)


@pytest.mark.skipif(not TABLE.exists(), reason="the public table of models' facts is not on this machine")
def test_facts_agree_with_a_published_table() -> None:
    import pyarrow.parquet as pq

    rows = {row["model"]: row for row in pq.read_table(TABLE).to_pylist()}
    checked = 0
    for name in model_names():
        row = rows.get(name)
        if row is None:
            continue
        facts = model_facts(name)
        wanted = {key: row[key] for key in ("layers", "hidden", "vocab") if row[key] is not None}
        assert {"layers": facts.layers, "hidden": facts.hidden, "vocab": facts.vocabulary}.items() >= wanted.items(), (
            name
        )
        attention = next((part for _, part in facts.parts if isinstance(part, Attention)), None)
        if attention is not None:
            assert (attention.heads, attention.kv_heads) == (row["heads"], row["kv_heads"]), name
        checked += 1
    assert checked >= 10


def test_a_model_by_any_of_its_names() -> None:
    assert (
        model_facts("LLAMA-3.1-8b")
        == model_facts("meta-llama/Llama-3.1-8B-Instruct")
        == model_facts("meta-llama/Llama-3.1-8B")
    )


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"nearest: .*Qwen/Qwen3-32B") as refused:
        model_facts("Qwen/Qwen3-33B")
    assert refused.value.field == "model"


def test_a_model_by_path_folder_content_or_facts(tmp_path: Path) -> None:
    values = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100}
    folder = tmp_path / "tiny"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    for model in (path, str(path), folder, str(folder)):
        facts = facts_of(model)
        assert (facts.name, facts.hidden, facts.source) == ("tiny", 64, str(path))
    assert facts_of(values).hidden == 64
    assert isinstance(facts, ModelFacts)
    assert facts_of(facts) is facts
