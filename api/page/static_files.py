"""The explorer page and the page of the REST interface, read once at start and served from memory.

`/` and `/static/` serve the files of `static/`, and `static/page.js` and
`page.css`, which join those that `/` needs first; `/docs` serves a vendored Swagger UI, which loads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..transport.responses import PAGE_POLICY, CachedContent
from .bundle import Bundle, joined_styles

STATIC_DIR = Path(__file__).parent / "static"
SWAGGER_DIR = Path(__file__).parent / "swagger"

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

_NAMED = {"/": STATIC_DIR / "index.html", "/favicon.ico": STATIC_DIR / "icon.svg", "/docs": SWAGGER_DIR / "page.html"}

DOCS_POLICY = PAGE_POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The policy of `/docs` alone: the style sheet's own arrows and locks are pictures inside it, as `data:` addresses. Pictures
cannot run anything; scripts and styles are held as tightly as on the other page."""


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


def static_files() -> Iterator[tuple[str, Path]]:
    """Address and file of everything the pages consist of."""
    yield from _NAMED.items()
    yield from files_below("/static", STATIC_DIR)
    # Not the page under a second address: its relative addresses would lead astray there.
    yield from (item for item in files_below("/docs", SWAGGER_DIR) if item[1] != _NAMED["/docs"])


def files_below(address: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Address and file of everything in a folder but what is hidden."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield f"{address}/{inside.as_posix()}", path


STYLES = ("base.css", "controls.css", "answers.css", "charts.css", "explore.css", "print.css")
"""Style sheets of the page in `static/css/`, in the order in which their rules apply."""


def page_routes() -> list[Route]:
    """The routes of the pages. No path is looked up on disk while serving, so none can lead out of the folders."""
    bundle = Bundle(STATIC_DIR / "shell.js")
    files = {address: CachedContent(_content(path, bundle), media_type(path)) for address, path in static_files()}
    files["/static/page.js"] = CachedContent(bundle.script, MEDIA_TYPES[".js"])
    files["/static/page.css"] = CachedContent(joined_styles(STATIC_DIR / "css", STYLES), MEDIA_TYPES[".css"])
    page = files["/docs"]
    files["/docs"] = CachedContent(page.body, page.media_type, {"content-security-policy": DOCS_POLICY})

    async def file(request: Request) -> Response:
        content = files.get(request.scope["path"])
        if content is None:
            raise HTTPException(404)
        return content.answer(request)

    return [Route(path, file, methods=["GET"]) for path in (*_NAMED, "/static/{name:path}", "/docs/{name}")]


def _content(path: Path, bundle: Bundle) -> bytes:
    is_module = path.suffix == ".js" and path.parent in (STATIC_DIR, STATIC_DIR / "views")
    return bundle.module(path) if is_module else path.read_bytes()
