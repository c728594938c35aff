"""The explorer page, the pages of documentation and the page of the routes, read once at start and served from memory.

`/` and `/static/` serve the files of `static/`, `static/page.js` and `page.css`, which join those that `/` needs first, and
`static/grids.json`, the names of grids.
`/docs/` serves the documentation, which `make docs` builds into `site/`, and `/docs/api` a vendored Swagger UI; none of them
loads anything from elsewhere. A copy in which the documentation was not built leads from `/docs` to the page of the routes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...models.predict.carbon import grids
from ..transport.responses import PAGE_POLICY, CachedContent
from .bundle import Bundle, joined_styles

STATIC_DIR = Path(__file__).parent / "static"
SWAGGER_DIR = Path(__file__).parent / "swagger"
SITE_DIR = Path(__file__).parent / "site"
"""What `make docs` wrote; not there in a clone where it never ran."""

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
"""Kinds of files that the folders may hold; another kind is a mistake of whoever put it there."""

_NAMED = {
    "/": STATIC_DIR / "index.html",
    "/favicon.ico": STATIC_DIR / "icon.svg",
    "/docs/api": SWAGGER_DIR / "page.html",
}

DOCS_POLICY = PAGE_POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The policy of the page of the routes: the style sheet's own arrows and locks are pictures inside it, as `data:` addresses.
Pictures cannot run anything; scripts and styles are held as tightly as on the explorer page."""

FIRST_FILES = ", ".join(
    f"<{address}>; rel=preload; as={kind}"
    for address, kind in (("static/page.css", "style"), ("static/page.js", "script"))
)
"""What a browser may fetch while it still reads the page (RFC 8288, `Link`), all at once and not each after the one before. No
answers of routes: where these ask for a key, the browser would give the script the refusal that it fetched without one."""

_FIRST_SCRIPT = b'<script src="static/theme.js"></script>'
"""Sent inside the page, before the style sheet: it asks for the devices a request earlier, and waits for no style sheet."""

_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def site_policy(page: bytes, policy: str = DOCS_POLICY) -> str:
    """The policy of a page: `policy`, and the page's own inline scripts by their hashes.

    Source: Content Security Policy Level 3, "hash-source".
    """
    hashes = {base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _INLINE_SCRIPT.findall(page)}
    return policy.replace(
        "script-src 'self'", " ".join(["script-src 'self'", *(f"'sha256-{digest}'" for digest in sorted(hashes))])
    )


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
    """Address and file of everything the explorer page and the page of the routes consist of."""
    yield from _NAMED.items()
    yield from files_below("/static", STATIC_DIR)
    # Not the page under a second address: its relative addresses would lead astray there.
    yield from (item for item in files_below("/docs/api", SWAGGER_DIR) if item[1] != _NAMED["/docs/api"])


def files_below(address: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Address and file of everything in a folder but what is hidden."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield f"{address}/{inside.as_posix()}", path


STYLES = ("base.css", "controls.css", "answers.css", "charts.css", "explore.css", "print.css")
"""Style sheets of the page in `static/css/`, in the order in which their rules apply."""


def page_routes(site: Path = SITE_DIR) -> list[Route]:
    """The routes of the pages. No path is looked up on disk while serving, so none can lead out of the folders.

    Args:
        site: the folder of the built documentation; one that is not there is none.
    """
    bundle = Bundle(STATIC_DIR / "shell.js")
    files = {address: CachedContent(_content(path, bundle), media_type(path)) for address, path in static_files()}
    files["/static/page.js"] = CachedContent(bundle.script, MEDIA_TYPES[".js"])
    files["/static/page.css"] = CachedContent(joined_styles(STATIC_DIR / "css", STYLES), MEDIA_TYPES[".css"])
    names = json.dumps({grid.name: grid.title for grid in grids().values()}, ensure_ascii=False)
    files["/static/grids.json"] = CachedContent(names.encode(), MEDIA_TYPES[".json"])
    shell = files["/"]
    body = shell.body.replace(_FIRST_SCRIPT, b"<script>\n%b</script>" % files["/static/theme.js"].body)
    policy = {"content-security-policy": site_policy(body, PAGE_POLICY)}
    files["/"] = CachedContent(body, shell.media_type, {"link": FIRST_FILES, **policy})
    page = files["/docs/api"]
    files["/docs/api"] = CachedContent(page.body, page.media_type, {"content-security-policy": DOCS_POLICY})
    for address, path in files_below("/docs", site):
        body = path.read_bytes()
        policy = {"content-security-policy": site_policy(body)} if path.suffix == ".html" else {}
        files[address] = CachedContent(body, media_type(path), policy)
    # Relative, so that they hold under a proxy's prefix.
    moved = {"/docs": "docs/"}
    if (first := files.get("/docs/index.html")) is not None:
        files["/docs/"] = first
    else:
        moved |= {"/docs": "docs/api", "/docs/": "api"}

    async def file(request: Request) -> Response:
        path = request.scope["path"]
        if path in moved:
            return RedirectResponse(moved[path])
        content = files.get(path)
        if content is None:
            raise HTTPException(404)
        return content.answer(request)

    paths = (*_NAMED, "/docs", "/static/{name:path}", "/docs/{name:path}")
    return [Route(path, file, methods=["GET"]) for path in paths]


def _content(path: Path, bundle: Bundle) -> bytes:
    is_module = path.suffix == ".js" and path.parent in (STATIC_DIR, STATIC_DIR / "views")
    return bundle.module(path) if is_module else path.read_bytes()
