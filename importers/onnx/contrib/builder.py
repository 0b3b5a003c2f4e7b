"""The builder of operator functions: adds nodes with inferred types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ....runtime.base.guard import need
from ....runtime.errors import ModelError, UnsupportedError
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX, DType
from ....runtime.ir.needs import equate
from ....runtime.ir.types import Array, Dim, Shape, TensorType
from ..source.raw import RawNode, items
from ..upgrading.rewrite import NEWEST, NodeSite
from .declaration import DOMAIN

#: What the names of constants contain that stand for anything; see `NodeBuilder.unspecified`.
UNSPECIFIED = "tercet.unspecified"
#: What the names of constants contain that stand for the same in `NodeBuilder.leave_open`.
OPEN = "tercet.open"


class GrowingSite(NodeSite, Protocol):
    """The position of a node in its graph, where replacement nodes are added."""

    def add(self, node: RawNode) -> None:
        """Add a node of the newest opset and infer its output types."""
        ...

    def as_pairs(self, name: str) -> None:
        """Mark a value as complex numbers, which are pairs along a last axis."""
        ...


class NodeBuilder:
    """Adds the nodes that replace one node of the file; see the package docstring.

    ``builder.Name(x, y, attribute=…)`` adds a node of the operator Name and returns the name of its
    output; None and "" stand for omitted inputs, None for omitted attributes.

    Args:
        node: the file's node.
        site: its position.
    """

    def __init__(self, node: RawNode, site: GrowingSite) -> None:
        self.node = node
        self._site = site
        self._constants: dict[tuple[DType, tuple[int, ...], bytes], str] = {}

    # ── nodes and constants ──────────────────────────────────────────────────────────────────

    def __getattr__(self, op: str) -> Callable[..., str]:
        if not op[0].isupper():
            raise AttributeError(op)

        def add(*inputs: str | None, **attributes: Any) -> str:
            return self.several(op, 1, *inputs, **attributes)[0]

        return add

    def several(
        self, op: str, outputs: int, *inputs: str | None, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs, and return their names."""
        names = tuple(self._site.fresh(f"{self._prefix}/{op}") for _ in range(outputs))
        self._add(op, inputs, names, attributes)
        return names

    def chosen(
        self, op: str, wanted: Sequence[bool], *inputs: str | None, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node of which only some outputs are used; the others are ""."""
        names = tuple(self._site.fresh(f"{self._prefix}/{op}") if w else "" for w in wanted)
        while names and not names[-1]:
            names = names[:-1]
        self._add(op, inputs, names, attributes)
        return names + ("",) * (len(wanted) - len(names))

    def own(self, op: str, *inputs: str | None, **attributes: Any) -> str:
        """Add a node of a com.microsoft operator that tercet has natively."""
        name = self._site.fresh(f"{self._prefix}/{op}")
        reads = tuple(each or "" for each in inputs)
        made = RawNode(op, reads, (name,), attributes, self._prefix, domain=DOMAIN, opset=1)
        self._site.add(made)
        return name

    def _add(
        self, op: str, inputs: Sequence[str | None], names: tuple[str, ...], given: dict[str, Any]
    ) -> None:
        given = {name: _attribute(value) for name, value in given.items() if value is not None}
        reads = tuple(each or "" for each in inputs)
        self._site.add(RawNode(op, reads, names, given, name=self._prefix, opset=NEWEST[""]))

    @property
    def _prefix(self) -> str:
        return self.node.name or self.node.result

    def constant(self, data: Array) -> str:
        """Return the name of a constant; equal constants are shared."""
        key = data.dtype, data.shape, data.tobytes()
        if key not in self._constants:
            self._constants[key] = self._site.constant(data, f"{self._prefix}/constant")
        return self._constants[key]

    def number(self, value: float, like: str) -> str:
        """Return a scalar with the dtype of `like`."""
        return self.constant(np.array(value, self.dtype(like)))

    def unspecified(self, like: str) -> str:
        """Return a zero that stands for numbers which the operator's documentation leaves open."""
        return self._site.constant(np.array(0.0, self.dtype(like)), UNSPECIFIED)

    def leave_open(self, x: str, kept: str) -> None:
        """Say that the documentation leaves open what elements of a result are.

        Args:
            x: the result.
            kept: bool, False at these elements; it broadcasts to `x`. No result depends on the
                node that is added, which passes drop first.
        """
        anything = self._site.constant(np.array(0.0, self.dtype(x)), OPEN)
        self.Where(kept, x, anything)

    def unspecified_rows(self, rank: int) -> str:
        """Return pads of 0, whose name says that rows behind the last new one are left open."""
        return self._site.constant(np.zeros(rank, np.int64), UNSPECIFIED)

    def scaled(self, x: str, factor: float) -> str:
        """Return `x` times a number."""
        return x if factor == 1 else self.Mul(x, self.number(factor, x))

    def ints(self, *values: int) -> str:
        """Return an int64 vector."""
        return self.constant(np.array(values, np.int64))

    def arange(self, count: int, first: int = 0) -> str:
        """Return `count` consecutive integers as an int64 vector.

        Raises:
            LimitError: they take more memory than the model may.
        """
        need(8 * count, f"{self.node.where}: {count} positions")
        return self.constant(np.arange(first, first + count, dtype=np.int64))

    def cast(self, x: str, dtype: DType) -> str:
        """Return `x` in another dtype; `x` itself if it has that dtype."""
        return x if self.known_dtype(x) == dtype else self.Cast(x, to=TO_ONNX[dtype])

    def as_pairs(self, x: str) -> str:
        """Return `x`, marked as complex numbers: pairs along one more axis, the last."""
        self._site.as_pairs(x)
        return x

    # ── what is known of a value ─────────────────────────────────────────────────────────────

    def type(self, x: str) -> TensorType | None:
        """Return what is known about a tensor."""
        found = self._site.type_of(x)
        return found if isinstance(found, TensorType) else None

    def known_dtype(self, x: str) -> DType | None:
        """Return the element type if known."""
        found = self.type(x)
        return found.dtype if found else None

    def dtype(self, x: str) -> DType:
        """Return the element type; float32 if unknown, as in a loop body."""
        return self.known_dtype(x) or dtypes.float32

    def value(self, x: str) -> Array | None:
        """Return the elements of a constant if known."""
        found = self.type(x)
        return found.value if found is not None and found.value is not None else None

    def dims(self, x: str) -> Shape | None:
        """Return the shape as far as known; None if the rank is unknown."""
        found = self.type(x)
        return found.shape if found else None

    def rank(self, x: str, *allowed: int) -> int:
        """Return the number of axes; an unknown rank is assumed to be the first of `allowed`.

        Raises:
            ModelError: it is not one of `allowed`.
        """
        shape = self.dims(x)
        if shape is None:
            if not allowed:
                raise self.unsupported(
                    f"'{x}' has no known rank", "declare the shapes of the model's inputs"
                )
            return allowed[0]
        if allowed and len(shape) not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise self.error(f"'{x}' is {self.type(x)}; expected {wanted} axes")
        return len(shape)

    def dim(self, x: str, axis: int) -> Dim:
        """Return a dimension: an integer, a symbol, or None if unknown."""
        shape = self.dims(x)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def extent(self, x: str, axis: int) -> int | None:
        """Return a dimension if it is an integer."""
        found = self.dim(x, axis)
        return found if isinstance(found, int) else None

    def need_extent(self, x: str, axis: int) -> int:
        """Return a dimension that must be static, such as a hidden size."""
        found = self.extent(x, axis)
        if found is None:
            where = f"axis {axis} of '{x}' ({self.type(x) or 'of unknown type'})"
            raise self.unsupported(
                f"{where} has no known size", "declare it in the model's inputs, or give a weight"
            )
        return found

    # ── sizes as tensors ─────────────────────────────────────────────────────────────────────

    def size(self, x: str, axis: int) -> str:
        """Return a dimension as an int64 vector of one element; constant if static."""
        known = self.extent(x, axis)
        if known is not None:
            return self.ints(known)
        whole = self.rank(x) if axis < 0 else 0
        at = axis + whole
        return self.Shape(x, start=at, end=at + 1)

    def shape(self, *sizes: int | str) -> str:
        """Return a shape composed of integers and vectors as returned by `size`."""
        if all(isinstance(each, int) for each in sizes):
            return self.ints(*(each for each in sizes if isinstance(each, int)))
        parts = [self.ints(each) if isinstance(each, int) else each for each in sizes]
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def reshape(self, x: str, *sizes: int | str) -> str:
        """Return `x` reshaped; 0 keeps the dimension at its position, -1 is the remainder."""
        return self.Reshape(x, self.shape(*sizes))

    def reshape_like(self, x: str, like: str) -> str:
        """Return `x` reshaped to the shape of another tensor, in which 0 is a size."""
        return self.Reshape(x, self.Shape(like), allowzero=1)

    def transpose(self, x: str, *order: int) -> str:
        """Return `x` with permuted axes."""
        return self.Transpose(x, perm=order)

    def slice(self, x: str, axis: int, start: int | str, end: int | str) -> str:
        """Return the part of `x` from `start` to `end` along an axis."""
        return self.Slice(x, self.shape(start), self.shape(end), self.ints(axis))

    # ── the node ─────────────────────────────────────────────────────────────────────────────

    def wants(self, output: int) -> bool:
        """Whether the file uses an output."""
        return output < len(self.node.outputs) and bool(self.node.outputs[output])

    def error(self, reason: str) -> ModelError:
        """Return the error for a node that violates its operator's definition."""
        return self._site.error(reason, self.node)

    def unsupported(self, reason: str, recipe: str) -> UnsupportedError:
        """Return the error for an unsupported feature, with a remedy."""
        return self._site.unsupported(f"{reason}; {recipe}", self.node)

    def need_shape(self, x: str, name: str, *sizes: Dim) -> None:
        """Raise ModelError unless a tensor has this rank, and sizes where they are integers."""
        shape = self.dims(x)
        if shape is None:
            return
        fits = len(shape) == len(sizes) and all(
            a == b or not (isinstance(a, int) and isinstance(b, int))
            for a, b in zip(shape, sizes, strict=True)
        )
        for a, b in zip(shape, sizes, strict=False):
            equate(a, b)
        if not fits:
            wanted = ",".join("?" if each is None else str(each) for each in sizes)
            raise self.error(f"{name} is {self.type(x)}; expected [{wanted}]")


def _attribute(value: Any) -> Any:
    """Return an attribute in the importer's form: dtypes by number, lists as tuples."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):
        return tuple(map(_attribute, items(value)))
    return value
