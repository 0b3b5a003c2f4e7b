"""Rows of several tables that one Concat joins are those of one: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet
from tercet.runtime.errors import TercetError

from .graphs import kinds

COUNT, WIDTH = 5, 3
SIZES = (4, 2, 6, 3, 5)


def network(
    axis: int, indices: str, *, with_others: bool = False, samples: str = "4"
) -> ModelProto:
    """Return lookups by each ``column`` of a tensor, by ``columns`` in disorder, or ``inputs``."""
    lines, names, inputs = list[str](), list[str](), list[str]()
    for i, size in enumerate(SIZES):
        numbers = ", ".join(f"{i}.{n}" for n in range(1, size * WIDTH + 1))
        lines.append(f"t{i} = Constant <value = float[{size},{WIDTH}] {{{numbers}}}> ()")
        if indices == "inputs":
            inputs.append(f"int64[{samples}] c{i}")
        else:
            place = i if indices == "column" else COUNT - 1 - i
            lines.append(f"p{i} = Constant <value = int64 {{{place}}}> ()")
            lines.append(f"c{i} = Gather <axis = 1> (ids, p{i})")
        lines.append(f"g{i} = Gather (t{i}, c{i})")
        lines.append(f"r{i} = Unsqueeze (g{i}, one)" if axis == 1 else f"r{i} = Identity (g{i})")
        names.append(f"r{i}")
    if indices != "inputs":
        inputs.append(f"int64[{samples},{COUNT}] ids")
    if with_others:
        inputs.append(f"float[{samples},{WIDTH}] x")
        lines.append("y0 = Unsqueeze (x, one)" if axis == 1 else "y0 = Identity (x)")
        names = ["y0", *names, "y0"]
    shape = f"{samples},n,{WIDTH}" if axis == 1 else f"{samples},n"
    body = "\n".join([*lines, f"y = Concat <axis = {axis}> ({', '.join(names)})"])
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    signature = f"g ({', '.join(inputs)}) => (float[{shape}] y) <int64[1] one = {{1}}>"
    return parse_model(f"{header} {signature} {{ {body} }}")


def feeds_of(proto: ModelProto, samples: int = 4) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(0), dict[str, np.ndarray]()
    for value in proto.graph.input:
        if value.name == "x":
            feeds["x"] = rng.standard_normal((samples, WIDTH)).astype(np.float32)
        elif value.name == "ids":
            columns = [rng.integers(-min(SIZES), min(SIZES), samples) for _ in SIZES]
            feeds["ids"] = np.stack(columns, 1)
        else:
            size = SIZES[int(value.name[1:])]
            feeds[value.name] = rng.integers(-size, size, samples)
    return feeds


@pytest.mark.parametrize("with_others", [False, True])
@pytest.mark.parametrize("indices", ["column", "columns", "inputs"])
@pytest.mark.parametrize("axis", [1, -1])
def test_lookups(axis: int, indices: str, with_others: bool) -> None:
    check(network(axis, indices, with_others=with_others), 4, 1 + (indices == "columns"))


@pytest.mark.parametrize(("samples", "count"), [("1", 1), ("batch", 3)])
@pytest.mark.parametrize("indices", ["column", "inputs"])
@pytest.mark.parametrize("axis", [1, -1])
def test_any_number_of_samples(axis: int, indices: str, samples: str, count: int) -> None:
    check(network(axis, indices, with_others=True, samples=samples), count, 1)


@pytest.mark.parametrize(("samples", "count"), [("1", 1), ("4", 4), ("batch", 3)])
@pytest.mark.parametrize("indices", ["column", "inputs"])
def test_what_is_joined_twice(indices: str, samples: str, count: int) -> None:
    """Each row of DeepFM is one of a matrix, and part of a longer one, and may be read alone."""
    proto = network(1, indices, samples=samples)
    names = ", ".join(f"g{i}" for i in range(COUNT))
    text = f"{{ wide = Concat <axis = 1> ({names}) sums = Add (g0, g2) }}"
    add_results(proto, text, f"float[{samples},n] wide, float[{samples},{WIDTH}] sums")
    check(proto, count, 1)


@pytest.mark.parametrize(("samples", "count"), [("1", 1), ("4", 4), ("batch", 3)])
@pytest.mark.parametrize("indices", ["column", "inputs"])
def test_along_the_first_axis(indices: str, samples: str, count: int) -> None:
    """One matrix of rows for each table."""
    proto = network(1, indices, samples=samples)
    names = ", ".join(f"f{i}" for i in range(COUNT))
    lines = [f"f{i} = Unsqueeze (g{i}, zero)" for i in range(COUNT)]
    text = "{ " + "\n".join([*lines, f"y = Concat <axis = 0> ({names})"]) + " }"
    kept = [node for node in proto.graph.node if node.op_type not in ("Unsqueeze", "Concat")]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    add_results(proto, text, f"float[n,{samples},{WIDTH}] y", replaces=True)
    check(proto, count, 1)


def add_results(proto: ModelProto, text: str, outputs: str, *, replaces: bool = False) -> None:
    """Append nodes and results, the latter instead of the others if they replace these."""
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    more = parse_model(f"{header} g () => ({outputs}) <int64[1] zero = {{0}}> {text}").graph
    if replaces:
        del proto.graph.output[:]
    proto.graph.node.extend(more.node)
    proto.graph.output.extend(more.output)
    proto.graph.initializer.extend(more.initializer)


def check(proto: ModelProto, samples: int, gathers: int) -> None:
    """Compare with onnxruntime, and the number of Gathers with the one expected."""
    feeds = feeds_of(proto, samples)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with tercet.load(proto) as model:
        assert kinds(model.graph).count("Gather") == gathers
        found = model.run(feeds)
    names = [value.name for value in proto.graph.output]
    for name, expected in zip(names, session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize("place", [SIZES[1], -SIZES[1] - 1])
def test_an_index_outside_of_its_table_is_an_error(place: int) -> None:
    proto = network(1, "inputs")
    feeds = feeds_of(proto)
    feeds["c1"][2] = place
    with tercet.load(proto) as model, pytest.raises(TercetError):
        model.run(feeds)
