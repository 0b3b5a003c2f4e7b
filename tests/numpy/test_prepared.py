"""What is made of attributes is made once for each operator, and freed with it."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np

from tercet.backends.numpy.engine.attributes import attribute
from tercet.runtime.ir.prepared import prepared
from tercet.runtime.ops.ml import Scaler
from tercet.runtime.ops.norm import Softmax


def test_once_for_each_operator() -> None:
    @prepared
    def make(op: Softmax, size: int) -> np.ndarray[Any, Any]:
        return np.full(size, op.axis)

    op, other = Softmax(axis=1), Softmax(axis=1)
    found = make(op, 3)
    assert make(op, 3) is found
    assert make(op, 4).shape == (4,)
    assert make(other, 3) is not found
    alive = ref(found)
    del found, op
    gc.collect()
    assert alive() is None


def test_an_attribute_is_not_written() -> None:
    op = Scaler(scale=(1.0, 2.0))
    found = attribute(op, "scale", np.dtype(np.float64))
    assert found.tolist() == [1, 2]
    assert not found.flags.writeable
    assert attribute(op, "offset", np.dtype(np.float32), (0.0,)).tolist() == [0]
