"""Merges convolutions of one image that differ in their filters only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.conv import Conv
from ..driver import Context
from ..editing import Builder, drop, shape_of, static_size
from ..pointwise import is_activation

#: Channels of which every part has a multiple, so that slices of both precisions are whole words.
WORD = 8
#: Maximum pixels of the results of a batch. On an H200 GoogLeNet at batch 1 takes 7 % less time in
#: float16 and 11 % in float32; at batch 32, where each convolution fills the GPU and runs beside
#: others, 4 and 1 % more if all of them were merged.
MAX_PIXELS = 1024


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge convolutions of one image whose results only other convolutions read.

    In an Inception module, convolutions of 1x1 reduce the channels for larger ones: they become
    one, which reads the image once, and the larger ones read slices of its result, in place. That
    is so where there are few pixels, so that each of them would leave most of a GPU idle.
    """
    for node in list(graph.nodes):
        branch = _branch(graph, node) if node in graph else None
        if branch is None:
            continue
        found = (_branch(graph, reader) for reader in branch.x.consumers)
        alike = [other for other in found if other is not None and other.is_like(branch)]
        if len(alike) > 1:
            yield _merge(graph, alike)


@record
class _Branch:
    """A convolution of one group, and its activation if there is one."""

    conv: Node
    activation: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes in order."""
        return (self.conv,) if self.activation is None else (self.conv, self.activation)

    @property
    def x(self) -> Value:
        """The image."""
        return self.conv.operands[0]

    @property
    def y(self) -> Value:
        """Its result."""
        return self.nodes[-1].output

    @property
    def weight(self) -> Array:
        """The filters [m, c, ...]."""
        data = self.conv.operands[1].data
        assert data is not None
        return data

    @property
    def bias(self) -> Array:
        """The bias [m]; zeros without one."""
        given = self.conv.operands[2:]
        data = given[0].data if given else None
        return np.zeros(len(self.weight), self.weight.dtype) if data is None else data

    def is_like(self, other: _Branch) -> bool:
        """Whether both differ in their filters only."""
        settings = [
            b.activation and (b.activation.op, b.activation.inputs[1:]) for b in (self, other)
        ]
        windows = [(b.conv.op, b.weight.shape[1:], b.weight.dtype) for b in (self, other)]
        return settings[0] == settings[1] and windows[0] == windows[1]


def _branch(graph: Graph, conv: Node) -> _Branch | None:
    """Return the branch that begins with a node, if convolutions read its result."""
    if not isinstance(conv.op, Conv) or conv.op.group != 1:
        return None
    if any(value.data is None for value in conv.operands[1:]):
        return None
    after = graph.sole_consumer(conv.output)
    found = _Branch(conv, after if after is not None and is_activation(after) else None)
    if graph.is_output(found.y) or not all(isinstance(n.op, Conv) for n in found.y.consumers):
        return None
    size = static_size(shape_of(found.y))
    if size is None or size > MAX_PIXELS * len(found.weight):
        return None
    return None if len(found.weight) % WORD else found


def _merge(graph: Graph, branches: Sequence[_Branch]) -> str:
    """Compute branches as slices of one; return the text."""
    nodes = graph.in_order(node for branch in branches for node in branch.nodes)
    first = next(branch for branch in branches if branch.conv is nodes[0])
    add = Builder(graph, nodes[0], nodes[0].name, nodes)
    arrays = [branch.weight for branch in branches], [branch.bias for branch in branches]
    weight, bias = (
        add.constant(np.concatenate(each), f"{nodes[0].name}.merged") for each in arrays
    )
    y = add(first.conv.op, first.x, weight, bias)
    if first.activation is not None:
        y = add(first.activation.op, y, *first.activation.inputs[1:])
    parts = add.split(y, 1, (len(branch.weight) for branch in branches))
    for branch, part in zip(branches, parts, strict=True):
        graph.redirect(branch.y, part)
    for node in reversed(nodes):
        drop(graph, node)
    return f"'{y.name}' is what {len(branches)} convolutions compute with '{first.x.name}'"
