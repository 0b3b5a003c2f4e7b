"""Operators of XLA that tf2onnx leaves as they are, against TensorFlow and numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet
from tercet.importers.onnx.contrib.catalogue import TENSORFLOW
from tercet.runtime.ir.types import Array

from .stored import arrays

#: A cache of Keras that ``ops.slice_update`` updates, and TensorFlow's results of several places.
MODEL = Path(__file__).parent / "keras_cache.onnx"
X = np.arange(40, dtype=np.float32).reshape(5, 2, 4)


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
def test_a_cache_of_keras(options: Any) -> None:
    given, wanted = arrays(MODEL, "input/"), arrays(MODEL, "output/")
    with tercet.load(MODEL, **options) as loaded:
        for row, at in enumerate(given["at"]):
            found = loaded.run(given | {"at": np.array([at])})
            for name, results in wanted.items():
                np.testing.assert_array_equal(found[name], results[row], name)


def test_cuda_leaves_nothing() -> None:
    found = tercet.inspect(MODEL, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def computed(op: str, *inputs: Array, domain: str, dims: tuple[Any, ...] | None = None) -> Array:
    """Return the result of one node, whose first input has axes of sizes that are not known."""
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    infos = [
        helper.make_tensor_value_info(f"x{i}", kind, dims if dims and i == 0 else x.shape)
        for i, (kind, x) in enumerate(zip(kinds, inputs, strict=True))
    ]
    node = helper.make_node(op, [each.name for each in infos], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(TENSORFLOW, 1)]
    model = helper.make_model(graph, opset_imports=imports, producer_name="tf2onnx")
    with tercet.load(model) as loaded:
        return loaded.run({f"x{i}": x for i, x in enumerate(inputs)})["y"]


def placed(start: Any, sizes: Any) -> tuple[slice, ...]:
    pairs = zip(start, sizes, X.shape, strict=True)
    firsts = [(min(max(at, 0), whole - size), size) for at, size, whole in pairs]
    return tuple(slice(first, first + size) for first, size in firsts)


@pytest.mark.parametrize("dims", [None, ("a", "b", "c")])
@pytest.mark.parametrize("domain", ["", TENSORFLOW])
@pytest.mark.parametrize("start", [(1, 0, 2), (-1, 1, 1), (4, 9, 9), (0, 0, 0)])
@pytest.mark.parametrize("sizes", [(2, 2, 1), (5, 2, 4), (1, 1, 1), (5, 2, 3)])
def test_blocks_are_moved_inside(
    start: tuple[int, ...], sizes: tuple[int, ...], domain: str, dims: tuple[str, ...] | None
) -> None:
    at, where = np.array(start, np.int32), placed(start, sizes)
    update = -1 - np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    wanted = X.copy()
    wanted[where] = update
    found = computed("XlaDynamicUpdateSlice", X, update, at, domain=domain, dims=dims)
    np.testing.assert_array_equal(found, wanted)
    size = np.array(sizes, np.int32)
    found = computed("XlaDynamicSlice", X, at, size, domain=domain, dims=dims)
    np.testing.assert_array_equal(found, X[where])


def test_a_scalar_is_replaced() -> None:
    one, two, none = np.float32(1), np.float32(2), np.zeros(0, np.int32)
    assert computed("XlaDynamicUpdateSlice", np.array(one), np.array(two), none, domain="") == 2
