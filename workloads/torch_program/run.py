"""One run of a program under fake tensors, and what it costs on the devices asked for."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...models.predict.power_law import checked_setting
from ...models.predict.predictor import ArtifactPredictor
from ..compare.spec_on_devices import read_prices
from . import report
from .answers import Answers, answer
from .captured import Program, capture, save_program
from .device_estimate import DeviceEstimate
from .memory import Memory
from .operation import Recording


class Totals(dict[str, DeviceEstimate]):
    """What a program costs by catalogue name; other names of a device find it, too."""

    def __init__(self, totals: Mapping[str, DeviceEstimate], devices: Catalogue) -> None:
        """Costs by catalogue name, and the catalogue that knows the other names."""
        super().__init__(totals)
        self._devices = devices

    def __missing__(self, name: str) -> DeviceEstimate:
        try:
            known = self._devices.get(name).name
        except SpecError as error:
            raise KeyError(str(error)) from error
        if known not in self:
            raise KeyError(f"{known} was not estimated; there are {listed(list(self))}")
        return self[known]


class Run:
    """What `estimate` gives: a context whose program is recorded, and its answers afterwards.

    Attributes:
        recording: The operators that ran.
    """

    def __init__(
        self, devices: Sequence[str], predictor: ArtifactPredictor, *, threads: int | None, coverage: float,
        batch: int | None, compiled: bool, prices: Mapping[str, float] | None = None, power_limit_w: float | None = None,
        clock_hz: float | None = None,
    ) -> None:  # fmt: skip
        """A run to enter; `devices` are catalogue names or aliases, see `estimate` for the rest.

        Raises:
            SpecError: there is no device, one is unknown or cannot be set so, `batch` or `threads` is no number from 1, or a
                price is none or of no device named.
        """
        if not devices:
            raise SpecError(
                "name a device, such as estimate('h100-sxm'); `kernelcast devices` lists them", field="device"
            )
        for name in devices:
            if not isinstance(name, str):
                raise SpecError(
                    f"devices are named by text, one after the other, as in estimate('h100-sxm', 'rtx-4090'); got {name!r}",
                    field="device",
                )
        if not isinstance(compiled, bool):
            raise SpecError(f"compiled must be True or False, got {compiled!r}", field="compiled")
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise SpecError(f"batch must be a number of samples from 1, got {batch!r}", field="batch")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise SpecError(f"threads must be a number of CPU threads from 1, got {threads!r}", field="threads")
        self._predictor = predictor
        self._devices = [predictor.devices.get(name) for name in dict.fromkeys(devices)]
        if threads is not None and all(device.kind != "cpu" for device in self._devices):
            raise SpecError("threads are of CPUs, and none is among the devices; leave threads out", field="threads")
        self._setting = checked_setting(power_limit_w, clock_hz, *self._devices)
        self._threads, self._coverage, self._compiled = threads, coverage, compiled
        self._contexts = contextlib.ExitStack()
        self._batch = batch
        self._prices = read_prices(prices, predictor.devices, self._devices)
        self._answers: Answers | None = None
        self._program: Program | None = None
        self.recording = Recording()

    def __enter__(self) -> Run:
        torch = import_torch()
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from .record.data_parallel import data_parallel, resized_storages, without_propagation
        from .record.fused import as_on_gpus, causal_masks
        from .record.launcher import data_not_recorded, scalers_work
        from .record.recorder import Recorder
        from .record.restore import conversions, fused_anywhere, restored
        from .record.runtime import note_threads, runtime, triton_launches, without_values
        from .record.substitutes import AsOnDevice, MetaAutocast, autocast_here

        # A mode the program already runs under goes on to answer: tensors of two modes do not mix.
        outer = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, FakeTensorMode)]
        fake = outer[-1] if outer else FakeTensorMode(allow_non_fake_inputs=True)
        recorder = Recorder(fake)
        self.recording = recorder.recording
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_traces())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(conversions(put_back=True))
            # A file has as many devices as its launcher gives it.
            stack.enter_context(runtime(max(1, torch.cuda.device_count())))
            stack.enter_context(restored(recorder))
            stack.enter_context(fused_anywhere())
            if torch.distributed.is_available():
                stack.enter_context(data_parallel())
            stack.enter_context(resized_storages(recorder))
            stack.enter_context(without_propagation(recorder))
            stack.enter_context(data_not_recorded(recorder))
            stack.enter_context(without_values(recorder.note))
            stack.enter_context(triton_launches(recorder.note_launch))
            stack.enter_context(note_threads(recorder.note))
            stack.enter_context(causal_masks())
            stack.enter_context(scalers_work(recorder))
            if self.has_gpu:
                stack.enter_context(as_on_gpus())
            if not torch.accelerator.is_available():
                stack.enter_context(autocast_here())
            stack.enter_context(fake)
            recorder.start()
            stack.callback(recorder.stop)
            stack.enter_context(recorder)
            stack.enter_context(AsOnDevice(recorder, gpu=self.has_gpu))
            stack.enter_context(MetaAutocast())
            self._contexts = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._contexts.__exit__(kind, error, trace)
        if error is None:
            self._answers = self._answer()

    @property
    def has_gpu(self) -> bool:
        """Whether one of the devices is a GPU, so that functions run as GPUs fuse them."""
        return any(device.kind == "gpu" for device in self._devices)

    def _answer(self) -> Answers:
        self._program = capture(self.recording, self._batch)
        return answer(
            self._predictor, self._program, self._devices, threads=self._threads, coverage=self._coverage,
            compiled=self._compiled, prices=self._prices, setting=self._setting,
        )  # fmt: skip

    @property
    def program(self) -> Program:
        """The program as it is kept, which can be priced on other devices.

        Raises:
            SpecError: the `with` block has not ended.
        """
        if self._program is None:
            raise SpecError("nothing is recorded yet: the program is there when the `with` block ends", field="program")
        return self._program

    def save_program(self, path: str | Path) -> Path:
        """Write the program itself to a file of JSON, which `kernelcast estimate` and `POST /v1/estimate` answer without torch.

        Raises:
            SpecError: the place cannot be written.
        """
        return save_program(self.program, _file(path))

    @property
    def answers(self) -> Answers:
        """Everything that is known of the program.

        Raises:
            SpecError: the `with` block has not ended.
        """
        if self._answers is None:
            raise SpecError("nothing is estimated yet: the answers come when the `with` block ends", field="program")
        return self._answers

    @property
    def totals(self) -> Totals:
        """The cost by device name, in the order they were named."""
        return Totals(self.answers.totals, self._predictor.devices)

    @property
    def memory(self) -> Memory:
        """Peak memory with its parts; whether it fits a device is in `totals`."""
        return self.answers.memory

    @property
    def flops(self) -> float:
        """Arithmetic of the run as PyTorch's FlopCounterMode counts it, with that of products and attention it leaves out."""
        return self.recording.flops

    def __str__(self) -> str:
        return report.as_text(self.answers)

    def _repr_html_(self) -> str:
        return report.as_html(self.answers)

    def save(self, path: str | Path) -> Path:
        """Write the answers to a file: `.html` a page, `.json` plain data, `.txt` the text.

        Raises:
            SpecError: another ending, or a place that cannot be written.
        """
        return report.save(self.answers, _file(path))

    def to_pandas(self) -> Any:
        """A row for each operator, module and device, as a pandas DataFrame.

        Raises:
            SpecError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise SpecError(
                "to_pandas needs pandas; run: pip install 'kernelcast[pandas]', or take rows()", field="pandas"
            ) from error
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """What `to_pandas` has, as plain data: device, part (`operator`, `module`, `phase`), and the fields of a `Share`."""
        return [
            {"device": name, "part": part, **report.plain(share)}
            for name, answer in self.totals.items()
            for part, shares in (
                ("operator", answer.by_operator), ("module", answer.by_module), ("phase", answer.by_phase),
            )
            for share in shares
        ]  # fmt: skip


def _file(path: Any) -> Path:
    if not isinstance(path, str | Path):
        raise SpecError(f"a file is named by text, got {type(path).__name__}", field="path")
    return Path(path)


@contextlib.contextmanager
def without_traces() -> Iterator[None]:
    """Without the trace that torch logs where shapes do not match, since the error itself says so, with the line of the file,
    and without the warning that a copy of a fake tensor has no data.

    Sources: `FakeTensorMode._dispatch_impl` in torch/_subclasses/fake_tensor.py, `Tensor.__deepcopy__` in torch/_tensor.py.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def without_trace(record: logging.LogRecord) -> bool:
        return not record.exc_info

    logger.addFilter(without_trace)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._tensor")
            yield
    finally:
        logger.removeFilter(without_trace)


def import_torch() -> Any:
    """PyTorch.

    Raises:
        SpecError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise SpecError(
            f"estimating a PyTorch program needs torch, and there is none here ({error}); run: pip install torch",
            field="torch",
        ) from error
    if not hasattr(torch, "accelerator"):
        raise SpecError(
            f"torch {torch.__version__} is too old to record programs; it takes torch 2.6 or later", field="torch"
        )
    return torch
