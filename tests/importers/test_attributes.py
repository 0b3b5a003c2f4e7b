"""From the attributes and domains of a file's nodes to fields of operators."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tercet
from tercet.importers.onnx import load
from tercet.runtime.errors import ModelError, ModelWarning, UnsupportedError
from tercet.runtime.ir.dtypes import float64
from tercet.runtime.ir.op import Op, op_base
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Cast

from .parsed import graph_of, kinds, model, run


def test_attributes_become_fields() -> None:
    text = """g (float[1,3,8,8] x, float[4,3,3,3] w) => (y) {
        c = Conv <strides = [2, 2], pads = [1, 1, 1, 1], auto_pad = "NOTSET"> (x, w)
        y = Cast <to = 11> (c) }"""
    conv, cast = (node.op for node in graph_of(text).nodes)
    assert conv == Conv(strides=(2, 2), pads=(1, 1, 1, 1))
    assert cast == Cast(to=float64)


def test_a_domain_that_is_not_imported_is_the_newest() -> None:
    """onnxruntime's quantizers leave out the import of com.microsoft, and it loads such files."""
    proto = model("""g (float[1, 2] x) => (y)
        { z = com.microsoft.Gelu (x) y = ai.onnx.ml.Scaler <scale = [2.0], offset = [1.0]> (z) }""")
    imports = [each for each in proto.opset_import if each.domain == ""]
    proto.ClearField("opset_import")
    proto.opset_import.extend(imports)
    x = np.array([[1, 2]], np.float32)
    with (
        pytest.warns(ModelWarning, match=r"uses domain '.*' without importing it"),
        tercet.load(proto) as loaded,
    ):
        np.testing.assert_allclose(loaded(x)[0], run(proto, x=x)[0], rtol=1e-6)


def test_casts_are_added_to_models_of_classic_operators() -> None:
    """By onnxruntime's converter to float16, which leaves out the import of ai.onnx."""
    proto = model("""g (float16[1, 2] x) => (float16[1, 2] y) { t = Cast <to = 1> (x)
        z = ai.onnx.ml.Scaler <scale = [2.0], offset = [1.0]> (t) y = Cast <to = 10> (z) }""")
    imports = [each for each in proto.opset_import if each.domain == "ai.onnx.ml"]
    proto.ClearField("opset_import")
    proto.opset_import.extend(imports)
    x = np.array([[1, 2]], np.float16)
    with (
        pytest.warns(ModelWarning, match="uses domain 'ai.onnx' without importing it"),
        tercet.load(proto) as loaded,
    ):
        np.testing.assert_array_equal(loaded(x)[0], run(proto, x=x)[0])


def test_an_undefined_dtype_is_none() -> None:
    """onnxruntime writes out the defaults of all attributes when it saves a model."""
    proto = model(
        """g (float[2] x) => (y) <float s = {0.5}, int16 z = {1}>
        { y = QuantizeLinear <output_dtype = 0> (x, s, z) }"""
    )
    x = np.array([1, 2], np.float32)
    with tercet.load(proto) as loaded:
        np.testing.assert_array_equal(loaded(x)[0], run(proto, x=x)[0])


def test_attributes_without_a_type_are_those_of_ir_version_1() -> None:
    proto = model("g (float[2,3] x) => (y) { y = Concat <axis = 1> (x, x) }", 4, 2)
    proto.ClearField("opset_import")
    proto.graph.node[0].attribute[0].ClearField("type")
    assert str(load(proto).graph.outputs["y"].type) == "float32[2,6]"


def test_other_operators_can_be_given() -> None:
    class Twice(Op):
        """x + x."""

        domain = "me"

        def infer(self, x: TensorType) -> TensorType:
            return x

    proto = model("g (float[2] x) => (y) { y = me.Twice(x) }")
    with pytest.raises(UnsupportedError, match="unknown operator: me::Twice"):
        load(proto)
    declared = op_base(Twice)
    graph = load(proto, operators={("me", "Twice"): declared}).graph
    assert kinds(graph) == ["me::Twice"]


def test_strings_that_are_not_utf8() -> None:
    """Operators of other domains keep bytes in them; those of ONNX do not."""
    blob = b"\n\x07\xff\xfe"
    proto = model("g (float[2] x) => (y) { y = me.Twice(x) }")
    proto.graph.node[0].attribute.append(helper.make_attribute("blob", "text"))
    proto.graph.node[0].attribute[0].s = blob
    proto.producer_name = "some-converter"
    with pytest.raises(UnsupportedError, match="unknown operator: me::Twice"):
        load(proto)
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "", "TwiceCall"
    with pytest.raises(UnsupportedError, match=r"TwiceCall .*some-converter left it as it was"):
        load(proto)
    proto.graph.node[0].op_type = "Erfi"
    with pytest.raises(UnsupportedError, match=r"some-converter left it .*; did you mean 'Erf'\?"):
        load(proto)
    proto.graph.node[0].op_type = "Softmax"
    proto.graph.node[0].attribute[0].name = "axis"
    with pytest.raises(ModelError, match="'axis' must be an integer, not bytes that are not UTF-8"):
        load(proto)
