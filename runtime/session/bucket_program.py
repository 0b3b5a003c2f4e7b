"""A program with the sizes of a bucket, for callers whose sizes grow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..control.program import Program
from ..control.resources import Resources
from ..ir.dtypes import int64
from ..ir.grown import Grown
from ..ir.types import Array, HostValue, TensorType
from ..passes.bucketing import Bucket
from ..plan.exchange import HOST_IO, IOPlacement


class BucketProgram(Program):
    """Runs the graph of a bucket on arrays of any size that fits.

    Args:
        bucket: the bucket.
        resources: backends, options and stores.
        ends: where inputs and results are; lent inputs are not fed.

    Attributes:
        most: maximum number of growth steps that fit.
        least: minimum number.
    """

    def __init__(self, bucket: Bucket, resources: Resources, ends: IOPlacement = HOST_IO) -> None:
        super().__init__(bucket.graph, resources, ends=ends)
        self.most, self.least = bucket.most, bucket.least
        self._bucket = bucket
        self._padded = {
            value.name: np.zeros(value.tensor.dims, value.tensor.dtype)
            for value in bucket.graph.inputs
            if value.name not in ends.lent
        }
        self._full: dict[str, tuple[int, ...]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        rooms = {value.name: value.tensor.dims for value in self._bucket.graph.inputs}
        return tuple(
            f"'{name}' {type_} has room for {type_.with_shape(rooms[name])}, k up to {self.most}"
            for name, type_ in self._bucket.inputs.items()
            if not type_.is_static
        )

    def run(self, feeds: Mapping[str, HostValue], count: int = 0) -> dict[str, HostValue]:
        """Run once; see `Program.run`.

        Args:
            feeds: arrays of the actual sizes.
            count: number of growth steps, if no fed array shows it.

        Returns:
            Results of their actual sizes.
        """
        for name, type_ in self._bucket.inputs.items():
            if name not in self._padded:
                continue
            data = feeds[name]
            assert isinstance(data, np.ndarray)
            count = max(count, _count(data.shape, type_))
            self._pad(name, data)
        self._padded[self._bucket.count] = np.array([count], int64)
        results = super().run(self._padded)
        return {name: self._cut(name, data, count) for name, data in results.items()}

    def _pad(self, name: str, data: Array) -> None:
        """Copy an input to the front of its padded array, and zero what earlier runs left there."""
        padded, shape = self._padded[name], tuple(data.shape)
        before = self._full.get(name, shape)
        if any(a > b for a, b in zip(before, shape, strict=True)):
            padded[tuple(map(slice, before))] = 0
        padded[tuple(map(slice, shape))] = data
        self._full[name] = shape

    def _cut(self, name: str, data: HostValue, count: int) -> HostValue:
        shape = self._bucket.outputs[name].shape or ()
        if not any(isinstance(size, Grown) for size in shape):
            return data
        assert isinstance(data, np.ndarray)
        return data[tuple(slice(_size(size, count)) for size in shape)].copy()


def _size(size: object, count: int) -> int | None:
    return size.first + size.step * count if isinstance(size, Grown) else None


def _count(shape: tuple[int, ...], type_: TensorType) -> int:
    """Return the number of growth steps at which a type has the shape of an array."""
    for size, wide in zip(shape, type_.shape or (), strict=True):
        if isinstance(wide, Grown):
            return (size - wide.first) // wide.step
    return 0
