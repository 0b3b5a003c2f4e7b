"""Positions between pixels are rounded: the verdict on operators that interpolate at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.tools.verdict.error_bounds import Judge

from ..randomness import restarting

RNG = restarting(0)
Arrays = dict[str, np.ndarray]


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def pixels(*shape: int) -> np.ndarray:
    """Whole numbers, as photographs have."""
    return np.rint(drawn(*shape) * 60 + 128)


def boxes(count: int, size: int) -> np.ndarray:
    corners = np.sort(RNG.uniform(0, size, (count, 2, 2)), 1)
    return corners.reshape(count, 4).astype(np.float32)


def resized(x: np.ndarray, height: int, width: int, **attributes: str) -> onnx.ModelProto:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    sizes = np.array([*x.shape[:2], height, width])
    return model(node, {"x": x}, {"sizes": sizes})


def model(node: onnx.NodeProto, inputs: Arrays, constants: Arrays) -> onnx.ModelProto:
    kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in inputs.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


IMAGE, PHOTO = drawn(1, 2, 30, 25), pixels(1, 2, 30, 25)
GRID = RNG.uniform(-1, 1, (1, 20, 20, 2)).astype(np.float32)
ROIS = {"rois": boxes(5, 25), "at": np.zeros(5, np.int64)}
SAMPLED: dict[str, Any] = {"output_height": 7, "output_width": 7}
CASES: dict[str, tuple[onnx.ModelProto, Arrays]] = {
    **{
        f"resize_{mode}_{form}_{name}": (
            resized(x, 67, 41, mode=mode, coordinate_transformation_mode=form),
            {"x": x},
        )
        for mode in ("linear", "cubic")
        for form in ("half_pixel", "align_corners")
        for name, x in (("numbers", IMAGE), ("photo", PHOTO))
    },
    **{
        f"grid_sample_{mode}": (
            model(
                helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode),
                {"x": IMAGE, "grid": GRID},
                {},
            ),
            {"x": IMAGE, "grid": GRID},
        )
        for mode in ("linear", "cubic")
    },
    **{
        f"roi_align_{name}": (
            model(
                helper.make_node("RoiAlign", ["x", "rois", "at"], ["y"], **SAMPLED),
                {"x": IMAGE, **rois},
                {},
            ),
            {"x": IMAGE, **rois},
        )
        for name, rois in (("", ROIS), ("whole", {**ROIS, "rois": np.rint(ROIS["rois"])}))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_no_false_alarm_and_no_false_accept(name: str) -> None:
    proto, feeds = CASES[name]
    with tercet.load(proto) as loaded:
        ours, judge = loaded.run(feeds)["y"], Judge(loaded.imported, feeds)
    (result,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    theirs = np.asarray(result)
    assert judge.agreement("y", ours, theirs).verdict == "ok"
    wrong = theirs.copy()
    wrong[..., 3] += np.float32(0.01) * np.abs(theirs).max()
    assert judge.agreement("y", ours, wrong).verdict != "ok"
    assert judge.agreement("y", ours, np.roll(theirs, 1, -1)).verdict != "ok"
