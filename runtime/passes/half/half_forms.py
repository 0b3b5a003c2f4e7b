"""Forms that half precision cannot represent: constants, quotients, squares, positions.

`to_half` uses this module in addition to `ranges`. The forms:

- a square of what is not known to be at most 1, which may leave the range, and other powers
- a product of two computed matrices, that is, a sum of products without normalization; except
  scores that lead to a Softmax, means weighted by a Softmax, and products with such means
- a layer that reads a graph input directly and whose result is squared: the spectrum of a
  recording of unknown loudness
- states of recurrent layers that are computed elsewhere, or unlimited
- a quotient whose divisor may be near 0, where half precision underflows to 0
- positions and counts: integers with more digits than the type has; elementwise nodes that compute
  where something is sampled (GridSample, RoiAlign), back to the layer where they start
- the input of a function with a pole at 0 or a limited domain (Log, Reciprocal, Sqrt, a divisor,
  Acos, ...), where rounding turns a number into an infinity or NaN. Elementwise nodes that compute
  such an input stay float32, back to the layer where they start
- constants that would overflow, become 0, or lose most of their digits
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from math import hypot, inf
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from ...base.parallel import WORTH_SHARING, in_parallel
from ...ir.dtypes import DType, float32
from ...ir.graph import Graph, Node, Value
from ...ir.halves import rounded
from ...ir.types import Array, TensorType
from ...ops import conv, gather, matmul, movement, norm, recurrent, reduce
from ...ops import elementwise as ew
from ...ops import shape as sh
from ..editing import number, shape_of, unviewed
from .half_operators import (
    LAST,
    LAYERS,
    NORMALISERS,
    PLACES,
    POSITIONS,
    SCORES,
    SINGULAR,
    THROUGH,
)
from .ranges import Ranges, ValueRange, input_of, norm_of, times

#: Minimum proven distance of a divisor from 0.
_DISTANCE = 2.0**-6
#: Maximum relative error of a whole constant, in its norm.
_LOST = 2.0**-7
#: Relative error of rounding to float16, and the difference of scores from which it is tolerated.
_ROUNDING, _NEAR = 2.0**-11, 4.0
#: Ratio from which on a smaller addend may vanish next to a larger one.
_GREATER = 1024.0
#: Elements of a constant examined at a time.
_BLOCK = 1 << 16

#: Operators whose results weigh others, and maximum bound of mixed weights.
_GATES, _WEIGHTS = (ew.Sigmoid, ew.HardSigmoid, norm.Softmax), 64.0
#: Maximum number of dtypes with a sufficient range.
_WIDE = 1e30


class HalfLimits:
    """The range and precision of a 16-bit type."""

    def __init__(self, half: DType) -> None:
        limits = cast("Any", ml_dtypes.finfo)(half)
        self.half = half
        self.greatest = float(limits.max)
        self.tiny = float(limits.smallest_normal)
        self.whole = 2.0 ** (int(limits.nmant) + 1)

    def holds(self, found: ValueRange) -> bool:
        """Whether numbers of this range neither overflow nor are integers with too many digits."""
        return found.peak <= self.greatest and not (found.counted and found.bound > self.whole)

    def vanishes(self, found: ValueRange) -> bool:
        """Whether most numbers of this range underflow or lose significant digits."""
        return 0 < found.size < 16 * self.tiny


def fragile_nodes(graph: Graph, ranges: Ranges) -> set[Node]:
    """Return the nodes that compute positions, or what rounding may move to a pole."""
    poles = [value for node in graph.nodes for value in _poles(node, ranges)]
    positions = [
        node.operands[POSITIONS[type(node.op)]]
        for node in graph.nodes
        if type(node.op) in POSITIONS
    ]
    layers = {node for node in graph.nodes if type(node.op) in LAST or _adds_bias(node)}
    return _computing(poles, set()) | _computing(positions, layers)


def _computing(values: list[Value], last: Set[Node]) -> set[Node]:
    """Return the nodes that compute values, back to layers, which belong to them if not `last`."""
    found, waiting = set[Node](), list(values)
    while waiting:
        node = waiting.pop().producer
        if node is None or node in found or node in last:
            continue
        if type(node.op) not in THROUGH | LAST:
            continue
        found.add(node)
        if type(node.op) in THROUGH:
            waiting.extend(value for value in node.inputs if value is not None)
    return found


def _adds_bias(node: Node) -> bool:
    """Whether a node adds the bias of a layer that is a MatMul."""
    computed = [value for value in node.operands if value.data is None]
    product = computed[0].producer if isinstance(node.op, ew.Add) and len(computed) == 1 else None
    return product is not None and isinstance(product.op, matmul.MatMul)


def _poles(node: Node, ranges: Ranges) -> list[Value]:
    """Return the inputs of a node that must not be rounded to a pole."""
    op, inputs = node.op, [value for value in node.inputs if value is not None]
    if isinstance(op, ew.Div):
        read = inputs[1:2]
    elif type(op) in SINGULAR:
        read = inputs[:1]
    elif isinstance(op, ew.Pow):
        power = number(inputs[1], 64)
        is_whole = power is not None and power >= 0 and power == int(power)
        read = [] if is_whole else inputs[:1]
    else:
        return []
    if isinstance(op, ew.Acos | ew.Asin | ew.Atanh | ew.Acosh):
        return read
    return [v for v in read if v.data is None and ranges[v].distance < _DISTANCE]


def is_open_product(node: Node, ranges: Ranges, limits: HalfLimits) -> bool:
    """Whether a node sums products of two computed tensors without a bound within float16."""
    if type(node.op) not in (matmul.MatMul, matmul.Gemm, conv.Conv, conv.ConvTranspose):
        return False
    a, b = node.inputs[:2]
    if a is None or b is None or a.data is not None or b.data is not None:
        return False
    found = ranges[node.output]
    if found.bound <= limits.greatest or limits.greatest > _WIDE:
        return False
    if any(_mixes_weights(value) or _takes_weights(value) for value in (a, b)):
        return False
    if ranges[a].means or ranges[b].means:  # linear attention: of the magnitude of scores
        return False
    if _most(node, ranges) <= limits.greatest:
        return False
    return not (ranges[a].shares or _comes_from_softmax(a) or _leads_to_softmax(node.output))


def _most(product: Node, ranges: Ranges) -> float:
    """Return what sums of products reach if one factor has a bound, as masks and features have.

    The elements of the other one are at most as large as is likely.
    """
    a, b = product.operands[:2]
    terms = a.tensor.shape[-1] if isinstance(product.op, matmul.MatMul) and a.tensor.shape else None
    if not isinstance(terms, int):
        return inf
    pairs = (ranges[a], ranges[b]), (ranges[b], ranges[a])
    return terms * min(times(one.bound, other.peak) for one, other in pairs)


def _mixes_weights(value: Value) -> bool:
    """Whether a tensor is a mixture of constant weights by gates or shares, as CondConv's filters.

    It is as small as they are, and a product with it is as bounded as that of any layer.
    """
    node = _made_in(value)
    if node is None or not isinstance(node.op, matmul.MatMul | matmul.Gemm):
        return False
    gates, weights = _made_in(node.operands[0]), node.operands[1].data
    if gates is None or not isinstance(gates.op, _GATES) or weights is None or weights.ndim != 2:
        return False
    transposed = isinstance(node.op, matmul.Gemm) and bool(node.op.transB)
    sums = np.abs(weights.astype(np.float64)).sum(1 if transposed else 0)
    return float(sums.max(initial=0.0)) <= _WEIGHTS


def _takes_weights(value: Value) -> bool:
    """Whether a tensor has matrices that indices choose among constant ones, as of experts."""
    node = unviewed(value, (movement.Transpose, *sh.RESHAPES)).producer
    if node is None or not isinstance(node.op, gather.Gather | gather.GatherND):
        return False
    table = node.operands[0].data
    return table is not None and table.ndim > 2


def _made_in(value: Value) -> Node | None:
    """Return the node that computes what is only moved or converted to a value."""
    node = value.producer
    while node is not None and (type(node.op) in PLACES or isinstance(node.op, ew.Cast)):
        node = node.operands[0].producer
    return node


def _leads_to_softmax(value: Value) -> bool:
    """Whether all readers of a value scale, mask or move it, and lead to a Softmax."""
    waiting, seen = [value], set[Value]()
    while waiting:
        scores = waiting.pop()
        if not scores.consumers:
            return False
        for reader in scores.consumers:
            if type(reader.op) in SCORES or _mixes(reader):
                waiting.extend(v for v in reader.outputs if v not in seen)
                seen.update(reader.outputs)
            elif type(reader.op) not in NORMALISERS:
                return False
    return True


def _comes_from_softmax(value: Value) -> bool:
    """Whether a value is a Softmax of which layers mixed heads."""
    mixed, node = False, value.producer
    while node is not None and not isinstance(node.op, norm.Softmax):
        computed = [v for v in node.inputs if v is not None and v.data is None]
        fits = type(node.op) in PLACES or isinstance(node.op, ew.Add | ew.Cast) or _mixes(node)
        if not fits or len(computed) != 1:
            return False
        mixed, node = mixed or _mixes(node), computed[0].producer
    return node is not None and mixed


def _mixes(node: Node) -> bool:
    """Whether a layer with weights gives a tensor of the shape that it reads, such as heads."""
    if type(node.op) not in LAYERS:
        return False
    computed = [v for v in node.inputs if v is not None and v.data is None]
    shapes = [v.type.shape if isinstance(v.type, TensorType) else None for v in computed]
    own = node.output.type
    return len(shapes) == 1 and isinstance(own, TensorType) and own.shape == shapes[0] is not None


def is_open_power(node: Node, ranges: Ranges) -> bool:
    """Whether a node squares what may exceed 1, or computes another power."""
    if isinstance(node.op, ew.Pow):
        return number(node.inputs[1], 64) != 2 or ranges[input_of(node, 0)].bound > 1
    return is_square(node) and ranges[input_of(node, 0)].bound > 1


def is_square(node: Node) -> bool:
    """Whether a node multiplies a computed tensor by itself, or by a function of its sign."""
    if not isinstance(node.op, ew.Mul):
        return False
    a, b = (_source(value) for value in node.inputs)
    return a is b and a is not None and a.data is None


def _source(value: Value | None) -> Value | None:
    while value is not None and value.producer is not None:
        if not isinstance(value.producer.op, ew.Abs | ew.Neg | ew.Mul | sh.Identity):
            break
        operands = [v for v in value.producer.inputs if v is not None and v.data is None]
        if len(set(operands)) != 1:
            break
        value = operands[0]
    return value


def is_spectrum(node: Node) -> bool:
    """Whether a layer reads a graph input directly, and its output is only squared."""
    if type(node.op) not in LAYERS:
        return False
    source = node.inputs[0]
    while source is not None and source.producer is not None:
        if type(source.producer.op) not in PLACES:
            return False
        source = source.producer.inputs[0]
    return source is not None and source.data is None and _is_squared(node.output)


def _is_squared(value: Value) -> bool:
    """Whether a value is squared, as a whole or in parts, other than for its own length."""
    if any(isinstance(node.op, ew.Div) and node.inputs[0] is value for node in value.consumers):
        return False
    for reader in value.consumers:
        if isinstance(reader.op, reduce.ReduceSumSquare | reduce.ReduceL2) or is_square(reader):
            return True
        if isinstance(reader.op, ew.Pow) and reader.inputs[0] is value:
            return True
        if type(reader.op) in PLACES and any(map(_is_squared, reader.outputs)):
            return True
    return False


def is_open_recurrence(node: Node, ranges: Ranges) -> bool:
    """Whether a recurrent layer has states without a limit, or goes on with those of another run.

    Within a run states are float32. From run to run they would be rounded, and what a step adds to
    a large one may be lost.
    """
    if not isinstance(node.op, recurrent.RecurrentOp):
        return False
    states = (*node.inputs, *[None] * 6)[5:7]
    is_carried = any(state is not None and state.data is None for state in states)
    return is_carried or ranges[node.output].bound == inf


def is_open_quotient(node: Node, ranges: Ranges) -> bool:
    """Whether a node divides by a computed tensor that may be near 0."""
    divisor = node.inputs[1] if isinstance(node.op, ew.Div) else None
    return divisor is not None and divisor.data is None and ranges[divisor].distance < _DISTANCE


def is_slight(bias: Value, node: Node, ranges: Ranges) -> bool:
    """Whether a constant is a bias much smaller than the layer's output.

    A MatMul's bias is a vector that an Add adds; a single number is more likely an epsilon.
    """
    kinds = (conv.Conv, conv.ConvTranspose, matmul.Gemm)
    if isinstance(node.op, ew.Add):
        return bias.tensor.size > 1 and is_outweighed(bias, node, ranges)
    is_bias = isinstance(node.op, kinds) and len(node.inputs) > 2 and node.inputs[2] is bias
    return is_bias and ranges[node.output].size > _GREATER * ranges[bias].size


def is_outweighed(value: Value, node: Node, ranges: Ranges) -> bool:
    """Whether a node adds a value to something so much larger that it may vanish."""
    if not isinstance(node.op, ew.Add):
        return False
    greatest = max(ranges[v].size for v in node.inputs if v is not None)
    return greatest >= _GREATER * ranges[value].size


def vanishes_in_sum(node: Node, ranges: Ranges) -> bool:
    """Whether all readers of a node add it to something much larger."""
    value = node.output
    waiting, seen = list(value.consumers), set[Node]()
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        if is_outweighed(value, reader, ranges):
            continue
        if isinstance(reader.op, sh.Reshape | movement.Transpose | sh.Identity | norm.Dropout):
            waiting.extend(reader.output.consumers)
        else:
            return False
    return bool(seen)


def holds_mask(mask: Array, *, whole: bool) -> bool:
    """Whether float16 holds what a constant mask adds to scores.

    A key below another by d in its row counts only if its score is greater by about d. The rounding
    of scores that large in 16-bit products is at least that of d, so that this much may be lost.

    Args:
        mask: float32 [..., keys].
        whole: whether each row sees all keys that its mask does not hide.
    """
    if not mask.size:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        found = mask.astype(np.float16).astype(np.float32)
        below = mask.max(-1, keepdims=True) - mask if whole else np.float32(0)
        lost = np.where(found == mask, 0, np.abs(found - mask))
    return bool((lost <= _ROUNDING * np.maximum(below, _NEAR)).all())


def repeated_rows(mask: Value) -> Array | None:
    """Return the constant rows that a mask repeats, such as for all samples; None of others."""
    rows = unviewed(mask, (*sh.RESHAPES, movement.Expand, movement.Tile))
    dims = shape_of(mask)
    is_whole = rows.data is not None and dims is not None and rows.data.shape[-1:] == dims[-1:]
    return rows.data if is_whole else None


def holds_computed(found: ValueRange) -> bool:
    """Whether float16 holds what a computed mask adds to scores; see `holds_mask`."""
    return found.bound <= _NEAR


def fits(
    data: Array, half: DType, known: ValueRange, *, divides: bool = False, may_vanish: bool = False
) -> bool:
    """Whether a constant survives rounding.

    No number may become infinite and no constant all zero; tables of integers must stay exact, and
    a number close to 1 must not become 1. The relative error of the whole must be small.

    Args:
        data: float32.
        half: the 16-bit type.
        known: the range of its elements.
        divides: whether it is a divisor, of which no element may become 0.
        may_vanish: whether elements may become 0, because their result is added to larger numbers.
    """
    one = data.ravel(order="K") if any(data.strides) else data.reshape(-1)[:1]
    is_usual = one.size > 1 and not divides and _surely_fits(half, known)
    if is_usual and _has_fractions(one[:_BLOCK]):
        return True
    judge = partial(_judged, one, half, divides)
    parts = range(0, one.size, _BLOCK)
    shared = one.size >= WORTH_SHARING
    lost = total = 0.0
    whole = one.size > 1
    for each in in_parallel(judge, parts) if shared else map(judge, parts):
        if not each.survives:
            return False
        whole = whole and each.whole
        lost = hypot(lost, each.lost)
        total = hypot(total, each.total)
    if lost == 0:
        return True
    if whole or (one.size == 1 and abs(float(one[0].astype(half))) == 1):
        return False
    return may_vanish or lost <= _LOST * total


def _surely_fits(half: DType, known: ValueRange) -> bool:
    """Whether numbers of this size are far from both ends of a type."""
    limits = cast("Any", ml_dtypes.finfo)(half)
    if not 0 < known.size <= known.bound < float(limits.max):
        return False
    return float(limits.eps) / 2 + float(limits.smallest_subnormal) / known.size <= _LOST


def _has_fractions(numbers: Array) -> bool:
    return bool((np.rint(numbers) != numbers).any())


class _Judged(NamedTuple):
    """What becomes of some numbers.

    Attributes:
        survives: whether none becomes infinite, or 0 as a divisor.
        whole: whether all are integers.
        lost: the norm of their errors.
        total: their norm.
    """

    survives: bool
    whole: bool
    lost: float
    total: float


def _judged(numbers: Array, half: DType, divides: bool, first: int) -> _Judged:
    """Return what becomes of `_BLOCK` float32 numbers; see `fits`."""
    part = numbers[first : first + _BLOCK]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = rounded(part, half).astype(float32)
        is_finite = np.isfinite(part)
        survives = np.array_equal(np.isfinite(narrow), is_finite) and not (
            divides and np.count_nonzero(narrow) < np.count_nonzero(part)
        )
        if not is_finite.all():
            part, narrow = (np.where(is_finite, each, 0) for each in (part, narrow))
        whole = bool((np.rint(part) == part).all())
        return _Judged(survives, whole, norm_of(narrow - part), norm_of(part))


def chooses_alike(one_hot: Node, half: DType) -> bool:
    """Whether both constants between which a OneHot chooses are numbers of half precision."""
    data = one_hot.operands[2].data
    return data is not None and np.array_equal(data, rounded(data, half).astype(data.dtype))
