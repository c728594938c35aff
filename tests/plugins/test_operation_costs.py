"""Costs of operations, asked all in one go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernelcast.features.kernel import KernelSpec
from kernelcast.models.tuning.flat_model import read_model, write_model
from kernelcast.plugins.cost_model import SHIPPED
from kernelcast.plugins.operation_costs import OperationCosts

CPU = "amd-epyc-9005-vm-2c"


def test_an_operation_without_an_answer_costs_the_others_nothing(tmp_path: Path) -> None:
    shipped = read_model(SHIPPED / "op-gemm.kcm")
    no_answer = {(CPU, "bf16"): tuple(5e-324 if fact != "is_cpu" else 1.0 for fact in shipped.facts)}
    write_model(replace(shipped, table={**shipped.table, **no_answer}), tmp_path / "op-gemm.kcm")
    sound = [KernelSpec.of("gemm", "fp32", m=m, n=64, k=64) for m in (64, 128)]
    odd = KernelSpec.of("gemm", "bf16", m=64, n=64, k=64)
    first, second, third = OperationCosts(CPU, models=tmp_path).of([sound[0], odd, sound[1]])
    assert second == "the model of op-gemm has no time for these sizes; they may be too large"
    assert [first, third] == OperationCosts(CPU).of(sound)
