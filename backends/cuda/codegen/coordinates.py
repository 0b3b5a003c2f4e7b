"""Coordinates of a tensor's elements, as nodes move these."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ....runtime.ir.types import Array
from ..recipe.operands import Ints

#: Maximum number of entries of tables of coordinates.
MAX_ENTRIES = 1 << 18


class Unsupported(Exception):
    """A node cannot be part of a chain."""


class Coordinates:
    """Coordinates of elements as nodes move them.

    Attributes:
        axes: the sizes of the factors of each axis.
        at: see `Movement.coordinates`.
    """

    def __init__(self, dims: Ints) -> None:
        self.axes: list[list[int]] = [[size] for size in dims]
        rank = len(dims)
        self.at: list[Array] = [
            np.arange(size).reshape([-1 if i == axis else 1 for i in range(rank)])
            for axis, size in enumerate(dims)
        ]

    @property
    def sizes(self) -> list[int]:
        """The sizes of all factors."""
        return [size for axis in self.axes for size in axis]

    def transpose(self, perm: Ints) -> None:
        """Permute axes."""
        firsts = [sum(map(len, self.axes[:axis])) for axis in range(len(self.axes))]
        order = [firsts[axis] + i for axis in perm for i in range(len(self.axes[axis]))]
        self.axes = [self.axes[axis] for axis in perm]
        self.at = [at.transpose(order) for at in self.at]

    def reshape(self, dims: Ints) -> None:
        """Regroup the factors into axes of these sizes."""
        axes: list[list[int]] = []
        sizes, i = self.sizes, 0
        for dim in dims:
            axis: list[int] = []
            while prod(axis) < dim or (i < len(sizes) and sizes[i] == 1):
                need = dim // prod(axis)
                while need % sizes[i]:
                    if sizes[i] % need == 0:
                        self._split(i, sizes, need)
                    elif i + 1 < len(sizes):
                        self._join(i, sizes)
                    else:
                        raise Unsupported
                axis.append(sizes[i])
                i += 1
            axes.append(axis)
        if not axes:
            raise Unsupported
        axes[-1] += sizes[i:]  # of size 1
        self.axes = axes

    def _split(self, i: int, sizes: list[int], outer: int) -> None:
        parts = (outer, sizes[i] // outer)
        self.at = [
            at.reshape(*at.shape[:i], *(parts if at.shape[i] > 1 else (1, 1)), *at.shape[i + 1 :])
            for at in self.at
        ]
        sizes[i : i + 1] = parts

    def _join(self, i: int, sizes: list[int]) -> None:
        """Replace a factor and the next one by their product."""
        joined: list[Array] = []
        for at in self.at:
            if at.shape[i] > 1 or at.shape[i + 1] > 1:
                shape = (*at.shape[:i], sizes[i], sizes[i + 1], *at.shape[i + 2 :])
                at = self._checked(shape, at)
            joined.append(at.reshape(*at.shape[:i], -1, *at.shape[i + 2 :]))
        self.at = joined
        sizes[i : i + 2] = [sizes[i] * sizes[i + 1]]

    def _checked(self, shape: Sequence[int], at: Array) -> Array:
        if prod(shape) > MAX_ENTRIES:
            raise Unsupported
        return np.broadcast_to(at, shape)

    def _whole(self, axis: int) -> int:
        """Make an axis a single factor; return its place."""
        sizes, first = self.sizes, sum(map(len, self.axes[:axis]))
        if not self.axes[axis]:
            self.at = [np.expand_dims(at, first) for at in self.at]
        for _ in self.axes[axis][1:]:
            self._join(first, sizes)
        self.axes[axis] = [prod(self.axes[axis])]
        return first

    def take(self, axis: int, index: Array) -> None:
        """Replace an axis by those of an index, in which -1 means zero."""
        place = self._whole(axis)
        shape = [-1 if i == place else 1 for i in range(self.at[0].ndim)]
        outside = (index < 0).reshape(-1)
        reads = [at.shape[place] > 1 for at in self.at]
        if not any(reads):
            reads[0] = True  # one coordinate suffices to say that there is nothing
        taken: list[Array] = []
        for at, does in zip(self.at, reads, strict=True):
            one = at.shape[place] == 1
            if does:
                flat = np.where(outside | one, 0, index.reshape(-1))
                at = at.take(flat, axis=place)
                if outside.any():
                    at = np.where(outside.reshape(shape), -1, at)
            sides = at.shape[:place], at.shape[place + 1 :]
            inner = index.shape if does else (1,) * index.ndim
            dims = sides[0] + inner + sides[1]
            taken.append(self._checked(dims, at.reshape(dims)))
        self.at = taken
        self.axes[axis : axis + 1] = [[size] for size in index.shape]

    def pick(self, axis: int, index: Array) -> None:
        """Replace an axis by elements at an index with all axes."""
        place, shape = self._whole(axis), list[int]()
        for other, sizes in enumerate(self.axes):
            first = index.take([0], other)
            if other == axis:
                shape.append(index.shape[axis])
            elif (index == first).all():
                index = first
                shape += [1] * len(sizes)
            else:
                shape += sizes
        picked: list[Array] = []
        for at in self.at:
            if at.shape[place] > 1:
                outer = (*at.shape[:place], 1, *at.shape[place + 1 :])
                if prod(np.broadcast_shapes(outer, shape)) > MAX_ENTRIES:
                    raise Unsupported
                at = np.take_along_axis(at, index.reshape(shape), place)
            picked.append(at)
        self.at = picked
        self.axes[axis] = [index.shape[axis]]

    def tile(self, axis: int, times: int) -> None:
        """Repeat an axis."""
        first = sum(map(len, self.axes[:axis]))
        self.at = [np.expand_dims(at, first) for at in self.at]
        self.axes[axis].insert(0, times)

    def expand(self, dims: Ints) -> None:
        """Repeat axes of size 1, and add axes in front."""
        for _ in range(len(dims) - len(self.axes)):
            self.axes.insert(0, [1])
            self.at = [at[None] for at in self.at]
        for axis, size in enumerate(dims):
            if prod(self.axes[axis]) != size:
                self._whole(axis)
                self.axes[axis] = [size]
