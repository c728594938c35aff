"""`kernelcast compare roofline`: where a kernel lies under the roofline of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import console, names
from .compare import amounts, curve_devices, read_spec, tell_outside

if TYPE_CHECKING:
    from ...client.answers import Roofline
    from ...features.kernel import KernelSpec


def roofline(
    family: names.Family,
    words: names.Words = None,
    device: names.Devices = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Show a kernel under the roofline of devices: its intensity, what binds it, and how much of that limit it attains.

    kernelcast compare roofline gemm 4096x4096x4096 bf16 --device h100 --device l40s
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.devices import roofline as roofline_of

    known = console.read_catalogue(device_file)
    spec = read_spec(family, words)
    devices = curve_devices(device, known)
    predictor = load_predictor(console.model_dir(model), known)
    result = roofline_of(predictor, spec, devices, coverage=coverage)
    if as_json:
        console.print_json(result)
    else:
        _show(spec, result)


def _show(spec: KernelSpec, result: Roofline) -> None:
    screen = console.out()
    screen.print(console.heading(str(spec), amounts(result.flops, result.bytes)), soft_wrap=True)
    heads = ("", "device", "attained", "peak", "ridge", "bound", "of limit")
    table = console.new_table(*heads, numbers={"attained", "peak", "ridge", "of limit"})
    for roof in result.answers:
        table.add_row(
            console.domain_mark(roof.in_domain), roof.device, console.flops_per_s(roof.attained_flops_per_s.value),
            console.flops_per_s(roof.peak_flops_per_s.value), f"{roof.ridge_intensity:.3g}", roof.bound,
            f"{100 * roof.of_limit:.0f} %",
        )  # fmt: skip
    screen.print(table)
    console.show_fact("ridge", "FLOP/B; below it memory binds, above it compute")
    tell_outside(roof.in_domain for roof in result.answers)
