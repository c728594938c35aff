"""Steps of decoder layers in plain PyTorch, random weights: prompts and decoding at many batches and contexts.

    python benchmarks/decoder_steps.py --measure steps.parquet                       on a machine with a GPU, some four minutes
    .venv/bin/python benchmarks/decoder_steps.py --judge steps.parquet               anywhere

Measuring needs torch and kernelcast's collectors alone. A step is captured as a CUDA graph, so its time is the GPU's; energy is
that of the graph replayed for a second or two. Layers have weights of their own, together several times the last-level
cache. Judging runs the same code on fake tensors.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

MOST_CACHE_B = 40e9
"""Most bytes of keys and values of a step: filling more takes longer than measuring it."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of the layers that run.

    Attributes:
        layers: How many.
        hidden: Width.
        inter: Width of the MLP, or of an expert.
        heads: Query heads.
        kv_heads: Key heads.
        experts: Experts of a layer; 0 for a dense MLP.
        topk: Experts of a token.
        vocabulary: Rows of the vocabulary head; 0 for layers alone.
        head_dim: Size of a head.
    """

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    experts: int = 0
    topk: int = 0
    vocabulary: int = 0
    head_dim: int = 128


DECODERS = {
    "llama-3.1-8b, 4 layers": Decoder(4, 4096, 14336, 32, 8),
    "llama-3.1-70b, 2 layers": Decoder(2, 8192, 28672, 64, 8),
    "qwen3-30b-a3b, 4 layers": Decoder(4, 2048, 768, 32, 4, experts=128, topk=8),
    "llama-3.1-8b": Decoder(32, 4096, 14336, 32, 8, vocabulary=128256),
}
"""Sizes of the models' own `config.json`."""

DECODE = {
    "llama-3.1-8b, 4 layers": ((1, 4, 16, 64, 256), (128, 1024, 4096, 32768)),
    "llama-3.1-70b, 2 layers": ((1, 8, 32, 128, 256), (512, 4096, 16384)),
    "qwen3-30b-a3b, 4 layers": ((1, 8, 32, 128, 256), (512, 4096)),
    "llama-3.1-8b": ((1, 16, 64), (1024,)),
}
"""Batches and contexts of decoding steps."""

PREFILL = {
    "llama-3.1-8b, 4 layers": ((1, 128), (1, 512), (1, 2048), (1, 8192), (1, 32768), (8, 512), (8, 2048), (32, 512),
                               (256, 128)),
    "llama-3.1-70b, 2 layers": ((1, 128), (1, 1024), (1, 4096), (1, 16384), (8, 1024), (128, 128)),
    "qwen3-30b-a3b, 4 layers": ((1, 128), (1, 1024), (1, 4096), (1, 16384), (8, 1024), (128, 128)),
    "llama-3.1-8b": ((1, 2048), (8, 512)),
}  # fmt: skip
"""Sequences and tokens of prompts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `context` tokens are in the cache once it has run, `tokens` of them are new, of each of `batch` sequences."""

    model: str
    phase: str
    batch: int
    tokens: int
    context: int


def steps() -> Iterator[Step]:
    """All steps, prompts and decoding in turn."""
    for model, sizes in DECODERS.items():
        of_prompts = (Step(model, "prefill", batch, tokens, tokens) for batch, tokens in PREFILL[model])
        of_tokens = (Step(model, "decode", batch, 1, context) for batch, context in itertools.product(*DECODE[model]))
        for step in itertools.chain(of_prompts, of_tokens):
            if cache_b(sizes, step) <= MOST_CACHE_B:
                yield step


def cache_b(sizes: Decoder, step: Step) -> float:
    """Bytes of keys and values, bf16."""
    return 4.0 * sizes.layers * step.batch * step.context * sizes.kv_heads * sizes.head_dim


def runnable(sizes: Decoder, step: Step, device: str) -> Callable[[], torch.Tensor]:
    """The step as a function of nothing, its weights and caches made."""
    dtype, width = torch.bfloat16, sizes.hidden
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim

    def weights(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype).normal_(std=width**-0.5)

    def layer() -> dict[str, torch.Tensor]:
        made = {"qkv": weights(query + 2 * key, width), "out": weights(width, query),
                "norm1": torch.ones(width, device=device, dtype=dtype), "norm2": torch.ones(width, device=device, dtype=dtype),
                "cache": weights(2, step.batch, sizes.kv_heads, step.context, sizes.head_dim)}  # fmt: skip
        if sizes.experts:
            return made | {"router": weights(sizes.experts, width), "up": weights(sizes.experts, width, 2 * sizes.inter),
                           "down": weights(sizes.experts, sizes.inter, width)}  # fmt: skip
        return made | {"up": weights(2 * sizes.inter, width), "down": weights(width, sizes.inter)}

    layers = [layer() for _ in range(sizes.layers)]
    head = weights(sizes.vocabulary, width) if sizes.vocabulary else None
    x = torch.empty(step.batch, step.tokens, width, device=device, dtype=dtype).normal_()
    places = torch.arange(step.context - step.tokens, step.context, device=device)
    angles = places[:, None] * 500000.0 ** (-torch.arange(0, sizes.head_dim, 2, device=device) / sizes.head_dim)
    cosine, sine = (torch.cat((part, part), -1).to(dtype) for part in (angles.cos(), angles.sin()))

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.chunk(2, -1)
        return heads * cosine + torch.cat((-second, first), -1) * sine

    def attended(part: dict[str, torch.Tensor], normed: torch.Tensor) -> torch.Tensor:
        heads = F.linear(normed, part["qkv"]).view(step.batch, step.tokens, -1, sizes.head_dim).transpose(1, 2)
        queries, keys, values = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], 1)
        cached = part["cache"]
        cached[0].index_copy_(2, places, rotated(keys))
        cached[1].index_copy_(2, places, values)
        result = F.scaled_dot_product_attention(
            rotated(queries), cached[0], cached[1], is_causal=step.tokens > 1, enable_gqa=True
        )
        return F.linear(result.transpose(1, 2).reshape(step.batch, step.tokens, -1), part["out"])

    def fed_forward(part: dict[str, torch.Tensor], normed: torch.Tensor) -> torch.Tensor:
        if sizes.experts:
            return experts(part, normed.flatten(0, 1)).view(normed.shape)
        gate, up = F.linear(normed, part["up"]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, part["down"])

    def experts(part: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """Copies of tokens sorted by expert, and one grouped product for all experts; nothing is read back to the host."""
        shares, chosen = F.linear(tokens, part["router"]).softmax(-1).topk(sizes.topk, -1)
        order = chosen.flatten().argsort()
        rows = order // sizes.topk
        ends = torch.searchsorted(chosen.flatten()[order], torch.arange(sizes.experts, device=device), right=True).to(
            torch.int32
        )
        gate, up = torch._grouped_mm(tokens[rows], part["up"], offs=ends).chunk(2, -1)
        result = torch._grouped_mm(F.silu(gate) * up, part["down"], offs=ends) * shares.flatten()[order, None]
        return torch.zeros_like(tokens).index_add_(0, rows, result)

    def run() -> torch.Tensor:
        state = x
        for part in layers:
            state = state + attended(part, F.rms_norm(state, (width,), part["norm1"], 1e-5))
            state = state + fed_forward(part, F.rms_norm(state, (width,), part["norm2"], 1e-5))
        return state if head is None else F.linear(state[:, -1], head)

    return run


def measure(path: Path, seconds: float) -> None:
    """Measure every step on GPU 0 and write the rows after each; what there is no time for is left out."""
    from kernelcast.collectors.gpu.measure.timing import HOT, sample
    from kernelcast.collectors.gpu.measure.torch_gpu import TorchGpu, enter_inference
    from kernelcast.collectors.meters.board import EnergyRule
    from kernelcast.collectors.meters.find import find_gpu_meter, gpu_state, open_gpu_reader

    until = time.monotonic() + seconds
    enter_inference(torch)
    gpu, properties = TorchGpu(torch), torch.cuda.get_device_properties(0)
    uuid = f"GPU-{properties.uuid}"
    meter, why = find_gpu_meter(rule=EnergyRule(0.5, 0.5), uuid=uuid)
    reader = open_gpu_reader(uuid=uuid)
    print(properties.name, why, flush=True)
    rows: list[dict[str, Any]] = []
    facts = {"gpu": properties.name, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for step in steps():
        if time.monotonic() > until:
            print(f"the {seconds:g} s are over", flush=True)
            break
        row: dict[str, Any] = asdict(step) | facts
        try:
            torch.cuda.reset_peak_memory_stats()
            run = runnable(DECODERS[step.model], step, "cuda")
            states: list[Any] = []
            taken = sample(
                gpu, lambda n, run=run: [run] * n, HOT, in_flight=lambda seen=states: seen.append(gpu_state(reader))
            )
            calls = max(1, round(10e-3 / taken.median_s))
            row |= {"latency_s": taken.median_s, "samples": len(taken.samples_s), "noisy": taken.noisy,
                    "peak_memory_b": torch.cuda.max_memory_allocated(), "sm_clock_hz": states[0].get("sm_clock_hz"),
                    "power_limit_w": states[0].get("power_limit_w")}  # fmt: skip
            energy = meter.measure(gpu.steady(gpu.graph([run] * calls), calls), windows=1)
            if energy is not None:
                row |= {"energy_j": energy.energy_j, "power_w": energy.power_w, "idle_power_w": energy.idle_power_w,
                        "steady_latency_s": energy.window_s / energy.calls}  # fmt: skip
        except Exception as error:  # noqa: BLE001  a step that cannot run is a row that says so
            row["message"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        run, taken = None, None  # type: ignore[assignment]
        torch.cuda.empty_cache()
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
        print(step, {name: row.get(name) for name in ("latency_s", "power_w", "message")}, flush=True)


SCHEMA = pa.schema([
    *((name, pa.string()) for name in ("model", "phase", "gpu", "torch", "cuda", "message")),
    *((name, pa.int64()) for name in ("batch", "tokens", "context", "samples")),
    *((name, pa.float64()) for name in (
        "latency_s", "steady_latency_s", "energy_j", "power_w", "idle_power_w", "power_limit_w", "sm_clock_hz", "peak_memory_b",
    )),
    ("noisy", pa.bool_()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured step with its estimates, seconds and joules; None where there is none."""

    step: Step
    latency_s: float
    energy_j: float | None
    kernels_s: float
    bound_s: float
    estimated_j: float | None
    inside: bool
    by_operator: dict[str, float]


def judge(path: Path, device: str, model: Path | None) -> list[Judged]:
    """Estimates of all measured steps: the sum of their kernels, since a graph has no host."""
    from kernelcast.models.family_model.artifact import default_model_dir
    from kernelcast.models.predict.predictor import load_predictor
    from kernelcast.torch import estimate

    predictor = load_predictor(model or default_model_dir())
    judged = []
    for row in pq.read_table(path).to_pylist():
        if row["latency_s"] is None:
            print(f"{row['model']} {row['phase']}: {row['message']}")
            continue
        step = Step(*(row[name] for name in ("model", "phase", "batch", "tokens", "context")))
        run = runnable(DECODERS[step.model], step, "meta")
        with torch.no_grad(), estimate(device, model=predictor) as estimated:
            run()
        (total,) = estimated.totals.values()
        assert total.latency_s is not None and total.bound_s is not None, total.unanswered  # noqa: PT018
        kernels_s = total.kernels_s
        scale = kernels_s / total.latency_s.value
        power_w = None if total.energy_j is None else total.energy_j.value / total.latency_s.value
        judged.append(Judged(
            step, row["latency_s"], row["energy_j"], kernels_s, total.bound_s, None if power_w is None else power_w * kernels_s,
            total.latency_s.lower * scale <= row["latency_s"] <= total.latency_s.upper * scale,
            {part.name: part.latency_s for part in total.by_operator[:6]},
        ))  # fmt: skip
    return judged


def tell(judged: list[Judged], *, show: bool) -> None:
    """Print errors by model and phase, beside the roofline; `show` prints every step too."""
    for one in judged if show else ():
        parts = ", ".join(f"{name} {1e3 * value:.3g}" for name, value in one.by_operator.items())
        name = f"{one.step.model:24s} {one.step.phase:8s} {one.step.batch:4d} x {one.step.context:6d}"
        print(f"{name} {1e3 * one.latency_s:9.3f} ms {one.kernels_s / one.latency_s - 1:+7.1%}  {parts}")
    print(f"{'steps':34s} {'n':>3s} {'latency, %':>26s} {'inside':>7s} {'roofline, %':>22s} {'energy, %':>26s}")
    for model, phase in [("", ""), *((model, phase) for model in DECODERS for phase in ("prefill", "decode"))]:
        part = [one for one in judged if model in ("", one.step.model) and phase in ("", one.step.phase)]
        if not part:
            continue
        with_energy = [(one.estimated_j, one.energy_j) for one in part if one.energy_j and one.estimated_j]
        errors, roofline = ([(getattr(one, name), one.latency_s) for one in part] for name in ("kernels_s", "bound_s"))
        print(
            f"{f'{model} {phase}'.strip() or 'all':34s} {len(part):3d} {_words(errors):>26s} "
            f"{np.mean([one.inside for one in part]):7.0%} {_words(roofline):>22s} {_words(with_energy):>26s}"
        )


def _words(pairs: list[tuple[float, float]]) -> str:
    """Mean and median error, and the share within 10 %, of (estimated, measured)."""
    if not pairs:
        return "none"
    errors = np.array([abs(estimated / measured - 1) for estimated, measured in pairs])
    return f"{100 * errors.mean():.1f} / {100 * np.median(errors):.1f} / {np.mean(errors <= 0.1):.0%}"


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument(
        "--measure", type=Path, metavar="FILE", help="measure on this machine's GPU and write the rows there"
    )
    ways.add_argument("--judge", type=Path, metavar="FILE", help="judge estimates by the rows of a file")
    parser.add_argument("--seconds", type=float, default=270.0, help="begin no step after so many seconds")
    parser.add_argument("--device", default="nvidia-h200-sxm-141gb", help="what the rows were measured on")
    parser.add_argument("--model", type=Path, help="folder of the model; default: the one that ships")
    parser.add_argument("--show", action="store_true", help="print every step")
    args = parser.parse_args()
    if args.measure is not None:
        measure(args.measure, args.seconds)
    else:
        tell(judge(args.judge, args.device, args.model), show=args.show)


if __name__ == "__main__":
    main()
