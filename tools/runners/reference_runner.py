"""onnx.reference as a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ...api import Loadable
from ...backends.numpy.numerics import blas
from ...runtime.errors import UnsupportedError
from ...runtime.ir.mapped import external_data_dir
from ...runtime.ir.types import Array, HostValue
from ..common.console import counted
from ..common.inputs import RunRefused
from .onnx_files import OnnxFile, numbered

REFERENCE = "onnx.reference"


class OnnxReference:
    """The onnx package's evaluator: readable, complete and slow."""

    precision = "float32"
    seconds: float | None = None
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

        model = OnnxFile(source, external_data_dir()).self_contained()
        try:
            self._evaluator: Any = ReferenceEvaluator(model)
        except self._failures as error:
            raise UnsupportedError(
                f"onnx.reference does not load this model: {str(error).strip()}"
            ) from error
        self._names = list(outputs) or [str(name) for name in self._evaluator.output_names]
        self.about = f"onnx {onnx.__version__} on cpu, {threads_text(blas.threads())}"

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        try:
            found = self._evaluator.run(self._names, dict(feeds))
        except self._failures as error:
            said = str(error).strip() or type(error).__name__
            raise RunRefused(f"onnx.reference does not run this model: {said}") from error
        return dict(zip(numbered(self._names), found, strict=True))

    def close(self) -> None:
        self._evaluator = None


def threads_text(threads: int | None) -> str:
    """Return a number of threads in words."""
    if threads is None:
        return "as many threads as its BLAS takes"
    return counted(threads, "thread")
