"""Normalizations between two products of few rows, of which the one in front leaves squares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops import elementwise as ops
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.packed import MatMulNBits

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare, results_of

COMPILES = {"gemm/gemv.cu", "gemm/gemv_packed.cu"}


@dataclass(frozen=True)
class Chain:
    """A product of few rows, a sum with a residual, a normalization, and one or two products.

    Attributes:
        rows: number of rows.
        sizes: terms of the product in front, its columns, and those of the products behind.
        dtype: of all.
        bits: of the weights in front and behind; 16 for floats.
        zeros: whether packed weights have zero points.
        gated: whether two products are behind, combined as in SwiGLU.
        residual: whether something is added in front of the normalization.
        scaled: whether products have a bias, an activation and factors.
        reader: whether something else reads the rows: as they are, "normalized", or not at all.
        norm: the operator.
        magnitude: of the rows.
    """

    rows: int
    sizes: tuple[int, int, int]
    dtype: Any = float16
    bits: tuple[int, int] = (4, 4)
    zeros: bool = False
    gated: bool = False
    residual: bool = True
    reader: str = "as they are"
    norm: type[RMSNormalization | LayerNormalization] = RMSNormalization
    magnitude: float = 1.0
    scaled: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        parts = (f"{self.rows} rows {sizes} {self.dtype.name} {self.bits}", "zeros" * self.zeros)
        more = (
            "gated" * self.gated,
            "" if self.residual else "plain",
            "scaled" * self.scaled,
            self.reader,
            self.norm.__name__,
        )
        return " ".join(part for part in (*parts, *more, f"{self.magnitude:g}") if part)

    def sample(self) -> Sample:
        """Return it as a graph with feeds."""
        graph, (k, n, last) = Graph("chain"), self.sizes
        feeds = {"x": normal(self.rows, k), "r": normal(self.rows, n + 1)[:, :n]}
        data = {name: (self.magnitude * each).astype(self.dtype) for name, each in feeds.items()}
        x, r = (graph.add_input(name, TensorType(d.dtype, d.shape)) for name, d in data.items())
        first = self._scaled(graph, self._product(graph, x, k, n, 0))
        rows = graph.insert(ops.Add(), [first, r]).output if self.residual else first
        infer(graph)
        factors = (20 * normal(n)[:n]).astype(self.dtype)
        y = graph.insert(self.norm(epsilon=1e-12), [rows, graph.constant(factors)]).output
        infer(graph)
        behind = [self._product(graph, y, n, last, i) for i in (1, 2)[: 1 + self.gated]]
        result = behind[0] if self.gated else self._scaled(graph, behind[0])
        if self.gated:
            gate = graph.insert(ops.Swish(), [behind[0]]).output
            result = graph.insert(ops.Mul(), [gate, behind[1]]).output
        outputs = {"y": result}
        if self.reader:
            read = y if self.reader == "normalized" else rows
            outputs["read"] = graph.insert(ops.Neg(), [read]).output
        graph.set_outputs(outputs)
        infer(graph)
        return Sample(graph, data)

    def _scaled(self, graph: Graph, x: Value) -> Value:
        """Return swish(x + bias) * factors if `scaled`, else x."""
        if not self.scaled:
            return x
        infer(graph)
        n = x.tensor.dims[-1]
        bias, factors = (graph.constant(normal(n + i)[:n].astype(self.dtype)) for i in (1, 2))
        x = graph.insert(ops.Add(), [x, bias]).output
        x = graph.insert(ops.Swish(), [x]).output
        return graph.insert(ops.Mul(), [x, factors]).output

    def _product(self, graph: Graph, x: Value, k: int, n: int, number: int) -> Value:
        bits, block = self.bits[number > 0], 32
        if bits == 16:
            weights = normal(k, n + number)[:, :n] / np.float32(k**0.5)
            return graph.insert(MatMul(), [x, graph.constant(weights.astype(self.dtype))]).output
        random, blocks = np.random.default_rng(number), -(-k // block)
        b = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        spread = np.abs(normal(n * blocks)) / np.float32(2 ** (bits - 1) * k**0.5)
        zeros = random.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
        inputs = [x, graph.constant(b), graph.constant(spread.astype(self.dtype))]
        inputs += [graph.constant(zeros)] * self.zeros
        op = MatMulNBits(K=k, N=n, bits=bits, block_size=block)
        return graph.insert(op, inputs).output


#: Those of which no kernel normalizes rows.
TOGETHER = (
    Chain(1, (256, 64, 24), bits=(4, 16)),
    Chain(1, (96, 256, 40), bits=(16, 16), gated=True),
    Chain(8, (512, 256, 24), bits=(4, 16), zeros=True),
    Chain(3, (128, 96, 40), gated=True, bits=(8, 16)),
    Chain(5, (128, 2080, 9), bfloat16, bits=(4, 16)),
    Chain(2, (64, 96, 24), bits=(16, 16), gated=True),
    Chain(1, (64, 4096, 17), bits=(16, 16), residual=False),
    Chain(8, (64, 128, 2200), bfloat16, bits=(4, 16)),
    Chain(7, (64, 160, 24), bits=(16, 16), reader=""),
    Chain(6, (1024, 32, 24), bits=(2, 16), reader="", residual=False),
    Chain(4, (256, 128, 24), bits=(4, 16), magnitude=1e-2),
    Chain(4, (256, 128, 24), bits=(4, 16), magnitude=2e3),
    Chain(4, (256, 128, 24), bits=(16, 16), scaled=True),
    Chain(8, (64, 2176, 24), zeros=True),
    Chain(3, (128, 96, 40), gated=True),
    Chain(5, (128, 160, 24), bfloat16, bits=(4, 8), reader=""),
)
#: The same on Hopper, of more than a few rows.
MORE = (
    Chain(16, (512, 256, 128)),
    Chain(32, (1024, 512, 64), gated=True, zeros=True),
    Chain(33, (512, 384, 192), bfloat16),
    Chain(64, (256, 128, 256), reader=""),
    Chain(9, (2048, 128, 64), residual=False),
    Chain(24, (768, 768, 64), bits=(16, 16), scaled=True),
)
#: Those with a normalization in a kernel of its own, or in the kernel behind.
APART = (
    Chain(9, (256, 64, 24)),
    Chain(2, (256, 64, 24), bits=(4, 16), reader="normalized"),
    Chain(2, (256, 64, 24), float32, bits=(4, 16)),
    Chain(2, (256, 72, 24), bits=(4, 16)),
    Chain(2, (256, 64, 24), bits=(4, 16), norm=LayerNormalization),
    Chain(1, (256, 64, 24)),
    Chain(8, (256, 256, 24)),
)


def titles(chain: Chain) -> list[str]:
    return [launch.title for launch in launches(planned(chain.sample().graph))]


@pytest.mark.parametrize("chain", TOGETHER, ids=str)
def test_no_kernel_normalizes(chain: Chain) -> None:
    first, second, *others = titles(chain)
    assert "measured" in first
    assert "after RMSNormalization in front" in second
    assert len(others) == bool(chain.reader)


@pytest.mark.parametrize("chain", MORE, ids=str)
def test_no_kernel_normalizes_more_rows(chain: Chain) -> None:
    first, second, *others = titles(chain)
    assert "measured" in first
    assert second.startswith("swap_ab after a norm in front")
    assert len(others) == bool(chain.reader)


@pytest.mark.parametrize("chain", APART, ids=str)
def test_others_are_normalized_by_a_kernel(chain: Chain) -> None:
    assert not any("measured" in title or "in front" in title for title in titles(chain))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([chain.sample().graph for chain in TOGETHER], target, cache, COMPILES)


def test_those_of_more_rows_compile(cache: Path) -> None:
    files = {"gemm/swap_ab.cu", "gemm/mixed_input.cu"}
    assert_plans_compile([chain.sample().graph for chain in MORE], H200, cache, files)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("chain", [*TOGETHER, *APART], ids=str)
def test_kernels(chain: Chain, emulated: CudaBackend) -> None:
    compare(chain.sample(), emulated, error=ERROR[chain.dtype])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("chain", MORE, ids=str)
def test_kernels_of_more_rows(chain: Chain, hopper: CudaBackend) -> None:
    compare(chain.sample(), hopper, error=ERROR[chain.dtype])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("magnitude", [1e-3, 1e-2, 1.0, 1e3, 6e3])
@pytest.mark.parametrize("bits", [(4, 16), (16, 16)], ids=str)
def test_rows_of_any_magnitude_keep_their_digits(
    bits: tuple[int, int], magnitude: float, emulated: CudaBackend
) -> None:
    """Factors are at most one before rows are divided: nothing overflows, and little is lost."""
    sample = Chain(4, (256, 512, 96), bits=bits, magnitude=magnitude).sample()
    assert "measured" in launches(planned(sample.graph))[0].title
    y, read = results_of(sample, [emulated])
    (norm,) = (node for node in sample.graph.nodes if node.kind == "RMSNormalization")
    (product,) = (node for node in norm.output.consumers if node.kind == "MatMul")
    factors, weights = (node.operands[1].data for node in (norm, product))
    assert factors is not None
    assert weights is not None
    rows = -read.astype(np.float64)
    rows /= np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-12)
    exact = (rows * factors.astype(np.float64)) @ weights.astype(np.float64)
    off = np.linalg.norm(y - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert off.max() < 6e-4
