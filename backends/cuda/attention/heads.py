"""The operands of attention kernels: heads, masks and their strides."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bool_, float16, uint8
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.attention import Attention, repeats_after
from ....runtime.ops.movement import Transpose
from ....runtime.ops.shape import Reshape
from ..recipe.operands import (
    Given,
    Ints,
    Operand,
    Packed,
    Tensor,
    TensorMap,
    broadcast_strides,
    ceil_div,
)
from .mask_terms import MaskTerm, MaskTerms

NO_MASK, FLAGS, NUMBERS = range(3)
#: Bytes at multiples of which TMA reads rows.
ALIGNED = 16
#: Bytes per row of boxes of masks.
BOXES = (128, 64, 32)
#: Rows and columns of keys of which the terms of a mask are in shared memory, at most.
MAX_TERMS = 256
#: Rows of a box of a mask that is the same for all rows: the period of the swizzle.
ONE_ROW = 8


@record
class Heads:
    """An operand as [batch, heads, length, size].

    Attributes:
        tensor: the operand; its rows may have gaps.
        dims: the four sizes.
        steps: strides of samples, heads and positions, in elements.
    """

    tensor: Tensor
    dims: Ints
    steps: Ints

    @property
    def struct(self) -> dict[str, int]:
        """Struct `Steps` of steps.cuh."""
        return dict(zip(("batch", "head", "row"), self.steps, strict=True))

    def vector(self, maximum: int) -> int:
        """Return how many elements of a head can be loaded or stored at once."""
        numbers = (self.dims[3], *(n for n, d in zip(self.steps, self.dims, strict=False) if d > 1))
        return next(v for v in (8, 4, 2, 1) if v <= maximum and all(n % v == 0 for n in numbers))

    def map(self, rows: int) -> TensorMap:
        """Return the tensor map of 64 elements of this many rows of a head."""
        batch, heads, length, size = self.dims
        strides = tuple(s if d > 1 else size for s, d in zip(self.steps, self.dims, strict=False))
        dims = (size, length, heads, batch)
        return TensorMap(self.tensor, self.tensor.dtype, dims, strides[::-1], (64, rows, 1, 1))


def by_head(x: Tensor, heads: int | None) -> Heads:
    """Return a 4-D operand, or a 3-D one with adjacent heads, by head."""
    if x.rank == 4:
        return Heads(x, x.dims, x.strides[:3])
    batch, length, hidden = x.dims
    count = heads or 1
    size = hidden // count
    of_batch, of_row, _ = x.strides
    return Heads(x, (batch, count, length, size), (of_batch, size, of_row))


@record
class HeadSource:
    """Where the heads of a tensor [batch, heads, length, size] lie.

    Attributes:
        value: the tensor, or what it is a transposed view of: rows [batch, length, heads * size],
            or their heads [batch, length, heads, size].
        heads: number of heads of the rows; None for the tensor itself.
        nodes: the Reshape, if there is one, and the Transpose in between.
    """

    value: Value
    heads: int | None = None
    nodes: tuple[Node, ...] = ()

    def operand(self, x: Tensor, heads: int | None) -> Heads:
        """Return the operand of the value by head; `heads` of rows that no node transposes."""
        if self.heads is None or x.rank == 3:
            return by_head(x, self.heads or heads)
        batch, length, count, size = x.dims
        of_batch, of_row, of_head, _ = x.strides
        return Heads(x, (batch, count, length, size), (of_batch, of_head, of_row))


def source_of_heads(graph: Graph, value: Value, reader: Node) -> HeadSource:
    """Return the rows whose heads only `reader` reads, so that nothing transposes these."""
    return rows_of_heads(graph, value, reader) or HeadSource(value)


def rows_of_heads(
    graph: Graph, value: Value, reader: Node, norm: Node | None = None
) -> HeadSource | None:
    """Return what is transposed to heads for `reader` alone; None if nothing is.

    Args:
        graph: the graph.
        value: the heads.
        reader: what reads them.
        norm: what normalizes each head in front of the Transpose, if anything does.
    """
    transpose = value.producer
    if transpose is None or not isinstance(transpose.op, Transpose):
        return None
    split, alone = transpose.operands[0], graph.sole_consumer(value) is reader
    if norm is not None:
        split = norm.operands[0]
        alone = alone and graph.sole_consumer(norm.output) is transpose
    dims = split.tensor.dims
    if not alone or split.is_constant or transpose.op.order(len(dims)) != (0, 2, 1, 3):
        return None
    batch, length, heads, size = dims
    reshape, cut_for = split.producer, transpose if norm is None else norm
    if reshape is not None and isinstance(reshape.op, Reshape):
        rows, alone = reshape.operands[0], graph.sole_consumer(split) is cut_for
        if alone and not rows.is_constant and rows.tensor.dims == (batch, length, heads * size):
            return HeadSource(rows, heads, (reshape, transpose))
    return HeadSource(split, heads, (transpose,))


def rows_of_mask(mask: Array, pitch: int, samples: int = 0) -> Array:
    """Return a mask, [..., keys], with as many keys more as there are to `pitch`, all hidden.

    Args:
        mask: the mask.
        pitch: number of keys.
        samples: how many are returned; 0 for all.
    """
    hidden = False if mask.dtype == bool_ else -np.inf
    mask = mask[:samples] if samples else mask
    found = np.full((*mask.shape[:-1], pitch), hidden, mask.dtype)
    found[..., : mask.shape[-1]] = mask
    return found


@record
class CutHeads:
    """Heads of 64 elements that are columns of rows in `Format.HALVES`.

    Attributes:
        tensor: the rows.
        block: the first head, in blocks of 64 columns.
    """

    tensor: Tensor
    block: int

    @property
    def numbers(self) -> Ints:
        """The members of `CutRows` of heads_in_halves.cuh: rows, terms and block."""
        *rows, terms = self.tensor.dims
        return ceil_div(prod(rows), 8) * 8, terms, self.block


@record
class AttentionTask:
    """An Attention with its operands.

    Attributes:
        op: the operator.
        q, k, v, y: by head.
        mask: an additive or boolean mask; None for none.
        past: keys and values that precede `k` and `v`.
        lengths: number of valid keys per sequence.
        halves: where the result is stored in `Format.HALVES`; None if nowhere.
        plain: whether it is stored in `y`.
        sink: a score per query head that counts in the softmax, float32 [1, heads, 1, 1], or None;
            only for kernels of `mma_tiles.cuh`.
        cut: queries, keys and values, if these are in halves; else None.
        terms: where the elements of the mask are, the first term of which is `mask`; or None.
        mask_steps: strides of samples, heads, rows and keys in the mask.
        mask_samples: after how many samples the mask repeats, as a constant may, or one with fewer
            samples than queries have; 0 if it does not.
    """

    op: Attention
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    mask: Tensor | None = None
    past: tuple[Tensor | None, Tensor | None] = (None, None)
    lengths: Tensor | None = None
    halves: Tensor | None = None
    plain: bool = True
    sink: Tensor | None = None
    cut: tuple[CutHeads, CutHeads, CutHeads] | None = None
    terms: MaskTerms | None = None
    mask_steps: Ints = field(init=False, compare=False, repr=False)
    mask_samples: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        steps: Ints = (0, 0, 0, 0)
        samples = 0
        if self.terms is not None:
            steps, samples = self.terms.terms[0].steps, self.terms.samples
        elif (mask := self.mask) is not None:
            count = self.q.dims[0]
            given = mask.dims[0] if mask.rank == 4 and mask.dims[0] != 1 else count
            scores = (given, *self.q.dims[1:3], mask.dims[-1])
            steps = broadcast_strides(mask.dims, mask.format, scores, self.mask_pitch)
            if mask.rank == 4 and steps[0] and count:
                samples = (given if mask.data is None else repeats_after(mask.data)) % count
                steps = steps if samples != 1 else (0, *steps[1:])
        object.__setattr__(self, "mask_steps", steps)
        object.__setattr__(self, "mask_samples", samples)

    @property
    def has_blocks(self) -> bool:
        """Whether a head of the result is whole blocks of its rows, which can be in halves."""
        return self.y.tensor.rank == 3 and self.v.dims[3] % 64 == 0

    @property
    def storage(self) -> dict[str, Given]:
        """The arguments of kernels that can store halves."""
        return {"y": self.y.tensor if self.plain else None, "halves": self.halves}

    @property
    def before(self) -> int:
        """Number of past keys."""
        return 0 if self.past[0] is None else self.past[0].dims[2]

    @property
    def total(self) -> int:
        """Number of keys, including past ones."""
        return self.before + self.k.dims[2]

    @property
    def seen(self) -> int:
        """Maximum number of keys visible to any query."""
        ends = [self.op.right_window_size] * (self.op.right_window_size >= 0)
        ends += [0] * bool(self.op.is_causal)
        if self.op.left_window_size < 0 or not ends:
            return self.total
        return min(self.total, self.op.left_window_size + self.q.dims[2] + min(ends))

    @property
    def sharing(self) -> int:
        """Number of query heads per key head."""
        return max(1, self.q.dims[1] // max(1, self.k.dims[1]))

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.q.dims[3] ** -0.5 if self.op.scale is None else self.op.scale

    @property
    def is_raw(self) -> bool:
        """Whether scores are only scaled, which can be deferred; see online_softmax.cuh."""
        adds = self.mask is not None and self.mask.dtype != bool_
        return not adds and self.op.softcap <= 0 and self.scale > 0

    @property
    def mask_pitch(self) -> int:
        """See `Tensor.pitch`; rows of a constant mask are aligned."""
        mask = self.mask
        if mask is None or mask.data is None or mask.dims[-1] == 1 or self.terms is not None:
            return 0 if mask is None else mask.pitch
        aligned = ALIGNED // mask.dtype.itemsize
        return ceil_div(mask.dims[-1], aligned) * aligned

    @property
    def mask_operand(self) -> Operand | None:
        """The mask; a constant is stored until it repeats, with hidden keys that align rows."""
        mask, pitch, samples = self.mask, self.mask_pitch, self.mask_samples
        if mask is None or self.terms is not None:
            return mask
        if samples in (0, mask.dims[0]) and pitch in (0, mask.pitch, mask.dims[-1]):
            return mask
        pitch = pitch or mask.dims[-1]
        pack = partial(rows_of_mask, pitch=pitch, samples=samples)
        return Packed((mask.value,), ("rows of a mask", samples, pitch), pack)

    @property
    def is_mask_of_rows(self) -> bool:
        """Whether the rows of a block may see different masks: of queries, or of grouped heads."""
        if self.terms is not None:
            return True
        _, of_head, of_row, _ = self.mask_steps
        return of_row != 0 or (of_head != 0 and self.sharing > 1)

    @property
    def is_mask_of_pairs(self) -> bool:
        """Whether what the mask adds to a key and to the next one can be read at once."""
        if self.terms is not None:
            return self.is_sum_of_pairs
        *others, of_key = self.mask_steps
        keys = 0 if self.mask is None else self.mask_pitch or self.mask.dims[-1]
        return of_key == 1 and all(step % 2 == 0 for step in (*others, keys))

    @property
    def is_sum_of_pairs(self) -> bool:
        """The same of masks with two terms, along whose rows of keys places have 31 bits."""
        if self.terms is None or not self.terms.are_of_pairs:
            return False
        outer = self.total // self.terms.inner[1]
        return all(outer * term.steps[3] < 2**31 for term in self.terms.terms)

    @property
    def outer_keys(self) -> int:
        """Rows of keys, if terms of the mask can be in shared memory: of these and of columns."""
        if self.terms is None or not self.terms.are_of_rows_and_columns:
            return 0
        outer = self.total // self.terms.inner[1]
        return outer if outer + self.terms.inner[1] <= MAX_TERMS else 0

    def term_bytes(self, rows: int) -> int:
        """Return the bytes of shared memory for these; see `mask_terms.cuh`."""
        if self.terms is None or self.mask is None or not self.outer_keys:
            return 0
        length = ceil_div(self.outer_keys, 2) * 2 + self.terms.inner[1]
        of_rows = rows * ((length + 7) // 16 * 16 + 8) + MAX_TERMS  # keys behind the last one
        return of_rows * self.mask.dtype.itemsize

    def mask_width(self, keys: int) -> int:
        """Return the bytes per row of the boxes in which TMA brings the mask of so many keys.

        They are wide, but end with the last one unless there are no more. 0 if rows are not
        aligned.
        """
        *others, of_key = self.mask_steps
        size = 0 if self.mask is None else self.mask.dtype.itemsize
        if self.terms or of_key != 1 or any(step * size % ALIGNED for step in others):
            return 0
        fitting = (width for width in BOXES if keys * size % width == 0 or keys >= self.total)
        return next(fitting, BOXES[-1])

    def mask_height(self, rows: int) -> int:
        """Return the rows of these boxes for so many rows of queries."""
        return rows if self.mask_steps[2] else ONE_ROW

    def mask_bytes(self, keys: int, width: int, rows: int) -> int:
        """Return the bytes of these boxes for so many keys and rows of queries."""
        if self.mask is None or not width:
            return 0
        return ceil_div(keys * self.mask.dtype.itemsize, width) * width * self.mask_height(rows)

    def mask_map(self, width: int, rows: int) -> TensorMap:
        """Return the tensor map of these boxes; of the queries for a width of 0."""
        mask = self.mask_operand
        if self.mask is None or mask is None or not width:
            return self.q.map(rows)
        dtype = uint8 if self.mask.dtype == bool_ else self.mask.dtype
        steps = self.mask_steps[2::-1]
        samples = self.mask_samples or self.q.dims[0]
        sizes = (*self.q.dims[2:0:-1], samples)
        dims = tuple(d if step else 1 for d, step in zip(sizes, steps, strict=True))
        strides = tuple(step or ALIGNED for step in steps)
        box = (width // dtype.itemsize, self.mask_height(rows), 1, 1)
        return TensorMap(mask, dtype, (self.mask.dims[-1], *dims), strides, box)

    @property
    def masks(self) -> dict[str, Given]:
        """The mask as an argument, with its second term."""
        second = None if len(self._terms) < 2 else self._terms[1].tensor
        return {"mask": self.mask_operand, "second_mask": second}

    @property
    def operands(self) -> dict[str, Given]:
        """The tensor arguments of kernels without tensor maps."""
        past_k, past_v = self.past
        return {
            **{"q": self.q.tensor, "k": self.k.tensor, "v": self.v.tensor},
            **{"past_k": past_k, "past_v": past_v, "lengths": self.lengths},
            **self.masks,
        }

    @property
    def numbers(self) -> dict[str, Given]:
        """The scalar arguments: sizes, strides of the mask, and factors."""
        _, heads, rows, size = self.q.dims
        names = ("batch", "head", "row", "key", "inner_row", "inner_key")
        first, second = (*self._terms, MaskTerm(self.q.tensor, (0, 0, 0, 0)))[:2]
        length = 0 if self.mask is None else self.mask.dims[-1]
        return {
            "s": {
                **{"heads": heads, "kv_heads": self.k.dims[1], "rows": rows, "total": self.total},
                **{"past": self.before, "size_k": size, "size_v": self.v.dims[3]},
                "mask_length": length if self.terms is None else self.total,
                **{"left": self.op.left_window_size, "right": self.op.right_window_size},
            },
            "of_mask": {
                **dict(zip(names, first.numbers, strict=True)),
                **{"apart": 0, "second": second.numbers},
            },
            **{"scale": self.scale, "softcap": self.op.softcap},
        }

    @property
    def strides(self) -> dict[str, Given]:
        """The stride arguments of q, k, v and y."""
        heads = {"of_q": self.q, "of_k": self.k, "of_v": self.v, "of_y": self.y}
        return {name: operand.struct for name, operand in heads.items()}

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The compile-time constants of heads.cuh and, except in float32, online_softmax.cuh."""
        op, mask = self.op, self.mask
        inner = (0, 0) if self.terms is None else self.terms.inner
        return (
            ("MASK", NO_MASK if mask is None else FLAGS if mask.dtype == bool_ else NUMBERS),
            ("CAUSAL", bool(op.is_causal)),
            ("WINDOW", max(op.left_window_size, op.right_window_size) >= 0),
            *(("LENGTHS", self.lengths is not None), ("SOFTCAP", op.softcap > 0)),
            *(("MASK_ROWS", self.is_mask_of_rows), ("MASK_PAIRS", self.is_mask_of_pairs)),
            ("MASK_SAMPLES", self.mask_samples if self.mask_steps[0] else 0),
            ("MASK_TERMS", len(self._terms)),
            *zip(("INNER_ROWS", "INNER_KEYS"), inner, strict=True),
            ("MASK_FAR", mask is not None and mask.dtype not in (bool_, float16)),
            ("RAW", self.is_raw),
            ("SINK", self.sink is not None),
        )

    def constants_with(self, **known: int | bool) -> tuple[tuple[str, int | bool], ...]:
        """Return `constants`, some of them as a kernel needs them, so that it is compiled once."""
        return tuple({**dict(self.constants), **known}.items())

    @property
    def _terms(self) -> tuple[MaskTerm, ...]:
        """The terms of the mask, one if there is none."""
        given = (MaskTerm(self.mask or self.q.tensor, self.mask_steps),)
        return given if self.terms is None else self.terms.terms

    @property
    def pitched(self) -> tuple[Tensor, ...]:
        """The operands that may have gaps."""
        return (self.q.tensor, self.k.tensor, self.v.tensor, self.y.tensor)
