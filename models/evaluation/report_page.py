"""The page all reports are: one HTML file that needs nothing else, no script, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from ...features.errors import SpecError
from ...files import write_whole

TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}
"""What targets are called."""

_STYLE = Path(__file__).with_name("report.css")


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of sections."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · kernelcast</title>"
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def head(title: str, facts: Mapping[str, object], notes: Iterable[str]) -> str:
    """The top of a page: what was looked at, and what a reader must know."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(words(value))}</dd></div>" for name, value in facts.items()
    )
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f"<header><p class=brand>kernelcast</p><h1>{escape(title)}</h1><dl>{items}</dl>{remarks}</header>"


def words(value: object) -> str:
    """A fact in words; whole numbers with separators, mappings as pairs."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def figures(charts: Iterable[tuple[str, str]]) -> str:
    """Charts side by side, each an SVG and its caption (which may hold marks of its own)."""
    drawn = "".join(f"<figure>{svg}<figcaption>{text}</figcaption></figure>" for svg, text in charts)
    return f"<div class=plots>{drawn}</div>"


def table(heads: Iterable[str], body: Iterable[str], kind: str = "") -> str:
    """A table of rows that are already marked up, in a box of its own that scrolls on a narrow screen."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in heads)
    mark = f" class={kind}" if kind else ""
    return (
        f"<div class=scroll><table{mark}><thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def percent(value: float | None, digits: int = 1) -> str:
    """A percentage, or a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f} %"


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    try:
        write_whole(path, html)
    except OSError as error:
        raise SpecError(f"cannot write the report {path}: {error.strerror or error}", field="html") from error
