"""What a talk and two lectures ask of plans for a GPU, as far as no GPU is needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tercet
from tercet.backends.cuda.algorithms.registry import Setting
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.cuda.tuning.tuner import works_of
from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.tools.common.cost import constants, operators
from tercet.tools.workshop.bench_models import bench_model
from tercet.tools.workshop.studies_lab import apart_by
from tercet.tools.workshop.studies_mobilenet import BODY, mobilenet_v1
from tercet.tools.workshop.studies_networks import BETWEEN, chain_model, pooled_model

from ..kernels.dry import DryDevice, launches, normal, planned, planned_model, single


def model_of(text: str, **constants: Array) -> tercet.Model:
    """Return a model; `constants` are initializers."""
    proto = parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    stored = (numpy_helper.from_array(data, name) for name, data in constants.items())
    proto.graph.initializer.extend(stored)
    return tercet.load(proto)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_memory_of_dense_blocks() -> None:
    """All features stay, and yet the plan is near the least that live tensors take."""
    with tercet.load(bench_model("densenet121")) as model:
        memory = model.memory()
    assert memory.activations["cpu"] <= 1.15 * memory.floor["cpu"]
    assert memory.tensors["cpu"] >= 2 * memory.activations["cpu"]


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────


def test_an_image_that_comes_and_goes_channels_last() -> None:
    """Bytes in NHWC, to NCHW for ONNX, and back: orders change at the ends alone, visibly."""
    text = """
    g (uint8[1,32,32,8] image) => (uint8[1,32,32,8] y) {
      number = Cast <to = 1> (image)
      x = Transpose <perm = [0, 3, 1, 2]> (number)
      c = Conv <pads = [1, 1, 1, 1]> (x, a)
      r = Relu (c)
      d = Conv <pads = [1, 1, 1, 1]> (r, b)
      z = Transpose <perm = [0, 2, 3, 1]> (d)
      y = Cast <to = 2> (z)
    }"""
    model = model_of(text, a=normal(16, 8, 3, 3), b=normal(8, 16, 3, 3))
    kinds = [
        "move" if row.kind == "reformat" or "transpose" in row.kernel else row.nodes[0].kind
        for row in planned_model(model, DryDevice()).rows
        if row.kind != "copy"
    ]
    first, last = kinds.index("Conv"), len(kinds) - kinds[::-1].index("Conv")
    assert kinds[first:last] == ["Conv", "Conv"]
    assert kinds[:first].count("move") <= 2
    assert kinds[last:].count("move") <= 2


@pytest.mark.parametrize("channels", [64, 67])
def test_blocks_of_channels(channels: int, backend: str) -> None:
    """NCHW to NCHWc with c = 32 and back is exact; 67 channels are padded to 96."""
    x = normal(1, channels, 5, 4)
    blocks = -(-channels // 32)
    pads = np.array([0, 0, 0, 0, 0, 32 * blocks - channels, 0, 0])
    padded = tercet.run_op("Pad", x, pads, backend=backend)
    split = np.array([1, blocks, 32, 5, 4])
    apart = tercet.run_op("Reshape", padded, split, backend=backend)
    blocked = tercet.run_op("Transpose", apart, perm=(0, 1, 3, 4, 2), backend=backend)
    assert blocked.shape == (1, blocks, 5, 4, 32)
    assert blocked[0, 1, 2, 3, 5] == x[0, 37, 2, 3]
    back = tercet.run_op("Transpose", blocked, perm=(0, 1, 4, 2, 3), backend=backend)
    np.testing.assert_array_equal(back.reshape(1, -1, 5, 4)[:, :channels], x)


# ── tensor cores ─────────────────────────────────────────────────────────────────────────────────


def on_tensor_cores(channels: int, group: int, dtype: Any) -> tuple[str, list[str]]:
    """Return why tensor cores cannot be used, and the kernels if they can."""
    arrays = [normal(1, channels, 16, 16), normal(24, channels // group, 3, 3)]
    graph = single("Conv", [a.astype(dtype) for a in arrays], (1,), pads=(1,) * 4, group=group)
    (work,) = works_of(graph.nodes, Setting(H200, Options()))
    algorithm = work.selector.named("tensor_cores")
    assert not isinstance(algorithm, str)
    reason = work.selector.candidate(work.task, algorithm).reason
    if reason:
        return reason, []
    return "", [one.entry for one in launches(planned(graph, conv="tensor_cores"))]


@pytest.mark.parametrize(
    ("channels", "group", "dtype", "reason", "packed"),
    [
        (8, 1, float16, "", False),
        (6, 1, float16, "", True),
        (6, 2, float16, "", False),
        (9, 3, float16, "3 groups of 3 channels, which do not fill words", False),
        (8, 1, float32, "", False),
        (6, 1, float32, "", True),
        (6, 2, float32, "3 channels per group, not a multiple of 4", False),
    ],
)
def test_why_no_tensor_cores(
    channels: int, group: int, dtype: Any, reason: str, packed: bool
) -> None:
    """Channels that fill no words are packed first, or are the reason why not."""
    said, kernels = on_tensor_cores(channels, group, dtype)
    assert said == reason
    assert ("pack_image" in kernels) == packed


# ── networks ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_to_the_host() -> None:
    """Pooling, too, runs where the convolutions do."""
    text = """
    g (float[1,3,16,16] x) => (y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, a)
      r = Relu (c)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
      f = Flatten (p)
      g = Gemm <transB = 1> (f, b)
      y = Softmax (g)
    }"""
    model = model_of(text, a=normal(8, 3, 3, 3), b=normal(10, 512))
    rows = planned_model(model, DryDevice()).rows
    steps = [row for row in rows if row.kind == "step"]
    assert len(steps) == 4
    assert {row.backend for row in steps} == {"cuda"}


def test_residuals_are_added_by_the_convolutions() -> None:
    """The 16 of ResNet-50; two 1x1 convolutions that are added, in its first block, are one."""
    with tercet.load(bench_model("resnet50_v15")) as model:
        rows = planned_model(model, DryDevice()).rows
    adding = [row for row in rows if "Add" in {node.kind for node in row.nodes}]
    assert len(adding) == 15
    assert all("Conv" in {node.kind for node in row.nodes} for row in adding)


def test_mobilenet() -> None:
    """Its body, and that layers of different kinds get different kernels."""
    proto = mobilenet_v1()
    graph = load(proto).graph
    types = {value.name: value.tensor.with_shape((1, 3, 224, 224)) for value in graph.inputs}
    macs = sum(row.macs or 0 for row in operators(graph, specialise(graph, types)))
    assert macs / 1e6 == pytest.approx(568.74, abs=0.01)
    biases = 32 + sum(channels for channels, _ in ((32, 1), *BODY[:-1])) + sum(c for c, _ in BODY)
    assert (constants(graph).parameters - biases) / 1e6 == pytest.approx(4.21, abs=2e-3)
    with tercet.load(proto) as model:
        rows = planned_model(model, DryDevice()).rows
    kernels = Counter(row.kernel.split()[0] for row in rows if row.kind == "step")
    assert kernels["depthwise"] + kernels["depthwise_rows"] == 13
    assert len(kernels) >= 4


# ── fusing ───────────────────────────────────────────────────────────────────────────────────────


def kernels_of(proto: ModelProto, between: tuple[str, ...] = ()) -> int:
    """Return the steps of a plan, which compute `between` for other readers as well."""
    for name in between:
        proto.graph.output.add().name = name
    with tercet.load(proto) as model:
        rows = planned_model(model, DryDevice()).rows
    return sum(row.kind == "step" for row in rows)


def test_a_chain_is_one_kernel() -> None:
    """Elementwise nodes are fused; a kernel stores up to four large results that are asked for."""
    feeds = {"x": normal(100_000)}
    proto, between = chain_model(feeds)
    assert kernels_of(proto) == 1
    assert kernels_of(proto, between) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scale_bias_relu_and_pooling_are_fused(dtype: type) -> None:
    """Scale and bias go into the weights, and the same kernel pools."""
    feeds = {"x": normal(4, 32, 64, 64).astype(dtype)}
    assert kernels_of(pooled_model(feeds)) == 1
    assert kernels_of(pooled_model(feeds), BETWEEN) == 3


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "maximum"), [(np.float32, 1e-5), (np.float16, 5e-3)])
def test_fused_and_in_steps_are_equal(dtype: type, maximum: float) -> None:
    """The same result either way."""
    feeds = {"x": normal(4, 32, 64, 64).astype(dtype)}
    with tercet.load(pooled_model(feeds), "cuda") as model:
        fused = model.run(feeds)["y"]
        apart = model.run(feeds, [*BETWEEN, "y"])["y"]
    assert apart_by(apart, fused) <= maximum
