"""Products of few rows, one or two of an input that may be normalized, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops import elementwise as ops
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.packed import MatMulNBits

from .dry import normal
from .samples import Sample

Apply = Callable[..., Value]


def swiglu(apply: Apply, a: Value, b: Value) -> Value:
    """Return a * sigmoid(a) * b, where one node reads a."""
    return apply(ops.Mul(), apply(ops.Swish(), a), b)


def silu_apart(apply: Apply, a: Value, b: Value) -> Value:
    """Return a * sigmoid(a) * b, where two nodes read a."""
    return apply(ops.Mul(), apply(ops.Mul(), a, apply(ops.Sigmoid(), a)), b)


def geglu(apply: Apply, a: Value, b: Value) -> Value:
    """Return gelu(a) * b."""
    return apply(ops.Mul(), b, apply(ops.Gelu(approximate="tanh"), a))


def reglu(apply: Apply, a: Value, b: Value) -> Value:
    """Return relu(a) * b."""
    return apply(ops.Mul(), apply(ops.Relu(), a), b)


def in_float32(apply: Apply, a: Value, b: Value) -> Value:
    """Return tanh(b - a), which tells the two apart, in float32."""
    wide = [apply(ops.Cast(to=float32), value) for value in (b, a)]
    return apply(ops.Tanh(), apply(ops.Sub(), *wide))


def alone(apply: Apply, a: Value, b: Value) -> Value:
    """Return a alone."""
    return a


def three_operands(apply: Apply, a: Value, b: Value) -> Value:
    """Return (a + u) * v + w of a alone: what an epilogue takes if the first is a bias."""
    (*_, n), dtype = a.tensor.dims, a.tensor.dtype
    u, v, w = (normal(n + i)[:n].astype(dtype) for i in range(3))
    return apply(ops.Add(), apply(ops.Mul(), apply(ops.Add(), a, u), v), w)


#: Those of one product.
SINGLE = (alone, three_operands)


@dataclass(frozen=True)
class Gated:
    """One or two products of the same x, and what becomes of them.

    Attributes:
        rows, k, n: of each product.
        dtype: of x.
        gate: what becomes of the results.
        bits: of the weights; 16 for floats of a MatMul, or of a Gemm.
        block: weights that share a scale.
        zeros: whether there are zero points.
        bias: "added" behind both products, a part of "both", a part of the "second", or none.
        reader: who else reads the first product: a "node", or it is an "output", or none;
            likewise the normalized x: a "node behind the norm", or it is an "output of the norm".
        kind: of products with weights of floats: MatMul or Gemm.
        norm: of x: RMSNormalization, LayerNormalization, "shifted" for that with a shift,
            "shifted by its scale" where one constant is both, or none.
    """

    rows: int
    k: int
    n: int
    dtype: Any = float16
    gate: Callable[[Apply, Value, Value], Value] = swiglu
    bits: int = 16
    block: int = 32
    zeros: bool = False
    bias: str = ""
    reader: str = ""
    kind: str = "MatMul"
    norm: str = ""

    def __str__(self) -> str:
        sizes = f"{self.rows}x{self.k}x{self.n}"
        packing = f"int{self.bits} of {self.block}" if self.bits < 16 else self.kind
        parts = [self.gate.__name__, sizes, self.dtype.name, packing, "zeros" * self.zeros]
        parts.append(self.norm)
        return " ".join(part for part in (*parts, self.bias, self.reader) if part)

    def sample(self) -> Sample:
        """Return it as a graph with feeds."""
        graph = Graph("gated")
        data = normal(self.rows, self.k).astype(self.dtype)
        x = graph.add_input("x", TensorType(data.dtype, data.shape))

        def apply(operator: Op, *values: Value | Array) -> Value:
            inputs = [graph.constant(v) if isinstance(v, np.ndarray) else v for v in values]
            node = graph.insert(operator, inputs)
            infer(graph)
            return node.output

        x = self._normalized(graph, apply, x)
        count = 1 if self.gate in SINGLE else 2
        first, *second = (self._product(graph, x, i) for i in range(count))
        infer(graph)
        outputs = {"y": self.gate(apply, first, *second or [first])}
        read = x if "norm" in self.reader else first
        if self.reader.startswith("node"):
            outputs["read"] = apply(ops.Neg(), read)
        elif self.reader:
            outputs["read"] = read
        graph.set_outputs(outputs)
        infer(graph)
        return Sample(graph, {"x": data})

    def _normalized(self, graph: Graph, apply: Apply, x: Value) -> Value:
        scale, shift = (normal(self.k + i)[: self.k].astype(self.dtype) for i in range(2))
        if self.norm == "RMSNormalization":
            return apply(RMSNormalization(epsilon=1e-3), x, scale)
        if self.norm == "shifted by its scale":
            both = graph.constant(scale)
            return apply(LayerNormalization(), x, both, both)
        if self.norm:
            parameters = [scale, shift] if self.norm == "shifted" else [scale]
            return apply(LayerNormalization(), x, *parameters)
        return x

    def _product(self, graph: Graph, x: Value, number: int) -> Value:
        def constant(data: Array) -> Value:
            return graph.constant(data)

        bias = constant(normal(self.n + number)[: self.n].astype(self.dtype))
        inside = bias if self.bias == "both" or (self.bias == "second" and number) else None
        y = graph.insert(*self._operator(constant, x, number, inside)).output
        return y if self.bias != "added" else graph.insert(ops.Add(), [y, bias]).output

    def _operator(
        self, constant: Callable[[Array], Value], x: Value, number: int, bias: Value | None
    ) -> tuple[Op, list[Value | None]]:
        k, n, bits, block = self.k, self.n, self.bits, self.block
        if bits == 16:
            transposed = self.kind == "Gemm" and number == 0  # the forms of the two may differ
            weights = normal(k, n + number)[:, :n] / np.float32(k**0.5)
            w = constant(
                np.ascontiguousarray(weights.T if transposed else weights).astype(self.dtype)
            )
            if self.kind == "MatMul":
                return MatMul(), [x, w]
            return Gemm(transB=int(transposed), alpha=1.0 + number), [x, w, bias]
        blocks, random = -(-k // block), np.random.default_rng(number)
        b = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        spread = np.abs(normal(n * blocks)) / np.float32(2 ** (bits - 1) * k**0.5)
        zeros = random.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
        points = constant(zeros) if self.zeros else None
        inputs = [x, constant(b), constant(spread.astype(self.dtype)), points, None, bias]
        return MatMulNBits(K=k, N=n, bits=bits, block_size=block), inputs


#: Those that become one kernel with two products.
TOGETHER = [
    Gated(1, 256, 64),
    Gated(2, 520, 40, bfloat16, silu_apart),
    Gated(3, 75, 9, float32, geglu),
    Gated(8, 75, 17, float16, reglu),
    Gated(5, 264, 30, float16, in_float32, bias="added"),
    Gated(4, 40, 2200, bfloat16, silu_apart, bias="added"),
    Gated(7, 36, 2120, float32, in_float32),
    Gated(1, 130, 24, kind="Gemm", bias="both"),
    Gated(6, 96, 1, float32, geglu, kind="Gemm", bias="second"),
    Gated(1, 256, 64, bits=4),
    Gated(8, 300, 35, bits=4, gate=silu_apart, zeros=True),
    Gated(2, 260, 9, float32, in_float32, bits=4, block=128, zeros=True, bias="both"),
    Gated(3, 256, 2112, bits=4, block=128, gate=geglu, bias="added"),
    Gated(1, 70, 20, bfloat16, bits=8, block=16, bias="second", gate=reglu),
    Gated(4, 2080, 24, bits=8, zeros=True),
    Gated(1, 2048, 64, norm="RMSNormalization"),
    Gated(1, 75, 17, norm="shifted", gate=reglu),
    Gated(1, 264, 24, float32, geglu, norm="LayerNormalization"),
    Gated(1, 300, 24, bits=4, zeros=True, norm="RMSNormalization"),
    Gated(8, 1024, 24, bits=4, norm="RMSNormalization"),
    Gated(2, 256, 9, bits=4, block=128, norm="RMSNormalization"),
    Gated(1, 300, 24, bits=4, block=16, norm="RMSNormalization"),
    Gated(8, 1024, 24, bits=4, block=16, zeros=True, norm="RMSNormalization"),
]
#: Those with one product, and a normalization in the same kernel.
NORMALIZED = [
    Gated(1, 520, 40, gate=alone, norm="RMSNormalization"),
    Gated(1, 2040, 9, gate=three_operands, norm="shifted"),
    Gated(1, 75, 24, bfloat16, three_operands, norm="RMSNormalization"),
    Gated(1, 1031, 3, float32, alone, norm="shifted"),
    Gated(1, 75, 24, float32, alone, norm="shifted by its scale"),
    Gated(1, 1100, 2200, float32, alone, norm="RMSNormalization", kind="Gemm", bias="both"),
    Gated(1, 4096, 40, gate=alone, bits=4, norm="RMSNormalization"),
    Gated(1, 129, 35, bfloat16, alone, bits=8, block=16, norm="LayerNormalization", bias="both"),
    Gated(1, 264, 9, float32, alone, bits=4, block=128, zeros=True, norm="shifted"),
    Gated(8, 384, 40, gate=alone, bits=4, norm="RMSNormalization"),
    Gated(3, 1920, 35, gate=alone, bits=4, block=128, zeros=True, norm="RMSNormalization"),
    Gated(5, 256, 24, bfloat16, alone, bits=4, zeros=True, norm="RMSNormalization", bias="both"),
]
#: Those whose products stay apart.
APART = [
    Gated(9, 64, 24),
    Gated(1, 64, 24, reader="node"),
    Gated(2, 64, 24, reader="output"),
    Gated(1, 64, 24, bits=4, reader="output"),
]
#: Those whose normalization has a separate kernel.
NORM_APART = [
    Gated(1, 64, 24, norm="RMSNormalization", reader="node behind the norm"),
    Gated(1, 64, 24, gate=alone, norm="shifted", reader="output of the norm"),
    Gated(1, 64, 24, bits=4, norm="RMSNormalization", reader="output of the norm"),
    Gated(1, 8200, 24, float32, norm="RMSNormalization"),
    Gated(2, 64, 24, norm="RMSNormalization"),
    Gated(2, 300, 24, bits=4, norm="RMSNormalization"),
    Gated(2, 256, 24, bits=8, norm="RMSNormalization"),
    Gated(2, 4096, 24, bits=4, norm="RMSNormalization"),
    Gated(8, 256, 24, gate=alone, bits=4, norm="shifted"),
    Gated(8, 256, 24, float32, alone, bits=4, norm="RMSNormalization"),
    Gated(8, 64, 24, gate=alone, norm="shifted"),
    Gated(9, 64, 24, gate=alone, norm="RMSNormalization"),
    Gated(1, 64, 24, norm="RMSNormalization", reader="output"),
]
#: One whose epilogue has more operands than a kernel takes: a chain computes the rest.
TOO_LONG = Gated(1, 64, 24, gate=three_operands, norm="RMSNormalization", bias="added")


def weights(sample: Sample) -> list[Array]:
    """Return the weights of the products of a sample whose kind is MatMul."""
    products = (node for node in sample.graph.nodes if isinstance(node.op, MatMul))
    return [
        node.distinct_reads[1].data for node in products if node.distinct_reads[1].data is not None
    ]
