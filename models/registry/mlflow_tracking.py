"""Tracking of trainings with MLflow: parameters, metrics and the artifact itself, in SQLite or PostgreSQL.

The database is `KERNELCAST_HOME/mlflow.db` unless `KERNELCAST_REGISTRY_URI` names another; files go to
`KERNELCAST_HOME/mlruns`, or `KERNELCAST_ARTIFACT_ROOT`. Nothing else is contacted, and nothing is pickled.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...files import home_dir
from ..family_model.artifact import manifest_sha256, read_manifest

URI_ENV = "KERNELCAST_REGISTRY_URI"
ARTIFACT_ROOT_ENV = "KERNELCAST_ARTIFACT_ROOT"
EXPERIMENT = "kernelcast"
ARTIFACT_PATH = "model"
"""Folder of a run's files that holds the artifact."""

_CONNECT_TIMEOUT_S = 5
_TABLES_S = 60
_TABLES_LOCK = 0x6B65726E
"""What those who open a PostgreSQL database hold one after the other ("kern"), and how long the others wait for it, seconds."""
_PARAMS_PER_CALL, _METRICS_PER_CALL = 100, 500
"""MLflow takes at most 100 parameters and 1000 metrics in one `log_batch`."""

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""MLflow reads these from the environment, most of them when it is imported. A user's own settings stand, but for the
two that would load pickles or report to others."""


class RegistryError(RuntimeError):
    """The registry cannot be used: unreachable, locked, or asked for what it does not have."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """An open database.

    Attributes:
        uri: Its address.
        shown: The address without its password.
        artifact_root: Where artifacts are stored.
        client: An `mlflow.MlflowClient`.
    """

    uri: str
    shown: str
    artifact_root: str
    client: Any

    def experiment(self) -> str:
        """Id of the experiment all runs belong to, made when there is none."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            try:
                return str(self.client.create_experiment(EXPERIMENT, artifact_location=self.artifact_root))
            except _mlflow("exceptions").MlflowException:
                # Someone else made it between the two calls; if not, it was no race.
                experiment = self.client.get_experiment_by_name(EXPERIMENT)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)


def open_tracking() -> Tracking:
    """The database, its tables made or brought up to date.

    Raises:
        RegistryError: it is no SQLite or PostgreSQL address, unreachable or locked, or MLflow is not installed.
    """
    uri = _address(os.environ.get(URI_ENV) or f"sqlite:///{home_dir().absolute() / 'mlflow.db'}")
    root = os.environ.get(ARTIFACT_ROOT_ENV) or str(home_dir().absolute() / "mlruns")
    client_class = _import_mlflow()
    shown = _without_password(uri)
    with clear_errors(shown), _reached(uri):
        return Tracking(uri, shown, root, client_class(tracking_uri=uri, registry_uri=uri))


def log_training(artifact_dir: Path) -> str:
    """Log one training: parameters and data hashes, metrics per family, and the artifact directory as files.

    Returns:
        The run's id.

    Raises:
        ArtifactError: `artifact_dir` is no artifact.
        RegistryError: the database or the files cannot be written.
    """
    manifest, tracking = read_manifest(artifact_dir), open_tracking()
    families = {
        name: {"rows": entry["n_rows"], **entry.get("metrics", {})} for name, entry in manifest["families"].items()
    }
    with clear_errors(tracking.shown):
        tags = {"manifest_sha256": manifest_sha256(artifact_dir)}
        client = tracking.client
        run = client.create_run(
            tracking.experiment(), run_name=f"{manifest['regressor']} {manifest['created']}", tags=tags
        )
        done = "FAILED"
        try:
            _log(client, run.info.run_id, _params(manifest), dict(_flat(families)))
            client.log_artifacts(run.info.run_id, str(artifact_dir), ARTIFACT_PATH)
            done = "FINISHED"
        finally:
            client.set_terminated(run.info.run_id, done)
    return str(run.info.run_id)


@contextlib.contextmanager
def clear_errors(shown: str) -> Iterator[None]:
    """Turn what MLflow and the database raise into one sentence."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (_mlflow("exceptions").MlflowException, SQLAlchemyError, OSError) as error:
        raise RegistryError(f"the model registry at {shown} cannot be used: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
    text = " ".join(str(cause).split()).removesuffix(".")
    # A locked or broken database is told by the driver's words; SQL statements and links after them help nobody.
    for mark in (" (Background on this error", " [SQL:", "(sqlite3.OperationalError) ", "(psycopg2.OperationalError) "):
        before, reason, after = text.partition(mark)
        if reason:
            text = after if mark.startswith("(") else before
    return text or type(error).__name__


def _address(uri: str) -> str:
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme.partition("+")[0] not in ("sqlite", "postgresql", "postgres"):
        raise RegistryError(
            f"the model registry's address {_without_password(uri)!r} is neither sqlite:///FILE nor "
            "postgresql+psycopg2://USER@HOST/DATABASE"
        )
    # SQLAlchemy's default driver for a plain postgresql:// differs between its versions.
    return uri if scheme.startswith("sqlite") or "+" in scheme else f"postgresql+psycopg2://{rest}"


def _without_password(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    scheme, _, login = head.partition("://")
    return f"{scheme}://{login.partition(':')[0]}@{tail}" if at else uri


def _import_mlflow() -> Any:
    forced = ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION")
    for name, value in _QUIET.items():
        if name in forced or name not in os.environ:
            os.environ[name] = value
    try:
        with warnings.catch_warnings():
            # Its own use of what SQLAlchemy 2.1 and pydantic deprecate; nothing a user could change.
            warnings.simplefilter("ignore")
            client_class = importlib.import_module("mlflow").MlflowClient
            _mlflow("store.tracking.sqlalchemy_store")
            _mlflow("store.model_registry.sqlalchemy_store")
    except ImportError as error:
        raise RegistryError(f"the model registry needs {error.name}; run: pip install 'kernelcast[train]'") from error
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return client_class


def _mlflow(module: str) -> Any:
    """A module of MLflow, by name: type checkers that follow its imports take our `datasets` for Hugging Face's."""
    return importlib.import_module(f"mlflow.{module}")


@contextlib.contextmanager
def _reached(uri: str) -> Iterator[None]:
    """Connect once and briefly: MLflow itself would try for minutes before it gives up.

    In PostgreSQL it holds others off meanwhile: two who make the tables at once would trip over each other.
    """
    import sqlalchemy

    url = sqlalchemy.engine.make_url(uri)
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    try:
        engine = sqlalchemy.create_engine(
            url, connect_args={("timeout" if sqlite else "connect_timeout"): _CONNECT_TIMEOUT_S}
        )
    except ImportError as error:
        raise RegistryError(
            f"a registry in PostgreSQL needs psycopg2: pip install psycopg2-binary ({error})"
        ) from error
    try:
        with engine.connect() as connection:
            if sqlite:
                # Taking the write lock finds a database that another program holds.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.rollback()
            else:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_TABLES_S}s'")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TABLES_LOCK})")
            yield
    finally:
        engine.dispose()


def _params(manifest: Mapping[str, Any]) -> dict[str, str]:
    params = {name: str(manifest[name]) for name in ("regressor", "seed", "split", "kernelcast") if name in manifest}
    for i, file in enumerate(manifest.get("data", ())):
        params[f"data.{i}.name"], params[f"data.{i}.sha256"] = str(file["name"]), str(file["sha256"])
    for family, entry in manifest["families"].items():
        params[f"{family}.schema"] = str(entry["schema_hash"])
    return params


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers in nested mappings, by dotted name."""
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield path, float(value)


def _log(client: Any, run_id: str, params: Mapping[str, str], metrics: Mapping[str, float]) -> None:
    entities, now_ms = _mlflow("entities"), int(time.time() * 1000)
    all_params = [entities.Param(name, value) for name, value in params.items()]
    all_metrics = [entities.Metric(name, value, now_ms, 0) for name, value in metrics.items()]
    for start in range(0, len(all_params), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=all_params[start : start + _PARAMS_PER_CALL])
    for start in range(0, len(all_metrics), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=all_metrics[start : start + _METRICS_PER_CALL])
