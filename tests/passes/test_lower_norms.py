"""Normalizations whose scale or shift is not one per element of a row, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tercet
from tercet.tools.inspect.inspection import inspect

from .graphs import optimised_file

BY_ROW = {
    "one per row",
    "of some rows",
    "a shift per row",
    "of all elements",
    "of rows of two axes",
}
CASES = {
    "one per row": ("4,3,1", "4,3,1", -1, True),
    "of some rows": ("3,1", "5", -1, True),
    "a shift per row": ("5", "4,1,1", -1, True),
    "of all elements": ("4,3,5", "3,5", -1, True),
    "of rows of two axes": ("4,1,5", "1,5", 1, True),
    "one per element": ("5", "1,1,5", -1, False),
    "one for all": ("1", "1", -1, False),
    "of axes in front of a row": ("1,1,5", "5", -1, False),
    "of some axes of a row": ("3,5", "3,1", 1, True),
    "one for all and one per element": ("1", "5", -1, True),
    "of columns and of all elements": ("5", "3,5", 1, True),
    "of columns": ("1,5", "5", 1, False),
}


def model(case: str, outputs: str = "y") -> ModelProto:
    scale, shift, axis, _ = CASES[case]
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[4,3,5] x, float[{scale}] s, float[{shift}] t) => ({outputs}) {{
            {outputs} = LayerNormalization <axis = {axis}> (x, s, t)
        }}"""
    )


def with_constants(proto: ModelProto) -> ModelProto:
    """Return a model whose scale and shift are constants."""
    *_, scale, shift = proto.graph.input
    for value in (scale, shift):
        shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
        data = np.random.default_rng(len(shape)).standard_normal(shape, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(data, value.name))
    del proto.graph.input[1:]
    return proto


@pytest.mark.parametrize("outputs", ["y", "y, mean, deviation"])
@pytest.mark.parametrize("case", CASES)
def test_against_onnxruntime(case: str, outputs: str) -> None:
    proto = model(case, outputs)
    _, log = optimised_file(proto)
    assert ("lower_norms" in log.counts) is CASES[case][-1]
    compare_with_onnxruntime(proto)


@pytest.mark.parametrize("case", CASES)
def test_constants_are_written_out(case: str) -> None:
    proto = with_constants(model(case))
    found, _ = optimised_file(proto)
    assert (found == ["LayerNormalization"]) is (case not in BY_ROW)
    compare_with_onnxruntime(proto)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_kernels_take_all(case: str, *, constant: bool) -> None:
    proto = with_constants(model(case)) if constant else model(case)
    inspect(proto, placement="cuda", target="sm_90a")  # refuses what only the host computes


def compare_with_onnxruntime(proto: ModelProto) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal(
            [size.dim_value for size in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in proto.graph.input
    }
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    names = [value.name for value in proto.graph.output]
    wanted = session.run(names, feeds)
    with tercet.load(proto, "numpy") as ours:
        found = ours.run(feeds)
    for name, want in zip(names, wanted, strict=True):
        np.testing.assert_allclose(found[name], np.asarray(want), rtol=1e-5, atol=1e-6)


def test_a_scale_of_more_rows_than_there_are_is_refused() -> None:
    """As a factor it would repeat the only row."""
    proto = with_constants(model("one per row"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with tercet.load(proto) as loaded:
        assert loaded.run({"x": np.ones((4, 3, 5), np.float32)})["y"].shape == (4, 3, 5)
        with pytest.raises(tercet.TercetError, match="does not broadcast"):
            loaded.run({"x": np.ones((1, 3, 5), np.float32)})


def test_a_batch_whose_size_is_known_only_when_planning() -> None:
    proto = with_constants(model("a shift per row"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    _, log = optimised_file(proto)
    assert "lower_norms" not in log.counts
    inspect(proto, placement="cuda", target="sm_90a", shapes={"x": (4, 3, 5)})
