"""Weights of a few bits in the orders of onnxruntime's CUDA kernels, put in the documented one.

onnxruntime-genai's builder writes such files for GPUs: integers in the order in which tensor cores
take them (`weights_prepacked`, `weight_prepacked`), and those of experts as numbers of four bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float4e2m1, float32, uint8
from ....runtime.ir.types import Array, TensorType
from ..source.raw import RawNode
from .producers import ANY, written_by
from .rewrite import NodeSite, without

_DOMAIN = "com.microsoft"
#: Terms of a column that are adjacent where columns take turns.
_TILE = 64
#: Places of the weights of QMoE's layers, before their scales, and of the first factor of scales.
_LAYERS, _FACTORS = (2, 5, 8), 15
#: Terms that share a scale, by the kind of numbers of four bits.
_FOURS = {"fp4": 32, "nvfp4": 16}
#: Attributes of QMoE for the bits of each layer.
_BITS = ("fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits")
#: Twice the numbers of four bits by their codes, plus 128, the zero point of eight bits.
_DOUBLED = (128 + 2 * np.arange(16, dtype=uint8).view(float4e2m1).astype(float32)).astype(uint8)


def in_order(packed: Array, columns: int, terms: int, bits: int, *, turns: bool = True) -> Array:
    """Return weights in the order that the operators document.

    Args:
        packed: uint8, `columns` * `terms` integers of `bits`, in the order of CUTLASS's products
            of mixed types.
        columns: results of the product, a multiple of 16 / `bits`.
        terms: of each result, a multiple of 64, or of 128 / `bits` without turns.
        bits: 2, 4 or 8.
        turns: whether 16 / `bits` columns take turns after every 64 terms, as before Hopper.

    Returns:
        uint8 [columns, terms * bits / 8], lowest bits first.
    """
    pack, group = 8 // bits, 16 // bits if turns else 1
    tile = _TILE if turns else 128 // bits
    # Each two bytes hold integers that are 8 terms apart, of one of 8 neighbouring terms.
    words = (
        packed.reshape(-1)
        .view("<u2")
        .reshape(columns // group, terms // tile, group, tile * bits // 128, 8 // pack, pack)
    )
    found = np.empty(
        (columns // group, group, terms // tile, *words.shape[3:4], 16 // bits, bits), uint8
    )
    mask = (1 << bits) - 1
    for far in range(16 // bits):
        some = words >> far * bits & mask
        whole = some[..., 0]
        for near in range(1, pack):
            whole |= some[..., near] << near * bits
        found[..., far, :] = whole.transpose(0, 2, 1, 3, 4)
    return found.reshape(columns, terms // pack)


@written_by("MatMulNBits", ANY, domain=_DOMAIN)
def products(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Weights in the order of kernels for GPUs before Hopper (1), or from it on (2)."""
    given = node.attributes
    kind, bits = given.get("weight_prepacked", 0), given.get("bits", 4)
    columns, terms = given.get("N", 0), given.get("K", 0)
    data = _elements(node, 1, site)
    if kind not in (1, 2) or data is None or not _fits(data.size, columns, terms, bits, kind == 1):
        return [node]
    found = in_order(data, columns, terms, bits, turns=kind == 1)
    name = site.constant(found.reshape(data.shape), node.inputs[1])
    inputs = (node.inputs[0], name, *node.inputs[2:])
    return [without(node, "weight_prepacked").change(inputs=inputs)]


def _fits(size: int, columns: int, terms: int, bits: int, turns: bool) -> bool:
    if bits not in (2, 4, 8) or size * 8 != columns * terms * bits:
        return False
    return columns % (16 // bits) == 0 and terms % (_TILE if turns else 128 // bits) == 0


@written_by("QMoE", ANY, domain=_DOMAIN)
def experts(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Experts whose weights are [experts, terms, bytes of columns], or numbers of four bits."""
    places = [place for place in _LAYERS if place < len(node.inputs) and node.inputs[place]]
    given = [(_elements(node, i, site), _elements(node, i + 1, site)) for i in places]
    layers = [
        _Layer(place, weights, scales, _bits(node, place))
        for place, (weights, scales) in zip(places, given, strict=True)
        if weights is not None and scales is not None and weights.ndim == 3 and scales.ndim > 1
    ]
    if len(layers) < len(places):
        return [node]
    kind, packed = (node.attributes.get(name, "") for name in ("quant_type", "weights_prepacked"))
    are_moved = packed == 1 or (
        all(each.has_columns_last for each in layers)
        and not all(each.has_columns_first for each in layers)
    )
    if kind in _FOURS:
        fit = all(each.has_blocks_of(_FOURS[kind], are_moved) for each in layers)
        return [_as_integers(node, layers, are_moved, site)] if fit else [node]
    is_packed = kind in ("", "int") and packed != 0 and are_moved
    return [_unpacked_experts(node, layers, site)] if is_packed else [node]


@record
class _Layer:
    """A layer of all experts: its place among the inputs, weights, scales and bits per weight."""

    place: int
    weights: Array
    scales: Array
    bits: int

    @property
    def columns(self) -> int:
        """Results per expert."""
        return self.scales.shape[1]

    @property
    def has_columns_last(self) -> bool:
        """Whether the last axis can be that of the results."""
        return self.weights.shape[2] * 8 == self.columns * self.bits

    @property
    def has_columns_first(self) -> bool:
        """Whether the axis before it can be."""
        return self.weights.shape[1] == self.columns

    def has_blocks_of(self, block: int, are_moved: bool) -> bool:
        """Whether weights of four bits have a scale for each so many terms."""
        if self.scales.ndim != 3 or self.weights.dtype != uint8:
            return False
        terms = self.weights.shape[1] if are_moved else 2 * self.weights.shape[2]
        fits = self.has_columns_last if are_moved else self.has_columns_first
        return fits and self.scales.shape[2] * block == terms


def _bits(node: RawNode, place: int) -> int:
    own = node.attributes.get(_BITS[_LAYERS.index(place)])
    return own or node.attributes.get("expert_weight_bits", 4)


def _unpacked_experts(node: RawNode, layers: Sequence[_Layer], site: NodeSite) -> RawNode:
    """Return the node with its integers in the documented order."""
    inputs = list(node.inputs)
    for each in layers:
        count, terms, _ = each.weights.shape
        if not _fits(each.weights[0].size, each.columns, terms, each.bits, turns=True):
            return node
        found = np.empty((count, each.columns, terms * each.bits // 8), uint8)
        for own, to in zip(each.weights, found, strict=True):
            to[...] = in_order(own, each.columns, terms, each.bits)
        inputs[each.place] = site.constant(found, node.inputs[each.place])
    return without(node, weights_prepacked=0).change(inputs=tuple(inputs))


def _as_integers(
    node: RawNode, layers: Sequence[_Layer], are_moved: bool, site: NodeSite
) -> RawNode:
    """Return the node with integers that are twice its numbers, and half its scales."""
    inputs = list(node.inputs[:_FACTORS])
    for each in layers:
        inputs[each.place] = site.constant(
            _doubled(each.weights, are_moved), node.inputs[each.place]
        )
        scales = each.scales.astype(float32) / 2
        factors = _elements(node, _FACTORS + _LAYERS.index(each.place), site)
        if factors is not None:
            scales *= factors.reshape(-1, 1, 1)
        inputs[each.place + 1] = site.constant(scales, node.inputs[each.place + 1])
    while not inputs[-1]:
        inputs.pop()
    block = _FOURS[node.attributes["quant_type"]]
    kept = without(node, "quant_type", "weights_prepacked", *_BITS)
    return without(kept, block_size=block, expert_weight_bits=8).change(inputs=tuple(inputs))


def _doubled(packed: Array, are_moved: bool) -> Array:
    """Return twice the numbers of pairs of codes as integers [experts, columns, terms]."""
    count, rows, width = packed.shape
    found = np.empty((count, rows, width, 2), uint8)
    np.take(_DOUBLED, packed & 15, out=found[..., 0])
    np.take(_DOUBLED, packed >> 4, out=found[..., 1])
    found = found.reshape(count, rows, 2 * width)
    return np.ascontiguousarray(found.transpose(0, 2, 1)) if are_moved else found


def _elements(node: RawNode, place: int, site: NodeSite) -> Array | None:
    """Return the elements of an input that is a constant."""
    name = node.inputs[place] if place < len(node.inputs) else ""
    found = site.type_of(name) if name else None
    return found.known if isinstance(found, TensorType) else None
