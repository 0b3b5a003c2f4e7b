"""An error of the importer is in every graph that is made of the file: the file itself shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tercet import bisect, compare_layers
from tercet.importers.onnx.reading.external import ExternalData
from tercet.importers.onnx.source.raw import RawNode
from tercet.importers.onnx.upgrading.rewrite import UPGRADES, NodeSite
from tercet.runtime.ops.elementwise import Div

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

CLIPPED = """<ir_version: 4, opset_import: ["" : 10]>
g (float[8] x) => (float[8] y) {
  a = Neg(x)
  [clip] c = Clip <min = -1.0, max = 2.0> (a)
  y = Neg(c)
}"""
FEEDS = {"x": np.arange(-4, 4, dtype=np.float32)}


@pytest.mark.parametrize("runners", [("onnxruntime", "numpy"), ("numpy", "onnxruntime")])
@pytest.mark.parametrize("way", [{}, {"optimise": False}, {"cumulative": True}], ids=str)
def test_layers_tell_that_importing_is_wrong(
    runners: tuple[str, str], way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.parser.parse_model(CLIPPED)
    right = compare_layers(proto, runners, FEEDS, **way)
    assert right.ok
    assert right.imported == ()
    until, clip = UPGRADES["", "Clip"]

    def without_bounds(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
        clip(node, opset, site)
        kept = {n: value for n, value in node.attributes.items() if n not in ("min", "max")}
        return [node.change(attributes=kept)]

    monkeypatch.setitem(UPGRADES, ("", "Clip"), (until, without_bounds))
    proto.doc_string = "another file, which no cache has"
    wrong = compare_layers(proto, runners, FEEDS, **way)
    assert wrong.first is None
    assert [finding.agreement.output for finding in wrong.imported] == ["y"]
    assert wrong.verdict == "MISMATCH"
    assert "importing changes y, first in clip: " in str(wrong)
    assert wrong.to_dict()["imported"][0]["verdict"] == "wrong"
    found = bisect(proto, runners, FEEDS)
    assert (found.fault, found.verdict, found.nodes) == ("import", "MISMATCH", ("clip",))
    assert "importing changes y, first in clip" in str(found)
    # a program runs both, and float64 what was read, which is wrong here
    assert "from float64" not in str(found) + str(wrong)


CANCELLED = """<ir_version: 4, opset_import: ["" : 10]>
g (float[4] x) => (float[4] y)
<float[4] w = {1.1, 2.2, 3.3, 4.4}, float[4] b = {-2.2, -4.4, -6.6, -8.8}> {
  a = Neg (x)
  [clip] c = Clip <min = -1.0, max = 2.0> (a)
  d = Mul (c, w)
  y = Add (d, b)
}"""


def test_nodes_that_give_sequences_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def along_rows(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
        return [node.change(attributes={**node.attributes, "axis": 0})]

    monkeypatch.setitem(UPGRADES, ("", "SplitToSequence"), (12, along_rows))
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 11]>
        g (float[2,2] x) => (float[m,n] y) {
            [cut] s = SplitToSequence <axis = 1> (x)
            [joined] y = ConcatFromSequence <axis = 0> (s)
        }""")
    found = compare_layers(proto, ["numpy", "onnxruntime"])
    assert found.imported_in == "cut"


def test_a_change_that_rounding_might_explain_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until, clip = UPGRADES["", "Clip"]

    def next_bound(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
        greater = float(np.nextafter(np.float32(2), np.float32(3)))
        return clip(node.change(attributes={**node.attributes, "max": greater}), opset, site)

    monkeypatch.setitem(UPGRADES, ("", "Clip"), (until, next_bound))
    feeds = {"x": np.full(4, -3, np.float32)}
    found = bisect(onnx.parser.parse_model(CANCELLED), ("onnxruntime", "numpy"), feeds)
    assert (found.fault, found.verdict, found.nodes) == ("none", "inconclusive", ("clip",))
    assert "inconclusive: no mismatch found on numpy; importing changes clip" in str(found)


@pytest.mark.parametrize("last", ["Identity", "Dropout"])  # which draws nothing outside training
def test_elements_that_are_inferred_wrongly_are_an_error_of_importing(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node computes them, so that each alone is right; the one that would is named."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[6, 2] x) => (float[6, 2] y)
        <int64 zero = {0}, int64 one = {1}> {
          s = Shape (x)
          a = Gather (s, zero)
          b = Gather (s, one)
          [quotient] c = Div (a, b)
          d = Cast <to = 1> (c)
          e = Mul (x, d)
          y = LAST (e)
        }""".replace("LAST", last)
    )
    feeds = {"x": np.ones((6, 2), np.float32)}
    assert bisect(proto, ("onnxruntime", "numpy"), feeds).fault == "none"
    monkeypatch.setattr(Div, "function", staticmethod(lambda a, b: b // a))
    proto.doc_string = "another file, which no cache has"
    found = bisect(proto, ("onnxruntime", "numpy"), feeds)
    assert (found.fault, found.verdict, found.nodes) == ("import", "MISMATCH", ("quotient",))
    assert [
        each.agreement.output
        for each in compare_layers(proto, ("onnxruntime", "numpy"), feeds, optimise=False).imported
    ] == ["y"]


OLD = """<ir_version: 3, opset_import: ["" : 6]>
g (float[4, 4] x, float[4] b) => (float[4, 4] y) { y = Add <axis = 0, broadcast = 1> (x, b) }"""


def test_a_file_that_the_other_program_does_not_run_is_named() -> None:
    """What was read of it, it runs: nothing says that this is what the file says."""
    proto = onnx.parser.parse_model(OLD)
    feeds = {"x": np.ones((4, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    for tool in (compare_layers, bisect):
        found = tool(proto, ("onnxruntime", "numpy"), feeds)
        assert found.ok
        assert "onnxruntime does not load this model" in found.unread
        assert "importing the file changes has not been compared: onnxruntime" in str(found)
        assert found.to_dict()["unread"] == found.unread


def test_external_data_are_read_by_the_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of another place than the file names."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 64))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (4, 64))],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(weights[:1], "last")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = tmp_path / "model.onnx"
    external = {"save_as_external_data": True, "location": "data", "size_threshold": 0}
    onnx.save_model(proto, file, **external)
    number = ExternalData._number

    def later(data: ExternalData, fields: Any, key: str, *rest: Any) -> int:
        return number(data, fields, key, *rest) + 4 * (key == "offset" and "'w'" in rest[-1])

    monkeypatch.setattr(ExternalData, "_number", later)
    feeds = {"x": np.ones((4, 64), np.float32)}
    assert bisect(str(file), ("onnxruntime", "numpy"), feeds).fault == "import"
