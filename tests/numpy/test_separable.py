"""Depthwise convolutions with the pointwise ones around them, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
from onnx import NodeProto

import tercet
from tercet.backends.numpy.windows import separable
from tercet.backends.numpy.windows.separable import Separable

from .graphs import Array, model, node, random

WIDE, IN, OUT = 24, 5, 7
GEOMETRIES: dict[str, tuple[tuple[int, int], dict[str, tuple[int, ...]]]] = {
    "same": ((3, 3), {}),
    "strides": ((3, 3), {"strides": (2, 2)}),
    "even kernel, more pads behind": ((4, 4), {"strides": (2, 2), "pads": (1, 1, 2, 2)}),
    "a stride that skips columns": ((2, 3), {"strides": (3, 4)}),
    "dilations": ((3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    "strides and dilations": (
        (5, 3),
        {"strides": (2, 3), "dilations": (3, 2), "pads": (6, 2, 5, 3)},
    ),
    "pads wider than the image": ((3, 3), {"pads": (4, 22, 3, 25), "strides": (1, 2)}),
    "no pads": ((5, 5), {"pads": (0, 0, 0, 0)}),
}
PARTS = ("before", "after", "both")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this way wherever it exists, whether it pays or not."""
    monkeypatch.setattr(Separable, "nanoseconds", 0.0)


def network(
    part: str, kernel: tuple[int, int], **given: tuple[int, ...]
) -> tuple[list[NodeProto], dict[str, Array]]:
    """Return a bottleneck with a residual, without the first or last convolution if asked."""
    attributes = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)} | given
    constants = {
        "w1": random(WIDE, IN, 1, 1),
        "b1": random(WIDE),
        "w2": random(WIDE, 1, *kernel),
        "b2": random(WIDE),
        "w3": random(OUT, WIDE, 1, 1),
        "b3": random(OUT),
        "six": np.float32(6),
        "none": np.float32(0),
    }
    first = [node("Conv", ["x", "w1", "b1"], "a"), node("Sigmoid", "a", "e")]
    middle = node(
        "Conv", ["x" if part == "after" else "e", "w2", "b2"], "c", group=WIDE, **attributes
    )
    clip = node("Clip", ["c", "none", "six"], "y" if part == "before" else "d")
    last = [node("Conv", ["d", "w3", "b3"], "p"), node("LeakyRelu", "p", "y")]
    nodes = [*([] if part == "after" else first), middle, clip, *([] if part == "before" else last)]
    return nodes, constants


def compare(part: str, nodes: list[NodeProto], x: Array, constants: dict[str, Array]) -> Array:
    used = {name for each in nodes for name in each.input}
    made = model(nodes, {"x": x}, {name: data for name, data in constants.items() if name in used})
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        kernels = [row.kernel for row in loaded.prepare().rows if row.kind == "step"]
    assert len(kernels) == 1
    assert "some rows at a time" in kernels[0]
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    assert np.abs(found - wanted).max() < 1e-5
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are padded behind an activation that is not 0 there, and blocks change no bit."""
    kernel, given = GEOMETRIES[name]
    nodes, constants = network(part, kernel, **given)
    x = random(2, WIDE if part == "after" else IN, 20, 23)
    found = compare(part, nodes, x, constants)
    monkeypatch.setattr(separable, "ROWS", 1)
    assert (compare(part, nodes, x, constants) == found).all()
    monkeypatch.setattr(separable, "LONGEST", 1)
    assert (compare(part, nodes, x, constants) == found).all()


@pytest.mark.parametrize("last", ["LeakyRelu", "Identity"])
@pytest.mark.parametrize("part", PARTS)
def test_halves_are_rounded_once(part: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float32 with the same numbers: tensors between the convolutions are float32."""
    monkeypatch.setattr(separable, "ROWS", 1 << 14)
    nodes, constants = network(part, (3, 3))
    if part != "before":
        nodes[-1] = node(last, ["p"], "y")
    used = {name for each in nodes for name in each.input}
    halves = {name: data.astype(np.float16) for name, data in constants.items() if name in used}
    x = random(2, WIDE if part == "after" else IN, 20, 23, dtype=np.float16)
    with tercet.load(model(nodes, {"x": x}, halves), stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        (kernel,) = [row.kernel for row in loaded.prepare().rows if row.kind == "step"]
    assert "some rows at a time" in kernel
    wide, singles = x.astype(np.float32), {k: v.astype(np.float32) for k, v in halves.items()}
    made = model(nodes, {"x": wide}, singles).SerializeToString()
    (wanted,) = ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(
        None, {"x": wide}
    )
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.asarray(wanted), 2**-11 + 1e-5, 1e-5)


@pytest.mark.parametrize("outputs", [OUT, 16])
@pytest.mark.parametrize("part", ["after", "both"])
def test_results_that_the_bias_transposes(
    part: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the other way, to the last bit: blocks of few pixels take that."""
    nodes, constants = network(part, (3, 3))
    constants |= {"w3": random(outputs, WIDE, 1, 1), "b3": random(outputs)}
    x = random(1, WIDE if part == "after" else IN, 80, 90)  # too large for small-matrix kernels
    found = compare(part, nodes, x, constants)
    monkeypatch.setattr(separable, "MANY_TERMS", 1)
    assert (compare(part, nodes, x, constants) == found).all()
    monkeypatch.setattr(separable, "ROWS", 1)
    assert (compare(part, nodes, x, constants) == found).all()


def test_images_of_a_batch_are_alike() -> None:
    nodes, constants = network("both", (3, 3), strides=(2, 2))
    x = np.repeat(random(1, IN, 20, 23), 3, 0)
    found = compare("both", nodes, x, constants)
    assert (found == found[:1]).all()


def test_a_residual_is_added_to_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, constants = network("both", (3, 3))
    nodes[-1] = node("Add", ["p", "r"], "y")
    constants["r"] = random(1, OUT, 20, 23)
    monkeypatch.setattr(separable, "ROWS", 1)
    compare("both", nodes, random(1, IN, 20, 23), constants)


def other_reader(nodes: list[NodeProto]) -> None:
    nodes.append(node("Neg", "e", "also"))


def scaled_by_position(nodes: list[NodeProto]) -> None:
    nodes[1] = node("Mul", ["a", "by_position"], "e")


@pytest.mark.parametrize("change", [other_reader, scaled_by_position])
def test_what_others_need_is_computed_as_a_whole(change: Callable[[list[NodeProto]], None]) -> None:
    nodes, constants = network("both", (3, 3))
    change(nodes)
    constants["by_position"] = random(20, 23)
    x = random(1, IN, 20, 23)
    used = {name for each in nodes for name in each.input}
    made = model(nodes, {"x": x}, {name: data for name, data in constants.items() if name in used})
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        kernels = [row.kernel for row in loaded.prepare().rows if row.kind == "step"]
    assert any("Conv + Clip + Conv" in kernel for kernel in kernels)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.abs(found - session.run(["y"], {"x": x})[0]).max() < 1e-5
