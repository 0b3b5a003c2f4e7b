"""`inspect --capability` says before a run what the run then does, for every model."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from onnx.parser import parse_model

import tercet as api
from tercet import backends
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.common.inputs import InputRequest, make_inputs
from tercet.tools.inspect.capability import LATER, NOBODY, capabilities_of, ranges_text
from tercet.tools.workshop.light_models import NAMES as LIGHT

from ..models.capabilities import check, check_recipes, nothing
from ..models.slim import slim_file
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
        device = Model(model.imported, [FakeBackend(FakeDevice())], model.options, nothing)
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
    placed = tercet("inspect", "m.onnxtxt", "--placement", "numpy").out
    assert "numpy: 1 node that nothing runs" in placed
    assert "--operators FILE.py on the command line" in tercet("run", "m.onnxtxt").err


@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name: str) -> None:
    with api.load(slim_file(name)) as model:
        feeds = make_inputs(model.inputs, InputRequest()).arrays
        check(model, feeds)
        assert check_recipes(model, feeds)
