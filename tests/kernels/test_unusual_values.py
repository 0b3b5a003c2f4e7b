"""What kernels make of NaN, of lengths and indices beyond an axis, and of elements of 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.types import Array

from .dry import normal, planned, single
from .emulator import needs_compiler
from .samples import Sample, compare, results_of, sample

pytestmark = [needs_compiler]


def with_nan(x: Array) -> Array:
    """Return the array with a NaN in the second of three rows, say."""
    x = x.copy()
    x.reshape(-1)[x.size // 2] = np.nan
    return x


BOXES = np.array([[0, 0, 6, 5], [1, 2, 9, 7]], np.float32)
REGIONS = np.concatenate([np.array([[0], [1]], np.float32), BOXES], 1)


def layer(operator: str, hidden: int, **attributes: Any) -> Sample:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    x = with_nan(normal(3, 2, 4))
    weights = (normal(1, gates * hidden, 4), normal(1, gates * hidden, hidden))
    return sample(operator, [x, *weights], (1, 2), hidden_size=hidden, **attributes)


NAN = {
    "limits": layer("RNN", 4, clip=1.0),
    "limits of steps": layer("RNN", 4, clip=1.0, activations=("Elu",)),
    "rectified": layer("RNN", 4, activations=("Relu",)),
    "hard gates": layer("GRU", 4, activations=("HardSigmoid", "Tanh")),
    "hard cells": layer("LSTM", 4, activations=("HardSigmoid", "Relu", "Relu")),
    "no least": sample("Clip", [normal(3, 40), np.array(np.nan, np.float32)]),
    "no greatest": sample("Clip", [normal(3, 40), None, np.array(np.nan, np.float32)]),
    "quantized": sample("DynamicQuantizeLinear", [with_nan(normal(3, 40))], outputs=3),
    "quantized in parts": sample("DynamicQuantizeLinear", [with_nan(normal(90, 400))], outputs=3),
    "regions": sample("MaxRoiPool", [with_nan(normal(2, 3, 9, 11)), REGIONS], pooled_shape=(3, 3)),
    "samples": sample(
        "RoiAlign", [with_nan(normal(2, 3, 9, 11)), BOXES, np.array([0, 1])], mode="max"
    ),
}


@pytest.mark.parametrize("name", NAN)
def test_nan_stays(name: str, emulated: CudaBackend) -> None:
    compare(NAN[name], emulated)


PLACES = np.array([np.nan, np.inf, -np.inf, 0.1, 3e38, -0.4], np.float32)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("types", ["ff", "df", "fd"])
def test_places_that_are_no_numbers(
    types: str, padding: str, mode: str, align: int, emulated: CudaBackend
) -> None:
    """NaN is in front of the image, and reflected to its border as infinities are."""
    grid = np.stack(np.meshgrid(PLACES, PLACES), -1)[np.newaxis].astype(types[1])
    image = normal(1, 1, 3, 4).astype(types[0])
    border = padding == "reflection"
    low, high = (-1, -1) if border else (-9, 9)
    finite = np.nan_to_num(grid, nan=low, posinf=high, neginf=low)
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    whole = sample("GridSample", [image, grid], **how)
    compare(whole, emulated)
    expected = results_of(sample("GridSample", [image, finite], **how), (emulated,))
    np.testing.assert_array_equal(results_of(whole, (emulated,)), expected)


NO_NUMBER = np.array([[np.nan, 1], [2, 1], [np.nan, 1], [2, np.nan], [2, 1]], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [None, 0])
def test_nan_is_found_once(dtype: str, axis: int | None, emulated: CudaBackend) -> None:
    x = NO_NUMBER.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for ordered in (0, 1):
        whole = sample("Unique", [x], outputs=4, axis=axis, sorted=ordered)
        compare(whole, emulated)
        _, first, _, counts = results_of(whole, (emulated,))
        assert sorted(counts) == ([1, 2, 2] if axis == 0 else [3, 3, 4])
        assert sorted(first) == ([0, 1, 3] if axis == 0 else [0, 1, 2])


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("RoiAlign", [normal(2, 3, 9, 11), BOXES], {}),
        ("MaxRoiPool", [normal(2, 3, 9, 11)], {"pooled_shape": (2, 2)}),
    ],
)
@pytest.mark.parametrize("image", [-1, 2, 1 << 20])
def test_regions_of_no_image_are_zeros(
    operator: str, inputs: Sequence[Array], attributes: Any, image: int, emulated: CudaBackend
) -> None:
    last = REGIONS.copy() if operator == "MaxRoiPool" else np.array([0, 1])
    whole = sample(operator, [*inputs, last], **attributes)
    other = last.copy()
    other[(1, 0) if other.ndim > 1 else 1] = image
    (expected,) = results_of(whole, (emulated,))
    (found,) = results_of(sample(operator, [*inputs, other], **attributes), (emulated,))
    np.testing.assert_array_equal(found[0], expected[0])
    assert not found[1].any()


@pytest.mark.parametrize("box", [[0, 0, 1e9, 1e9], [0, 0, np.inf, 5]], ids=str)
def test_a_box_that_no_image_has_ends(box: Sequence[float], emulated: CudaBackend) -> None:
    boxes = np.array([BOXES[0], box], np.float32)
    whole = sample("RoiAlign", [normal(1, 2, 9, 11), boxes, np.array([0, 0])])
    (found,) = results_of(whole, (emulated,))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("activation", ["Tanh", "Elu"])  # of one launch, and of one a step
def test_sequences_are_no_longer_than_their_axis(
    way: str, activation: str, emulated: CudaBackend
) -> None:
    both = 1 + (way == "bidirectional")
    weights = (normal(both, 4, 3), normal(both, 4, 4))

    def run(lengths: Sequence[int]) -> list[Array]:
        inputs = [normal(3, 2, 3), *weights, None, np.array(lengths, np.int32)]
        how = {"direction": way, "hidden_size": 4, "activations": (activation,) * both}
        return results_of(sample("RNN", inputs, (1, 2), **how), (emulated,))

    np.testing.assert_array_equal(run([1 << 20, 2])[0], run([3, 2])[0])


@pytest.mark.parametrize("time", [0, 1])
def test_what_is_reversed_ends_with_its_axis(time: int, emulated: CudaBackend) -> None:
    def run(*lengths: int) -> Array:
        inputs = [normal(4, 4, 3), np.array(lengths)]
        whole = sample("ReverseSequence", inputs, time_axis=time, batch_axis=1 - time)
        return results_of(whole, (emulated,))[0]

    np.testing.assert_array_equal(run(1 << 40, 9, 2, 1), run(4, 4, 2, 1))


WIDE = (normal(2, 3, 4) + 1j * normal(2, 3, 4)).astype(np.complex128)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Transpose", [WIDE], {"perm": (2, 0, 1)}),
        ("Concat", [WIDE, WIDE], {"axis": 1}),
        ("ScatterND", [WIDE, np.array([[1]]), WIDE[:1]], {}),
        ("TensorScatter", [WIDE, WIDE[:, :1], np.array([0, 1])], {}),
    ],
    ids=["Transpose", "Concat", "ScatterND", "TensorScatter"],
)
def test_elements_of_16_bytes_are_left_to_others(
    operator: str, inputs: Sequence[Array], attributes: Any
) -> None:
    with pytest.raises(UnsupportedError, match="elements of more than 8 bytes"):
        planned(single(operator, inputs, (), 1, **attributes))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_integers_by_zero_are_zero(dtype: str, fmod: int, emulated: CudaBackend) -> None:
    inputs = [np.array(each, dtype) for each in ([7, 0, 9, 3], [2, 0, 0, 5])]
    for whole, expected in (
        (sample("Mod", inputs, fmod=fmod), [1, 0, 0, 3]),
        (sample("Div", inputs), [3, 0, 0, 0]),
    ):
        compare(whole, emulated)
        assert results_of(whole, (emulated,))[0].tolist() == expected


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (5, 1)])
def test_constant_images_are_contiguous(
    operator: str, dtype: str, kernel: tuple[int, int], emulated: CudaBackend
) -> None:
    """The filters are computed."""
    inputs = [each.astype(dtype) for each in (normal(3, 8, 6, 5), normal(8, 8, *kernel))]
    compare(sample(operator, inputs, (0,), pads=(1, 1, 1, 1)), emulated)
