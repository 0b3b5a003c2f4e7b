"""`inspect --capability` says before a run what the run then does, for every model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.parser import parse_model

import tercet as api
from tercet import backends
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import TensorType
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, optimise
from tercet.runtime.plan.layout import lay_out
from tercet.runtime.plan.partition import obstacle
from tercet.runtime.session.model import Model
from tercet.tools.common.inputs import InputRequest, make_inputs
from tercet.tools.inspect.capability import LATER, NOBODY, Nobody, capabilities_of, ranges_text
from tercet.tools.workshop.light_models import NAMES as LIGHT

from ..models.slim import slim_file
from ..models.test_shared_models import NAMES as SHARED
from ..plan.fakes import FakeBackend, FakeDevice
from . import models
from .conftest import Tercet


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2], "1-2"),
        ([1, 2, 3, 5, 7, 8], "1-3, 5, 7-8"),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges_text(numbers) == text


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """A model of ReLU, Tanh, Tanh, ReLU, and a backend that runs no Tanh."""

    def open_fake(options: Options) -> tuple[FakeBackend, ...]:
        return (FakeBackend(FakeDevice()),)

    monkeypatch.setattr(backends, "_foreign", lambda: {"fake": lambda: open_fake})
    kinds = ("Relu", "Tanh", "Tanh", "Relu")
    nodes = [
        helper.make_node(kind, [f"x{i}"], [f"x{i + 1}"], name=f"n{i}")
        for i, kind in enumerate(kinds)
    ]
    ends = [models.tensor(name, [4, 5]) for name in ("x0", "x4")]
    models.write(models.model_of(nodes, ends[:1], ends[1:]), folder / "mixed.onnx")
    return "mixed.onnx"


def test_what_a_backend_does_not_run(tercet: Tercet, fake: str) -> None:
    done = tercet("inspect", fake, "--capability", "fake")
    assert done.code == 0
    assert "fake: 2 nodes would not run; --fallback numpy runs them" in done.out
    assert "fake: fake runs no Tanh" in done.out
    rows = tercet("inspect", fake, "--capability", "fake", "--json").json["capabilities"]
    assert [(r["operator"], r["backend"], r["nodes"], r["where"]) for r in rows] == [
        ("Tanh", "nobody", 2, "2-3"),
        ("Relu", "fake", 2, "1, 4"),
    ]
    assert tercet("run", fake, "--backend", "fake").code == 3


def test_a_fallback_is_counted(tercet: Tercet, fake: str) -> None:
    chosen = "--capability", "fake", "--fallback", "numpy"
    rows = tercet("inspect", fake, *chosen, "--json").json["capabilities"]
    assert {row["operator"]: row["backend"] for row in rows} == {"Tanh": "numpy", "Relu": "fake"}


def test_one_backend_at_a_time(tercet: Tercet, fake: str) -> None:
    done = tercet("inspect", fake, "--capability", "fake", "--placement", "numpy")
    assert done.code == 2
    assert "one backend at a time" in done.err


def test_nodes_that_no_plan_holds(folder: Path, fake: str) -> None:
    """Strings live on the host: a backend of a device alone cannot run them, and that is said."""
    models.write(models.unary("Identity", [2], 8), folder / "s.onnx")
    nodes = [
        helper.make_node("StringConcat", ["x", "x"], ["y"], name="join"),
    ]
    ends = [models.tensor(name, [2], 8) for name in "xy"]
    models.write(models.model_of(nodes, ends[:1], ends[1:]), folder / "s.onnx")
    with api.load("s.onnx") as model:
        device = Model(model.imported, [FakeBackend(FakeDevice())], model.options, _nothing)
        (row,) = capabilities_of(device, {"x": (2,)})
    assert row.backend == NOBODY
    assert row.reason == "fake: 'x' holds strings, which live on the host"


@pytest.mark.parametrize(
    ("nodes", "operator", "backend"),
    [
        ("string[2] x) => (string[2] y) { y = StringConcat (x, x) }", "StringConcat", NOBODY),
        ("float[2,3] x) => (int64[2,n] y) { y = NonZero (x) }", "NonZero", LATER),
        ("float[6] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }", "Reshape", LATER),
    ],
)
def test_a_gpu_that_is_not_here_has_no_host_beside_it(
    nodes: str, operator: str, backend: str
) -> None:
    """Without a fallback, a run refuses strings, and plans sizes when it knows them."""
    proto = parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g ({nodes}')
    alone = api.inspect(proto, capability="cuda", target="sm_90a").capabilities
    assert alone is not None
    assert [(row.operator, row.backend) for row in alone] == [(operator, backend)]
    both = api.inspect(proto, capability="cuda", target="sm_90a", fallback="numpy").capabilities
    assert both is not None
    assert all(row.backend == "numpy" for row in both)


def test_an_unknown_operator_needs_no_fallback(tercet: Tercet) -> None:
    Path("m.onnxtxt").write_text(
        '<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>\n'
        "g (float[2] x) => (float[2] y) { y = mine.Swish (x) }"
    )
    done = tercet("inspect", "m.onnxtxt", "--capability", "numpy")
    said = " ".join(done.out.split())
    assert "1 node would not run; --operators FILE.py defines unknown operators" in said
    assert "--operators FILE.py on the command line" in tercet("run", "m.onnxtxt").err


def _nothing(*arguments: Any) -> None:
    """Fold no constants."""


# ── every model ──────────────────────────────────────────────────────────────────────────────────


def fates(model: Model, shapes: dict[str, tuple[int, ...]] | None) -> dict[str, str]:
    """Who ran the nodes of a model that has run, by the file's names."""
    rows = sorted(model.placement(shapes), key=lambda row: row.backend != "plan")
    return {name: row.backend for row in rows for name in row.nodes}


def check(model: Model, feeds: dict[str, Any]) -> None:
    """Ask for capabilities, then run, and compare node by node."""
    shapes = {name: np.shape(data) for name, data in feeds.items()}
    said = capabilities_of(model, shapes)
    assert all(row.ok for row in said)
    assert sum(row.nodes for row in said) == len(list(model.imported.walk()))
    model.run(feeds)
    ran = fates(model, None)
    by_number = {number: row.backend for row in said for number in numbers_of(row.where)}
    for number, node in enumerate(model.imported.walk(), 1):
        if by_number[number] not in (LATER, "passes"):
            assert by_number[number] == ran[node.name], node


def numbers_of(text: str) -> list[int]:
    parts = [part.split("-") for part in text.split(", ")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_on_numpy(name: str) -> None:
    with api.load(slim_file(name)) as model:
        check(model, make_inputs(model.inputs, InputRequest()).arrays)


@pytest.mark.filterwarnings("ignore::tercet.ModelWarning")
@pytest.mark.parametrize("name", SHARED)
def test_shared_models_on_numpy(name: str, shared_models: Path) -> None:
    folder = shared_models / name
    stored = folder / "inputs.npz"
    with api.load(folder / "model.onnx") as model:
        if stored.exists():
            check(model, dict(np.load(stored, allow_pickle=False)))
        else:
            check(model, make_inputs(model.inputs, InputRequest()).arrays)


def check_recipes(model: Model, feeds: Mapping[str, Any]) -> bool:
    """Lay out a model for cuda without a GPU, with a fallback and without.

    What the one says no backend runs is what the other refuses. False if no plan holds the model.
    """
    dry = pytest.importorskip("tests.kernels.dry", reason="cuda.core is not installed")
    from tercet.backends.cuda.backend import CudaBackend

    types = {name: TensorType(data.dtype, data.shape) for name, data in feeds.items()}
    graph = specialise(model.graph, types)
    optimise(graph, STATIC_PASSES, model.options, _nothing, model.rewrites.copy())
    if any(obstacle(node) for node in graph.nodes):
        return False
    device = dry.DryDevice()
    backend: Any = CudaBackend(device)
    layout, _ = lay_out(graph.clone(), [backend, Nobody()], model.options, dry.stores(device))
    left = {n.name for row in layout.rows if row.backend == NOBODY for n in row.nodes}
    try:
        dry.planned(graph.clone(), device)
        refused = set()
    except UnsupportedError as error:
        refused = {refusal.node for refusal in error.refusals}
    assert left == refused
    return True


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_on_cuda(name: str) -> None:
    with api.load(slim_file(name)) as model:
        assert check_recipes(model, make_inputs(model.inputs, InputRequest()).arrays)


def test_shared_models_on_cuda(shared_models: Path) -> None:
    held = 0
    for file in sorted(shared_models.glob("*/inputs.npz")):
        feeds = dict(np.load(file, allow_pickle=False))
        with api.load(file.parent / "model.onnx") as model:
            held += check_recipes(model, feeds)
    assert held >= 30
