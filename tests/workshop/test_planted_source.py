"""Errors planted in the source: one process has them, and tools that miss them are named."""

from __future__ import annotations

import inspect
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import tercet
from tercet.importers.onnx.upgrading import upgrade
from tercet.tools.workshop import planted_source
from tercet.tools.workshop.planted_source import (
    FOOLED,
    FOUND,
    UNSEEN,
    Sample,
    samples_of,
    tried,
)
from tercet.tools.workshop.source_errors import Error, error_at

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture
def sample() -> Sample:
    """A Clip whose bounds are attributes; it is not loaded, which would keep it."""
    proto = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["" : 10]>
        g (float[8] x) => (float[8] y) { y = Clip <min = -1.0, max = 2.0> (x) }""")
    x = np.arange(-4, 4, dtype=np.float32)
    results = {"y": x.clip(-1, 2)}
    return Sample("clip", proto.SerializeToString(), {"x": x}, results, frozenset())


@pytest.fixture
def error() -> Error:
    """The bounds the other way round."""
    file = inspect.getsourcefile(upgrade.clip)
    assert file is not None
    lines, first = inspect.getsourcelines(upgrade.clip)
    (line,) = (first + i for i, text in enumerate(lines) if "enumerate" in text)
    drawn = (error_at([(file, line)], Random(i)) for i in range(40))
    return next(one for one in drawn if one is not None and one.after == "(maximum, minimum)")


def test_it_is_found_and_gone(error: Error, sample: Sample) -> None:
    assert tried(error, [sample], is_pass=False).kind == FOUND
    with tercet.load(onnx.load_from_string(sample.proto)) as model:
        np.testing.assert_array_equal(model.run(sample.feeds)["y"], sample.results["y"])


def test_a_tool_that_misses_it_is_named(
    error: Error, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = SimpleNamespace(verdict="ok", first=None)
    monkeypatch.setattr(planted_source, "compare", lambda *_, **__: blind)
    said = tried(error, [sample], is_pass=False)
    assert (said.kind, said.lines) == (FOOLED, ("compare: ok",))


def test_an_error_without_effect(error: Error) -> None:
    assert tried(error, [], is_pass=False).kind == UNSEEN


def test_types_have_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text("def f():\n  def g(x: int | str) -> str | bytes:\n    y: int | str = 3\n")
    inner, value = (
        {error_at([(str(file), line)], Random(i)) for i in range(20)} for line in (2, 3)
    )
    assert inner == {None}
    assert {error.before for error in value if error is not None} == {"3"}


def test_samples_note_their_lines() -> None:
    sample = next(samples_of("passes"))
    assert sample.lines
    assert all("runtime/passes" in file for file, _ in sample.lines)
