"""The models that ship: their parameters are the published ones, their facts those of published tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import facts_of, model_facts, model_names, published_parameters
from kernelcast.workloads.architectures.facts import ModelFacts
from kernelcast.workloads.architectures.layers.attention import Attention
from kernelcast.workloads.architectures.layers.feed_forward import Experts, Mlp
from kernelcast.workloads.architectures.layers.latent_attention import LatentAttention

TABLE = Path(__file__).parents[5] / "shared" / "benchmarks" / "serving" / "model_facts.parquet"


def test_thirty_models_ship_with_a_source() -> None:
    assert len(model_names()) >= 30
    assert all("huggingface.co/" in model_facts(name).source for name in model_names())


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_those_published(name: str) -> None:
    assert model_facts(name).parameters == pytest.approx(published_parameters(name), rel=0.01)


WRONG_THERE = {("mistralai/Mixtral-8x22B-Instruct-v0.1", "kv_heads")}
"""Facts in which the table differs from the makers' config.json: Mixtral's has 8 key heads, with which its parameters agree."""


def facts_by_column(facts: ModelFacts) -> dict[str, int | bool]:
    """What is known of a model by the names that the table has for it."""
    parts = [part for _, part in facts.parts]
    columns: dict[str, int | bool] = {
        "layers": facts.layers, "hidden": facts.hidden, "vocab": facts.vocabulary, "tie_embeddings": facts.tied_embeddings,
    }  # fmt: skip
    for part in reversed(parts):
        if isinstance(part, Attention):
            columns |= {"heads": part.heads, "kv_heads": part.kv_heads, "head_dim": part.head_dim}
        elif isinstance(part, LatentAttention):
            columns |= {"heads": part.heads, "kv_lora_rank": part.kv_rank, "qk_rope_head_dim": part.rope_dim,
                        "qk_nope_head_dim": part.nope_dim, "v_head_dim": part.value_dim}  # fmt: skip
        elif isinstance(part, Experts):
            columns |= {"experts": part.count, "top_k": part.top_k, "moe_ffn": part.inner}
        elif isinstance(part, Mlp):
            columns["ffn"] = part.inner
    return columns


@pytest.mark.skipif(not TABLE.exists(), reason="the public table of models' facts is not on this machine")
def test_facts_agree_with_a_published_table() -> None:
    import pyarrow.parquet as pq

    compared: set[str] = set()
    columns: set[str] = set()
    for row in pq.read_table(TABLE).to_pylist():
        try:
            facts = model_facts(row["model"])
        except SpecError:
            continue
        if row["experts"] and row["moe_ffn"] is None:
            row["moe_ffn"] = row["ffn"]
        for column, value in facts_by_column(facts).items():
            published = row[column]
            if published is None or (row["model"], column) in WRONG_THERE:
                continue
            assert value == published, (row["model"], column, value, published)
            columns.add(column)
        compared.add(facts.name)
    assert len(compared) >= 20
    assert {"layers", "hidden", "heads", "kv_heads", "ffn", "experts", "top_k", "vocab", "kv_lora_rank"} <= columns


def test_a_model_by_any_of_its_names() -> None:
    assert (
        model_facts("LLAMA-3.1-8b")
        == model_facts("meta-llama/Llama-3.1-8B-Instruct")
        == model_facts("meta-llama/Llama-3.1-8B")
    )


def test_a_maker_may_stand_before_a_short_name() -> None:
    assert model_facts("meta-llama/Llama-3-8B") == model_facts("meta-llama/Meta-Llama-3-8B")
    with pytest.raises(SpecError, match="no model 'somebody/llama-3-8b' ships"):
        model_facts("somebody/llama-3-8b")


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"nearest: .*Qwen/Qwen3-32B") as refused:
        model_facts("Qwen/Qwen3-33B")
    assert refused.value.field == "model"
    assert "give the path of its config.json, or one of" in str(refused.value)


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


def test_a_model_by_facts_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("layers: 32\nhidden: 4096\nheads: 32\nkv_heads: 8\nffn: 14336\nvocab: 128256\n")
    facts = facts_of(str(path))
    assert (facts.name, facts.parameters) == ("small", model_facts("meta-llama/Llama-3.1-8B").parameters)
    path.write_text(
        "name: another\nmodel_type: gpt2\nn_embd: 64\nn_layer: 2\nn_head: 4\nn_positions: 32\nvocab_size: 100\n"
    )
    assert facts_of(path).hidden == 64
    for text, words in (
        ("layers: 2", "hidden and heads are needed"),
        ("a: [", "no YAML"),
        ("layers: x\nhidden: 1\nheads: 1", "whole"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=words):
            facts_of(path)
    with pytest.raises(SpecError, match="cannot read"):
        facts_of(tmp_path / "none.yaml")
