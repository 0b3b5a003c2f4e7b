"""Loops whose conditions count, as TensorFlow writes them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..control.deciding import AnyBackend, DecidingDevice

HEADER = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 3] x, int64 k) => (float[s, 3] y) {
"""
#: Before the loop, its limit, and the condition from the counter `j` and the iteration `i`.
CASES = {
    "while i < n": ("", "l", "j = Add (c, one) t = Less (j, four)", 4),
    "through casts, and twice": (
        "",
        "l",
        """j = Add (c, one) f = Cast <to: int = 1> (j) p = Less (f, four_f)
           h = Cast <to: int = 1> (i) q = Less (h, four_f) t = And (p, q)""",
        4,
    ),
    "without its own limit": ("", "", "j = Add (c, one) t = LessOrEqual (j, four)", 5),
    "down": ("", "", "j = Sub (c, one) m = Neg (four) t = Greater (j, m)", 4),
    "the limit ends it": ("", "three", "j = Add (c, one) t = Less (j, four)", 3),
    "in twos": ("", "l", "j = Add (c, two) t = Less (j, four)", 2),
    "as long as a tensor": (
        "e = Shape <start: int = 0, end: int = 1> (x) r = Squeeze (e)",
        "",
        "j = Add (c, one) t = Less (j, r)",
        6,
    ),
    "as the data say": ("", "l", "j = Add (c, k) t = Less (j, four)", None),
    "for ever, but for the limit": ("", "l", "j = Identity (c) t = Less (j, four)", 9),
}


def looping(before: str, limit: str, condition: str) -> ModelProto:
    """A loop that adds up rows; its body reads the row of the counter."""
    return parse_model(
        HEADER
        + f"""
        one = Constant <value_int: int = 1> () two = Constant <value_int: int = 2> ()
        three = Constant <value_int: int = 3> () four = Constant <value_int: int = 4> ()
        four_f = Constant <value_float: float = 4.0> () l = Constant <value_int: int = 9> ()
        start = Constant <value_int: int = 0> () yes = Less (start, four) {before}
        sum = Constant <value_floats: floats = [0.0, 0.0, 0.0]> ()
        last, total, y = Loop ({limit}, yes, start, sum) <body = b (
            int64 i, bool going, int64 c, float[3] z
        ) => (bool t, int64 j, float[3] v, float[3] w) {{
            row = Gather <axis: int = 0> (x, i) v = Add (z, row) w = Tanh (v) {condition}
        }}> }}"""
    )


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_iterations(case: str) -> None:
    *parts, count = CASES[case]
    proto = looping(*map(str, parts))
    x = np.random.default_rng(0).standard_normal((9 if count in (None, 9) else 6, 3))
    feeds = {"x": x.astype(np.float32), "k": np.array(1)}
    (result,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    want = np.asarray(result)
    assert len(want) == (count or 4)
    with tercet.load(proto) as model:
        np.testing.assert_allclose(model.run(feeds)["y"], want, 1e-6)
    backends = AnyBackend(DecidingDevice()), NumpyBackend()
    with Model(load(proto).graph, backends, Options(), evaluate) as deciding:
        np.testing.assert_allclose(deciding.run(feeds)["y"], want, 1e-6)
        is_hosted = [row.reason for row in deciding.placement() if row.backend == "host"]
    assert bool(is_hosted) == (count is None)


def test_a_condition_of_many_nodes() -> None:
    """No recursion is as deep as the body."""
    names = [f"k{i}" for i in range(1200)]
    added = " ".join(f"{to} = Add ({of}, start)" for of, to in pairwise(["j", *names]))
    proto = looping("", "l", f"j = Add (c, one) {added} t = Less ({names[-1]}, four)")
    with tercet.load(proto) as model:
        (loop,) = (node for node in model.graph.nodes if node.kind == "Loop")
        assert loop.inputs[0] is not None
        assert loop.inputs[0].data == 4


@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_counters_without_a_sign_wrap_around(dtype: str) -> None:
    proto = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)
        <{dtype} five = {{5}}, int64 nine = {{9}}, bool yes = {{1}}> {{
            last, y = Loop (nine, yes, five, x) <body = b (int64 i, bool go, {dtype} c, float[2] z)
            => (bool t, {dtype} j, float[2] v) <{dtype} two = {{2}}, {dtype} many = {{100}}> {{
                j = Sub (c, two) t = Less (j, many) v = Add (z, z)
            }}>
        }}"""
    )
    feeds = {"x": np.ones(2, np.float32)}
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    with tercet.load(proto) as model:
        np.testing.assert_array_equal(model.run(feeds)["y"], want)
        (loop,) = model.graph.nodes
        count = loop.inputs[0]
        assert count is not None
        assert count.data == 3
