"""A function of a user's file as a program to estimate: loaded under fake tensors, called once."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ...features.errors import SpecError, listed
from .run import Run, import_torch, without_traces


def run_script(path: Path, function: str, run: Run) -> Run:
    """Record one call of a function of a file, and answer.

    Raises:
        SpecError: see `estimate_script`.
    """
    if not path.is_file():
        raise SpecError(f"there is no file {path}; give a Python file, such as train.py:step", field="path")
    import_torch()
    from torch._subclasses.fake_tensor import FakeTensorMode

    from .record.fused import causal_masks
    from .record.launcher import launcher, scalers_work
    from .record.restore import conversions
    from .record.substitutes import AsOnDevice

    # What a script prints is not an answer.
    with (
        contextlib.redirect_stdout(sys.stderr),
        without_traces(),
        FakeTensorMode(allow_non_fake_inputs=True),
        launcher(),
    ):
        with (
            conversions(put_back=False),
            AsOnDevice(None, gpu=run.has_gpu),
            causal_masks(),
            scalers_work(None),
            _sentences(f"{path} cannot be loaded", path),
        ):
            module = _load(path)
        step = _function(module, path, function)
        with _sentences(f"{function} of {path} failed", path), run:
            step()
            if not run.recording.operations:
                raise SpecError(
                    f"{function} of {path} ran no operator of PyTorch; let it run one step, such as `model(x)`",
                    field="program",
                )
    return run


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", field="path")
    module = importlib.util.module_from_spec(spec)
    # The script may change the directory.
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _function(module: ModuleType, path: Path, name: str) -> Callable[[], Any]:
    step = getattr(module, name, None)
    if not callable(step):
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise SpecError(
            f"{path} has no function {name}; its functions: {listed(functions) or 'none'}", field="function"
        )
    needed = [
        parameter.name
        for parameter in inspect.signature(step).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise SpecError(
            f"{name} of {path} needs arguments ({listed(needed)}); give a function without, which makes its inputs itself",
            field="function",
        )
    return step  # type: ignore[no-any-return]


_ADVICE: Mapping[type[BaseException], str] = {
    SystemExit: "; a file that ends itself cannot be estimated: leave that out, as no GPU is needed, or put what only runs as "
    'a script under if __name__ == "__main__"',
    AssertionError: "; leave the assertion out where it asks for a GPU or for values: none is needed, and none are computed",
}
"""What to do where a file fails so."""
_ADVICE_WHERE: Mapping[str, str] = {
    "cpp_extension.py": "; extensions are not built here: register their operators by torch.library, each with register_fake, "
    "which says the shape of its result, or leave them out",
    "_ops.py": "; the library that registers this operator is not loaded here: import it, or register the operator by "
    "torch.library and register_fake",
}
"""The same by the file of PyTorch that raises."""


@contextlib.contextmanager
def _sentences(what: str, path: Path) -> Iterator[None]:
    """An error of the user's code as a sentence with the line of the file it comes from."""
    there = path.resolve()
    try:
        yield
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            frame.lineno for frame in frames if Path(frame.filename).resolve() == there or frame.filename == str(path)
        ]
        where = f" at line {lines[-1]}" if lines else ""
        message = " ".join(str(error).split()).rstrip(".")
        raised_in = {Path(frame.filename).name for frame in frames if "torch" in Path(frame.filename).parts}
        advice = next((words for kind, words in _ADVICE.items() if isinstance(error, kind)), "")
        if not advice and isinstance(error, AttributeError | OSError | ImportError):
            advice = next((words for name, words in _ADVICE_WHERE.items() if name in raised_in), "")
        raise SpecError(f"{what}{where}: {type(error).__name__}: {message}{advice}", field="program") from error
