"""onnxruntime as a runner: its execution providers and levels of graph optimisation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from google.protobuf.message import EncodeError
from onnx import ModelProto, NodeProto, helper

from ...api import Loadable
from ...backends.numpy.numerics import blas
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import BackendUnavailable, UnsupportedError, UsageError, did_you_mean
from ...runtime.ir.mapped import external_data_dir
from ...runtime.ir.types import Array, HostValue
from ...runtime.session.freeze import FROZEN
from ...runtime.session.refit import WEIGHTS
from ..common.console import counted
from ..common.ended import RunnerEnded
from ..common.inputs import RunRefused
from ..common.onnxruntime_errors import onnxruntime_errors
from .fatal_node import fatal_node
from .onnx_files import OnnxFile, numbered
from .onnxruntime_process import (
    LocalSession,
    OnnxruntimeProcess,
    ProcessEnded,
    SessionLike,
    SessionRefused,
)
from .onnxruntime_server import Setup

ONNXRUNTIME = "onnxruntime"
#: Levels of graph optimisation by onnxruntime's names for them.
LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
_SUFFIX = "ExecutionProvider"
_CPU = f"CPU{_SUFFIX}"
#: Of its messages on files that are newer than it is, with the newest opset where it is named.
_TOO_NEW = re.compile(r"max supported IR version|is till opset (\d+)")
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


def is_onnxruntime(name: str) -> bool:
    """Return whether a runner's name is ``onnxruntime``, or ``onnxruntime:PROVIDER[:LEVEL]``."""
    return name.partition(":")[0] == ONNXRUNTIME


def providers() -> dict[str, str]:
    """Return the providers that onnxruntime knows, by short name, such as ``cuda``.

    Without onnxruntime, it is empty.
    """
    if find_spec(ONNXRUNTIME) is None:
        return {}
    known: Sequence[str] = import_module(ONNXRUNTIME).get_all_providers()
    return {name.removesuffix(_SUFFIX).lower(): name for name in reversed(known)}


@dataclass(frozen=True, slots=True)
class OrtConfig:
    """What a name asks of onnxruntime.

    Attributes:
        provider: short name of the execution provider; nodes that it lacks run on the CPU.
        level: of graph optimisation, among `LEVELS`.
    """

    provider: str = "cpu"
    level: str = "all"

    @classmethod
    def of(cls, name: str) -> OrtConfig:
        """Read ``onnxruntime[:PROVIDER[:LEVEL]]``.

        Raises:
            UsageError: the provider or the level is unknown.
        """
        _, *parts = name.split(":")
        if len(parts) > 2 or "" in parts:
            raise UsageError(f"'{name}' is not onnxruntime:PROVIDER or onnxruntime:PROVIDER:LEVEL")
        found = cls(*(part.lower() for part in parts))
        for what, given, known in (
            ("provider", found.provider, [*providers()]),
            ("level of optimisation", found.level, [*LEVELS]),
        ):
            if known and given not in known:
                hint = did_you_mean(given, known)
                raise UsageError(
                    f"'{name}': onnxruntime has no {what} '{given}'{hint} ({', '.join(known)})"
                )
        return found


class OnnxRuntime:
    """A model in onnxruntime.

    Args:
        name: of the runner.
        source: the model.
        outputs: tensors to return; the model's outputs if empty.
        precision: compute precision of float32 tensors where the provider has a choice.
        process: where it runs; this process if None, which it may end.
        title: what errors call the model if it has no file.
        as_written: whether quantized layers are computed as they are written, rather than in
            integers, which weights in float32 behind a DequantizeLinear become as well.

    Attributes:
        precision: compute precision of float32 tensors.
        about: version, provider, level and threads.

    Raises:
        UnsupportedError: onnxruntime does not load the model.
        RunnerEnded: it ends its process.
    """

    def __init__(
        self,
        name: str,
        source: Loadable,
        outputs: Sequence[str] = (),
        precision: str = "float32",
        process: OnnxruntimeProcess | None = None,
        title: str = "the model",
        as_written: bool = False,
    ) -> None:
        config, ort = OrtConfig.of(name), require(name)
        threads = blas.threads() or usable_cpus()
        # Its threads must not spin after a run, which would slow down the next runner.
        entries = {"session.force_spinning_stop": "1"}
        if as_written:
            entries["session.disable_quant_qdq"] = "1"
        self.precision = "tf32" if config.provider == "cuda" and precision == "tf32" else "float32"
        wanted, chosen = _chosen(config, self.precision)
        self._setup = Setup(LEVELS[config.level], threads, tuple(chosen), entries)
        self._name, self._process = name, process
        self._file = OnnxFile(source, external_data_dir())
        self._title = os.fspath(source) if isinstance(source, str | os.PathLike) else title
        self._feeds: Mapping[str, Array] | None = None
        self._session = self._opened(*self._given(outputs))
        if wanted not in self._session.providers:
            raise BackendUnavailable(
                name,
                f"onnxruntime could not start {wanted}, and would run on the CPU",
                "the libraries that it needs, such as cuDNN's, must be where the loader finds them",
            )
        self._outputs = list(outputs) or self._session.outputs
        level = "" if config.level == "all" else f", optimisations {config.level}"
        where = counted(threads, "thread") if wanted == _CPU else wanted
        self.about = f"{ort.__version__} on {config.provider}, {where}{level}"

    @property
    def seconds(self) -> float | None:
        """What the last load or run took in its own process; None if that is this one."""
        return self._session.seconds

    def _given(self, outputs: Sequence[str]) -> tuple[str | bytes, Setup]:
        """Return what a session gets: the file itself, unless something in it changes."""
        is_changed = outputs or FROZEN.get() or WEIGHTS.get() or external_data_dir() is not None
        if self._file.is_binary and not is_changed:
            return self._file.path or "", self._setup
        model = self._file.with_constants()
        have = {value.name for value in model.graph.output}
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in outputs if name not in have
        )
        setup = self._located(model)
        return model.SerializeToString(), setup

    def _located(self, model: ModelProto) -> Setup:
        """Return the settings by which a message's external data are found."""
        folder = self._file.located(model)
        entries = {} if folder is None else {_DATA_FOLDER: folder}
        return replace(self._setup, entries={**self._setup.entries, **entries})

    def _opened(self, model: str | bytes, setup: Setup) -> SessionLike:
        if self._process is None:
            try:
                return LocalSession(model, setup)
            except onnxruntime_errors() as error:
                raise self._refused(error) from error
        try:
            return self._process.open(model, setup)
        except SessionRefused as error:
            raise self._refused(error) from error
        except ProcessEnded as end:
            raise self._ended(end) from None

    def _refused(self, error: Exception) -> UnsupportedError:
        """Return the error for a model that is not loaded, with a remedy if it is too new."""
        refused = UnsupportedError(f"{self._name} does not load this model: {str(error).strip()}")
        if newer := _TOO_NEW.search(str(error)):
            opset = f" --opset {newer[1]}" if newer[1] else ""
            refused.add_note(f"`tercet export MODEL OUT --no-optimise{opset}` writes an older one")
        return refused

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        """Return the outputs by name.

        Raises:
            RunRefused: onnxruntime cannot run the model on these inputs.
            RunnerEnded: it ended its process.
        """
        self._feeds = feeds
        try:
            found = self._session.run(feeds, self._outputs)
            return dict(zip(numbered(self._outputs), found, strict=True))
        except ProcessEnded as end:
            raise self._ended(end) from None
        except (SessionRefused, *onnxruntime_errors()) as error:
            raise RunRefused(
                f"{self._name} does not run this model: {str(error).strip()}"
            ) from error

    def repeat(self) -> None:
        """Run once more on the same inputs, and drop the results.

        Raises:
            RunnerEnded: onnxruntime ended its process.
        """
        try:
            self._session.repeat()
        except ProcessEnded as end:
            raise self._ended(end) from None

    def close(self) -> None:
        """Release all memory."""
        with suppress(ProcessEnded):
            self._session.close()

    def _ended(self, end: ProcessEnded) -> RunnerEnded:
        """Return the error, with the first node that onnxruntime does not survive."""
        stage = "loading" if self._feeds is None else "running"
        node = (self._fatal_node() if end.may_recur else None) or NodeProto()
        where = self._title, node.name or "".join(node.output[:1]), node.op_type
        return RunnerEnded(self._name, end.by, end.cause, stage, *where, end.printed)

    def _fatal_node(self) -> NodeProto | None:
        process, feeds = self._process, self._feeds
        if process is None:
            return None
        whole = self._file.with_constants()
        setup = self._located(whole)

        def is_fatal(model: ModelProto) -> bool:
            try:
                session = process.open(model.SerializeToString(), setup)
                if feeds is not None:
                    session.run(feeds, session.outputs)
                session.close()
            except SessionRefused:
                return False
            except ProcessEnded:
                return True
            return False

        try:
            return fatal_node(whole, is_fatal)
        except (ValueError, EncodeError):  # more than 2 GB
            return None


def require(name: str) -> Any:
    """Return the module onnxruntime, which has the provider that a runner's name asks for.

    Raises:
        UsageError: the name is wrong.
        BackendUnavailable: the package or the provider is missing.
    """
    config = OrtConfig.of(name)
    try:
        ort: Any = import_module(ONNXRUNTIME)
    except ImportError as error:
        raise BackendUnavailable(
            name, f"it cannot be imported ({error})", "pip install onnxruntime"
        ) from error
    wanted, available = providers()[config.provider], ort.get_available_providers()
    if wanted not in available:
        raise BackendUnavailable(
            name,
            f"this build of onnxruntime lacks {wanted} (it has {', '.join(available)})",
            "install the onnxruntime package for this device, such as onnxruntime-gpu",
        )
    return ort


def _chosen(config: OrtConfig, precision: str) -> tuple[str, list[Any]]:
    """Return the requested provider, and a session's providers with their options."""
    wanted = providers()[config.provider]
    if config.provider == "cuda":  # TF32 is its default
        return wanted, [(wanted, {"use_tf32": "1" if precision == "tf32" else "0"}), _CPU]
    return wanted, [wanted] if wanted == _CPU else [wanted, _CPU]
