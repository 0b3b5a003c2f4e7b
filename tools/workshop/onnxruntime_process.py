"""What onnxruntime computes, in a separate process: some models crash it by a signal."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from ...api import Loadable
from ...runtime.ir.types import Array
from ..common.nested import flat
from ..runners.onnx_files import numbered
from ..runners.onnxruntime_process import OnnxruntimeProcess, ProcessEnded
from ..runners.onnxruntime_server import Setup

Arrays = Mapping[str, Array]
#: Threads that wait for work sleep: they would take most of the time of small models.
_ENTRIES = {"session.intra_op.allow_spinning": "0"}


class OnnxruntimeEnded(RuntimeError):
    """The process of onnxruntime ended in the middle of a model; the next model gets another."""


class Onnxruntime:
    """Runs models on onnxruntime's CPU provider, one at a time.

    Attributes:
        ended: why its processes have ended, with the inputs' types, in order.
    """

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._process = OnnxruntimeProcess()

    def run(self, source: Loadable, feeds: Arrays, level: str = "ORT_ENABLE_ALL") -> Arrays:
        """Return what a model, or a file, computes; `level` names a graph optimisation.

        Raises:
            OnnxruntimeEnded: the process ended.
            SessionRefused: onnxruntime refuses the model or the inputs.
        """
        model = source.SerializeToString() if isinstance(source, ModelProto) else str(source)
        try:
            session = self._process.open(model, Setup(level, entries=_ENTRIES))
            results = session.run(feeds, session.outputs)
            found = flat(dict(zip(numbered(session.outputs), results, strict=True)))
            session.close()
        except ProcessEnded as end:
            types = ", ".join(f"{name}: {x.dtype}{list(x.shape)}" for name, x in feeds.items())
            self.ended.append(f"onnxruntime {end}; inputs: {types}")
            raise OnnxruntimeEnded(self.ended[-1]) from None
        return found


#: The one of this process.
ONNXRUNTIME = Onnxruntime()


def run_onnxruntime(source: Loadable, feeds: Arrays, level: str = "ORT_ENABLE_ALL") -> Arrays:
    """Return what onnxruntime's CPU computes; see `Onnxruntime.run`."""
    return ONNXRUNTIME.run(source, feeds, level)
