"""Samples of the experimental operators that ONNX 1.5 dropped, in the domain of ONNX itself."""

from functools import partial

import numpy as np

from .draws_simple import floats, perhaps
from .samples import Draw, Sample

Rng = np.random.Generator
#: The last but one that has them in onnxruntime.
OPSET = 8


def _shape(rng: Rng) -> list[int]:
    return [int(rng.integers(1, 6)) for _ in range(rng.integers(1, 5))]


def elementwise(name: str, needed: tuple[str, ...], optional: tuple[str, ...], rng: Rng) -> Sample:
    chosen = needed + tuple(each for each in optional if rng.random() < 0.6)
    attributes = {each: float(rng.choice([1.0, -0.5, 1.7, 2.0])) for each in chosen}
    return Sample(name, {"x": floats(rng, *_shape(rng))}, attributes, domain="", opset=OPSET)


def image_scaler(rng: Rng) -> Sample:
    x = floats(rng, *(int(rng.integers(1, 6)) for _ in range(4)))
    attributes = {"bias": floats(rng, x.shape[1]).tolist()}
    if rng.random() < 0.6:
        attributes["scale"] = 1 / 255
    return Sample("ImageScaler", {"x": x}, attributes, domain="", opset=OPSET)


def crop(rng: Rng) -> Sample:
    border = [int(rng.integers(0, 3)) for _ in range(4)]
    height, width = (int(rng.integers(1, 5)) for _ in range(2))
    left, top, right, bottom = border
    x = floats(rng, 2, 3, top + height + bottom, left + width + right)
    attributes = {"border": border}
    if rng.random() < 0.5:
        attributes["scale"] = [int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))]
    return Sample("Crop", {"x": x}, attributes, domain="", opset=OPSET)


def dynamic_slice(rng: Rng) -> Sample:
    shape = _shape(rng)
    index = str(rng.choice(["int32", "int64"]))
    axes = rng.permutation(len(shape))[: rng.integers(1, len(shape) + 1)]
    if rng.random() < 0.5:
        axes = np.arange(len(axes))
    starts = np.array([rng.integers(-shape[axis], shape[axis]) for axis in axes], index)
    ends = np.array([rng.integers(-1, shape[axis] + 3) for axis in axes], index)
    explicit = axes.astype(index) if (axes != np.arange(len(axes))).any() else None
    inputs: dict[str, np.ndarray | None] = {
        "data": floats(rng, *shape),
        "starts": starts,
        "ends": ends,
    }
    inputs["axes"] = perhaps(rng, axes.astype(index)) if explicit is None else explicit
    return Sample("DynamicSlice", inputs, {}, domain="", opset=OPSET,
                  constants=("starts", "ends", "axes"))  # fmt: skip


DRAWS: dict[str, Draw] = {
    "Affine": partial(elementwise, "Affine", (), ("alpha", "beta")),
    "Crop": crop,
    "DynamicSlice": dynamic_slice,
    "ImageScaler": image_scaler,
    "ParametricSoftplus": partial(elementwise, "ParametricSoftplus", ("alpha", "beta"), ()),
    "Scale": partial(elementwise, "Scale", (), ("scale",)),
    "ScaledTanh": partial(elementwise, "ScaledTanh", ("alpha", "beta"), ()),
}
