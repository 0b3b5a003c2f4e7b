"""Convolutions of a signal whose samples become channels."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet


def model_of(
    taps: int, step: int, pads: tuple[int, int], extra: str = "", shape: str = "1, 1, 200"
) -> ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[{shape}] x) => (float[n, c, m] y) {{
        y = Conv <strides = [{step}], pads = [{pads[0]}, {pads[1]}]{extra}> (x, w, b)
    }}"""
    model = parse_model(text)
    rng = np.random.default_rng(1)
    arrays = {"w": rng.standard_normal((9, 1, taps)), "b": rng.standard_normal(9)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(data.astype(np.float32), name) for name, data in arrays.items()
    )
    return model


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("length", "taps", "step", "pads", "channels"),
    [
        (192, 64, 16, (0, 0), 16),
        (200, 64, 16, (0, 0), 8),
        (224, 48, 32, (0, 0), 16),  # some samples are read by no window
        (200, 40, 24, (16, 8), 8),
        (192, 32, 32, (0, 0), 32),
        (200, 192, 8, (0, 0), 8),
        (200, 64, 16, (16, 16), 8),
        (200, 64, 16, (4, 0), 1),
        (200, 20, 10, (0, 0), 1),
        (200, 63, 16, (0, 0), 1),
        (199, 64, 16, (8, 8), 1),
    ],
)
def test_results(
    length: int, taps: int, step: int, pads: tuple[int, int], channels: int, batch: int
) -> None:
    proto = model_of(taps, step, pads, shape=f"n, 1, {length}")
    assert_same(proto, (batch, 1, length), channels)


@pytest.mark.parametrize(("batch", "channels"), [(1, 16), (3, 1)])
def test_what_is_cut_off_is_a_view_of_one_signal(batch: int, channels: int) -> None:
    proto = model_of(64, 16, (0, 0), shape=f"{batch}, 1, 199")
    assert_same(proto, (batch, 1, 199), channels)


def assert_same(proto: ModelProto, shape: tuple[int, ...], channels: int) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    (result,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with tercet.load(proto) as model:
        found = model.run({"x": x})["y"]
        np.testing.assert_allclose(found, np.asarray(result), rtol=0, atol=3e-5)
        (conv,) = (node for node in model.graph.nodes if node.kind == "Conv")
        assert conv.operands[1].tensor.dims[1] == channels


@pytest.mark.parametrize("extra", [", dilations = [2]", ', auto_pad = "SAME_UPPER"'])
def test_other_windows_stay(extra: str) -> None:
    with tercet.load(model_of(32, 16, (0, 0), extra)) as model:
        assert [node.kind for node in model.graph.nodes] == ["Conv"]


def test_samples_are_read_in_place() -> None:
    found = tercet.inspect(
        model_of(64, 16, (0, 0)), placement="cuda", target="sm_90a", fallback="numpy"
    )
    assert found.placement is not None
    kinds = [row.kind for row in found.placement if row.kind not in ("view", "copy")]
    steps = [row.operators for row in found.placement if row.kind == "step"]
    assert steps == ["Conv"]
    assert set(kinds) <= {"step", "reformat"}
