"""GET routes whose answers change only with the program: devices, kernels' schemas, shipped models, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from ...client.answers import Device as DeviceAnswer
from ...client.answers import Devices
from ...client.estimate_answers import ShippedModels
from ...features.device import Catalogue
from ...features.errors import SpecError
from ...features.kernel import families, get_family
from ...features.spec_io.json_schema import standalone_schema
from ...features.spec_io.reading import MAX_TEXT
from ...workloads.answers import device_answer, model_summary
from ...workloads.architectures.config.catalogue import model_facts, model_names
from ..transport.bodies import parameters
from ..transport.problems import ProblemError, invalid_field
from ..transport.responses import CachedContent, Endpoint


def cached_endpoint(
    make: Callable[[str], Any],
    key: Callable[[Request], str] = lambda _: "",
    most: int | None = None,
    media_type: str = "application/json",
) -> Endpoint:
    """What answers with JSON that is made once for each key, on a thread.

    Args:
        make: Makes the answer of a key.
        key: The key of a request; it must be one of a few, or `most` must be set.
        most: How many answers are kept.
        media_type: The media type.
    """
    content = lru_cache(most)(lambda name: CachedContent(msgspec.json.encode(make(name)), media_type))

    async def answer(request: Request) -> Response:
        return (await run_sync(content, key(request))).answer(request)

    return answer


def devices_endpoint(devices: Catalogue) -> Endpoint:
    """What answers `/v1/devices`, with `brief` a tenth as long."""
    return cached_endpoint(
        lambda brief: Devices(
            [_brief(device_answer(device)) if brief == "true" else device_answer(device) for device in devices]
        ),
        _is_brief,
    )


_BRIEF_FACTS = ("tdp_w",)


def _brief(device: DeviceAnswer) -> DeviceAnswer:
    """A device by its names, and of its facts the power limit alone."""
    facts = {name: device.facts[name] for name in _BRIEF_FACTS if name in device.facts}
    return msgspec.structs.replace(device, facts=facts, matrix_flops_per_s={}, vector_flops_per_s={}, measured={})


def _is_brief(request: Request) -> str:
    brief = parameters(request.scope["query_string"], ("brief",)).get("brief", ["false"])[-1]
    if brief not in ("true", "false"):
        raise invalid_field("brief", "must be true or false")
    return brief


def kernels_endpoint() -> Endpoint:
    """What answers `/v1/kernels`."""
    return cached_endpoint(
        lambda _: {"kernels": {family.name: standalone_schema(family) for family in families().values()}}
    )


def kernel_endpoint() -> Endpoint:
    """What answers `/v1/kernels/{family}`."""
    return cached_endpoint(
        lambda name: standalone_schema(get_family(name)), known_name("family", get_family),
        media_type="application/schema+json",
    )  # fmt: skip


def models_endpoint() -> Endpoint:
    """What answers `/v1/estimate/models`."""
    return cached_endpoint(lambda _: ShippedModels([model_summary(model_facts(name)) for name in model_names()]))


def known_name(parameter: str, get: Callable[[str], Any]) -> Callable[[Request], str]:
    """The name of what a parameter of the path names; looked up, so that no answer of an unknown name is kept."""

    def name(request: Request) -> str:
        try:
            known: str = get(request.path_params[parameter][:MAX_TEXT]).name
        except SpecError as error:
            raise ProblemError(404, str(error)) from error
        return known

    return name
