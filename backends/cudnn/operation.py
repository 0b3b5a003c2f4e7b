"""The description of a cuDNN graph as plain data: its tensors and operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ...runtime.base.record import record
from ...runtime.ir.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    int8,
    int32,
    int64,
    name_of,
    uint8,
)
from ...runtime.ir.graph import Value
from ...runtime.plan.format import Format
from ..cuda.recipe.operands import Ints, strides

#: Numeric notes of engines that are never used: Winograd and FFT spread one NaN over a whole
#: channel; engines with the other note are nondeterministic.
NEVER = (
    "FFT",
    "NONDETERMINISTIC",
    "WINOGRAD",
    "WINOGRAD_TILE_13x13",
    "WINOGRAD_TILE_4x4",
    "WINOGRAD_TILE_6x6",
)
#: Notes of engines that compute float32 with less precision, including TF32.
ROUNDING = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE")
#: The rank of engines that are used only if nothing else runs; see `Ranked`.
SLOW = 9

#: Dtypes that cuDNN computes, and those that use tensor cores in any precision.
FLOATS = (float32, float16, bfloat16)
HALVES = (float16, bfloat16)
NO_PITCHES: Mapping[Value, int] = {}

#: The frontend's names of dtypes.
DATA_TYPES: dict[DType, str] = {
    float32: "FLOAT",
    float16: "HALF",
    bfloat16: "BFLOAT16",
    int64: "INT64",
    int32: "INT32",
    int8: "INT8",
    uint8: "UINT8",
    bool_: "BOOLEAN",
}


@record
class Operand:
    """A tensor of a graph with its memory layout.

    Attributes:
        dims: its sizes as given to cuDNN, which may differ from those of the value.
        strides: in elements, along each of them.
        dtype: of the elements.
    """

    dims: Ints
    strides: Ints
    dtype: DType

    @classmethod
    def of(
        cls, dims: Ints, dtype: DType, format: Format = Format.CONTIGUOUS, pitch: int = 0
    ) -> Operand:
        """Return a tensor in one of the physical formats; see `View.pitch`."""
        return cls(dims, strides(dims, format, pitch), dtype)

    @property
    def layout(self) -> tuple[Format, int]:
        """The physical format and the pitch that correspond to the strides.

        Raises:
            ValueError: no format has these strides.
        """
        inner = self.strides[-2] if len(self.dims) > 1 else 0
        for found in (
            (Format.CONTIGUOUS, 0),
            (Format.CHANNELS_LAST, 0),
            (Format.CONTIGUOUS, inner),
            (Format.CHANNELS_LAST, self.strides[-1] if self.dims else 0),
        ):
            if strides(self.dims, *found) == self.strides:
                return found
        raise ValueError(f"{self} is in no physical format")

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        steps = zip(self.dims, self.strides, strict=True)
        return (1 + sum((d - 1) * s for d, s in steps)) * self.dtype.itemsize

    def __str__(self) -> str:
        text = f"{times(self.dims)} {name_of(self.dtype)}"
        if self.strides == strides(self.dims, Format.CONTIGUOUS):
            return text
        if self.strides == strides(self.dims, Format.CHANNELS_LAST):
            return f"{text} channels_last"
        return f"{text} strides {times(self.strides)}"


def times(dims: Ints) -> str:
    """Return sizes as ``1x64x56``."""
    return "x".join(map(str, dims))


class Operation(Protocol):
    """One cuDNN graph: a frozen, hashable description.

    Its ``str()`` includes everything that affects speed: it is the key of stored choices.

    Attributes:
        title: a short name: ``conv+bias+relu``.
        operands: tensor by role: inputs, then results.
        results: the roles of the results.
        notes: numeric and behaviour notes of engines that must not be used; see `NEVER` and
            `ROUNDING`.
    """

    @property
    def title(self) -> str: ...

    @property
    def operands(self) -> Mapping[str, Operand]: ...

    @property
    def results(self) -> tuple[str, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operations to a graph.

        Args:
            graph: the frontend's graph.
            cudnn: the frontend.
            tensors: the frontend's tensor of each input, by role.

        Returns:
            The frontend's tensor of each result, by role.

        Raises:
            NoPlan: cuDNN cannot express it.
        """
        ...

    def __hash__(self) -> int: ...


@runtime_checkable
class Ranked(Protocol):
    """An operation with a better order of engines than that of cuDNN's heuristics."""

    def rank(self, engine: str) -> int:
        """Return the position of an engine in the order of trials; `SLOW` comes last.

        Engines of equal rank stay in the order of the heuristics.
        """
        ...
