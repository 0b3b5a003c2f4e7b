"""Large inputs and results on a GPU: where they are read and written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.runtime.options import Precision
from tercet.runtime.plan.exchange import exchange_of
from tercet.runtime.plan.transfers import MIN_UPLOAD

from ..passes.test_overflow import network

pytestmark = pytest.mark.gpu

COUNT = MIN_UPLOAD // 2
TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Mul(x, x) }'
ROWS = MIN_UPLOAD // 8


@pytest.fixture
def model() -> Iterator[tercet.Model]:
    with tercet.load(onnx.parser.parse_model(TEXT), backend="cuda") as found:
        yield found


def is_pinned(model: tercet.Model, data: np.ndarray) -> bool:
    exchange = exchange_of(model.backends[0].device)
    return exchange is not None and exchange.is_pinned(data)


def data(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(COUNT, np.float32)


def test_results_are_pinned_and_stay_as_they_are(model: tercet.Model) -> None:
    runs = [(data(seed), model.run({"x": data(seed)})["y"]) for seed in range(4)]
    for x, y in runs:
        np.testing.assert_array_equal(y, x * x)
    assert [is_pinned(model, y) for _, y in runs] == [True, True, False, False]
    model.close()
    np.testing.assert_array_equal(runs[0][1], runs[0][0] ** 2)


def test_pinned_inputs_are_read_where_they_are(model: tercet.Model) -> None:
    x = tercet.pinned((COUNT,))
    for seed in range(3):
        x[...] = data(seed)
        y = model.run({"x": x})["y"]
        x[...] = np.nan
        np.testing.assert_array_equal(y, data(seed) ** 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_reads_a_result(model: tercet.Model) -> None:
    x = data(0)
    y = model.run({"x": x})["y"]
    child = os.fork()
    if child == 0:
        same = bool((y == x * x).all())
        del y
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(model.run({"x": x})["y"], x * x)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("row", [0, ROWS // 2, ROWS - 1])
def test_the_device_finds_what_overflowed(precision: Precision, row: int) -> None:
    x = np.random.default_rng(0).random((ROWS, 4), np.float32)
    with tercet.load(network(20.0), backend="cuda", precision=precision) as model:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.run({"x": x})
        if precision == "float16":
            x[row] = 1e4
            with pytest.warns(tercet.PrecisionWarning, match="'y'"):
                y = model.run({"x": x})["y"]
        else:  # infinite in float32 as well
            x[row] = np.inf
            y = model.run({"x": x})["y"]
        assert not np.isfinite(y[row]).all()
