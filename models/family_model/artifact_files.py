"""What every artifact of a model is: a directory with `manifest.json`, which names the other files with their SHA-256.

The other files are compressed ONNX graphs; nothing in an artifact can run code. An artifact is written beside its place and
renamed into it, so a reader sees the old one or the new one (or, for an instant, none), never half of one.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...features.errors import SpecError
from ...files import whole_folder, write_whole
from ...version import __version__

MANIFEST = "manifest.json"

StoreGraph = Callable[[str, bytes], str]
"""Writes a graph under a name, less its ending; returns the file's name."""


class ArtifactError(SpecError):
    """An artifact that cannot be used: missing, incomplete, corrupt, or made for another version."""


@dataclass(frozen=True, slots=True)
class ArtifactFormat:
    """One format of artifacts.

    Attributes:
        title: What an artifact of it is, in messages.
        command: The `kernelcast` command that makes one.
        version: Of the layout; no other is read.
        kind: What the manifest says it is a model of; models of kernels say nothing.
        features: Hash of the features that models are trained on; None where each part of a model has its own.
        required: Types of keys that a manifest must have.
    """

    title: str
    command: str
    version: int
    kind: str | None = None
    features: Callable[[], str] | None = None
    required: Mapping[str, type] = field(default_factory=lambda: {"files": dict})

    def save(self, directory: Path, content: Callable[[StoreGraph], Mapping[str, Any]]) -> None:
        """Write an artifact, replacing what was in `directory` only once all of it is on disk.

        Args:
            directory: where it goes.
            content: stores the graphs and returns what the manifest says of the model.

        Raises:
            ArtifactError: `directory` is something else's, or cannot be written.
        """
        if directory.exists() and (
            not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST).exists())
        ):
            raise ArtifactError(f"{directory} exists and is no model directory; choose another --out")
        try:
            with whole_folder(directory) as staging:
                files: dict[str, str] = {}

                def store(name: str, graph: bytes) -> str:
                    # A fixed time stamp: equal models give equal bytes, and so equal hashes.
                    packed = gzip.compress(graph, compresslevel=9, mtime=0)
                    file = f"{name}.onnx.gz"
                    write_whole(staging / file, packed)
                    files[file] = hashlib.sha256(packed).hexdigest()
                    return file

                head: dict[str, Any] = {"format_version": self.version, "kernelcast": __version__}
                head |= {"kind": self.kind} if self.kind else {}
                head |= {"schema_hash": self.features()} if self.features else {}
                created = datetime.now(UTC).isoformat(timespec="seconds")
                write_manifest(staging, {**head, "created": created, **content(store), "files": files})
        except OSError as error:
            raise ArtifactError(f"cannot write the model to {directory}: {error.strerror or error}") from error

    def manifest(self, directory: Path) -> dict[str, Any]:
        """The manifest of an artifact.

        Raises:
            ArtifactError: there is none, it is damaged, of another kind, or made for another version.
        """
        path = directory / MANIFEST
        again = f"make one with `kernelcast {self.command}`"
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ArtifactError(f"{directory} is no {self.title}: it has no {MANIFEST}; {again}") from error
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}") from error
        manifest: dict[str, Any] = result if isinstance(result, dict) else {}
        if self.kind is not None and manifest.get("kind") != self.kind:
            raise ArtifactError(f"{path} is no {self.title}; {again}")
        if manifest.get("format_version") != self.version:
            raise ArtifactError(
                f"{path} has format {manifest.get('format_version')!r}, this kernelcast reads {self.version}; "
                f"train the model again with `kernelcast {self.command}`"
            )
        if self.features is not None and manifest.get("schema_hash") != self.features():
            raise ArtifactError(
                f"{path} was trained on other features ({manifest.get('schema_hash')}, this kernelcast has "
                f"{self.features()}); train the model again with `kernelcast {self.command}`"
            )
        for key, kind in self.required.items():
            if not isinstance(manifest.get(key), kind):
                raise ArtifactError(f"{path} is damaged: it has no {key}; train the model again")
        return manifest


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Have content of a manifest that is not as it was written raise an `ArtifactError` that names `what`."""
    try:
        yield
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ArtifactError(f"{what} is damaged ({error!r}); train the model again") from error


def read_graph(directory: Path, name: str, files: Mapping[str, str]) -> bytes:
    """A graph of an artifact; `files` are the checksums of its manifest.

    Raises:
        ArtifactError: the file is missing, or not the one that was written.
    """
    sha256 = files[name]
    try:
        packed = (directory / Path(name).name).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{directory} is incomplete: {name} cannot be read ({error.strerror})") from error
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise ArtifactError(f"{directory} is damaged: {name} does not match its checksum")
    return gzip.decompress(packed)


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, the last file of an artifact."""
    write_whole(directory / MANIFEST, json.dumps(manifest))
