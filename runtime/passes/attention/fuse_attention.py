"""Fuses attention that exporters decompose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS, DType, float32
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array, Dim, Shape
from ...ops.attention import Attention
from ...ops.elementwise import Cast, IsNaN, Mul, Where
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.norm import Softmax
from ...ops.shape import Unsqueeze
from ..driver import Context
from ..editing import Builder, drop, dtype_of, number, rank_of, shape_of, stand_in, static_size
from ..fusion import obstacle
from ..rounding import holds
from .operands import ScaledOperand, cut_operand, in_order, lift, operand
from .scores import HALVES, Mask, Scores, explain, fitted, joined, summed, total, written
from .sinks import Sinks, appended_sinks, multiplied_sinks, softened

#: Maximum head size of an Attention without a mask. Longer heads are channels with an element per
#: pixel (DaViT, XCiT). Their scores are few, so that nothing is gained by not storing them, and
#: products can split the pixels.
LONGEST_HEAD = 256
#: The stage of an Attention's scores with masks, before the Softmax.
MASKED = 2


@record
class _Result:
    """The nodes from a Softmax to the product with the values.

    Attributes:
        top: the product.
        v: the values.
        nodes: all nodes.
        scores: the Softmax's input, without its sinks.
        shape: of the weights that the product reads.
        sinks: those of the Softmax, or None.
    """

    top: Node
    v: Value
    nodes: frozenset[Node]
    scores: Value
    shape: Shape | None
    sinks: Sinks | None = None


@record
class _AttentionMatch:
    """Nodes that compute attention.

    Attributes:
        top: the last node.
        scores: the explained scores; its nodes are all those that are replaced.
        q, k, v: with axes in order.
        sinks: those of the Softmax, or None.
    """

    top: Node
    scores: Scores
    q: ScaledOperand
    k: ScaledOperand
    v: ScaledOperand
    sinks: Sinks | None = None

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.scores.scale * self.q.factor * self.k.factor


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``softmax(softcap(scale * q @ k') + mask) @ v`` by one node.

    Scales are products or quotients with numbers, anywhere on the way. Masks are added, or selected
    by a Where that puts -1e30 or less in place of scores; there may be several, with reshapes in
    between. Heads of k and v that Expand repeats for several heads of q are read in place. With
    three axes, the first is the batch and there is one head. Rows fully masked with -inf give 0, as
    ONNX's Attention requires; the decomposed nodes give NaN. The product of q and k may count heads
    and samples by one axis where the scores have two.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Softmax):
            continue
        transposed = _transpose_back(graph, node)
        if transposed:
            yield transposed
        found = _find(graph, node)
        if found is None:
            continue
        nodes = found.scores.nodes
        refused = obstacle(graph, nodes, found.top)
        if refused is not None:
            context.refused.append(refused)
            continue
        new = _rewrite(graph, found, context.options.fold_bytes)
        yield f"Attention '{new.name}' is what {len(nodes)} nodes around '{node.name}' compute"


def _transpose_back(graph: Graph, softmax: Node) -> str:
    """Rewrite ``v @ transpose(weights)`` as the transpose of ``weights @ transpose(v)``."""
    transpose = graph.sole_consumer(softmax.output)
    product = None if transpose is None else graph.sole_consumer(transpose.output)
    rank = rank_of(softmax.output)
    if (
        transpose is None
        or product is None
        or not isinstance(transpose.op, Transpose)
        or rank is None
    ):
        return ""
    order = (*range(rank - 2), rank - 1, rank - 2)
    v = product.inputs[0]
    if (
        not isinstance(product.op, MatMul)
        or transpose.op.order(rank) != order
        or rank_of(v) != rank
    ):
        return ""
    if v is None or v is transpose.output:
        return ""
    add = Builder(graph, product, product.name, (product,))
    weighted = add(MatMul(), softmax.output, add(Transpose(perm=order), v))
    graph.redirect(product.output, add(Transpose(perm=order), weighted))
    name = product.name
    drop(graph, product)
    return f"MatMul '{name}' weighs rows, not columns, and is transposed"


# ── finding ──────────────────────────────────────────────────────────────────────────────────────


def _find(graph: Graph, softmax: Node) -> _AttentionMatch | None:
    result = _find_result(graph, softmax)
    if result is None:
        return None
    start = Scores(result.scores, result.nodes, moved=shape_of(result.scores) != result.shape)
    for scores in explain(start, result.shape):
        found = _attends(result, scores)
        if found is not None:
            return found
    return None


def _attends(result: _Result, scores: Scores) -> _AttentionMatch | None:
    """Return the whole if the scores' operands and the values fit an Attention."""
    product = scores.value.producer
    if product is None or product.inputs[0] is None or product.inputs[1] is None:
        return None
    q, keys = operand(product.inputs[0]), operand(product.inputs[1])
    if q is None or keys is None or q.rank < 2 or keys.rank < 3:
        return None
    if keys.is_plain and (transposed := cut_operand(product.inputs[1])) is not None:
        keys = transposed
    if keys.is_plain and not q.swapped().is_plain:
        return None  # transposing only the keys would cost more than it saves
    k, v = keys.swapped(), operand(result.v, scaled=False)
    stacks = _stacks(scores, result.shape)
    if stacks is not None:
        if scores.factors or q.repeats != 1 or k.repeats != 1:
            return None
        q = replace(cut_operand(product.inputs[0]) or q, stacks=stacks)
        transposed = cut_operand(product.inputs[1])
        k = replace(k if transposed is None else transposed.swapped(), stacks=stacks)
        if not (_is_stacked(q) and _is_stacked(k)):
            return None
    if v is None or v.repeats != k.repeats or v.repeats == 1:
        v = ScaledOperand(result.v, tuple(range(k.rank)))
    if v.repeats != k.repeats or q.repeats != 1:
        return None
    nodes = replace(scores, nodes=scores.nodes | {product})
    found = _AttentionMatch(result.top, nodes, q, k, v, result.sinks)
    if any(isinstance(node.op, IsNaN) for node in result.nodes) and any(
        mask.may_be_infinite for mask in scores.masks
    ):
        return None  # an Attention gives 0 for rows of -inf alone
    return found if _is_scale(found.scale) and _fits(found) else None


def _is_scale(factor: float) -> bool:
    """Whether an Attention can have it: onnxruntime (1.31) refuses those below zero."""
    return factor > 0 and holds(factor, float32)


def _is_stacked(one: ScaledOperand) -> bool:
    """Whether an operand can be viewed with the axes of its stacks: it is not broadcast."""
    own, shape = replace(one, stacks=None).permuted(), one.permuted()
    if own is None or shape is None:
        return False
    size, wanted = static_size(own), static_size(shape)
    return wanted is not None and size in (None, wanted)


def _stacks(scores: Scores, shape: Shape | None) -> tuple[int, ...] | None:
    """Return the sizes of the stack of scores if the product counts its matrices by other axes.

    Sizes that are not known are left out, so that the operands have too few axes to fit.
    """
    if not scores.moved or shape is None or shape_of(scores.value) == shape:
        return None
    return tuple(size for size in shape[:-2] if isinstance(size, int))


def _find_result(graph: Graph, softmax: Node) -> _Result | None:
    """Return the nodes from a softmax over the last axis to the product with the values."""
    x, shape = softmax.inputs[0], shape_of(softmax.output)
    if x is None or shape is None or softmax.op not in (Softmax(), Softmax(axis=len(shape) - 1)):
        return None
    nodes, weights = {softmax}, softmax
    guarded = _guarded(weights)
    if guarded:
        nodes |= guarded[0]
        weights = guarded[1]
    sinks = appended_sinks(graph, weights)
    if sinks is not None:
        x, weights = sinks.scores, sinks.top
    reader = graph.sole_consumer(weights.output)
    if reader is not None and isinstance(reader.op, Cast) and reader.op.to in HALVES:
        if x.tensor.dtype != float32:
            return None
        nodes |= {reader}
        weights = reader
        reader = graph.sole_consumer(weights.output)
    shape = shape_of(x)
    if reader is not None and reader.op.view and _has_matrices(reader, weights.output):
        nodes |= {reader}
        weights, shape = reader, shape_of(reader.output)
        reader = graph.sole_consumer(weights.output)
    if reader is None or not isinstance(reader.op, MatMul):
        return None
    left, v = reader.inputs
    if left is not weights.output or v is None or v is left:
        return None
    nodes.add(reader)
    if sinks is None:
        sinks = multiplied_sinks(graph, x, reader)
        reader = reader if sinks is None else sinks.top
    nodes |= sinks.nodes if sinks else frozenset()
    return _Result(reader, v, frozenset(nodes), x, shape, sinks)


def _has_matrices(view: Node, weights: Value) -> bool:
    """Whether the result of a view has the matrices of what it reads, in a stack of other axes."""
    sizes = [(shape_of(value) or ())[-2:] for value in (view.output, weights)]
    return len(sizes[0]) == 2 and sizes[0] == sizes[1]


def _guarded(softmax: Node) -> tuple[set[Node], Node] | None:
    """Return the nodes that replace NaN by 0, and the last of them."""
    readers = list(softmax.output.consumers)
    tests = [node for node in readers if isinstance(node.op, IsNaN)]
    choices = [node for node in readers if isinstance(node.op, Where)]
    if len(readers) != 2 or not tests or not choices:
        return None
    (test,), (choice,) = tests, choices
    condition, zero, kept = choice.inputs
    if condition is not test.output or kept is not softmax.output or number(zero, 4) != 0:
        return None
    return {test, choice}, choice


def _fits(found: _AttentionMatch) -> bool:
    """Whether the operands fit an Attention, which broadcasts less than MatMul."""
    operands = (found.q, found.k, found.v)
    dtypes = {dtype_of(one.source) for one in operands}
    known = [shape for one in operands if (shape := one.permuted()) is not None]
    if len(known) != 3 or len(dtypes) != 1 or not dtypes <= FLOATS:
        return False
    q, k, v = known
    if len(q) not in (3, 4) or len(k) != len(q) or len(v) != len(q):
        return False
    if found.sinks is not None and (len(q) != 4 or found.scores.moved):
        return False
    if None in (*q[:-2], *k, *v) or q[0] != k[0] or k[:-1] != v[:-1] or q[-1] != k[-1]:
        return False
    if len(q) == 4 and not _heads_fit(q[1], k[1], found.k.repeats):
        return False
    if isinstance(q[-1], int) and q[-1] > LONGEST_HEAD and not found.scores.masks:
        return False
    scores, masks = (*q[:-1], k[-2]), found.scores.masks
    own = [_mask_fits(found, mask, scores, scores[-1]) for mask in masks]
    # What is added to whole rows changes no result, but an Attention would take it, if alone, for
    # a mask of the first key, and hide the others.
    of_rows = [mask for mask, fits in zip(masks, own, strict=True) if not fits]
    if of_rows and (found.scores.floored or not any(own)):
        return False
    return all(mask.choice is None and _mask_fits(found, mask, scores, 1) for mask in of_rows)


def _heads_fit(queries: object, keys: object, repeats: int) -> bool:
    if repeats > 1:
        return isinstance(keys, int) and queries == keys * repeats
    return keys in (1, queries) and keys != 0


def _mask_fits(found: _AttentionMatch, mask: Mask, scores: Shape, keys: Dim) -> bool:
    """Whether a mask has elements for so many keys, and adds no rows, heads or samples."""
    if mask.choice is None and dtype_of(mask.value) not in _mask_dtypes(found):
        return False
    if not found.scores.moved:
        mask = replace(mask, frame=scores)
    shape = fitted(mask, scores)
    if shape is None or not 2 <= len(shape) <= len(scores):
        return False
    return shape[-1] == keys and keys is not None


def _mask_dtypes(found: _AttentionMatch) -> tuple[DType, ...]:
    """Return what masks may be: of the dtype of the operands, or of their scores."""
    dtype = found.v.source.tensor.dtype
    return (dtype, float32) if dtype in HALVES else (dtype,)


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────


def _rewrite(graph: Graph, found: _AttentionMatch, limit: int) -> Node:
    top, rank = found.top, found.q.rank
    product = found.scores.value.producer
    assert product is not None
    scale = found.scale
    for value, one in zip(product.inputs, (found.q, found.k), strict=True):
        behind = None if value is None else lift(graph, value, one.source)
        if behind is not None and _is_scale(scale * behind[2]):
            view, inner, factor = behind
            scaled = view.inputs[0]
            graph.set_inputs(view, (inner, *view.inputs[1:]))
            drop(graph, None if scaled is None else scaled.producer)
            scale *= factor
    rows = _scaled(graph, found.q, found.scores.factors, top)
    q, k, v = (in_order(graph, one, top) for one in (rows, found.k, found.v))
    heads = 1 if rank == 3 else None
    cap = found.scores.cap
    op = Attention(scale=scale, softcap=cap, q_num_heads=heads, kv_num_heads=heads)
    inputs: list[Value | None] = [q, k, v]
    if found.scores.masks:
        inputs.append(_mask(graph, found, limit))
    if found.sinks is None:
        return stand_in(graph, found.scores.nodes, top, op, inputs)
    add = Builder(graph, top, top.name, tuple(graph.in_order(found.scores.nodes)))
    made = add.node(replace(op, qk_matmul_output_mode=MASKED), *inputs, outputs=4)
    factors = softened(add, made.outputs[0], made.outputs[3], found.sinks.data)
    stand_in(graph, found.scores.nodes, top, Mul(), factors)
    return made


def _scaled(
    graph: Graph, q: ScaledOperand, factors: tuple[Array, ...], before: Node
) -> ScaledOperand:
    """Return queries whose source is multiplied by what scales the rows of scores."""
    add = Builder(graph, before)
    for by in factors:
        data = np.moveaxis(by, range(by.ndim), q.order)
        q = replace(q, source=add(Mul(), q.source, add.constant(data, "factors")))
    return q


def _mask(graph: Graph, found: _AttentionMatch, limit: int) -> Value:
    """Return the masks as Attention takes them, with four axes instead of three."""
    add = Builder(graph, found.top, f"{found.top.name}.mask")
    queries, keys = (one.permuted() or (None, None) for one in (found.q, found.k))
    scores = (*queries[:-1], keys[-2])
    masks = found.scores.masks
    dtype = found.v.source.tensor.dtype
    if dtype in HALVES and not all(_is_held(mask, dtype) for mask in masks):
        dtype = float32
    if not found.scores.moved:
        masks = tuple(replace(mask, frame=scores) for mask in masks)
    masks = tuple(summed(joined(masks[::-1], scores, add, limit), scores, add))
    values = [_as(written(one, scores, add, dtype, limit), dtype, add) for one in masks]
    mask = total(values, add, limit)
    if len(scores) == 3 and mask.tensor.rank == 3:
        mask = add(Unsqueeze(), mask, add.integers([1]), name=f"{found.top.name}.heads")
    return mask


def _is_held(mask: Mask, dtype: DType) -> bool:
    """Whether a mask has this dtype, or chooses among numbers that it represents."""
    if mask.choice is None:
        return mask.value.tensor.dtype == dtype
    return all(each == 0 or np.isinf(each) or holds(each, dtype) for each in mask.choice)


def _as(value: Value, dtype: DType, add: Builder) -> Value:
    """Return a value in a dtype."""
    if value.tensor.dtype == dtype:
        return value
    if value.data is not None:
        return add.constant(value.data.astype(dtype), value.name)
    return add(Cast(to=dtype), value)
