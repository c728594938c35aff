"""Programs that are measured: as many as asked for, all different, the same for a seed, balanced, and readable."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from types import SimpleNamespace

import pytest
from kernelcast.datasets.records.mlir_modules import ModuleText
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.understanding import no_native_parser, read, understand
from programs import module_texts as programs
from programs.described import programs as described_programs
from programs.families import Family, all_structures, draw_sizes, structures
from programs.generated import programs as generated_programs
from programs.generated.programs import modules, variants
from programs.generated.random_graphs import draw_graph
from programs.module_texts import module_texts


def generated(count: int, seed: int = 0) -> list[ModuleText]:
    return list(module_texts(count, seed=seed, sources=("generated",)))


def test_modules_are_as_many_as_asked_for_and_all_different() -> None:
    result = generated(120)
    assert len({module.module_id for module in result}) == len(result) == 120
    assert {module.source for module in result} == {"generated"}
    assert set(Counter(module.program for module in result[:-4]).values()) <= {2, 3, 4}
    assert generated(0) == []


def test_a_seed_names_its_modules_and_a_beginning_is_the_same_however_many_follow() -> None:
    assert generated(40) == generated(60)[:40]
    first, other = generated(30), generated(30, seed=1)
    assert not {module.module_id for module in first} & {module.module_id for module in other}
    assert not {module.program for module in first} & {module.program for module in other}


def test_every_beginning_is_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(name: str, size: int):
        return lambda seed: (
            [ModuleText(f"{name}{n}{v}", f"{name}/{n}", name, name) for v in range(size)] for n in itertools.count()
        )

    monkeypatch.setattr(
        programs,
        "_SOURCES",
        {"jax": source("jax", 3), "torch": source("torch", 3), "generated": source("generated", 2)},
    )
    result = [module.source for module in module_texts(1000)]
    for length in (50, 200, 1000):
        share = {name: count / length for name, count in Counter(result[:length]).items()}
        assert share == pytest.approx({name: programs.SHARES[name] for name in share}, abs=4 / length + 0.005)


def test_a_source_that_runs_out_leaves_its_share_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(seed: int):
        yield [ModuleText("a", "jax/a", "jax", "stablehlo"), ModuleText("a", "jax/a", "jax", "stablehlo")]

    monkeypatch.setattr(programs, "_SOURCES", {"jax": short, "generated": modules})
    assert Counter(m.source for m in module_texts(30, sources=("jax", "generated"))) == {"jax": 1, "generated": 29}
    with pytest.raises(SpecError, match="only 1 modules of jax"):
        list(module_texts(2, sources=("jax",)))


@pytest.mark.parametrize(
    ("count", "sources", "words"), [(5, ("jx",), "'jx'.*jax, torch, generated"), (-1, ("jax",), "negative")]
)
def test_what_does_not_exist_is_refused_before_anything_is_made(
    count: int, sources: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        module_texts(count, sources=sources)


def test_one_program_is_one_structure_in_several_sizes() -> None:
    graph = draw_graph(6)
    assert draw_graph(6) == graph
    by_dialect: dict[str, set[tuple[str, ...]]] = {}
    for module in variants(6):
        ops = tuple(re.findall(r"= (\w+\.\w+)", module.text))
        by_dialect.setdefault(module.dialect, set()).add(ops)
        assert module.program == "generated/fused-000006"
    assert len(by_dialect["stablehlo"]) == 1
    assert set(by_dialect) == {"stablehlo", "linalg"}


def test_graphs_grow_within_bounds_and_every_input_is_read() -> None:
    lengths, integers = [], 0
    for number in range(150):
        graph = draw_graph(number)
        made = [value for value in graph.values if value.op != "input"]
        lengths.append(len(made))
        integers += graph.integer
        assert 1 <= len(made) <= 48
        assert graph.outputs
        assert all(len(value.shape) <= 4 for value in graph.values)
        assert graph.integer or all(value.bound <= 200 for n, value in enumerate(graph.values) if n in graph.outputs)
    assert min(lengths) == 1
    assert max(lengths) > 30
    assert 0 < integers < 20


def test_generated_text_is_read_by_iree_and_has_one_public_function() -> None:
    ir = pytest.importorskip("iree.compiler.ir", reason="needs IREE's parser")
    dtypes: Counter[str] = Counter()
    for module in generated(100):
        with ir.Context():
            read = ir.Module.parse(module.text)
            assert read.operation.verify()
            assert [str(op.attributes["sym_name"]) for op in read.body.operations] == ['"main"']
        assert "?" not in module.text
        dtypes.update(set(re.findall(r"x([a-z]+\d+)>", module.text)) - {"i1"})
    assert dtypes["f32"] > 0.75 * dtypes.total()
    assert {"f32", "bf16", "f16"} < set(dtypes) <= {"f32", "bf16", "f16", "f64", "i32"}


def test_generated_work_covers_orders_of_magnitude() -> None:
    rng = random.Random(0)
    works = sorted(
        graph.work(draw) for graph in map(draw_graph, range(80)) for draw in [generated_programs.draw_sizes(graph, rng)]
    )
    assert works[0] < 1e5
    assert works[-1] > 1e7
    assert works[-1] < 2e9


FAMILY = Family(
    "toy", lambda p, c, s: None, lambda c, s: [], {"depth": (1, 2), "skip": ("", "", "skip")}, {"rows": (1, 500),
    "columns": (3, 70)},
    lambda c, s: float(s.rows * s.columns * 1000), ("forward", "grad"), valid=lambda c: not (c.skip and c.depth == 1),
)  # fmt: skip


def test_structures_of_a_family_are_each_drawn_once_and_named_by_their_choices() -> None:
    names = [structure.name for structure in structures(FAMILY, 0)]
    kinds = ("toy-depth1", "toy-depth2", "toy-depth2-skip")
    assert sorted(names) == sorted(f"{kind}/{mode}" for kind in kinds for mode in ("forward", "grad"))
    other = Family("other", FAMILY.forward, FAMILY.inputs, {}, {}, FAMILY.work)
    assert [s.family.name for s in all_structures((FAMILY, other), 0)][:3] == ["toy", "other", "toy"]
    assert Counter(s.family.name for s in all_structures((FAMILY, other), 0)) == {"toy": 6, "other": 1}


def test_sizes_lie_in_their_range_and_spread_over_work() -> None:
    rng, structure = random.Random(1), FAMILY.structure(0)
    drawn = [draw_sizes(structure, rng) for _ in range(300)]
    assert all(1 <= s.rows <= 500 and 3 <= s.columns <= 70 for s in drawn)
    works = [FAMILY.work(SimpleNamespace(), s) for s in drawn]
    assert min(works) < 1e4
    assert max(works) > 2e7
    assert any(s.columns % 8 for s in drawn)


def test_described_programs_are_many_named_by_author_and_read_without_a_gap() -> None:
    groups = list(described_programs.modules(0))
    authors = Counter(group[0].program.partition("/")[0] for group in groups)
    assert authors["operations"] > 700
    assert sum(count for author, count in authors.items() if author != "operations") >= 150
    assert len({module.module_id for group in groups for module in group}) == sum(map(len, groups))
    assert all({module.program for module in group} == {group[0].program} for group in groups)
    assert [group[0] for group in groups[:20]] == [
        group[0] for group in itertools.islice(described_programs.modules(0), 20)
    ]
    for group in groups[::15]:
        program = understand(read(group[0].text, native=no_native_parser))
        assert not program.not_understood, group[0].program
        assert program.unread_share == 0, group[0].program
