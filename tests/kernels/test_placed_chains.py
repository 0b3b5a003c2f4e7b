"""Few elements that are read and stored where indices say: one kernel with what computes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, int32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Abs, Add, Cast, Less, Mul, Neg, Relu, Sub, Where
from tercet.runtime.ops.gather import GatherElements, ScatterElements, ScatterND
from tercet.runtime.ops.reduce import ArgMax
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile
from .dry import Net, files_of, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample_of_graph

COMPILES = {"elementwise/placed.cu"}
(FILE,) = COMPILES


def shaped(net: Net, value: Value, *dims: int) -> Value:
    return net.apply(Reshape(), value, np.array(dims, np.int64))


def indices(net: Net, data: list[int] | list[list[int]], dtype: DType = int64) -> Value:
    """An input of these numbers."""
    given = np.array(data, dtype)
    value = net.input(*given.shape, dtype=dtype)
    net.feeds[value.name] = given
    return value


def step(net: Net, batch: int, dtype: DType = float32, room: int = 1) -> Graph:
    """The end of a decoding step: a token, a row of a table, and the number of rows."""
    scores, count = net.input(batch, 70, dtype=dtype), indices(net, [3])
    tokens = indices(net, np.arange(batch * room).reshape(batch, room).tolist())
    table = indices(net, np.arange(5 * batch).reshape(5, batch).tolist())
    token = net.apply(ArgMax(axis=1), scores)
    greatest = net.apply(GatherElements(axis=1), scores, token)
    limit = np.array(np.inf, dtype)
    is_finite = net.apply(Less(), net.apply(Abs(), greatest), limit)
    chosen = net.apply(Where(), is_finite, token, np.array(-1))
    place = np.full((batch, 1), room - 1)
    return net.outputs(
        net.apply(ScatterND(), table, shaped(net, count, 1, 1), shaped(net, chosen, 1, batch)),
        net.apply(ScatterElements(axis=1), tokens, place, token),
        net.apply(Sub(), count, np.array([-1])),
    )


def columns(net: Net) -> Graph:
    """Elements of a column for each row, of which a function replaces others, from the end too."""
    x, y = net.input(9, 6), net.input(4, 6)
    chosen = net.apply(GatherElements(axis=0), x, indices(net, [[0, -1, 8, 3, -9, 3]], int32))
    made = net.apply(Mul(), chosen, net.apply(Neg(), net.input(6)))
    places = indices(net, [[3, 1, -1, -4, 0, 2]], int32)
    return net.outputs(net.apply(ScatterElements(axis=0), y, places, made), net.apply(Relu(), made))


def typed(net: Net) -> Graph:
    """Numbers of another type, which replace one of several rows."""
    x, rows = net.input(1, 5), net.input(3, 5, dtype=float16)
    low = net.apply(Cast(to=float16), net.apply(Add(), x, net.input(1)))
    return net.outputs(net.apply(ScatterND(), rows, indices(net, [[-2]]), low))


def rows(net: Net) -> Graph:
    """Elements of which several have one factor."""
    made = net.apply(Mul(), net.input(1, 2, 3), net.input(3))
    found = net.apply(ScatterND(), net.input(4, 2, 3), indices(net, [[1]]), made)
    return net.outputs(found, net.apply(Neg(), net.input(1)))


GRAPHS: dict[str, Callable[[Net], Graph]] = {
    "step of one": lambda net: step(net, 1),
    "step of five": lambda net: step(net, 5, float16),
    "step with all tokens": lambda net: step(net, 3, room=4),
    "columns": columns,
    "types": typed,
}


def samples() -> list[Sample]:
    """Return what runs under compute-sanitizer on a GPU; see tests/gpu/test_cuda_samples.py."""
    return [sample_of_graph(build) for build in GRAPHS.values()]


@pytest.mark.parametrize("name", GRAPHS)
def test_one_kernel(name: str) -> None:
    assert files_of(sample_of_graph(GRAPHS[name]).graph).count(FILE) == 1


@pytest.mark.parametrize("batch", [1, 5])
def test_all_at_the_end_of_a_step(batch: int) -> None:
    """But the ArgMax, and copies of what is replaced: inputs are not overwritten."""
    found = [file for file in files_of(step(Net(1), batch)) if file != FILE]
    assert {file.partition("/")[0] for file in found} == {"reduce", "move"}
    assert not any("scatter" in file or "gather" in file for file in found)


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_results(name: str, emulated: CudaBackend) -> None:
    compare(sample_of_graph(GRAPHS[name]), emulated)


@needs_compiler
@pytest.mark.parametrize("worst", [np.nan, np.inf])
def test_scores_that_are_not_finite(worst: float, emulated: CudaBackend) -> None:
    net = Net(1)
    graph = step(net, 3)
    scores = next(data for data in net.feeds.values() if data.dtype == np.float32)
    scores[1, 7] = worst
    compare(Sample(graph, net.feeds), emulated)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    plans = [launches(planned(build(Net(1)))) for build in GRAPHS.values()]
    sources = [launch.source for plan in plans for launch in plan if launch.source.file == FILE]
    all_compile(sources, target, cache, COMPILES)


def updated(net: Net, rows: int, width: int, places: list[list[int]], *, read: bool) -> Graph:
    """A function of elements that replace others; the result may have another reader."""
    made = net.apply(Neg(), net.input(len(places), len(places[0])))
    found = net.apply(ScatterElements(axis=1), net.input(rows, width), indices(net, places), made)
    return net.outputs(net.apply(Relu(), found) if read else found)


@needs_compiler
@pytest.mark.parametrize(
    ("places", "read"),
    [([[0, 2], [1, 0]], False), ([[0], [1]], True), ([[0]] * 300, False)],
    ids=["two in a line", "read", "many"],
)
def test_others_are_kernels_of_their_own(
    places: list[list[int]], read: bool, emulated: CudaBackend
) -> None:
    net = Net(1)
    graph = updated(net, len(places), 3, places, read=read)
    assert FILE not in files_of(graph)
    compare(Sample(graph, net.feeds), emulated)


@needs_compiler
def test_repeated_elements_are_computed_before(emulated: CudaBackend) -> None:
    net = Net(1)
    graph = rows(net)
    assert FILE not in files_of(graph)
    compare(Sample(graph, net.feeds), emulated)


@needs_compiler
def test_indices_that_are_computed_are_read(emulated: CudaBackend) -> None:
    """What computes an index is another kernel: this one begins by reading it."""
    net = Net(1)
    places = net.apply(Sub(), indices(net, [[1], [2]]), np.array(1))
    x, made = net.input(2, 3), net.apply(Neg(), net.input(2, 1))
    graph = net.outputs(net.apply(ScatterElements(axis=1), x, places, made))
    assert files_of(graph).count(FILE) == 1
    compare(Sample(graph, net.feeds), emulated)


#: What is computed of elements before others are placed there, or chosen from there.
BEFORE: dict[str, Callable[[Net, Value, Value, Value], Value]] = {
    "updates a view": lambda net, x, at, u: net.apply(
        ScatterElements(axis=1),
        shaped(net, net.apply(ArgMax(axis=1), net.input(2, 3)), 2, 1),
        at,
        u,
    ),
    "updates the same": lambda net, x, at, u: net.apply(
        ScatterElements(axis=1), net.apply(Neg(), u), at, u
    ),
    "updates others": lambda net, x, at, u: net.apply(
        ScatterElements(axis=1), net.apply(Neg(), x), at, u
    ),
    "places": lambda net, x, at, u: net.apply(ScatterElements(axis=1), x, net.apply(Relu(), u), u),
    "chooses": lambda net, x, at, u: net.apply(
        ScatterElements(axis=1), x, at, net.apply(GatherElements(axis=1), net.apply(Neg(), u), at)
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", BEFORE)
def test_what_is_placed_is_computed_before(name: str, emulated: CudaBackend) -> None:
    net = Net(1)
    x, at, u = indices(net, [[5], [6]]), indices(net, [[0], [-1]]), indices(net, [[-1], [0]])
    found = BEFORE[name](net, x, at, u)
    graph = net.outputs(found, net.apply(Add(), u, np.array(3)))
    assert (FILE in files_of(graph)) == (name != "chooses")
    compare(Sample(graph, net.feeds), emulated)


@needs_compiler
@pytest.mark.parametrize("seed", range(16))
def test_random_graphs(seed: int, emulated: CudaBackend) -> None:
    """Elements of a column, a row or one, chosen, combined and stored in any order."""
    rng, net = np.random.default_rng(seed), Net(seed)
    count = int(rng.integers(1, 6))
    table = net.input(count, 7)
    places = indices(net, rng.integers(-7, 7, (count, 1)).tolist())
    columns = [net.input(count, 1), net.input(1), net.apply(GatherElements(axis=1), table, places)]
    for _ in range(int(rng.integers(1, 6))):
        a, b = (columns[int(n)] for n in rng.integers(0, len(columns), 2))
        columns.append(net.apply((Add(), Mul(), Sub())[int(rng.integers(3))], a, b))
    ends = [value for value in columns if not value.consumers and value.producer]
    wide = next((v for v in reversed(columns) if v.tensor.size == count), columns[0])
    other = indices(net, rng.integers(-7, 7, (count, 1)).tolist())
    ends.append(net.apply(ScatterElements(axis=1), net.input(count, 7), other, wide))
    if rng.integers(2):
        row, at = shaped(net, wide, 1, count), indices(net, [[int(rng.integers(-4, 4))]])
        ends.append(net.apply(ScatterND(), net.input(4, count), at, row))
    if rng.integers(2):
        ends.append(net.apply(Relu(), wide))
    graph = net.outputs(*(value for value in ends if not value.consumers))
    compare(Sample(graph, net.feeds), emulated)
