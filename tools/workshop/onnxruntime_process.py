"""onnxruntime in a process of its own: some models end it by a signal, which is no exception."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

from onnx import ModelProto

from ...api import Loadable
from ...runtime.ir.types import Array
from ..common.nested import flat
from ..common.onnxruntime_errors import onnxruntime_errors

Arrays = Mapping[str, Array]
_CONTEXT = get_context("spawn")


class OnnxruntimeEnded(RuntimeError):
    """The process of onnxruntime ended in the middle of a model; the next model gets another."""


class OnnxruntimeProcess:
    """Runs models on onnxruntime's CPU provider, one at a time.

    Attributes:
        ended: why its processes have ended, with the inputs' types, in order.
    """

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._connection: Connection | None = None

    def run(self, source: Loadable, feeds: Arrays, level: str = "ORT_ENABLE_ALL") -> Arrays:
        """Return what a model, or a file, computes; `level` names a graph optimisation.

        Raises:
            OnnxruntimeEnded: the process ended.
            onnxruntime's own errors: it refuses the model or the inputs.
        """
        if self._connection is None:
            self._start()
        assert self._connection is not None
        model = source.SerializeToString() if isinstance(source, ModelProto) else str(source)
        try:
            self._connection.send((model, dict(feeds), level))
            found: Arrays | Exception = self._connection.recv()
        except (EOFError, ConnectionError):
            raise OnnxruntimeEnded(self._why(feeds)) from None
        if isinstance(found, Exception):
            raise found
        return found

    def _start(self) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _why(self, feeds: Arrays) -> str:
        self._connection = None
        self._process.join()
        code = self._process.exitcode or 0
        by = f"exit code {code}"
        with suppress(ValueError):
            by = signal.Signals(-code).name
        types = ", ".join(f"{name}: {x.dtype}{list(x.shape)}" for name, x in feeds.items())
        self.ended.append(f"onnxruntime ended by {by}; inputs: {types}")
        return self.ended[-1]


def _serve(connection: Connection) -> None:
    """Run models until nobody asks for more."""
    with suppress(EOFError):
        while True:
            given: tuple[bytes | str, Arrays, str] = connection.recv()
            try:
                connection.send(_run(*given))
            except onnxruntime_errors() as error:
                connection.send(error)


def _run(model: bytes | str, feeds: Arrays, level: str) -> Arrays:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return flat(dict(zip(names, session.run(None, dict(feeds)), strict=True)))


#: The one of this process.
ONNXRUNTIME = OnnxruntimeProcess()


def run_onnxruntime(source: Loadable, feeds: Arrays, level: str = "ORT_ENABLE_ALL") -> Arrays:
    """Return what onnxruntime's CPU computes; see `OnnxruntimeProcess.run`."""
    return ONNXRUNTIME.run(source, feeds, level)
