"""What every artifact of a model is: a directory with `manifest.json`, which names the other files with their SHA-256.

The manifest begins with the SHA-256 of its own rest, so damage to any byte of an artifact is noticed. Whoever can write files
can write checksums too: what was promoted must also have the digest in the champion pointer (`artifact.default_model_dir`).

The other files are compressed ONNX graphs; nothing in an artifact can run code. An artifact is written beside its place and
renamed into it, so a reader sees the old one or the new one (or, for an instant, none), never half of one.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.errors import SpecError
from ...files import whole_folder, write_whole
from ...version import __version__

MANIFEST = "manifest.json"

_HEAD = '{"sha256": "%s", '
"""How a manifest begins; the checksum is that of all bytes after it."""
_HEAD_B = len(_HEAD % ("0" * 64))

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

        def compressed(staging: Path) -> Mapping[str, Any]:
            files: dict[str, str] = {}

            def store(name: str, graph: bytes) -> str:
                # A fixed time stamp: equal models give equal bytes, and so equal hashes.
                packed = gzip.compress(graph, compresslevel=9, mtime=0)
                file = f"{name}.onnx.gz"
                write_whole(staging / file, packed)
                files[file] = hashlib.sha256(packed).hexdigest()
                return file

            return {**content(store), "files": files}

        self.write(directory, compressed)

    def write(self, directory: Path, content: Callable[[Path], Mapping[str, Any]]) -> None:
        """The same where `content` writes the files into a folder itself, and names them in `files`.

        Raises:
            ArtifactError: `directory` is something else's, or cannot be written.
        """
        if directory.exists() and (
            not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST).exists())
        ):
            raise ArtifactError(f"{directory} exists and is no model directory; choose another --out")
        head: dict[str, Any] = {"format_version": self.version, "kernelcast": __version__}
        head |= {"kind": self.kind} if self.kind else {}
        head |= {"schema_hash": self.features()} if self.features else {}
        head |= {"created": datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            with whole_folder(directory) as staging:
                write_manifest(staging, {**content(staging), **head})
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
            content = path.read_bytes()
            result = json.loads(content, parse_constant=_refuse_constant)
        except FileNotFoundError as error:
            raise ArtifactError(f"{directory} is no {self.title}: it has no {MANIFEST}; {again}") from error
        except NotADirectoryError as error:
            raise ArtifactError(f"{directory} is a file; a {self.title} is a folder; {again}") from error
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
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
        if content[:_HEAD_B].decode("latin-1") != _HEAD % hashlib.sha256(content[_HEAD_B:]).hexdigest():
            raise ArtifactError(
                f"{path} does not match its own checksum: it was damaged, edited, or written by an older kernelcast; "
                f"copy it again, or train the model again with `kernelcast {self.command}`"
            )
        del manifest["sha256"]
        for key, kind in self.required.items():
            if not isinstance(manifest.get(key), kind):
                raise ArtifactError(f"{path} is damaged: it has no {key}; train the model again")
        if away := [name for name in manifest.get("files", {}) if Path(name).name != name]:
            raise ArtifactError(f"{path} names {away[0]!r}, which is no file of its folder; train the model again")
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


def numbers(values: Any, *shape: int | None) -> Floats:
    """Finite numbers of a manifest as an array of a shape, in which None stands for any length.

    Raises:
        ValueError: a number is not finite, or the shape is another.
    """
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    if len(array.shape) != len(shape) or any(
        want not in (None, is_) for want, is_ in zip(shape, array.shape, strict=True)
    ):
        raise ValueError(f"numbers of the shape {array.shape} instead of {shape}")
    return array


def finite(value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number of a manifest, within its ends.

    Raises:
        ValueError: it is no such number.
    """
    result = float(value)
    if not (math.isfinite(result) and least <= result <= most):
        raise ValueError(f"{result} is not a number between {least:g} and {most:g}")
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it has the number {name}")


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
    """Write the manifest, the last file of an artifact, under its checksum.

    Raises:
        ValueError: a number in it is not finite.
    """
    rest = json.dumps({name: value for name, value in manifest.items() if name != "sha256"}, allow_nan=False)[1:]
    write_whole(directory / MANIFEST, _HEAD % hashlib.sha256(rest.encode()).hexdigest() + rest)
