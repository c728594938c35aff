"""JSON Schemas of a spec of each kernel family, with examples: for `/v1/kernels` and `kernelcast devices kernels --json`."""

from __future__ import annotations

from typing import Any

from ..dtypes import DTYPES
from ..kernel import CACHE_STATES, MAX_DIM, MAX_THREADS, TIMINGS, KernelFamily
from .reading import DEFAULT_COVERAGE, IMPL_PATTERN, MAX_TEXT

DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXAMPLE_DEVICE = "nvidia-h200-sxm-141gb"


def family_schema(family: KernelFamily, *, top_level: bool = True) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one spec of the family; `top_level` specs may also name a coverage."""
    required_sizes = [dim.name for dim in family.dims if dim.default is None]
    sizes = {
        dim.name: {"type": "integer", "minimum": dim.minimum, "maximum": MAX_DIM, "description": dim.doc}
        | ({} if dim.default is None else {"default": dim.default})
        for dim in family.dims
    }
    properties: dict[str, Any] = {
        "family": {"const": family.name},
        "device": {"type": "string", "maxLength": MAX_TEXT, "description": "Catalogue name or alias, case ignored"},
        "dtype": _dtype("Number format of the operands"),
        "sizes": {"type": "object", "properties": sizes, "required": required_sizes, "additionalProperties": False},
        "variant": _variant(family),
        "impl": {"type": ["string", "null"], "pattern": f"^({IMPL_PATTERN})?$", "default": "",
                 "description": "What runs it, such as torch or vllm-0.24.0; empty: what the model knows best"},
        "kv_dtype": _dtype("Number format of the key and value cache; null: the same as dtype") | {"default": None},
        "config": {"type": ["object", "null"], "additionalProperties": False, "default": {},
                   "description": "Tuning numbers, where they are known",
                   "properties": {name: {"type": "integer", "minimum": 0} for name in family.config}},
        "threads": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_THREADS, "default": None,
                    "description": "CPU threads; null: all cores, or a GPU"},
        "cache_state": {"enum": list(CACHE_STATES), "default": "hot",
                        "description": "hot: operands may be cached; cold: caches are flushed before the run"},
        "timing": {"enum": ["", *TIMINGS, None], "default": "",
                   "description": "device: the kernel alone; call: one call of the library, with its launch; empty: as it was "
                                  "measured with this impl, or the kernel alone where no impl is given"},
    }  # fmt: skip
    properties["kv_dtype"]["enum"].append(None)
    if top_level:
        properties["coverage"] = coverage_schema()
    required = ["family", "device", "dtype", "sizes"]
    if "" not in family.variants and family.variant_of is None and not family.default_variant:
        required.append("variant")
    return {
        "title": family.name, "description": (family.doc or "").strip(), "type": "object", "properties": properties,
        "required": required, "additionalProperties": False, "examples": [family_example(family)],
    }  # fmt: skip


def standalone_schema(family: KernelFamily) -> dict[str, Any]:
    """`family_schema` as a document of its own; its examples are the typical spec, then one per shape of a real model."""
    schema = family_schema(family)
    examples = schema["examples"] + [_example_of(family, dict(shape), EXAMPLE_DEVICE) for shape in family.model_shapes]
    return {"$schema": DRAFT, **schema, "examples": examples}


def family_example(family: KernelFamily, device: str = EXAMPLE_DEVICE) -> dict[str, Any]:
    """A spec that can be sent as it is."""
    # Not the last, which may be the largest: a typical one is surely inside what was measured.
    return _example_of(family, dict(family.model_shapes[len(family.model_shapes) // 3]), device)


def _example_of(family: KernelFamily, shape: dict[str, int], device: str) -> dict[str, Any]:
    sizes = {dim.name: 1 for dim in family.dims} | shape
    example: dict[str, Any] = {"family": family.name, "device": device, "dtype": "bf16", "sizes": sizes}
    if family.variant_of is not None:
        return example | {"variant": family.variant_of(sizes)}
    return example if "" in family.variants else example | {"variant": family.variants[0]}


def setting_schemas() -> dict[str, Any]:
    """JSON Schemas of how a board is set, by name."""
    words = {
        "power_limit_w": "Power limit of the GPU in watts; null: its own",
        "clock_hz": "Locked clock of the GPU's compute units in hertz; null: as high as the limit allows",
    }
    return {
        name: {"type": ["number", "null"], "exclusiveMinimum": 0, "default": None, "description": text}
        for name, text in words.items()
    }


def coverage_schema() -> dict[str, Any]:
    """JSON Schema of the share of cases an interval is to contain."""
    return {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": DEFAULT_COVERAGE,
            "description": "Share of cases the intervals are to contain; a model may take a narrower range"}  # fmt: skip


def _dtype(description: str) -> dict[str, Any]:
    names = [name for dtype in DTYPES.values() for name in (dtype.name, *dtype.aliases)]
    # The examples are the names without their aliases, which a form offers.
    return {"enum": names, "examples": list(DTYPES), "description": description}


def _variant(family: KernelFamily) -> dict[str, Any]:
    if family.variant_of is not None:
        # The empty text stands for leaving it out.
        return {"enum": [*family.variants, "", None], "description": "Left out: what the sizes imply"}
    if "" not in family.variants and not family.default_variant:
        return {"enum": list(family.variants), "description": "What exactly is computed"}
    # Null stands for leaving it out too.
    return {
        "enum": [*family.variants, None],
        "description": "What exactly is computed",
        "default": family.default_variant,
    }
