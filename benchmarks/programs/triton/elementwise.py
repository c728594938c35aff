"""Random elementwise programs as Triton source: chains of operations, alone or inside other kernels."""

from __future__ import annotations

import hashlib

import numpy as np

REAL_OPS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} * {b} + {c}", "{a} / (tl.abs({b}) + 1.0)", "tl.maximum({a}, {b})",
    "tl.minimum({a}, {b})", "tl.where({a} > {b}, {a}, {c})", "tl.fma({a}, {b}, {c})", "{a} * {k}", "{a} + {k}",
    "tl.maximum({a}, 0.0)", "tl.where({a} > 0, {a}, {a} * 0.01)", "{a} * tl.sigmoid({a})", "tl.sigmoid({a})",
    "tl.exp(tl.minimum({a}, {k}))", "tl.exp2({a})", "tl.log(tl.abs({a}) + 1.0)", "tl.log2(tl.abs({a}) + {k})",
    "tl.sqrt(tl.abs({a}))", "tl.rsqrt({a} * {a} + 1e-6)", "tl.sin({a})", "tl.cos({a})", "tl.abs({a})", "tl.floor({a})",
    "tl.erf({a})", "libdevice.tanh({a})", "{a} * 0.5 * (1.0 + tl.erf({a} * 0.70710678))",
    "0.5 * {a} * (1.0 + libdevice.tanh(0.79788456 * ({a} + 0.044715 * {a} * {a} * {a})))",
    "{a} * libdevice.tanh(tl.log(1.0 + tl.exp({a})))", "tl.log(1.0 + tl.exp(-tl.abs({a}))) + tl.maximum({a}, 0.0)",
    "{a} * tl.clamp({a} + 3.0, 0.0, 6.0) / 6.0", "tl.where({a} > 0, {a}, tl.exp({a}) - 1.0)",
    "{a}.to(tl.float16).to(tl.float32)",
    "tl.div_rn({a}, tl.abs({b}) + {k})", "tl.sqrt_rn(tl.abs({a}) + {k})", "libdevice.pow(tl.abs({a}) + 0.1, {k})",
    "{a} * {a}", "-{a}", "tl.where(({a} > {b}) & ({b} > {c}), {b}, {c})",
)  # fmt: skip
"""Operations on fp32 values, `{k}` a constant: arithmetic, activations and special functions met in deep learning."""

WHOLE_OPS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "{a} >> 3", "{a} << 2",
    "tl.maximum({a}, {b})",
    "tl.minimum({a}, {b})", "tl.where({a} > {b}, {a}, {c})", "{a} // ({b} & 15 | 1)", "{a} % ({b} & 31 | 1)", "{a} * 3 + {b}",
    "tl.abs({a})", "({a} == {b}).to(tl.int32) + {c}", "({a}.to(tl.float32) * {k}).to(tl.int32)",
)  # fmt: skip
"""Operations on 32-bit whole numbers."""

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n"


def chain(rng: np.random.Generator, inputs: list[str], steps: int, ops: tuple[str, ...] = REAL_OPS) -> list[str]:
    """Assignments `v0 = …` to the last, each of earlier values; inputs come first, late values oftener.

    What is left unused is no concern: Triton drops it, as it does in programs that people write.
    """
    values, unused, lines = list(inputs), list(inputs), []
    for step in range(max(steps, len(inputs) - 1)):
        words = {name: values[-1 - min(int(rng.geometric(0.5)) - 1, len(values) - 1)] for name in "abc"}
        if unused:
            words["a"] = unused.pop(0)
        if step and rng.random() < 0.8:
            words["b"] = values[-1]
        template = ops[int(rng.integers(len(ops)))]
        if unused or (step and words["a"] in inputs and "{b}" not in template):
            template = "{a} + {b}" if "{b}" not in template else template
        lines.append(f"v{step} = " + template.format(**words, k=f"{rng.uniform(0.1, 3.0):.2f}"))
        values.append(f"v{step}")
    return lines


def point_source(rng: np.random.Generator, steps: int) -> str:
    """A function `point(x, y, z)` of so many operations, for kernels to call."""
    used = ["x"] if rng.random() < 0.4 else ["x", "y"]
    lines = chain(rng, used, steps)
    body = "\n".join(f"    {line}" for line in lines)
    return f"{HEAD}@triton.jit\ndef point(x, y, z):\n{body}\n    return {lines[-1].split(' ')[0]}\n"


def pointwise_source(rng: np.random.Generator, kind: str, whole: bool) -> tuple[str, list[str]]:
    """A kernel `pointwise` over 1 to 6 inputs and 1 to 30 operations, and its pointers in order, marked * by type.

    `kind` is `flat`, `looped` (a program walks over many blocks) or `plane` (rows and columns, some inputs one row or column).
    """
    inputs = [f"x{i}" for i in range(int(rng.integers(1, 7)))]
    outputs = [f"out{i}" for i in range(2 if rng.random() < 0.2 else 1)]
    cast = "" if whole else ".to(tl.float32)"
    items = ["*" if whole or rng.random() < 0.75 else "*fp32" for _ in (*inputs, *outputs)]
    steps = round(float(np.exp(rng.uniform(0.0, np.log(30.0)))))
    lines = chain(rng, [name.replace("x", "a") for name in inputs], steps, WHOLE_OPS if whole else REAL_OPS)
    results = [line.split(" ")[0] for line in lines][-len(outputs) :]
    places = [_place(rng, kind) for _ in inputs]
    load = [f"{name.replace('x', 'a')} = tl.load({name} + {at}, mask={mask}, other=0){cast}"
            for name, (at, mask) in zip(inputs, places, strict=True)]  # fmt: skip
    whole_place, whole_mask = ("where", "inside") if kind == "plane" else ("at", "at < n")
    store = [f"tl.store({name} + {whole_place}, ({value}).to({name}.dtype.element_ty), mask={whole_mask})"
             for name, value in zip(outputs, results[-1:] * (len(outputs) - len(results)) + results, strict=True)]  # fmt: skip
    work = [*load, *lines, *store]
    if kind == "looped":
        work = ["for start in range(tl.program_id(0) * BLOCK, n, BLOCK * tl.num_programs(0)):",
                *(f"    {line}" for line in ("at = start + tl.arange(0, BLOCK)", *work))]  # fmt: skip
    elif kind == "flat":
        work = ["at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *work]
    else:
        work = ["rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)", "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
                "inside = (rows < m)[:, None] & (cols < n)[None, :]",
                "where = rows[:, None] * n + cols[None, :]", *work]  # fmt: skip
    sizes = ["m", "n", "ROWS: tl.constexpr", "BLOCK: tl.constexpr"] if kind == "plane" else ["n", "BLOCK: tl.constexpr"]
    head = f"{HEAD}@triton.jit\ndef pointwise({', '.join([*inputs, *outputs, *sizes])}):\n"
    pointers = [f"{name}{mark}" for name, mark in zip([*inputs, *outputs], items, strict=True)]
    return head + "\n".join(f"    {line}" for line in work) + "\n", pointers


def _place(rng: np.random.Generator, kind: str) -> tuple[str, str]:
    """Where an input is read, and the mask."""
    if kind != "plane":
        return "at", "at < n"
    places = (("where", "inside"), ("rows[:, None]", "(rows < m)[:, None]"), ("cols[None, :]", "(cols < n)[None, :]"))
    return places[int(rng.choice(3, p=[0.6, 0.15, 0.25]))]


def short_hash(source: str) -> str:
    """8 hex digits that tell one source from another."""
    return hashlib.blake2b(source.encode(), digest_size=4).hexdigest()
