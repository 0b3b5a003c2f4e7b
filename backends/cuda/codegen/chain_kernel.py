"""The kernel of a chain of elementwise operators, whose operands are read where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from math import gcd, prod
from types import MappingProxyType

import numpy as np

from ....runtime.ir.dtypes import DType, int32
from ....runtime.ir.types import Array
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Ints,
    Packed,
    Tensor,
    as_it_is,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
    words_of,
)
from ..recipe.source import C_TYPES
from .elementwise import ElementwiseChain
from .moves import Movement, Walk

THREADS = 256
#: Maximum number of reads per thread and operand: with more, the cache takes longer than memory.
MAX_READS = 4
NO_MOVES: Mapping[int, Movement] = MappingProxyType({})
NO_WALKS: Mapping[int, Walk] = MappingProxyType({})


def elementwise(
    chain: ElementwiseChain,
    y: Tensor,
    operands: Sequence[Tensor],
    moved: Mapping[int, Movement] = NO_MOVES,
    word: DType | None = None,
    gathered: Mapping[int, Walk] = NO_WALKS,
    inside: Sequence[int] = (),
) -> Launch:
    """Return the launch of a chain over all elements of `y`.

    Args:
        chain: the computation.
        y: the result; threads process its elements in memory order.
        operands: those of the chain, in any format, broadcast to `y`.
        moved: by the places of operands that are read through a chain of nodes that move elements:
            this chain, whose result is broadcast to `y`.
        word: the type as which elements are copied, if the chain computes nothing.
        gathered: by the places of operands that are slices chosen by indices: where these are, by
            axis of `y`. Excludes `moved`.
        inside: the places of operands of which the chain is told whether there is an element.

    Raises:
        ValueError: `refusal` of these is not empty.
    """
    cuts = factors_of(y.dims, tuple(moved.values()))
    if cuts is None:
        raise ValueError(refusal(y, operands, moved))
    walks = [
        gathered[i] if i in gathered else walk_of(x, moved.get(i), y, cuts)
        for i, x in enumerate(operands)
    ]
    sizes, merged = _merged(y, walks, cuts)
    result, moves, slots = merged[0], merged[1 : len(walks) + 1], merged[len(walks) + 1 :]
    vector, reads = vector_of((y, *operands), sizes, merged, walks)
    index = index_type(y.extent, *(x.extent for x in operands))
    numbers = range(len(operands))
    given, known = (f"words{i}.at[q]" for i in numbers), (f"entry{i} >= 0" for i in inside)
    constants = [("RANK", len(sizes)), ("VECTOR", vector), ("GAPS", bool(y.pitch))]
    constants += [(f"INNER{i}", read) for i, read in enumerate(reads)]
    args: dict[str, Given] = {"y": y, "strides": result, "count": y.size, "sizes": sizes}
    args |= divisors(sizes)
    for i, (x, move) in enumerate(zip(operands, moves, strict=True)):
        args |= {f"a{i}": x, f"strides{i}": move}
    types = [("Index", index), ("R", word or y.dtype)]
    types += [(f"A{i}", word or x.dtype) for i, x in enumerate(operands)]
    tabled = any(w.origin or w.table is not None for w in walks) or bool(gathered)
    entry = "moved" if tabled else "elementwise"
    for i, walk in enumerate(walks) if tabled else ():
        constants += [(f"TABLED{i}", walk.table is not None), (f"INDEXED{i}", i in gathered)]
        types.append((f"L{i}", walk.indices.dtype if walk.indices else int32))
        args |= {
            f"table{i}": walk.indices or table_of(walk.table),
            **{f"slots{i}": slots[i], f"origin{i}": walk.origin},
            **{f"size{i}": walk.size, f"step{i}": walk.step},
        }
    return Launch(
        f"elementwise/{entry}.cu",
        entry,
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args=args,
        types=tuple(types),
        constants=tuple(constants),
        code="\n".join(
            [
                chain.code,
                f"#define OPERANDS(X) {' '.join(f'X({i})' for i in numbers)}",
                f"#define CHAIN_ARGUMENTS {', '.join((*given, *known))}",
            ]
        ),
        note=chain.title,
        pitched=(y, *operands),
    )


def _merged(
    y: Tensor, walks: Sequence[Walk], cuts: Sequence[Ints]
) -> tuple[Ints, tuple[Ints, ...]]:
    """Return the fewest axes in memory order, and the strides of `y`, of walks, and of slots."""
    firsts = [sum(map(len, cuts[:axis])) for axis in range(y.rank)]
    places = [firsts[a] + i for a in order(y.rank, y.format) for i in range(len(cuts[a]))]
    flat = [size for axis in cuts for size in axis]
    own = [s for axis, step in enumerate(y.strides) for s in inner_strides(cuts[axis], step)]
    rows = [own, *(walk.strides for walk in walks), *(walk.slots for walk in walks)]
    return merge([flat[p] for p in places], [tuple(r[p] for p in places) for r in rows])


def refusal(y: Tensor, operands: Sequence[Tensor], moved: Mapping[int, Movement]) -> str:
    """Return why a chain cannot read operands through nodes that move elements, or nothing."""
    if moved and any(x.extent >= 2**31 for x in operands):
        return "places in tables have 32 bits"
    cuts = factors_of(y.dims, tuple(moved.values()))
    return "axes of operands have no common factors" if cuts is None else ""


def copied_through(movement: Movement, y: Tensor, x: Tensor) -> Launch | str:
    """Return the launch that moves elements, as a chain of nodes does."""
    refused = refusal(y, [x], {0: movement})
    if refused:
        return refused
    word = words_of(x.dtype)
    kind = C_TYPES[word]
    code = f"__device__ __forceinline__ {kind} chain({kind} a0) {{ return a0; }}"
    names = [type(node.op).__name__ for node in movement.nodes if not node.op.view]
    chain = ElementwiseChain((movement.x,), code, "+".join(names))
    return elementwise(chain, y, [x], {0: movement}, word)


def factors_of(dims: Ints, moved: Sequence[Movement]) -> list[Ints] | None:
    """Return the sizes of factors of each axis of which those of all movements are products."""
    if not moved:
        return [(size,) for size in dims]
    found: list[Ints] = []
    for axis, size in enumerate(dims):
        inner = {1, size}
        for each in moved:
            place = axis - len(dims) + len(each.factors)
            own = each.factors[place] if place >= 0 else ()
            inner |= {prod(own[i:]) for i in range(len(own))}
        ends = sorted(inner)
        if any(b % a for a, b in pairwise(ends)):
            return None
        steps = [b // a for a, b in pairwise(ends)]
        found.append(tuple(reversed(steps)) or (1,))
    return found


def inner_strides(sizes: Ints, step: int) -> Ints:
    """Return the strides of the factors of an axis with this stride."""
    return tuple(step * prod(sizes[i + 1 :]) for i in range(len(sizes)))


def walk_of(x: Tensor, movement: Movement | None, y: Tensor, cuts: Sequence[Ints]) -> Walk:
    """Return the places of an operand along the factors of the axes of `y`; repeated: stride 0."""
    if movement is None:
        steps = broadcast_strides(x.dims, x.format, y.dims, x.pitch)
        strides = [
            s for sizes, step in zip(cuts, steps, strict=True) for s in inner_strides(sizes, step)
        ]
        return Walk(0, tuple(strides), None, (0,) * len(strides))
    walk, begin = movement.walk(x), 0
    lists: tuple[list[int], list[int]] = ([], [])
    missing = len(cuts) - len(movement.factors)
    for sizes, own in zip(cuts, ((),) * missing + movement.factors, strict=True):
        end = begin + len(own)
        for to, steps in zip(lists, (walk.strides, walk.slots), strict=True):
            to += _spread(sizes, own, steps[begin:end])
        begin = end
    return Walk(walk.origin, tuple(lists[0]), walk.table, tuple(lists[1]))


def _spread(sizes: Ints, own: Ints, steps: Ints) -> list[int]:
    """Return the strides of finer factors of an axis, given those of coarser ones."""
    if prod(own) == 1:
        return [0] * len(sizes)
    ends = [prod(own[i:]) for i in range(len(own))]
    found: list[int] = []
    for i in range(len(sizes)):
        inner = prod(sizes[i + 1 :])
        place = max(p for p, end in enumerate(ends) if end > inner)
        found.append(steps[place] * (inner // prod(own[place + 1 :])))
    return found


def table_of(table: Array | None) -> Packed | None:
    """Return the constant of a table of places, which is uploaded once."""
    if table is None:
        return None
    return Packed((), ("places", sha256(table.tobytes()).hexdigest()), partial(as_it_is, table))


def vector_of(
    tensors: Sequence[Tensor], sizes: Ints, merged: Sequence[Ints], walks: Sequence[Walk]
) -> tuple[int, list[int]]:
    """Return how many adjacent elements a thread computes, and reads at once of each operand.

    Args:
        tensors: the result and the operands.
        sizes: of the axes.
        merged: the strides of the result and the operands, and the slots of the latter.
        walks: the places of the operands.

    Returns:
        A power of two: at most 16 bytes of the widest tensor. By operand, the part of it that is
        aligned; 0 where all elements are the same one.
    """
    moves, slots = merged[: len(tensors)], merged[len(tensors) :]
    if any(move[-1] not in (0, 1) for move in moves) or any(slot[-1] for slot in slots):
        return 1, [int(move[-1] == 1) for move in moves[1:]]
    own = moves[0][:-1] if moves[0][-1] else ()
    vector = gcd(16 // max(x.dtype.itemsize for x in tensors), sizes[-1], *own)
    aligned: list[int] = []
    for walk, move in zip(walks, moves[1:], strict=True):
        starts = 0 if walk.table is None else int(np.gcd.reduce(walk.table[walk.table >= 0]))
        near = gcd(vector, walk.origin, walk.step, starts, *move[:-1])
        aligned.append(near if move[-1] else 0)
    vector = min([vector, *(MAX_READS * n for n in aligned if n)])
    return vector, [min(n, vector) for n in aligned]
