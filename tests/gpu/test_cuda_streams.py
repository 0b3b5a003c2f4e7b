"""Branches side by side on a GPU: bit by bit what they give one after the other; and slices."""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.runtime.options import Precision
from tercet.tools.workshop.light_models import light_inputs, light_model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", ["inception_v1", "squeezenet", "resnet50", "densenet121"])
def test_streams_change_no_bit(name: str, precision: Precision) -> None:
    source = light_model(name)
    feeds = light_inputs(source)
    with tercet.load(source, "cuda", precision=precision, streams=1) as single:
        (want,) = single.run(feeds).values()
    with tercet.load(source, "cuda", precision=precision) as wide:
        for _ in range(100):
            (got,) = wide.run(feeds).values()
            np.testing.assert_array_equal(got, want)
        streams = {row.stream for row in wide.prepare().rows}
    assert (len(streams) > 1) == (name != "densenet121")


def test_networks_without_a_concat() -> None:
    for name in ("inception_v1", "squeezenet", "densenet121"):
        with tercet.load(light_model(name), "cuda") as model:
            kinds = {row.kind for row in model.placement() if row.operators == "Concat"}
        assert kinds == {"view"}
