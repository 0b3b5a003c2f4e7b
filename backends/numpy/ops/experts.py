"""Mixtures of experts: each expert computes the rows that chose it; see `runtime.ops.experts`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ....runtime.ops.experts import LAYERS, SPARSE_MARGIN, ExpertLayer, Mixture, MoE, QMoE
from ....runtime.ops.packed import MatMulNBits
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Tape
from ..numerics.packed_codes import GROUP, IntegerCodes, multiply_codes, unpack_blocks
from ..numerics.products import sums

#: Elements of weights that are unpacked, or converted, at a time.
ELEMENTS = 1 << 18
#: Maximum rows for which sums are scaled instead of weights.
FEW = 8
#: Returns rows [rows, terms] times the weights of an expert, plus its bias.
Layer = Callable[[Array, int], Array]


@kernel(MoE)
def moe(
    op: MoE,
    x: Array,
    router: Array,
    fc1: Array,
    fc1_bias: Array | None,
    fc2: Array,
    fc2_bias: Array | None = None,
    fc3: Array | None = None,
    fc3_bias: Array | None = None,
) -> Array:
    """Experts with weights of floats."""

    def layer(weights: Array, bias: Array | None) -> Layer:
        def rows_of(expert: int, first: int, last: int, out: Array) -> None:
            np.copyto(out, weights[expert, first:last], casting="same_kind")

        return _layer(weights.shape[1], rows_of, bias)

    third = None if fc3 is None else layer(fc3, fc3_bias)
    return _mixed(op, x, route(op, router), layer(fc1, fc1_bias), layer(fc2, fc2_bias), third)


@builder(QMoE)
def q_moe(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Experts with weights of a few bits, unpacked some columns at a time."""
    node = chain.head
    op = node.op
    assert isinstance(op, QMoE)
    if op.is_unreadable:
        return op.is_unreadable

    def record(bound: Bound) -> list[Tape]:
        operands, out = [bound.get(value) for value in node.inputs], bound[node.output]
        return [[lambda: np.copyto(out, _packed(op, *operands))]]

    return HostStep(f"QMoE of {op.bits('fc1')} bits", site, record)


def _packed(op: QMoE, *inputs: Array | None) -> Array:
    x, router, *rest = (*inputs, *(None,) * 13)
    assert x is not None
    assert router is not None
    points, given = rest[9:12], rest[12]

    def layer(number: int) -> Layer | None:
        weights, scales, bias = rest[3 * number : 3 * number + 3]
        if weights is None:
            return None
        assert scales is not None
        terms = x.shape[-1] if number != 1 else _inner(op, rest)
        found = op.layer(LAYERS[number], weights.shape, scales.shape, terms)
        zeros = _by_column(points[number], found.columns, found.bits)
        return _packed_layer(found, weights, scales, zeros, bias)

    first, second, third = (layer(number) for number in range(3))
    assert first is not None
    assert second is not None
    return _mixed(op, x, route(op, router, given), first, second, third)


def _packed_layer(
    layer: ExpertLayer, weights: Array, scales: Array, zeros: Array | None, bias: Array | None
) -> Layer:
    """Return a layer with packed weights; sums of few rows are scaled instead of weights."""
    factors = scales.reshape(*scales.shape[:2], -1)

    def rows_of(expert: int, first: int, last: int, out: Array) -> None:
        own = None if zeros is None else zeros[expert, first:last]
        block = weights[expert, first:last], factors[expert, first:last], own
        unpack_blocks(*block, layer.bits, layer.block, out)

    unpacked = _layer(layer.columns, rows_of, bias)
    if layer.rows % layer.block or layer.block % (8 // layer.bits):
        return unpacked
    sizes = {"K": layer.rows, "N": layer.columns, "bits": layer.bits, "block_size": layer.block}
    codes = IntegerCodes(MatMulNBits(**sizes))
    step = max(GROUP, ELEMENTS // layer.rows // GROUP * GROUP)
    room = min(step, -(-layer.columns // GROUP) * GROUP) * layer.rows
    work = np.empty(room, float32), np.empty(room, np.uint8)

    def product(rows: Array, expert: int) -> Array:
        if len(rows) > FEW or rows.dtype != float32:
            return unpacked(rows, expert)
        own = None if zeros is None else zeros[expert]
        operands = [None, weights[expert], factors[expert], own]
        found = np.empty((len(rows), layer.columns), rows.dtype)
        for first in range(0, layer.columns, step):
            part = range(first, min(first + step, layer.columns))
            found[:, part.start : part.stop] = multiply_codes(codes, operands, rows, part, work)
        return found if bias is None else found + bias[expert]

    return product


def _inner(op: QMoE, rest: list[Array | None]) -> int:
    """Return the terms of the second layer."""
    first, third = rest[0], rest[6]
    assert first is not None
    return first.shape[1] // op.parts(has_third=third is not None)


def _by_column(points: Array | None, columns: int, bits: int) -> Array | None:
    """Return packed zero points as [experts, columns, bytes]; those of columns in a byte each."""
    if points is None or points.ndim == 3:
        return points
    codes = points[:, :, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(points), -1)[:, :columns, None]


def route(op: Mixture, router: Array, given: Array | None = None) -> tuple[Array, Array]:
    """Return the chosen experts of every row, int64 [rows, k], and their weights.

    Args:
        op: the mixture.
        router: logits [rows, experts].
        given: weights of the same shape that replace the softmax; None for none.
    """
    logits = router.astype(sums(router.dtype), copy=False)
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : op.k]
    values = np.take_along_axis(logits, chosen, 1)
    if given is not None:
        weights = np.take_along_axis(given.astype(logits.dtype, copy=False), chosen, 1)
        total = weights.sum(1, keepdims=True) if op.normalize_routing_weights else 1
        return chosen, weights / total
    if op.use_sparse_mixer:
        return chosen, _sparse(logits, chosen, values)
    of = values if op.normalizes else logits
    greatest = values[:, :1]
    return chosen, np.exp(values - greatest) / np.exp(of - greatest).sum(1, keepdims=True)


def _sparse(logits: Array, chosen: Array, values: Array) -> Array:
    """Return the share of each chosen expert among those not chosen before and close to it."""
    left, found = logits.copy(), np.empty_like(values)
    for i in range(chosen.shape[1]):
        most = values[:, i : i + 1]
        far = most - logits > 2 * SPARSE_MARGIN * np.maximum(np.abs(logits), most)
        found[:, i] = 1 / np.exp(np.where(far, -np.inf, left) - most).sum(1)
        np.put_along_axis(left, chosen[:, i : i + 1], -np.inf, 1)
    return found


def _layer(
    columns: int, rows_of: Callable[[int, int, int, Array], None], bias: Array | None
) -> Layer:
    """Return a layer whose weights are made, some columns at a time, by `rows_of`."""

    def product(x: Array, expert: int) -> Array:
        terms = x.shape[1]
        found = np.empty((len(x), columns), x.dtype)
        step = max(1, ELEMENTS // max(terms, 1))
        weights = np.empty((min(step, columns), terms), x.dtype)
        for first in range(0, columns, step):
            last = min(first + step, columns)
            own = weights[: last - first]
            rows_of(expert, first, last, own)
            found[:, first:last] = x @ own.T
        return found if bias is None else found + bias[expert]

    return product


def _mixed(
    op: Mixture,
    x: Array,
    routing: tuple[Array, Array],
    first: Layer,
    second: Layer,
    third: Layer | None,
) -> Array:
    """Return the weighted sums of the experts' results."""
    chosen, weights = routing
    rows = x.reshape(-1, x.shape[-1])
    rows = rows.astype(sums(x.dtype), copy=False)
    total = np.zeros(rows.shape, rows.dtype)
    for expert in np.unique(chosen):
        own, slots = np.nonzero(chosen == expert)
        taken = rows[own]
        other = None if third is None else third(taken, expert)
        found = second(activated(op, first(taken, expert), other), expert)
        total[own] += found * weights[own, slots, None]
    return total.reshape(x.shape).astype(x.dtype)


def activated(op: Mixture, x: Array, other: Array | None) -> Array:
    """Return the input of the second layer, of results of the first and the third."""
    if op.activation_type == "swiglu":
        if other is None:
            half = x.shape[1] // 2
            parts = (
                (x[:, 0::2], x[:, 1::2]) if op.swiglu_fusion == 1 else (x[:, :half], x[:, half:])
            )
            x, other = parts
        if op.swiglu_limit is not None:
            x, other = (
                np.minimum(x, op.swiglu_limit),
                np.clip(other, -op.swiglu_limit, op.swiglu_limit),
            )
        return x * _sigmoid(op.activation_alpha * x) * (other + op.activation_beta)
    found = _ACTIVATIONS[op.activation_type](x)
    return found if other is None else found * other


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "identity": lambda x: x,
}
