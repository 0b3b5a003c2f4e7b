"""Operators of com.microsoft in bodies and functions, and results that share a name or a value."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import tercet

from .samples import Sample, model_of

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1{more}]>\n'
ENDS = "g (float[n,3,8] x, float[8] b) => "
SKIP = "com.microsoft.SkipLayerNormalization (x, x, b)"
RMS = "com.microsoft.SkipSimplifiedLayerNormalization (x, x, b)"
HEADS = "com.microsoft.MultiHeadAttention <num_heads = 2>"
PLACES = {
    "branches": """g (float[n,3,8] x, float[8] b, bool c) => (float[n,3,8] y) {
        y = If (c) <
            then_branch = t () => (float[n,3,8] u) { u = com.microsoft.BiasGelu (x, b) },
            else_branch = e () => (float[n,3,8] v) { v = HEADS (x, x, x) }
        >
    }""",
    "a body whose shapes are found out later": """
    g (float[n,3,8] x, float[8] b, int64 k, bool c) => (y) {
        y = Loop (k, c, x) <
            body = t (int64 i, bool ci, float[n,3,8] s) => (bool co, float[n,3,8] u) {
                co = Identity (ci)
                q = com.microsoft.BiasGelu (s, b)
                u = HEADS (q, s, s)
            }
        >
    }""",
    "a function that is called twice": ENDS
    + """(float[n,3,8] y) { q = f.F (x, b) y = f.F (q, b) }
    <domain: "f", opset_import: ["" : 17, "com.microsoft": 1]> F (x, b) => (y) {
        t = com.microsoft.FastGelu (x, b)
        y = com.microsoft.QuickGelu <alpha = 2.0> (t)
    }""",
    "a result that others read": ENDS + "(y, z, s) { y,,,s = SKIP z = Identity (y) }",
    "an output that is not read": ENDS + "(y) { y,,,s = SKIP }",
    "an output that nothing computes or reads": ENDS + f"(y, s) {{ y,mean,deviation,s = {RMS} }}",
    "states that are the inputs' own": """
    g (float[2,2,4,4] k, float[2,3,8] x) => (y, p) { y, p = HEADS (x, k, k) }""",
}


@pytest.mark.parametrize("passes", [True, False], ids=["passes", "as it is"])
@pytest.mark.parametrize("name", PLACES)
def test_places(name: str, passes: bool) -> None:
    text = HEAD.format(more=', "f": 1' if "f.F" in PLACES[name] else "") + PLACES[name]
    proto = parser.parse_model(text.replace("SKIP", SKIP).replace("HEADS", HEADS))
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "x": rng.standard_normal((2, 3, 8)).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
        "k": np.array(3),
        "c": np.array(name.startswith("a body")),
    }
    if name.startswith("states"):
        values["k"] = rng.standard_normal((2, 2, 4, 4)).astype(np.float32)
    feeds = {each.name: values[each.name] for each in proto.graph.input}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    options: dict[str, Any] = {} if passes else {"stop_at": 0}
    with tercet.load(proto, **options) as model:
        found = model.run(feeds)
    assert list(found) == [each.name for each in session.get_outputs()]
    for mine, theirs in zip(found.values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine, np.asarray(theirs), 1e-5, 1e-5)


def test_an_output_that_nothing_computes_is_an_error_where_it_is_read() -> None:
    text = HEAD.format(more="") + ENDS + f"(y) {{ y,mean = {RMS} z = Identity (mean) }}"
    with pytest.raises(tercet.UnsupportedError, match=r"asks for output 1 \('mean'\)"):
        tercet.load(parser.parse_model(text))


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_a_size_of_0_is_no_copied_size(symbolic: bool) -> None:
    """The softmax is that of a matrix [0, 4], whose second size is not the tensor's."""
    x, one, zero = np.zeros((2, 0, 4), np.uint8), np.array(1, np.float32), np.array(0, np.uint8)
    inputs = {"x": x, "xs": one, "xz": zero, "ys": one, "yz": zero}
    sample = Sample("QLinearSoftmax", inputs, {"axis": 2, "opset": 12})
    with tercet.load(model_of(sample, symbolic=symbolic)) as model:
        assert model.run(inputs)["y0"].shape == x.shape
