"""Fields of a `config.json`, read one by one and refused by name where they are no such thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....features.errors import MAX_REMARK, SpecError, is_plain, listed
from ....features.kernel import MAX_DIM

MAX_LAYERS = 10_000
"""Most layers accepted, far above any real model's."""

MAX_STAGES = 64
"""Most stages accepted; real models have four, and seven convolutions before them."""

MAX_SHOWN = 60
"""Most characters of a wrong value that an error repeats."""

_NUMBERS = {"torch.bfloat16": "bf16", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Config:
    """A configuration, or a mapping nested in one.

    Attributes:
        values: Its fields.
        origin: Its name in errors.
        assumed: Fields read that it leaves out and its class has a default of, with that default.
    """

    def __init__(self, values: Any, origin: str, defaults: Mapping[str, Any] | None = None) -> None:
        """The configuration `values`; `origin` names it in errors, `defaults` are those of its class.

        Raises:
            SpecError: it is no mapping.
        """
        if not isinstance(values, Mapping):
            raise SpecError(
                f"{origin} must be a JSON object, as a config.json is, not {type(values).__name__}", field="config"
            )
        self.values, self.origin = values, origin
        self._defaults: Mapping[str, Any] = {} if defaults is None else defaults
        self.assumed: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return self._value(name) is not None

    def _value(self, name: str) -> Any:
        """A field as it is; null is no field left out."""
        if name in self.values or name not in self._defaults:
            return self.values.get(name)
        self.assumed[name] = self._defaults[name]
        return self._defaults[name]

    def wrong(self, name: str, wanted: str) -> SpecError:
        """The error of a field that is missing, or no such thing."""
        if name not in self.values:
            return SpecError(f"{self.origin} lacks {name}, which is {wanted}", field=name)
        value = repr(self.values[name])
        value = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
        return SpecError(f"{self.origin}: {name} is {value}; it is {wanted}", field=name)

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = MAX_DIM) -> int:
        """A whole number under the first of several names that is there, else the default.

        Raises:
            SpecError: it is no whole number within the limits, or missing without a default.
        """
        name = next((name for name in names if self.values.get(name) is not None), None) or next(
            (name for name in names if name in self), names[0]
        )
        value = self._value(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and len(value) > 1 and all(item == value[0] for item in value):
            value = value[0]  # Some files list a size for each layer, all alike.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, f"a whole number between {least} and {most}")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number.

        Raises:
            SpecError: it is none, or more than a million.
        """
        value = self._value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
            raise self.wrong(name, "a number above 0, at most a million")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            SpecError: it is neither.
        """
        value = self._value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """A text.

        Raises:
            SpecError: it is none, or too long.
        """
        value = self._value(name)
        if value is None:
            return default
        if not isinstance(value, str) or not is_plain(value):
            raise self.wrong(name, f"plain text of at most {MAX_REMARK} characters")
        return value

    def words(self, name: str, count: int, known: tuple[str, ...]) -> list[str] | None:
        """A list of `count` of the known words, None where it is missing.

        Raises:
            SpecError: it is no such list.
        """
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(word not in known for word in value):
            raise self.wrong(name, f"a list of {count} of {listed(known)}")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers, empty where it is missing.

        Raises:
            SpecError: it is no such list.
        """
        value = self._value(name)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            raise self.wrong(name, "a list of whole numbers")
        return value

    def sizes(self, name: str, most: int = MAX_DIM) -> list[int]:
        """A list of sizes, one for each of some stages of a model.

        Raises:
            SpecError: it is no such list, or empty.
        """
        if (
            not (values := self.numbers(name))
            or len(values) > MAX_STAGES
            or not all(0 < size <= most for size in values)
        ):
            raise self.wrong(name, f"a list of at most {MAX_STAGES} whole numbers between 1 and {most}")
        return values

    def nested(self, name: str) -> Config | None:
        """A mapping inside, None where it is missing.

        Raises:
            SpecError: it is no mapping.
        """
        return None if self.values.get(name) is None else Config(self.values[name], f"{self.origin}: {name}")

    @property
    def dtype(self) -> str:
        """Number format of the model, bf16 where the configuration gives none.

        Raises:
            SpecError: it is not one that models run in.
        """
        name = "dtype" if "dtype" in self else "torch_dtype"
        word = self.word(name, "bfloat16")
        if word not in _NUMBERS:
            raise self.wrong(name, f"one of {listed(_NUMBERS)}")
        return _NUMBERS[word]


def per_head(config: Config, hidden: int, heads: int) -> int:
    """The size of a head: given, or the width shared out.

    Raises:
        SpecError: it is not given, and the heads do not divide the width.
    """
    if "head_dim" in config:
        return config.size("head_dim")
    if hidden % heads:
        raise SpecError(
            f"{config.origin}: {heads} attention heads do not divide hidden_size {hidden}, and head_dim is not given",
            field="num_attention_heads",
        )
    return hidden // heads


_BITS = {"awq": {4: "int4"}, "gptq": {4: "int4"}}
_MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4", "MXFP4": "mxfp4"}


def quantisation(config: Config) -> tuple[str | None, str | None]:
    """Number formats of the matrices and of the routed experts, None where they are those of the model.

    `fp8` with blocks is DeepSeek's, `mxfp4` is gpt-oss's of experts alone, `awq` and `gptq` name their bits, `modelopt` is
    NVIDIA's.

    Raises:
        SpecError: a quantisation whose formats are not known.
    """
    nested = config.nested("quantization_config")
    if nested is None:
        return None, None
    method = nested.word("quant_method", "")
    if method == "fp8":
        return ("fp8_block" if "weight_block_size" in nested else "fp8"), None
    if method == "mxfp4":
        return None, "mxfp4"
    word = nested.word("quant_algo", "")
    if method == "modelopt" and word in _MODELOPT:
        return _MODELOPT[word], None
    bits = nested.size("bits", "w_bit", default=4)
    if bits in _BITS.get(method, {}):
        return _BITS[method][bits], None
    method = f"{method} {word}".strip()
    raise SpecError(
        f"{config.origin}: quantisation {method!r} is not read; read are fp8, mxfp4, modelopt of {listed(_MODELOPT)}, "
        "and awq and gptq of 4 bits. Leave quantization_config out, and give the format of the matrices (--weights)",
        field="quantization_config",
    )  # fmt: skip
