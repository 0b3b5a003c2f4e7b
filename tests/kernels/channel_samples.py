"""Attention of the channels of a head to one another, node by node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Cast, Div, Max, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape

from .dry import apply, normal

TRANSPOSE = Transpose(perm=(0, 1, 3, 2))


@dataclass(frozen=True)
class Block:
    """Attention of rows [images, pixels, 3 * heads * size], node by node.

    Attributes:
        spelling: ``channels`` transposes rows to channels before the products (XCiT), ``pixels``
            queries and values alone (DaViT), ``image`` reads channels of an image (Restormer), and
            ``attention`` is fused.
        heads, size, pixels: the sizes.
        dtype: of all tensors.
        is_unit: whether channels are divided by their lengths.
        factors: of the scores of each head, or of all.
        shared: whether something else reads the queries.
    """

    spelling: str
    heads: int = 2
    size: int = 16
    pixels: int = 100
    dtype: DType = float16
    is_unit: bool = True
    factors: tuple[float, ...] = (0.5,)
    shared: bool = False

    def __str__(self) -> str:
        unit = "-unit" * self.is_unit
        return f"{self.spelling}-{self.heads}x{self.size}x{self.pixels}-{self.dtype.name}{unit}"

    @property
    def x(self) -> Array:
        """The input."""
        rows = normal(2, self.pixels, 3 * self.heads * self.size).astype(self.dtype)
        if self.spelling != "image":
            return rows
        return np.ascontiguousarray(rows.transpose(0, 2, 1))[..., None]

    def graph(self) -> Graph:
        """Return the nodes."""
        graph = Graph("channels")

        add = partial(apply, graph)

        def unit(part: Value) -> Value:
            """Divide the rows of a part by their lengths, in float32."""
            if not self.is_unit:
                return part
            wide = add(Cast(to=float32), part)
            length = add(ReduceL2(keepdims=1), wide, np.array([-1]))
            limit = add(Max(), length, np.array(1e-12, np.float32))
            return add(Cast(to=self.dtype), add(Div(), wide, limit))

        x = graph.add_input("x", TensorType(self.dtype, self.x.shape))
        heads, size, pixels = self.heads, self.size, self.pixels
        factors = np.array(self.factors, self.dtype).reshape(-1, 1, 1)
        if self.spelling == "image":
            bounds = [(i * heads * size, (i + 1) * heads * size) for i in range(3)]
            parts = [add(Slice(), x, *(np.array([n]) for n in (a, b, 1, 1))) for a, b in bounds]
            q, k, v = (add(Reshape(), p, np.array([2, heads, size, pixels])) for p in parts)
        else:
            split = add(Reshape(), x, np.array([2, pixels, 3, heads, size]))
            last = (1, 4) if self.spelling == "pixels" else (4, 1)
            moved = add(Transpose(perm=(2, 0, 3, *last)), split)
            parts = [
                add(Slice(), moved, *(np.array([n]) for n in (i, i + 1, 0, 1))) for i in range(3)
            ]
            shape = (pixels, size) if self.spelling == "pixels" else (size, pixels)
            q, k, v = (add(Reshape(), p, np.array([2, heads, *shape])) for p in parts)
        outputs = {"other": q} if self.shared else {}
        if self.spelling == "pixels":
            scores = add(MatMul(), add(TRANSPOSE, add(Mul(), q, factors)), k)
            y = add(MatMul(), add(Softmax(axis=-1), scores), add(TRANSPOSE, v))
            y = add(Transpose(perm=(0, 2, 1, 3)), add(TRANSPOSE, y))
        elif self.spelling == "attention":
            y = add(Attention(scale=1.0), add(Mul(), unit(q), factors), unit(k), v)
            y = add(Transpose(perm=(0, 3, 1, 2)), y)
        else:
            scores = add(Mul(), add(MatMul(), unit(q), add(TRANSPOSE, unit(k))), factors)
            y = add(MatMul(), add(Softmax(axis=-1), scores), v)
            if self.spelling == "channels":
                y = add(Transpose(perm=(0, 3, 1, 2)), y)
        shape = (2, heads * size, pixels, 1) if self.spelling == "image" else (2, pixels, -1)
        graph.set_outputs({"y": add(Reshape(), y, np.array(shape)), **outputs})
        infer(graph)
        return graph

    def exact(self) -> Array:
        """Return the result in float64."""
        x = self.x.astype(float64)
        rows = x if self.spelling != "image" else x[..., 0].transpose(0, 2, 1)
        shape = (2, self.pixels, 3, self.heads, self.size)
        q, k, v = rows.reshape(shape).transpose(2, 0, 3, 4, 1)
        if self.is_unit:
            q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
        scores = np.array(self.factors, self.dtype).astype(float64).reshape(-1, 1, 1) * (
            q @ k.swapaxes(-1, -2)
        )
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y: Array = weights / weights.sum(-1, keepdims=True) @ v
        if self.spelling == "image":
            return y.reshape(2, -1, self.pixels, 1)
        return y.transpose(0, 3, 1, 2).reshape(2, self.pixels, -1)


#: One of each spelling, and sizes that the kernel tells apart.
BLOCKS = (
    Block("channels", factors=(0.5, 2.0)),
    Block("pixels", is_unit=False, factors=(0.1,)),
    Block("image"),
    Block("attention", factors=(3.0, 0.5)),
)
SIZES = (
    *BLOCKS,
    Block("channels", size=64, heads=1, pixels=150, dtype=bfloat16),
    Block("channels", size=12, heads=3, pixels=300),
    Block("image", size=48, heads=1, pixels=64),
    Block("pixels", size=5, pixels=9, is_unit=False),
)
