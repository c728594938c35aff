"""Programs that the plug-ins are judged on: single operations and whole modules, none of them among the measured rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kernelcast.collectors.cpu.plans.iree_conv_tiles import tiled_conv_plan
from kernelcast.collectors.cpu.plans.iree_gemm_tiles import tiled_gemm_plan
from kernelcast.collectors.cpu.plans.iree_texts import conv_mlir, matmul_mlir
from kernelcast.features.kernel import KernelSpec

# (name, variant, batch, m, n, k): layers of published models at sizes that no campaign plans, aligned and odd.
_PRODUCTS = (
    ("square-512", "", 1, 512, 512, 512), ("square-640", "", 1, 640, 640, 640), ("bert-qkv-100", "", 1, 100, 2304, 768),
    ("mlp-odd", "", 1, 257, 1000, 333), ("tall", "", 1, 2000, 48, 480), ("wide-8", "", 1, 8, 1920, 640),
    ("vector", "", 1, 1, 1536, 1536), ("linear-t5", "nt", 1, 120, 1024, 512), ("linear-head", "nt", 1, 24, 1000, 1280),
    ("attention-scores", "batched", 6, 160, 160, 80), ("attention-values", "batched", 10, 96, 40, 200),
    ("weight-gradient", "tn", 1, 400, 320, 144),
)  # fmt: skip
# (name, variant, batch, in, out, height, width, kernel, stride), the padding part of the input.
_CONVOLUTIONS = (
    ("resnet-40", "nhwc", 1, 80, 80, 42, 42, 3, 1), ("resnet-20", "nhwc", 1, 160, 160, 22, 22, 3, 1),
    ("stem-3", "nhwc", 1, 3, 48, 130, 130, 3, 2), ("deep-10", "nhwc", 1, 320, 200, 12, 12, 3, 1),
    ("five", "nhwc", 1, 24, 72, 36, 44, 5, 1), ("odd-17", "nhwc", 1, 51, 75, 19, 27, 3, 1),
    ("torch-40", "", 1, 80, 80, 42, 42, 3, 1), ("torch-20", "", 1, 160, 96, 22, 22, 3, 1),
    ("torch-stem", "", 1, 3, 40, 102, 102, 7, 2), ("torch-odd", "", 1, 50, 66, 25, 31, 3, 1),
)  # fmt: skip
_MODELS = ("decoder4", "resnet18", "vision6", "unet3", "language8", "lstm24-unrolled")


@dataclass(frozen=True, slots=True)
class Program:
    """One text to compile and run; `kind` is `gemm`, `conv2d` or `module`, `spec` the kernel of a single operation."""

    name: str
    kind: str
    text: str
    spec: KernelSpec | None = None


def operations() -> Iterator[Program]:
    """Single products and convolutions, as linalg on tensors; the result is a third argument."""
    for name, variant, batch, m, n, k in _PRODUCTS:
        spec = KernelSpec.of("gemm", "fp32", variant=variant, impl="iree", threads=1, batch=batch, m=m, n=n, k=k)
        yield Program(name, "gemm", matmul_mlir(spec), spec)
    for name, variant, batch, cin, cout, height, width, kernel, stride in _CONVOLUTIONS:
        spec = KernelSpec.of("conv2d", "fp32", variant=variant, impl="iree", threads=1, batch=batch, in_channels=cin,
                             out_channels=cout, height=height, width=width, kernel=kernel, stride=stride)  # fmt: skip
        yield Program(name, "conv2d", conv_mlir(spec), spec)


def drawn(count: int, seed: int) -> Iterator[Program]:
    """`count` products and as many convolutions, drawn as campaigns draw them, that nobody has looked at before."""
    for plan, mlir in ((tiled_gemm_plan, matmul_mlir), (tiled_conv_plan, conv_mlir)):
        for i, spec in enumerate(spec for spec in plan(count, 1, seed) if not spec.config):
            yield Program(f"{spec.family}-{seed}-{i}", spec.family, mlir(spec), spec)


def modules() -> Iterator[Program]:
    """Whole modules: models whose weights are arguments, and a perceptron whose weights are constants of the module.

    Raises:
        ImportError: JAX is not installed.
    """
    from programs.module_texts import model_texts

    for module in model_texts():
        name = module.program.removeprefix("jax/model-")
        if name in _MODELS:
            yield Program(name, "module", module.text)
    yield Program("perceptron-constants", "module", _perceptron())


def _perceptron() -> str:
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    widths = (200, 360, 360, 90)
    layers = [rng.standard_normal(pair).astype(np.float32) / 16 for pair in itertools.pairwise(widths)]

    def forward(x: jax.Array) -> jax.Array:
        for weights in layers[:-1]:
            x = jnp.maximum(x @ weights, 0.0)
        return x @ layers[-1]

    return jax.jit(forward).lower(jax.ShapeDtypeStruct((72, widths[0]), jnp.float32)).as_text()
