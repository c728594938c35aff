"""Whole programs by the public collection that describes them: each an idea, the sizes it comes in, and its steps.

The descriptions are those of KernelBench's levels (operations fused after a convolution or a product, and small networks), of
the examples of JAX's libraries (flax, haiku, jraph), and of torch-mlir's end-to-end models, written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from .recurrent import gru, linear_recurrence, lstm, scanned
from .steps import (
    ACTIVATIONS,
    Step,
    attention,
    batchnorm,
    branches,
    by,
    chain,
    conv,
    dense,
    everywhere,
    flat,
    gated,
    groupnorm,
    instancenorm,
    layernorm,
    logsoftmax,
    logsumexp,
    mlp,
    over,
    per_channel,
    pool,
    relu,
    residual,
    rmsnorm,
    softmax,
    squeeze,
    swiglu,
)

Idea = tuple[Step, Sequence[tuple[int, ...]]]
"""Steps, and the sizes of the array that they are given."""

_IMAGES = ((4, 16, 30, 30), (2, 32, 17, 19), (1, 64, 14, 14))
_VOLUMES = ((2, 8, 12, 12, 12), (1, 16, 7, 9, 11))
_SIGNALS = ((4, 32, 500), (1, 64, 1023))
_ROWS = ((128, 512), (37, 1001), (512, 96))
_SEQUENCES = ((1, 128, 256), (2, 77, 192))
_act = ACTIVATIONS

_AFTER_CONV: Mapping[str, tuple[Step, ...]] = {
    "relu-bias": (_act["relu"], per_channel("add")),
    "mish-mish": (_act["mish"], _act["mish"]),
    "min-tanh": (over("minimum"), _act["tanh"]),
    "scale-sigmoid-groupnorm": (by("multiply", 2.0), _act["sigmoid"], groupnorm),
    "subtract-hardswish-maxpool-mish": (by("subtract", 0.5), _act["hardswish"], pool("max"), _act["mish"]),
    "groupnorm-tanh-hardswish-logsumexp": (groupnorm, _act["tanh"], _act["hardswish"], logsumexp),
    "avgpool-sigmoid-sum": (pool("avg"), _act["sigmoid"], over("add")),
    "instancenorm-divide": (instancenorm, by("divide", 2.0)),
    "activation-batchnorm": (_act["softplus"], batchnorm),
    "tanh-scale-bias-max": (_act["tanh"], by("multiply", 2.0), per_channel("add"), pool("max")),
    "batchnorm-scale": (batchnorm, by("multiply", 2.0)),
    "gelu-globalavgpool": (_act["gelu"], everywhere),
    "subtract-tanh-subtract-avgpool": (by("subtract", 0.5), _act["tanh"], by("subtract", 0.2), pool("avg")),
    "softmax-maxpool": (softmax(1), pool("max")),
    "leaky-sum-clamp-gelu": (_act["leaky"], over("add"), _act["hardtanh"], _act["gelu"]),
    "logsumexp-sigmoid": (logsumexp, _act["sigmoid"]),
    "elu-residual": (residual(_act["elu"]), per_channel("multiply")),
}
_CONVOLUTIONS: Mapping[str, tuple[Step, Sequence[tuple[int, ...]]]] = {
    "conv2d": (conv(32), _IMAGES),
    "convtranspose2d": (conv(24, 3, padding=2, upsample=2), _IMAGES),
    "conv1d": (conv(48, 5, padding=2), _SIGNALS),
    "conv3d": (conv(16), _VOLUMES),
    "depthwise": (chain(conv(0, groups=0), conv(48, 1)), _IMAGES),
}
_AFTER_GEMM: Mapping[str, tuple[Step, ...]] = {
    "multiply-leaky": (by("multiply", 2.0), _act["leaky"]),
    "swish-scale": (_act["swish"], by("multiply", 2.0)),
    "sigmoid-sum": (_act["sigmoid"], over("add")),
    "groupnorm-hardtanh": (groupnorm, _act["hardtanh"]),
    "subtract-multiply-relu": (by("subtract", 2.0), by("multiply", 1.5), _act["relu"]),
    "gelu-softmax": (_act["gelu"], softmax(-1)),
    "divide-gelu": (by("divide", 10.0), _act["gelu"]),
    "mish-mish": (_act["mish"], _act["mish"]),
    "sigmoid-scale-residual": (residual(_act["sigmoid"], by("multiply", 2.0)),),
    "max-subtract-gelu": (over("maximum"), by("subtract", 0.5), _act["gelu"]),
    "batchnorm-gelu-relu": (batchnorm, _act["gelu"], _act["relu"]),
    "scale-batchnorm-softmax": (by("multiply", 0.5), batchnorm, softmax(-1)),
    "logsumexp-gelu": (logsumexp, _act["gelu"], _act["gelu"]),
    "swish-tanh-gelu-hardtanh": (_act["swish"], _act["tanh"], _act["gelu"], _act["hardtanh"]),
    "min-bias": (groupnorm, per_channel("add"), over("minimum")),
    "softmax-columns": (softmax(0),),
    "dropout-softmax": (by("multiply", 1.25), softmax(-1)),
}


def _level2() -> dict[str, Idea]:
    ideas = {
        f"{first}-{name}": (chain(start, *steps), sizes)
        for (first, (start, sizes)), (name, steps) in product(_CONVOLUTIONS.items(), _AFTER_CONV.items())
    }
    return ideas | {f"gemm-{name}": (chain(dense(256), *steps), _ROWS) for name, steps in _AFTER_GEMM.items()}


def _bottleneck(inner: int, out: int) -> Step:
    return residual(
        conv(inner, 1), batchnorm, relu, conv(inner, 3, padding=1), batchnorm, relu, conv(out, 1), batchnorm
    )


def _inverted(inner: int, out: int, taps: int = 3) -> Step:
    return residual(
        conv(inner, 1),
        batchnorm,
        _act["hardswish"],
        conv(0, taps, padding=taps // 2, groups=0),
        batchnorm,
        _act["hardswish"],
        squeeze(8),
        conv(out, 1),
        batchnorm,
    )


def _fire(inner: int, out: int) -> Step:
    wide = branches(1, chain(conv(out, 1), relu), chain(conv(out, 3, padding=1), relu))
    return chain(conv(inner, 1), relu, wide)


def _inception() -> Step:
    return branches(
        1, conv(16, 1), chain(conv(24, 1), conv(32, 3, padding=1)), chain(conv(4, 1), conv(8, 5, padding=2)), conv(8, 1)
    )


def _grown(growth: int) -> Step:
    layer = chain(batchnorm, relu, conv(growth, 3, padding=1))
    step = branches(1, lambda w, x: x, layer)
    return chain(step, step, step)


def _down_up() -> Step:
    inner = chain(pool("max"), conv(32, 3, padding=1), relu, conv(16, 2, padding=1, upsample=2))
    return chain(conv(16, 3, padding=1), relu, branches(1, lambda w, x: x, inner), conv(8, 3, padding=1))


_LEVEL3: Mapping[str, Idea] = {
    "mlp": (chain(dense(400), relu, dense(800), relu, dense(100)), _ROWS),
    "deep-narrow-mlp": (chain(*[chain(dense(100), relu)] * 8), _ROWS),
    "lenet5": (
        chain(conv(6, 5), relu, pool("max"), conv(16, 5), relu, pool("max"), flat, dense(120), relu, dense(84)),
        ((8, 1, 32, 32), (1, 3, 32, 32)),
    ),
    "alexnet-stem": (
        chain(conv(48, 11, stride=4, padding=2), relu, pool("max"), conv(96, 5, padding=2), relu),
        ((1, 3, 224, 224), (2, 3, 127, 127)),
    ),
    "vgg-block": (chain(conv(64, 3, padding=1), relu, conv(64, 3, padding=1), relu, pool("max")), _IMAGES),
    "resnet-basic": (
        residual(conv(16, 3, padding=1), batchnorm, relu, conv(16, 3, padding=1), batchnorm),
        ((4, 16, 28, 28), (1, 16, 57, 57)),
    ),
    "resnet-bottleneck": (_bottleneck(16, 64), ((1, 64, 28, 28), (4, 64, 13, 13))),
    "inception": (_inception(), _IMAGES),
    "densenet-block": (_grown(16), _IMAGES),
    "squeezenet-fire": (_fire(16, 32), _IMAGES),
    "mobilenet-v2": (_inverted(96, 16), ((1, 16, 56, 56), (4, 16, 15, 15))),
    "efficientnet-mbconv": (_inverted(64, 16, 5), ((1, 16, 40, 40), (2, 16, 21, 21))),
    "shufflenet-groups": (
        chain(conv(48, 1, groups=4), batchnorm, relu, conv(0, 3, padding=1, groups=0), conv(48, 1, groups=4)),
        _IMAGES,
    ),
    "regnet-stage": (residual(conv(32, 3, padding=1, groups=4), batchnorm, relu), ((2, 32, 28, 28), (1, 32, 45, 45))),
    "unet-level": (_down_up(), ((1, 8, 32, 32), (2, 8, 48, 48))),
    "netvlad": (chain(dense(32), softmax(-1), over("add")), ((4, 100, 128), (1, 333, 64))),
    "vision-transformer": (residual(layernorm, attention(4, causal=False)), _SEQUENCES),
    "mingpt-block": (chain(residual(layernorm, attention(4)), residual(layernorm, mlp(512))), _SEQUENCES),
    "relu-attention": (attention(4, scores=relu), _SEQUENCES),
    "swin-mlp": (chain(layernorm, mlp(768)), ((16, 49, 96), (4, 49, 192))),
    "vanilla-rnn": (
        scanned(
            8, lambda w, x, h: w.unary("tanh", w.binary("add", dense(h.shape[-1])(w, x), dense(h.shape[-1])(w, h)))
        ),
        ((8, 128), (1, 512)),
    ),
    "lstm": (lstm(6), ((8, 128), (1, 256))),
    "gru": (gru(6), ((8, 128), (3, 200))),
    "mamba-scan": (linear_recurrence(16), ((4, 256), (1, 1024))),
    "linear-attention": (attention(4, causal=False, scores=by("multiply", 0.01)), _SEQUENCES),
}

_JAX: Mapping[str, Idea] = {
    "mnist-cnn": (
        chain(
            conv(32, 3),
            relu,
            pool("avg"),
            conv(64, 3),
            relu,
            pool("avg"),
            flat,
            dense(256),
            relu,
            dense(10),
            logsoftmax,
        ),
        ((16, 1, 28, 28), (1, 1, 28, 28)),
    ),
    "vae-encoder": (chain(dense(500), relu, dense(40)), ((64, 784), (7, 784))),
    "vae-decoder": (chain(dense(500), relu, dense(784), _act["sigmoid"]), ((64, 20), (7, 20))),
    "pixelcnn-gate": (
        residual(
            _act["elu"], conv(16, 3, padding=1), _act["elu"], gated(conv(16, 1), chain(conv(16, 1), _act["sigmoid"]))
        ),
        ((4, 16, 32, 32), (1, 16, 27, 27)),
    ),
    "seq2seq-lstm": (lstm(10), ((4, 96), (1, 300))),
    "gemma-block": (chain(residual(rmsnorm, attention(4, 1)), residual(rmsnorm, swiglu(512))), _SEQUENCES),
    "mixer-tokens": (
        residual(layernorm, lambda w, x: w.transpose(mlp(128)(w, w.transpose(x, 0, 2, 1)), 0, 2, 1)),
        ((4, 196, 128), (1, 49, 256)),
    ),
    "graph-convolution": (
        lambda w, x: relu(w, w.dot(w.argument(x.shape[0], x.shape[0]), dense(64)(w, x), (1, 0))),
        ((256, 128), (1000, 33)),
    ),
    "graph-attention": (
        lambda w, x: w.dot(
            softmax(-1)(w, _act["leaky"](w, w.argument(x.shape[0], x.shape[0]))), dense(64)(w, x), (1, 0)
        ),
        ((256, 128), (777, 33)),
    ),
    "perceiver-cross": (attention(2, causal=False), ((1, 300, 64), (4, 65, 128))),
    "ppo-policy": (
        chain(dense(64), _act["tanh"], dense(64), _act["tanh"], branches(-1 % 2, dense(6), dense(1))),
        ((512, 17), (1, 376)),
    ),
    "nerf": (
        chain(
            branches(1, lambda w, x: w.unary("sine", x), lambda w, x: w.unary("cosine", x)),
            *[chain(dense(128), relu)] * 4,
            dense(4),
        ),
        ((1024, 30), (4096, 9)),
    ),
    "dlrm-interaction": (lambda w, x: flat(w, w.dot(x, x, (2, 2), 1)), ((64, 26, 32), (9, 50, 64))),
    "t5-block": (residual(rmsnorm, attention(4, causal=False), relu), _SEQUENCES),
    "diffusion-block": (
        residual(groupnorm, _act["swish"], conv(16, 3, padding=1), groupnorm, _act["swish"], conv(16, 3, padding=1)),
        ((2, 16, 32, 32), (1, 16, 63, 63)),
    ),
    "wavenet": (
        residual(
            gated(
                chain(conv(32, 2, dilation=4, padding=2), _act["tanh"]),
                chain(conv(32, 2, dilation=4, padding=2), _act["sigmoid"]),
            ),
            conv(32, 1),
        ),
        ((1, 32, 1000), (4, 32, 256)),
    ),
    "sde-step": (
        lambda w, x: w.binary("add", x, w.binary("multiply", mlp(64, _act["swish"])(w, x), 0.01)),
        ((256, 64), (33, 33)),
    ),
    "moe-router": (chain(dense(16), softmax(-1), lambda w, x: w.sort(x, 1, "GT")), ((512, 128), (77, 512))),
}

_TORCH: Mapping[str, Idea] = {
    "bert-layer": (chain(residual(attention(4, causal=False)), layernorm, residual(mlp(512)), layernorm), _SEQUENCES),
    "resnet18-stem": (
        chain(conv(64, 7, stride=2, padding=3), batchnorm, relu, pool("max")),
        ((1, 3, 112, 112), (2, 3, 65, 65)),
    ),
    "minilm-pooling": (chain(layernorm, over("add", 1), dense(384), _act["tanh"]), _SEQUENCES),
    "neural-net-trace": (chain(dense(30), relu, dense(6), logsoftmax), _ROWS),
    "deberta-scores": (
        lambda w, x: softmax(-1)(
            w, w.binary("add", w.dot(x, x, (2, 2), 1), w.argument(x.shape[0], x.shape[1], x.shape[1]))
        ),
        ((4, 128, 64), (12, 77, 32)),
    ),
    "clip-similarity": (
        lambda w, x: logsoftmax(w, w.dot(rmsnorm(w, x), rmsnorm(w, w.argument(*x.shape)), (1, 1))),
        ((256, 128), (65, 512)),
    ),
    "convnext-block": (
        residual(conv(0, 7, padding=3, groups=0), groupnorm, conv(64, 1), _act["gelu"], conv(16, 1)),
        ((1, 16, 56, 56), (3, 16, 29, 29)),
    ),
    "deeplab-atrous": (
        branches(1, conv(16, 1), conv(16, 3, padding=2, dilation=2), conv(16, 3, padding=4, dilation=4)),
        _IMAGES,
    ),
    "super-resolution": (
        chain(conv(32, 5, padding=2), _act["tanh"], conv(16, 3, padding=1), conv(9, 3, padding=1)),
        ((1, 1, 64, 64), (2, 1, 97, 97)),
    ),
    "dcgan-generator": (
        chain(conv(32, 4, padding=2, upsample=2), batchnorm, relu, conv(3, 4, padding=2, upsample=2), _act["tanh"]),
        ((4, 64, 8, 8), (1, 100, 11, 11)),
    ),
    "llama-layer": (chain(residual(rmsnorm, attention(8, 2)), residual(rmsnorm, swiglu(704))), _SEQUENCES),
    "phi-parallel": (lambda w, x: w.binary("add", attention(4)(w, layernorm(w, x)), mlp(512)(w, x)), _SEQUENCES),
    "group-query-encoder": (residual(layernorm, attention(8, 4, causal=False)), _SEQUENCES),
    "mobilebert-stack": (chain(residual(dense(256), relu), residual(dense(256), relu)), ((64, 256), (7, 256))),
    "yolo-block": (
        chain(conv(16, 1), batchnorm, _act["leaky"], conv(32, 3, padding=1), batchnorm, _act["leaky"]),
        _IMAGES,
    ),
    "speech-conv1d": (
        chain(conv(64, 10, stride=5), groupnorm, _act["gelu"], conv(64, 3, stride=2), _act["gelu"]),
        ((1, 1, 4000), (2, 1, 1777)),
    ),
}


def collections() -> Mapping[str, Mapping[str, Idea]]:
    """Ideas by the collection that describes them."""
    return {"kernelbench/level2": _level2(), "kernelbench/level3": _LEVEL3, "jax-zoo": _JAX, "torch-mlir-zoo": _TORCH}
