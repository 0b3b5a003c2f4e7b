"""Graphs drawn at random: an operator, and elementwise nodes behind it that read all kinds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Div, Mul, Neg, Relu, Sigmoid
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
    Softmax,
)
from tercet.runtime.ops.packed import MatMulNBits
from tercet.runtime.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from tercet.runtime.ops.reduce import ReduceL2, ReduceMax, ReduceMean, ReduceSum
from tercet.runtime.ops.shape import Reshape

from .operand_drawing import SIZES, UNARY, WORDS, Drawing, behind, part

# ── operators ─────────────────────────────────────────────────────────────────────────────────


def layer(d: Drawing) -> Value:
    """Rows times constant weights."""
    *lead, m, k, n = *d.lead(), d.size(), d.size(), d.size()
    x = part(d, *lead, m, k)
    y = d.apply(MatMul(), x, d.constant(k, n, scale=k**-0.5))
    return d.apply(Add(), y, d.constant(n)) if d.dice.random() < 0.4 else y


def general(d: Drawing) -> Value:
    """A Gemm."""
    m, k, n = d.size(), d.size(), d.size()
    transposed = d.pick(0, 1)
    w = (n, k) if transposed else (k, n)
    bias = d.pick(None, d.constant(n), d.given(m, 1), d.given(m, n), d.given(1))
    op = Gemm(transB=transposed, alpha=d.pick(1.0, 0.5), beta=d.pick(1.0, -2.0))
    return d.apply(op, part(d, m, k), d.given(*w, scale=k**-0.5), bias)


def square(d: Drawing) -> Value:
    """A layer as wide as its rows, which may be added behind it."""
    *lead, m, k = *d.lead(), d.size(), d.size()
    x = d.input(*lead, m, k)
    return d.apply(MatMul(), x, d.constant(k, k, scale=k**-0.5))


def computed(d: Drawing) -> Value:
    """Two computed matrices, or stacks of them."""
    lead, m, k, n = d.lead(), d.size(), d.size(), d.size()
    of_a, of_b = d.pick((lead, lead), (lead, lead), ((), lead), (lead, ()), (lead, lead[1:]))
    a = part(d, *of_a, m, k)
    if d.dice.random() < 0.4:
        last = len(of_b)
        b = d.input(*of_b, n, k, scale=k**-0.5)
        b = d.apply(Transpose(perm=(*range(last), last + 1, last)), b)
    else:
        b = part(d, *of_b, k, n, scale=k**-0.5)
    return d.apply(MatMul(), a, b)


def tokens(d: Drawing) -> Value:
    """Constant weights on the left."""
    lead, m, k, n = d.lead(), d.size(), d.size(), d.size()
    own = d.dice.random() < 0.3
    w = d.constant(*(lead if own else ()), m, k, scale=k**-0.5)
    return d.apply(MatMul(), w, part(d, *lead, k, n))


def stacks(d: Drawing) -> Value:
    """A constant stack on the right."""
    lead = d.pick((2,), (3,), (2, 3))
    m, k, n = d.size(), d.size(), d.size()
    return d.apply(MatMul(), part(d, *lead, m, k), d.constant(*lead, k, n, scale=k**-0.5))


def vectors(d: Drawing) -> Value:
    """One row, or one column."""
    lead, k, n = d.lead(), d.size(), d.size()
    way = d.pick("row", "column", "vector", "dot")
    if way == "row":
        return d.apply(MatMul(), d.input(k), d.given(k, n, scale=k**-0.5))
    if way == "column":
        return d.apply(MatMul(), part(d, *lead, n, k), d.given(k, 1, scale=k**-0.5))
    if way == "vector":
        return d.apply(MatMul(), part(d, *lead, n, k), d.given(k, scale=k**-0.5))
    return d.apply(MatMul(), d.input(*lead, 1, k), d.given(*lead, k, n, scale=k**-0.5))


def chained(d: Drawing) -> Value:
    """Two layers."""
    lead, m, k, n = d.lead(), d.size(), d.size(), d.size()
    y = d.apply(MatMul(), d.input(*lead, m, k), d.constant(k, n, scale=k**-0.5))
    y = behind(d, d.apply(d.dice.choice(UNARY), y), 1)
    width = y.tensor.dims[-1]
    return d.apply(MatMul(), y, d.constant(width, k, scale=width**-0.5))


def gated(d: Drawing) -> Value:
    """Two layers of the same rows that meet."""
    lead, m, k, n = d.lead(), d.size(), d.size(), d.size()
    x = d.input(*lead, m, k)
    if d.dice.random() < 0.3:
        x = d.apply(RMSNormalization(), x, d.constant(k))
    p, q = (d.apply(MatMul(), x, d.constant(k, n, scale=k**-0.5)) for _ in range(2))
    return d.apply(Mul(), d.apply(d.dice.choice(UNARY), p), q)


def normalized(d: Drawing) -> Value:
    """A layer of normalized rows."""
    lead, m, k, n = d.lead(), d.size(), d.size(), d.size()
    x = d.input(*lead, m, k)
    x = d.apply(LayerNormalization(), x, d.constant(k), d.constant(k))
    return d.apply(MatMul(), x, d.constant(k, n, scale=k**-0.5))


def convolution(d: Drawing) -> Value:
    """Any convolution."""
    spatial = d.pick((6, 8), (7, 5), (9,), (16,), (1, 1), (4, 4), (3, 4, 5), (8, 8))
    rank = len(spatial)
    way = d.pick("pixels", "pixels", "windows", "windows", "groups", "depthwise", "strided")
    n, c, f = d.pick(1, 1, 2, 3), d.size(), d.size()
    group, size = 1, 1 if way == "pixels" else d.pick(1, 3, 3, 2)
    if way == "groups":
        group = d.pick(2, 4)
        c, f = group * d.pick(1, 4, 8, 12), group * d.pick(1, 4, 8, 9)
    if way == "depthwise":
        group = f = c
    step = d.pick(2, 3) if way == "strided" else 1
    pad = size // 2 if d.dice.random() < 0.7 or min(spatial) < size else 0
    op = Conv(group=group, strides=(step,) * rank, pads=(pad,) * 2 * rank)
    w = d.constant(f, c // group, *(size,) * rank, scale=(c // group * size**rank) ** -0.5)
    bias = d.constant(f) if d.dice.random() < 0.4 else None
    return d.apply(op, part(d, n, c, *spatial, axis=1), w, bias)


def transposed(d: Drawing) -> Value:
    """A transposed convolution."""
    spatial = d.pick((4, 5), (6,), (5, 3))
    n, c, f, rank = d.pick(1, 2), d.size(), d.size(), len(spatial)
    size, step = d.pick((2, 2), (3, 2), (4, 2), (3, 1))
    op = ConvTranspose(strides=(step,) * rank, pads=(d.pick(0, 1) if size > 2 else 0,) * 2 * rank)
    w = d.constant(c, f, *(size,) * rank, scale=(c * size) ** -0.5)
    return d.apply(op, d.input(n, c, *spatial), w)


def residual(d: Drawing) -> Value:
    """Expansion, depthwise filters, projection, as in MobileNets; or two pointwise layers."""
    n, c, wide = d.pick(1, 2), d.pick(8, 16, 24, 7), d.pick(16, 32, 48)
    x = d.input(n, c, 8, d.pick(8, 6))
    y = d.apply(Conv(), x, d.constant(wide, c, 1, 1, scale=c**-0.5), d.constant(wide))
    y = d.apply(Relu(), y)
    if d.dice.random() < 0.6:
        y = d.apply(Conv(group=wide, pads=(1,) * 4), y, d.constant(wide, 1, 3, 3, scale=0.3))
        y = d.apply(Relu(), y)
    y = d.apply(Conv(), y, d.constant(c, wide, 1, 1, scale=wide**-0.5))
    return y


def excited(d: Drawing) -> Value:
    """Squeeze and excite."""
    n, c, few = d.pick(1, 2), d.pick(16, 24, 32), d.pick(8, 4)
    x = d.apply(Relu(), d.input(n, c, 6, 8))
    y = d.apply(GlobalAveragePool(), x)
    y = d.apply(Relu(), d.apply(Conv(), y, d.constant(few, c, 1, 1, scale=c**-0.5)))
    y = d.apply(Sigmoid(), d.apply(Conv(), y, d.constant(c, few, 1, 1), d.constant(c)))
    return d.apply(Mul(), x, y)


def norm(d: Drawing) -> Value:
    """Rows, or images, that are normalized."""
    if d.dice.random() < 0.5:
        *lead, m, k = *d.lead(), d.size(), d.size()
        x = part(d, *lead, m, k)
        if d.dice.random() < 0.5:
            return d.apply(LayerNormalization(), x, d.constant(k), d.pick(None, d.constant(k)))
        return d.apply(RMSNormalization(), x, d.constant(k))
    n, c = d.pick(1, 2, 3), d.pick(4, 8, 12, 16, 32)
    x = part(d, n, c, *d.pick((6, 8), (7,), (5, 3)), axis=1)
    if d.dice.random() < 0.5:
        op: Op = GroupNormalization(num_groups=d.pick(1, 2, 4))
    else:
        op = InstanceNormalization()
    return d.apply(op, x, d.constant(c), d.constant(c))


def pool(d: Drawing) -> Value:
    """Images that are pooled."""
    x = part(d, d.pick(1, 2), d.size(), *d.pick((6, 8), (7, 5)), axis=1)
    op = d.pick(MaxPool, AveragePool)(kernel_shape=(2, 2), strides=d.pick((1, 1), (2, 2)))
    return d.apply(d.pick(op, op, GlobalAveragePool()), x)


def reduced(d: Drawing) -> Value:
    """A sum of an axis."""
    x = part(d, *d.pick((2, 3), (4,), ()), d.size(), d.size())
    op = d.pick(ReduceMax, ReduceMean, ReduceSum)(keepdims=d.pick(0, 1))
    if d.dice.random() < 0.3:
        return d.apply(Softmax(axis=-1), x)
    y = d.apply(op, x, d.ints(d.pick(-1, -2)))
    return d.apply(Mul(), y, d.constant(1, scale=0.2))


def attention(d: Drawing) -> Value:
    """Scaled products of heads."""
    b, h, s, e = d.pick(1, 2), d.pick(1, 2, 3), d.size(), d.pick(8, 16, 32, 64)
    q, k, v = (d.input(b, h, s, e) for _ in range(3))
    y = d.apply(Attention(), q, k, v)
    return d.apply(Transpose(perm=(0, 2, 1, 3)), y) if d.dice.random() < 0.3 else y


def packed(d: Drawing) -> Value:
    """Rows times weights of a few bits."""
    lead, m, n, bits = d.pick((), (), (2,)), d.pick(1, 2, 5, 8, 16, 40), d.size(), d.pick(4, 8)
    k = d.pick(32, 64, 96, 128)
    draw = np.random.default_rng(d.dice.randrange(2**31))
    codes = draw.integers(0, 256, (n, k // 32, 32 * bits // 8), np.uint8)
    scales, x = d.constant(n * (k // 32), scale=0.5 / 2**bits), part(d, *lead, m, k)
    if d.wide:
        whole = codes if bits == 8 else np.stack((codes & 15, codes >> 4), axis=-1)
        whole = whole.reshape(n, k // 32, 32) - float(2 ** (bits - 1))
        assert scales.data is not None
        rows = (whole * scales.data.reshape(n, k // 32, 1)).reshape(n, k)
        return d.apply(MatMul(), x, d.graph.constant(rows.T.copy()))
    op = MatMulNBits(K=k, N=n, bits=bits, block_size=32)
    return d.apply(op, x, d.graph.constant(codes), scales)


def heads(d: Drawing) -> Value:
    """Products of heads that are cut out of rows, or put back into them."""
    b, h, s, e = d.pick(1, 2), d.pick(1, 2, 3), d.size(), d.pick(8, 16, 24)
    rows = d.input(b, s, h * e)
    q = d.apply(Reshape(), d.apply(Neg(), rows), d.ints(b, s, h, e))
    q = d.apply(Transpose(perm=(0, 2, 1, 3)), q)
    if d.dice.random() < 0.5:
        k = d.input(b, h, s, e, scale=e**-0.5)
        return d.apply(MatMul(), q, d.apply(Transpose(perm=(0, 1, 3, 2)), k))
    y = d.apply(MatMul(), d.input(b, h, s, s, scale=s**-0.5), q)
    y = d.apply(Transpose(perm=(0, 2, 1, 3)), y)
    return d.apply(Reshape(), y, d.ints(b, s, h * e))


def partial(d: Drawing) -> Value:
    """Part of the channels of an image goes through layers."""
    n, c, wide = d.pick(1, 2), d.pick(8, 16, 24), d.pick(16, 32)
    x = d.apply(Conv(), d.input(n, c, 8, 6), d.constant(2 * c, c, 1, 1, scale=c**-0.5))
    x = d.apply(Split(axis=1, num_outputs=2), d.apply(Relu(), x), outputs=2, which=d.pick(0, 1))
    way = d.pick("pixels", "windows", "depthwise", "residual", "pairs", "norm")
    if way == "norm":
        return d.apply(GroupNormalization(num_groups=2), x, d.constant(c), d.constant(c))
    if way == "depthwise":
        return d.apply(Conv(group=c, pads=(1,) * 4), x, d.constant(c, 1, 3, 3, scale=0.3))
    if way in ("pixels", "windows"):
        size = 1 if way == "pixels" else 3
        w = d.constant(c, c, size, size, scale=(c * size**2) ** -0.5)
        return d.apply(Conv(pads=(size // 2,) * 4), x, w, d.pick(None, d.constant(c)))
    y = d.apply(Relu(), d.apply(Conv(), x, d.constant(wide, c, 1, 1, scale=c**-0.5)))
    if way == "residual":
        y = d.apply(Conv(group=wide, pads=(1,) * 4), y, d.constant(wide, 1, 3, 3, scale=0.3))
        y = d.apply(Relu(), y)
    return d.apply(Conv(), y, d.constant(c, wide, 1, 1, scale=wide**-0.5))


def unit(d: Drawing) -> Value:
    """Rows of length one, or normalized twice, or gathered."""
    lead, m, k = d.lead(), d.size(), d.pick(8, 16, 64, 72, 128)
    x = part(d, *lead, m, k)
    way = d.pick("unit", "twice", "gathered", "behind")
    if way == "unit":
        return d.apply(Div(), x, d.apply(ReduceL2(), x, d.ints(-1)))
    norm = RMSNormalization(), d.constant(k, scale=1)
    if way == "twice":
        y = behind(d, d.apply(norm[0], x, norm[1]), 1)
        return d.apply(RMSNormalization(), y, d.constant(k, scale=1))
    if lead or way == "behind":
        return d.apply(norm[0], x, norm[1])
    places = d.ints(*np.random.default_rng(m).permutation(m).tolist())
    return d.apply(norm[0], d.apply(Gather(), x, places), norm[1])


FAMILIES: dict[str, tuple[Callable[[Drawing], Value], int]] = {
    "layer": (layer, 4),
    "square": (square, 2),
    "general": (general, 2),
    "computed": (computed, 5),
    "tokens": (tokens, 3),
    "stacks": (stacks, 2),
    "vectors": (vectors, 2),
    "chained": (chained, 2),
    "gated": (gated, 1),
    "normalized": (normalized, 1),
    "convolution": (convolution, 6),
    "transposed": (transposed, 1),
    "residual": (residual, 2),
    "excited": (excited, 1),
    "norm": (norm, 2),
    "pool": (pool, 1),
    "reduced": (reduced, 1),
    "attention": (attention, 1),
    "packed": (packed, 2),
    "heads": (heads, 2),
    "partial": (partial, 3),
    "unit": (unit, 2),
}


def drawn(
    seed: int, *, wide: bool = False, family: str = "", dtype: DType | None = None
) -> Drawing:
    """Return the graph of a seed; `wide` is the same in float64, of the same numbers."""
    dice = Random(seed)
    chosen = dice.choice((float16, float16, bfloat16, float32, float32))
    d = Drawing(dice, dtype or chosen, wide, sizes=dice.choice((SIZES, WORDS, WORDS)))
    names = [name for name, (_, weight) in FAMILIES.items() for _ in range(weight)]
    name = dice.choice(names)
    name = family or name
    y = FAMILIES[name][0](d)
    first, d.said = y, [name, str(d.dtype), f"{y.tensor}", *d.said]
    y = behind(d, y, d.pick(1, 1, 2, 2, 3))
    results = [y]
    if dice.random() < 0.2:
        results.append(behind(d, y, 1))
    if dice.random() < 0.15:
        results.append(first)
    if dice.random() < 0.25:
        results[0] = d.cast(results[0], d.pick(float16, float32))
    d.graph.set_outputs({f"y{i}": value for i, value in enumerate(dict.fromkeys(results))})
    infer(d.graph)
    return d
