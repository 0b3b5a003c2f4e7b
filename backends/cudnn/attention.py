"""Scaled dot-product attention without materializing the score matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.dtypes import float32, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.attention import Attention
from ...runtime.options import Options
from ...runtime.plan.backend import Formats
from ...runtime.plan.format import Format
from ..cuda.attention.heads import by_head
from ..cuda.recipe.operands import Tensor, ceil_div
from .choice import EngineTask
from .operation import FLOATS, HALVES, NEVER, NO_PITCHES, Operand
from .registry import NodeGroup, Source, claims, is_wanted_anyway

#: Head sizes must be multiples of this.
WORD = 8
#: Queries per tile, and tiles that an H200 runs concurrently.
TILE, FEW = 64, 132


@record
class ScaledDotProduct:
    """softmax(softcap(scale * q @ k') + mask) @ v, head by head; scores are float32.

    Each head of k and v is shared by an equal number of consecutive heads of q. Rows in which all
    keys are masked give zeros.

    Attributes:
        q: [batch, heads, length, size].
        k: [batch, heads of keys, keys, size].
        v: [batch, heads of keys, keys, size of values].
        y: [batch, heads, length, size of values].
        scale: of the scores, positive.
        mask: added to the scores, [1 or batch, 1 or heads, 1 or length, keys]; None for none.
        left: query i sees no key before ``i - left``; None for no such bound.
        right: query i sees no key after ``i + right``; None for no such bound.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
    """

    q: Operand
    k: Operand
    v: Operand
    y: Operand
    scale: float
    mask: Operand | None = None
    left: int | None = None
    right: int | None = None
    softcap: float = 0.0

    @property
    def title(self) -> str:
        """A short name: ``sdpa+mask``."""
        parts = {
            "mask": self.mask is not None,
            "window": self.left is not None,
            "causal": self.right is not None,
            "softcap": bool(self.softcap),
        }
        return "+".join(["sdpa", *(name for name, used in parts.items() if used)])

    def __str__(self) -> str:
        text = f"{self.title} q {self.q} k {self.k} v {self.v} y {self.y} scale {self.scale}"
        if self.mask is not None:
            text += f" mask {self.mask}"
        if self.left is not None or self.right is not None:
            text += f" keys {self.left}:{self.right}"
        return f"{text} softcap {self.softcap}" if self.softcap else text

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The tensors read and written."""
        found = {"q": self.q, "k": self.k, "v": self.v, "mask": self.mask, "y": self.y}
        return {role: operand for role, operand in found.items() if operand is not None}

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the tensors written."""
        return ("y",)

    @property
    def notes(self) -> tuple[str, ...]:
        """Engines for float32 carry the note TENSOR_CORE although they are exact.

        On an H200, 21 random attentions had relative errors of 3e-7, and 6e-6 with capped scores.
        """
        return NEVER

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation to a cuDNN graph; see `Operation`."""
        more: dict[str, Any] = {}
        if self.mask is not None:
            more["bias"] = tensors["mask"]
        if self.left is not None or self.right is not None:
            more["diagonal_alignment"] = cudnn.diagonal_alignment.TOP_LEFT
        if self.left is not None:  # cuDNN masks the key at its bound, too
            more["diagonal_band_left_bound"] = self.left + 1
        if self.right is not None:
            more["diagonal_band_right_bound"] = self.right
        if self.softcap:
            more["score_mod"] = self._cap(cudnn)
        q, k, v = (tensors[role] for role in "qkv")
        y, _ = graph.sdpa(q=q, k=k, v=v, attn_scale=self.scale, generate_stats=False, **more)
        return {"y": y}

    def _cap(self, cudnn: Any) -> Callable[[Any, Any], Any]:
        """Add the softcap to a graph and return its result."""
        kind = cudnn.scalar_type.RUNTIME_PARAM

        def capped(graph: Any, scores: Any) -> Any:
            inner = graph.mul(a=scores, b=graph.tensor_scalar(1 / self.softcap, kind))
            return graph.mul(a=graph.tanh(input=inner), b=graph.tensor_scalar(self.softcap, kind))

        return capped


# ── a node in cuDNN's terms ──────────────────────────────────────────────────────────────────────


@record
class AttentionPattern:
    """An Attention node and its inputs.

    Attributes:
        node: the node.
        op: its operator.
        q: queries, with four axes, or three with adjacent heads.
        k: keys, likewise.
        v: values, likewise.
        mask: added to the scores, or None.
    """

    node: Node
    op: Attention
    q: Value
    k: Value
    v: Value
    mask: Value | None

    @property
    def refused(self) -> str | None:
        """Why cuDNN cannot do it, or None."""
        return self._refused_inputs or self._refused_types or self._refused_scores

    @property
    def _refused_inputs(self) -> str | None:
        if any(value is not None for value in self.node.inputs[4:6]):
            return "past keys and values, which cuDNN needs in one tensor with the new ones"
        if len(self.node.inputs) > 6 and self.node.inputs[6] is not None:
            return "sequence lengths; without keys, cuDNN gives NaN instead of zeros"
        return None

    @property
    def _refused_types(self) -> str | None:
        dtype = self.q.tensor.dtype
        others = {value.tensor.dtype for value in (self.k, self.v)} - {dtype}
        if dtype not in FLOATS or others:
            names = ", ".join(sorted(map(name_of, {dtype, *others})))
            return f"dtype {names}; float16, bfloat16 and float32 are claimed, the same for all"
        if self.mask is not None and self.mask.tensor.dtype not in FLOATS:
            return f"a mask of {name_of(self.mask.tensor.dtype)}; cuDNN has additive masks only"
        if self.mask is not None and self.mask.tensor.dtype not in (dtype, float32):
            return f"a mask of {name_of(self.mask.tensor.dtype)} for queries of {name_of(dtype)}"
        if self.op.is_wide:
            return "scores in float64; cuDNN's are float32"
        if 0 in (*self.q.tensor.dims, *self.k.tensor.dims, *self.v.tensor.dims):
            return "a tensor without elements"
        return None

    @property
    def _refused_scores(self) -> str | None:
        found = self.operation()
        *_, keys, size = found.k.dims
        if size % WORD or found.v.dims[-1] % WORD:
            return f"heads of {size} and {found.v.dims[-1]}; cuDNN needs multiples of {WORD}"
        if found.mask is not None and found.mask.dims[-1] != keys:
            return f"a mask of {found.mask.dims[-1]} elements for {keys} keys"
        if found.scale <= 0:
            return f"scale {found.scale}; cuDNN finds the greatest score before scaling"
        if found.softcap and (found.left is not None or found.right is not None):
            return "softcap and a window of keys; cuDNN supports only one of them"
        return None

    @property
    def slower(self) -> str | None:
        """Why the cuda kernels are preferred, or None."""
        found = self.operation()
        batch, heads, length, _ = found.q.dims
        if self.q.tensor.dtype in HALVES and found.k.dims[2] < TILE:
            return (
                f"{found.k.dims[2]} keys, part of one tile of cuDNN; for so few keys the cuda"
                " kernels are more accurate on ONNX's test suite"
            )
        tiles = batch * heads * ceil_div(length, TILE)
        if self.q.tensor.dtype != float32 or tiles >= FEW:
            return None
        return (
            f"float32 in {tiles} tiles of {TILE} queries takes cuDNN up to twice as long as the"
            " cuda kernels (12 heads of 128x64: 16.2 and 8.6 us on an H200)"
        )

    def operation(self, pitches: Mapping[Value, int] = NO_PITCHES) -> ScaledDotProduct:
        """Return the cuDNN operation for tensors with these pitches."""
        op = self.op

        def laid(value: Value, heads: int | None) -> Operand:
            found = by_head(Tensor(value, Format.CONTIGUOUS, pitches.get(value, 0)), heads)
            return Operand(found.dims, (*found.steps, 1), value.tensor.dtype)

        q = laid(self.q, op.q_num_heads)
        bounds = [0] * bool(op.is_causal)
        bounds += [op.right_window_size] * (op.right_window_size >= 0)
        return ScaledDotProduct(
            q=q,
            k=laid(self.k, op.kv_num_heads),
            v=laid(self.v, op.kv_num_heads),
            y=laid(self.node.output, op.q_num_heads),
            scale=q.dims[-1] ** -0.5 if op.scale is None else op.scale,
            mask=None if self.mask is None else _mask(self.mask.tensor),
            left=op.left_window_size if op.left_window_size >= 0 else None,
            right=min(bounds, default=None),
            softcap=op.softcap,
        )


def _mask(mask: TensorType) -> Operand:
    """Return a mask expanded to four axes."""
    return Operand.of((1,) * (4 - len(mask.dims)) + mask.dims, mask.dtype)


@claims(Attention)
def attention(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return an attention whose score matrix is not read."""
    q, k, v, mask = (*node.inputs, None)[:4]
    if not isinstance(node.op, Attention) or q is None or k is None or v is None:
        raise ValueError(f"'{node.name}' is not an attention of queries, keys and values")
    if any(map(graph.is_read, node.outputs[1:])):
        return "keys, values or scores are read in addition to the result"
    pattern = AttentionPattern(node, node.op, q, k, v, mask)
    refused = pattern.refused or (None if is_wanted_anyway(node, options) else pattern.slower)
    if refused is not None:
        return refused
    reads: dict[str, Source] = {"q": q, "k": k, "v": v}
    if mask is not None:
        reads["mask"] = mask
    pitched = frozenset(x for x in (q, k, v, node.output) if not x.is_constant)
    return NodeGroup(
        nodes=(node,),
        task=EngineTask.of(pattern.operation(), options),
        reads=reads,
        gives={"y": node.output},
        formats=Formats(pitched=pitched, rows=pitched),
        at=lambda site: EngineTask.of(pattern.operation(site.pitches), options),
    )
