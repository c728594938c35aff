"""Models that a table describes by their shape."""

from __future__ import annotations

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import model_facts, row_facts


def test_a_model_by_its_shape() -> None:
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
    facts = row_facts(shape | {"model": "someone/else"})
    assert facts.parameters == pytest.approx(model_facts("llama-3.1-8b").parameters, rel=0.001)
    experts = row_facts(shape | {"model": "someone/else", "experts": 16, "top_k": 2, "moe_ffn": 1024})
    assert any(part.name == "moe" for _, part in experts.parts)
    with pytest.raises(SpecError, match="ships"):
        row_facts({"model": "someone/else"})
    with pytest.raises(SpecError, match="layers must be a whole number"):
        row_facts(shape | {"model": "someone/else", "layers": 3.5})
    assert row_facts(shape | {"model": "someone/else", "experts": float("nan"), "ffn": 14336.0}) == facts
