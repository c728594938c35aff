"""GET /v1/model-card: the card of the model that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..model_source import LoadedModel, PredictorSource, require_model
from ..transport.bodies import parameters
from ..transport.problems import ProblemError
from .accuracy import FOLDS, calibrated_devices, family_metrics, manifest_of, model_hash

CARD_FILE = "model-card.md"
"""A card that whoever made the model put into its directory, which is replaced as a whole when the model is."""

_LONGEST_B = 256 << 10
_MEDIA_TYPE = "text/markdown; charset=utf-8"


def card_endpoint(source: PredictorSource) -> Callable[[Request], Response]:
    """What answers `/v1/model-card`."""

    def card(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        return Response(card_of(require_model(source)), media_type=_MEDIA_TYPE)

    return card


def card_of(loaded: LoadedModel) -> str:
    """The card in the model's directory, else one written from its manifest.

    Raises:
        ProblemError: 404, the predictor has neither; 500, the card in the directory cannot be used.
    """
    if loaded.path is not None and (text := _own_card(loaded.path)) is not None:
        return text
    manifest = manifest_of(loaded)
    if manifest is None:
        raise ProblemError(404, "the served predictor has no card and no manifest to write one from")
    return model_card(loaded.name, manifest, model_hash(manifest))


def _own_card(directory: Path) -> str | None:
    try:
        with (directory / CARD_FILE).open("rb") as file:
            raw = file.read(_LONGEST_B + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProblemError(500, f"{CARD_FILE} beside the model cannot be read: {error.strerror}") from error
    if len(raw) > _LONGEST_B:
        raise ProblemError(500, f"{CARD_FILE} beside the model is longer than {_LONGEST_B} bytes; shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(500, f"{CARD_FILE} beside the model is not UTF-8; save it as such") from error


_LONGEST_CELL = 400
_MOST_FILES = 40
_MOST_NAMES = 6


def model_card(name: str, manifest: Mapping[str, Any], model: str) -> str:
    """The card of the model called `name`, whose manifest's hash is `model`.

    What the manifest does not hold is not in the card; a damaged entry counts as one that is not there.
    """
    families = _mappings(manifest.get("families"))
    reach = [
        (family, _figure(entry, "n_rows", ""), str(len(devices)), _some(devices))
        for family, entry in families.items()
        for devices in [_words(entry.get("devices"))]
    ]
    calibrated = ", ".join(map(_plain, calibrated_devices(manifest)))
    versions = manifest.get("versions")
    made_with = versions.items() if isinstance(versions, Mapping) else ()
    parts = [
        f"# Model {_plain(name)}",
        _summary(families),
        *_errors(manifest),
        "## Families and devices",
        _table(("family", "rows", "devices", "measured on"), reach),
        f"Calibrated after training on: {calibrated}." if calibrated else "",
        *_trained_on(manifest),
        "## How it was made",
        _facts(manifest, families, model),
        ", ".join(f"{_plain(key)} {_plain(value)}" for key, value in made_with),
        *_files(manifest),
        "Written by the service from the manifest of the model it serves.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(families: Mapping[str, Mapping[str, Any]]) -> str:
    """What the model is for and where its answers are weak, in three sentences."""
    targets = dict.fromkeys(target for entry in families.values() for target in _words(entry.get("targets")))
    devices = {device for entry in families.values() for device in _words(entry.get("devices"))}
    return (
        f"Predicts {', '.join(map(_plain, targets)) or 'the cost'} of {len(families)} kernel families, each with an interval. "
        f"It was trained on measurements of {len(devices)} devices. Answers for any other device of the catalogue are "
        "transferred from those: `method` says so, `in_domain` is false, the interval is that of devices left out of training, "
        "and the value can be wrong by a factor until the model is calibrated there."
    )


def _some(names: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _facts(manifest: Mapping[str, Any], families: Mapping[str, Mapping[str, Any]], model: str) -> str:
    rows = sum(int(entry["n_rows"]) for entry in families.values() if isinstance(entry.get("n_rows"), int))
    facts = {
        "regressor": manifest.get("regressor"),
        "made": manifest.get("created"), "made by kernelcast": manifest.get("kernelcast"),
        "rows": f"{rows:,}", "split trained on": manifest.get("split"), "seed": manifest.get("seed"),
        "SHA-256 of the manifest": model,
    }  # fmt: skip
    return _table(("", ""), ((key, _cell(value)) for key, value in facts.items() if value is not None))


def _trained_on(manifest: Mapping[str, Any]) -> Iterable[str]:
    yield "## What it was trained on"
    sources = _mappings(manifest.get("sources"))
    if sources:
        yield _table(
            ("source", "licence", "rows", "what", "link"),
            (
                (name, *(_cell(entry.get(key)) for key in ("licence", "rows", "what", "link")))
                for name, entry in sources.items()
            ),
        )
    if isinstance(user_rows := manifest.get("own_rows"), int):
        yield f"And {user_rows:,} rows measured by kernelcast itself."
    if not sources and not _listed_files(manifest):
        yield "The manifest does not list it."


def _listed_files(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for key in ("data", "own_data") for entry in _entries(manifest.get(key))]


def _files(manifest: Mapping[str, Any]) -> Iterable[str]:
    files = _listed_files(manifest)
    if files:
        more = f"\n\nAnd {len(files) - _MOST_FILES} more files." if len(files) > _MOST_FILES else ""
        rows = ((_cell(entry.get("name")), _cell(entry.get("sha256"))) for entry in files[:_MOST_FILES])
        yield "### Files"
        yield _table(("file", "SHA-256"), rows) + more


def _errors(manifest: Mapping[str, Any]) -> Iterable[str]:
    yield "## Errors"
    any_metric = False
    for key, (title, doc) in FOLDS.items():
        rows = [
            (family, target, _figure(metric, "n", ""), *(_figure(metric, f"{name}_pct", " %") for name in _FIGURES))
            for family, metrics in family_metrics(manifest, key)
            for target, metric in metrics.items()
            if isinstance(metric, Mapping) and metric.get("n")
        ]
        if rows:
            any_metric = True
            yield f"### {title.capitalize()}"
            yield doc
            yield _table(("family", "target", "rows", "mean error", "median error", "within 10 %"), rows)
    if not any_metric:
        yield "The manifest holds no held-out errors. `kernelcast evaluate` judges the model on measured rows."


_FIGURES = ("mean_ape", "median_ape", "within_10")


def _figure(metric: Mapping[str, Any], name: str, unit: str) -> str:
    value = metric.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:.1f}{unit}"


def _mappings(value: Any) -> dict[str, Mapping[str, Any]]:
    """The entries of a mapping that are mappings themselves."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): entry for key, entry in value.items() if isinstance(entry, Mapping)}


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def _words(value: Any) -> list[str]:
    """The entries of a list, or the names of a mapping."""
    return [str(entry) for entry in value] if isinstance(value, list | tuple | Mapping) else []


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
