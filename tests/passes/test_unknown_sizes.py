"""Unknown sizes are equal where one follows from the other, and else may differ."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import tercet
from tercet.runtime.ir.fresh_names import sizes_in
from tercet.runtime.ir.types import TensorType

from .test_symbolic_sizes import TEXT

#: Products of pairs of three tensors, which passes gather from a Concat of these.
PAIRS = """p = Mul (a, c)  q = Mul (b, c)  r = Mul (a, b)  s = Mul (c, c)
    t = Mul (c, b)  u = Mul (c, a)  y = Concat <axis = 1> (p, q, r, s, t, u)"""
MODELS = {
    "of inputs": f"g (float[i,4] a, float[j,4] b, float[k,4] c) => (float[m,n] y) {{ {PAIRS} }}",
    "computed": f"""g (float[i,4] x, bool[j] f, float[k,4] b, float[l,4] z) => (float[m,n] y)
    {{ a = Compress <axis = 0> (x, f)  c = Relu (z)  {PAIRS} }}""",
    "sums of heads": """g (float[i,64] x, float[j,4,5,16] z) => (float[m,n] y)
    <int64[4] h = {-1,5,4,16}, int64[2] f = {-1,64}>
    { a = Reshape (x, h)  t = Transpose <perm = [0,2,1,3]> (a)  s = Add (t, z)
      o = Transpose <perm = [0,2,1,3]> (s)  y = Reshape (o, f) }""",
}
FEEDS: dict[str, dict[str, tuple[int, ...]]] = {
    "of inputs": {"a": (1, 4), "b": (3, 4), "c": (3, 4)},
    "computed": {"x": (3, 4), "b": (3, 4), "z": (3, 4)},
    "sums of heads": {"x": (10, 64), "z": (1, 4, 5, 16)},
}


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    for given in (*model.graph.input, *model.graph.output):
        for dim in given.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.Clear()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_sizes_may_differ(name: str) -> None:
    text = f'<ir_version: 10, opset_import: ["" : 20]> {MODELS[name]}'
    model, rng = without_names(parser.parse_model(text)), np.random.default_rng(3)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in FEEDS[name].items()}
    if name == "computed":
        feeds["f"] = np.array([False, True, False])
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    with tercet.load(model) as held:
        np.testing.assert_allclose(held.run(feeds)["y"], np.asarray(expected), atol=1e-6)


def test_an_encoder_of_no_names_gets_its_attention() -> None:
    model, rng = without_names(parser.parse_model(TEXT)), np.random.default_rng(1)
    shapes = {"table": (30, 64), "positions": (1, 48, 64)}
    shapes |= dict.fromkeys(("wq", "wk", "wv", "wo"), (64, 64))
    for name, shape in shapes.items():
        data = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with tercet.load(model) as held:
        kinds = [node.kind for node in held.graph.nodes]
        assert kinds.count("Attention") == 1
        assert kinds.count("MatMul") == 2
        for length in (1, 5, 48):
            ids = np.arange(length)[None] % 30
            (expected,), found = session.run(None, {"ids": ids}), held.run({"ids": ids})
            np.testing.assert_allclose(found["y"], np.asarray(expected), atol=1e-5)


def test_names_are_gone_behind_the_passes() -> None:
    """A file may have the same names."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
      g (float[a,b,4] x, float[c] z) => (float[m,n,o] y, float[p] i)
      { r = Relu (x)  y = Add (r, x)  t = NonZero (z)  f = Cast <to = 1> (t)  i = Relu (f) }"""
    model = without_names(parser.parse_model(text))
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "?1"
    with tercet.load(model) as held:
        assert sizes_in(held.graph) == {None, 1, 4, "?1"}
        (y, i) = (held.graph.outputs[name].type for name in ("y", "i"))
        assert isinstance(y, TensorType)
        assert isinstance(i, TensorType)
        assert y.shape == (None, None, 4)
        assert i.shape == (1, None)
