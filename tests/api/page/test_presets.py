"""Widths of the presets of the page are those of the models that ship."""

from __future__ import annotations

import re

from kernelcast.api.page.static_files import STATIC_DIR
from kernelcast.workloads.architectures.config.catalogue import model_facts, model_names
from kernelcast.workloads.architectures.layers.attention import Attention
from kernelcast.workloads.architectures.layers.feed_forward import Mlp


def test_named_models_have_the_widths_of_their_configurations() -> None:
    text = (STATIC_DIR / "presets.js").read_text(encoding="utf-8")
    presets = re.findall(
        r'"([^"]+)": \{ hidden: (\d+), ffn: (\d+), heads: (\d+), kv_heads: (\d+), head_dim: (\d+) \}', text
    )
    assert len(presets) == 3
    names = {name.split("/", 1)[-1].replace("-", " "): name for name in model_names()}
    for title, *widths in presets:
        facts = model_facts(names[title])
        parts = [part for _, part in facts.parts]
        attention = next(part for part in parts if isinstance(part, Attention))
        mlp = next(part for part in parts if isinstance(part, Mlp))
        shipped = [facts.hidden, mlp.inner, attention.heads, attention.kv_heads, attention.head_dim]
        assert list(map(int, widths)) == shipped, title
