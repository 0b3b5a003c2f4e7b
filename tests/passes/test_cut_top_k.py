"""Sorts of which only the first elements are read."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet

FIRST = "p = Slice (v, zero, three, last) q = Slice (i, zero, two, last)"
CASES = {
    "slices": (FIRST, 3),
    "from the second": ("p = Slice (v, one, three, last) q = Slice (i, one, two, last)", 3),
    "every other": ("p = Slice (v, zero, five, last, two) q = Slice (i, zero, two, last)", 5),
    "one of them": ("p = Gather <axis = 1> (v, three) q = Gather <axis = -1> (i, zero)", 4),
    "only places": ("p = Identity (x) q = Slice (i, zero, two, last)", 2),
    "the end": ("p = Slice (v, zero, three, last) q = Slice (i, back, many, last)", 9),
    "rows": ("p = Slice (v, zero, three, first) q = Slice (i, zero, two, last)", 9),
    "from the end": ("p = Slice (v, zero, back, last) q = Slice (i, zero, two, last)", 9),
    "all, too": (FIRST + " r = Neg (v)", 9),
}


@pytest.mark.parametrize("order", ["", "largest = 0", "sorted = 0"])
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, order: str) -> None:
    nodes, count = CASES[case]
    numbers = {"zero": 0, "one": 1, "two": 2, "three": 3, "five": 5, "last": 1, "back": -2}
    numbers |= {"first": 0, "many": 99, "all": 9}
    made = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items())
    more = ", float[a, b] r" if " r = " in nodes else ""
    proto = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4, 9] x) => (float[c, d] p, int64[e, f] q{more}) <{made}> {{
            v, i = TopK <{", ".join(filter(None, ["axis = -1", order]))}> (x, all) {nodes}
        }}"""
    )
    x = np.random.default_rng(0).integers(-3, 4, (4, 9)).astype(np.float32)  # some are equal
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with tercet.load(proto) as model:
        found = model.run({"x": x})
        (top,) = (node for node in model.graph.nodes if node.kind == "TopK")
        k = top.operands[1].data
        assert k is not None
        assert k.item() == (9 if order.startswith("sorted") else count)
    if not order.startswith("sorted"):  # an order of equal elements is promised for sorted ones
        for one, other in zip(found.values(), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
