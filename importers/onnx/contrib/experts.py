"""Mixtures of experts: every expert computes every row, and a router weights the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir import dtypes
from ....runtime.ir.types import Array
from .builder import NodeBuilder
from .declaration import Anything, Float32, Kind, T, contrib

Router = Annotated[str, Kind("T", dtypes.FLOATS)]
#: The block size of weights with one scale per column.
BLOCK = 16


@dataclass(frozen=True, slots=True)
class _Experts:
    """Attributes that MoE and QMoE have in common."""

    activation: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int
    k: int
    normalize: bool

    def check(self, b: NodeBuilder, sparse: int) -> None:
        """Reject undefined combinations."""
        if sparse:
            raise b.unsupported("use_sparse_mixer=1", "export the model with use_sparse_mixer=0")
        if self.activation not in ("relu", "gelu", "silu", "swiglu", "identity"):
            raise b.error(
                f"activation_type={self.activation!r}; "
                "expected relu, gelu, silu, swiglu or identity"
            )
        if self.fusion not in (0, 1, 2):
            raise b.error(f"swiglu_fusion={self.fusion}; expected 0, 1 or 2")

    def activated(self, b: NodeBuilder, x: str, other: str | None) -> str:
        """Return the input of the second product.

        Args:
            b: adds the nodes.
            x: the first product.
            other: the third product, or None.
        """
        if self.activation == "swiglu":
            gate, linear = (x, other) if other else self._halves(b, x)
            return self._swiglu(b, gate, linear)
        kinds: dict[str, Callable[[str], str]] = {
            "relu": b.Relu,
            "gelu": lambda y: b.Gelu(y, approximate="tanh"),
            "silu": b.Swish,
            "identity": lambda y: y,
        }
        y = kinds[self.activation](x)
        return y if other is None else b.Mul(y, other)

    def _halves(self, b: NodeBuilder, x: str) -> tuple[str, str]:
        """Return gate and linear part of one product, interleaved or concatenated."""
        width = b.need_extent(x, -1)
        if not self.fusion or width % 2:
            raise b.error(
                f"swiglu_fusion={self.fusion} of {b.type(x)}; expected 1 or 2 and an even width, "
                "or fc3_experts_weights"
            )
        if self.fusion == 2:
            first, second = b.several("Split", 2, x, axis=-1, num_outputs=2)
            return first, second
        first, second = (
            b.Slice(x, b.ints(i), b.ints(width), b.ints(-1), b.ints(2)) for i in (0, 1)
        )
        return first, second

    def _swiglu(self, b: NodeBuilder, gate: str, linear: str) -> str:
        if self.limit is not None:
            most, least = b.number(self.limit, gate), b.number(-self.limit, gate)
            gate, linear = b.Clip(gate, None, most), b.Clip(linear, least, most)
        return b.Mul(b.Swish(gate, alpha=self.alpha), b.Add(linear, b.number(self.beta, linear)))

    def weights(self, b: NodeBuilder, router: str, given: str | None = None) -> str:
        """Return the routing weights [rows, experts], 0 for experts that are not selected."""
        values, indices = b.several("TopK", 2, router, b.ints(self.k), axis=1)
        if given is not None:
            values = b.GatherElements(given, indices, axis=1)
            if self.normalize:
                values = b.Div(values, b.ReduceSum(values, b.ints(1)))
        elif self.normalize or b.node.op == "QMoE":
            values = b.Softmax(values, axis=1)
        else:
            values = b.GatherElements(b.Softmax(router, axis=1), indices, axis=1)
        zeros = b.Sub(router, router)
        return b.ScatterElements(zeros, indices, values, axis=1)


@contrib("MoE")
def moe(
    b: NodeBuilder,
    x: T,
    router: T,
    fc1: T,
    fc1_bias: T | None,
    fc2: T,
    fc2_bias: T | None = None,
    fc3: T | None = None,
    fc3_bias: T | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
) -> str:
    """Weighted sum of two-layer experts, with weights [experts, columns, rows]."""
    experts = _Experts(
        activation_type,
        activation_alpha,
        activation_beta,
        swiglu_limit,
        swiglu_fusion,
        k,
        bool(normalize_routing_weights),
    )
    experts.check(b, use_sparse_mixer)
    rows = _rows(b, x)

    def product(y: str, weights: str, bias: str | None) -> str:
        found = b.MatMul(y, b.transpose(weights, 0, 2, 1))
        return found if bias is None else b.Add(found, b.Unsqueeze(bias, b.ints(1)))

    b.rank(fc1, 3)
    b.rank(fc2, 3)
    one = b.Unsqueeze(rows, b.ints(0))
    other = None if fc3 is None else product(one, fc3, fc3_bias)
    y = product(experts.activated(b, product(one, fc1, fc1_bias), other), fc2, fc2_bias)
    weights = b.transpose(experts.weights(b, router), 1, 0)
    total = b.ReduceSum(b.Mul(y, b.Unsqueeze(weights, b.ints(2))), b.ints(0), keepdims=0)
    return b.Reshape(total, b.Shape(x))


def _rows(b: NodeBuilder, x: str) -> str:
    """Return [rows, hidden] or [batch, rows, hidden] as [rows, hidden]."""
    hidden = b.need_extent(x, -1)
    return x if b.rank(x, 2, 3) == 2 else b.reshape(x, -1, hidden)


@contrib("QMoE")
def q_moe(
    b: NodeBuilder,
    x: T,
    router: Router,
    fc1: Anything,
    fc1_scales: Anything | None,
    fc1_bias: T | None,
    fc2: Anything,
    fc2_scales: Anything | None,
    fc2_bias: T | None = None,
    fc3: Anything | None = None,
    fc3_scales: Anything | None = None,
    fc3_bias: T | None = None,
    fc1_zeros: Anything | None = None,
    fc2_zeros: Anything | None = None,
    fc3_zeros: Anything | None = None,
    router_weights: T | None = None,
    fc1_global_scale: Float32 | None = None,
    fc2_global_scale: Float32 | None = None,
    fc1_act_scale: Float32 | None = None,
    fc2_act_scale: Float32 | None = None,
    fc1_act_block_scale: Anything | None = None,
    fc2_act_block_scale: Anything | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> str:
    """MoE with packed weights, which stay packed: one MatMulNBits per layer of an expert."""
    if quant_type != "int" or weights_prepacked == 1:
        raise b.unsupported(
            f"quant_type={quant_type!r}, weights_prepacked={weights_prepacked}",
            "quantize the experts to integers (quant_type='int') without prepacking",
        )
    experts = _Experts(
        activation_type,
        activation_alpha,
        activation_beta,
        swiglu_limit,
        swiglu_fusion,
        k,
        bool(normalize_routing_weights),
    )
    experts.check(b, use_sparse_mixer)
    bits = expert_weight_bits

    def layer(weights: str, *rest: str | None, own_bits: int | None) -> _Packed:
        return _Packed(b, weights, *rest, bits=own_bits or bits, block_size=block_size)

    first = layer(fc1, fc1_scales, fc1_zeros, fc1_bias, own_bits=fc1_expert_weight_bits)
    second = layer(fc2, fc2_scales, fc2_zeros, fc2_bias, own_bits=fc2_expert_weight_bits)
    third = None
    if fc3 is not None:
        third = layer(fc3, fc3_scales, fc3_zeros, fc3_bias, own_bits=fc3_expert_weight_bits)
    rows = _rows(b, x)
    weights = experts.weights(b, router, router_weights)
    terms: list[str] = []
    for expert in range(first.count):
        other = None if third is None else third.product(rows, expert)
        hidden = experts.activated(b, first.product(rows, expert), other)
        y = second.product(hidden, expert)
        terms.append(b.Mul(y, b.slice(weights, 1, expert, expert + 1)))
    return b.Reshape(b.Sum(*terms), b.Shape(x))


class _Packed:
    """One layer of all experts: packed weights [experts, columns, rows * bits / 8]."""

    def __init__(
        self,
        b: NodeBuilder,
        weights: str,
        scales: str | None,
        zeros: str | None,
        bias: str | None,
        *,
        bits: int,
        block_size: int,
    ) -> None:
        if bits not in (2, 4, 8):
            raise b.error(f"weights of {bits} bits; expected 2, 4 or 8")
        self._b, self._bits, self._bias = b, bits, bias
        packed = _known(b, weights, "weights")
        if packed.ndim != 3 or packed.dtype != dtypes.uint8 or scales is None:
            raise b.error(f"weights are {b.type(weights)}; expected uint8 of 3 axes, and scales")
        self.count, self._columns, width = packed.shape
        self._rows = width * 8 // bits
        factors = _known(b, scales, "scales")
        points = None if zeros is None else _known(b, zeros, "zero points")
        self._block = block_size if factors.ndim == 3 else BLOCK
        if self._block < 1:
            raise b.error(f"block_size={block_size} with scales of {b.type(scales)}")
        self._blocks = -(-self._rows // self._block)
        padding = self._blocks * self._block * bits // 8 - width
        need(packed.size // max(width, 1) * (width + padding), f"{b.node.where}: whole blocks")
        self._packed = np.pad(packed, [(0, 0), (0, 0), (0, padding)]) if padding else packed
        self._scales, self._points = factors, points

    def product(self, x: str, expert: int) -> str:
        """Return x times the weights of an expert, plus its bias."""
        b, dtype = self._b, self._b.dtype(x)
        scales, points = self._scales[expert], None
        if self._points is not None:
            points = self._points[expert]
        if scales.ndim == 1:
            scales = np.repeat(scales[:, None], self._blocks, 1)
            if points is not None:
                shifts = np.arange(0, 8, self._bits, dtype=np.uint8)
                codes = points[:, None] >> shifts & np.uint8((1 << self._bits) - 1)
                column = codes.reshape(-1)[: self._columns].astype(dtype)
                points = np.repeat(column[:, None], self._blocks, 1)
        bias = None
        if self._bias is not None:
            bias = b.Gather(self._bias, b.constant(np.array(expert, np.int64)), axis=0)
        shape = self._columns, self._blocks, -1
        return b.own(
            "MatMulNBits",
            x,
            b.constant(self._packed[expert].reshape(shape)),
            b.constant(np.ascontiguousarray(scales, dtype)),
            None if points is None else b.constant(np.ascontiguousarray(points)),
            None,
            bias,
            K=self._rows,
            N=self._columns,
            bits=self._bits,
            block_size=self._block,
        )


def _known(b: NodeBuilder, x: str, name: str) -> Array:
    """Return the elements of a constant."""
    found = b.value(x)
    if found is None:
        raise b.unsupported(f"{name} '{x}' are computed", "make them initializers")
    return found
