"""Gradient (ai.onnx.preview.training), replaced by the nodes that compute it.

It names tensors of the model, whose names only the importer knows. The part of the graph between
them is used unchanged if it gets its own values, and copied if it gets others; then it is
differentiated in reverse mode. Higher derivatives need nothing more, as lower ones are ordinary
nodes by then.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

from ....runtime.errors import ModelError, ShapeError
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Add
from ....runtime.ops.shape import Identity
from ....runtime.ops.training import Gradient
from ..source.source import FileSource
from .derivatives import RULES, GradientWriter


def write_out_gradients(graph: Graph, source: FileSource) -> None:
    """Replace every Gradient, also in bodies, by other operators.

    Raises:
        ModelError: one names tensors that do not exist.
        UnsupportedError: an operator between them has no rule.
    """
    written: dict[str, Value] = {}
    for node in list(graph.nodes):
        for body in node.op.graphs():
            write_out_gradients(body, source)
        if isinstance(node.op, Gradient):
            values = ChainMap(written, dict(graph.values))
            results = _gradients(graph, node, node.op, values, source)
            written.update(zip((value.name for value in node.outputs), results, strict=True))
            graph.replace(node, results)


def _gradients(
    graph: Graph, node: Node, op: Gradient, values: Mapping[str, Value], source: FileSource
) -> Sequence[Value]:
    where = f"node '{node.name}' ({node.kind})"
    for name in (*op.xs, *(op.zs or ()), op.y):
        if name not in values:
            raise source.error(f"names '{name}', which nothing in its graph is called", where)
    write = GradientWriter(graph, node)
    variables = [values[name] for name in op.xs]
    target = values[op.y]
    image: dict[Value, Value] = {}
    named = [*variables, *(values[name] for name in op.zs or ())]
    for value, given in zip(named, node.inputs, strict=True):
        if given is None:
            raise source.error(f"leaves out the value of '{value.name}'", where)
        image[value] = value if given is value else write(Identity(), given)
    path = _between(graph, node, image, variables, target)
    try:
        copies = [_copied(write, each, image) for each in path]
        starts = [image[x] for x in variables]
        found = _backward(write, copies, starts, image.get(target, target))
    except (ShapeError, ModelError, TypeError, ValueError, LookupError) as error:
        reason = f"the gradient of '{op.y}' cannot be written out: {error}"
        raise source.unsupported(reason, where) from error
    pairs = zip(found, starts, strict=True)
    return [g or write.filled(0, x) for g, x in pairs][: len(node.outputs)]


def _between(
    graph: Graph, node: Node, fixed: dict[Value, Value], variables: Sequence[Value], target: Value
) -> list[Node]:
    """Return the nodes between fixed values and `target`."""
    before = graph.nodes[: graph.nodes.index(node)]
    needed = {target}
    behind: list[Node] = []
    for each in reversed(before):
        if any(value in needed and value not in fixed for value in each.outputs):
            needed.update(each.distinct_reads)
            behind.append(each)
    moved = {value for value, given in fixed.items() if given is not value} | {*variables}
    path: list[Node] = []
    for each in reversed(behind):
        if not moved.isdisjoint(each.distinct_reads):
            moved.update(each.outputs)
            path.append(each)
    return path


def _copied(write: GradientWriter, node: Node, image: dict[Value, Value]) -> Node:
    """Return the node, or a copy if it reads other values than before."""
    inputs = tuple(value and image.get(value, value) for value in node.inputs)
    if inputs == node.inputs and not node.captures:
        return node
    if node.op.graphs():
        raise LookupError(f"'{node.name}' ({node.kind}) has bodies")
    copy = write.nodes(node.op, inputs, len(node.outputs))
    image.update(zip(node.outputs, copy.outputs, strict=True))
    return copy


def _backward(
    write: GradientWriter, path: Sequence[Node], variables: Sequence[Value], target: Value
) -> list[Value | None]:
    """Return the derivatives of the sum of `target`, None where it does not depend on a value."""
    smooth = set(variables)
    for node in path:
        if not smooth.isdisjoint(node.distinct_reads):
            smooth.update(node.outputs)
    gradients = {target: write.filled(1, target)}
    for node in reversed(path):
        g = gradients.get(node.output)
        if g is None or smooth.isdisjoint(node.distinct_reads):
            continue
        if node.kind not in RULES or len(node.outputs) > 1:
            raise LookupError(f"there is no rule for '{node.name}' ({node.kind})")
        given = [value for value in node.inputs if value is not None]
        for value, part in zip(given, RULES[node.kind](write, node, g), strict=False):
            if part is not None and value in smooth:
                before = gradients.get(value)
                gradients[value] = part if before is None else write(Add(), before, part)
    return [gradients.get(x) for x in variables]
