"""Mixtures of experts: each expert computes the rows that chose it; see `runtime.ops.experts`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....runtime.ir.dtypes import float32, uint8
from ....runtime.ir.graph import Node
from ....runtime.ir.types import Array
from ....runtime.ops.experts import LAYERS, SPARSE_MARGIN, ExpertLayer, Mixture, MoE, QMoE
from ....runtime.ops.packed import MatMulNBits
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.packed_codes import IntegerCodes, PackedProduct, times_transposed, unpack_blocks
from ..numerics.products import sums

#: Elements of weights that are unpacked, or converted, at a time.
ELEMENTS = 1 << 18
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
    layers = _layers(op, node)
    codes = [layer and _codes(layer) for layer in layers]
    room = max(
        PackedProduct.room(own, layer.columns, ELEMENTS) if layer and own else 0
        for layer, own in zip(layers, codes, strict=True)
    )
    scratch = ScratchLayout()
    floats, spare = scratch.take(room, float32), scratch.take(room, uint8)

    def record(bound: Bound) -> list[Tape]:
        x, router, *rest = (bound.get(value) for value in node.inputs)
        rest += [None] * (13 - len(rest))
        out = bound[node.output]
        assert x is not None
        assert router is not None
        work = bound.scratch(floats, (room,)), bound.scratch(spare, (room,))
        made: list[Layer | None] = []
        for number, (layer, own) in enumerate(zip(layers, codes, strict=True)):
            product = None if own is None else PackedProduct(own, *work)
            operands = [*rest[3 * number : 3 * number + 3], rest[9 + number]]
            made.append(None if layer is None else _packed_layer(layer, product, *operands))
        first, second, third = made
        assert first is not None
        assert second is not None

        def run() -> None:
            np.copyto(out, _mixed(op, x, route(op, router, rest[12]), first, second, third))

        return [[run]]

    return HostStep(f"QMoE of {op.bits('fc1')} bits", site, record, 1, scratch.nbytes)


def _layers(op: QMoE, node: Node) -> list[ExpertLayer | None]:
    """Return the three layers, None for one that is omitted."""
    dims = [None if value is None else value.tensor.dims for value in node.inputs]
    dims += [None] * (11 - len(dims))
    x, first, third = dims[0], dims[2], dims[8]
    assert x is not None
    assert first is not None
    inner = first[1] // op.parts(has_third=third is not None)
    found: list[ExpertLayer | None] = []
    for name, terms, weights, scales in zip(
        LAYERS, (x[-1], inner, x[-1]), dims[2::3], dims[3::3], strict=False
    ):
        if weights is None or scales is None:
            found.append(None)
        else:
            found.append(op.layer(name, weights, scales, terms))
    return found


def _codes(layer: ExpertLayer) -> IntegerCodes | None:
    """Return the codes of a layer of whole blocks, which consist of whole bytes; else None."""
    if layer.rows % layer.block or layer.block % (8 // layer.bits):
        return None
    sizes = {"K": layer.rows, "N": layer.columns, "bits": layer.bits, "block_size": layer.block}
    return IntegerCodes(MatMulNBits(**sizes))


def _packed_layer(
    layer: ExpertLayer,
    product: PackedProduct | None,
    weights: Array | None,
    scales: Array | None,
    bias: Array | None,
    points: Array | None,
) -> Layer:
    """Return a layer with packed weights, by `product` if there is one and rows are float32."""
    assert weights is not None
    assert scales is not None
    factors = scales.reshape(*scales.shape[:2], -1)

    def zeros_of(expert: int) -> Array | None:
        if points is None or points.ndim == 3:
            return None if points is None else points[expert]
        return _by_column(points[expert], layer.columns, layer.bits)

    def rows_of(expert: int, first: int, last: int, out: Array) -> None:
        zeros = zeros_of(expert)
        own = None if zeros is None else zeros[first:last]
        block = weights[expert, first:last], factors[expert, first:last], own
        unpack_blocks(*block, layer.bits, layer.block, out)

    unpacked = _layer(layer.columns, rows_of, bias)

    def multiply(rows: Array, expert: int) -> Array:
        if product is None or rows.dtype != float32:
            return unpacked(rows, expert)
        operands = [None, weights[expert], factors[expert], zeros_of(expert)]
        found = np.empty((len(rows), layer.columns), rows.dtype)
        product.multiply(operands, rows, found)
        if bias is not None:
            found += bias[expert]
        return found

    return multiply


def _by_column(points: Array, columns: int, bits: int) -> Array:
    """Return packed zero points of one expert's columns as [columns, 1], in a byte each."""
    codes = points[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:columns, None]


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
            found[:, first:last] = times_transposed(x, own)
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
        limit, is_late = op.swiglu_limit, bool(op.swiglu_limit_after_activation)
        gate = x if limit is None or is_late else np.minimum(x, limit)
        gate = gate * _sigmoid(op.activation_alpha * gate)
        if limit is not None:
            gate = np.minimum(gate, limit) if is_late else gate
            other = np.clip(other, -limit, limit)
        return gate * (other + op.activation_beta)
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
