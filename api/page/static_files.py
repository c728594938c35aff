"""The explorer page and the page of the REST interface, read once at start and served from memory.

`/` and `/static/` serve the files of `static/`; `/docs` serves a vendored Swagger UI, which loads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..transport.responses import PAGE_POLICY, CachedContent

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
    table = {address: CachedContent(path.read_bytes(), media_type(path)) for address, path in static_files()}

    def answering(address: str | None) -> Callable[[Request], Awaitable[Response]]:
        async def file(request: Request) -> Response:
            # By the route's own part of the path: a proxy's prefix is not in it.
            content = table.get(address or f"/static/{request.path_params['name']}")
            if content is None:
                raise HTTPException(404)
            return content.answer(request)

        return file

    for address in _NAMED:
        app.router.routes.append(Route(address, answering(address), methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route("/static/{name:path}", answering(None), methods=["GET"], include_in_schema=False))


SWAGGER_DIR = Path(__file__).parent / "swagger"

DOCS_POLICY = PAGE_POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The policy of this one page: the style sheet's own arrows and locks are pictures inside it, as `data:` addresses. Pictures
cannot run anything; scripts and styles are held as tightly as on the other page."""

_PAGE = "page.html"


def add_docs(app: FastAPI) -> None:
    """Add the page at `/docs` and its files below; they are read now, so that no path is looked up while serving."""
    files = {
        path.name: CachedContent(path.read_bytes(), media_type(path))
        for path in sorted(SWAGGER_DIR.iterdir())
        if path.is_file()
    }
    shown = files.pop(_PAGE)
    page = CachedContent(shown.body, shown.media_type, {"content-security-policy": DOCS_POLICY})

    async def docs(request: Request) -> Response:
        return page.answer(request)

    async def file(request: Request) -> Response:
        # Not the page under a second address: its relative addresses would lead astray there.
        content = files.get(request.path_params["name"])
        if content is None:
            raise HTTPException(404)
        return content.answer(request)

    app.router.routes.append(Route("/docs", docs, methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route("/docs/{name}", file, methods=["GET"], include_in_schema=False))
