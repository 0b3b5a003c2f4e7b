"""Products and attentions to test with: random ones, and what they compute in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Relu, Sigmoid, Swish, Tanh
from tercet.runtime.ops.matmul import Gemm, MatMul

Ints = tuple[int, ...]

#: Elementwise nodes behind a product: an operator, and what it reads besides.
TAILS: dict[str, tuple[Op, str]] = {
    "bias": (Add(), "column"),
    "add": (Add(), "like"),
    "scale": (Mul(), "number"),
    "relu": (Relu(), ""),
    "gelu": (Gelu(), ""),
    "gelu_tanh": (Gelu(approximate="tanh"), ""),
    "swish": (Swish(), ""),
    "sigmoid": (Sigmoid(), ""),
    "tanh": (Tanh(), ""),
}


@dataclass
class Case:
    """A node with what follows it, over numbers that are the same in every dtype.

    Attributes:
        op: MatMul, Gemm or Attention.
        shapes: of its inputs, None for one that is left out.
        constants: places of the inputs that are constants.
        tail: names of `TAILS`.
        scales: factors of the numbers by place.
        hidden: share of the last input's elements that are -inf, of a mask.
    """

    op: Op
    shapes: list[Ints | None]
    constants: Ints = ()
    tail: tuple[str, ...] = ()
    scales: dict[int, float] = field(default_factory=dict[int, float])
    hidden: float = 0.0

    def __str__(self) -> str:
        fixed = f" constant {self.constants}" if self.constants else ""
        return " ".join([f"{self.op} {self.shapes}{fixed}", *self.tail])

    def arrays(self, dtype: DType) -> list[Array | None]:
        """The inputs, rounded to a dtype."""
        rng = np.random.default_rng(1)
        found: list[Array | None] = []
        for place, shape in enumerate(self.shapes):
            if shape is None:
                found.append(None)
                continue
            data = rng.standard_normal(shape) * self.scales.get(place, 1.0)
            if self.hidden and place == len(self.shapes) - 1:
                data = np.where(rng.random(shape) < self.hidden, -np.inf, data)
            found.append(data.astype(dtype))
        return found

    def graph(self, dtype: DType, arrays: list[Array | None] | None = None) -> Graph:
        """The case in a dtype as a graph, with inputs x0, x1, ... of those that are not constants.

        Args:
            dtype: of all tensors.
            arrays: for constants; by default those of `arrays`.
        """
        graph = Graph(str(self))
        values: list[Value | None] = []
        for place, data in enumerate(arrays or self.arrays(dtype)):
            if data is None:
                values.append(None)
            elif place in self.constants:
                values.append(graph.constant(data.astype(dtype), f"x{place}"))
            else:
                values.append(graph.add_input(f"x{place}", TensorType(dtype, data.shape)))
        y = graph.insert(self.op, values, name="node").outputs[0]
        infer(graph)
        for name in self.tail:
            op, other = TAILS[name]
            more = [] if not other else [self._operand(graph, y, other, dtype)]
            y = graph.insert(op, [y, *more], name=name).output
            infer(graph)
        graph.set_outputs({"y": y})
        return graph

    def _operand(self, graph: Graph, y: Value, kind: str, dtype: DType) -> Value:
        rng = np.random.default_rng(2)
        dims = y.tensor.dims
        if kind == "like":
            return graph.add_input("z", TensorType(dtype, dims))
        data = np.array(0.625) if kind == "number" else rng.integers(-8, 9, dims[-1:]) / 8
        return graph.constant(data.astype(dtype), kind)

    def feeds(self, dtype: DType) -> dict[str, Array]:
        """Numbers for the inputs of the graph."""
        arrays = self.arrays(dtype)
        feeds = {
            f"x{place}": data
            for place, data in enumerate(arrays)
            if data is not None and place not in self.constants
        }
        if "add" in self.tail:
            (z,) = (v for v in self.graph(dtype).inputs if v.name == "z")
            feeds["z"] = np.random.default_rng(3).standard_normal(z.tensor.dims).astype(dtype)
        return feeds

    def exact(self, dtype: DType) -> tuple[Graph, dict[str, Array]]:
        """The same numbers as a graph in float64, with its feeds."""
        arrays = [None if a is None else a.astype(float64) for a in self.arrays(dtype)]
        feeds = {name: data.astype(float64) for name, data in self.feeds(dtype).items()}
        return self.graph(float64, arrays), feeds


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def linear(rows: Ints, inner: int, columns: int, *tail: str) -> Case:
    """A linear layer: [*rows, inner] times constant weights, and what follows."""
    return Case(MatMul(), [(*rows, inner), (inner, columns)], (1,), tail, {1: inner**-0.5})


def random_products(count: int, seed: int = 0) -> list[Case]:
    """Draw MatMul and Gemm in every variation."""
    rng = np.random.default_rng(seed)
    return [_draw_gemm(rng) if rng.random() < 0.4 else _draw_matmul(rng) for _ in range(count)]


def _draw_sizes(rng: np.random.Generator) -> Ints:
    return tuple(int(v) for v in rng.choice([1, 2, 3, 7, 8, 16, 33, 64, 96, 130, 257], 3))


def _draw_tail(rng: np.random.Generator) -> tuple[str, ...]:
    return tuple(str(v) for v in rng.choice(list(TAILS), int(rng.integers(0, 4)), replace=False))


def _draw_matmul(rng: np.random.Generator) -> Case:
    m, k, n = _draw_sizes(rng)
    stacks = [((), ()), ((3,), ()), ((2, 3), ()), ((4,), (4,)), ((2, 3), (2, 3)), ((), (5,))]
    of_a, of_b = stacks[int(rng.integers(len(stacks)))]
    constants = (1,) if rng.random() < 0.5 else ()
    shapes: list[Ints | None] = [(*of_a, m, k), (*of_b, k, n)]
    return Case(MatMul(), shapes, constants, _draw_tail(rng), {1: k**-0.5})


def _draw_gemm(rng: np.random.Generator) -> Case:
    m, k, n = _draw_sizes(rng)
    left, right = (bool(v) for v in rng.integers(0, 2, 2))
    alpha, beta = (float(v) for v in rng.choice([1.0, 1.0, 0.5, -2.0], 2))
    added: list[Ints | None] = [None, (n,), (1, n), (m, 1), (m, n), (1,), ()]
    shapes: list[Ints | None] = [(k, m) if left else (m, k), (n, k) if right else (k, n)]
    shapes.append(added[int(rng.integers(len(added)))])
    constants = tuple(place for place in (1, 2) if rng.random() < 0.5 and shapes[place] is not None)
    op = Gemm(alpha=alpha, beta=beta, transA=int(left), transB=int(right))
    return Case(op, shapes, constants, _draw_tail(rng), {1: k**-0.5})


# ── attentions ───────────────────────────────────────────────────────────────────────────────────


def random_attentions(count: int, seed: int = 0) -> list[Case]:
    """Draw Attention in every variation that cuDNN is asked for."""
    rng = np.random.default_rng(seed)
    return [_draw_attention(rng) for _ in range(count)]


def _draw_attention(rng: np.random.Generator) -> Case:
    batch, keys = int(rng.integers(1, 4)), int(rng.choice([1, 3, 4, 8]))
    heads = keys * int(rng.choice([1, 1, 2, 4]))
    length, total = (int(v) for v in rng.choice([1, 5, 16, 33, 64, 100, 197], 2))
    size, of_v = (int(v) for v in rng.choice([8, 16, 40, 64, 64, 80, 128], 2))
    flat = rng.random() < 0.5
    attributes: dict[str, Any] = {"is_causal": int(rng.random() < 0.4)}
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": keys}
    if rng.random() < 0.2:
        attributes["right_window_size"] = int(rng.integers(0, 9))
    if rng.random() < 0.3 and length <= total:
        attributes["left_window_size"] = int(rng.integers(0, 9))
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if len(attributes) == 1 + 2 * flat and not attributes["is_causal"]:
        attributes["softcap"] = float(rng.choice([0.0, 0.0, 4.0]))
    shapes: list[Ints | None] = [
        (batch, length, heads * size) if flat else (batch, heads, length, size),
        (batch, total, keys * size) if flat else (batch, keys, total, size),
        (batch, total, keys * of_v) if flat else (batch, keys, total, of_v),
    ]
    masks = [
        None, None, (length, total), (batch, 1, 1, total),
        (batch, heads, length, total), (1, heads, 1, total),
    ]  # fmt: skip
    mask = masks[int(rng.integers(len(masks)))]
    hidden = float(rng.choice([0.0, 0.3])) if mask is not None else 0.0
    shapes += [] if mask is None else [mask]
    return Case(Attention(**attributes), shapes, hidden=hidden)
