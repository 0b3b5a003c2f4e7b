"""Folds a BatchNormalization into the layers behind it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.elementwise import Add, Mul
from ...ops.movement import Transpose
from ..driver import Context, Reason
from ..editing import Builder, drop, rank_of
from ..fusion import refusal
from ..rounding import Unfit
from .fold_batchnorm import folded, written
from .takers import takers


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``w @ (x * s + t) + b`` into ``(w * s) @ x + (w @ t + b)``.

    For layers that read the result of a constant BatchNormalization: a Gemm, a product of rows with
    a constant matrix, or a Conv (also grouped) without padding, which the shift is not added to.
    Averages of pixels in between commute with it, and so do views (queries, and pooled keys and
    values of NextViT; a network's last pixels, averaged or flattened). All readers must be such
    layers. Blocks of MaxViT and CoAtNet begin with one. One between transposes of rows (PatchTST)
    is a factor and an addend of each column, which other passes fold.
    """
    for norm in reversed(list(graph.nodes)):
        affine = folded(norm) if norm in graph else None
        if affine is None or graph.is_output(norm.output):
            continue
        rows, behind = _rows_around(graph, norm)
        if rows is not None and behind is not None:
            try:
                _write_columns(graph, norm, rows, behind, affine)
            except Unfit as error:
                context.refused.append(refusal(graph, {norm}, Reason.NUMBERS, str(error)))
                continue
            yield f"{norm.kind} '{norm.name}' is a factor and an addend of each column"
            continue
        found = takers(graph, norm.output, 1, affine)
        if found is None:
            continue
        nodes = {norm, *(taker.node for taker in found)}
        try:
            made = [taker.made(graph, context) for taker in found]
        except Unfit as error:
            context.refused.append(refusal(graph, nodes, Reason.NUMBERS, str(error)))
            continue
        names = ", ".join(f"'{taker.node.name}'" for taker in found)
        for taker, new in zip(found, made, strict=True):
            taker.replace(graph, new)
        x = norm.inputs[0]
        assert x is not None
        graph.redirect(norm.output, x)
        drop(graph, norm)
        yield f"{norm.kind} '{norm.name}' became part of {names} behind it"


def _rows_around(graph: Graph, norm: Node) -> tuple[Value | None, Node | None]:
    """Return the rows that a node normalizes transposed, and the node that transposes them back."""
    x = norm.operands[0]
    before, behind = x.producer, graph.sole_consumer(norm.output)
    rank = rank_of(x)
    if before is None or behind is None or rank is None:
        return None, None
    if not isinstance(before.op, Transpose) or not isinstance(behind.op, Transpose):
        return None, None
    order = before.op.order(rank)
    back = tuple(order[axis] for axis in behind.op.order(rank))
    is_back = back == tuple(range(rank)) and order[1:2] == (rank - 1,)
    return (before.operands[0], behind) if is_back else (None, None)


def _write_columns(
    graph: Graph, norm: Node, rows: Value, behind: Node, affine: tuple[Array, Array]
) -> None:
    """Write a normalization of rows, which it reads and stores transposed, as a Mul and an Add."""
    scale, shift = written(norm, affine, rows.tensor.dtype)
    add = Builder(graph, behind, norm.name, (norm, behind))
    scaled = add(Mul(), rows, add.constant(scale, f"{norm.name}.scale"))
    total = add(Add(), scaled, add.constant(shift, f"{norm.name}.shift"))
    graph.redirect(behind.output, total)
    drop(graph, behind)
