"""`kernelcast serve`: the REST service and the explorer page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .console import DeviceFiles, Json, note, print_json


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on, 0 for any free one [default: 8000].")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model directory; default: the champion, or the shipped model.")
    ] = None,
    device_file: DeviceFiles = None,
    access_log: Annotated[bool | None, typer.Option(help="Log every request.")] = None,
    as_json: Json = False,
) -> None:
    """Serve predictions over REST, with a page to explore them, until Ctrl-C.

    What is not given here is read from KERNELCAST_HOST, KERNELCAST_PORT, KERNELCAST_MODEL … where they are set.
    """
    from ..api.server import cap_threads
    from ..api.settings import Settings

    cap_threads()
    from ..api.server import serve as run

    given = {"host": host, "port": port, "model": model, "access_log": access_log}
    given["device_files"] = tuple(device_file) if device_file else None
    settings = replace(Settings.from_env(), **{name: value for name, value in given.items() if value is not None})

    def ready(address: str) -> None:
        if as_json:
            print_json({"address": address})
        note(f"kernelcast answers at {address} (page: {address}/, description: {address}/openapi.json); Ctrl-C stops it")

    run(settings, ready)
