"""Operators on bytes that onnxruntime's CPU lacks, and zero points that it wants given."""

from __future__ import annotations

import numpy as np
import pytest

import tercet

from .samples import Sample, feeds_of, model_of

X = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)


def run(op: str, inputs: dict[str, np.ndarray | None], **attributes: object) -> np.ndarray:
    sample = Sample(op, inputs, attributes)
    with tercet.load(model_of(sample)) as model:
        (found,) = model.run(feeds_of(sample)).values()
    return found


def scalar(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def test_integers_are_multiplied() -> None:
    other = np.array([[5], [-7], [100]], np.int8)
    found = run(
        "MulInteger", {"A": X, "a": scalar(3, np.int8), "B": other, "b": scalar(-2, np.int8)}
    )
    np.testing.assert_array_equal(found, (X.astype(np.int32) - 3) * (other.astype(np.int32) + 2))
    assert found.dtype == np.int32


@pytest.mark.parametrize(("axes", "keepdims"), [((1,), 1), ((0, -1), 0)])
def test_mean(axes: tuple[int, ...], keepdims: int) -> None:
    inputs = {
        "data": X,
        "scale": scalar(0.5),
        "zero": scalar(1, np.int8),
        "to": scalar(0.25),
        "zero_to": scalar(4, np.int8),
    }
    found = run("QLinearReduceMean", inputs, axes=list(axes), keepdims=keepdims)
    mean = ((X.astype(np.float64) - 1) * 0.5).mean(axes, keepdims=bool(keepdims))
    np.testing.assert_array_equal(found, np.rint(mean / 0.25) + 4)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_zero_points_that_are_left_out_are_zero(op: str) -> None:
    given = {
        **{"A": X, "A_scale": scalar(0.5), "A_zero": scalar(0, np.int8)},
        **{"B": X[::-1], "B_scale": scalar(0.25), "B_zero": scalar(0, np.int8)},
        **{"C_scale": scalar(0.5), "C_zero": scalar(0, np.int8)},
    }
    without = {name: None if name.endswith("zero") else x for name, x in given.items()}
    np.testing.assert_array_equal(run(op, given), run(op, without))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_tables_of_small_floats(dtype: str) -> None:
    """One scale for all of a row, for blocks, and for the whole table."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    table = (np.arange(-32, 64).reshape(3, 32) / 32).astype(getattr(ml_dtypes, dtype))
    wide, indices = table.astype(np.float32), np.array([2, -3, 1])
    for block, shape in ((0, (3, 1)), (0, (1, 1)), (16, (3, 2)), (16, (1, 2))):
        scales = np.random.default_rng(0).random(shape).astype(np.float32)
        sample = Sample(
            "GatherBlockQuantized",
            {"data": table, "indices": indices, "scales": scales},
            {"block_size": block},
            constants=("data", "scales"),
        )
        with tercet.load(model_of(sample)) as model:
            (found,) = model.run(feeds_of(sample)).values()
        full = np.broadcast_to(np.repeat(scales, 32 // shape[1], 1), wide.shape)
        np.testing.assert_allclose(found, (wide * full)[indices], rtol=1e-6)


def test_an_index_that_is_out_of_range_gives_zeros() -> None:
    inputs = {
        "data": np.full((2, 16), 0x99, np.uint8),
        "indices": np.array([0, 2, -1, -3]),
        "scales": np.ones((2, 1), np.float32),
    }
    found = run("GatherBlockQuantized", inputs, block_size=32)
    np.testing.assert_array_equal(found[:, 0], [1, 0, 1, 0])


REFUSED = {
    "a block of 24": ("GatherBlockQuantized", {"block_size": 24}, "block_size=24"),
    "three bits": ("GatherBlockQuantized", {"block_size": 32, "bits": 3}, "bits=3"),
    "packed along the rows": (
        "GatherBlockQuantized",
        {"block_size": 32, "quantize_axis": 0},
        "expected 0 and another",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself(name: str) -> None:
    op, attributes, said = REFUSED[name]
    inputs = {
        "data": np.zeros((2, 16), np.uint8),
        "indices": np.array([0]),
        "scales": np.ones((2, 1), np.float32),
    }
    with pytest.raises(tercet.ModelError, match=said):
        run(op, inputs, **attributes)


def test_a_concat_of_half_a_part() -> None:
    inputs = {"s": scalar(1), "z": scalar(0, np.int8), "a": X, "as": scalar(1)}
    with pytest.raises(tercet.ModelError, match="expected a tensor, its scale and its zero point"):
        run("QLinearConcat", inputs, axis=0)
