"""GET /docs: the REST interface to read and try, by a vendored Swagger UI; nothing is loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .content import Content
from .pages import media_type
from .policy import PAGE_POLICY

FOLDER = Path(__file__).parent / "swagger"

DOCS_POLICY = PAGE_POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The policy of this one page: the style sheet's own arrows and locks are pictures inside it, as `data:` addresses. Pictures
cannot run anything; scripts and styles are held as tightly as on the other page."""

_PAGE = "page.html"


def add_docs(app: FastAPI) -> None:
    """Add the page at `/docs` and its files below; they are read now, so that no path is looked up while serving."""
    files = {
        path.name: Content(path.read_bytes(), media_type(path)) for path in sorted(FOLDER.iterdir()) if path.is_file()
    }
    shown = files.pop(_PAGE)
    page = Content(shown.body, shown.media_type, {"content-security-policy": DOCS_POLICY})

    async def docs(request: Request) -> Response:
        return await page.answer(request)

    async def file(request: Request) -> Response:
        # Not the page under a second address: its relative addresses would lead astray there.
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return await found.answer(request)

    app.router.routes.append(Route("/docs", docs, methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route("/docs/{name}", file, methods=["GET"], include_in_schema=False))
