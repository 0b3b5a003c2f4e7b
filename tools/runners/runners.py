"""The runners of comparisons: tercet's backends, onnxruntime and onnx.reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ... import backends
from ...api import Loadable, Operators, load
from ...backends.numpy.numerics import blas
from ...runtime.errors import UsageError
from ...runtime.ir.types import Array, HostValue
from ...runtime.options import Options
from ...version import __version__
from .onnxruntime_process import OnnxruntimeProcess
from .onnxruntime_runner import ONNXRUNTIME, OnnxRuntime, OrtConfig, is_onnxruntime
from .reference_runner import REFERENCE, OnnxReference, threads_text


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Common settings of all runners.

    Attributes:
        outputs: tensors to compare; the model's outputs if empty.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on tercet's backends.
        options: further fields of `tercet.Options`.
        operators: custom operators, for tercet's backends.
        limit: seconds that each request to another process may take; None for any time.
        title: what errors call a model that has no file.
        as_written: whether onnxruntime computes quantized layers as they are written, rather than
            in integers.
    """

    outputs: tuple[str, ...] = ()
    fallback: str | Sequence[str] | None = None
    precision: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operators: Operators | None = None
    limit: float | None = None
    title: str = "the model"
    as_written: bool = False


class Runner(Protocol):
    """A loaded model."""

    @property
    def precision(self) -> str:
        """Compute precision of float32 tensors."""
        ...

    @property
    def about(self) -> str:
        """Its description and device, in a few words."""
        ...

    @property
    def seconds(self) -> float | None:
        """What the last load or run took in its own process; None if that is this one."""
        ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        """Return the outputs by name."""
        ...

    def close(self) -> None:
        """Release all memory."""
        ...


def names() -> tuple[str, ...]:
    """Return the names of all runners, available or not."""
    return (*backends.names(), ONNXRUNTIME, REFERENCE)


def is_backend(name: str) -> bool:
    """Return whether a runner is a backend, not another program or a file of saved outputs."""
    return name in backends.names()


def is_saved(name: str) -> bool:
    """Whether a name is a file or a folder of saved outputs.

    A folder that has the name of a runner is meant by its path: ``./numpy``.
    """
    if is_onnxruntime(name) or name in names():
        return False
    return name.lower().endswith(".npz") or Path(name).is_dir()


def default_names() -> tuple[str, ...]:
    """Return the default runners.

    These are all available backends, then onnxruntime or, without it, onnx.reference.
    """
    able = tuple(found.name for found in backends.available() if found)
    return (*able, ONNXRUNTIME if find_spec(ONNXRUNTIME) else REFERENCE)


def check_names(wanted: Sequence[str], *, files: bool = False) -> None:
    """Raise UsageError for unknown or duplicate names.

    Args:
        wanted: the names.
        files: whether files and folders of saved outputs are accepted.
    """
    known = names()
    for i, name in enumerate(wanted):
        if is_onnxruntime(name):
            OrtConfig.of(name)
        elif name not in known and not (files and is_saved(name)):
            if is_saved(name):
                reason = "saved outputs take part only in compare, also with --layers --cumulative"
                raise UsageError(f"'{name}': {reason}")
            hint = backends.meant(name, known)
            raise UsageError(f"there is no backend '{name}'{hint} (backends: {', '.join(known)})")
        if name in wanted[:i]:
            raise UsageError(f"'{name}' would be compared with itself")


def check_options(names: Sequence[str], settings: RunnerSettings) -> None:
    """Raise UsageError for an option that none of the runners can use.

    Args:
        names: the runners; each leaves to the others what it cannot use.
        settings: common settings.
    """
    own = [name for name in names if is_backend(name)]
    backends.check_options(options_of(settings), own, settings.fallback)


def options_of(settings: RunnerSettings, name: str | None = None) -> Options:
    """Return the options of all runners, or of one backend what it and its fallback can use."""
    options = Options(**{"precision": settings.precision, **settings.options})
    return options if name is None else backends.usable(options, name, settings.fallback)


def process_for(name: str, settings: RunnerSettings) -> OnnxruntimeProcess | None:
    """Start the process that a runner may end by a signal; None for those that run in this one."""
    if not is_onnxruntime(name) or find_spec(ONNXRUNTIME) is None:
        return None
    process = OnnxruntimeProcess(settings.limit)
    process.start()
    return process


def open_runner(
    name: str,
    source: Loadable,
    settings: RunnerSettings,
    process: OnnxruntimeProcess | None = None,
) -> Runner:
    """Load a model on a runner.

    Args:
        name: of the runner.
        source: the model.
        settings: common settings.
        process: where onnxruntime runs; this process if None, which it may end.

    Raises:
        RunnerEnded: onnxruntime ended its process.
        BackendUnavailable: it is unavailable on this machine.
        UnsupportedError: it cannot run this model.
        ModelError: the model cannot be read.
    """
    if is_onnxruntime(name):
        own = settings.outputs, settings.precision, process, settings.title, settings.as_written
        return OnnxRuntime(name, source, *own)
    if name == REFERENCE:
        return OnnxReference(source, settings.outputs)
    return _Tercet(name, source, settings)


class _Tercet:
    seconds: float | None = None

    def __init__(self, name: str, source: Loadable, settings: RunnerSettings) -> None:
        # A backend is not its own fallback.
        fallback = settings.fallback if settings.fallback != name else None
        given = options_of(settings, name)
        chosen = {each: getattr(given, each) for each in ("precision", *settings.options)}
        chosen["operators"] = settings.operators
        self.model = load(source, name, fallback=fallback, **chosen)
        self._outputs = settings.outputs or None
        self.precision = self.model.precision
        device = self.model.backends[0].device.name
        threads = f", {threads_text(blas.threads())}" if device == "cpu" else ""
        behind = f", fallback {fallback}" if fallback is not None else ""
        self.about = f"tercet {__version__} on {device}{threads}{behind}"

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        return self.model.run(feeds, self._outputs)

    def close(self) -> None:
        self.model.close()
