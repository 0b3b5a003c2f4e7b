"""Products of quantized matrices are exact, in blocks and in parts of their terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.numerics import exact_sums
from tercet.backends.numpy.numerics.exact_sums import ExactSums
from tercet.backends.numpy.ops import quantize_products

from ..randomness import restarting
from .graphs import Array, model, node

RNG = restarting(17)
#: Shapes of both operands, and how many numbers `b` has: one, or one for each column.
PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "matrices": ((37, 50), (50, 41), False),
    "one row": ((1, 60), (60, 33), True),
    "rows of a stack": ((2, 3, 50), (50, 20), True),
    "a stack of one": ((2, 3, 7, 50), (1, 1, 50, 20), True),
    "stacks": ((2, 3, 7, 50), (2, 3, 50, 20), False),
    "a stack for all": ((2, 3, 7, 50), (3, 50, 20), True),
    "one term": ((5, 1), (1, 4), False),
}


def bytes_of(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantized(sums: Array, factor: Array, zero: Array) -> Array:
    """Return what the specification says, of exact sums."""
    limits = np.iinfo(zero.dtype)
    found = np.rint(sums.astype(np.float32) * factor) + zero
    return np.clip(found, limits.min, limits.max).astype(zero.dtype)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(
    ("whole", "blocks"), [(1 << 24, False), (1 << 18, True)], ids=["whole", "parts"]
)
def test_products(
    name: str, constant: bool, whole: int, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_sums, "WHOLE", whole)
    if blocks:
        monkeypatch.setattr(quantize_products, "ROWS", 5)
        monkeypatch.setattr(quantize_products, "ELEMENTS", 16)
    left, right, by_column = PRODUCTS[name]
    a, b = bytes_of("uint8", *left), bytes_of("int8", *right)
    shape = right[-1:] if by_column else ()
    scale, zero = (0.01 + RNG.random(shape)).astype(np.float32), bytes_of("int8", *shape)
    of_a, of_y = np.float32(0.03), np.float32(0.03 * 40 * left[-1] ** 0.5)
    zeros = np.array(131, np.uint8), np.array(-7, np.int8)
    numbers: dict[str, Any] = {"s": of_a, "z": zeros[0], "t": scale, "u": zero}
    numbers |= {"v": of_y, "w": zeros[1], **({"b": b} if constant else {})}
    inputs = {"a": a} if constant else {"a": a, "b": b}
    names = ["a", "s", "z", "b", "t", "u", "v", "w"]
    constants = {key: np.asarray(value) for key, value in numbers.items()}
    made = model([node("QLinearMatMul", names, "y")], inputs, constants)
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run(inputs)["y"]
        (kernel,) = (row.kernel for row in loaded.prepare().rows if row.kind == "step")
    assert ("parts" in kernel) == (blocks and left[-1] > 8)
    sums = (a.astype(np.int64) - 131) @ (b.astype(np.int64) - zero)
    np.testing.assert_array_equal(found, quantized(sums, of_a * scale / of_y, zeros[1]))


def test_images_of_one_pixel_are_rows() -> None:
    x, w = bytes_of("uint8", 9, 30, 1, 1), bytes_of("int8", 14, 30, 1, 1)
    bias, scale = RNG.integers(-9999, 9999, 14).astype(np.int32), RNG.random(14, np.float32)
    of_x, of_y, zero = np.float32(0.02), np.float32(9), np.array(3, np.int8)
    given = (of_x, np.array(100, np.uint8), w, scale, np.zeros(14, np.int8), of_y, zero, bias)
    constants = {f"c{i}": np.asarray(each) for i, each in enumerate(given)}
    made = model([node("QLinearConv", ["x", *constants], "y")], {"x": x}, constants)
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        (kernel,) = (row.kernel for row in loaded.prepare().rows if row.kind == "step")
    assert "9x30x14" in kernel
    sums = (x.reshape(9, 30).astype(np.int64) - 100) @ w.reshape(14, 30).T.astype(np.int64) + bias
    wanted = quantized(sums, of_x * scale / of_y, zero)
    np.testing.assert_array_equal(found.reshape(9, 14), wanted)


def test_a_convolution_in_parts() -> None:
    """Sums of it are beyond what float32 has."""
    x, w = bytes_of("uint8", 1, 128, 5, 6), np.full((3, 128, 3, 3), 127, np.int8)
    given = (np.array(128, np.uint8), np.zeros(3, np.int8))
    constants = {"w": w, "u": given[0], "v": given[1]}
    made = model([node("ConvInteger", ["x", *constants], "y")], {"x": x}, constants)
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        (kernel,) = (row.kernel for row in loaded.prepare().rows if row.kind == "step")
    assert "float64, 2 parts" in kernel
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64) - 128, (3, 3), (2, 3))
    np.testing.assert_array_equal(found[0], np.broadcast_to(127 * seen.sum((1, -1, -2)), (3, 3, 4)))


def test_parts_of_sums() -> None:
    products = np.full((10, 2), 1 << 22, np.float32)
    products[:, 1] = 1
    exact = ExactSums.of(products)
    assert exact is not None
    assert [(part.start, part.stop) for part in exact.parts] == [(0, 4), (4, 8), (8, 10)]
    assert ExactSums.of(products[:4]) == ExactSums((slice(0, 4),), np.dtype(np.float32))
    added = ExactSums.of(products[:4], np.ones(2))
    assert added == ExactSums((slice(0, 4),), np.dtype(np.float64))
    assert ExactSums.of(np.full((1 << 10, 1), 1 << 22, np.float32)) is None
    assert ExactSums.of(np.full((2, 1), 1 << 25, np.float32)) is None
