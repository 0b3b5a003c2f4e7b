"""What a ScatterND writes as a whole is read in its place: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.grown import Grown
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, Rewrites, optimise

CONSTANTS = """<int64 nought = {0}, int64 step = {1}, int64[1] front = {0}, int64[1] last = {-1},
    int64[1] far = {9223372036854775807}, int64[1] one = {1}, int64[2, 1] rows = {0, 1},
    int64[2, 1] swapped = {1, 0}>"""


def assignment(rows: str = "rows", first: str = "nought", joined: str = "a, b") -> ModelProto:
    """``y = x.clone(); y[:, :] = u`` as it is traced, with other rows, places or order."""
    body = f"""h = Shape (x)
        s = Gather (h, step)
        end = Add (s, {first})
        places = Range ({first}, end, step)
        seen = Slice (places, front, far, front, one)
        r = Expand ({rows}, h)
        c = Expand (seen, h)
        a = Unsqueeze (r, last)
        b = Unsqueeze (c, last)
        indices = Concat <axis = -1> ({joined})
        y = ScatterND (x, indices, u)"""
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    return parse_model(f"{header} g (float[2,n] x, float[2,n] u) => (y) {CONSTANTS} {{ {body} }}")


def rewritten(proto: ModelProto, size: Dim) -> tuple[Graph, Rewrites]:
    types = {name: TensorType(float32, (2, size)) for name in ("x", "u")}
    with tercet.load(proto) as model:
        graph, log = specialise(model.imported, types), Rewrites()
    optimise(graph, STATIC_PASSES, Options(), evaluate, log)
    return graph, log


@pytest.mark.parametrize("size", [5, Grown(3, 1)], ids=str)
def test_all_places_in_their_order(size: Dim) -> None:
    proto = assignment()
    graph, log = rewritten(proto, size)
    assert log.counts["drop_overwritten"] == 1
    assert list(graph.nodes) == []
    assert graph.outputs["y"].name == "u"
    x, u = np.zeros((2, 7), np.float32), np.arange(14, dtype=np.float32).reshape(2, 7)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_array_equal(session.run(None, {"x": x, "u": u})[0], u)


@pytest.mark.parametrize("size", [2, Grown(3, 1)], ids=str)
@pytest.mark.parametrize(
    "changed", [{"rows": "swapped"}, {"joined": "b, a"}, {"joined": "a, a"}], ids=str
)
def test_other_places_stay(changed: dict[str, str], size: Dim) -> None:
    _, log = rewritten(assignment(**changed), size)
    assert "drop_overwritten" not in log.counts


def test_places_that_do_not_begin_at_the_front() -> None:
    _, log = rewritten(assignment(first="step"), Grown(3, 1))
    assert "drop_overwritten" not in log.counts


def test_sizes_that_only_a_symbol_tells_stay() -> None:
    _, log = rewritten(assignment(), "n")
    assert "drop_overwritten" not in log.counts
