"""A Cast gives one of the two numbers next to an element: which, is all that ONNX leaves open."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest

from tercet import compare_layers
from tercet.backends.numpy import NumpyBackend
from tercet.tools.runners.replay import BackendPlayer

from .faulty import FaultyBackend
from .networks import Array

X = (np.random.default_rng(0).standard_normal((6, 16)) * 3).astype(np.float32)
X[0, :4] = [0, 1, 1e-30, -70000]
TYPES = {10: np.float16, 16: ml_dtypes.bfloat16}


def cut_off(rounded: Array) -> Array:
    """What is next to the elements on the side of zero."""
    towards = np.zeros_like(rounded)
    is_longer = np.abs(rounded.astype(np.float64)) > np.abs(X)
    return np.where(is_longer, np.nextafter(rounded, towards), rounded)


def next_but_one(rounded: Array) -> Array:
    """As `cut_off`, but for one element, which is one step too far."""
    found = cut_off(rounded)
    found[1, 2] = np.nextafter(found[1, 2], np.zeros_like(found[1, 2]))
    return found


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize(("wrong", "is_found"), [(cut_off, False), (next_but_one, True)])
def test_casts(to: int, wrong: Callable[[Array], Array], is_found: bool) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[6,16] x) => (y) {{ [narrow] y = Cast <to = {to}> (x) }}""")

    def damage(data: Array) -> None:
        data[...] = wrong(data)

    faulty = BackendPlayer("faulty", (FaultyBackend({"narrow"}, damage), NumpyBackend()))
    with np.errstate(over="ignore"):
        found = compare_layers(model, ["numpy", faulty], {"x": X})
    assert [layer.verdict == "wrong" for layer in found.layers] == [is_found], found
    if is_found:
        said = f"1 element differs from both {TYPES[to].__name__} numbers next to what is converted"
        assert found.layers[0].findings[0].agreement.reason == said
