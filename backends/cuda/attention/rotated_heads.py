"""Queries and keys that are normalized and rotated, as one kernel: `normalize_rotate.cu`.

They are parts of the rows of one product, or rows of two. What is normalized are heads, between
two Reshapes (Qwen3, Gemma 3), or the rows of all heads at once (OLMo 2, Wan). The four nodes have
little work, so that most of their time would be that of starting four kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import gcd

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention, RotaryEmbedding
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.shape import Reshape
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored

#: Maximum elements per thread, threads per block of several groups, and warps per group.
KEPT, TOGETHER, MAX_WARPS = 32, 128, 16
#: Maximum bytes that a thread reads at once, if pairs are found then.
WORD = 16


@record
class Rotated:
    """Heads that are normalized and rotated.

    Attributes:
        cut: the Reshape of rows to heads; None if rows are normalized as a whole.
        norm: the normalization.
        join: the Reshape back to rows, if there is a `cut`.
        rotation: the RotaryEmbedding of rows.
    """

    cut: Node | None
    norm: Node
    join: Node | None
    rotation: Node

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        own = (self.cut, self.norm, self.join, self.rotation)
        return frozenset(node for node in own if node is not None)

    @property
    def rows(self) -> Value:
        """The rows of all heads [batch, positions, heads * size]."""
        return (self.cut or self.norm).operands[0]

    @property
    def heads(self) -> int:
        """How many heads a row has."""
        op = self.rotation.op
        assert isinstance(op, RotaryEmbedding)
        return op.num_heads or 1

    @property
    def parts(self) -> int:
        """How many parts of a row are normalized, each by itself."""
        return self.heads if self.cut is not None else 1


@record
class RotatedHeads(Whole):
    """Queries and keys of an attention."""

    q: Rotated
    k: Rotated

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All nodes."""
        return self.q.nodes | self.k.nodes

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return rotated_heads(self, operand)


def rotated_heads_at(graph: Graph, norm: Node, free: Set[Node]) -> RotatedHeads | None:
    """Return what normalizes and rotates the queries and keys of an attention, if both are.

    Args:
        graph: the graph.
        norm: the normalization of one of them.
        free: nodes that may be taken.
    """
    after = graph.sole_consumer(norm.output)
    if after is not None and isinstance(after.op, Reshape):
        after = graph.sole_consumer(after.output)
    if after is None or not isinstance(after.op, RotaryEmbedding):
        return None
    attention = graph.sole_consumer(after.output)
    if attention is None or not isinstance(attention.op, Attention):
        return None
    q, k = (_rotated(graph, value, free) for value in attention.operands[:2])
    if q is None or k is None or q.rotation is k.rotation or not _are_alike(q, k):
        return None
    return RotatedHeads(q, k)


def _rotated(graph: Graph, value: Value, free: Set[Node]) -> Rotated | None:
    rotation = value.producer
    if rotation is None or not isinstance(rotation.op, RotaryEmbedding):
        return None
    x = rotation.operands[0]
    before = x.producer
    if len(x.tensor.dims) != 3 or before is None or not rotation.op.num_heads:
        return None
    join = before if isinstance(before.op, Reshape) else None
    norm = before if join is None else join.operands[0].producer
    cut = None if join is None or norm is None else norm.operands[0].producer
    if norm is None or not isinstance(norm.op, LayerNormalization | RMSNormalization):
        return None
    if join is not None and (cut is None or not isinstance(cut.op, Reshape)):
        return None
    found = Rotated(cut, norm, join, rotation)
    inner = [node for node in (cut, norm, join) if node is not None]
    alone = all(graph.sole_consumer(node.output) in found.nodes for node in inner)
    unread = not any(map(graph.is_read, norm.outputs[1:]))
    dims = norm.output.tensor.dims
    size = x.tensor.dims[2] // found.heads
    whole = dims[-1] == (x.tensor.dims[2] if cut is None else size)
    whole = whole and are_of_rows(dims, -1, *(v.tensor.dims for v in norm.operands[1:]))
    fits = alone and unread and whole and is_along_last(norm) and found.nodes <= free
    return found if fits and found.rows.tensor.dims == x.tensor.dims else None


def _are_alike(q: Rotated, k: Rotated) -> bool:
    """Whether both are normalized and rotated in the same way; scales and tables may differ."""
    ops = [each.rotation.op for each in (q, k)]
    rotations = {
        (op.interleaved, op.rotary_embedding_dim) for op in ops if isinstance(op, RotaryEmbedding)
    }
    places = q.rotation.inputs[3:] == k.rotation.inputs[3:]
    norms = q.norm.op == k.norm.op and len(q.norm.inputs) == len(k.norm.inputs)
    sizes = {each.rows.tensor.dims[2] // each.heads for each in (q, k)}
    lengths = {each.rows.tensor.dims[:2] for each in (q, k)}
    alike = places and norms and (q.cut is None) == (k.cut is None)
    return alike and len(rotations) == len(sizes) == len(lengths) == 1


def rotated_heads(found: RotatedHeads, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launch, or why there is none."""
    sides, norm, op = (found.q, found.k), found.q.norm.op, found.q.rotation.op
    assert isinstance(op, RotaryEmbedding)
    assert isinstance(norm, LayerNormalization | RMSNormalization)
    rows = [operand(each.rows) for each in sides]
    results = [operand(each.rotation.output) for each in sides]
    scales, shifts = ([_input(each.norm, i, operand) for each in sides] for i in (1, 2))
    cosines, sines = ([operand(each.rotation.operands[i]) for each in sides] for i in (1, 2))
    positions = _input(found.q.rotation, 3, operand)
    given = [each for each in (*scales, *shifts) if each is not None]
    dtype = rows[0].dtype
    parameter = given[0].dtype if given else dtype
    widths = [each.dims[2] // side.parts for each, side in zip(rows, sides, strict=True)]
    refused = need_dtypes(FLOATS - {float64}, rows[0]) or need_dtypes((parameter,), *given)
    refused = refused or need_dtypes((dtype,), *rows, *results, *cosines, *sines)
    if refused := refused or _refusal((*rows, *results), given, widths):
        return refused
    batch, length, width = rows[0].dims
    size = width // found.q.heads
    half = (op.rotary_embedding_dim or size) // 2
    aligned, widest = gcd(size, *(x.row for x in rows)), max(dtype.itemsize, parameter.itemsize)
    layout = _layout(max(widths), size, half, bool(op.interleaved), aligned, widest)
    if layout is None:
        return "heads that threads do not share evenly"
    vector, lanes, warps = layout
    of_group = lanes * warps
    together = max(1, TOGETHER // of_group) if warps == 1 else 1
    counts = [batch * length * side.parts for side in sides]
    blocks = [ceil_div(count, together) for count in counts]
    batches = cosines[0].dims[0] if positions is None else positions.dims[0]
    return Launch(
        "attention/normalize_rotate.cu",
        "normalize_rotate",
        grid=(sum(blocks), 1, 1),
        block=of_group * together,
        args={
            **{"q": rows[0], "k": rows[1], "scale_q": scales[0], "scale_k": scales[1]},
            **{"shift_q": shifts[0], "shift_k": shifts[1]},
            **{"cosine_q": cosines[0], "cosine_k": cosines[1]},
            **{"sine_q": sines[0], "sine_k": sines[1], "positions": positions},
            **{"to_q": results[0], "to_k": results[1]},
            **{
                f"of_{name}": {
                    **{"groups": counts[i], "of_row": sides[i].parts, "count": widths[i]},
                    **{"row": rows[i].row, "places": cosines[i].size // half},
                }
                for i, name in enumerate("qk")
            },
            **{"sizes": {"length": length, "batches": max(1, batches)}, "blocks": blocks[0]},
            "epsilon": norm.epsilon,
        },
        types=(("T", dtype), ("P", parameter)),
        constants=(
            *(("WARPS", warps), ("LANES", lanes), ("GROUPS", together), ("VECTOR", vector)),
            *(("PER", ceil_div(max(widths), of_group * vector)), ("SIZE", size), ("HALF", half)),
            ("INTERLEAVED", bool(op.interleaved)),
            ("CENTRED", isinstance(norm, LayerNormalization)),
            *(("SCALED", scales[0] is not None), ("SHIFTED", shifts[0] is not None)),
        ),
        note=f"{sum(counts)} x {widths[0]}",
        pitched=tuple(rows),
    )


def _refusal(tensors: Sequence[Tensor], given: Sequence[Tensor], widths: list[int]) -> str:
    """Return why the kernel cannot read these, or nothing.

    Args:
        tensors: the rows and the results.
        given: scales and shifts.
        widths: elements that have one of these, of queries and of keys.
    """
    if any(each.format is not Format.CONTIGUOUS for each in tensors):
        return "images"
    if [each.size for each in given] != widths * (len(given) // 2):
        return "parameters of other sizes"
    return ""


def _input(node: Node, place: int, operand: Callable[[Value], Tensor]) -> Tensor | None:
    value = node.inputs[place] if place < len(node.inputs) else None
    return None if value is None else operand(value)


def _layout(
    count: int, size: int, half: int, interleaved: bool, aligned: int, itemsize: int
) -> tuple[int, int, int] | None:
    """Return elements of a word, threads of a group and its warps, if pairs are found in a warp.

    Args:
        count: elements of a group.
        size: of a head.
        half: pairs of a head.
        interleaved: whether those of a pair are adjacent.
        aligned: what rows and heads begin at a multiple of.
        itemsize: of the widest elements.
    """
    for vector in sorted((8, 4, 2), key=lambda n: (n * itemsize > WORD, -n)):
        words, apart = count // vector, half // vector
        even = aligned % vector == 0 and (2 * half if interleaved else half) % vector == 0
        across = apart in (1, 2, 4, 8, 16) and size % (2 * half) == 0
        if not even or not (interleaved or across):
            continue
        lanes = next((n for n in (8, 16, 32) if n >= words), 32)
        warps = 1 if words <= 32 else min(MAX_WARPS, _power(ceil_div(words, 32)))
        if ceil_div(words, lanes * warps) * vector <= KEPT:
            return vector, lanes, warps
    return None


def _power(count: int) -> int:
    """Return the next power of two."""
    return 1 << (count - 1).bit_length()
