"""The card of a model, in Markdown, from its manifest alone: where it answers, what it was trained on, what it is off by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .manifest import FOLDS, calibrated_devices, family_metrics

_LONGEST_CELL = 400
_MOST_FILES = 40


def model_card(name: str, manifest: Mapping[str, Any], model: str) -> str:
    """The card of the model called `name`, whose manifest's hash is `model`.

    What the manifest does not hold is not in the card; a damaged entry counts as one that is not there.
    """
    families = _mappings(manifest.get("families"))
    parts = [
        f"# Model {_plain(name)}",
        "Written by the service from the manifest of the model it answers with.",
        _facts(manifest, families, model),
        "## Where it answers",
        _table(("family", "rows", "predicted", "devices measured"), (_reach(*item) for item in families.items())),
        "Other devices of the catalogue are answered by carrying over: `method` says so, `in_domain` is false and intervals "
        "are those of devices left out of training.",
        *_calibration(manifest),
        *_trained_on(manifest),
        *_errors(manifest),
        *_versions(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(manifest: Mapping[str, Any], families: Mapping[str, Mapping[str, Any]], model: str) -> str:
    rows = sum(int(entry["n_rows"]) for entry in families.values() if isinstance(entry.get("n_rows"), int))
    facts = {
        "regressor": manifest.get("regressor"),
        "made": manifest.get("created"), "made by kernelcast": manifest.get("kernelcast"),
        "rows": f"{rows:,}", "split trained on": manifest.get("split"), "seed": manifest.get("seed"),
        "SHA-256 of the manifest": model,
    }  # fmt: skip
    return _table(("", ""), ((key, _cell(value)) for key, value in facts.items() if value is not None))


def _reach(family: str, entry: Mapping[str, Any]) -> Sequence[str]:
    targets = ", ".join(_mappings(entry.get("targets")))
    devices = ", ".join(_words(entry.get("devices")))
    return family, f"{entry['n_rows']:,}" if isinstance(entry.get("n_rows"), int) else "", targets, devices


def _calibration(manifest: Mapping[str, Any]) -> Iterable[str]:
    if devices := calibrated_devices(manifest):
        yield f"Calibrated after training on: {', '.join(_plain(device) for device in devices)}."


def _trained_on(manifest: Mapping[str, Any]) -> Iterable[str]:
    yield "## What it was trained on"
    sources = _mappings(manifest.get("sources"))
    if sources:
        yield _table(
            ("source", "licence", "rows", "what", "link"),
            (
                (name, *(_cell(one.get(key)) for key in ("licence", "rows", "what", "link")))
                for name, one in sources.items()
            ),
        )
    if isinstance(own := manifest.get("own_rows"), int):
        yield f"And {own:,} rows measured by kernelcast itself."
    files = [one for key in ("data", "own_data") for one in _entries(manifest.get(key))]
    if files:
        more = f"\n\nAnd {len(files) - _MOST_FILES} more files." if len(files) > _MOST_FILES else ""
        rows = ((_cell(one.get("name")), _cell(one.get("sha256"))) for one in files[:_MOST_FILES])
        yield _table(("file", "SHA-256"), rows) + more
    elif not sources:
        yield "The manifest does not say."


def _errors(manifest: Mapping[str, Any]) -> Iterable[str]:
    yield "## What it is off by"
    found = False
    for key, (title, doc) in FOLDS.items():
        rows = [
            (family, target, _figure(one, "n", ""), *(_figure(one, f"{name}_pct", " %") for name in _FIGURES))
            for family, metrics in family_metrics(manifest, key)
            for target, one in metrics.items()
            if isinstance(one, Mapping) and one.get("n")
        ]
        if rows:
            found = True
            yield f"### {title.capitalize()}"
            yield doc
            yield _table(("family", "target", "rows", "mean error", "median error", "within 10 %"), rows)
    if not found:
        yield "The manifest holds no held-out errors. `kernelcast evaluate` judges the model on measured rows."


_FIGURES = ("mean_ape", "median_ape", "within_10")


def _versions(manifest: Mapping[str, Any]) -> Iterable[str]:
    versions = manifest.get("versions")
    if isinstance(versions, Mapping) and versions:
        yield "## Made with"
        yield ", ".join(f"{_plain(key)} {_plain(value)}" for key, value in versions.items()) + "."


def _figure(found: Mapping[str, Any], name: str, unit: str) -> str:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:.1f}{unit}"


def _mappings(value: Any) -> dict[str, Mapping[str, Any]]:
    """The entries of a mapping that are mappings themselves."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): one for key, one in value.items() if isinstance(one, Mapping)}


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _words(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


def _cell(value: Any) -> str:
    return (
        "" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )


def _plain(value: Any) -> str:
    """Text of a manifest as text: no table's end, no line's end, and nothing a reader of Markdown takes for HTML."""
    text = " ".join(str(value).split())[:_LONGEST_CELL]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)
