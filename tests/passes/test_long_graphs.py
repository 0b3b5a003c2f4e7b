"""Graphs of many nodes in a row: no recursion is as deep, and no work grows faster than they do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from cProfile import Profile
from traceback import walk_stack

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tercet
from tercet.tools.inspect.paper import paper_rows, target_of

#: Nodes of a block, given its number and what it reads; the last one's output is the next input.
Block = Callable[[str, str], list[NodeProto]]

make = helper.make_node
CONSTANTS = {
    "weights": np.eye(8, dtype=np.float32),
    "bias": np.ones(8, np.float32),
    "filters": np.ones((4, 4, 3, 3), np.float32),
    "first": np.array([0]),
    "second": np.array([1]),
    "half": np.array([2]),
    "end": np.array([99]),
}


def move(n: str, x: str) -> list[NodeProto]:
    """The first channel to the end of an image, computed."""
    return [
        make("Slice", [x, "first", "second", "second"], [f"{n}a"]),
        make("Sin", [f"{n}a"], [f"{n}b"]),
        make("Slice", [x, "second", "end", "second"], [f"{n}c"]),
        make("Concat", [f"{n}c", f"{n}b"], [f"{n}d"], axis=1),
    ]


def grow(n: str, x: str) -> list[NodeProto]:
    return [
        make("Slice", [x, "first", "half", "second"], [f"{n}a"]),
        make("Concat", [x, f"{n}a"], [f"{n}b"], axis=1),
    ]


BLOCKS: dict[str, Block] = {
    "relu": lambda n, x: [make("Relu", [x], [n])],
    "elementwise": lambda n, x: [make("Tanh", [x], [f"{n}a"]), make("Neg", [f"{n}a"], [n])],
    "gated": lambda n, x: [make("Sigmoid", [x], [f"{n}a"]), make("Mul", [x, f"{n}a"], [n])],
    "layers": lambda n, x: [
        make("MatMul", [x, "weights"], [f"{n}a"]),
        make("Add", [f"{n}a", "bias"], [n]),
    ],
    "residuals": lambda n, x: [make("Softmax", [x], [f"{n}a"]), make("Add", [f"{n}a", x], [n])],
    "convolutions": lambda n, x: [
        make("Conv", [x, "filters"], [f"{n}a"], pads=[1] * 4),
        make("Relu", [f"{n}a"], [n]),
    ],
    "transposes": lambda n, x: [
        make("Transpose", [x], [f"{n}a"], perm=[0, 1, 3, 2]),
        make("Tanh", [f"{n}a"], [n]),
    ],
    "moves": move,
    "concats": grow,
}


def graph_of(block: Block, count: int) -> bytes:
    nodes, value = list[NodeProto](), "x"
    while len(nodes) < count:
        nodes += block(f"n{len(nodes)}", value)
        value = nodes[-1].output[0]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "long",
        [helper.make_tensor_value_info("x", kind, [1, 4, 8, 8])],
        [helper.make_tensor_value_info(value, kind, None)],
        [numpy_helper.from_array(data, name) for name, data in CONSTANTS.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()


def planned(data: bytes) -> int:
    """Plan a model for the host and for a GPU; return the number of rows there."""
    with tercet.load(data) as model:
        return len(paper_rows(model, target_of("sm_90a")))


@contextmanager
def no_deeper(frames: int) -> Iterator[None]:
    """Allow that many calls within calls in the block."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(sum(1 for _ in walk_stack(None)) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("block", [*BLOCKS])
def test_no_recursion_is_as_deep_as_a_graph(block: str) -> None:
    data = graph_of(BLOCKS[block], 400)
    with no_deeper(300):
        assert planned(data)


@pytest.mark.parametrize("block", [*BLOCKS])
def test_work_grows_as_the_graph_does(block: str) -> None:
    """Twice as many nodes take about twice as many calls."""
    graphs = [graph_of(BLOCKS[block], size) for size in (100, 200)]
    planned(graphs[1])  # what is imported or kept is counted in neither
    few, many = map(_calls, graphs)
    assert many < 2.3 * few


def _calls(data: bytes) -> int:
    profile = Profile()
    profile.runcall(planned, data)
    return sum(each.callcount for each in profile.getstats())
