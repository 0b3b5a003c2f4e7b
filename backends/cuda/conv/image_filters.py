"""Convolutions whose images have filters of their own, computed for each of them.

Exporters write them with one image whose groups are the channels of all images, between two views:
correlation of features with those of a template (SiamRPN), filters that a layer mixes for each
sample (CondConv, dynamic convolution), hypernetworks. Images are read where they are instead, with
channels last, and so are filters of single channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import prod
from typing import TypeGuard

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.shape import RESHAPES
from ....runtime.ops.window import window
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, Setting
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import no_epilogue
from ..gemm.convolution import ConvProblem
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Stored


@record
class ImageFilters(Whole):
    """A convolution of images by filters of their own.

    Attributes:
        conv: the convolution.
        x: the images, [n, c, *spatial].
        w: the filters, [n * m, c / group, *kernel], or [n, m, *kernel] of single channels, with
            channels last.
        y: the results, [n, m, *output].
        nodes: the convolution with the views around it.
    """

    conv: Node
    x: Value
    w: Value
    y: Value
    nodes: frozenset[Node]

    @property
    def is_placed(self) -> bool:
        """Whether filters are read where they are."""
        return self.w is not self.conv.inputs[1]

    def problem(self, operand: Callable[[Value], Tensor], setting: Setting) -> ConvProblem:
        """Return the convolution, whose groups are those of one image."""
        op, x, y = self.conv.op, operand(self.x), operand(self.y)
        assert isinstance(op, Conv)
        w, *bias = self.conv.operands[1:]
        return ConvProblem(
            op=replace(op, group=op.group // x.dims[0]),
            y=y,
            x=x,
            w=operand(w),
            b=operand(bias[0]) if bias else None,
            view=window(op, x.dims[2:], w.tensor.dims[2:]),
            epilogue=no_epilogue(x.dtype),
            setting=setting.for_node(self.conv),
            own=True,
            placed=operand(self.w) if self.is_placed else None,
        )

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats of images, results, and filters where they are; see `Pattern`."""
        given, result = SELECTORS[Conv].expected(self.problem(Tensor, setting))[0]
        found = {self.x: given, self.y: result}
        return found | ({self.w: Format.CHANNELS_LAST} if self.is_placed else {})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return image_filters(self, operand, setting)


def image_filters_at(graph: Graph, conv: Node, free: Set[Node]) -> ImageFilters | None:
    """Return a convolution of images by filters of their own with the views around it, if it is."""
    x, w, *bias = conv.operands
    if not isinstance(conv.op, Conv) or conv not in free or w.is_constant:
        return None
    nodes, y = {conv}, conv.output
    before, behind = x.producer, graph.sole_consumer(y)
    if x.tensor.dims[:1] == (1,) and _is_view(before, free) and _is_view(behind, free):
        source, result = before.operands[0], behind.output
        count, *rest = source.tensor.dims or (0,)
        whole = _joined(source.tensor.dims), _joined(result.tensor.dims)
        fits = rest and result.tensor.dims[0] == count and conv.op.group % count == 0
        if fits and whole == (x.tensor.dims, y.tensor.dims) and graph.sole_consumer(x) is conv:
            nodes |= {before, behind}
            x, y = source, result
    view = w.producer
    is_depthwise = w.tensor.dims[1] == 1 < x.tensor.dims[1] == y.tensor.dims[1]
    if is_depthwise and not bias and _is_view(view, free) and graph.sole_consumer(w) is conv:
        source = view.operands[0]
        if source.tensor.dims == (*y.tensor.dims[:2], *w.tensor.dims[2:]):
            nodes.add(view)
            w = source
    return ImageFilters(conv, x, w, y, frozenset(nodes)) if nodes != {conv} else None


def _is_view(node: Node | None, free: Set[Node]) -> TypeGuard[Node]:
    return node is not None and node in free and isinstance(node.op, RESHAPES)


def _joined(dims: Ints) -> Ints:
    """Return the sizes of one image with the channels of all."""
    return (1, prod(dims[:2]), *dims[2:])


def image_filters(
    found: ImageFilters, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the recipe of a convolution of images by filters of their own."""
    if found.is_placed and not operand(found.w).is_channels_last:
        return "filters without channels last"
    return SELECTORS[Conv].made(found.problem(operand, setting))
