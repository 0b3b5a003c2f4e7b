"""What is asked of NVIDIA's libraries by those who explain them.

tests/cudnn and tests/gpu have more of cuDNN's convolutions, their algorithms and their workspaces.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from examples import edge
from tercet.backends.cuda import ALGORITHMS
from tercet.runtime.ops.conv import Conv
from tercet.tools.common.console import silent
from tercet.tools.workshop.backend_table import measure, save
from tercet.tools.workshop.convolution_cases import convolved

ROOT = Path(__file__).resolve().parents[2]


def test_hello_convolution(backend: str) -> None:
    """4x1920x1080, 8 filters of 3x3, padding 1, stride 2."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 4, 1920, 1080), np.float32)
    w = rng.standard_normal((8, 4, 3, 3), np.float32)
    window = {"pads": (1, 1, 1, 1), "strides": (2, 2)}
    y: np.ndarray = tercet.run_op("Conv", x, w, backend=backend, **window)
    want = convolved(Conv(**window), x, w)
    assert y.shape == want.shape == (1, 8, 960, 540)
    assert np.linalg.norm(y - want) <= 1e-5 * np.linalg.norm(want)


def test_a_shape_that_is_wrong_names_everything() -> None:
    """What a status and a line number would leave to be found out."""
    x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 2, 3, 3), np.float32)
    with pytest.raises(tercet.ModelError) as caught:
        tercet.run_op("Conv", x, w)
    text = str(caught.value)
    assert all(word in text for word in ("Conv", "1,3,8,8", "4,2,3,3")), text


# ── edges ────────────────────────────────────────────────────────────────────────────────────────


def laplacian(picture: np.ndarray) -> np.ndarray:
    """The edges of a picture [h, w, 3] in whole numbers, [h, w]."""
    total = np.pad(picture.astype(int).sum(2), 1)
    h, w = picture.shape[:2]
    around = sum(total[i : i + h, j : j + w] for i in range(3) for j in range(3))
    return np.clip(around - 9 * total[1:-1, 1:-1], 0, 255)


@pytest.mark.parametrize("kind", ["disc", "noise"])
def test_edges_are_the_same_everywhere(kind: str, backend: str) -> None:
    """Bytes in NHWC, bytes in NCHW, no byte off."""
    noise = np.random.default_rng(0).integers(0, 256, (45, 67, 3), np.uint8)
    picture = edge.disc(64) if kind == "disc" else noise
    found = edge.find_edges(picture, backend)
    np.testing.assert_array_equal(found, np.broadcast_to(laplacian(picture), found.shape))
    assert found.any()


def test_what_is_of_one_colour_has_no_edges(backend: str) -> None:
    """The Laplacian sums to zero."""
    found = edge.find_edges(np.full((16, 20, 3), 200, np.uint8), backend)
    assert not found[:, 1:-1, 1:-1].any()


# ── what follows a convolution ───────────────────────────────────────────────────────────────────


def blended(*, apart: bool, last: str = "") -> bytes:
    """A convolution plus a second input, perhaps an activation; `apart`, the sum is no epilogue."""
    weights = np.random.default_rng(1).standard_normal((16, 16, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "z"], ["s"], "add"),
        *([helper.make_node(last, ["s"], ["y"], "last")] if last else []),
    ]
    shape = [1, 16, 20, 20]
    names = ["y" if last else "s", *(["c"] if apart else [])]
    graph = helper.make_graph(
        nodes,
        "blended",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "z")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in names],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return bytes(model.SerializeToString())


def test_beta_is_a_sum(backend: str) -> None:
    """A residual, y = 1 * conv + 1 * z in the epilogue is what a separate sum gives, bit by bit.

    It is where the same kernel makes the sums of both; cuDNN has another engine for each.
    """
    rng = np.random.default_rng(2)
    x, z = (rng.standard_normal((1, 16, 20, 20), np.float32) for _ in "xz")
    way = {"cudnn": "cudnn", "cuda": "implicit_gemm"}.get(backend)
    ways: dict[str, Any] = {"conv": way} if way else {}
    with tercet.load(blended(apart=False), backend, **ways) as model:
        (fused,) = model(x, z)
    with tercet.load(blended(apart=True), backend, **ways) as model:
        fresh, c = model(x, z)
    np.testing.assert_array_equal(fresh, c + z)
    if backend == "cudnn":
        np.testing.assert_allclose(fused, fresh, rtol=0, atol=2e-6 * np.abs(fresh).max())
    else:
        np.testing.assert_array_equal(fused, fresh)


def test_a_sigmoid_is_in_place(backend: str) -> None:
    """It takes no separate kernel, and no buffer."""
    with tercet.load(blended(apart=False, last="Sigmoid"), backend) as model:
        rows = [row for row in model.placement() if row.kind == "step"]
        memory = model.memory()
    assert [row.operators for row in rows] == ["Conv + Add + Sigmoid"]
    image = 4 * 16 * 20 * 20
    device = "cpu" if backend == "numpy" else "cuda:0"
    assert memory.activations[device] <= 3.1 * image, "x, z and y"


# ── what there is to choose from ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ALGORITHMS)
def test_every_algorithm_is_described(way: str) -> None:
    """With its workspace and its error."""
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert re.search(rf"^[^\n]*\*\*{way}\*\*", text, re.MULTILINE)


def test_what_a_backend_costs(tmp_path: Path) -> None:
    """Building, latency, and what a shape costs that was not there before."""
    digits = onnx.load(ROOT / "tercet" / "demo" / "digits.onnx")
    row = measure("digits", digits, "numpy", silent, seconds=0.01)
    assert row.cold > 0 < row.latency
    assert row.new_shape > 0
    assert row.error < 1e-5
    assert set(row.nodes) == {"numpy"}
    written = save([row], {"CPU": "one"}, tmp_path)
    assert json.loads(written[0].read_text())["results"][0]["calls"] == row.calls
    assert "| digits | numpy |" in written[1].read_text()
