"""Normalizations in cuDNN's terms, what it does not do, and why nothing is reduced there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64, name_of
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS, Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Gelu, Relu
from tercet.runtime.ops.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Decline

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.epilogue import rest_launch
from tercet.backends.cudnn.graph import OperationGraph
from tercet.backends.cudnn.norm import Normalization
from tercet.backends.cudnn.pointwise import Pointwise
from tercet.backends.cudnn.registry import NodeGroup
from tercet.backends.cudnn.session import Session

Ints = tuple[int, ...]


def surveyed(
    op: Op,
    shape: Ints,
    *constants: Ints,
    dtype: DType = float32,
    computed: Sequence[Ints] = (),
    behind: Op | None = None,
    **how: Any,
) -> NodeGroup | Decline:
    """Return what becomes of a node of inputs and constants of these shapes."""
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, shape))
    inputs = [graph.constant(np.ones(s, dtype)) for s in constants]
    inputs += [graph.add_input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(computed)]
    y = graph.insert(op, [x, *inputs], how.pop("outputs", 1)).outputs
    if behind is not None:
        y = graph.insert(behind, [y[0]]).outputs
    graph.set_outputs({value.name: value for value in y})
    infer(graph)
    (found,) = survey(graph, frozenset(graph.nodes), Options(**how))
    return found


def wanted(*given: Any, **how: Any) -> NodeGroup:
    found = surveyed(*given, **how)
    assert isinstance(found, NodeGroup), found
    return found


def reason(*given: Any, **how: Any) -> str:
    found = surveyed(*given, **how)
    assert isinstance(found, Decline), found
    return found.reason


def first(found: NodeGroup) -> Normalization:
    operation = found.task.divisions[0].operation
    assert isinstance(operation, Normalization)
    return operation


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=name_of)
def test_rows_of_the_last_axes(dtype: DType) -> None:
    found = first(wanted(LayerNormalization(axis=-2), (4, 5, 8, 96), (8, 96), (8, 96), dtype=dtype))
    assert (found.kind, found.x.dims, found.scale.dims) == (
        *("layernorm", (20, 768, 1, 1), (1, 768, 1, 1)),
    )
    root = first(wanted(RMSNormalization(), (4, 768), (768,), dtype=dtype))
    assert (root.kind, root.results) == ("rmsnorm", ("y",))
    assert "bias" not in root.operands


def test_a_shift_that_is_left_out_is_zero() -> None:
    found = wanted(LayerNormalization(), (4, 768), (768,))
    bias = found.reads["bias"]
    assert isinstance(bias, Packed)
    assert not bias.pack(np.ones(768, np.float32)).any()


def test_mean_and_deviation_are_given_together() -> None:
    op, shapes = LayerNormalization(), ((4, 768), (768,), (768,))
    assert first(wanted(op, *shapes, outputs=3)).results == ("y", "mean", "deviation")
    assert "only one of mean and deviation" in reason(op, *shapes, outputs=2)


def test_what_follows_rows_is_in_the_graph_or_behind_it() -> None:
    found = wanted(LayerNormalization(), (4, 768), (768,), (768,), behind=Gelu())
    titles = [(way.operation.title, way.rest.title) for way in found.task.divisions]
    assert titles == [("layernorm+gelu", ""), ("layernorm", "gelu")]


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "text"),
    [
        (LayerNormalization(), ((4, 768), (1,)), float32, "scale float32[1] for rows of 768"),
        (LayerNormalization(), ((4, 1000), (1000,)), float32, "rows of 4000 bytes, not a multiple"),
        (LayerNormalization(), ((4, 96), (96,)), float16, "rows of 192 bytes, not a multiple"),
        (RMSNormalization(), ((1, 1 << 20), (1 << 20,)), float16, "cuDNN compiles for 17 s"),
        (LayerNormalization(), ((4, 768), (768,)), float64, "dtype float64; cuDNN normalizes"),
        (InstanceNormalization(), ((0, 3, 4, 4), (3,), (3,)), float32, "without elements"),
    ],
)
def test_what_is_declined(op: Op, shapes: tuple[Ints, ...], dtype: DType, text: str) -> None:
    assert text in reason(op, *shapes, dtype=dtype)


def test_what_is_slow_can_be_asked_for() -> None:
    asked = {"algorithms": {"LayerNormalization": "cudnn"}}
    assert first(wanted(LayerNormalization(), (4, 1000), (1000,), **asked)).x.dims[1] == 1000


def test_images_lose_their_shape() -> None:
    found = first(wanted(InstanceNormalization(), (2, 3, 4, 5, 6), (3,), (3,)))
    assert (found.kind, found.x.dims, found.scale.dims) == (
        *("instancenorm", (2, 3, 120, 1), (1, 3, 1, 1)),
    )


def test_groups_of_channels_are_scaled_behind() -> None:
    given = (GroupNormalization(num_groups=2), (2, 6, 4, 5), (6,), (6,))
    assert "has not been measured" in reason(*given)
    found = wanted(*given, algorithms={"GroupNormalization": "cudnn"})
    (way,) = found.task.divisions
    assert first(found).x.dims == (2, 2, 3, 20)
    launch, places = rest_launch(way.rest, "y", first(found).y)
    assert sorted(places.values()) == ["factor", "shift", "y", "y"]
    assert launch.note == "Mul+Add"


def test_a_batch_normalization_is_pointwise() -> None:
    statistics = [(64,)] * 4
    found = wanted(BatchNormalization(), (1, 64, 256, 256), *statistics, behind=Relu())
    operation = found.task.divisions[0].operation
    assert isinstance(operation, Pointwise)
    assert [str(stage) for stage in operation.stages] == [
        *("Mul()(x0, x1)", "Add()(v0, x2)", "Relu()(v1)"),
    ]
    factor = found.reads["x1"]
    assert isinstance(factor, Packed)
    packed = factor.pack(*np.array([[6], [2], [1], [8.99999]], np.float32))
    np.testing.assert_allclose(packed, [2], rtol=1e-6)
    assert "training_mode" in reason(
        BatchNormalization(training_mode=1), (1, 64, 8, 8), *statistics, outputs=3
    )
    assert "computed" in reason(BatchNormalization(), (1, 64, 8, 8), computed=statistics)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod", "L2", "LogSumExp"])
def test_nothing_is_reduced(kind: str) -> None:
    assert reason(OPERATORS["", f"Reduce{kind}"](), (64, 64)).startswith("cuDNN")


def test_cudnn_accepts_the_graphs(session: Session) -> None:
    """Their engines are compiled at run time, which needs a driver; shapes and words do not."""
    statistics = [(64,)] * 4
    for found in (
        wanted(LayerNormalization(), (4, 768), (768,), (768,), behind=Gelu()),
        wanted(LayerNormalization(), (4, 768), (768,), outputs=3),
        wanted(RMSNormalization(), (4, 768), (768,), dtype=float16),
        wanted(InstanceNormalization(), (2, 3, 4, 5), (3,), (3,)),
        wanted(BatchNormalization(), (1, 64, 256, 256), *statistics),
    ):
        for way in found.task.divisions:
            graph = OperationGraph(session, way.operation, None)
            assert set(graph.tensors) == set(way.operation.operands)
