"""Rows that are normalized, perhaps added to others, and normalized again as one kernel.

So begins what follows a normalized layer, in decoders with norms behind layers as well as in front
of them (Gemma 2, Gemma 3, GLM-4), and the first block behind normalized patches (PVT, SegFormer).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..codegen.stages import ViewedRows, head_of, viewed_rows
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .norm_rows import NormAgain, RowStatistic, ScaleShift, normalize_rows

_NORMS = LayerNormalization | RMSNormalization


@record
class NormalizedTwice(Whole):
    """Two normalizations, perhaps with elementwise nodes in between.

    Attributes:
        first: the normalization in front.
        tail: the elementwise nodes behind it, in topological order.
        rows: their result, as the second normalization reads it.
        second: this one.
        cast: the Cast of float32 results of the second one to 16 bits; None if there is none.
    """

    first: Node
    tail: tuple[Node, ...]
    rows: ViewedRows
    second: Node
    cast: Node | None = None

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        inner = (*self.tail, *self.rows.views)
        return frozenset((self.first, *inner, self.second, *filter(None, (self.cast,))))

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return normalized_twice(self, y, operand, setting)


def normalized_twice_at(
    graph: Graph, norm: Node, free: Set[Node], tail: Tail
) -> NormalizedTwice | None:
    """Return two normalizations of which this node is the second, if it is one.

    Not of float32 results, which norms store in halves for products; nor of a single row of 16-bit
    floats, which products normalize themselves. Residuals in float32 (Gemma of onnxruntime-genai)
    are normalized in it, and results cast to 16 bits.

    Args:
        graph: the graph.
        norm: a LayerNormalization or RMSNormalization.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    x = norm.operands[0]
    if norm not in free or not _is_of_rows(graph, norm):
        return None
    cast = _cast_behind(graph, norm, free) if x.tensor.dtype == float32 else None
    if cast is None and (x.tensor.dtype == float32 or prod(x.tensor.dims[:-1]) < 2):
        return None
    rows = viewed_rows(graph, norm)
    first = rows and head_of(rows.value, _NORMS)
    if rows is None or first is None or not _is_of_rows(graph, first):
        return None
    between = tail(graph, first, free - {norm, *rows.views})
    found = NormalizedTwice(first, between, rows, norm, cast)
    return found if (first, *between)[-1].output is rows.value and found.nodes <= free else None


def _cast_behind(graph: Graph, norm: Node, free: Set[Node]) -> Node | None:
    """Return the Cast to 16 bits that alone reads a normalization; None if there is none."""
    reader = graph.sole_consumer(norm.output)
    if reader is None or reader not in free or not isinstance(reader.op, Cast):
        return None
    return reader if reader.output.tensor.dtype in (float16, bfloat16) else None


def _is_of_rows(graph: Graph, norm: Node) -> bool:
    """Whether a node normalizes rows by constants, and has one result."""
    assert isinstance(norm.op, _NORMS)
    x, *parameters = norm.operands
    dims = x.tensor.dims
    alone = not any(map(graph.is_read, norm.outputs[1:]))
    constant = all(v.is_constant for v in parameters)
    if not alone or not constant or not is_along_last(norm):
        return False
    return are_of_rows(dims, -1, *(v.tensor.dims for v in parameters))


def normalized_twice(
    found: NormalizedTwice, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch, or why there is none."""
    first, second = found.first, found.second
    if any(setting.for_node(node).asked for node in (first, second)):
        return "an algorithm that was asked for"
    rows, x = Tensor(found.rows.value), operand(first.operands[0])
    epilogue = epilogue_of(found.tail, rows, first.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.stored != x.dtype or rows.dtype != x.dtype:
        return f"rows of {epilogue.stored.name}"
    parameters = [
        (*(operand(value) for value in node.operands[1:]), None)[:2] for node in (first, second)
    ]
    (scale, shift), (scale_again, shift_again) = parameters
    if scale is None or scale_again is None or scale.dtype != scale_again.dtype:
        return "scales of different types"
    assert isinstance(first.op, _NORMS)
    assert isinstance(second.op, _NORMS)
    centred, kept = isinstance(second.op, LayerNormalization), found.rows.kept
    launch = normalize_rows(
        *(rows if kept is None else operand(kept), x, x.rank - 1),
        RowStatistic(first.op.epsilon, centred=isinstance(first.op, LayerNormalization)),
        replace(epilogue, plain=kept is not None),
        setting.target,
        affine=ScaleShift(scale, shift),
        again=NormAgain(y, scale_again, shift_again, second.op.epsilon, centred),
    )
    return launch or "rows that do not fit into registers, or are not contiguous"
