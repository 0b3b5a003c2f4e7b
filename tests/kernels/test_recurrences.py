"""Unrolled recurrences: found however their steps are written, one kernel, and its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Div, Exp, Max, Mul, Sub, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze

from .cubins import all_compile
from .dry import apply, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

COMPILES = {"elementwise/recurrence.cu"}
#: Batch, steps (no multiple of those that the kernel fetches at once) and channels.
BATCH, STEPS, WIDTH = 2, 11, 40
AXIS = 1
Build = Callable[["Net"], None]


class Net:
    """A graph of gates and inputs [BATCH, STEPS, WIDTH]."""

    def __init__(self, dtype: DType = float32) -> None:
        self.graph = Graph("recurrence")
        self.feeds = dict[str, Array]()
        self.dtype = dtype

    def input(self, name: str, *dims: int) -> Value:
        self.feeds[name] = (normal(*dims) * 0.5).astype(self.dtype)
        return self.graph.add_input(name, TensorType(self.dtype, dims))

    def rows(self, name: str) -> Value:
        return self.input(name, BATCH, STEPS, WIDTH)

    def apply(self, op: Op, *inputs: Value | Array) -> Value:
        return apply(self.graph, op, *inputs)

    def at(self, x: Value, t: int, *, squeezed: bool = True) -> Value:
        """Return one step of a tensor."""
        bounds = (np.array([v]) for v in (t, t + 1, AXIS))
        part = self.apply(Slice(), x, *bounds)
        return self.apply(Squeeze(), part, np.array([AXIS])) if squeezed else part

    def join(self, rows: list[Value], *, squeezed: bool = True) -> None:
        """Make the results of all steps the output."""
        axes = np.array([AXIS])
        parts = [self.apply(Unsqueeze(), row, axes) if squeezed else row for row in rows]
        self.graph.set_outputs({"y": self.apply(Concat(axis=AXIS), *parts)})

    def sample(self, build: Build) -> Sample:
        build(self)
        infer(self.graph)
        return Sample(self.graph, self.feeds)


def linear(net: Net, *, squeezed: bool = True, backward: bool = False) -> None:
    """h = a h + x, as RecurrentGemma has it."""
    a, x, h = net.rows("a"), net.rows("x"), net.input("h", BATCH, WIDTH)
    if not squeezed:
        h = net.apply(Unsqueeze(), h, np.array([AXIS]))
    rows = list[Value]()
    for t in reversed(range(STEPS)) if backward else range(STEPS):
        kept = net.apply(Mul(), net.at(a, t, squeezed=squeezed), h)
        h = net.apply(Add(), kept, net.at(x, t, squeezed=squeezed))
        rows.append(h)
    net.join(rows[::-1] if backward else rows, squeezed=squeezed)


def first_alone(net: Net) -> None:
    """The first result is another expression: there is no state before it."""
    a, x = net.rows("a"), net.rows("x")
    h = net.apply(Tanh(), net.at(x, 0))
    rows = [h]
    for t in range(1, STEPS):
        h = net.apply(Add(), net.apply(Mul(), net.at(a, t), h), net.at(x, t))
        rows.append(h)
    net.join(rows)


def cut_from_rows(net: Net) -> None:
    """Each step cuts its part from a separate view, whose rows are those of all steps (Mamba)."""
    a, x = net.rows("a"), net.rows("x")
    h, rows = net.input("h", BATCH, WIDTH), list[Value]()
    for t in range(STEPS):
        bounds = (np.array([v]) for v in (t * WIDTH, (t + 1) * WIDTH, 1))
        row = net.apply(Reshape(), a, np.array([BATCH, STEPS * WIDTH]))
        h = net.apply(Add(), net.apply(Mul(), net.apply(Slice(), row, *bounds), h), net.at(x, t))
        rows.append(h)
    net.join(rows)


def states_of_chunks(net: Net) -> None:
    """Linear attention: states are matrices, cut from rows, which fade by a factor of a sample."""
    x, gates = net.input("x", BATCH, STEPS, WIDTH), net.input("gates", BATCH, STEPS)
    cut, kept = net.apply(Reshape(), x, np.array([BATCH, STEPS * WIDTH])), net.apply(Exp(), gates)
    rows = list[Value]()
    for t in range(STEPS):
        bounds = (np.array([v]) for v in (t * WIDTH, (t + 1) * WIDTH, 1))
        part = net.apply(Slice(), cut, *bounds)
        h = net.apply(Reshape(), part, np.array([BATCH, 4, WIDTH // 4]))
        if rows:
            gate = net.apply(Gather(axis=1), kept, np.array(t))
            gate = net.apply(Unsqueeze(), gate, np.array([1, 2]))
            h = net.apply(Add(), h, net.apply(Mul(), rows[-1], gate))
        rows.append(h)
    net.join(rows)


def heads_joined(net: Net, *, apart: bool = False) -> None:
    """States of heads, whose axes the results have merged before they are joined."""
    k, v, g = (net.input(name, BATCH, STEPS, 4, 6) for name in "kvg")
    h = net.input("h", BATCH, 4, 6)
    rows = list[Value]()
    for t in range(STEPS):
        a, b, gate = (net.apply(Gather(axis=AXIS), x, np.array(t)) for x in (k, v, g))
        h = net.apply(Add(), net.apply(Mul(), gate, h), net.apply(Mul(), a, b))
        row = h if apart and not rows else net.apply(Tanh(), h)
        rows.append(net.apply(Reshape(), row, np.array([BATCH, 1, 24])))
    net.join(rows, squeezed=False)


def wide_states(net: Net) -> None:
    """A state of float32 between results of another type."""
    x, h = net.rows("x"), net.apply(Cast(to=float32), net.input("h", BATCH, WIDTH))
    decay = net.apply(Cast(to=float32), net.input("decay", WIDTH))
    rows = list[Value]()
    for t in range(STEPS):
        wide = net.apply(Cast(to=float32), net.at(x, t))
        h = net.apply(Add(), net.apply(Mul(), decay, h), wide)
        rows.append(net.apply(Cast(to=net.dtype), h))
    net.join(rows)


def wkv(net: Net) -> None:
    """RWKV: three states, which the last step leaves as they are, and a result that is none."""
    k, v = net.rows("k"), net.rows("v")
    decay, bonus = net.input("decay", WIDTH), net.input("bonus", WIDTH)
    zero = np.zeros((BATCH, WIDTH), net.dtype)
    above = below = net.graph.constant(zero)
    top = net.graph.constant(zero - 30)
    rows = list[Value]()

    def weigh(most: Value, first: Value, second: Value, t: int) -> tuple[Value, Value]:
        old, new = (net.apply(Exp(), net.apply(Sub(), x, most)) for x in (first, second))
        return (
            net.apply(Add(), net.apply(Mul(), old, above), net.apply(Mul(), new, net.at(v, t))),
            net.apply(Add(), net.apply(Mul(), old, below), new),
        )

    for t in range(STEPS):
        now = net.apply(Add(), net.at(k, t), bonus)
        rows.append(net.apply(Div(), *weigh(net.apply(Max(), top, now), top, now, t)))
        if t == STEPS - 1:
            break
        key, later = net.at(k, t), net.apply(Add(), top, decay)
        top = net.apply(Max(), later, key)
        above, below = weigh(top, later, key, t)
    net.join(rows)


FOUND: dict[str, Build] = {
    "linear": linear,
    "rows of one": lambda net: linear(net, squeezed=False),
    "backward": lambda net: linear(net, backward=True),
    "the first step apart": first_alone,
    "parts of rows": cut_from_rows,
    "states of another type": wide_states,
    "WKV": wkv,
    "states of chunks": states_of_chunks,
    "heads joined": heads_joined,
    "heads joined, the first step apart": lambda net: heads_joined(net, apart=True),
}


def read_elsewhere(net: Net) -> None:
    linear(net)
    state = net.graph.nodes[-1].inputs[3]
    assert state is not None
    (y,) = net.graph.outputs.values()
    net.graph.set_outputs({"y": y, "state": net.apply(Tanh(), state)})


def one_step_differs(net: Net) -> None:
    a, x, h = net.rows("a"), net.rows("x"), net.input("h", BATCH, WIDTH)
    rows = list[Value]()
    for t in range(STEPS):
        h = net.apply(Mul() if t == STEPS // 2 else Add(), net.at(x, t), net.apply(Mul(), h, h))
        rows.append(net.apply(Add(), h, net.at(a, t)))
    net.join(rows)


def out_of_order(net: Net) -> None:
    x, h = net.rows("x"), net.input("h", BATCH, WIDTH)
    rows = list[Value]()
    for t in (0, 2, 1, *range(3, STEPS)):
        h = net.apply(Add(), net.at(x, t), net.apply(Mul(), h, h))
        rows.append(h)
    net.join(rows)


def lacks_a_part(net: Net) -> None:
    """Nothing reads the last state, which would need one more gate than there is."""
    a, x, h = net.input("a", BATCH, STEPS - 1, WIDTH), net.rows("x"), net.input("h", BATCH, WIDTH)
    rows = list[Value]()
    for t in range(STEPS):
        rows.append(net.apply(Add(), h, net.at(x, t)))
        if t < STEPS - 1:
            h = net.apply(Mul(), net.apply(Tanh(), rows[-1]), net.at(a, t))
    net.join(rows)


OTHERS: dict[str, Build] = {
    "the last step lacks a part": lacks_a_part,
    "a state that is read elsewhere": read_elsewhere,
    "one step differs": one_step_differs,
    "out of order": out_of_order,
}


@pytest.mark.parametrize("name", FOUND)
def test_one_kernel(name: str) -> None:
    found = entries_of(Net().sample(FOUND[name]).graph)
    assert found.count("recurrence") == 1
    assert len(found) <= 3  # with what precedes the first step


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(name: str) -> None:
    found = launches(planned(Net().sample(OTHERS[name]).graph))
    assert "recurrence" not in [launch.entry for launch in found]


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", FOUND)
def test_results(name: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(Net(dtype).sample(FOUND[name]), emulated)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    found = (
        Net(dtype).sample(build).graph
        for build in (wkv, first_alone)
        for dtype in (float32, float16)
    )
    sources = [launch.source for graph in found for launch in launches(planned(graph))]
    all_compile(sources, target, cache, COMPILES)
