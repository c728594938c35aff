"""The explorer page: every file of `static/`, read once at start and served from memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .content import Content

STATIC_DIR = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".webp": "image/webp",
}
"""Kinds of files that `static/` may hold; another kind is a mistake of whoever put it there."""

_NAMED = {"/": "index.html", "/favicon.ico": "icon.svg"}


def media_type(path: Path) -> str:
    """The media type of a static file; a file without an ending, such as a licence, is plain text.

    Raises:
        ValueError: its ending is not in `MEDIA_TYPES`.
    """
    if not path.suffix:
        return MEDIA_TYPES[".txt"]
    if path.suffix not in MEDIA_TYPES:
        raise ValueError(f"{path.name}: static files end in {', '.join(MEDIA_TYPES)}; add its media type to serve it")
    return MEDIA_TYPES[path.suffix]


def static_files(folder: Path = STATIC_DIR) -> Iterator[tuple[str, Path]]:
    """Address and file of everything the page consists of."""
    for address, name in _NAMED.items():
        yield address, folder / name
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield f"/static/{path.relative_to(folder).as_posix()}", path


def add_pages(app: FastAPI) -> None:
    """Add the routes of the page. No path is looked up on disk while serving, so none can lead out of the folder."""
    table = {address: Content(path.read_bytes(), media_type(path)) for address, path in static_files()}

    def answering(address: str | None) -> Callable[[Request], Awaitable[Response]]:
        async def file(request: Request) -> Response:
            # By the route's own part of the path: a proxy's prefix is not in it.
            found = table.get(address or f"/static/{request.path_params['name']}")
            if found is None:
                raise HTTPException(404)
            return await found.answer(request)

        return file

    for address in _NAMED:
        app.router.routes.append(Route(address, answering(address), methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route("/static/{name:path}", answering(None), methods=["GET"], include_in_schema=False))
