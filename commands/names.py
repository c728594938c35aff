"""Names that people type: devices and kernels read forgivingly, with a word on stderr about how; and their completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from . import console

if TYPE_CHECKING:
    from ..features.device import Catalogue, Device
    from ..features.kernel import KernelFamily


def device(name: str, known: Catalogue) -> Device:
    """The device of a typed name; how an unusual or ambiguous one was read is told on stderr.

    Raises:
        SpecError: the name means none, or several of which none goes by it.
    """
    from ..features.spec_io.words import read_device

    try:
        item, remark = read_device(name, known)
    except SpecError as error:
        raise _with_list(error, "devices") from error
    if remark:
        console.note(remark)
    return item


def devices(names: Iterable[str], known: Catalogue) -> list[Device]:
    """The devices of typed names, each once."""
    return list({item.name: item for item in (device(name, known) for name in names)}.values())


def fitting_devices(name: str, known: Catalogue) -> list[Device]:
    """The devices whose names have every part of a typed name, see `features.spec_io.words.fitting_devices`.

    Raises:
        SpecError: the name fits none.
    """
    from ..features.spec_io.words import fitting_devices as fitting

    try:
        return fitting(name, known)
    except SpecError as error:
        raise _with_list(error, "devices") from error


def device_names(names: Iterable[str], known: Catalogue) -> list[str]:
    """The catalogue names of the devices of typed names, each once."""
    return [item.name for item in devices(names, known)]


def counted_names(words: Iterable[str], known: Catalogue) -> list[str]:
    """Typed names of devices as catalogue names, each with the number behind its colon where it has one."""
    parts = [word.partition(":") for word in words]
    return [f"{device(name, known).name}{mark}{count}" for name, mark, count in parts]


def whole_option(what: str) -> Any:
    """An option that takes a whole number such as `4096` or `4k`; `what` is its help."""
    return typer.Option(parser=_whole, metavar="N", help=what)


def amount_option(what: str, *name: str) -> Any:
    """An option that takes a number such as `1300.5` or `2k`; `what` is its help, `name` its own name."""
    return typer.Option(*name, parser=_amount, metavar="N", help=what)


def _whole(value: str | int) -> int:
    from ..features.spec_io.words import read_number

    try:
        return read_number(str(value), "")
    except SpecError as error:
        raise typer.BadParameter(f"give a whole number, such as 4096 or 4k, not {str(value)[:40]!r}") from error


def _amount(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        return float(_whole(str(value)))


def family(name: str) -> KernelFamily:
    """The family of a typed name.

    Raises:
        SpecError: there is none.
    """
    from ..features.spec_io.words import read_family

    try:
        return read_family(name)[0]
    except SpecError as error:
        raise _with_list(error, "devices kernels") from error


def kernel(family: str, words: Sequence[str]) -> dict[str, Any]:
    """The fields of a spec but its device, from typed words; unusual ones are repeated in canonical words on stderr.

    Raises:
        SpecError: a word means nothing of the family.
    """
    from ..features.spec_io.words import read_kernel

    try:
        read = read_kernel(family, words)
    except SpecError as error:
        if error.field != "family":
            raise
        raise _with_list(error, "devices kernels") from error
    if read.read_as:
        console.note(f"read as: {read.read_as}")
    return read.request


def _with_list(error: SpecError, command: str) -> SpecError:
    """The error, with the command that lists what is possible."""
    advice = f"{error.advice} `kernelcast {command}` lists all".strip()
    return SpecError(error.reason, field=error.field, advice=advice)


def complete_device(incomplete: str) -> list[str]:
    """Names of shipped devices that begin so, with their maker or without."""
    from ..features.spec_io.words import shipped_names

    names = [*shipped_names(), *(name.partition("-")[2] for name in shipped_names())]
    return [name for name in names if name.startswith(incomplete.lower())]


def complete_family(incomplete: str) -> list[str]:
    """Kernel families that begin so."""
    from ..features.kernel import families

    return [name for name in families() if name.startswith(incomplete.lower())]


def complete_word(ctx: typer.Context, incomplete: str) -> list[str]:
    """What may follow a kernel family: its sizes, settings and dtypes; after `dtype=` and `variant=` what these may be."""
    from ..features.dtypes import DTYPES
    from ..features.spec_io.words import SETTINGS, read_family

    try:
        family, _ = read_family(ctx.params.get("family") or ctx.params.get("what") or "")
    except SpecError:
        return []
    if "=" in incomplete:
        words = [f"{name}={dtype}" for name in ("dtype", "kv_dtype") for dtype in DTYPES]
        words += [f"variant={name}" for name in family.variants if name]
    else:
        words = [*(f"{name}=" for name in (*family.dim_names, *SETTINGS, *family.config)), *DTYPES]
    return [word for word in words if word.startswith(incomplete)]


OneDevice = Annotated[
    str, typer.Option("--device", help="The device; see `kernelcast devices`.", autocompletion=complete_device)
]
Family = Annotated[
    str,
    typer.Argument(metavar="FAMILY", help="Kernel family, such as gemm or matmul.", autocompletion=complete_family),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORD",
        help="Sizes and settings, such as m=4096 n=4k k=4k dtype=bf16, or 4096x4096x4096 bf16.",
        autocompletion=complete_word,
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device", help="Device, may be given again; see `kernelcast devices`.", autocompletion=complete_device
    ),
]
