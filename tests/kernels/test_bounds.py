"""Sizes at the ends of what CUDA launches and kernels count to: a recipe, or a reason."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet.backends.cuda as cuda
from tercet.backends.cuda.recipe.arguments import MAX_BLOCKS, TooLarge
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Struct
from tercet.backends.cuda.recipe.source import begins_early
from tercet.runtime.errors import TercetError
from tercet.runtime.ir.dtypes import float32, int32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import TensorType

from .dry import launches, planned

KERNELS = Path(cuda.__file__).with_name("kernels")
SIZES = (65536, 2**22 + 1, 2**31 - 1, 2**31, 2**31 + 8, 3 * 10**9)
#: Operators with the shapes of what they read for a size n; arrays are constants.
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "MatMul right": (lambda n: [(3, 16), (16, n)], {}),
    "MatMul left": (lambda n: [(n, 16), (16, 3)], {}),
    "MatMul terms": (lambda n: [(1, n), (n, 64)], {}),
    "MatMul stack": (lambda n: [(n, 4, 4), (n, 4, 4)], {}),
    "Gemm": (lambda n: [(n, 4), (4, 4)], {}),
    "BatchNormalization": (lambda n: [(1, 1, 2, n), *[(1,)] * 4], {}),
    "Transpose": (lambda n: [(2, 3, n)], {"perm": (2, 0, 1)}),
    "TopK": (lambda n: [(n, 2), np.array([1])], {}),
    "MaxPool": (lambda n: [(1, 1, 1, n)], {"kernel_shape": (1, 2)}),
    "Conv": (lambda n: [(1, 1, 1, n), np.ones((1, 1, 1, 3))], {}),
    "ConvTranspose": (lambda n: [(1, 1, 1, n), np.ones((1, 1, 1, 3))], {}),
    "Softmax": (lambda n: [(n, 4)], {}),
    "LayerNormalization": (lambda n: [(2, n), (n,)], {}),
    "InstanceNormalization": (lambda n: [(1, 2, n), (2,), (2,)], {}),
    "ReduceSum": (lambda n: [(3, n), np.array([1])], {}),
    "ArgMax": (lambda n: [(n, 3)], {"axis": 1}),
    "Resize": (lambda n: [(1, n), None, None, np.array([1, n // 2])], {}),
    "Gather": (lambda n: [(n,), np.array([1, 2])], {}),
    "Pad": (lambda n: [(n,), np.array([1, 1])], {}),
    "CumSum": (lambda n: [(n, 2), np.array(0)], {}),
    "Attention queries": (lambda n: [(1, 1, n, 8), (1, 1, 8, 8), (1, 1, 8, 8)], {}),
    "Attention heads": (lambda n: [(n, 1, 8, 8), (n, 1, 8, 8), (n, 1, 8, 8)], {}),
    "LRN": (lambda n: [(1, n, 1, 1)], {"size": 3}),
    "DepthToSpace": (lambda n: [(1, 4, 1, n)], {"blocksize": 2}),
    "Add": (lambda n: [(n,), (1,)], {}),
}


def graph_of(name: str, size: int, dtype: Any) -> Graph:
    operator = name.split()[0]
    shapes, attributes = SHAPES[name]
    graph = Graph(name)
    values = [
        None
        if shape is None
        else graph.constant(shape.astype(dtype) if shape.dtype == np.float64 else shape)
        if isinstance(shape, np.ndarray)
        else graph.add_input(f"x{i}", TensorType(np.dtype(dtype), shape))
        for i, shape in enumerate(shapes(size))
    ]
    node = graph.insert(OPERATORS["", operator](**attributes), values, 1 + (operator == "TopK"))
    graph.set_outputs({value.name: value for value in node.outputs})
    infer(graph)
    return graph


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_grids_are_legal(name: str, dtype: Any) -> None:
    for size in SIZES:
        with suppress(TercetError):
            for launch in launches(planned(graph_of(name, size, dtype))):
                pairs = zip(launch.grid, MAX_BLOCKS, strict=True)
                assert all(blocks <= maximum for blocks, maximum in pairs), size


def test_wide_products_have_all_tiles_along_x() -> None:
    (launch,) = launches(planned(graph_of("MatMul right", 2**23, np.float32)))[-1:]
    assert launch.entry != "gemm" or dict(launch.constants)["WIDE"] == (launch.grid[1] == 1)


def test_what_is_too_large_says_so() -> None:
    args = {"x": None, "sums": None, "y": None, "count": 1, "parts": {"count": 1, "chunk": 2**31}}
    types = (("X", float32), ("R", float32), ("A", float32), ("I", int32))
    with pytest.raises(TooLarge, match="32 bits"):
        Launch("norm/softmax_rows.cu", "softmax_rows", (1, 1, 1), 32, args, types)
    with pytest.raises(TooLarge, match="a grid of 1 x 65536 x 1 blocks"):
        Launch("a.cu", "a", (1, 65536, 1), 32, {})


def test_what_waits_begins_early() -> None:
    """A kernel that is launched early waits for the one in front: others rely on its end."""
    heads = re.compile(r'extern "C" __global__ void\b[^{]*?\b(?!__launch_bounds__)(\w+)\s*\(')
    early: set[str] = set()
    for path in KERNELS.rglob("*.cu"):
        text, file = path.read_text("utf-8"), path.relative_to(KERNELS).as_posix()
        found = {entry for entry in heads.findall(text) if begins_early(file, entry)}
        assert bool(found) == ("grid_dependency_sync();" in text), file
        early |= found
    assert len(early) > 30
    # One calls it in a struct's function, one in a function, one is beside another that does.
    assert {"split_wgmma", "scale", "pad"} <= early
    assert not begins_early("move/pad_trilu.cu", "triangle")


def test_blocks_of_a_cluster_have_one_item_each() -> None:
    """The kernel's loaders count on it."""
    found: list[Launch] = []
    for m, n, k in itertools.product((32, 128, 512), (64, 256), (1024, 8192)):
        graph = Graph("g")
        x = graph.add_input("x", TensorType(np.dtype(np.float32), (m, k)))
        w = graph.constant(np.ones((k, n), np.float32))
        graph.set_outputs({"y": graph.insert(OPERATORS["", "MatMul"](), [x, w]).output})
        infer(graph)
        found += [one for one in launches(planned(graph)) if one.file == "gemm/wgmma_rs.cu"]
    clusters = [launch for launch in found if launch.cluster != (1, 1, 1)]
    assert clusters
    for launch in clusters:
        work = launch.args["work"]
        assert isinstance(work, Struct)
        assert work["items"] == launch.grid[:1]
