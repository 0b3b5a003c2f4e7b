"""Operators whose dtypes do not follow from their inputs, in the run in float64."""

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.verdict.error_bounds import Judge

#: Bodies that read x or words, by what is left out, fixed or read bit by bit.
MODELS: dict[str, str] = {
    "zeros without a value": "s = Shape(x) z = ConstantOfShape(s) y = Add(z, x)",
    "a sequence without a dtype": """
        e = SequenceEmpty() s = SequenceInsert(e, x) t = SequenceInsert(s, x)
        y = ConcatFromSequence <axis = 0> (t)""",
    "bits of floats": "b = BitCast <to = 6> (x) z = BitCast <to = 1> (b) y = Exp(z)",
    "keys that are floats": """
        r = Round(x)
        k = ai.onnx.ml.LabelEncoder <keys_floats = [0.0, 1.0], values_floats = [0.1, 0.2]> (r)
        y = Add(k, x)""",
    "words that are counted": """
        f = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
            max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1, 2],
            pool_strings = ["a", "b", "c"]> (words)
        y = Add(f, x)""",
}
X = np.array([0.25, 1.3, 0.1], np.float32)


@pytest.mark.parametrize("body", MODELS.values(), ids=MODELS)
def test_all_is_float64(body: str) -> None:
    proto = parse_model(f"""
      <ir_version: 10, opset_import: ["" : 26, "ai.onnx.ml" : 3]>
      g (float[n] x, string[m] words) => (float[k] y) {{ {body} }}""")
    feeds: dict[str, Array] = {"x": X, "words": np.array(["a", "c", "a"], object)}
    with tercet.load(proto, stop_at=0) as loaded:
        y = loaded.run(feeds)["y"]
        judge = Judge(loaded.imported, feeds)
    assert judge.exact["y"].dtype == np.float64
    np.testing.assert_allclose(judge.exact["y"], y, rtol=1e-6)
    assert judge.agreement("y", y, y * np.float32(1.001)).verdict == "MISMATCH"


def test_an_optional_of_a_stated_type() -> None:
    proto = parse_model("""
      <ir_version: 10, opset_import: ["" : 21]>
      g (float[n] x, bool b) => (float[k] y) {
        o = If (b) <
          then_branch = t () => (optional(float[n]) p) { p = Optional(x) },
          else_branch = e () => (optional(float[n]) q) { q = Optional(x) }>
        y = OptionalGetElement(o)
      }""")
    other = proto.graph.node[0].attribute[1].g.node[0]
    del other.input[:]
    kind = proto.graph.input[0].type
    other.attribute.add(name="type", type="TYPE_PROTO").tp.CopyFrom(kind)
    feeds: dict[str, Array] = {"x": X, "b": np.array(True)}
    with tercet.load(proto, stop_at=0) as loaded:
        judge = Judge(loaded.imported, feeds)
    assert judge.exact["y"].dtype == np.float64
