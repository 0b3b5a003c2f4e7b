"""Random lives of sessions; what a session must not do is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tercet import Model
from tercet.tools.workshop.fuzz.emulation import Emulator
from tercet.tools.workshop.fuzz.graphs import random_model
from tercet.tools.workshop.fuzz.sessions import lived

_Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("seed", range(9_300_001, 9_300_011))
def test_what_ran_before_does_not_matter(seed: int) -> None:
    proto, feeds = random_model(seed, 8)
    assert list(lived(proto, feeds, Random(seed))) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: install g++")
def test_kernels_refuse_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without rows, which numpy refuses: see docs/rulings.md."""
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 3] x, int64[2] i) => (float[2, 3] y) { y = Gather(x, i) }""")
    feeds = {"x": np.ones((2, 3), np.float32), "i": np.array([1, 0])}
    life = partial(lived, proto, feeds, Random(4))
    assert list(life(Emulator(tmp_path, monkeypatch.setattr))) == []


def _writes_to_inputs(run: _Run) -> _Run:
    def wrong(self: Model, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        found = run(self, inputs, outputs)
        for data in inputs.values():
            if isinstance(data, np.ndarray) and data.flags.writeable and self.options.stop_at != 0:
                data[...] = 0
        return found

    return wrong


def _reuses_results(run: _Run) -> _Run:
    made: dict[Any, Any] = {}

    def wrong(self: Model, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        found = run(self, inputs, outputs)
        if self.options.stop_at == 0:
            return found
        for name, data in found.items():
            kept = made.setdefault((name, data.shape), data)
            kept[...] = data
            found[name] = kept
        return found

    return wrong


def _ends_after_an_error(run: _Run) -> _Run:
    ended = set[int]()

    def wrong(self: Model, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        if id(self) in ended:
            raise ValueError("an error before")
        ended.add(id(self))
        found = run(self, inputs, outputs)
        ended.remove(id(self))
        return found

    return wrong


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_writes_to_inputs, "was written to"),
        (_reuses_results, "changed later"),
        (_ends_after_an_error, "an error before"),
    ],
)
def test_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[_Run], _Run], said: str
) -> None:
    proto, feeds = random_model(9_300_001, 8)
    monkeypatch.setattr(Model, "run", plant(Model.run))
    found = [line for i in range(4) for line in lived(proto, feeds, Random(i))]
    assert any(said in line for line in found)
