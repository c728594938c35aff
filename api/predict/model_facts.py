"""The model that a request names, or describes by the content of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...features.errors import SpecError
from ...features.spec_io.reading import MAX_TEXT, kind_of
from ...workloads.architectures.config.catalogue import model_facts
from ...workloads.architectures.config.reading import read_facts
from ...workloads.architectures.facts import ModelFacts
from ..transport.problems import field_problem, invalid, invalid_field, naming_field


def facts_of_request(root: Mapping[str, Any]) -> ModelFacts:
    """The facts of the model in `model`, or else in `config`.

    Raises:
        ProblemError: 422, no such model ships, or the configuration is not read.
    """
    if (name := root.get("model")) is not None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_TEXT:
            raise invalid_field("model", f"must be the name of a model that ships, of at most {MAX_TEXT} characters")
        # The name alone: `facts_of` would read files.
        return naming_field(lambda: model_facts(name), "model")
    config = root["config"]
    if not isinstance(config, dict):
        raise invalid_field("config", f"must be the object of a config.json, not {kind_of(config)}")
    title = config.get("_name_or_path")
    try:
        return read_facts(config, title if isinstance(title, str) and title else "model", source="the request")
    except SpecError as error:
        raise invalid([field_problem(error, f"config.{error.field}" if error.field else "config")]) from error
