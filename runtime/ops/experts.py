"""Mixtures of experts, of the domain com.microsoft: only the chosen experts of a row are computed.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime.
"""

from __future__ import annotations

from typing import ClassVar

from ..base.record import record
from ..errors import ShapeError
from ..ir.constraints import is_wide
from ..ir.dtypes import bfloat16, float16, float32, float64, name_of, uint8
from ..ir.op import Op, op, op_base
from ..ir.types import TensorType
from .contrib_text import DOMAIN
from .shapes import dim, need_rank, product, same_dim, same_dtype

_FLOATS = (float32, float16, bfloat16)
ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
#: Layers by name, in the order of their inputs.
LAYERS = ("fc1", "fc2", "fc3")
#: By how much, relative to it, logits may be below the greatest to count, halved: as Phi-3.5 MoE.
SPARSE_MARGIN = 0.01


@op_base
class Mixture(Op):
    """What MoE and QMoE have in common."""

    dense = True
    domain: ClassVar[str] = DOMAIN

    activation_alpha: float
    activation_beta: float
    activation_type: str
    k: int
    normalize_routing_weights: int
    swiglu_fusion: int
    swiglu_limit: float | None
    swiglu_limit_after_activation: int
    use_sparse_mixer: int

    @property
    def normalizes(self) -> bool:
        """Whether the routing weights of the chosen experts add up to one."""
        return bool(self.normalize_routing_weights)

    def parts(self, *, has_third: bool) -> int:
        """Return how many results of the first layer one input of the second is computed from."""
        return 2 if self.activation_type == "swiglu" and not has_third else 1

    def check(self, experts: int, *, has_third: bool) -> None:
        """Raise ShapeError for combinations of attributes that are not defined."""
        if self.activation_type not in ACTIVATIONS:
            wanted = f"{', '.join(ACTIVATIONS[:-1])} or {ACTIVATIONS[-1]}"
            raise ShapeError(f"activation_type={self.activation_type!r}; expected {wanted}")
        if self.swiglu_fusion not in (0, 1, 2):
            raise ShapeError(f"swiglu_fusion={self.swiglu_fusion}; expected 0, 1 or 2")
        if self.parts(has_third=has_third) == 2 and not self.swiglu_fusion:
            raise ShapeError(
                "swiglu_fusion=0 without fc3_experts_weights; expected 1 or 2, which say where "
                "gate and linear part are among the rows of fc1_experts_weights"
            )
        if not 1 <= self.k <= experts:
            raise ShapeError(f"k={self.k} of {experts} experts; expected 1 to {experts}")
        if self.use_sparse_mixer and self.k != 2:
            raise ShapeError(f"use_sparse_mixer=1 with k={self.k}; it is defined for k=2")


@record
class ExpertLayer:
    """One layer of all experts: weights [experts, columns, rows].

    Attributes:
        experts: number of experts.
        columns: results per expert.
        rows: terms of each.
        bits: per weight; 0 for floats.
        block: terms that share a scale; `rows` if all of them do.
    """

    experts: int
    columns: int
    rows: int
    bits: int = 0
    block: int = 0

    @property
    def blocks(self) -> int:
        """Scales per result."""
        return -(-self.rows // self.block)


@op
class MoE(Mixture):
    """Weighted sum of two-layer experts: x [rows, hidden] or [batch, rows, hidden].

    `router_probs` [rows, experts] are logits: the k greatest choose the experts of a row, and their
    softmax (of the chosen with `normalize_routing_weights`, else of all) weights the results. The
    layers are ``fc2(activation(fc1(x)))``, or ``fc2(activation(fc1(x)) * fc3(x))``, with weights
    [experts, columns, rows] and biases [experts, columns]. With "swiglu", gate g and linear part l
    are fc1(x) and fc3(x), or the even and odd results of fc1 (`swiglu_fusion` 1), or its halves
    (2): ``g sigmoid(alpha g) (l + beta)``, with g at most and l within ± `swiglu_limit`; with
    `swiglu_limit_after_activation`, g sigmoid(alpha g) is at most that, not g. "gelu" is the tanh
    approximation, as in onnxruntime. `use_sparse_mixer` is that of Phi-3.5 MoE: of two experts,
    each is weighted by its share among those not chosen before whose logits are close.
    """

    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    k: int = 1
    normalize_routing_weights: int = 0
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    swiglu_limit_after_activation: int = 0
    use_sparse_mixer: int = 0

    def infer(
        self,
        input: TensorType,
        router_probs: TensorType,
        fc1_experts_weights: TensorType,
        fc1_experts_bias: TensorType | None,
        fc2_experts_weights: TensorType,
        fc2_experts_bias: TensorType | None = None,
        fc3_experts_weights: TensorType | None = None,
        fc3_experts_bias: TensorType | None = None,
    ) -> TensorType:
        layers = fc1_experts_weights, fc2_experts_weights, fc3_experts_weights
        biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
        same_dtype(input, *layers, *biases)
        shapes = [None if w is None else self.layer(_dims(w, n)) for n, w in _named(layers)]
        return _mixed(self, input, router_probs, shapes, biases)

    def layer(self, dims: tuple[int, ...]) -> ExpertLayer:
        """Return the layer of weights of this shape."""
        return ExpertLayer(*dims)


@op
class QMoE(Mixture):
    """MoE with integer weights, ``(integer - zero point) * scale``.

    Weights are uint8 [experts, columns, rows * bits / 8], lowest bits first. Scales, and zero
    points packed like the weights, are [experts, columns, blocks] for blocks of `block_size` rows,
    or [experts, columns]; zero points are 2 ** (bits - 1) if omitted. `router_weights`, of the
    shape of the logits, replace the softmax; they are divided by the sum of the chosen ones with
    `normalize_routing_weights`. Without them the softmax is always that of the chosen experts.
    """

    accuracy_level: int = 0
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    block_size: int = 0
    expert_weight_bits: int = 4
    fc1_expert_weight_bits: int | None = None
    fc2_expert_weight_bits: int | None = None
    fc3_expert_weight_bits: int | None = None
    k: int = 1
    normalize_routing_weights: int = 0
    quant_type: str = "int"
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    swiglu_limit_after_activation: int = 0
    use_sparse_mixer: int = 0
    weights_prepacked: int = -1

    @property
    def normalizes(self) -> bool:
        # Without given weights, they are the softmax of the chosen experts' logits.
        return True

    @property
    def is_unreadable(self) -> str:
        """Why the weights cannot be read; empty if they have the documented layout."""
        if self.quant_type == "int" and self.weights_prepacked != 1:
            return ""
        return (
            f"quant_type={self.quant_type!r}, weights_prepacked={self.weights_prepacked}: the "
            "weights are in another format; quantize the experts to integers (quant_type='int') "
            "without prepacking"
        )

    def bits(self, name: str) -> int:
        """Return the bits per weight of a layer."""
        own = {
            "fc1": self.fc1_expert_weight_bits,
            "fc2": self.fc2_expert_weight_bits,
            "fc3": self.fc3_expert_weight_bits,
        }[name]
        return own or self.expert_weight_bits

    def layer(
        self, name: str, weights: tuple[int, ...], scales: tuple[int, ...], rows: int
    ) -> ExpertLayer:
        """Return a layer by name, for shapes of weights and scales.

        Raises:
            ShapeError: they do not fit each other.
        """
        bits = self.bits(name)
        if bits not in (2, 4, 8):
            raise ShapeError(f"{name} has weights of {bits} bits; expected 2, 4 or 8")
        experts, columns, width = weights
        if width != -(-rows * bits // 8):
            raise ShapeError(
                f"{name} has {width} bytes per column; expected those of {rows} weights of {bits} "
                "bits"
            )
        if len(scales) == 3 and self.block_size < 1:
            raise ShapeError(f"block_size={self.block_size} with scales {list(scales)} of {name}")
        block = self.block_size if len(scales) == 3 else rows
        found = ExpertLayer(experts, columns, rows, bits, block)
        wanted = (experts, columns, found.blocks)[: len(scales)]
        if scales != wanted:
            raise ShapeError(f"scales of {name} are {list(scales)}; expected {list(wanted)}")
        return found

    def _inner(self, found: list[ExpertLayer | None], *, has_third: bool) -> int | None:
        """Return the terms of the second layer, by the columns of the first."""
        first = found[0]
        return None if first is None else first.columns // self.parts(has_third=has_third)

    def infer(
        self,
        input: TensorType,
        router_probs: TensorType,
        fc1_experts_weights: TensorType,
        fc1_scales: TensorType | None,
        fc1_experts_bias: TensorType | None,
        fc2_experts_weights: TensorType,
        fc2_scales: TensorType | None,
        fc2_experts_bias: TensorType | None = None,
        fc3_experts_weights: TensorType | None = None,
        fc3_scales: TensorType | None = None,
        fc3_experts_bias: TensorType | None = None,
        fc1_zero_points: TensorType | None = None,
        fc2_zero_points: TensorType | None = None,
        fc3_zero_points: TensorType | None = None,
        router_weights: TensorType | None = None,
        fc1_global_scale: TensorType | None = None,
        fc2_global_scale: TensorType | None = None,
        fc1_act_scale: TensorType | None = None,
        fc2_act_scale: TensorType | None = None,
        fc1_act_block_scale: TensorType | None = None,
        fc2_act_block_scale: TensorType | None = None,
    ) -> TensorType:
        biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
        same_dtype(input, *biases)
        if self.is_unreadable:
            return input.without_value()
        weights = fc1_experts_weights, fc2_experts_weights, fc3_experts_weights
        scales = fc1_scales, fc2_scales, fc3_scales
        points = fc1_zero_points, fc2_zero_points, fc3_zero_points
        found: list[ExpertLayer | None] = []
        for (name, own), factors, zeros in zip(_named(weights), scales, points, strict=True):
            if own is None:
                found.append(None)
                continue
            if own.dtype != uint8 or factors is None:
                raise ShapeError(f"weights of {name} are {own}; expected uint8, and scales")
            dims = _dims(own, name)
            rows = (
                dim(input, -1)
                if name != "fc2"
                else self._inner(found, has_third=weights[2] is not None)
            )
            if not isinstance(rows, int):
                rows = dims[2] * 8 // self.bits(name)
            layer = self.layer(name, dims, _sizes(factors, f"{name}_scales"), rows)
            found.append(layer)
            if zeros is not None:
                _check_points(zeros, layer, name, by_block=factors.rank == 3)
        return _mixed(self, input, router_probs, found, biases)


def _check_points(zeros: TensorType, layer: ExpertLayer, name: str, *, by_block: bool) -> None:
    count, bits = layer.experts, layer.bits
    of_blocks = layer.columns * -(-layer.blocks * bits // 8)
    wanted = count * (of_blocks if by_block else -(-layer.columns * bits // 8))
    if zeros.dtype != uint8 or (zeros.shape is not None and product(zeros.shape) != wanted):
        raise ShapeError(f"{name}_zero_points are {zeros}; expected {wanted} bytes (uint8)")


def _named(
    layers: tuple[TensorType | None, ...],
) -> list[tuple[str, TensorType | None]]:
    return list(zip(LAYERS, layers, strict=True))


def _dims(weights: TensorType, name: str) -> tuple[int, ...]:
    need_rank(weights, (3,), f"{name}_experts_weights")
    return _sizes(weights, f"{name}_experts_weights")


def _sizes(x: TensorType, name: str) -> tuple[int, ...]:
    """Return the sizes of weights, or of what belongs to them."""
    sizes = () if x.shape is None else x.shape
    known = tuple(size for size in sizes if isinstance(size, int))
    if x.shape is None or len(known) != len(sizes):
        raise ShapeError(f"{name} are {x}; expected known sizes")
    return known


def _need_floats(x: TensorType, name: str) -> None:
    if x.dtype not in (*_FLOATS, *((float64,) if is_wide() else ())):
        wanted = " or ".join(map(name_of, _FLOATS))
        raise ShapeError(f"{name} is of {name_of(x.dtype)}; expected {wanted}")


def _mixed(
    op: Mixture,
    x: TensorType,
    router: TensorType,
    layers: list[ExpertLayer | None],
    biases: tuple[TensorType | None, ...],
) -> TensorType:
    """Return the type of the result, once everything fits."""
    _need_floats(x, "input")
    _need_floats(router, "router_probs")
    first, second, third = layers
    assert first is not None
    assert second is not None
    need_rank(x, (2, 3), "input")
    hidden = dim(x, -1)
    parts = op.parts(has_third=third is not None)
    op.check(first.experts, has_third=third is not None)
    if first.columns % parts:
        raise ShapeError(f"fc1 has {first.columns} columns; expected an even number for swiglu")
    same_dim(hidden, first.rows, f"last axis of input {x} and rows of fc1")
    same_dim(second.rows, first.columns // parts, "rows of fc2 and results of the activation")
    same_dim(hidden, second.columns, f"last axis of input {x} and columns of fc2")
    if third is not None:
        same_dim(third.rows, first.rows, "rows of fc3 and of fc1")
        same_dim(third.columns, first.columns, "columns of fc3 and of fc1")
    if router.shape is not None:
        need_rank(router, (2,), "router_probs")
        same_dim(dim(router, 1), first.experts, f"columns of router_probs {router} and experts")
        rows = None if x.shape is None else product(x.shape[:-1])
        same_dim(dim(router, 0), rows, f"rows of router_probs {router} and of input {x}")
    for layer, bias, name in zip(layers, biases, LAYERS, strict=True):
        if layer is None:
            continue
        same_dim(layer.experts, first.experts, f"experts of {name} and of fc1")
        if bias is not None and bias.shape is not None:
            need_rank(bias, (2,), f"{name}_experts_bias")
            same_dim(dim(bias, 0), layer.experts, f"{name}_experts_bias {bias} and experts")
            same_dim(dim(bias, 1), layer.columns, f"{name}_experts_bias {bias} and columns")
    return x.without_value()
