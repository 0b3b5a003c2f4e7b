"""Moves past a cast: ONNX lets few operators read floats of 8 bits and integers of 4."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.parser import parse_model

import tercet

#: A move behind a pair of casts, or between two of them, that a pass would like to see elsewhere.
MOVES = {
    "select_early": """(float[8, 2, 16] x) => (float[1, 2, 16] y)
      <int64[1] first = {0}, int64[1] end = {1}> {
        narrow = Cast <to = TO> (x)
        wide = Cast <to = 1> (narrow)
        y = Slice (wide, first, end, first)
      }""",
    "remove_identity": """(float[2, 16] x) => (float[2, 8, 16] y) <int64[3] sizes = {8, 2, 16}> {
        repeated = Expand (x, sizes)
        narrow = Cast <to = TO> (repeated)
        transposed = Transpose <perm = [1, 0, 2]> (narrow)
        y = Cast <to = 1> (transposed)
      }""",
    "compose_moves": """(float[8, 2, 16] x) => (float[2, 8, 16] y)
      <int64[1] last = {-1}, int64[1] before = {-9}, int64[1] axis = {0}> {
        backward = Slice (x, last, before, axis, last)
        narrow = Cast <to = TO> (backward)
        moved = Transpose <perm = [1, 0, 2]> (narrow)
        y = Cast <to = 1> (moved)
      }""",
}


@pytest.mark.parametrize("to", ["FLOAT8E5M2", "FLOAT8E4M3FN", "FLOAT16"])
@pytest.mark.parametrize("name", MOVES)
def test_a_move_stays_where_onnx_takes_its_format(name: str, to: str) -> None:
    text = MOVES[name].replace("TO", str(TensorProto.DataType.Value(to)))
    proto = parse_model(f"""<ir_version: 10, opset_import: ["": 21]> g {text}""")
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        np.testing.assert_array_equal(model.run({"x": x})["y"], session.run(None, {"x": x})[0])
        if to == "FLOAT16":
            assert name in {rewrite.name for rewrite in model.rewrites}
