"""Every command is one call in Python, whose result prints, and gives JSON and rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.tools.bench.bench import Schedule
from tercet.tools.cli import app
from tercet.tools.common.console import finite

from . import models

FILE = "classifier.onnx"
PAIR = ["numpy", "onnxruntime"]
BRIEF = Schedule(duration=0.01, warm_up=0)

#: Calls by command; those of `run`, `conformance` and `demo` are in other modules.
CALLS: dict[str, Callable[[], Any]] = {
    "compare": lambda: tercet.compare(FILE, PAIR, repeat=1),
    "compare --layers": lambda: tercet.compare_layers(FILE, PAIR),
    "bisect": lambda: tercet.bisect(FILE),
    "bisect --tolerance": lambda: tercet.keep_float32(FILE, 1e-4),
    "export": lambda: tercet.export(FILE),
    "simplify": lambda: tercet.simplify(FILE),
    "extract": lambda: tercet.extract(FILE, outputs=["r"]),
    "compress": lambda: tercet.compress(FILE, sparsity=0.5, bits=4, min_elements=1),
    "inspect": lambda: tercet.inspect(Path(FILE), passes=True, capability="numpy", cost=True),
    "profile": lambda: tercet.profile(FILE, repeat=2, peaks=False),
    "bench": lambda: tercet.bench(FILE, PAIR, schedule=BRIEF),
    "report": lambda: tercet.report([tercet.compare(FILE, PAIR, repeat=1).to_dict()]),
    "compile": lambda: tercet.compile(FILE, target="sm_80"),
    "doctor": lambda: tercet.diagnose(0.5),
}
#: Those whose results are tables.
TABLES = ("compare", "compare --layers", "bisect --tolerance", "inspect", "profile", "bench")


@pytest.fixture(autouse=True)
def _here(folder: Path) -> None:
    """In a folder with models."""


def test_no_command_is_left_out() -> None:
    named = {command.callback.__name__ for command in app.registered_commands if command.callback}
    called = {name.split()[0] for name in CALLS}
    # load(...).run(...), tools.conformance, Generator, and a demonstration
    assert named - called == {"run", "conformance", "generate", "demo"} | (
        named & {"tune", "pipeline"}
    )


@pytest.mark.parametrize("command", CALLS)
def test_the_result_is_json(command: str) -> None:
    found = CALLS[command]()
    data = finite(found.to_dict())
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))


@pytest.mark.parametrize("command", [name for name in CALLS if name != "report"])
def test_the_result_prints_in_80_columns(command: str) -> None:
    lines = str(CALLS[command]()).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", TABLES)
def test_the_result_is_rows(command: str) -> None:
    """Flat rows with the same columns, as pandas takes them."""
    found = CALLS[command]()
    rows = found.table()
    assert rows
    assert len({tuple(row) for row in rows}) == 1
    plain = (str, int, float, bool, type(None))
    assert all(isinstance(value, plain) for row in rows for value in row.values())
    assert str(found)


@pytest.mark.parametrize("command", TABLES)
def test_pandas_takes_it(command: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = CALLS[command]().table()
    frame = pandas.DataFrame(rows)
    assert len(frame) == len(rows)
    assert not any(frame[column].map(np.shape).map(bool).any() for column in frame)


def test_a_model_in_memory() -> None:
    """Nothing but `inspect` needs a file."""
    proto = models.classifier()
    assert tercet.bisect(proto).ok
    assert tercet.keep_float32(proto, 1e9).ok
    assert tercet.compare_layers(proto.SerializeToString(), PAIR).ok
    assert tercet.export(proto).nbytes[0] > 0


@pytest.mark.parametrize("command", CALLS)
def test_a_console_shows_one_line_and_a_notebook_the_whole(command: str) -> None:
    found = CALLS[command]()
    line, page = repr(found), found._repr_html_()
    assert line.startswith(f"<tercet.{type(found).__name__} ")
    assert len(line) < 250
    assert "\n" not in line
    assert page.startswith(("<pre", "<iframe"))
    assert len(page) > len(line)


def test_parts_of_results_are_short_in_a_console() -> None:
    found = tercet.bench(FILE, ["numpy"], duration=0.1)
    (case,) = found.cases
    assert len(case.steady.samples) > 20
    assert len(repr(case)) < 500
    assert repr(case.steady).startswith(f"Timing({len(case.steady.samples)} runs, median 0.")
    assert "1 case: ok" in repr(found)
    (_, other) = tercet.compare(FILE, PAIR).results
    assert len(repr(other.steady)) < 60


def test_a_notebook_shows_a_model_and_its_placement() -> None:
    with tercet.load(FILE) as model:
        assert "image: float32[batch,3,8,8]" in model._repr_html_()
        assert "<script" not in model._repr_html_()
        assert len(repr(model.placement())) < 100
        assert "conv" in model.placement()._repr_html_()


def swish(x: np.ndarray, *, beta: float = 1.0) -> np.ndarray:
    return x / (1 + np.exp(-beta * x))


SWISH = """
<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1]>
g (float[n] x) => (float[n] y) { s = my.domain.Swish <beta = 2.0> (x)  y = Abs (s) }
"""
#: Tools on a model with an operator that only `operators=` defines, and inputs in every form.
WITH_OPERATORS: dict[str, Callable[..., Any]] = {
    "load": lambda model, **more: tercet.load(model, **more),
    "compare": lambda model, **more: tercet.compare(
        model, ["numpy", "saved.npz"], [np.ones(4, np.float32)], repeat=0, **more
    ),
    "compare_layers": lambda model, **more: tercet.compare_layers(
        model, ["numpy"], {"x": np.ones(4, np.float32)}, other=model, **more
    ),
    "bisect": lambda model, **more: tercet.bisect(model, dims={"n": 4}, **more),
    "keep_float32": lambda model, **more: tercet.keep_float32(
        model, 1.0, shapes={"x": (4,)}, **more
    ),
    "profile": lambda model, **more: tercet.profile(
        model, repeat=1, peaks=False, shapes=["x=4"], **more
    ),
    "bench": lambda model, **more: tercet.bench(
        model, "numpy", np.ones(4, np.float32), duration=0.01, warm_up=0, **more
    ),
    "inspect": lambda model, **more: tercet.inspect(model, cost=True, **more),
    "export": lambda model, **more: tercet.export(model, **more),
    "simplify": lambda model, **more: tercet.simplify(model, dim={"n": 4}, **more),
    "extract": lambda model, **more: tercet.extract(model, outputs=["s"], **more),
}


@pytest.mark.parametrize("tool", WITH_OPERATORS)
def test_custom_operators_reach_every_tool(tool: str) -> None:
    model, known = parse_model(SWISH), {("my.domain", "Swish"): swish}
    np.savez("saved.npz", y=np.abs(swish(np.ones(4, np.float32), beta=2.0)))
    found = WITH_OPERATORS[tool](model, operators=known)
    assert getattr(found, "ok", True)
    if tool != "inspect":  # which describes what it does not know
        with pytest.raises(tercet.UnsupportedError, match="Swish"):
            WITH_OPERATORS[tool](model)
