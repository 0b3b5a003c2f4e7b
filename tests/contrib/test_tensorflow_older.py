"""Operators that tf2onnx leaves in files of older opsets, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet
from tercet.importers.onnx.contrib.catalogue import FOREIGN, TENSORFLOW
from tercet.runtime.ir.types import Array

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 8, 3)).astype(np.float32)
ODD = np.array([0, np.nan, np.inf, -np.inf, -1.5, 2.5], np.float32)
ROWS, UPDATES = np.array([[2], [0], [2]], np.int32), X[0, :3, :, 0]
TABLE = X[0, :4, :, 1]
SHIFTS, BOTH = np.array([1, -9], np.int32), np.array([1, 2], np.int32)
POLICY = {"bad_indices_policy": ""}


def left(
    op: str, *inputs: Any, domain: str = "", dynamic: bool = False, **attributes: Any
) -> Array:
    """Return the result of one node of opset 8; only the first input is none of the weights."""
    x, *weights = map(np.asarray, inputs)
    names = ["x", *(f"w{i}" for i in range(len(weights)))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info(
            "x", helper.np_dtype_to_tensor_dtype(x.dtype),
            [f"n{axis}" for axis in range(x.ndim)] if dynamic else x.shape,
        )],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(w, name) for w, name in zip(weights, names[1:], strict=True)],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 8), helper.make_opsetid(TENSORFLOW, 1)]
    model = helper.make_model(graph, opset_imports=imports, producer_name="tf2onnx")
    with tercet.load(model) as loaded:
        return loaded.run({"x": x})["y"]


def scattered(reduce: np.ufunc | None, table: Array) -> Array:
    found = table.copy()
    if reduce is None:
        found[ROWS[:2, 0]] = UPDATES[:2]
    else:
        reduce.at(found, ROWS[:, 0], UPDATES)
    return found


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Array]] = {
    "IsFinite": ((ODD,), {}, np.isfinite(ODD)),
    "IsNan": ((ODD,), {}, np.isnan(ODD)),
    "Rint": ((ODD,), {}, np.rint(ODD)),
    "Cumsum": (
        (X, np.int32(1)),
        {"exclusive": 1, "Tidx": 6},
        np.cumsum(X, 1) - X,
    ),
    "Cumprod": (
        (X, np.int32(-1)),
        {"reverse": 1, "Tidx": 6},
        np.cumprod(X[..., ::-1], -1)[..., ::-1],
    ),
    "ReverseV2": ((X, BOTH), {"Tidx": 6}, np.flip(X, (1, 2))),
    "Roll": ((X, SHIFTS, BOTH), {}, np.roll(X, SHIFTS, BOTH)),
    "MatrixBandPart": ((X, np.int32(1), np.int32(-1)), {}, np.triu(X, -1)),
    "ScatterNd": (
        (ROWS, UPDATES, np.array(TABLE.shape, np.int32)),
        POLICY,
        scattered(np.add, 0 * TABLE),
    ),
    "TensorScatterAdd": ((TABLE, ROWS, UPDATES), POLICY, scattered(np.add, TABLE)),
    "TensorScatterMax": ((TABLE, ROWS, UPDATES), POLICY, scattered(np.maximum, TABLE)),
    "TensorScatterMin": ((TABLE, ROWS, UPDATES), POLICY, scattered(np.minimum, TABLE)),
    "TensorScatterSub": ((TABLE, ROWS, UPDATES), POLICY, scattered(np.subtract, TABLE)),
    "TensorScatterUpdate": ((TABLE, ROWS[:2], UPDATES[:2]), POLICY, scattered(None, TABLE)),
}


@pytest.mark.parametrize("domain", ["", TENSORFLOW])
@pytest.mark.parametrize("op", CASES)
def test_against_numpy(op: str, domain: str) -> None:
    inputs, attributes, wanted = CASES[op]
    for dynamic in (False, True):
        found = left(op, *inputs, domain=domain, dynamic=dynamic, **attributes)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


def places(way: str, size: int, count: int) -> Array:
    """Return where each of `count` results is read along an axis of `size` elements."""
    results = np.arange(count, dtype=np.float64)
    if way == "align_corners":
        return results * (size - 1) / (count - 1)
    return (results + 0.5) * size / count - 0.5 if way else results * size / count


def stretched(line: Array, way: str, count: int) -> Array:
    return np.interp(places(way, len(line), count), np.arange(len(line)), line)


@pytest.mark.parametrize("way", ["", "align_corners", "half_pixel_centers"])
@pytest.mark.parametrize("size", [(9, 5), (4, 16)])
def test_images_between_two_elements(way: str, size: tuple[int, int]) -> None:
    chosen: dict[str, Any] = {way: 1} if way else {}
    found = left("ResizeBilinear", X, np.array(size, np.int32), **chosen)
    wanted: Array = X
    for axis, count in enumerate(size, 1):
        wanted = np.apply_along_axis(stretched, axis, wanted, way, count)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("way", ["", "align_corners", "half_pixel_centers"])
@pytest.mark.parametrize("size", [(9, 5), (4, 16)])
def test_nearest_elements_of_images(way: str, size: tuple[int, int]) -> None:
    chosen: dict[str, Any] = {way: 1} if way else {}
    found = left("ResizeNearestNeighbor", X, np.array(size, np.int32), **chosen)
    rows, columns = (
        np.floor(places(way, old, count) + (0.5 if way else 0)).astype(int)
        for old, count in zip(X.shape[1:3], size, strict=True)
    )
    np.testing.assert_array_equal(found, X[:, rows][:, :, columns])


def test_cubic_images() -> None:
    """Keys' weights with a = -1/2, a quarter behind an element; at edges, those inside count."""
    weights = np.array([-0.0703125, 0.8671875, 0.2265625, -0.0234375])
    found = left("ResizeBicubic", X, np.array([6, 16], np.int32), half_pixel_centers=1)
    row = X[0, 0, :, 0].astype(np.float64)
    np.testing.assert_allclose(found[0, 0, 7, 0], weights @ row[2:6], 1e-5)
    np.testing.assert_allclose(found[0, 0, 8, 0], weights[::-1] @ row[2:6], 1e-5)
    first = weights[1:] @ row[:3] / weights[1:].sum()
    np.testing.assert_allclose(found[0, 0, 1, 0], first, 1e-5)


def test_every_operator_is_here() -> None:
    older = {name for name, module in FOREIGN.items() if module == "tensorflow_older"}
    assert older - CASES.keys() == {"ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"}


def test_shifts_must_be_known() -> None:
    graph = helper.make_graph(
        [helper.make_node("Roll", ["x", "s", "a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("s", 6, [])],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.array(0, np.int32), "a")],
    )
    model = helper.make_model(graph, producer_name="tf2onnx")
    with pytest.raises(tercet.UnsupportedError, match="shift is computed; make shift constant"):
        tercet.load(model)
