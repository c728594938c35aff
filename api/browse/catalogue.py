"""GET routes whose answers change only with the program: the devices, the kernels' schemas, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...client.answers import Device, Devices
from ...features.device import Catalogue
from ...features.errors import SpecError
from ...features.kernel import families, get_family
from ...features.spec_io.json_schema import standalone_schema
from ...features.spec_io.reading import MAX_TEXT
from ...workloads.answers import device_answer
from ..page.openapi import route_description
from ..transport.problems import ProblemError
from ..transport.responses import CachedContent

_MAX_PREFIXES = 8


class ContentCache:
    """Contents by key, each made once, on a thread, at its first request; at most `max_contents` are kept."""

    def __init__(self, make: Callable[[str], CachedContent], max_contents: int) -> None:
        self._make = make
        self._max_contents = max_contents
        self._contents: dict[str, CachedContent] = {}

    async def answer(self, key: str, request: Request) -> Response:
        """What is under the key, as the request wants it."""
        content = self._contents.get(key)
        if content is None:
            content = await run_sync(self._make, key)
            if len(self._contents) < self._max_contents:
                self._contents[key] = content
        return content.answer(request)


def add_catalogue(app: FastAPI, devices: Catalogue) -> None:
    """Add the routes of devices and kernels; names are looked up first, so that no key but a known name is kept."""

    def all_devices(_: str) -> CachedContent:
        return _json(Devices([device_answer(device) for device in devices]))

    def all_kernels(_: str) -> CachedContent:
        return _json({"kernels": {family.name: standalone_schema(family) for family in families().values()}})

    device_list, kernel_list = ContentCache(all_devices, 1), ContentCache(all_kernels, 1)
    by_device = ContentCache(lambda name: _json(device_answer(devices.get(name))), len(devices.names()))
    by_family = ContentCache(
        lambda name: _json(standalone_schema(get_family(name)), "application/schema+json"), len(families())
    )

    @app.get("/v1/devices", **route_description(Devices, "Every device, with the source of each fact"))
    async def list_devices(request: Request) -> Response:
        return await device_list.answer("", request)

    @app.get("/v1/devices/{name}", **route_description(Device, "One device by name or alias", 404))
    async def get_device(name: str, request: Request) -> Response:
        return await by_device.answer(_known(lambda: devices.get(name[:MAX_TEXT]).name), request)

    @app.get("/v1/kernels", **route_description("KernelSchemas", "JSON Schema of a spec of every kernel family"))
    async def list_kernels(request: Request) -> Response:
        return await kernel_list.answer("", request)

    @app.get("/v1/kernels/{family}", **route_description("KernelSchema", "JSON Schema of a spec of one family", 404))
    async def get_kernel(family: str, request: Request) -> Response:
        return await by_family.answer(_known(lambda: get_family(family[:MAX_TEXT]).name), request)


def add_document(app: FastAPI) -> None:
    """Add `/openapi.json`, whose server is the prefix that the service is reached under."""

    def document(prefix: str) -> CachedContent:
        # Without the request that happens to be first: its id would be in the examples of problems.
        content = Context().run(app.openapi)
        return _json({**content, "servers": [{"url": prefix}, *content.get("servers", [])]} if prefix else content)

    # Prefixes may come with requests, through a trusted proxy.
    documents = ContentCache(document, _MAX_PREFIXES)

    async def openapi(request: Request) -> Response:
        return await documents.answer(request.scope.get("root_path", "").rstrip("/"), request)

    app.router.routes.append(Route("/openapi.json", openapi, methods=["GET"], include_in_schema=False))


def _known(name: Callable[[], str]) -> str:
    try:
        return name()
    except SpecError as error:
        raise ProblemError(404, str(error)) from error


def _json(answer: Any, media_type: str = "application/json") -> CachedContent:
    return CachedContent(msgspec.json.encode(answer), media_type)
