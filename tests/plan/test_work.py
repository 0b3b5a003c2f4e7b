"""What rows have to do: multiplications as PyTorch counts them, bytes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from tercet import load
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.matmul import Einsum
from tercet.runtime.plan.macs import macs
from tercet.runtime.plan.work import Work


def works(model: ModelProto) -> dict[str, Work]:
    """Return the work of the rows of a model's plan, by operators."""
    with load(model, "numpy") as loaded:
        return {row.operators: row.work for row in loaded.placement()}


def node(text: str, opset: int = 23) -> ModelProto:
    """Return a model of these nodes."""
    domains = f'"" : {opset}, "com.microsoft" : 1'
    return parse_model(f"<ir_version: 10, opset_import: [{domains}]> {text}")


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        (
            """g (float[2,8,14,14] x, float[16,4,3,3] w) => (float[2,16,7,7] y) {
                 y = Conv <pads = [1,1,1,1], strides = [2,2], group = 2> (x, w) }""",
            112_896,
        ),
        (
            """g (float[2,8,7,7] x, float[8,4,3,3] w) => (float[2,4,15,15] y) {
                 y = ConvTranspose <strides = [2,2]> (x, w) }""",
            56_448,
        ),
        ("g (float[3,5,7] a, float[3,7,11] b) => (float[3,5,11] y) { y = MatMul(a, b) }", 2310),
        (
            """g (float[6,32] x, float[48,32] w, float[48] b) => (float[6,48] y) {
                 y = Gemm <transB = 1> (x, w, b) }""",
            18_432,
        ),
        (
            """g (float[2,4,10,16] q, float[2,4,20,16] k, float[2,4,20,16] v)
                 => (float[2,4,10,16] y) { y = Attention(q, k, v) }""",
            102_400,
        ),
    ],
    ids=["Conv", "ConvTranspose", "MatMul", "Gemm", "Attention"],
)
def test_multiplications_are_those_that_torch_counts(text: str, flops: int) -> None:
    """`flops` is what torch.utils.flop_counter of torch 2.13 says of the same layer."""
    found = works(node(text)).values()
    assert 2 * sum(work.total_macs or 0 for work in found) == flops


@pytest.mark.parametrize(
    ("equation", "each", "a", "b"),
    [
        ("ij,jk->ik", "ij,jk->ijk", (2, 3), (3, 5)),
        ("ij,jk->ik", "ij,jk->ijk", (2, 1), (3, 5)),
        ("ij,jk->ik", "ij,jk->ijk", (2, 1), (0, 5)),
        ("...i,...i->...", "...i,...i->...i", (4, 1, 3), (1, 5, 3)),
        ("...i,...i->...", "...i,...i->...i", (1, 3), (0, 3)),
    ],
)
def test_products_of_an_einsum(
    equation: str, each: str, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    """There are as many as numpy computes elements if it sums none."""
    graph = Graph("g")
    values = [graph.add_input(n, TensorType(float32, s)) for n, s in (("a", a), ("b", b))]
    made = graph.insert(Einsum(equation=equation), values)
    infer(graph)
    assert macs(made) == np.einsum(each, np.ones(a), np.ones(b)).size


def test_multiplications_have_the_dtype_of_their_factors() -> None:
    integers = node("g (uint8[4,8] a, int8[8,2] b) => (int32[4,2] y) { y = MatMulInteger(a, b) }")
    assert works(integers)["MatMulInteger"].macs == {"int8": 64}
    product = node("g (float[4,8] a, float[8,2] b) => (float[4,2] y) { y = MatMul(a, b) }")
    assert works(product)["MatMul"].macs == {"float32": 64}


def test_bytes_are_inputs_constants_and_results() -> None:
    """Tensors between the nodes of a row cost nothing."""
    fused = works(node("g (float[4,8] x) => (float[4,8] z) { y = Exp(x)  z = Add(y, x) }"))
    assert fused == {"Exp + Add": Work({}, 2 * 4 * 32, 0)}


def test_a_table_is_read_where_it_is_asked_for() -> None:
    table = numpy_helper.from_array(np.zeros((1000, 16), np.float32), "table")
    model = node("g (int64[3] i) => (float[3,16] y) { y = Gather(table, i) }")
    model.graph.initializer.append(table)
    assert works(model)["Gather"] == Work({}, 2 * 3 * 16 * 4 + 3 * 8, 0)


def test_weights_of_experts_are_read_if_they_are_chosen() -> None:
    """Two of eight experts, of one token."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 32, 16), np.float32),
        "w2": rng.standard_normal((8, 16, 32), np.float32),
    }
    model = node("""g (float[1,16] x, float[1,8] p) => (float[1,16] y) {
        y = com.microsoft.MoE <k = 2> (x, p, w1, , w2) }""")
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    found = works(model)["com.microsoft::MoE"]
    assert found.nbytes == 4 * (16 + 8 + 2 * 2 * 32 * 16 + 16)
    assert found.total_macs == 2 * 2 * 32 * 16
