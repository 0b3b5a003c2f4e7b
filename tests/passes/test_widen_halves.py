"""Floats of 16 bits that stay in float32 between operations."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tercet
from tercet.runtime.control.program import Program
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.plan.weights import WeightStore

from ..randomness import restarting

RNG = restarting(3)

LAYERS = """
    [a] a = Conv <pads=[1,1,1,1]> (x, w)
    [b] b = Sigmoid (a)
    [c] c = Mul (a, b)
    [d] d = Conv <pads=[1,1,1,1]> (c, w)
    [e] e = Add (d, c)
    [f] f = MaxPool <kernel_shape=[2,2], strides=[2,2]> (e)
    [g] g = Concat <axis=1> (f, f)
    [y] y = Conv (g, v)"""
SMALL = "float16[1,2,4,4] x"


def file(
    nodes: str, inputs: str = SMALL, outputs: str = "float16[n,m,h,k] y", **data: np.ndarray
) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, each in data.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(each, name))
    return model


def half(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def widened(model: onnx.ModelProto, **options: Any) -> Graph:
    """Return what is planned on numpy."""
    with tercet.load(model, "numpy", **options) as loaded:
        program = loaded.prepare()
        assert isinstance(program, Program)
        return program.graph.clone()


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def layers() -> onnx.ModelProto:
    return file(LAYERS, "float16[1,4,8,8] x", w=half(4, 4, 3, 3), v=half(3, 8, 1, 1))


def exact(x: np.ndarray, model: onnx.ModelProto) -> np.ndarray:
    """Compute `LAYERS` in float64, by the same file with other types."""
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    for each in wide.graph.initializer:
        data = onnx.numpy_helper.to_array(each).astype(np.float64)
        each.CopyFrom(onnx.numpy_helper.from_array(data, each.name))
    for each in (*wide.graph.input, *wide.graph.output):
        each.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with tercet.load(wide, "numpy") as loaded:
        return loaded.run({"x": x.astype(np.float64)})["y"]


def test_only_results_are_rounded() -> None:
    """So they differ from exact ones by half of a last place, as onnxruntime's do."""
    model, x = layers(), half(1, 4, 8, 8)
    right = exact(x, model)
    with tercet.load(model, "numpy") as loaded:
        found = loaded.run({"x": x})["y"]
    assert found.dtype == float16
    places = np.spacing(np.abs(right.astype(np.float16))).astype(np.float64)
    assert (np.abs(found - right) <= 0.51 * places).all()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    differ = found != session.run(None, {"x": x})[0]
    assert differ.mean() < 0.02, "ties of sums in another order"
    with tercet.load(model, "numpy", widen=False) as loaded:
        rounded = loaded.run({"x": x})["y"]
    assert (np.abs(rounded - right) > places).any()


def test_casts_are_left_at_both_ends() -> None:
    graph = widened(layers())
    assert kinds(graph).count("Cast") == 2
    assert (kinds(graph)[0], kinds(graph)[-1]) == ("Cast", "Cast")
    assert {v.data.dtype for v in graph.constants if v.data is not None} <= {float32}
    named = [node.name for node in graph.nodes if node.kind == "Conv"]
    assert named == ["a", "d", "y"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_either_type(dtype: str) -> None:
    given = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    data = {"w": half(4, 4, 3, 3).astype(given), "v": half(3, 8, 1, 1).astype(given)}
    model = file(LAYERS, f"{dtype}[1,4,8,8] x", f"{dtype}[n,m,h,k] y", **data)
    assert kinds(widened(model)).count("Cast") == 2


@pytest.mark.parametrize(
    "options",
    [{"widen": False}, {"stop_at": 0}, {"precision": "float16"}, {"fold_total": 1000}],
    ids=str,
)
def test_nothing_is_widened_otherwise(options: dict[str, Any]) -> None:
    graph = widened(layers(), **options)
    assert float32 not in {v.tensor.dtype for node in graph.nodes for v in node.outputs}


def test_the_graph_of_the_model_has_the_types_of_the_file() -> None:
    """It is exported, and planned for devices."""
    with tercet.load(layers(), "numpy") as loaded:
        loaded.run({"x": half(1, 4, 8, 8)})
        assert float32 not in {v.tensor.dtype for node in loaded.graph.nodes for v in node.outputs}


def test_programs_share_widened_weights() -> None:
    model = file(LAYERS, "float16[n,4,8,8] x", w=half(4, 4, 3, 3), v=half(3, 8, 1, 1))
    with tercet.load(model, "numpy") as loaded:
        loaded.run({"x": half(1, 4, 8, 8)})
        before = loaded.memory().weights
        loaded.run({"x": half(2, 4, 8, 8)})
        assert loaded.memory().weights == before


def test_only_numpy_asks_for_it() -> None:
    for name, wanted in (("numpy", True), ("cuda", False)):
        assert tercet.backends.settled(tercet.Options(), name).widen is wanted
    for given in (True, False):
        chosen = tercet.backends.settled(tercet.Options(widen=given), "cuda")
        assert chosen.widen is given


def test_a_single_layer_stays() -> None:
    assert kinds(widened(file("y = Conv (x, w)", w=half(3, 2, 3, 3)))) == ["Conv"]


def test_a_cache_stays_in_16_bits() -> None:
    """A Concat copies it: nothing is widened for it alone."""
    model = file(
        """k = MatMul (x, w)
        y = Concat <axis=2> (past, k)
        s = MatMul (x, w)
        z = Relu (s)""",
        f"{SMALL}, float16[1,2,9,4] past",
        "float16[n,m,h,k] y, float16[a,b,c,d] z",
        w=half(4, 4),
    )
    graph = widened(model)
    (joined,) = (node for node in graph.nodes if node.kind == "Concat")
    assert joined.inputs[0] is graph.inputs[1]
    assert joined.output is graph.outputs["y"]


def test_what_the_file_rounds_stays_rounded() -> None:
    model = file(
        """a = Conv (x, w)
        b = Cast <to=10> (r)
        c = Mul (a, b)
        y = Conv (c, w)""",
        f"{SMALL}, float[1,2,4,4] r",
        w=half(2, 2, 1, 1),
    )
    x, r = half(1, 2, 4, 4), RNG.standard_normal((1, 2, 4, 4)).astype(np.float32)
    with tercet.load(model, "numpy") as loaded:
        found, again = (
            loaded.run({"x": x, "r": each})["y"] for each in (r, r.astype(np.float16).astype("f"))
        )
    np.testing.assert_array_equal(found, again)


def test_ties_are_those_of_16_bits() -> None:
    """A search sees what the file has: results rounded to 16 bits, of which several are equal."""
    model = file(
        """a = Conv (x, w)
        b = Conv (a, w)
        i = ArgMax <axis=3> (b)
        s = Shape (b)
        y = Relu (b)""",
        outputs="int64[n,m,h,k] i, int64[l] s, float16[a,b,c,d] y",
        w=half(2, 2, 1, 1),
    )
    graph = widened(model)
    (search,) = (node for node in graph.nodes if node.kind == "ArgMax")
    assert search.operands[0].tensor.dtype == float16
    x = half(1, 2, 4, 4)
    with tercet.load(model, "numpy") as loaded:
        found = loaded.run({"x": x})
    np.testing.assert_array_equal(found["s"], [1, 2, 4, 4])
    assert found["i"].shape == (1, 2, 4, 1)


def test_a_cast_to_float32_reads_what_is_not_rounded() -> None:
    model = file(
        """a = Conv (x, w)
        b = Conv (a, w)
        c = Cast <to=1> (b)
        y = Exp (c)""",
        outputs="float[n,m,h,k] y",
        w=half(2, 2, 1, 1),
    )
    assert kinds(widened(model)).count("Cast") == 1


def test_weights_are_widened_once_and_parts_of_them_for_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table is cut to each length, and loops have a plan for each."""
    model = file(
        """one = Constant <value_ints=[1]> ()
        zero = Constant <value_ints=[0]> ()
        n = Shape <start=1, end=2> (x)
        t = Slice (table, zero, n, one)
        a = MatMul (x, w)
        b = Add (a, t)
        c = MatMul (b, w)
        y = Loop (k, "", c) <body = g (int64 i, bool go, float16[r,s,4] v)
            => (bool more, float16[r,s,4] u) { more = Identity (go) u = Relu (v) }>""",
        "float16[1,n,4] x, int64 k",
        "float16[a,b,c] y",
        w=half(4, 4),
        table=half(1, 9, 4),
    )
    kept: list[dict[tuple[int, ...], weakref.ref[np.ndarray]]] = []
    forgotten: set[int] = set()
    forget = WeightStore.forget

    def forgetting(store: WeightStore, arrays: set[int]) -> None:
        forgotten.update(arrays)
        forget(store, arrays)

    monkeypatch.setattr(WeightStore, "forget", forgetting)
    with tercet.load(model, "numpy", max_plans=1) as loaded:
        for length in (3, 5, 7):
            program = loaded.prepare({"x": (1, length, 4)})
            assert isinstance(program, Program)
            wide = [v.data for v in program.graph.values.values() if v.data is not None]
            wide = [data for data in wide if data.dtype == float32]
            kept.append({data.shape: weakref.ref(data) for data in wide})
            del program, wide
        first, second, third = kept
        assert first[4, 4]() is second[4, 4]() is third[4, 4]() is not None
        assert id(first[4, 4]()) not in forgotten  # what has been packed of it stays
        assert first[1, 3, 4]() is second[1, 5, 4]() is None
        assert third[1, 7, 4]() is not None
