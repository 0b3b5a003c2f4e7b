"""Products with constant weights of bytes are exact, however many terms they have."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet

from ..randomness import restarting

RNG = restarting(0)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("terms", [1, 256, 257, 1024, 1300])
@pytest.mark.parametrize("rows", [1, 3, 8, 40, 300])
def test_sums_are_exact(rows: int, terms: int, shifted: bool) -> None:
    """Against float64, with bytes at the ends of their ranges, which float32 alone would round."""
    columns = 1050
    a = RNG.choice(np.array([0, 1, 254, 255], np.uint8), (rows, terms))
    b = RNG.choice(np.array([-128, -127, 126, 127], np.int8), (terms, columns))
    b[:, ::2] = 127
    held = {"b": b}
    if shifted:
        held["a_zero"] = np.array(3, np.uint8)
        held["b_zero"] = RNG.integers(-128, 128, columns).astype(np.int8)
    names = ["a", "b", *(["a_zero", "b_zero"] if shifted else [])]
    node = helper.make_node("MatMulInteger", names, ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (rows, columns))],
        [numpy_helper.from_array(data, name) for name, data in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with tercet.load(model) as loaded:
        (found,) = loaded.run({"a": a}).values()
    left = a.astype(np.float64) - held.get("a_zero", np.uint8(0))
    right = b.astype(np.float64) - held.get("b_zero", np.int8(0))
    np.testing.assert_array_equal(found, left @ right)
