"""Names of dimensions that stand for several sizes: onnxruntime's results, with a warning."""

import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

import tercet

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'

#: Models whose graph makes use of equal names, and inputs that give such a name several sizes.
MODELS = {
    "across inputs": (
        """g (float[n, 2] x, float[n, 2] z) => (float[k, 2] y)
        <int64[1] zero = {0}>
        { a = ReduceSum(x, zero)  b = ReduceSum(z, zero)  y = Add(a, b) }""",
        {"x": (3, 2), "z": (4, 2)},
        True,
    ),
    "within an input": (
        """g (float[n, n] x) => (float[p, q] y) { y = Transpose(x) }""",
        {"x": (3, 5)},
        True,
    ),
    "broadcast": (
        """g (float[n] x, float[n] z) => (float[k] y) { y = Add(x, z) }""",
        {"x": (1,), "z": (4,)},
        True,
    ),
    "an Expand that looks superfluous": (
        """g (float[n] x, float[n] z) => (float[k] y)
        { s = Shape(z)  y = Expand(x, s) }""",
        {"x": (1,), "z": (5,)},
        True,
    ),
    "a Reshape that looks superfluous": (
        """g (float[n, m] x, float[n, m] z) => (float[a, b] y)
        { s = Shape(z)  y = Reshape(x, s) }""",
        {"x": (2, 6), "z": (3, 4)},
        True,
    ),
    "a Slice that looks superfluous": (
        """g (float[n] x, float[n] z) => (float[k] y)
        <int64[1] zero = {0}, int64[1] one = {1}>
        { s = Shape(z)  y = Slice(x, zero, s, zero, one) }""",
        {"x": (5,), "z": (3,)},
        True,
    ),
    "a condition that looks known": (
        """g (float[n] x, float[n] z) => (float[k] y)
        { a = Shape(x)  b = Shape(z)  e = Equal(a, b)  c = Squeeze(e)
          y = If(c) <then_branch = t () => (float[j] u) { u = Neg(x) },
                     else_branch = f () => (float[j] v) { v = Abs(z) }> }""",
        {"x": (2,), "z": (3,)},
        True,
    ),
    "a difference that looks like nothing": (
        """g (float[n] x, float[n] z) => (float[k] y)
        { a = Shape(x)  b = Shape(z)  d = Sub(b, a)  y = ConstantOfShape(d) }""",
        {"x": (2,), "z": (5,)},
        True,
    ),
    "a quotient that looks like one": (
        """g (float[n, 2] x, float[n] z) => (float[p, q] y)
        { a = Size(x)  b = Size(z)  q = Div(a, b)  m = Constant <value_ints = [-1]> ()
          zero = Constant <value_ints = [0]> ()  r = Unsqueeze(q, zero)
          s = Concat <axis = 0> (m, r)  y = Reshape(x, s) }""",
        {"x": (6, 2), "z": (3,)},
        True,
    ),
    "duplicates that are none": (
        """g (float[n] x, float[n] z) => (float[k] y, float[l] w)
        { a = Shape(x)  b = Shape(z)  y = ConstantOfShape(a)  w = ConstantOfShape(b) }""",
        {"x": (2,), "z": (5,)},
        True,
    ),
    "a loop over the other": (
        """g (float[n] x, float[n] z) => (float[k] y)
        { s = Size(z)  t = Constant <value = bool {1}> ()
          y = Loop(s, t, x) <body = b (int64 i, bool c, float[n] p) => (bool d, float[n] q)
              { d = Identity(c)  q = Neg(p) }> }""",
        {"x": (2,), "z": (3,)},
        True,
    ),
    "question marks": (
        """g (float["?", "?"] x, float["?"] z) => (float["?", "?"] y) { y = Mul(x, z) }""",
        {"x": (2, 3), "z": (3,)},
        False,
    ),
    "an output that is not as declared": (
        """g (float[n, m] x) => (float[n, m] y) { y = Transpose(x) }""",
        {"x": (2, 3)},
        False,
    ),
    "an inner value that is not as declared": (
        """g (float[n, m] x, float[n, m] z) => (float[a, b] y) <float[n, m] h>
        { h = Transpose(x)  s = Shape(z)  y = Reshape(h, s) }""",
        {"x": (2, 3), "z": (2, 3)},
        False,
    ),
}


def model_of(text: str) -> ModelProto:
    parsed = parser.parse_model(HEAD + text.replace('"?"', "question"))
    for info in (*parsed.graph.input, *parsed.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "question":
                dim.dim_param = "?"
    return parsed


@pytest.mark.parametrize("skip", [(), ("inline_bodies", "remove_identity")], ids=["all", "some"])
@pytest.mark.parametrize("name", MODELS)
def test_names_of_sizes_are_not_relied_on(name: str, skip: tuple[str, ...]) -> None:
    text, shapes, warned = MODELS[name]
    model = model_of(text)
    rng = np.random.default_rng(0)
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, feeds)
    with warnings.catch_warnings(record=True) as caught, tercet.load(model, skip=skip) as loaded:
        warnings.simplefilter("always")
        found = loaded.run(feeds)
        loaded.run(feeds)
    assert bool(caught) == warned
    assert len({str(warning.message) for warning in caught}) == len(caught)
    for warning in caught:
        assert isinstance(warning.message, tercet.ModelWarning)
        assert "dimension '" in str(warning.message)
    for value, wanted in zip(found.values(), expected, strict=True):
        assert isinstance(wanted, np.ndarray)
        np.testing.assert_allclose(value, wanted, 1e-6)


def test_sizes_that_agree_are_relied_on_again() -> None:
    text, shapes, _ = MODELS["an Expand that looks superfluous"]
    with tercet.load(model_of(text)) as loaded:
        same = np.ones(4, np.float32)
        assert loaded(same, same)[0].shape == (4,)
        with pytest.warns(tercet.ModelWarning, match="'n' is 1 in input 'x' but 5 in input 'z'"):
            assert loaded(*(np.ones(shape, np.float32) for shape in shapes.values()))[0].size == 5
        assert loaded(same, same)[0].shape == (4,)


def test_inputs_that_the_graph_cannot_take_are_to_blame() -> None:
    model = model_of("g (float[n] x, float[n] z) => (float[k] y) { y = Add(x, z) }")
    with (
        tercet.load(model) as loaded,
        pytest.raises(tercet.InputError, match=r"'n' is 2 in input 'x' but 3 in input 'z'.*Add"),
    ):
        loaded(np.ones(2, np.float32), np.ones(3, np.float32))


def test_frozen_inputs_may_disagree() -> None:
    text, shapes, _ = MODELS["a Reshape that looks superfluous"]
    x, z = (np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes.values())
    with tercet.load(model_of(text), freeze={"x": x, "z": z}) as loaded:
        np.testing.assert_array_equal(loaded()[0], x.reshape(z.shape))
