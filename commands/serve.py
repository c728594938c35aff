"""`kernelcast serve`, the REST service with its page, and `kernelcast serve keys`, its API keys."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..features.errors import SpecError
from ..files import home_dir
from . import console

_EXAMPLE_TIMEOUT_S = 120.0


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on, 0 for any free one (default: 8000).")
    ] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    access_log: Annotated[bool | None, typer.Option(help="Log every request.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes that answer (default: 1).")] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of API keys that `kernelcast serve keys` made.")
    ] = None,
    allow_open: Annotated[
        bool | None,
        typer.Option("--allow-open", help="Listen to others without keys, behind a proxy that asks for them."),
    ] = None,
    usage_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Count the kernels asked for in this folder, for `kernelcast measure nightly`."
        ),
    ] = None,
    root_path: Annotated[str | None, typer.Option(help="Prefix a proxy serves it under, such as /kernelcast.")] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Also make one request and print it with its answer.")
    ] = False,
    as_json: console.Json = False,
) -> None:
    """Serve predictions over REST, with a page to explore them, until Ctrl-C.

    Options that are not set are read from KERNELCAST_HOST, KERNELCAST_PORT, KERNELCAST_MODEL … where they are set.
    """
    from ..api.middleware.access import check_exposure
    from ..api.server import serve as run
    from ..api.settings import Settings

    chosen: dict[str, Any] = {
        "host": host, "port": port, "model": model, "device_files": tuple(device_file) if device_file else None,
        "access_log": access_log, "workers": workers, "root_path": None if root_path is None else _prefix(root_path),
        "api_keys_file": keys, "allow_open": allow_open, "usage_log": usage_log,
    }  # fmt: skip
    settings = replace(Settings.from_env(), **{name: value for name, value in chosen.items() if value is not None})

    def ready(address: str) -> None:
        if as_json:
            console.print_json({"address": address})
        console.note(
            f"kernelcast answers at {address} (page: {address}/, description: {address}/openapi.json); Ctrl-C stops it"
        )
        if example:
            # The server takes this thread over; the request waits in the socket's queue until it does.
            threading.Thread(target=_show_example, args=(address, as_json), daemon=True).start()

    check_exposure(
        settings.host,
        has_keys=bool(settings.api_keys),
        keys_file=settings.api_keys_file,
        allow_open=settings.allow_open,
    )
    run(settings, ready)


def _prefix(text: str) -> str:
    from ..api.middleware.proxy import root_path

    try:
        return root_path(text)
    except ValueError as error:
        raise SpecError(f"--root-path is {text!r}: {error}", field="root_path") from error


def _show_example(address: str, as_json: bool) -> None:
    """Ask the service for one prediction, and print the request as a curl command with its answer."""
    from ..client.connection import ClientError, Connections, encode

    service = Connections(address, {}, _EXAMPLE_TIMEOUT_S, retries=0, longest_wait_s=0.0, ssl_context=None)
    try:
        spec = _example_spec(json.loads(service.ask("GET", "/v1/models").body))
        answer = json.loads(service.ask("POST", "/v1/predict", encode(spec)).body)
    except ClientError as error:
        console.note(f"the example request failed: {error}")
        return
    if as_json:
        console.print_json({"request": spec, "answer": answer})
        return
    body = json.dumps(spec)
    print(f"curl -s {address}/v1/predict -H 'content-type: application/json' -d '{body}'")  # noqa: T201 - the answer
    print(json.dumps(answer, indent=2), flush=True)  # noqa: T201 - the answer


def _example_spec(models: dict[str, Any]) -> dict[str, Any]:
    """A spec of a family and a device that the loaded model was trained on."""
    from ..features.kernel import get_family
    from ..features.spec_io.json_schema import family_example

    manifest = models["models"][0]["manifest"] if models["models"] else {}
    families = manifest.get("families") or {"gemm": {}}
    name = "gemm" if "gemm" in families else next(iter(families))
    example = family_example(get_family(name))
    devices = families[name].get("devices") or [example["device"]]
    return example if example["device"] in devices else example | {"device": devices[0]}


FILE_ENV = "KERNELCAST_API_KEYS_FILE"

keys = typer.Typer(help="Make, list and revoke the API keys of a service.", no_args_is_help=True, add_completion=False)

File = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"Key file; default: ${FILE_ENV}, else api-keys in KERNELCAST_HOME."),
]


@keys.command("new")
def new(
    name: Annotated[str, typer.Option(help="Name under which the key is listed and revoked.")],
    scope: Annotated[
        str, typer.Option(help="read: predictions and queries; admin: also changes to the service.")
    ] = "read",
    file: File = None,
    as_json: console.Json = False,
) -> None:
    """Make a key and print it, this once; the file keeps only its hash."""
    from ..api.middleware.api_keys import add_key, new_key

    path = _file(file)
    token, key = new_key(name, scope)
    add_key(path, key)
    if as_json:
        console.print_json({"key": token, "name": key.name, "scope": key.scope, "made": key.created, "file": path})
        return
    console.out().print(token, soft_wrap=True)
    console.note(
        f"key {key.name} ({key.scope}) is in {path} as its hash; it is not shown again. A service that runs on this file takes "
        f"it within seconds; start one with: kernelcast serve --keys {path}"
    )


@keys.command("list")
def list_keys(file: File = None, as_json: console.Json = False) -> None:
    """Show the names and scopes of a file's keys."""
    from ..api.middleware.api_keys import read_key_file

    listed = [
        {"name": key.name, "scope": key.scope, "made": key.created or None, "hash": key.digest.hex()}
        for key in read_key_file(_file(file))
    ]
    if as_json:
        console.print_json(listed)
        return
    table = console.new_table("name", "scope", "made", "hash")
    for key in listed:
        table.add_row(key["name"], key["scope"], key["made"], (key["hash"] or "")[:12])
    console.out().print(table)


@keys.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")],
    file: File = None,
    as_json: console.Json = False,
) -> None:
    """Take a key out of the file; a service that runs on it stops taking the key within seconds."""
    from ..api.middleware.api_keys import revoke_key

    path = _file(file)
    key = revoke_key(path, name)
    if as_json:
        console.print_json({"revoked": key.name, "scope": key.scope, "file": path})
    else:
        console.out().print(f"revoked {key.name} ({key.scope}) in {path}", soft_wrap=True)


def _file(file: Path | None) -> Path:
    path = file or Path(os.environ.get(FILE_ENV, "").strip() or home_dir() / "api-keys")
    if path.is_dir():
        raise SpecError(f"{path} is a folder; --file is the key file itself", field="file")
    return path
