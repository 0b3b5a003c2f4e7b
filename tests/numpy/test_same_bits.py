"""Equal inputs give equal results, wherever they lie and whatever the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.backends.numpy.backend import NumpyBackend
from tercet.backends.numpy.numerics import blas
from tercet.backends.numpy.numerics.elementwise import ELEMENTWISE
from tercet.runtime.plan import host
from tercet.runtime.plan.weights import WeightStore

Array = np.ndarray[Any, Any]

TESTS = Path(__file__).parent.parent
#: Bytes behind a multiple of 64 at which inputs lie, and behind one of 256 for workspaces.
OFFSETS, SHIFT = (1, 4, 8, 16, 32), 4
#: How else the elements of an input may lie.
LAYOUTS = ("by columns", "backwards", "apart")
THREADS = (1, 2, 3, 8)
#: Elements of the operands of elementwise operators: no multiple of what a processor takes at once.
LONG = 203
#: Operators and the shapes of their operands, all but the first of which are constants.
LARGE: list[tuple[str, *tuple[tuple[int, ...], ...]]] = [
    ("MatMul", (32, 72), (72, 576)),
    ("MatMul", (2, 3000), (3000, 160)),
    ("Conv", (2, 24, 28, 28), (40, 24, 3, 3)),
    ("Conv", (1, 64, 56, 56), (64, 64, 3, 3)),
    ("Conv", (1, 128, 28, 28), (128, 128, 3, 3)),
    ("Conv", (1, 8, 24, 24), (32, 8, 1, 1)),
    ("Conv", (1, 576, 14, 14), (576, 1, 3, 3)),
    ("Det", (3, 300, 300)),
]
ELEMENTWISE_NAMES = {kind.__name__ for kind in ELEMENTWISE}


def left_out(core: str) -> list[str]:
    """Return what numpy's own loops do without: nothing, the widest vectors, or all."""
    umath: Any = import_module("numpy._core._multiarray_umath")
    features = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    widest = [name for name in features if "512" in name or name.endswith("V4")]
    return {"Zen": widest, "Nehalem": features}.get(core, [])


@pytest.mark.parametrize("core", ["Haswell", "Zen", "Nehalem"])
def test_memory_and_threads_change_no_bit(core: str) -> None:
    if blas.threads() is None:
        pytest.skip("numpy's BLAS is not OpenBLAS: OPENBLAS_CORETYPE chooses no other kernels")
    without = " ".join(left_out(core))
    environment = {"OPENBLAS_CORETYPE": core, "NPY_DISABLE_CPU_FEATURES": without}
    child = subprocess.run(
        [sys.executable, __file__], env=os.environ | environment, capture_output=True, text=True
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


# ── in a separate process ────────────────────────────────────────────────────────────────────


class Shifted(host.HostBuffer):
    """Memory that begins `shift` bytes behind a multiple of 256."""

    __slots__ = ()
    shift = 0

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes + SHIFT)
        self.memory = self.memory[self.shift : self.shift + nbytes]


def behind(data: Array, offset: int) -> Array:
    """Return a copy that begins so many bytes behind a multiple of 64."""
    memory = np.empty(data.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    placed = memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    placed[...] = data
    return placed


def laid(data: Array, how: str) -> Array:
    """Return a copy whose elements lie in another order, or apart."""
    if not data.ndim:
        return data
    if how == "by columns":
        return np.asfortranarray(data)
    if how == "backwards":
        return np.flip(np.ascontiguousarray(np.flip(data)))
    apart = np.empty((*data.shape[:-1], 2 * data.shape[-1]), data.dtype)[..., ::2]
    apart[...] = data
    return apart


def samples() -> Iterator[tuple[ModelProto, list[Array]]]:
    """Yield a model and its inputs for each operator and float of the tables of tests/ops."""
    sys.path.insert(0, str(TESTS.parent))
    model_of = import_module("tests.ops.case").model_of
    largest: dict[tuple[str, str], Any] = {}
    for file in sorted((TESTS / "ops").glob("cases_*.py")):
        for case in import_module(f"tests.ops.{file.stem}").CASES:
            floats = [x.dtype.name for x in case.inputs if x is not None and x.dtype.kind == "f"]
            if floats:
                key = case.op, floats[0]
                largest[key] = max(largest.get(key, case), case, key=size)
    for case in largest.values():
        if case.op in ELEMENTWISE_NAMES and not case.constants:
            longer = (x if x is None or not x.ndim else np.resize(x, LONG) for x in case.inputs)
            case = replace(case, inputs=tuple(longer))
        fed = [x for i, x in enumerate(case.inputs) if x is not None and i not in case.constants]
        yield model_of(case, case.inputs), fed


def size(case: Any) -> int:
    return sum(x.size for x in case.inputs if x is not None)


def large() -> Iterator[tuple[ModelProto, list[Array]]]:
    """Yield work for several threads, some of which can be done in more than one way."""
    rng = np.random.default_rng(1)
    for kind, *shapes in LARGE:
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        names = [f"x{i}" for i in range(len(arrays))]
        stored = [numpy_helper.from_array(x, n) for n, x in zip(names[1:], arrays[1:], strict=True)]
        group: dict[str, Any] = {}
        if kind == "Conv":
            group["group"] = shapes[0][1] // shapes[1][1]
        node = helper.make_node(kind, names, ["y"], **group)
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shapes[0])],
            [helper.make_empty_tensor_value_info("y")],
            stored,
        )
        opset = helper.make_opsetid("", 22)
        yield helper.make_model(graph, opset_imports=[opset], ir_version=10), arrays[:1]


def same(got: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether two lists of results are equal bit by bit."""
    pairs = zip(map(np.asarray, got), map(np.asarray, want), strict=True)
    return all((a.dtype, a.tobytes()) == (b.dtype, b.tobytes()) for a, b in pairs)


def copies(model: tercet.Model, arrays: Sequence[Array]) -> list[Any]:
    return [np.copy(result) for result in model.run(list(arrays)).values()]


def differences(proto: ModelProto, arrays: list[Array]) -> Iterator[str]:
    """Yield what should not decide on the results of a model of one node, and does."""
    Shifted.shift = 0
    with tercet.load(proto) as model:
        want = copies(model, arrays)
        for offset in OFFSETS:
            if not same(copies(model, [behind(x, offset) for x in arrays]), want):
                yield f"inputs {offset} bytes further on"
        for how in LAYOUTS:
            if not same(copies(model, [laid(x, how) for x in arrays]), want):
                yield f"inputs {how}"
        if len(model.graph.nodes) == 1:
            for place in alone(model, arrays):
                yield f"by itself: {place}"
    Shifted.shift = SHIFT
    with tercet.load(proto) as model:
        if not same(copies(model, arrays), want):
            yield f"a workspace {SHIFT} bytes further on"


def alone(model: tercet.Model, arrays: list[Array]) -> Iterator[str]:
    """Yield what decides on the results of a node that runs outside of a plan."""
    (node,) = model.graph.nodes
    feeds = dict(zip(model.graph.inputs, arrays, strict=True))

    def run(how: str = "") -> list[Any]:
        values = [
            None if v is None else v.data if v.is_constant
            else laid(feeds[v], how) if how else feeds[v]
            for v in node.inputs
        ]  # fmt: skip
        found = NumpyBackend().evaluate(node, values, WeightStore(host.HOST))
        return [np.array(result) for result in found]

    want = run()
    for how in LAYOUTS:
        if not same(run(how), want):
            yield f"inputs {how}"


def threaded(proto: ModelProto, arrays: list[Array]) -> Iterator[str]:
    """Yield the numbers of threads that give results of their own."""
    found: list[list[Any]] = []
    for count in THREADS:
        blas.set_threads(count)
        with tercet.load(proto) as model:
            found.append(copies(model, arrays))
            (node,) = model.graph.nodes
            values = [v.data if v.is_constant else arrays[0] for v in node.inputs if v]
            store = WeightStore(host.HOST)
            found.append([*NumpyBackend().evaluate(node, values, store)])
        for got, how in zip(found[-2:], ("", " by itself"), strict=True):
            if not same(got, found[0]):
                yield f"{count} threads{how}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for proto, arrays in large():
        for found in threaded(proto, arrays):
            print(proto.graph.node[0].op_type, [x.shape for x in arrays], found)
    host.HostBuffer = Shifted
    for proto, arrays in samples():
        for found in differences(proto, arrays):
            print(proto.graph.node[0].op_type, [(x.dtype, x.shape) for x in arrays], found)
