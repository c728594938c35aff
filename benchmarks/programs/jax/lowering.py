"""From a structure and sizes to StableHLO text, by JAX: the forward pass, its gradient or a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..families import Family, Sizes, Structure
from .images import FAMILIES as IMAGES
from .networks import FAMILIES as NETWORKS
from .science import FAMILIES as SCIENCE
from .training import FAMILIES as TRAINING

FAMILIES: tuple[Family, ...] = (*NETWORKS, *IMAGES, *SCIENCE, *TRAINING)
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "f64": jnp.float64, "i8": jnp.int8}

_array: Callable[..., Any] = jax.ShapeDtypeStruct
"""`_array(shape, dtype)` stands for an array."""

FACTORS = {"forward": 1.0, "grad": 3.0, "loss_and_grad": 3.0, "input_grad": 3.0, "sgd": 3.2, "adam": 3.5}
"""What a mode costs, in forward passes: a backward pass is two of them, for the gradients of inputs and of weights."""


def _cross_entropy(y: Any, labels: Any) -> Any:
    if 1 in y.shape[:-1]:
        # IREE 3.13 does not compile the scatter that is the gradient of a batched look-up over an axis of one.
        y, labels = y.reshape(-1, y.shape[-1]), labels.reshape(-1)
    picked = jnp.take_along_axis(jax.nn.log_softmax(y, axis=-1), labels[..., None], axis=-1, mode="clip")
    return -picked.mean()


def lower(structure: Structure, sizes: Sizes, dtype: str) -> str:
    """The StableHLO text of a structure in a size. Weights, inputs, targets and optimiser states are arguments of `@main`.

    The training modes end in the mean squared error against a target, `loss_and_grad` and `adam` in cross-entropy against
    labels where the result has eight columns or more.
    """
    element = DTYPES[dtype]
    with jax.enable_x64(dtype == "f64"):
        inputs = [
            _array(shape[1:], jnp.int32) if shape[0] == "ids" else _array(shape, element)
            for shape in structure.family.inputs(structure.choices, sizes)
        ]
        weights: dict[str, Any] = {}

        def declare(*arrays: Any) -> Any:
            def weight(name: str, *shape: int) -> Any:
                weights[name] = _array(shape, element)
                return jnp.zeros(shape, element)

            return structure.family.forward(weight, structure.choices, sizes, *arrays)

        result = jax.eval_shape(declare, *inputs)

        def program(held: dict[str, Any], *arrays: Any) -> Any:
            return structure.family.forward(lambda name, *_: held[name], structure.choices, sizes, *arrays)

        created, extra = _MAKERS[structure.mode](program, weights, result)
        return str(jax.jit(created).lower(weights, *extra, *inputs).as_text())


def _loss(program: Callable[..., Any], labelled: bool) -> Callable[..., Any]:
    if labelled:
        return lambda item, target, *arrays: _cross_entropy(program(item, *arrays).astype(jnp.float32), target)
    return lambda item, target, *arrays: jnp.square((program(item, *arrays) - target).astype(jnp.float32)).mean()


def _target(result: Any, with_labels: bool) -> tuple[bool, Any]:
    """Whether the loss is over labels, and the target it is against."""
    if with_labels and result.ndim > 1 and result.shape[-1] >= 8:
        return True, _array(result.shape[:-1], jnp.int32)
    return False, result


def _forward(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    return program, []


def _grad(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    labelled, target = _target(result, False)
    return jax.grad(_loss(program, labelled)), [target]


def _loss_and_grad(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    labelled, target = _target(result, True)
    return jax.value_and_grad(_loss(program, labelled)), [target]


def _input_grad(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The gradient of every floating-point input, as in the middle of a longer network."""

    def pull(held: Any, upstream: Any, *arrays: Any) -> Any:
        value, back = jax.vjp(lambda *inner: program(held, *inner), *arrays)
        return value, [g for g in back(upstream) if jnp.issubdtype(g.dtype, jnp.floating)]

    return pull, [result]


def _sgd(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    labelled, target = _target(result, False)

    def step(params: Any, *rest: Any) -> Any:
        loss, grads = jax.value_and_grad(_loss(program, labelled))(params, *rest)
        return loss, jax.tree.map(lambda w, g: w - (0.01 * g).astype(w.dtype), params, grads)

    return step, [target]


def _adam(program: Callable[..., Any], weights: Any, result: Any) -> tuple[Callable[..., Any], list[Any]]:
    labelled, target = _target(result, True)

    def step(params: Any, first: Any, second: Any, *rest: Any) -> Any:
        loss, grads = jax.value_and_grad(_loss(program, labelled))(params, *rest)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        params = jax.tree.map(lambda w, m, v: w - 0.001 * m / (jnp.sqrt(jnp.abs(v)) + 1e-3), params, first, second)
        return loss, params, first, second

    return step, [weights, weights, target]


_MAKERS = {
    "forward": _forward, "grad": _grad, "loss_and_grad": _loss_and_grad, "input_grad": _input_grad, "sgd": _sgd, "adam": _adam,
}  # fmt: skip
