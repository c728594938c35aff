"""What MkDocs cannot do alone for `make docs`: the first page, the references, links out of this folder, and a small result.

The references are made of what they describe: the command line by Typer, Python by mkdocstrings from docstrings, the routes
from the OpenAPI document. MkDocs calls the functions by their names (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import typer
from kernelcast.api.page.openapi import document
from kernelcast.api.page.static_files import MEDIA_TYPES
from kernelcast.commands import app
from kernelcast.features.device import catalogue
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click
from typer.main import get_command

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, which is the README, and the references."""
    pages = {
        "index.md": first_page((ROOT / "README.md").read_text(encoding="utf-8")),
        "decisions/index.md": decisions_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/rest.md": routes_page(document(catalogue())),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """The page's text without links to files outside this folder, which the site does not have: their names stay."""
    folder = posixpath.dirname(page.file.src_uri)

    def without_outside(link: re.Match[str]) -> str:
        words, target, _ = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = "://" in target or files.get_file_from_path(path) is not None
        return link[0] if inside else words if words.startswith("`") else f"`{words}`"

    return LINK.sub(without_outside, markdown)


def on_post_build(config: Any) -> None:
    """Remove what a reader never loads: maps of scripts, other languages' search, lists for crawlers."""
    for path in sorted(Path(config["site_dir"]).rglob("*"), reverse=True):
        if path.is_file() and (path.suffix not in MEDIA_TYPES or "lunr" in path.parts or path.name == "404.html"):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def first_page(readme: str) -> str:
    """The README with its links as seen from this folder."""
    return re.sub(r"\]\(docs/", "](", readme)


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` has them; hidden ones are left out."""
    command = get_command(app).help_page()
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="kernelcast", title="Command line")


def python_page() -> str:
    """The Python interface: mkdocstrings fills it from the docstrings of what `kernelcast` names."""
    parts = ["# Python", *(f"::: {name}" for name in ("kernelcast", "kernelcast.client.client.Client"))]
    return "\n\n".join(parts) + "\n"


def routes_page(content: dict[str, Any]) -> str:
    """The routes by group, each with what it answers; to try them there is `/docs/api` of the service."""
    parts = ["# REST", "To try them, with their schemas and examples: `/docs/api` of a service, or `/openapi.json`."]
    for tag in content["tags"]:
        rows = [
            f"| `{method.upper()} {path}` | {operation['summary'].replace('|', ' ')} |"
            for path, operations in content["paths"].items()
            for method, operation in operations.items()
            if operation["tags"] == [tag["name"]]
        ]
        parts += [f"## {tag['name']}", tag["description"] + ".", "\n".join(["| route | answers |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def decisions_page(folder: Path = ROOT / "docs" / "decisions") -> str:
    """The decisions in order, each by its title."""
    titles = [
        (path.name, path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")) for path in folder.glob("*.md")
    ]
    return "\n".join(["# Decisions\n", *(f"* [{title}]({name})" for name, title in sorted(titles))]) + "\n"
