"""Operators that an opset lacks, written out: the results stay what they were."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tercet.importers.onnx import load
from tercet.importers.onnx.writing.expand import expanded
from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu

from ..spec.cases import array_of, cases_by_operator

#: An opset and operators that are younger, but functions of what it has.
OPSET = 17
OPERATORS = ("Gelu", "Mish", "ReduceL2", "ReduceLogSumExp", "RotaryEmbedding", "SwiGLU", "Swish")


@pytest.mark.parametrize("operator", OPERATORS)
def test_results_stay(operator: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    count = 0
    for case in cases_by_operator()["", operator]:
        model = export(expanded(load(case.model).graph, OPSET), opsets={"": OPSET})
        onnx.checker.check_model(model, full_check=True)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_inputs()]
        feeds = dict(zip(names, map(array_of, case.inputs), strict=False))
        for got, want in zip(session.run(None, feeds), case.outputs, strict=True):
            np.testing.assert_allclose(got, array_of(want), rtol=1e-4, atol=1e-5)
        count += 1
    assert count


@pytest.mark.parametrize(
    ("operator", "opset"),
    [
        ("LayerNormalization <axis = 2> (x, w)", 15),
        ("GroupNormalization <num_groups = 2> (x, c, zeros)", 17),
        ("MeanVarianceNormalization <axes = [2]> (x)", 8),
    ],
)
def test_variances_beside_large_means(operator: str, opset: int) -> None:
    """The specification's functions subtract squares, which leaves no digits of them."""
    ort = pytest.importorskip("onnxruntime")
    ones = ", ".join("1" * 16)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        g (float[3,4,16] x) => (y)
        <float[16] w = {{{ones}}}, float[4] c = {{1, 1, 1, 1}}, float[4] zeros = {{0, 0, 0, 0}}>
        {{ y = {operator} }}"""
    )
    older = export(expanded(load(model).graph, opset), opsets={"": opset})
    assert not {node.op_type for node in older.graph.node} & {operator.split()[0]}
    data = 200 + np.random.default_rng(0).standard_normal((3, 4, 16), np.float32)
    session = ort.InferenceSession(older.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": data})
    rows = data.astype(float).reshape((3, 2, 32) if "Group" in operator else data.shape)
    wanted = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
    np.testing.assert_allclose(found, wanted.reshape(data.shape), atol=1e-3)


@pytest.mark.parametrize(("scale", "shift"), [("4,1,1", "5"), ("1", "3,5"), ("3,1", "1,5")])
def test_scales_that_broadcast(scale: str, shift: str) -> None:
    """The specification's function takes one element per element of a row."""
    ort = pytest.importorskip("onnxruntime")
    providers = ["CPUExecutionProvider"]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4,3,5] x, float[{scale}] s, float[{shift}] t) => (y, mean) {{
            y, mean = LayerNormalization <axis = 1> (x, s, t)
        }}"""
    )
    older = export(expanded(load(model).graph, 15), opsets={"": 15})
    rng = np.random.default_rng(0)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in sizes.items()}
    wanted, found = (
        ort.InferenceSession(each.SerializeToString(), providers=providers).run(None, feeds)
        for each in (model, older)
    )
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_what_an_opset_has_stays() -> None:
    graph = Graph("test")
    graph.add_input("x", TensorType(float32, (2,)))
    graph.set_outputs({"y": graph.insert(Relu(), list(graph.inputs), ["y"]).output})
    infer(graph)
    assert expanded(graph, OPSET) is graph


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4)], ids=len)
def test_grids(sizes: tuple[int, ...], batch: int, corners: int) -> None:
    """The specification's function counts to vectors, and drops the axis of a single sample."""
    ort = pytest.importorskip("onnxruntime")
    rank, shape = len(sizes), ", ".join(map(str, (batch, 1, *sizes)))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[{batch}, {rank}, {rank + 1}] x) => (y)
        <int64[{rank + 2}] sizes = {{{shape}}}>
        {{ y = AffineGrid <align_corners = {corners}> (x, sizes) }}"""
    )
    x = np.random.default_rng(0).standard_normal((batch, rank, rank + 1)).astype(np.float32)
    older = export(expanded(load(model).graph, 19), opsets={"": 19})
    providers = ["CPUExecutionProvider"]
    found, wanted = (
        ort.InferenceSession(each.SerializeToString(), providers=providers).run(None, {"x": x})[0]
        for each in (older, model)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
