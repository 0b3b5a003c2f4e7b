"""Views in factors of axes: Reshape, Transpose and Expand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.graph import Node
from ...ir.types import Dim, Shape
from ...ops.movement import Expand, Transpose
from ..editing import shape_of, static_size


@dataclass(eq=False, slots=True)
class Factor:
    """A factor of an axis; every axis is a product of factors, the slowest first.

    Attributes:
        size: its size.
        is_repeat: whether it repeats the same element.
    """

    size: Dim
    is_repeat: bool = False


#: The axes of a tensor, each as factors of its source's axes.
Axes = list[list[Factor]]


def follow(chain: Sequence[Node]) -> tuple[Axes, list[Factor], Axes] | None:
    """Follow a tensor through nodes that reorder or repeat its elements.

    Returns:
        The source's axes, the factors in their final order, and the result's axes; None if a
        relevant size is unknown.
    """
    shape = shape_of(chain[0].inputs[0])
    if shape is None or None in shape or 0 in shape:
        return None
    given: Axes = [[Factor(dim)] for dim in shape]
    axes: Axes = [list(axis) for axis in given]
    for node in chain:
        if isinstance(node.op, Transpose):
            axes = [axes[axis] for axis in node.op.order(len(axes))]
            continue
        wanted = shape_of(node.output)
        if isinstance(node.op, Expand):
            repeated = None if wanted is None else _repeat(axes, wanted)
            if repeated is None:
                return None
            axes = repeated
            continue
        flat = [factor for axis in axes for factor in axis]
        regrouped = None if wanted is None else _regroup(flat, wanted, (given, axes))
        if regrouped is None:
            return None
        axes = regrouped
    return given, [factor for axis in axes for factor in axis], axes


def _repeat(axes: Axes, shape: Shape) -> Axes | None:
    """Return the axes after an Expand to this shape."""
    new = len(shape) - len(axes)
    result: Axes = [[Factor(dim, is_repeat=True)] for dim in shape[:new]]
    for axis, dim in zip(axes, shape[new:], strict=True):
        if [factor.size for factor in axis if factor.size != 1] == ([] if dim == 1 else [dim]):
            result.append(axis)
        elif all(factor.size == 1 for factor in axis):
            result.append([Factor(dim, is_repeat=True)])
        elif static_size(factor.size for factor in axis) == dim:
            result.append(axis)
        else:
            return None
    return result


def _regroup(flat: list[Factor], shape: Shape, holders: tuple[Axes, ...]) -> Axes | None:
    """Regroup the factors into axes of these sizes, splitting factors where needed.

    Args:
        flat: all factors in order; modified where one is split.
        shape: the sizes; one that is not a known product takes the remaining factors, unless it is
            a number and they are not: whether they agree is known in a run.
        holders: other axes in which a split factor is replaced by its parts.
    """
    if 0 in shape:
        return None
    front: Axes = []
    behind: Axes = []
    for dim in shape:
        axis = _take(flat, dim, holders, last=False)
        if axis is None:
            break
        front.append(axis)
    rest = shape[len(front) :]
    for dim in reversed(rest[1:]):
        axis = _take(flat, dim, holders, last=True)
        if axis is None:
            return None
        behind.insert(0, axis)
    if rest:
        if isinstance(rest[0], int) and static_size(each.size for each in flat) is None:
            return None
        front.append(flat[:])
        flat.clear()
    elif front and all(factor.size == 1 for factor in flat):
        front[-1] += flat
        flat.clear()
    return None if flat else [*front, *behind]


def _take(
    flat: list[Factor], dim: Dim, holders: tuple[Axes, ...], *, last: bool
) -> list[Factor] | None:
    """Take factors of total size `size` off one end of `flat`; None if impossible.

    An axis of size 1 takes a factor of size 1 if that is next, and none otherwise.
    """
    at = -1 if last else 0
    if dim == 1:
        return [flat.pop(at)] if flat and flat[at].size == 1 else []
    ones = [factor for factor in _run_of_ones(flat, last)]
    body = flat[: len(flat) - len(ones)] if last else flat[len(ones) :]
    if not body:
        return None
    taken: list[Factor] = []
    if isinstance(dim, str) or dim is None:
        if dim is None or body[at].size != dim:
            return None
        taken = [body.pop(at)]
    else:
        left = dim
        while left > 1:
            size = body[at].size if body else None
            if not isinstance(size, int):
                return None
            if left % size:
                if size % left:
                    return None
                _cut(body, at, left, holders, last=last)
                size = left
            taken.insert(len(taken) if not last else 0, body.pop(at))
            left //= size
    flat[:] = body
    return [*taken, *ones] if last else [*ones, *taken]


def _run_of_ones(flat: list[Factor], last: bool) -> list[Factor]:
    ones: list[Factor] = []
    for factor in reversed(flat) if last else flat:
        if factor.size != 1:
            break
        ones.insert(0 if last else len(ones), factor)
    return ones


def _cut(body: list[Factor], at: int, size: int, holders: tuple[Axes, ...], *, last: bool) -> None:
    """Split a factor in two, with the given size for the one at the end of `body`."""
    whole = body[at]
    assert isinstance(whole.size, int)
    other = whole.size // size
    parts = [
        Factor(n, is_repeat=whole.is_repeat) for n in ((other, size) if last else (size, other))
    ]
    body[at : len(body) if last else at + 1] = parts
    for axes in holders:
        for axis in axes:
            if whole in axis:
                place = axis.index(whole)
                axis[place : place + 1] = parts
