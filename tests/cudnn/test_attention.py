"""Attention in cuDNN's terms: what is claimed, how heads are laid out, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, bfloat16, bool_, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import BuildContext, Decline

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.attention import ScaledDotProduct
from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.choice import EngineTask
from tercet.backends.cudnn.graph import OperationGraph
from tercet.backends.cudnn.library import NoPlan
from tercet.backends.cudnn.registry import NodeGroup
from tercet.backends.cudnn.session import Session

Ints = tuple[int, ...]
HEADS: list[Ints | None] = [(8, 12, 128, 64)] * 3
ROWS: list[Ints | None] = [(8, 128, 768)] * 3


def graph_of(
    shapes: list[Ints | None], dtype: DType = float16, mask: DType | None = None, **attributes: Any
) -> Graph:
    """An Attention whose inputs have these shapes; a mask may have its own dtype."""
    graph = Graph()
    dtypes = [dtype, dtype, dtype, mask or dtype, dtype, dtype, np.dtype(np.int64)]
    inputs = [
        None if shape is None else graph.add_input(f"x{i}", TensorType(dtypes[i], shape))
        for i, shape in enumerate(shapes)
    ]
    node = graph.insert(Attention(**attributes), inputs, 4, name="attention")
    graph.set_outputs({"y": node.outputs[0]})
    infer(graph)
    return graph


def surveyed(graph: Graph) -> NodeGroup | str:
    (found,) = survey(graph, frozenset(graph.nodes), Options())
    return found.reason if isinstance(found, Decline) else found


def operation(shapes: list[Ints | None], dtype: DType = float16, **how: Any) -> ScaledDotProduct:
    found = surveyed(graph_of(shapes, dtype, **how))
    assert isinstance(found, NodeGroup), found
    (way,) = found.task.divisions
    assert isinstance(way.operation, ScaledDotProduct)
    return way.operation


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
def test_heads_of_four_axes_lie_as_they_are(dtype: DType) -> None:
    found = operation(HEADS, dtype)
    assert found.q.strides == (98304, 8192, 64, 1)
    assert found.scale == 0.125
    assert found.title == "sdpa"


def test_heads_side_by_side_are_read_by_strides() -> None:
    found = operation(ROWS, q_num_heads=12, kv_num_heads=12)
    assert found.q.dims == found.y.dims == (8, 12, 128, 64)
    assert found.q.strides == found.y.strides == (98304, 64, 768, 1)


def test_parts_of_one_product_are_read_where_they_lie() -> None:
    """What `merge_products` leaves: queries, keys and values are slices of longer rows."""
    found = surveyed(graph_of(ROWS, q_num_heads=12, kv_num_heads=12))
    assert isinstance(found, NodeGroup)
    assert found.at is not None
    (node,) = found.nodes
    inputs = node.distinct_reads
    nothing: Any = None
    site = BuildContext((node,), inputs, node.outputs[:1], {}, nothing, dict.fromkeys(inputs, 2304))
    task = found.at(site)
    assert isinstance(task, EngineTask)
    operands = task.operands
    assert operands["k"].strides == (294912, 64, 2304, 1)
    assert operands["y"].strides == (98304, 64, 768, 1)


@pytest.mark.parametrize("mask", [(128,), (128, 128), (8, 1, 1, 128), (1, 12, 128, 128)])
def test_masks_are_broadcast(mask: Ints) -> None:
    found = operation([*HEADS, mask])
    assert found.mask is not None
    assert found.mask.dims == (1, 1, 1, 1, *mask)[-4:]


@pytest.mark.parametrize(
    ("attributes", "bounds", "title"),
    [
        ({"is_causal": 1}, (None, 0), "sdpa+causal"),
        ({"left_window_size": 3}, (3, None), "sdpa+window"),
        ({"is_causal": 1, "left_window_size": 0, "right_window_size": 2}, (0, 0), "sdpa+window"),
        ({"right_window_size": 2}, (None, 2), "sdpa+causal"),
    ],
)
def test_keys_are_hidden_by_bounds(
    attributes: dict[str, int], bounds: tuple[int | None, int | None], title: str
) -> None:
    found = operation(HEADS, float16, **attributes)
    assert (found.left, found.right) == bounds
    assert found.title.startswith(title)


PAST = (8, 12, 16, 64)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (graph_of([*HEADS, None, PAST, PAST]), "past"),
        (graph_of([*HEADS, None, None, None, (8,)]), "sequence lengths"),
        (graph_of(HEADS, float64), "dtype float64"),
        (graph_of([*HEADS, (128, 128)], mask=bool_), "a mask of bool"),
        (graph_of([*HEADS, (128, 128)], bfloat16, float16), "float16 for queries of bfloat16"),
        (graph_of([*HEADS, (128, 100)]), "100 elements for 128 keys"),
        (graph_of([(1, 2, 8, 36)] * 3), "heads of 36 and 36"),
        (graph_of([(1, 2, 0, 64)] * 3), "without elements"),
        (graph_of([(1, 2, 8, 0)] * 3), "without elements"),
        (graph_of(HEADS, scale=-1.0), "scale -1.0"),
        (graph_of(HEADS, softcap=5.0, is_causal=1), "softcap and a window"),
        (graph_of(HEADS, softmax_precision=float64), "scores in float64"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_is_left(graph: Graph, said: str) -> None:
    reason = surveyed(graph)
    assert isinstance(reason, str)
    assert said in reason


def test_few_queries_in_float32_are_for_the_cuda_kernels_unless_asked_otherwise() -> None:
    graph = graph_of([(1, 12, 128, 64)] * 3, float32)
    reason = surveyed(graph)
    assert isinstance(reason, str)
    assert reason.startswith("float32 in 24 tiles of 64 queries")
    (found,) = survey(graph, frozenset(graph.nodes), Options(algorithms={"Attention": "cudnn"}))
    assert isinstance(found, NodeGroup)


def test_few_keys_are_left_to_the_cuda_kernels() -> None:
    shapes: list[Ints | None] = [(1, 2, 100, 64), (1, 2, 63, 64), (1, 2, 63, 64)]
    found = surveyed(graph_of(shapes))
    assert isinstance(found, str)
    assert found.startswith("63 keys")
    assert operation([shapes[0], *[(1, 2, 64, 64)] * 2]).k.dims[2] == 64


def test_scores_that_are_wanted_are_left() -> None:
    graph = graph_of(HEADS)
    graph.set_outputs({"y": graph.nodes[0].outputs[0], "scores": graph.nodes[0].outputs[3]})
    assert surveyed(graph) == "keys, values or scores are read in addition to the result"


# ── what cuDNN says ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (HEADS, {}),
        ([*HEADS, (8, 1, 1, 128)], {"is_causal": 1, "left_window_size": 4}),
        ([(1, 8, 1, 64), (1, 2, 300, 64), (1, 2, 300, 128)], {}),
        (HEADS, {"softcap": 5.0}),
    ],
)
def test_cudnn_takes_the_graph(
    shapes: list[Ints | None], attributes: dict[str, Any], session: Session
) -> None:
    """As far as the frontend checks it; its engines are compiled, which a GPU's driver must do."""
    OperationGraph(session, operation(shapes, **attributes), None)


def test_cudnn_refuses_with_its_reason(session: Session) -> None:
    shapes: list[Ints | None] = [(1, 2, 100, 64), (1, 2, 72, 64), (1, 2, 72, 64)]
    with pytest.raises(
        NoPlan, match=r"sdpa\+window .*: Sliding window attention is only supported"
    ):
        OperationGraph(session, operation(shapes, left_window_size=4), None)
