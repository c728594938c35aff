"""The program of test_real_inductor.py: compiles with the plug-in in torch itself, and prints what it found as JSON.

The GPU's templates are torch's own objects with torch's own configurations, none of which needs a GPU to be made; only their
times are played. What is compiled for the CPU is compiled and timed.
"""

from __future__ import annotations

import json
import types
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kernelcast.plugins.inductor as plugin
import numpy as np
import torch
from kernelcast.plugins.inductor import torch_side
from kernelcast.plugins.inductor.row_store import StoredRows
from torch._inductor import config, ir, select_algorithm
from torch._inductor.kernel import mm as mm_kernels
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import ShapeEnv

CUDA = torch.device("cuda:0")
DEVICE_NAME = torch_side.device_name


class LargerIsFaster:
    """A cost model."""

    def update(self, candidates: Any, measured_s: Any) -> None:
        pass

    def rank(self, candidates: Any, k: int) -> Any:
        return np.argsort(-candidates.knobs["tile_m"] * candidates.knobs["tile_n"], kind="stable")[:k]


class TemplateLost(StoredRows):
    """The store, in which the C++ template had lost clearly."""

    def remembered(self, device: str) -> list[Any]:
        rows = super().remembered(device)
        return [replace(row, latency_s=1.0) if row.spec.impl == "cpp" else row for row in rows]


def buffer(name: str, size: Sequence[int], stride: Sequence[int]) -> Any:
    return ir.InputBuffer(name=name, layout=ir.FixedLayout(CUDA, torch.bfloat16, size, stride))


def template(number: int, config: Any, nodes: Any, out: Any) -> Any:
    """What TritonTemplate.generate returns for a configuration; its benchmark request is only looked at here."""
    request = types.SimpleNamespace(
        num_stages=config.num_stages, num_warps=config.num_warps, module_path="", module_cache_key=str(number)
    )
    info = {"tile_shape": str((config.block_m, config.block_k, config.block_n)), "GROUP_M": 8, "allow_tf32": "False"}
    return select_algorithm.TritonTemplateCaller(
        f"triton_mm_{number}", nodes, out, None, "ACC_TYPE='tl.float32'", request, log_info=info
    )


def gpu() -> dict[str, Any]:
    """Torch's choices for a product on a GPU through both hooks; of those that stay, one does not compile."""
    nodes = (buffer("a", [512, 1024], [1024, 1]), buffer("b", [1024, 768], [1, 1024]))
    out = ir.FixedLayout(CUDA, torch.bfloat16, [512, 768], [768, 1])
    configs = list(CUDAConfigHeuristic().mm_configs)
    templates = [template(number, config, nodes, out) for number, config in enumerate(configs)]
    selector = select_algorithm.get_algorithm_selector_cache()
    remaining = [mm_kernels.aten_mm.bind(list(nodes), out), *templates]
    for function in selector.preprocessing_fns:
        remaining = function(remaining)
    remaining[2].failed = True
    selector.benchmark = lambda choices, *_, **__: {item: 0.01 * (at + 1) for at, item in enumerate(choices)}
    try:
        selector.do_autotuning("mm", list(nodes), out, None, "key", remaining, dict)
    finally:
        del selector.benchmark
    areas = {item.name: config.block_m * config.block_n for item, config in zip(templates, configs, strict=True)}
    return {
        "offered": len(templates),
        "kept": [item.name for item in remaining],
        "largest": sorted(areas.values())[-4:],
        "kept areas": sorted(areas[item.name] for item in remaining[1:]),
        "report": str(plugin.report()),
    }


def compile_bmm() -> bool:
    """A batched product compiled from nothing; whether its result is right."""
    torch._dynamo.reset()
    x, y = torch.randn(4, 48, 96), torch.randn(4, 96, 40)
    with fresh_cache(), torch.no_grad():
        result = torch.compile(lambda x, y: torch.bmm(x, y))(x, y)
    return bool(torch.allclose(result, torch.bmm(x, y), atol=1e-3))


def cpu(**install: Any) -> dict[str, Any]:
    """A compilation for this machine's CPU, and what was counted."""
    with plugin.install(**install):
        right, counts = compile_bmm(), plugin.report()
    return {"right": right, **{name: getattr(counts, name) for name in counts.__slots__}}


def main() -> None:
    warnings.simplefilter("ignore")
    selector = select_algorithm.get_algorithm_selector_cache()
    before = [list(selector.preprocessing_fns), list(selector.feedback_saver_fns)]
    torch_side.device_name = lambda device_type, index: (
        ("nvidia-h200-sxm-141gb", "NVIDIA H200") if device_type == "cuda" else DEVICE_NAME(device_type, index)
    )
    graph = types.SimpleNamespace(sizevars=SizeVarAllocator(ShapeEnv()))
    debug = types.SimpleNamespace(log_autotuning_results=lambda *_: None)
    played = plugin.install(top_k=4, model=LargerIsFaster())
    with played, V.set_graph_handler(graph), V.set_debug_handler(debug), fresh_cache():
        result: dict[str, Any] = {"gpu": gpu()}
    config.max_autotune, config.max_autotune_gemm_backends = True, "ATEN,CPP"
    config.cpp_cache_precompile_headers, config.compile_threads = False, 1
    torch.set_num_threads(1)
    result["device"] = DEVICE_NAME("cpu", None)[0]
    result["first"] = cpu()
    result["remembered"] = len(StoredRows().remembered(result["device"]))
    result["second"] = cpu(store=TemplateLost())
    result["as before"] = before == [selector.preprocessing_fns, selector.feedback_saver_fns]
    print("FOUND" + json.dumps(result))


if __name__ == "__main__":
    main()
