import ast
import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from programs.triton.case import TritonCase, case_of
from programs.triton.plan import targets_of, triton_plan
from programs.triton.tables import STRUCTURES


@pytest.fixture(scope="module")
def plan():
    return triton_plan(0)


def test_there_are_many_programs_and_each_case_is_planned_once(plan):
    assert len({case.program for case in plan}) >= 400
    assert len({case.case_id for case in plan}) == len(plan) >= 1900
    families = Counter(case.program.split("/")[0] for case in plan)
    assert set(families) == {structure.name for structure in STRUCTURES} | {"pointwise"}
    assert families.most_common(1)[0][1] < 0.4 * len(plan)


def test_equal_seeds_give_equal_plans_and_others_other_programs(plan):
    again, other = triton_plan(0), triton_plan(1)
    assert again == plan
    assert {case.case_id for case in other} != {case.case_id for case in plan}


def test_a_program_has_several_configurations_with_different_options(plan):
    by_program = {}
    for case in plan:
        by_program.setdefault(case.program, []).append(case)
    assert all(case.program.count("/") <= 1 for case in plan)
    assert sum(len(cases) > 1 for cases in by_program.values()) > 0.9 * len(by_program)
    assert {case.num_warps for case in plan} == {1, 2, 4, 8, 16}
    assert {case.num_stages for case in plan} == {1, 2, 3, 4, 5}


def test_operands_left_out_are_constants_and_no_arguments(plan):
    for case in plan:
        named = [name for name, _ in case.arguments] + [name for name, _ in case.constants]
        assert len(named) == len(set(named))
        assert set(case.aligned) <= {name for name, _ in case.arguments}
        assert ("POINT", "point") not in case.constants or "def point(" in case.source


def test_a_case_survives_json(plan):
    for case in plan[:50]:
        again = case_of(json.loads(json.dumps(asdict(case))))
        assert again == case
        assert again.case_id == case.case_id
        assert replace(case, num_warps=32).case_id != case.case_id


def test_generated_source_is_python_that_computes_from_its_inputs(plan):
    sources = {case.source for case in plan if case.kernel == "generated.pointwise"}
    assert len(sources) >= 140
    counts = set()
    for source in sources:
        function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        loaded = [name.arg for name in function.args.args if name.arg.startswith("x")]
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert len({name.replace("x", "a") for name in loaded} & used) >= max(1, len(loaded) - 1)
        counts.add(len(loaded))
    assert counts == {1, 2, 3, 4, 5, 6}


def test_what_only_hopper_has_is_not_compiled_for_ampere(plan):
    targets = Counter(target for number, case in enumerate(plan) for target in targets_of(case, number))
    assert targets["sm_90"] == len(plan)
    assert 0.25 * len(plan) < targets["sm_80"] < 0.4 * len(plan)
    eight_bit = next(case for case in plan if ("a", "*fp8e4nv") in case.arguments)
    assert targets_of(eight_bit, 0) == ("sm_90",)


SOURCE = """import triton
import triton.language as tl


@triton.jit
def point(x, y, z):
    return tl.maximum(x, 0.0) * 2.0
"""
CASE = TritonCase(
    "softmax/plain-point", "rows.softmax", SOURCE,
    (("x", "*fp16"), ("out", "*fp32"), ("n", "i32"), ("stride", "i32"), ("scale", "fp32")),
    (("BLOCK", 256), ("CAUSAL", False), ("LOG", False), ("POINT", "point"), ("bias", None)), ("x", "out"), 2, 1,
)  # fmt: skip


def test_a_program_becomes_triton_ir(tmp_path):
    pytest.importorskip("triton", reason="needs triton to lower")
    from programs.triton.lowering import ttir_of

    text = ttir_of(CASE, 90, tmp_path)
    assert "tt.func public @softmax" in text
    assert "tensor<256xf32>" in text
    assert "tt.divisibility = 16" in text
    assert "loc(" not in text
    assert "maxnumf" in text


def test_a_program_that_triton_refuses_is_an_error(tmp_path):
    triton = pytest.importorskip("triton", reason="needs triton to lower")
    from programs.triton.lowering import ttir_of

    broken = replace(CASE, constants=(("BLOCK", 100), *CASE.constants[1:]))
    with pytest.raises(triton.compiler.errors.CompilationError):
        ttir_of(broken, 90, tmp_path)
