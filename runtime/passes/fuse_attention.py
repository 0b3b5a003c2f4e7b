"""Recognise Attention that exporters spell out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import FLOATS, bfloat16, float16, float32
from ..infer import infer_node
from ..ir import Graph, Node, Value
from ..ops.attention import Attention
from ..ops.elementwise import Add, Cast, Div, IsNaN, Mul, Tanh, Where
from ..ops.matmul import MatMul
from ..ops.movement import Expand, Transpose
from ..ops.norm import Softmax
from ..ops.shape import Reshape, Unsqueeze
from ..types import Shape, TensorType
from .driver import Context
from .editing import number
from .fusion import obstacle
from .pattern import pairs
from .rounding import holds

#: What is added to or put in the place of a score to hide it; a score itself is lost beside it.
_HIDDEN = -1e30
_HALVES = (float16, bfloat16)


Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Turned:
    """A value as `factor` times a source, whose axes are in this order."""

    source: Value
    order: Order
    factor: float


@dataclass(slots=True)
class _Found:
    """Nodes that attend.

    Attributes:
        top: the last one.
        v: the values.
        nodes: those between the first product and the last one, with both of them.
        scores: what of the scores has not been explained yet.
        scale: of the scores.
        softcap: 0 for none.
        mask: what is added to scores; or a condition with what stands for true and false.
        choice: the two numbers of a condition.
        operands: what queries, keys and values are made of, each with the order of its axes.
    """

    top: Node
    v: Value
    nodes: set[Node]
    scores: Value
    scale: float = 1.0
    softcap: float = 0.0
    mask: Value | None = None
    choice: tuple[float, float] | None = None
    operands: list[tuple[Value, Order]] = field(default_factory=list[tuple[Value, "Order"]])


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put one node in place of ``softmax(softcap(scale * q @ k') + mask) @ v``.

    The scale is a product or quotient with a number behind the first product, or in front of it on
    either side. The mask is a sum, or a Where that puts -1e30 or less in the place of scores. A
    head of k and v that Expand repeats for several heads of q is read where it lies. Of three axes,
    the first counts the batch and there is one head. Where everything in a row is masked with -inf,
    the result is 0, as ONNX wants of Attention; the nodes give NaN there.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Softmax):
            continue
        found = _find(graph, node)
        if found is None or obstacle(graph, found.nodes, found.top):
            continue
        count = len(found.nodes)
        new = _rewrite(graph, found)
        yield f"Attention '{new.name}' is what {count} nodes around '{node.name}' compute"


# ── finding ──────────────────────────────────────────────────────────────────────────────────────


def _find(graph: Graph, softmax: Node) -> _Found | None:
    found = _find_result(graph, softmax)
    if found is None or not _explain_scores(found):
        return None
    product = found.scores.producer
    if product is None or not isinstance(product.op, MatMul):
        return None
    found.nodes.add(product)
    q, keys = product.inputs
    if q is None or keys is None:
        return None
    left, right = _turned(q), _turned(keys)
    if left is None or right is None or len(right.order) < 3:
        return None
    as_it_is = tuple(range(len(right.order)))
    if right.order == as_it_is:  # to turn the keys would cost more than it saves
        return None
    *front, last, before = right.order
    orders = [left.order, (*front, before, last), as_it_is]
    found.scale *= left.factor * right.factor
    if not holds(found.scale, float32):
        return None
    found.operands = list(zip((left.source, right.source, found.v), orders, strict=True))
    return found if _fits(found) else None


def _find_result(graph: Graph, softmax: Node) -> _Found | None:
    """Return the nodes from a softmax over the last axis to the product with the values."""
    x, shape = softmax.inputs[0], _shape(softmax.output)
    if x is None or shape is None or softmax.op not in (Softmax(), Softmax(axis=len(shape) - 1)):
        return None
    nodes, weights = {softmax}, softmax
    guarded = _guarded(graph, weights)
    if guarded:
        nodes |= guarded[0]
        weights = guarded[1]
    reader = graph.sole_consumer(weights.output)
    before = x.producer
    if reader is not None and isinstance(reader.op, Cast) and reader.op.to in _HALVES:
        if before is None or not isinstance(before.op, Cast) or before.inputs[0] is None:
            return None
        if x.tensor.dtype != float32 or before.inputs[0].tensor.dtype != reader.op.to:
            return None
        nodes |= {reader, before}
        x, weights = before.inputs[0], reader
        reader = graph.sole_consumer(weights.output)
    if reader is None or not isinstance(reader.op, MatMul):
        return None
    left, v = reader.inputs
    if left is not weights.output or v is None or v is left:
        return None
    return _Found(reader, v, {*nodes, reader}, x)


def _guarded(graph: Graph, softmax: Node) -> tuple[set[Node], Node] | None:
    """Return the nodes that put 0 in the place of NaN, and the last of them."""
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


def _explain_scores(found: _Found) -> bool:
    """Take mask, soft cap and scale off the scores, in this order; whether all is well."""
    _take_mask(found)
    _take_scale(found)
    node = found.scores.producer
    if node is not None and isinstance(node.op, Tanh) and node.inputs[0] is not None:
        inner, factor = _unscaled(node.inputs[0])
        # scale * tanh(factor * x): a cap is both, and what is left of `factor` is the scale.
        if found.scale <= 0:
            return False
        found.nodes.add(node)
        found.softcap = found.scale
        found.nodes |= _between(node.inputs[0], inner)
        found.scale, found.scores = factor * found.softcap, inner
    return True


def _take_mask(found: _Found) -> None:
    node = found.scores.producer
    if node is None:
        return
    if isinstance(node.op, Add):
        for scores, mask in pairs(node):
            if _leads_to_product(scores) and number(mask, 4) is None:
                found.nodes.add(node)
                found.scores, found.mask = scores, mask
                return
    if isinstance(node.op, Where):
        condition, yes, no = node.inputs
        for scores, hidden, order in ((no, yes, 1), (yes, no, -1)):
            fill = number(hidden, 4)
            if scores is None or fill is None or fill > _HIDDEN or not _leads_to_product(scores):
                continue
            found.nodes.add(node)
            found.scores, found.mask = scores, condition
            found.choice = (fill, 0.0) if order == 1 else (0.0, fill)
            return


def _leads_to_product(value: Value) -> bool:
    """Whether a value is a product of matrices, scaled perhaps, or capped."""
    inner, _ = _unscaled(value)
    if inner.producer is not None and isinstance(inner.producer.op, Tanh):
        argument = inner.producer.inputs[0]
        inner = inner if argument is None else _unscaled(argument)[0]
    return inner.producer is not None and isinstance(inner.producer.op, MatMul)


def _take_scale(found: _Found) -> None:
    inner, factor = _unscaled(found.scores)
    found.nodes |= _between(found.scores, inner)
    found.scores, found.scale = inner, factor


def _unscaled(value: Value) -> tuple[Value, float]:
    """Return what a value is a multiple of, and by which number."""
    factor = 1.0
    while (node := value.producer) is not None:
        step = _factor(node)
        if step is None:
            break
        value, factor = step[0], factor * step[1]
    return value, factor


def _factor(node: Node) -> tuple[Value, float] | None:
    if isinstance(node.op, Div):
        x, divisor = node.inputs[0], number(node.inputs[1], len(_shape(node.inputs[0]) or ()))
        return None if x is None or not divisor else (x, 1 / divisor)
    if isinstance(node.op, Mul):
        for x, other in pairs(node):
            factor = number(other, len(_shape(x) or ()))
            if factor is not None and x.data is None:
                return x, factor
    return None


def _between(value: Value, inner: Value) -> set[Node]:
    """Return the nodes that scale `inner` to `value`."""
    nodes: set[Node] = set()
    while value is not inner and value.producer is not None:
        step = _factor(value.producer)
        if step is None:
            break
        nodes.add(value.producer)
        value = step[0]
    return nodes


def _turned(value: Value) -> _Turned | None:
    """Return what a value is a multiple of, its axes in another order; None without a shape."""
    inner, factor = _unscaled(value)
    shape, node = _shape(inner), inner.producer
    if shape is None:
        return None
    still = _Turned(inner, tuple(range(len(shape))), factor)
    if node is None or not isinstance(node.op, Transpose) or node.inputs[0] is None:
        return still
    source, other = _unscaled(node.inputs[0])
    return _Turned(source, node.op.order(len(shape)), factor * other)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def _shape(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def _permuted(shape: Shape | None, order: Order) -> Shape | None:
    if shape is None or len(shape) != len(order):
        return None
    return tuple(shape[axis] for axis in order)


def _fits(found: _Found) -> bool:
    """Whether the operands are those of an Attention, which broadcasts less than MatMul does."""
    dtypes = {x.tensor.dtype for x, _ in found.operands}
    shapes = [_permuted(_shape(x), order) for x, order in found.operands]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != 3 or len(dtypes) != 1 or not dtypes <= FLOATS:
        return False
    q, k, v = known
    if len(q) not in (3, 4) or len(k) != len(q) or len(v) != len(q):
        return False
    if None in (*q[:-2], *k, *v) or q[0] != k[0] or k[:-1] != v[:-1] or q[-1] != k[-1]:
        return False
    if len(q) == 4 and k[1] not in (1, q[1]):
        return False
    return found.mask is None or _mask_fits(found, (*q[:-1], k[-2]))


def _mask_fits(found: _Found, scores: Shape) -> bool:
    """Whether a mask has an element for every key, and does not add rows, heads or samples."""
    mask = found.mask
    shape = _shape(mask)
    if mask is None or shape is None or not 2 <= len(shape) <= len(scores):
        return False
    if found.choice is None and mask.tensor.dtype not in FLOATS:
        return False
    if shape[-1] != scores[-1] or None in shape[-1:]:
        return False
    own = scores[len(scores) - len(shape) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(shape, own, strict=True))


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────


def _rewrite(graph: Graph, found: _Found) -> Node:
    top, rank = found.top, len(found.operands[0][1])
    q, k, v = (_in_order(graph, x, order, top) for x, order in found.operands)
    if rank == 4:
        k, v = _without_repeats(graph, k, v, top)
    heads = 1 if rank == 3 else None
    op = Attention(scale=found.scale, softcap=found.softcap, q_num_heads=heads, kv_num_heads=heads)
    inputs: list[Value | None] = [q, k, v]
    if found.mask is not None:
        inputs.append(_mask(graph, found, rank))
    origin = tuple(node for node in graph.nodes if node in found.nodes)
    new = graph.insert(op, inputs, name=top.name, before=top, origin=origin)
    new.output.type = top.output.type
    graph.replace(top, new.outputs)
    for node in reversed(origin):
        if node is not top:
            _remove(graph, node)
    graph.rename(new, top.name)
    return new


def _in_order(graph: Graph, x: Value, order: Order, before: Node) -> Value:
    """Return a value with its axes in an order, by a Transpose that is there or by a new one."""
    if order == tuple(range(len(order))):
        return x
    for reader in x.consumers:
        if isinstance(reader.op, Transpose) and reader.op.order(len(order)) == order:
            return reader.output
    turned = graph.insert(Transpose(perm=order), [x], before=before)
    infer_node(turned)
    return turned.output


def _remove(graph: Graph, node: Node) -> None:
    """Remove a node and what it alone had a use for."""
    if node not in graph or any(v.consumers or graph.is_output(v) for v in node.outputs):
        return
    sources = [value.producer for value in node.reads]
    graph.remove(node)
    for source in sources:
        if source is not None and isinstance(source.op, Mul | Div | Transpose | Reshape | Expand):
            _remove(graph, source)


def _mask(graph: Graph, found: _Found, rank: int) -> Value:
    """Return the mask as Attention takes it, of four axes where it has three."""
    mask, before = found.mask, found.top
    assert mask is not None
    if found.choice is not None:
        dtype = found.v.tensor.dtype
        yes, no = (graph.constant(np.array(x, dtype), f"{before.name}.fill") for x in found.choice)
        chosen = graph.insert(Where(), [mask, yes, no], name=f"{before.name}.mask", before=before)
        infer_node(chosen)
        mask = chosen.output
    if rank == 3 and mask.tensor.rank == 3:
        axes = graph.constant(np.array([1], np.int64), f"{before.name}.axes")
        wide = graph.insert(Unsqueeze(), [mask, axes], name=f"{before.name}.heads", before=before)
        infer_node(wide)
        mask = wide.output
    return mask


def _without_repeats(graph: Graph, k: Value, v: Value, before: Node) -> tuple[Value, Value]:
    """Return keys and values as they are before each head is repeated for several queries'."""
    sources = [_unrepeated(k), _unrepeated(v)]
    if sources[0] is None or sources[1] is None:
        return k, v
    shapes = [_shape(source) for source in sources]
    same = shapes[0] is not None and shapes[1] is not None and shapes[0][:3] == shapes[1][:3]
    return (sources[0], sources[1]) if same else (k, v)


def _unrepeated(value: Value) -> Value | None:
    """Return x of Reshape(Expand(Unsqueeze(x, 2), [b, h, n, t, d]), [b, h * n, t, d])."""
    reshape = value.producer
    expand = None if reshape is None or reshape.inputs[0] is None else reshape.inputs[0].producer
    wide = None if expand is None or expand.inputs[0] is None else expand.inputs[0].producer
    if reshape is None or expand is None or wide is None:
        return None
    kinds = (type(reshape.op), type(expand.op), type(wide.op))
    if kinds != (Reshape, Expand, Unsqueeze):
        return None
    source = wide.inputs[0]
    x, five, four = _shape(source), _shape(expand.output), _shape(value)
    if x is None or five is None or four is None or len(x) != 4 or len(five) != 5 or len(four) != 4:
        return None
    if None in (*x, *four) or _shape(wide.output) != (*x[:2], 1, *x[2:]):
        return None
    if (*five[:2], *five[3:]) != x or (four[0], *four[2:]) != (x[0], *x[2:]):
        return None
    h, n = x[1], five[2]
    whole = isinstance(h, int) and isinstance(n, int) and four[1] == h * n
    return source if whole else None
