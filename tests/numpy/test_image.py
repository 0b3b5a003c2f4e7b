"""Decoding of images against Pillow, and what becomes of bytes that are none."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest

import tercet

from ..randomness import restarting
from .nodes import Array, model_of, node, run

Image = pytest.importorskip("PIL.Image", reason="pip install tercet[image]")

RNG = restarting(5)
COLOURS: Array = RNG.integers(0, 256, (6, 5, 3), np.uint8)
#: Formats that keep every pixel, and what Pillow has to be told to make them do so.
EXACT: dict[str, dict[str, Any]] = {
    "BMP": {},
    "PNG": {},
    "PPM": {},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "JPEG2000": {"irreversible": False},
}


def file_of(image: Any, name: str, **options: Any) -> Array:
    with BytesIO() as stream:
        image.save(stream, name, **options)
        return np.frombuffer(stream.getvalue(), np.uint8)


def decoded(data: Array, pixel_format: str = "RGB") -> Array:
    made = node("ImageDecoder", "x", "y", pixel_format=pixel_format)
    (found,) = run(model_of([made], {"x": data}, "y"), {"x": data})
    assert found.dtype == np.uint8
    return found


@pytest.mark.parametrize("name", EXACT)
def test_formats(name: str) -> None:
    data = file_of(Image.fromarray(COLOURS), name, **EXACT[name])
    np.testing.assert_array_equal(decoded(data), COLOURS)
    np.testing.assert_array_equal(decoded(data, "BGR"), COLOURS[..., ::-1])
    grey = np.asarray(Image.fromarray(COLOURS).convert("L"))[..., np.newaxis]
    np.testing.assert_array_equal(decoded(data, "Grayscale"), grey)


def test_jpeg() -> None:
    data = file_of(Image.fromarray(COLOURS), "JPEG", quality=90)
    want = np.asarray(Image.open(BytesIO(data.tobytes())))
    np.testing.assert_array_equal(decoded(data), want)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_other_modes_become_colours(mode: str) -> None:
    image = Image.fromarray(COLOURS).convert(mode)
    want = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decoded(file_of(image, "PNG")), want)


def test_sixteen_bits_keep_the_upper_ones() -> None:
    wide = RNG.integers(0, 1 << 16, (4, 3), np.uint16)
    data = file_of(Image.fromarray(wide), "PNG")
    want = (wide >> 8).astype(np.uint8)[..., np.newaxis]
    np.testing.assert_array_equal(decoded(data, "Grayscale"), want)
    np.testing.assert_array_equal(decoded(data), np.repeat(want, 3, -1))


@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_what_is_no_picture_gives_an_empty_one(pixel_format: str) -> None:
    channels = 1 if pixel_format == "Grayscale" else 3
    whole = file_of(Image.fromarray(COLOURS), "PNG")
    noise = RNG.integers(0, 256, 100, np.uint8)
    for data in (noise, whole[:40], whole[:0], file_of(Image.fromarray(COLOURS), "GIF")):
        assert decoded(data, pixel_format).shape == (0, 0, channels)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
def test_damaged_files_do_no_harm() -> None:
    for name in (*EXACT, "JPEG"):
        whole = file_of(Image.fromarray(COLOURS), name)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            data = whole.copy()
            data[rng.integers(0, len(data), 3)] = rng.integers(0, 256, 3)
            with suppress(tercet.LimitError):
                assert decoded(data).ndim == 3


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(Image.fromarray(COLOURS), "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(tercet.UnsupportedError, match=r"pip install tercet\[image\]"):
        decoded(data)


def test_a_picture_of_absurd_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(tercet.TercetError, match="exceeds limit"):
        decoded(file_of(Image.fromarray(COLOURS), "PNG"))
