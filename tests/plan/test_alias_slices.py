"""What Concat joins and Split and Slice cut is used in place, where all that touches it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Slice, Split
from tercet.runtime.ops.shape import Flatten
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .fakes import FakeBackend, FakeDevice
from .nets import Net

Array = np.ndarray[Any, Any]


def check(net: Net, outputs: Mapping[str, Value], dense: tuple[str, ...] = ()) -> Model:
    """Run on a fake device and on numpy; return the model on the fake device."""
    device = FakeDevice()
    x = np.random.default_rng(1).standard_normal(net.x.tensor.dims, np.float32)
    model = net.model(FakeBackend(device, dense=dense), **outputs)
    want = net.model(NumpyBackend(), **outputs).run({"x": x})
    for _ in range(2):
        got = model.run({"x": x})
        for name in outputs:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert device.races == 0
    return model


def kinds(model: Model, operator: str) -> list[str]:
    return [row.kind for row in model.placement() if row.operators == operator]


@pytest.mark.parametrize("batch", [1, 3])
def test_convolutions_write_into_the_concat(batch: int) -> None:
    net = Net(batch, 8, 5, 5)
    whole = net.join(net.conv(net.x, 4), net.conv(net.x, 12), net.conv(net.x, 8))
    model = check(net, {"y": net.conv(whole, 8)})
    row = model.placement()["cat"]
    assert (row.kind, row.backend, row.kernel, row.nbytes) == ("view", "plan", "slices of 'cat'", 0)
    places = [text.partition(" in ")[2] for text in row.inputs]
    assert places == ["'cat' from byte 0", "'cat' from byte 16", "'cat' from byte 64"] or batch == 3
    assert len([r for r in model.placement() if r.kind == "step"]) == 4


def test_what_is_joined_need_not_be_stored_twice() -> None:
    net = Net(2, 8, 5, 5)
    whole = net.join(net.conv(net.x, 8), net.conv(net.x, 8))
    memory = check(net, {"y": net.conv(whole, 8)}).memory()
    image = 2 * 25 * 4
    assert memory.floor["fake:0"] <= (8 + 16 + 8) * image + 3 * 256
    assert memory.activations["fake:0"] >= memory.floor["fake:0"]


def test_a_tensor_in_two_concats_lies_in_one() -> None:
    net = Net(2, 8, 5, 5)
    a, b, c = (net.conv(net.x, 8) for _ in range(3))
    first, second = net.join(a, b, name="one"), net.join(c, a, name="two")
    model = check(net, {"y": net.conv(first, 4), "z": net.conv(second, 4)})
    assert sorted(kinds(model, "Concat")) == ["step", "view"]


def test_a_tensor_that_comes_twice_is_copied() -> None:
    net = Net(2, 8, 5, 5)
    a = net.conv(net.x, 8)
    assert kinds(check(net, {"y": net.conv(net.join(a, a), 8)}), "Concat") == ["step"]


def test_constants_are_copied() -> None:
    net = Net(2, 8, 5, 5)
    constant = net.graph.constant(np.ones((2, 4, 5, 5), np.float32), "c")
    whole = net.join(net.conv(net.x, 8), constant)
    assert kinds(check(net, {"y": net.conv(whole, 8)}), "Concat") == ["step"]


def test_rows_begin_at_words() -> None:
    net = Net(2, 8, 5, 5)
    whole = net.join(net.conv(net.x, 6), net.conv(net.x, 10))
    assert kinds(check(net, {"y": net.conv(whole, 8)}), "Concat") == ["step"]


def test_who_takes_no_gaps_keeps_the_copy() -> None:
    net = Net(2, 8, 5, 5)
    a, b = net.conv(net.x, 8), net.conv(net.x, 8)
    outputs = {"y": net.conv(net.join(a, b), 8), "z": net.conv(net.add(Relu(), a), 8)}
    assert kinds(check(net, outputs), "Concat") == ["view"]
    assert kinds(check(net, outputs, dense=("Relu",)), "Concat") == ["step"]


def test_slices_may_be_declined_while_building() -> None:
    net = Net(2, 8, 5, 5)
    whole = net.join(net.conv(net.x, 8, "a"), net.conv(net.x, 8, "b"))
    backend = FakeBackend(FakeDevice())
    backend.declines_slices.add("b")
    model = net.model(backend, y=net.conv(whole, 8))
    placement = model.placement()
    assert (placement["cat"].kind, placement["b"].backend, placement["b"].reason) == (
        "step",
        "fake",
        "",
    )


def test_without_gaps_everybody_takes_slices() -> None:
    net = Net(1, 8, 4, 4)
    a, b = net.add(Relu(), net.x), net.add(Add(), net.x, net.x)
    whole = net.join(a, b)
    flat = net.add(Flatten(), a)
    device = FakeDevice()
    net.graph.set_outputs({"y": whole, "f": flat})
    model = Model(net.graph, [FakeBackend(device, dense=("Relu", "Add"))], Options(), evaluate)
    x = np.random.default_rng(2).standard_normal((1, 8, 4, 4), np.float32)
    got = model.run({"x": x})
    np.testing.assert_array_equal(got["y"], np.concatenate([np.maximum(x, 0), x + x], 1))
    np.testing.assert_array_equal(got["f"], np.maximum(x, 0).reshape(1, -1))
    assert kinds(model, "Concat") == ["view"]


def test_inputs_and_outputs_of_the_graph_on_the_host() -> None:
    net = Net(1, 8, 4, 4)
    half = net.add(Relu(), net.x)
    whole = net.join(net.x, half)
    model = net.model(NumpyBackend(), y=whole, h=half)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 8, 4, 4), np.float32)
        got = model.run({"x": x})
        np.testing.assert_array_equal(got["y"], np.concatenate([x, np.maximum(x, 0)], 1))
        np.testing.assert_array_equal(got["h"], np.maximum(x, 0))
    assert kinds(model, "Concat") == ["view"]


@pytest.mark.parametrize("flat", [False, True])
def test_a_dense_block_is_one_tensor(flat: bool) -> None:
    """As DenseNet has it: of all features so far, or of the last concat and what is new."""
    net = Net(2, 8, 5, 5)
    features = [net.conv(net.x, 16)]
    whole = features[0]
    for i in range(5):
        new = net.conv(net.add(Relu(), whole), 8, name=f"conv{i}")
        features.append(new)
        whole = net.join(*(features if flat else (whole, new)), name=f"cat{i}")
    model = check(net, {"y": net.conv(whole, 8)})
    assert kinds(model, "Concat") == ["view"] * 5
    largest = max(slot.nbytes for row in plan_rows(model) for slot in row.outputs)
    assert largest == 2 * 25 * 56 * 4


def plan_rows(model: Model) -> list[Any]:
    return list(model.prepare().rows)


def test_split_and_slice_are_read_in_place() -> None:
    net = Net(2, 16, 5, 5)
    wide = net.conv(net.x, 24)
    a, b, c = net.add(Split(axis=1, num_outputs=3), wide, outputs=3, name="split")
    y = net.add(Add(), net.conv(a, 8), net.add(Relu(), c))
    model = check(net, {"y": y, "z": net.conv(b, 8)})
    assert kinds(model, "Slice") == ["view"] * 3


def test_slices_on_the_host_along_the_first_axis() -> None:
    graph = Graph("test")
    x = graph.add_input("x", TensorType(float32, (6, 4)))
    ends = [graph.constant(np.array([n]), f"n{n}") for n in (2, 4, 0)]
    part = graph.insert(Slice(), [x, *ends], name="slice").output
    graph.set_outputs({"y": graph.insert(Relu(), [part]).output, "p": part})
    infer(graph)
    model = Model(graph, [NumpyBackend()], Options(), evaluate)
    data = np.random.default_rng(3).standard_normal((6, 4), np.float32)
    got = model.run({"x": data})
    np.testing.assert_array_equal(got["p"], data[2:4])
    np.testing.assert_array_equal(got["y"], np.maximum(data[2:4], 0))
    assert model.placement()["slice"].kind == "view"
    assert ends[0].tensor.dtype == int64


def test_what_was_split_and_is_joined_again_lies_in_the_result() -> None:
    """As in YOLO's C2f: both halves, and what the second half becomes."""
    net = Net(2, 8, 5, 5)
    a, b = net.add(Split(axis=1, num_outputs=2), net.conv(net.x, 16), outputs=2, name="split")
    c = net.conv(b, 8)
    model = check(net, {"y": net.conv(net.join(a, b, c, net.conv(c, 8)), 8)})
    assert kinds(model, "Split") + kinds(model, "Concat") == ["view", "view"]


def test_rows_of_other_axes_are_copied() -> None:
    """The columns of an image have unknown gaps, and so has its change of format."""
    net = Net(2, 8, 4, 8)
    a, b = net.add(Split(axis=3, num_outputs=2), net.x, outputs=2, name="split")
    model = check(net, {"y": net.conv(a, 8), "z": net.add(Relu(), b)})
    assert kinds(model, "Slice") == ["step"] * 2


def random_net(seed: int) -> tuple[Net, dict[str, Value]]:
    """Return a random net of cells: sums, convolutions, concats and splits of what there is."""
    rng = np.random.default_rng(seed)
    net = Net(int(rng.integers(1, 3)), 8, *(int(n) for n in rng.integers(2, 5, 2)))
    there = [net.x]
    for _ in range(int(rng.integers(4, 16))):
        kind = rng.choice(["conv", "relu", "add", "join", "split"])
        some = [there[i] for i in rng.integers(max(0, len(there) - 6), len(there), 3)]
        spatial = some[0].tensor.dims[2:]
        some = [value for value in some if value.tensor.dims[2:] == spatial]
        same = [v for v in there if v.tensor.dims == some[0].tensor.dims]
        if kind == "conv":
            there.append(net.conv(some[0], int(rng.choice([2, 4, 8, 12]))))
        elif kind == "relu":
            there.append(net.add(Relu(), some[0]))
        elif kind == "add":
            there.append(net.add(Add(), some[0], same[rng.integers(len(same))]))
        elif kind == "join":
            axis = int(rng.choice([1, 1, 1, 2, 3]))
            parts = same[:3] if axis > 1 else some[: rng.integers(2, 4)]
            there.append(net.join(*parts, axis=axis, name=f"cat{len(there)}"))
        else:
            axis = int(rng.choice([1, 1, 1, 2, 3]))
            if some[0].tensor.dims[axis] % 2 == 0:
                there += net.add(Split(axis=axis, num_outputs=2), some[0], outputs=2)
    ends = [v for v in there[1:] if not v.consumers] + [there[int(rng.integers(1, len(there)))]]
    return net, {f"y{i}": v for i, v in enumerate(dict.fromkeys(ends))}


@pytest.mark.parametrize("seed", range(200))
def test_random_nets(seed: int) -> None:
    net, outputs = random_net(seed)
    check(net, outputs)


@pytest.mark.parametrize("order", ["x, t", "t, x"])
@pytest.mark.parametrize("view", ["Identity (x)", "Transpose <perm = [0, 1]> (x)"])
def test_a_tensor_beside_a_view_of_itself(view: str, order: str) -> None:
    """One place holds it, and the result has it twice."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2, 6] x) => (float[4, 6] y)
        {{ t = {view}  y = Concat <axis = 0> ({order}) }}"""
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    with tercet.load(model, stop_at=0) as loaded:
        np.testing.assert_array_equal(loaded(x)[0], np.concatenate([x, x]))


@pytest.mark.parametrize("view", ["Unsqueeze", "Reshape"])
def test_a_view_of_a_part_that_is_joined_alone_has_its_gaps(view: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[4, 6, 8] x) => (float[a, b, c, d] y)
        <int64[2] sizes = {{4, 4}}, int64[{1 if view == "Unsqueeze" else 4}] to =
            {{{"0" if view == "Unsqueeze" else "1, 4, 6, 4"}}}> {{
            p, q = Split <axis = 2> (x, sizes)
            v = {view} (p, to)
            c = Concat <axis = 0> (v)
            y = Relu (c)
        }}"""
    )
    x = np.random.default_rng(0).standard_normal((4, 6, 8), np.float32)
    with tercet.load(proto, stop_at=0) as model:
        np.testing.assert_array_equal(model.run({"x": x})["y"][0], np.maximum(x[..., :4], 0))
