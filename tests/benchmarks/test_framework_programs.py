"""Programs of JAX and torch-mlir: structures have one name each, and become text of the kind that is asked for."""

from __future__ import annotations

import random
import re
from collections import Counter
from types import SimpleNamespace

import pytest
from programs.families import Family, Structure, draw_sizes
from programs.torch import programs as torch_programs
from programs.torch.blocks import FAMILIES as TORCH

NO_JAX, NO_TORCH = "needs JAX, which writes these programs", "needs torch-mlir, which writes these programs"
PARAMETERS = re.compile(r"func\.func (?:public )?@main\((.*?)\) ->")


def jax_families() -> tuple[Family, ...]:
    pytest.importorskip("jax", reason=NO_JAX)
    from programs.jax.lowering import FAMILIES

    return FAMILIES


def assert_names_tell_structures_apart(families: tuple[Family, ...]) -> None:
    assert len({family.name for family in families}) == len(families)
    for family in families:
        seen: dict[str, dict[str, object]] = {}
        for number in random.Random(0).sample(range(family.structures), min(family.structures, 1500)):
            structure = family.structure(number)
            assert seen.setdefault(structure.name, vars(structure.choices)) == vars(structure.choices)


def test_a_name_stands_for_one_structure() -> None:
    assert_names_tell_structures_apart(TORCH)


def test_a_jax_name_stands_for_one_structure() -> None:
    assert_names_tell_structures_apart(jax_families())


def some(families: tuple[Family, ...], name: str, mode: str = "forward", **choices: object) -> Structure:
    """The structure of a family with these choices, and the first of every other."""
    family = next(family for family in families if family.name == name)
    first = {key: values[0] for key, values in family.choices.items()}
    return Structure(family, SimpleNamespace(**first | choices), mode)


@pytest.mark.parametrize("mode", ["forward", "grad", "loss_and_grad", "input_grad", "sgd", "adam"])
def test_training_modes_take_and_give_what_they_should(mode: str) -> None:
    structure = some(jax_families(), "mlp", mode, depth=2, activation="gelu")
    from programs.jax.lowering import lower

    text = lower(structure, SimpleNamespace(batch=5, features=7, hidden=11, out=9), "f32")
    arguments = re.findall(r"tensor<[^>]*>", PARAMETERS.search(text)[1])
    weights = ["tensor<7x11xf32>", "tensor<11x9xf32>"]
    target = {"forward": [], "loss_and_grad": ["tensor<5xi32>"], "adam": ["tensor<5xi32>"]}.get(
        mode, ["tensor<5x9xf32>"]
    )
    assert Counter(arguments) == Counter(weights * (3 if mode == "adam" else 1) + target + ["tensor<5x7xf32>"])
    results = re.findall(r"return (.*?) :", text)[0].count("%")
    assert results == {"forward": 1, "grad": 2, "loss_and_grad": 3, "input_grad": 2, "sgd": 3, "adam": 7}[mode]
    assert "custom_call" not in text


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
def test_a_type_is_the_type_of_every_argument(dtype: str) -> None:
    structure = some(jax_families(), "attention", mask="causal", projections="projected", rotary="rotary")
    from programs.jax.lowering import lower

    text = lower(structure, SimpleNamespace(batch=2, time=5, memory=3, groups=2, head=9), dtype)
    kinds = set(re.findall(r"x([a-z]+\d+)>", PARAMETERS.search(text)[1]))
    assert kinds == {dtype}


def test_int8_products_are_summed_in_int32() -> None:
    structure = some(jax_families(), "quantized")
    from programs.jax.lowering import lower

    text = lower(structure, SimpleNamespace(rows=3, width=17, columns=9), "i8")
    assert "(tensor<3x17xi8>, tensor<17x9xi8>) -> tensor<3x9xi32>" in text


def test_variants_of_a_jax_program_share_its_name_and_differ_in_size() -> None:
    structure = some(jax_families(), "contraction")
    from programs.jax.programs import variants

    result = variants(structure, 0)
    assert len({module.module_id for module in result}) == len(result) >= 2
    assert {module.program for module in result} == {"jax/contraction-ij,jk->ik/forward"}
    assert result == variants(structure, 0)
    assert result != variants(structure, 1)


def test_torch_programs_come_in_every_dialect_with_weights_as_arguments() -> None:
    pytest.importorskip("torch_mlir", reason=NO_TORCH)
    from programs.torch.programs import DIALECTS, export, lower

    structure = some(TORCH, "mlp", bias="bias")
    text = export(structure, SimpleNamespace(batch=3, features=10, hidden=12, out=9), "f32")
    assert PARAMETERS.search(text)[1].count("!torch.vtensor") == 3
    marks = {"torch": "torch.aten", "linalg": "linalg.generic", "tosa": '"tosa.', "stablehlo": "stablehlo."}
    for dialect in DIALECTS:
        lowered = lower(text, dialect)
        assert marks[dialect] in lowered
        assert "func.func @main(" in lowered
        assert all(shape in lowered.replace(",", "x") for shape in ("9x10", "3x10", "3x9"))
        assert lowered.count("dense_resource") == 0


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_torch_variants_take_no_dialect_twice_and_no_tosa_where_it_would_need_f64(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_programs, "export", lambda structure, sizes, dtype: f"{vars(sizes)} {dtype}")
    monkeypatch.setattr(torch_programs, "lower", lambda text, dialect: f"{text} {dialect}")
    seen: Counter[str] = Counter()
    for activation in ("relu", "gelu", "silu", "tanh", "elu", "mish"):
        result = torch_programs.variants(some(TORCH, "mlp", norm=norm, activation=activation), 0)
        dialects = [module.dialect for module in result]
        assert 2 <= len(result) <= 4
        assert len(set(dialects)) == len(dialects)
        seen.update(dialects)
    assert ("tosa" in seen) == (norm == "rmsnorm")
    assert {"torch", "linalg", "stablehlo"} <= set(seen)


def test_a_loss_over_labels_looks_up_no_axis_of_one() -> None:
    structure = some(jax_families(), "attention", "loss_and_grad", projections="projected")
    from programs.jax.lowering import lower

    text = lower(structure, SimpleNamespace(batch=1, time=5, memory=3, groups=2, head=9), "f32")
    assert "(tensor<5x18xf32>, tensor<5x1x1xi32>, tensor<5x1xf32>) -> tensor<5x18xf32>" in text


def test_torch_embeddings_take_i32_ids_and_have_eight_rows_or_more() -> None:
    family = some(TORCH, "embedding").family
    assert family.dims["vocabulary"][0] >= 8
    assert family.dims["classes"][0] >= 8
    sizes = draw_sizes(some(TORCH, "embedding"), random.Random(0))
    assert family.inputs(None, sizes) == [("ids", sizes.batch, sizes.time)]
