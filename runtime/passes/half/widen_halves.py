"""Keeps floats of 16 bits in float32 between operations, where a backend computes them so anyway.

A processor without arithmetic in 16 bits widens what an operation reads, and rounds what it stores:
for a layer of few channels that takes as long as the layer. onnxruntime does without on such
processors, too. Nothing is rounded in between, so results are nearer to those of exact arithmetic.

Graphs with sizes are rewritten, right before they are planned: what is exported, or planned for
another device, has the types of the file. Layers become float32 if what they read is already, or
what reads them would follow. Other operators follow if one of their inputs is float32 already;
those that only move elements, if all are, so that no tensor is widened for them. What a file stores
in 16 bits on purpose stays: inputs, results, tables from which rows are gathered, caches, and what
a Cast rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from ...ir.constraints import takes
from ...ir.dtypes import DType, bfloat16, float16, float32
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ir.types import Array
from ...ops import conv, gather, matmul, movement, norm, pool, recurrent, resize
from ...ops import elementwise as ew
from ...ops import reduce as rd
from ...ops import shape as sh
from ..editing import dtype_of
from .half_operators import FOLLOWERS

_HALVES = (float16, bfloat16)
#: Operators that gain.
_LEADERS: frozenset[type[Op]] = frozenset(
    {
        *(conv.Conv, conv.ConvTranspose, matmul.Gemm, matmul.MatMul),
        *(recurrent.GRU, recurrent.LSTM, recurrent.RNN),
    }
)
#: Operators that move elements, or choose among them.
_MOVERS: frozenset[type[Op]] = frozenset(
    {
        *(*sh.VIEWS, ew.Where, gather.Gather, gather.GatherElements, gather.GatherND),
        *(movement.Transpose, movement.Expand, movement.Tile, movement.Concat, movement.Split),
        *(movement.Slice, movement.Pad, movement.DepthToSpace, movement.SpaceToDepth),
    }
)
#: Those that write to a tensor, which may be a cache, and what is not computed.
_STORED = {gather.ScatterElements, gather.ScatterND, gather.TensorScatter, norm.Dropout}
_FOLLOWERS: frozenset[type[Op]] = (FOLLOWERS | _MOVERS) - _STORED | {
    *(ew.Exp, ew.Log, ew.Sqrt, ew.Reciprocal, ew.Tan, ew.Sinh, ew.Cosh, ew.Asin, ew.Acos, ew.Atan),
    *(ew.Asinh, ew.Acosh, ew.Atanh, rd.ReduceSum, rd.ReduceSumSquare, rd.ReduceL1, rd.ReduceL2),
    *(rd.ReduceLogSum, rd.ReduceLogSumExp, rd.ReduceProd, norm.LpNormalization, pool.LpPool),
    *(norm.MeanVarianceNormalization, pool.GlobalLpPool),
}
#: Operators of which only the first input becomes float32.
_FIRST = (norm.BatchNormalization, resize.Resize, resize.GridSample)
#: What asks for sizes, which any type has.
_SIZES = (sh.Shape, sh.Size)


class WidenedConstants:
    """Constants in float32: one array of each for all programs, by which weights are known."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[Array, Array]] = {}

    def of(self, shared: Set[int], data: Array) -> Array:
        """Return a constant in float32: the same array each time if its id is in `shared`."""
        found = self._arrays.get(id(data))
        if found is not None:
            return found[1]
        wide = data.astype(float32)
        wide.flags.writeable = False  # else values have views of it, by which it is not known
        if id(data) in shared:
            self._arrays[id(data)] = data, wide
        return wide

    @property
    def ids(self) -> set[int]:
        """The ids of the arrays that are the same each time."""
        return {id(wide) for _, wide in list(self._arrays.values())}

    def forget(self, arrays: Set[int]) -> list[Array]:
        """Drop, and return, those of arrays with these ids."""
        return [self._arrays.pop(number)[1] for number in arrays if number in self._arrays]

    def clear(self) -> None:
        """Drop them."""
        self._arrays.clear()


def widen_halves(graph: Graph, constants: Callable[[Array], Array], limit: int) -> None:
    """Replace operations on 16 bits by those on float32.

    Inputs and results of the graph stay the same: the Cast after a node is left for those of its
    readers that do not follow.

    Args:
        graph: with sizes; rewritten in place.
        constants: returns a constant in float32.
        limit: maximum bytes of widened constants; of more, nothing is rewritten.
    """
    if not any(type(node.op) in _LEADERS and _is_half(node.inputs[0]) for node in graph.nodes):
        return
    taken = {*_LEADERS, *_FOLLOWERS}
    read = {v for node in graph.nodes if type(node.op) in taken for v in node.distinct_reads}
    if sum(2 * v.data.nbytes for v in read if v.data is not None and _is_half(v)) > limit:
        return
    wide = _Wide(graph, constants)
    for node in list(graph.nodes):
        if node in graph and wide.suits(node):
            wide.rewrite(node)
    graph.sweep()


def _is_half(value: Value | None) -> bool:
    return dtype_of(value) in _HALVES


class _Wide:
    """float32 counterparts of values of 16 bits."""

    def __init__(self, graph: Graph, constants: Callable[[Array], Array]) -> None:
        self._graph, self._constants = graph, constants
        self._known: dict[Value, Value] = {}
        self._casts: dict[Value, Value] = {}

    def suits(self, node: Node) -> bool:
        """Whether a node should compute in float32."""
        kind, halves = type(node.op), self._halves(node)
        if not halves or not _may_follow(node):
            return False
        computed = [value for value in halves if value.data is None]
        known = [value for value in computed if value in self._known]
        if kind in _MOVERS:
            is_wide = bool(known) and len(known) == len(computed)
            return is_wide and not any(map(self._graph.is_output, node.outputs))
        if kind in _LEADERS:
            return bool(known) or (bool(computed) and any(map(_may_follow, _readers(node))))
        return bool(known)

    def _halves(self, node: Node) -> list[Value]:
        first = node.inputs[: 1 if isinstance(node.op, _FIRST) else None]
        return [value for value in first if value is not None and _is_half(value)]

    def rewrite(self, node: Node) -> None:
        """Replace a node by one of float32 and a Cast of each of its results."""
        graph, halves = self._graph, set(self._halves(node))
        inputs = [self._widened(v, node) if v in halves else v for v in node.inputs]
        new = graph.insert(
            node.op, inputs, len(node.outputs), name=node.name, before=node, origin=(node,)
        )
        infer_node(new)
        results: list[Value] = []
        for value, old in zip(new.outputs, node.outputs, strict=True):
            half = dtype_of(old)
            is_changed = half in _HALVES and dtype_of(value) == float32
            results.append(self._cast(value, half, node) if half and is_changed else value)
            if is_changed:
                self._known[results[-1]] = value
        graph.replace(node, results)
        graph.rename(new, node.name)
        for result in results:
            if result in self._known:
                self._pass_on(result)

    def _pass_on(self, half: Value) -> None:
        """Let what widens a result, or asks for its size, read it in float32."""
        graph, wide = self._graph, self._known[half]
        for reader in graph.in_order(half.consumers):
            if isinstance(reader.op, _SIZES):
                graph.set_inputs(reader, (wide,))
            elif isinstance(reader.op, ew.Cast) and dtype_of(reader.output) == float32:
                graph.redirect(reader.output, wide)
                graph.remove(reader)

    def _widened(self, value: Value | None, reader: Node) -> Value | None:
        if value is None or value in self._known:
            return None if value is None else self._known[value]
        if value not in self._casts:
            name = f"{value.name}.{float32.name}"
            self._casts[value] = (
                self._cast(value, float32, reader)
                if value.data is None
                else self._graph.constant(self._constants(value.data), name)
            )
        return self._casts[value]

    def _cast(self, value: Value, to: DType, before: Node) -> Value:
        node = self._graph.insert(
            ew.Cast(to=to), [value], name=f"{value.name}.{to.name}", before=before, origin=(before,)
        )
        infer_node(node)
        return node.output


def _may_follow(node: Node) -> bool:
    """Whether an operator computes the same in float32, and has results of the type it reads."""
    kind = type(node.op)
    return (kind in _LEADERS or kind in _FOLLOWERS) and takes(kind, float32)


def _readers(node: Node) -> Iterable[Node]:
    return node.outputs[0].consumers
