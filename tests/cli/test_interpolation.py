"""Positions between pixels are rounded: the verdict on operators that interpolate at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.backends.numpy.ops import resize
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
#: Pixels of very different magnitudes, and positions beside pixels: a neighbour that has next to no
#: weight may be far greater than the pixel.
SPREAD = drawn(1, 2, 7, 9) * np.exp(3 * drawn(1, 2, 7, 9))
BESIDE = RNG.choice([-0.999999, -1, 1, -1.3, -1.25000012, 1e-7, 0.5], (1, 20, 20, 2)).astype(
    np.float32
)
PADDINGS = ("zeros", "border", "reflection")


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


def sampled(grid: np.ndarray, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes)
    return model(node, {"x": SPREAD, "grid": grid}, {})


def run_elsewhere(proto: onnx.ModelProto, grid: np.ndarray) -> np.ndarray:
    feeds = {"x": SPREAD, "grid": grid}
    (found,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    return np.asarray(found)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("corners", [0, 1])
def test_weights_are_rounded_by_their_terms(
    mode: str, padding: str, corners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    proto, feeds = sampled(BESIDE, **given), {"x": SPREAD, "grid": BESIDE}
    with tercet.load(proto) as loaded:
        ours, judge = loaded.run(feeds)["y"], Judge(loaded.imported, feeds)
    assert judge.agreement("y", ours, run_elsewhere(proto, BESIDE)).verdict == "ok"
    others = [{**given, "padding_mode": p} for p in PADDINGS if p != padding]
    wrong = [run_elsewhere(sampled(BESIDE, **o), BESIDE) for o in others]
    half = BESIDE + np.array([1 / 9, 1 / 7], np.float32)
    wrong.append(run_elsewhere(proto, half))
    if mode == "cubic":
        right = resize.cubic
        monkeypatch.setattr(resize, "cubic", lambda distance, _: right(distance, -0.5))
        with tercet.load(proto) as loaded:
            wrong.append(loaded.run(feeds)["y"])
        monkeypatch.undo()
    assert [judge.agreement("y", ours, each).verdict for each in wrong] == ["MISMATCH"] * len(wrong)
