"""Recurrent layers whose inputs and results are read and written where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.session.model import Model

from ..ops.case import Case, compare, expected, feeds_of, model_of
from ..ops.cases_recurrent import GATES, layer
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_recurrent import run

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

BOTH = "bidirectional"
#: Nodes as their operators with an order of axes, or with sizes.
Moves = Sequence[tuple[str, tuple[int, ...]]]
FIRST: Moves = (("Transpose", (1, 0, 2)),)
JOINED: Moves = (("Transpose", (0, 2, 1, 3)), ("Reshape", (0, 0, -1)))
LAST: Moves = (("Reshape", (5, 3, -1)), *FIRST)


def moved(case: Case, before: Moves, behind: Moves) -> tuple[ModelProto, dict[str, Any]]:
    """Return a layer behind some nodes and before others, and what it is fed."""
    model, feeds = model_of(case, case.inputs), feeds_of(case, case.inputs)
    (node,), (x, *_) = model.graph.node, model.graph.input
    inverse = feeds[x.name]
    for _, order in reversed(before):
        inverse = inverse.transpose(np.argsort(order))
    feeds[x.name] = np.ascontiguousarray(inverse)
    for dim, size in zip(x.type.tensor_type.shape.dim, inverse.shape, strict=True):
        dim.dim_value = size
    nodes = [node]
    read, wrote = node.input[0], node.output[0]
    for i, (operator, numbers) in enumerate(before):
        nodes.insert(i, helper.make_node(operator, [read], [f"before{i}"], perm=numbers))
        read = f"before{i}"
    for i, (operator, numbers) in enumerate(behind):
        sizes = [] if operator == "Transpose" else [f"sizes{i}"]
        more: dict[str, Any] = {"perm": numbers} if operator == "Transpose" else {}
        name = wrote if i == len(behind) - 1 else f"behind{i}"
        nodes.append(helper.make_node(operator, [f"behind{i - 1}", *sizes], [name], **more))
        if sizes:
            array = np.array(numbers, np.int64)
            model.graph.initializer.append(numpy_helper.from_array(array, sizes[0]))
    node.input[0] = read
    node.output[0] = "behind-1" if behind else wrote
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model, feeds


def both(
    model: ModelProto, feeds: dict[str, Any], backend: CudaBackend
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each result of a backend, and onnxruntime's."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted: Sequence[Any] = session.run(None, feeds)
    with tercet.load(model) as loaded:
        graph = loaded.imported
    with Model(graph, (backend,), OPTIONS, evaluate) as prepared:
        results = map(np.asarray, prepared.run(feeds).values())
        return list(zip(results, wanted, strict=True))


SOME = {
    "batch first": (layer("LSTM", direction=BOTH, lengths=(5, 2, 3)), FIRST, (*JOINED, *FIRST)),
    "states": (layer("GRU", states=True, linear_before_reset=1), FIRST, LAST),
    "steps": (layer("GRU", direction=BOTH), FIRST, (*JOINED, *FIRST)),
    "reversed": (layer("RNN", direction="reverse"), FIRST, LAST),
    "input": (layer("LSTM", direction=BOTH), FIRST, ()),
    "result": (layer("LSTM", direction=BOTH, peepholes=True), (), JOINED),
    "directions apart": (layer("LSTM", direction=BOTH), (), (("Transpose", (1, 2, 0, 3)),)),
}
#: Those whose states are not rows of the result, or whose rows are not those of the input.
APART = {
    "channels": (layer("LSTM", direction=BOTH), FIRST, (*JOINED, ("Transpose", (1, 2, 0)))),
    "columns": (layer("LSTM", size=6), (("Transpose", (1, 2, 0)),), LAST),
}


@needs_compiler
@pytest.mark.parametrize("case", (SOME | APART).values(), ids=SOME | APART)
def test_emulated(emulated: CudaBackend, case: tuple[Case, Moves, Moves]) -> None:
    model, feeds = moved(*case)
    for got, want in both(model, feeds, emulated):
        compare(got, want, case[0].error)


@needs_compiler
def test_an_input_of_another_type(emulated: CudaBackend) -> None:
    """Kernels of a layer read one type: what is cast as it is moved is not read in place."""
    model, feeds = moved(layer("GRU", states=True, linear_before_reset=1), FIRST, LAST)
    (x, *_), first = model.graph.input, model.graph.node[0]
    cast = helper.make_node("Cast", [x.name], ["wide"], to=TensorProto.FLOAT)
    first.input[0] = "wide"
    model.graph.node.insert(0, cast)
    x.type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds[x.name] = feeds[x.name].astype(np.float16)
    for got, want in both(model, feeds, emulated):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("op", GATES)
def test_layout_1(emulated: CudaBackend, op: str) -> None:
    """Which onnxruntime does not have: the batch is the first axis of x, of y and of states."""
    case = layer(op, states=True, direction=BOTH, lengths=(5, 2, 3))
    inputs = [
        x if x is None or i not in (0, 5, 6) else x.transpose(1, 0, 2)
        for i, x in enumerate(case.inputs)
    ]
    attributes = {**case.attributes, "layout": 1}
    y, *ends = run(replace(case, inputs=tuple(inputs), attributes=attributes), emulated)
    found = (y.transpose(1, 2, 0, 3), *(end.transpose(1, 0, 2) for end in ends))
    for got, want in zip(found, expected(case), strict=True):
        compare(got, np.asarray(want), case.error)


@pytest.mark.parametrize("case", SOME.values(), ids=SOME)
def test_nothing_is_copied(case: tuple[Case, Moves, Moves]) -> None:
    model, _ = moved(*case)
    with tercet.load(model) as loaded:
        found = launches(planned(loaded.graph, DryDevice(compiler=DryCompiler(H200))))
    assert not [launch.entry for launch in found if "copy" in launch.entry]
