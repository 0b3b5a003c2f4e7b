"""Planted faults: the program with some still plants them, and `compare_layers` finds others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import numpy as np
from onnx.parser import parse_model

import tercet
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.source import KERNELS
from tercet.runtime.options import Options
from tercet.tools.compare.in_plan import rows_in_plan
from tercet.tools.compare.layers import compare_layers
from tercet.tools.runners.replay import BackendPlayer, as_written, open_player, run_all

from ..gpu.planted import EDITS, TEXT, edit
from .dry import DryDevice, launches, planned_model
from .emulator import needs_compiler

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: A step with each of three kernels, and others.
STEPS = """<ir_version: 10, opset_import: ["" : 23]>
g (float[2, 160, 32] q, float[2, 300, 32] k, float[2, 300, 32] v, float[1, 2, 33, 21] image,
   float[24, 1500] x, float[1500, 40] w) => (attended, pooled, product) {
  seen = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
  attended = Tanh (seen)
  smaller = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image)
  pooled = Cos (smaller)
  terms = MatMul (x, w)
  product = Softmax (terms)
}"""
#: By the step that it makes wrong: what is written in the place of what, in which file.
FAULTS = {
    "seen": ("attention/online_softmax.cuh", "sum[half] * by + total", "sum[half] + total"),
    "smaller": ("image/pool.cu", "v < g.in[1]", "v < g.in[1] - 1"),
    "terms": ("gemm/reduce_splits.cu", "split < splits", "split < splits - 1"),
}


def test_each_node_is_a_kernel_of_its_own() -> None:
    with tercet.load(parse_model(TEXT)) as model:
        titles = [launch.title for launch in launches(planned_model(model, DryDevice()))]
    assert titles == ["elementwise Cos", "elementwise Sigmoid", "transpose 1 x 40 x 50"]


@pytest.mark.parametrize("kind", EDITS)
def test_edited_lines_exist(kind: str) -> None:
    name, old, _ = EDITS[kind]
    assert old in (KERNELS / name).read_text(encoding="utf-8")


#: Two results that are parts of a third one, whose rows have gaps.
JOINED = """<ir_version: 10, opset_import: ["" : 23]>
g (float[1, 3, 6, 6] x, float[4, 3, 3, 3] v, float[5, 8, 1, 1] w) => (y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, v)
  b = Relu (a)
  c = Tanh (a)
  d = Concat <axis = 1> (b, c)
  y = Conv (d, w)
}"""


@needs_compiler
def test_rows_of_a_plan_take_the_tensors_of_a_reference(emulated: CudaBackend) -> None:
    """Whatever the layout of their operands on the device is."""
    proto = parse_model(JOINED)
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 3, 6, 6), "v": (4, 3, 3, 3), "w": (5, 8, 1, 1)}
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    with tercet.load(proto, stop_at=0) as model:
        graph = as_written(model.imported, feeds)
    values = run_all(open_player("numpy"), graph, feeds)
    rows = [*rows_in_plan(BackendPlayer("emulated", (emulated,), Options()), graph, values)]
    assert {name for _, part, _ in rows for name in part.outputs} == {"a", "b", "c", "y"}
    for _, part, found in rows:
        for name in part.outputs:
            a, b = (np.asarray(some[name]) for some in (found, values))
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("wrong", FAULTS)
def test_layers_find_the_kernel(
    wrong: str, emulated: CudaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_source, "KERNELS", KERNELS)
    edit(tmp_path, *FAULTS[wrong])
    player = BackendPlayer("emulated", (emulated,), Options())
    found = compare_layers(parse_model(STEPS), ["numpy", player])
    assert [layer.nodes[0] for layer in found.layers if layer.verdict == "wrong"] == [wrong]
