"""A warning is shown with the line of the program that called tercet, not with one of tercet."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tercet

OVERFLOWING = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1, 2] x) => (float[1, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }
"""
CONTRADICTED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n, 2] x) => (float[n, 2] y) <float[n, 7] a> { a = Exp (x)  y = Neg (a) }
"""
X = np.full((1, 2), 1e5, np.float32)


def overflow() -> None:
    tercet.load(OVERFLOWING, precision="float16")(X)


def overflow_in_a_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(overflow).result()


def contradiction() -> None:
    tercet.load(CONTRADICTED)(X)


def inspection() -> None:
    tercet.inspect(CONTRADICTED, placement="numpy")


def inside_a_custom_operator() -> None:
    """The operator is the program's, too; the program's line is that of the run."""

    def again(x: object) -> object:
        overflow()
        return x

    text = """
    <ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[1, 2] x) => (float[1, 2] y) { y = my.Again (x) }
    """
    tercet.load(text, operators={("my", "Again"): again})(X)


@pytest.mark.parametrize(
    "call",
    [overflow, overflow_in_a_thread, contradiction, inspection, inside_a_custom_operator],
    ids=lambda call: call.__name__,
)
def test_it_names_the_line_of_the_caller(call: Callable[[], None]) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    assert [(each.filename, issubclass(each.category, tercet.TercetWarning)) for each in found] == [
        (__file__, True)
    ]
