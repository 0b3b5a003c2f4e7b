"""Passes look at what computes a tensor; random numbers are computed from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

import tercet

PRODUCERS = Path(__file__).parents[1] / "producers" / "converted"
READERS = {
    "pixels in another order": """<int64[2] shape = {2, 60}> {
        r = RandomUniform <shape = [2, 3, 4, 5], seed = 1.0> ()
        t = Transpose <perm = [0, 1, 3, 2]> (r)  y = Reshape (t, shape) }""",
    "heads": """<int64[4] shape = {2, 3, 2, 4}> {
        r = RandomUniform <shape = [2, 3, 8], seed = 1.0> ()
        h = Reshape (r, shape)  y = Transpose <perm = [0, 2, 1, 3]> (h) }""",
    "a sum of branches": """<int64[1] axis = {1}> {
        r = RandomNormal <shape = [2, 3, 4], seed = 1.0> ()
        y = ReduceSum <keepdims = 0> (r, axis) }""",
}


@pytest.mark.parametrize("case", READERS)
def test_passes_read_random_numbers(case: str) -> None:
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\ng () => (y) {READERS[case]}')
    with tercet.load(model) as fast, tercet.load(model, stop_at=0) as plain:
        np.testing.assert_allclose(fast.run({})["y"], plain.run({})["y"], rtol=1e-6)


def randomized(file: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield a network with random numbers in place of one result, for each kind of reader."""
    model = onnx.load(file)
    with np.load(file.with_suffix(".npz")) as stored:
        feeds = {k.removeprefix("input/"): stored[k] for k in stored if k.startswith("input/")}
    for value in model.graph.input:
        value.CopyFrom(
            helper.make_tensor_value_info(
                value.name, value.type.tensor_type.elem_type, feeds[value.name].shape
            )
        )
    names = [name for node in model.graph.node for name in node.output if name]
    with tercet.load(model, stop_at=0) as loaded:
        results = loaded.run(feeds, outputs=names)
    seen = set()
    for place, node in enumerate(model.graph.node):
        result = results.get(node.output[0])
        readers = [each.op_type for each in model.graph.node if node.output[0] in each.input]
        if not isinstance(result, np.ndarray) or result.dtype != np.float32 or not result.ndim:
            continue
        if len(node.output) > 1 or (key := (result.ndim, *sorted(readers))) in seen:
            continue
        seen.add(key)
        random = helper.make_node(
            "RandomUniform", [], node.output, node.name, shape=result.shape, seed=1.0
        )
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.node[place].CopyFrom(random)
        yield node.name, changed


@pytest.mark.parametrize("network", ["optimum_falcon", "tf2onnx_attention"])
def test_networks_with_random_numbers_inside(network: str) -> None:
    """Every pass that a network needs meets a tensor that is computed from nothing."""
    count = 0
    for _, model in randomized(PRODUCERS / f"{network}.onnx"):
        tercet.load(model).close()
        count += 1
    assert count > 10
