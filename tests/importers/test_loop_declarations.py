"""Bodies of loops whose iteration number and condition are declared as lists of one element."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import tercet


@pytest.mark.filterwarnings("error::tercet.ModelWarning")
@pytest.mark.parametrize("stacked", ["i", "c"])
@pytest.mark.parametrize(
    ("number", "condition", "given"),
    [("", "", ""), ("[1]", "[1]", ""), ("[1]", "", ""), ("", "[1]", ""), ("[1]", "[1]", "go")],
)
def test_the_number_has_the_rank_that_the_body_declares(
    number: str, condition: str, given: str, stacked: str
) -> None:
    kind = {"i": "int64", "c": "bool"}[stacked]
    text = f"""<ir_version: 9, opset_import: ["": 19]>
      g (int64 m, bool{condition} go, float[3] x) => (float[3] y, {kind} kept) {{
        y, kept = Loop (m, {given}, x) <body = b (int64{number} i, bool{condition} c, float[3] v)
            => (bool{condition} more, float[3] w, {kind} each) {{
          more = Identity (c)
          f = Cast <to = 1> (i)
          w = Add (v, f)
          each = Identity ({stacked})
        }}>
      }}"""
    model = parser.parse_model(text)
    (body,) = (each.g for each in model.graph.node[0].attribute)
    for value in (model.graph.output[1], body.output[2]):
        value.type.tensor_type.ClearField("shape")
    feeds = {
        "m": np.array(3),
        "go": np.ones((1,) if condition else (), bool),
        "x": np.zeros(3, np.float32),
    }
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = [np.asarray(each) for each in session.run(None, feeds)]
    for rewrites in (None, 0):
        with tercet.load(model, stop_at=rewrites) as loaded:
            found = list(loaded.run(feeds).values())
        for mine, wanted in zip(found, expected, strict=True):
            assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(mine, wanted)


@pytest.mark.filterwarnings("ignore::tercet.ModelWarning")
@pytest.mark.parametrize("lie", ["[0]", "[5]", "[2, 1]"])
def test_other_shapes_are_mistakes(lie: str) -> None:
    """A number and a condition that are declared so are scalars, as if nothing was declared."""
    text = f"""<ir_version: 9, opset_import: ["": 19]>
      g (int64 m) => (numbers, kept) {{
        numbers, kept = Loop (m, ) <body = b (int64{lie} i, bool{lie} c) => (more, each, true) {{
          more = Identity (c)
          true = Identity (c)
          each = Identity (i)
        }}>
      }}"""
    with tercet.load(parser.parse_model(text)) as loaded:
        numbers, kept = loaded(np.array(3))
    np.testing.assert_array_equal(numbers, [0, 1, 2], strict=True)
    np.testing.assert_array_equal(kept, [True] * 3, strict=True)
