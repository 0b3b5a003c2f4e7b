"""`tercet inspect`: facts, costs, passes, placement and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet as api
from tercet import backends
from tercet.importers.onnx import load
from tercet.runtime.options import Options
from tercet.runtime.plan.macs import macs
from tercet.tools.common.console import MAX_LISTED, abridged, listed
from tercet.tools.common.cost import activations, constants, operators
from tercet.tools.inspect.inspection import inspect

from ..plan.fakes import FakeBackend, FakeDevice
from . import models
from .conftest import Tercet

CONTRIB = "com.microsoft"


def light(name: str) -> str:
    """The path of one of the models that come with the onnx package, weights left out."""
    return f"{Path(onnx.__file__).parent}/backend/test/data/light/light_{name}.onnx"


def test_facts_and_costs(tercet: Tercet) -> None:
    done = tercet("inspect", "classifier.onnx")
    assert done.code == 0
    for words in (
        "producer     tests",
        "IR version 10, opset ai.onnx 21",
        "image: float32[batch,3,8,8]",
        "scores: float32[batch,10]",
        "BatchNormalization",
        "7,552",
    ):
        assert words in done.out


def test_json_has_everything(tercet: Tercet) -> None:
    chosen = "--passes", "--memory", "--placement", "numpy", "--dim", "batch=2"
    found = tercet("inspect", "classifier.onnx", *chosen, "--json").json
    assert found["shapes"] == {"image": [2, 3, 8, 8]}
    assert found["macs"] == 2 * (4 * 64 * 27 + 10 * 64)
    assert found["constants"]["parameters"] == 108 + 4 * 4 + 640 + 10
    assert found["constants"]["by_dtype"] == {"float32": 4 * 774}
    assert found["macs_unknown_nodes"] == 0
    assert found["opsets"] == {"ai.onnx": 21}
    passes = found["passes"]
    assert passes["operators"]["BatchNormalization"] == {"before": 1, "after": 0}
    assert passes["counts"]["fold_batchnorm"] == 1
    assert passes["constants"]["after"]["nbytes"] < passes["constants"]["before"]["nbytes"]
    assert any("norm" in rewrite["text"] for rewrite in passes["rewrites"])
    rows = found["placement"]
    assert {name for row in rows for name in row["nodes"]} >= {"conv", "norm", "relu", "softmax"}
    memory = found["memory"]["cpu"]
    assert memory["floor"] <= memory["activations"] <= memory["tensors"]
    assert memory["workspace"] <= memory["workspace_sum"] + 256
    assert memory["weights"] > 0


def test_passes_placement_and_memory_are_shown(tercet: Tercet) -> None:
    out = tercet("inspect", "classifier.onnx", "--passes", "--memory", "--placement", "numpy").out
    assert "fold_batchnorm" in out
    assert "bytes of constants" in out
    assert "conv + norm" in out
    assert "runs on" in out
    assert "arena" in out
    assert "floor" in out


def test_resnet50(tercet: Tercet) -> None:
    """53 batch-norms go, and bytes with them. MACs and parameters are the known ones.

    Two convolutions whose results are added are one, with a single bias of 256 numbers.
    """
    found = tercet("inspect", light("resnet50"), "--passes", "--json").json
    assert found["passes"]["operators"]["BatchNormalization"] == {"before": 53, "after": 0}
    assert found["passes"]["constants"]["after"]["parameters"] == 25_530_472 - 256
    assert found["macs"] == 4_089_184_256


def test_symbols_that_cannot_be_one(tercet: Tercet, folder: Path) -> None:
    """A window that does not fit into one pixel is no error unless the user asked for it."""
    node = helper.make_node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[3, 3])
    inputs = [models.tensor("x", [1, 1, "h", "w"])]
    models.write(models.model_of([node], inputs, [models.tensor("y", None)]), folder / "m.onnx")
    done = tercet("inspect", "m.onnx")
    assert done.code == 0
    assert "--dim and --shape (dims, shapes) set them" in " ".join(done.out.split())
    for ask in (["--dim", "h=1"], ["--memory"]):
        done = tercet("inspect", "m.onnx", *ask)
        assert done.code == 2
        assert "dynamic dimensions defaulted to 1: " in done.err
    done = tercet("inspect", "m.onnx", "--shape", "1x1x9x9", "--json")
    assert done.json["activation_bytes"] == 4 * 49


def test_unknown_shapes_are_said(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Relu", None), folder / "m.onnx")
    done = tercet("inspect", "m.onnx")
    assert done.code == 0
    assert "give it with --shape" in " ".join(done.out.split())


def test_a_model_that_leaves_nothing_to_run_says_so(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Identity", [2]), folder / "identity.onnx")
    lines = tercet("inspect", "identity.onnx", "--placement", "numpy").out.splitlines()
    assert "numpy: nothing to do in a run" in lines


# ── placement on a device that is not the host ───────────────────────────────────────────────────


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend, added as other packages add theirs, that runs Add and ReLU on a device."""

    def open_fake(options: Options) -> tuple[FakeBackend, ...]:
        return (FakeBackend(FakeDevice()),)

    monkeypatch.setattr(backends, "_foreign", lambda: {"fake": lambda: open_fake})


@pytest.fixture
def mixed(folder: Path) -> str:
    """A model of which the fake device runs the first and the last node."""
    chain = ("Relu", "Tanh", "Relu")
    nodes = [
        helper.make_node(operator, [f"x{i}"], [f"x{i + 1}"], name=f"{operator}{i}")
        for i, operator in enumerate(chain)
    ]
    ends = [models.tensor(name, [4, 5]) for name in ("x0", "x3")]
    return str(models.write(models.model_of(nodes, ends[:1], ends[1:]), folder / "mixed.onnx"))


@pytest.mark.usefixtures("fake")
def test_copies_and_reasons_are_shown(tercet: Tercet, mixed: str) -> None:
    chosen = "--placement", "fake", "--fallback", "numpy"
    done = tercet("inspect", mixed, *chosen)
    assert done.code == 0
    out = " ".join(done.out.split())
    assert "fake: fake runs no Tanh" in out
    assert "fake: 2 steps on fake, 1 step on numpy, 4 copies of 320 B" in out
    rows = tercet("inspect", mixed, *chosen, "--json").json["placement"]
    assert [row["kind"] for row in rows] == ["copy", "step", "copy", "step", "copy", "step", "copy"]
    assert [row["backend"] for row in rows if row["kind"] == "step"] == ["fake", "numpy", "fake"]


@pytest.mark.usefixtures("fake")
def test_a_node_that_the_backend_does_not_run(tercet: Tercet, mixed: str) -> None:
    done = tercet("inspect", mixed, "--placement", "fake")
    assert done.code == 3
    assert "Tanh 'Tanh1'" in done.err
    assert "--fallback numpy" in done.err
    assert "model: " in done.err
    done = tercet("inspect", "classifier.onnx", "--placement", "fake")
    assert done.code == 3
    for name in ("pool", "fc", "softmax"):
        assert f"'{name}'" in done.err
    done = tercet("run", mixed, "--backend", "fake", "--fallback", "numpy")
    assert done.code == 0
    said = "2 nodes on fake, 1 node on numpy, 4 copies between devices"
    assert said in " ".join(done.out.split())


# ── costs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "expected"),
    [
        ("Conv", [(2, 6, 9), (4, 3, 3)], {"group": 2, "strides": [2]}, 2 * 4 * 4 * 3 * 3),
        ("Conv", [(1, 8, 5, 5), (8, 1, 3, 3)], {"group": 8}, 8 * 9 * 9),
        ("ConvTranspose", [(1, 6, 4, 4), (6, 5, 3, 3)], {"strides": [2, 2]}, 6 * 16 * 5 * 9),
        ("Gemm", [(3, 4), (4, 5)], {}, 3 * 4 * 5),
        ("Gemm", [(4, 3), (5, 4)], {"transA": 1, "transB": 1}, 3 * 4 * 5),
        ("MatMul", [(7, 1, 3, 4), (2, 4, 5)], {}, 7 * 2 * 3 * 4 * 5),
        ("MatMul", [(4,), (4,)], {}, 4),
        ("Einsum", [(2, 3, 4), (2, 4, 5)], {"equation": "bij,bjk->bik"}, 2 * 3 * 4 * 5),
        ("Einsum", [(9, 3, 4), (4, 5)], {"equation": "...ij,jk->...ik"}, 9 * 3 * 4 * 5),
        (
            "Attention",
            [(2, 6, 7, 8), (2, 3, 5, 8), (2, 3, 5, 4)],
            {},
            2 * 6 * 7 * 5 * (8 + 4),
        ),
        ("LSTM", [(3, 2, 4), (1, 20, 4), (1, 20, 5)], {"hidden_size": 5}, 6 * 20 * (4 + 5)),
        ("Relu", [(3, 4)], {}, 0),
    ],
)
def test_macs(operator, shapes, attributes, expected) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    inputs = [models.tensor(n, s) for n, s in zip(names, shapes, strict=True)]
    proto = models.model_of([node], inputs, [models.tensor("y", None)], opset=23)
    graph = load(proto).graph
    assert [macs(n) for n in graph.nodes] == [expected]


@pytest.mark.parametrize("has_third", [False, True])
def test_macs_of_experts(has_third: bool) -> None:
    """Those of two of three experts of each of five rows."""
    shapes = {
        "x": (5, 8),
        "router": (5, 3),
        "fc1": (3, 12, 8),
        "fc2": (3, 8, 12 if has_third else 6),
    }
    names = ["x", "router", "fc1", "", "fc2"]
    if has_third:
        shapes["fc3"] = (3, 12, 8)
        names += ["", "fc3"]
    given: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
    node = helper.make_node("MoE", names, ["y"], domain="com.microsoft", **given)
    inputs = [models.tensor(name, shape) for name, shape in shapes.items()]
    graph = load(models.model_of([node], inputs, [models.tensor("y", None)], opset=23)).graph
    expected = 5 * 2 * ((12 * 8 + 8 * 12 + 12 * 8) if has_third else (12 * 8 + 8 * 6))
    assert [macs(n) for n in graph.nodes] == [expected]


def test_macs_of_packed_weights() -> None:
    sizes: dict[str, Any] = {"K": 32, "N": 5, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["a", "b", "s"], ["y"], domain=CONTRIB, **sizes)
    packed = helper.make_tensor_value_info("b", onnx.TensorProto.UINT8, (5, 1, 16))
    inputs = [models.tensor("a", (2, 3, 32)), packed, models.tensor("s", (5,))]
    proto = models.model_of([node], inputs, [models.tensor("y", None)], opset=23)
    proto.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    assert [macs(n) for n in load(proto).graph.nodes] == [2 * 3 * 5 * 32]


def test_costs_of_shapes_that_are_not_known() -> None:
    graph = load(models.classifier()).graph
    unknown = {row.operator: row.unknown for row in operators(graph)}
    assert unknown["Conv"] == unknown["Gemm"] == 1
    assert unknown["Relu"] == 0
    assert activations(graph) is None
    assert constants(graph).parameters == 774


def test_python_interface_equals_the_command_line(folder: Path) -> None:
    with api.load("classifier.onnx") as model:
        placed = model.placement({"image": (1, 3, 8, 8)})
    found = inspect(Path("classifier.onnx"), placement="numpy")
    assert found.placement == placed


def test_what_passes_refuse_is_shown(tercet: Tercet, folder: Path) -> None:
    """300 · 300 is no number of float16, so the product stays two nodes."""
    half = onnx.TensorProto.FLOAT16
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("Mul", ["h", "f"], ["y"], name="scale"),
    ]
    constants = {"w": np.full((2, 2, 1, 1), 300, np.float16), "f": np.array([300], np.float16)}
    ends = [models.tensor(name, [1, 2, 4, 4], half) for name in "xy"]
    onnx.save(models.model_of(nodes, ends[:1], ends[1:], constants), folder / "great.onnx")
    out = tercet("inspect", "great.onnx", "--passes").out
    assert "fold_affine: Conv 'conv' and Mul 'scale' stay apart" in out
    found = tercet("inspect", "great.onnx", "--passes", "--json").json
    assert found["passes"]["refused"][0]["name"] == "fold_affine"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "0"),
        (9, "0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8"),
        (10, "0 + 1 + 2 + … 4 more … + 7 + 8 + 9"),
        (634, "0 + 1 + 2 + … 628 more … + 631 + 632 + 633"),
    ],
)
def test_many_nodes_of_a_row_are_abridged(count: int, text: str) -> None:
    assert abridged([str(i) for i in range(count)]) == text


def test_many_lines_are_cut_short() -> None:
    names = [str(i) for i in range(MAX_LISTED + 2)]
    assert listed(names[:-1]) == "\n".join(names[:-1])
    assert listed(names).endswith(f"{MAX_LISTED - 1}\n… 2 more; --json has all")
