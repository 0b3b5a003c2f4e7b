"""Batches of products with constants in the middle of an algorithm: of Winograd's, of Fourier's.

Both ends lie in the workspace. The products run as plain float32 arithmetic, or on tensor cores
with three products of tf32 for each of float32; whichever should be faster. The accuracy is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...runtime.ir import Value
from ...runtime.types import Array
from .implicit import product_time, unsplit
from .launch import Launch, launches_of
from .layout import ceil_div
from .matmul import Product, multiply, vector_of
from .operands import Packed, Scratch
from .registry import Setting
from .split import SplitProduct, linear_time, multiply_split, pack_parts, parts_of
from .split_tiles import choose
from .tail import NO_TAIL


@dataclass(frozen=True, slots=True)
class Shape:
    """How many products, and their rows, columns and terms."""

    count: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Products c[i] = a[i] @ b[i].

    Attributes:
        shape: their number and sizes.
        a: [count, m, k].
        c: [count, m, n].
        source: the constant that the matrices b are made of.
        layout: names how.
        pack: makes b, [count, k, n].
    """

    shape: Shape
    a: Scratch
    c: Scratch
    source: Value
    layout: Hashable
    pack: Callable[[Array], Array]


def multiply_batch(batch: Batch, setting: Setting) -> tuple[Launch, ...]:
    """Return the launches of a batch; they need no workspace besides the operands."""
    shape = batch.shape
    if linear_time(_sizes(shape), shape.count, True, setting) < _plain_time(shape, setting):
        return _split(batch, setting)
    return _plain(batch, setting)


def batch_time(shape: Shape, setting: Setting) -> float:
    """Return the microseconds that a batch is expected to take."""
    split = linear_time(_sizes(shape), shape.count, True, setting)
    return min(split, _plain_time(shape, setting))


def _sizes(shape: Shape) -> tuple[int, int, int]:
    return shape.m, shape.n, shape.k


def _plain_time(shape: Shape, setting: Setting) -> float:
    return product_time(shape.m, shape.n, shape.k, shape.count, setting.target)


def _plain(batch: Batch, setting: Setting) -> tuple[Launch, ...]:
    count, m, n, k = batch.shape.count, *_sizes(batch.shape)
    ldb = ceil_div(n, 4) * 4
    product = Product(
        a=batch.a,
        b=Packed((batch.source,), (batch.layout, "fours"), partial(_fours, pack=batch.pack)),
        c=batch.c,
        m=m,
        n=n,
        k=k,
        lda=k,
        ldb=ldb,
        ldc=n,
        batch=(count, m * k, k * ldb, m * n),
        vector_a=vector_of(k),
    )
    way = unsplit(m, n, k, count, setting.target), 1
    return launches_of(multiply(product, NO_TAIL, setting, way))


def _split(batch: Batch, setting: Setting) -> tuple[Launch, ...]:
    count, m, n, k = batch.shape.count, *_sizes(batch.shape)
    parts = parts_of(setting)
    product = SplitProduct(
        a=batch.a,
        b=Packed(
            (batch.source,),
            (batch.layout, "parts", parts),
            partial(_parts, pack=batch.pack, parts=parts),
        ),
        c=batch.c,
        shape=(m, n, k),
        lda=k,
        ldc=n,
        batch=(count, m * k, m * n),
        parts=parts,
        vector=vector_of(k),
    )
    tile, splits = choose(product.task, parts, setting.target)
    if splits > 1 and not tile.wgmma:  # which would need room for partial sums
        return _plain(batch, setting)
    return multiply_split(product, NO_TAIL, setting.target, way=(tile, splits))


def _fours(source: Array, pack: Callable[[Array], Array]) -> Array:
    """Return [count, k, n] with zeros behind the columns up to a multiple of four."""
    columns = pack(source)
    packed = np.zeros((*columns.shape[:2], ceil_div(columns.shape[2], 4) * 4), np.float32)
    packed[..., : columns.shape[2]] = columns
    return packed


def _parts(source: Array, pack: Callable[[Array], Array], parts: int) -> Array:
    return pack_parts(pack(source).astype(np.float32).transpose(0, 2, 1), parts)
