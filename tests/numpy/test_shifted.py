"""Convolutions by one product per tap: right everywhere, and taken where windows are padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import tercet
from tercet.backends.numpy.engine import thread_pool
from tercet.backends.numpy.ops import conv as products
from tercet.backends.numpy.windows import shifted

from .graphs import Array, model, node, random

#: Image, filters [m, *kernel], and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, list[int]]]] = {
    "atrous": ((1, 24, 9, 9), (40, 3, 3), {"dilations": [5, 5], "pads": [5] * 4}),
    "only the middle": ((1, 24, 7, 7), (40, 3, 3), {"dilations": [9, 9], "pads": [9] * 4}),
    "no tap meets it": ((1, 4, 3, 3), (33, 2, 2), {"dilations": [30, 30], "pads": [15] * 4}),
    "strides": ((2, 8, 11, 10), (70, 3, 2), {"strides": [2, 3], "pads": [4, 1, 2, 5]}),
    "no pads": ((1, 8, 6, 7), (64, 3, 3), {}),
    "line": ((2, 16, 30), (64, 5), {"dilations": [11], "pads": [22, 22]}),
    "volume": ((1, 6, 4, 5, 3), (66, 3, 3, 3), {"dilations": [3, 2, 1], "pads": [3, 2, 1] * 2}),
    "one pixel": ((1, 8, 1, 1), (64, 3, 3), {"pads": [1] * 4}),
}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record tapes for so many threads, however little there is to do."""
    monkeypatch.setattr(thread_pool, "size", lambda: request.param)
    monkeypatch.setattr(shifted, "blocks_worth", lambda nanoseconds, workers: workers)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_as_onnxruntime(name: str, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MOSTLY", float("inf"))
    monkeypatch.setattr(products, "WORTHWHILE", 0.0)
    shape, (filters, *kernel), attributes = CASES[name]
    constants = {"w": random(filters, shape[1], *kernel)}
    constants |= {"b": random(filters)} if has_bias else {}
    x = random(*shape)
    nodes = [node("Conv", ["x", *constants], "c", **attributes), node("Relu", "c", "y")]
    proto = model(nodes, {"x": x}, constants)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted: Any = session.run(None, {"x": x})[0]
    with tercet.load(proto) as loaded:
        assert [row.kernel for row in loaded.placement() if "taps" in row.kernel]
        for _ in range(2):
            found: Array = loaded.run({"x": x})["y"]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("dilation", "is_taken"), [(1, False), (2, False), (12, True), (36, True)])
def test_taken_where_windows_are_padding(dilation: int, is_taken: bool) -> None:
    x, w = random(1, 256, 14, 14), random(64, 256, 3, 3)
    nodes = [node("Conv", "xw", "y", pads=[dilation] * 4, dilations=[dilation] * 2)]
    with tercet.load(model(nodes, {"x": x}, {"w": w})) as loaded:
        assert ["taps" in row.kernel for row in loaded.placement()] == [is_taken]
