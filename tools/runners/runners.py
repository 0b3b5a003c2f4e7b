"""The runners of comparisons: tercet's backends, onnxruntime and onnx.reference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import ModelProto, helper
from onnx.numpy_helper import from_array

from ... import backends
from ...api import Loadable, Operators, load
from ...backends.numpy.numerics import blas
from ...importers.onnx.reading.external import external_data_dir
from ...importers.onnx.reading.texts import FORMATS, format_of
from ...importers.onnx.writing.embed import self_contained
from ...runtime.errors import BackendUnavailable, UnsupportedError, UsageError, did_you_mean
from ...runtime.ir.types import Array, HostValue
from ...runtime.session.freeze import frozen_around
from ...version import __version__
from ..common.console import counted
from ..common.onnxruntime_errors import onnxruntime_errors
from ..common.threads import usable_cpus
from .saved import is_saved

ONNXRUNTIME = "onnxruntime"
REFERENCE = "onnx.reference"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Common settings of all runners.

    Attributes:
        outputs: tensors to compare; the model's outputs if empty.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on tercet's backends.
        options: further fields of `tercet.Options`.
        operators: custom operators, for tercet's backends.
    """

    outputs: tuple[str, ...] = ()
    fallback: str | Sequence[str] | None = None
    precision: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operators: Operators | None = None


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

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        """Return the outputs by name."""
        ...

    def close(self) -> None:
        """Release all memory."""
        ...


def names() -> tuple[str, ...]:
    """Return the names of all runners, available or not."""
    return (*backends.names(), ONNXRUNTIME, REFERENCE)


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
        if name not in known and not (files and is_saved(name)):
            hint = did_you_mean(name, known)
            raise UsageError(f"there is no backend '{name}'{hint} (backends: {', '.join(known)})")
        if name in wanted[:i]:
            raise UsageError(f"'{name}' would be compared with itself")


def open_runner(name: str, source: Loadable, settings: RunnerSettings) -> Runner:
    """Load a model on a runner.

    Raises:
        BackendUnavailable: it is unavailable on this machine.
        UnsupportedError: it cannot run this model.
        ModelError: the model cannot be read.
    """
    if name == ONNXRUNTIME:
        return _OnnxRuntime(source, settings.outputs)
    if name == REFERENCE:
        return _Reference(source, settings.outputs)
    return _Tercet(name, source, settings)


class _Tercet:
    def __init__(self, name: str, source: Loadable, settings: RunnerSettings) -> None:
        # A backend is not its own fallback.
        fallback = settings.fallback if settings.fallback != name else None
        chosen: dict[str, Any] = {"precision": settings.precision, **settings.options}
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


class _OnnxRuntime:
    """onnxruntime's CPU kernels with all graph optimisations."""

    precision = "float32"

    def __init__(self, source: Loadable, outputs: Sequence[str]) -> None:
        try:
            ort: Any = import_module("onnxruntime")
            self._failures = onnxruntime_errors()
        except ImportError as error:
            raise BackendUnavailable(
                ONNXRUNTIME, f"it cannot be imported ({error})", "pip install onnxruntime"
            ) from error
        threads = blas.threads() or usable_cpus()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Its threads must not spin after a run, which would slow down the next runner.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if (folder := external_data_dir()) is not None:
            options.add_session_config_entry(_DATA_FOLDER, str(folder))
        self._outputs = list(outputs) or None
        try:
            self._session: Any = ort.InferenceSession(
                _for_onnxruntime(source, outputs), options, providers=["CPUExecutionProvider"]
            )
        except self._failures as error:
            raise UnsupportedError(f"onnxruntime does not load this model: {error}") from error
        self._names = [output.name for output in self._session.get_outputs()]
        self.about = f"{ort.__version__} on cpu, {threads_text(threads)}"

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        wanted = self._outputs or self._names
        try:
            return dict(zip(wanted, self._session.run(wanted, dict(feeds)), strict=True))
        except self._failures as error:
            raise UnsupportedError(f"onnxruntime does not run this model: {error}") from error

    def close(self) -> None:
        self._session = None


def _for_onnxruntime(source: Loadable, outputs: Sequence[str]) -> str | bytes:
    """Return the model for a session; intermediate tensors are made outputs if needed."""
    if outputs or frozen_around():
        model = _frozen(source)
        have = {value.name for value in model.graph.output}
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in outputs if name not in have
        )
        return model.SerializeToString()
    if isinstance(source, ModelProto):
        return source.SerializeToString()
    if isinstance(source, bytes) and format_of(source) is None:
        return source
    if isinstance(source, str | os.PathLike) and Path(source).suffix.lower() not in FORMATS:
        return os.fspath(source) if external_data_dir() is None else Path(source).read_bytes()
    return self_contained(source).SerializeToString()


def _frozen(source: Loadable) -> ModelProto:
    """Return a model with all constants embedded, including frozen inputs."""
    model = self_contained(source)
    arrays = frozen_around()
    kept = [value for value in model.graph.input if value.name not in arrays]
    given = {value.name for value in model.graph.input} & arrays.keys()
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(from_array(np.asarray(arrays[n]), n) for n in sorted(given))
    return model


class _Reference:
    """The onnx package's evaluator: readable, complete and slow."""

    precision = "float32"
    # It raises whatever numpy and its own code raise.
    _failures = (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    )

    def __init__(self, source: Loadable, outputs: Sequence[str]) -> None:
        from onnx.reference import ReferenceEvaluator

        try:
            self._evaluator: Any = ReferenceEvaluator(_frozen(source))
        except self._failures as error:
            raise UnsupportedError(f"onnx.reference does not load this model: {error}") from error
        self._names = list(outputs) or [str(name) for name in self._evaluator.output_names]
        threads = blas.threads()
        self.about = f"onnx {onnx.__version__} on cpu, {threads_text(threads)}"

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        try:
            found = self._evaluator.run(self._names, dict(feeds))
        except self._failures as error:
            said = str(error) or type(error).__name__
            raise UnsupportedError(f"onnx.reference does not run this model: {said}") from error
        return dict(zip(self._names, found, strict=True))

    def close(self) -> None:
        self._evaluator = None


def threads_text(threads: int | None) -> str:
    """Return a number of threads in words."""
    if threads is None:
        return "as many threads as its BLAS takes"
    return counted(threads, "thread")
