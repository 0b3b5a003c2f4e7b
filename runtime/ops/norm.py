"""Normalizations: results with the input's shape, from statistics over some axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import DType, bool_, float32
from ..ir.op import Op, op, op_base
from ..ir.types import Dim, TensorType
from .shapes import (
    dim,
    need_broadcastable,
    need_rank,
    need_vector,
    normalize_axes,
    normalize_axis,
    quotient,
    same_dtype,
)


def _need_axis(axis: int, x: TensorType) -> None:
    if x.rank is not None:
        normalize_axis(axis, x.rank)


def are_of_rows(x: Sequence[Dim], axis: int, *parameters: Sequence[Dim]) -> bool:
    """Whether parameters of these sizes are the same for all rows of x.

    They then have one element per element of the axes from `axis` on; others differ from row to
    row, or are the same for several elements of one.
    """
    first = axis % max(1, len(x))
    wanted = (*(1,) * first, *x[first:])
    return all((*(1,) * (len(x) - len(dims)), *dims) == wanted for dims in parameters)


@op
class BatchNormalization(Op):
    """y = (x - mean) / sqrt(var + epsilon) * scale + b, channel by channel (ONNX 15).

    With `training_mode` the statistics are those of x, and the second and third output are
    ``momentum * input + (1 - momentum) * statistic``; without it there is one output.
    """

    outputs: ClassVar = (1, 3)
    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0

    def infer(
        self,
        x: TensorType,
        scale: TensorType,
        b: TensorType,
        input_mean: TensorType,
        input_var: TensorType,
    ) -> tuple[TensorType, ...]:
        if x.rank == 0:
            raise ShapeError("x is a scalar; it needs a batch axis")
        c = 1 if x.rank == 1 else dim(x, 1)
        names = ("scale", "b", "input_mean", "input_var")
        for name, type_ in zip(names, (scale, b, input_mean, input_var), strict=True):
            need_vector(type_, c, name)
        if not self.training_mode:
            return (x.without_value(),)
        return x.without_value(), input_mean.without_value(), input_var.without_value()


@op
class InstanceNormalization(Op):
    """y = (x - mean) / sqrt(var + epsilon) * scale + b, over the spatial axes (ONNX 22)."""

    epsilon: float = 1e-5

    def infer(self, input: TensorType, scale: TensorType, b: TensorType) -> TensorType:
        same_dtype(input, scale, b)
        _need_channels(input, "input")
        need_vector(scale, dim(input, 1), "scale")
        need_vector(b, dim(input, 1), "b")
        return input.without_value()


@op
class GroupNormalization(Op):
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias, over groups of channels (ONNX 21).

    `scale` and `bias` have one element per channel; statistics are computed in `stash_type`.
    """

    epsilon: float = 1e-5
    num_groups: int
    stash_type: DType = float32

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        same_dtype(x, scale, bias)
        _need_channels(x, "x")
        quotient(dim(x, 1), self.num_groups, "channels by num_groups")
        need_vector(scale, dim(x, 1), "scale")
        need_vector(bias, dim(x, 1), "bias")
        return x.without_value()


@op
class LayerNormalization(Op):
    """y = (x - mean) / sqrt(var + epsilon) * scale + b, over `axis` and all later axes (ONNX 17).

    `scale` and `b` broadcast to x. The other outputs are mean and 1 / sqrt(var + epsilon), of
    `stash_type`, with the normalized axes kept as 1.
    """

    outputs: ClassVar = (1, 3)
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: DType = float32

    def infer(
        self, x: TensorType, scale: TensorType, b: TensorType | None = None
    ) -> tuple[TensorType, TensorType, TensorType]:
        same_dtype(x, scale, b)
        need_broadcastable(scale, x.shape, "scale")
        need_broadcastable(b, x.shape, "b")
        statistics = TensorType(self.stash_type)
        if x.shape is not None:
            axis = normalize_axis(self.axis, len(x.shape))
            statistics = statistics.with_shape((*x.shape[:axis], *(1 for _ in x.shape[axis:])))
        return x.without_value(), statistics, statistics


@op
class RMSNormalization(Op):
    """y = x / sqrt(mean(x**2) + epsilon) * scale, over `axis` and all later axes (ONNX 23).

    The result has the dtype of `scale`, which broadcasts to x.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: DType = float32

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        _need_axis(self.axis, x)
        need_broadcastable(scale, x.shape, "scale")
        return x.with_dtype(scale.dtype)


@op
class LpNormalization(Op):
    """x / (sum |x|**p) ** (1/p) over `axis`, with p = 1 or 2; 0 if the norm is 0 (ONNX 22)."""

    axis: int = -1
    p: int = 2

    def infer(self, input: TensorType) -> TensorType:
        if self.p not in (1, 2):
            raise ShapeError(f"p={self.p}; ONNX has 1 and 2")
        _need_axis(self.axis, input)
        return input.without_value()


@op
class MeanVarianceNormalization(Op):
    """(x - mean) / (sqrt(var) + 1e-9) over `axes` (ONNX 13)."""

    axes: tuple[int, ...] = (0, 2, 3)

    def infer(self, x: TensorType) -> TensorType:
        if x.rank is not None:
            normalize_axes(self.axes, x.rank)
        return x.without_value()


@op
class LRN(Op):
    """x / (bias + alpha/size * s)**beta, s the sum of x**2 over `size` adjacent channels (ONNX 13).

    Channels ``c - (size-1)//2`` to ``c + ceil((size-1)/2)``, as far as they exist.
    """

    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    size: int

    def infer(self, x: TensorType) -> TensorType:
        _need_channels(x, "x")
        if self.size < 1:
            raise ShapeError(f"size={self.size}; it must be 1 or more")
        return x.without_value()


@op_base
class AlongAxis(Op):
    """A function of the elements along one axis."""

    axis: int = -1

    def infer(self, input: TensorType) -> TensorType:
        _need_axis(self.axis, input)
        return input.without_value()


@op
class Softmax(AlongAxis):
    """exp(x - max) / sum of that, over `axis` (ONNX 13)."""


@op
class LogSoftmax(AlongAxis):
    """x - max - log(sum(exp(x - max))) over `axis` (ONNX 13)."""


@op
class Hardmax(AlongAxis):
    """1 at the first largest element along `axis`, 0 elsewhere (ONNX 13)."""


@op
class Dropout(Op):
    """In training x * mask / (1 - ratio) with a random mask; otherwise x (ONNX 22).

    `ratio` defaults to 0.5 and `training_mode` to false; the second output is the mask, all true
    outside training. Without a `seed` the mask differs from run to run; with one, the mask is where
    numpy's RandomState(seed) (MT19937) draws `ratio` or more, as ONNX's own test cases require.
    """

    outputs: ClassVar = (1, 2)
    deterministic: ClassVar = False
    seed: int | None = None

    def infer(
        self,
        data: TensorType,
        ratio: TensorType | None = None,
        training_mode: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        need_rank(ratio, (0, 1), "ratio")
        need_rank(training_mode, (0, 1), "training_mode")
        return data.without_value(), data.with_dtype(bool_)

    @property
    def generator_seed(self) -> int | None:
        """The 32-bit seed of numpy's RandomState."""
        return None if self.seed is None else self.seed & 0xFFFF_FFFF


def _need_channels(x: TensorType, name: str) -> None:
    if x.rank is not None and x.rank < 2:
        raise ShapeError(f"{name} {x} has no channels; 2 or more axes are needed")
