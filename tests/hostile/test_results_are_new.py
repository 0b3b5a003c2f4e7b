"""Results are the caller's own: writing to them changes no input, no weight and no other result."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import tercet
from tercet.tools.conformance.suite import all_cases

from ..spec.test_inference import with_constants

MAKERS = ("Identity", "Sequence", "Optional", "ZipMap", "If", "Loop", "Scan", "Split", "Dropout")


def arrays_in(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [data for element in held for data in arrays_in(element)]


def texts(value: Any) -> str:
    return repr([(data.dtype, data.shape, data.tolist()) for data in arrays_in(value)])


def scribble(data: Any) -> None:
    """Write to an array what it does not hold."""
    if data.size:
        data[...] = "scribbled" if data.dtype == object else ~data if data.dtype == bool else 77


def check(model: ModelProto, fed: list[Any], label: str, **options: Any) -> list[str]:
    """Return what is wrong with the results of a model, which are written to one by one."""
    with warnings.catch_warnings(), tercet.load(model.SerializeToString(), **options) as loaded:
        warnings.simplefilter("ignore")
        names = [info.name for info in loaded.inputs]
        feeds = dict(zip(names, deepcopy(fed), strict=False))
        before = texts(list(feeds.values()))
        results = loaded.run(feeds)
        arrays = arrays_in(list(results.values()))
        if not all(node.op.deterministic for node in loaded.imported.walk()):
            return []
        expected = texts(list(results.values()))
        wrong = [f"{label}: a result cannot be written to" for a in arrays if not a.flags.writeable]
        for place, data in enumerate(arrays):
            others = [a for i, a in enumerate(arrays) if i != place]
            kept = texts(others)
            scribble(data)
            wrong += [f"{label}: result {place} is part of another"] * (kept != texts(others))
        wrong += [f"{label}: an input changed"] * (before != texts(list(feeds.values())))
        again = texts(list(loaded.run(feeds).values()))
        return wrong + [f"{label}: the model changed"] * (again != expected)


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=str)
def test_of_every_operator(options: dict[str, Any]) -> None:
    """A case of every operator, and all of those that hand on what they get."""
    cases = [case for case in all_cases() if case.category == "node"]
    first = {case.operator: case for case in cases}
    chosen = {c.name: c for c in cases if c.operator.startswith(MAKERS) or first[c.operator] is c}
    wrong: list[str] = []
    for case in chosen.values():
        model, ((fed, _), *_) = case.content.read()
        try:
            wrong += check(model, list(fed), case.name, **options)
            fixed = with_constants(model, fed)
            fixed = with_constants(model, fed) if fixed.graph.initializer else model
            named = {entry.name for entry in fixed.graph.input}
            rest = [v for i, v in zip(model.graph.input, fed, strict=False) if i.name in named]
            wrong += check(fixed, rest, f"{case.name}, fixed", **options)
        except tercet.TercetError:
            continue
    assert not wrong, "\n".join(wrong)


SEQUENCES = """g (seq(float[2]) s, float[2] x)
=> (seq(float[2]) a, seq(float[2]) b, float[2] c, seq(float[2]) d)
{ a = Identity(s) zero = Constant<value = int64 {0}>() b = SequenceInsert(s, x)
  c = SequenceAt(s, zero) w = Constant<value = float[2] {1, 2}>() d = SequenceInsert(s, w) }"""


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=str)
def test_sequences(options: dict[str, Any]) -> None:
    text = f'<ir_version: 10, opset_import: ["" : 21]> {SEQUENCES}'
    rows = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    fed = [rows, np.array([5, 6], np.float32)]
    assert not check(parser.parse_model(text), fed, "sequences", **options)
