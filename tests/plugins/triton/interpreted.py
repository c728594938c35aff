"""Tune two Triton kernels in Triton's interpreter, pruned: scenarios as JSON on stdin, what happened on stdout.

A program of its own, because TRITON_INTERPRET must be set before kernels are defined.
"""

import json
import sys
import warnings
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
import triton
from kernelcast.plugins.cost_model import CostModel
from kernelcast.plugins.triton import FLASH_ATTENTION, GEMM, prune
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def patched(tensor, scope):
    """Triton 3.6 calls int() on arrays of shape (1,) for loop bounds, which numpy 2.4 refuses."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = patched


def loaded(name):
    """A file of benchmarks/ as a module."""
    spec = spec_from_file_location(name, Path(__file__).parents[3] / "benchmarks" / f"{name}.py")
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


bench = loaded("plugins_triton")
kernels = bench.problems_file()


class Counting:
    """A cost model that notes how many configurations each of its batches had."""

    def __init__(self, model):
        self.model, self.batches = model, []

    def predict(self, candidates):
        self.batches.append(len(candidates))
        return self.model.predict(candidates)


def config(row):
    row = dict(row)
    launch = {name: row.pop(name) for name in ("num_warps", "num_stages", "num_ctas", "maxnreg") if name in row}
    return triton.Config(row, **launch)


def tuned(scenario, kernel, key, maps):
    """The kernel under Triton's autotuner, the configurations it times, and the model's batches."""
    calls, counting = [], None
    model = scenario["model"]
    if scenario.get("counted"):
        kind = maps.kind
        model = counting = Counting(CostModel.load(kind, scenario["device"], model))
    pruner = prune(scenario["top_k"], scenario.get("device"), maps, model)

    def do_bench(call, quantiles):
        call()
        calls.append(1)
        return [float(len(calls))] * 3

    configs = [config(row) for row in scenario["configs"]]
    decorate = triton.autotune(configs, key, prune_configs_by={"early_config_prune": pruner}, do_bench=do_bench)
    return decorate(kernel), counting, pruner


def product(scenario):
    m, n, k = 33, 40, 50
    torch.manual_seed(0)
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    kernel, counting, pruner = tuned(scenario, kernels.matmul, ["M", "N", "K"], GEMM)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)

    for _ in range(2):
        kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    return kernel, counting, pruner, float((c - a @ b).abs().max())


def attention(scenario):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 48, 16) for _ in range(3))
    out = torch.empty_like(q)
    kernel, counting, pruner = tuned(scenario, kernels.attend, ["N_CTX", "HEAD_DIM"], FLASH_ATTENTION)

    def grid(meta):
        return (triton.cdiv(48, meta["BLOCK_M"]), 2)

    kernel[grid](0.25, 1, 2, q, k, v, Out=out, N_CTX=48, HEAD_DIM=16, STAGE=3)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return kernel, counting, pruner, float((out - wanted).abs().max())


def measured(scenario):
    """The benchmark on two small problems, with a timer for which every call is slower than the one before."""
    query = [kernels.product(33, 40, 50, "float16", device="cpu"), kernels.attention(1, 2, 48, 16, device="cpu")]
    query = [replace(problem, configs=problem.configs[::7]) for problem in query]

    calls = []

    def timer(call):
        call()
        calls.append(1)
        return 1e-6 * len(calls)

    return bench.measure(
        query, 2, timer=timer, device=scenario["device"], folder=Path(scenario["model"]).parent, tuned_shapes=1
    )


def happened(scenario):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = product if scenario["kernel"] == "gemm" else attention
        kernel, counting, pruner, error = run(scenario)
    return {
        "timed": [{**result.kwargs, "num_warps": result.num_warps} for result in kernel.configs_timings],
        "best": dict(kernel.best_config.kwargs),
        "batches": None if counting is None else counting.batches,
        "error": error,
        "note": pruner.note,
        "said": [str(item.message) for item in caught if issubclass(item.category, UserWarning)],
    }


if __name__ == "__main__":
    ways = {"benchmark": measured}
    result = [ways.get(scenario["kernel"], happened)(scenario) for scenario in json.load(sys.stdin)]
    # The benchmark prints a line per shape.
    print("\n" + json.dumps(result))
