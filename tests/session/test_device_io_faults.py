"""Runs of which a stream has only been given a part: what it may still read stays as it is."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tercet.runtime.errors import DeviceError

from ..plan.lazy import Foreign, LazyDevice, LazyStream
from .test_device_io import chain, data, expected, model_of


class Kept(Foreign):
    """A caller's array of which one sees whether anybody has it."""


@pytest.mark.parametrize("error", [DeviceError("a launch failed"), KeyboardInterrupt()])
def test_inputs_are_kept_until_the_stream_has_read_them(error: BaseException) -> None:
    device, stream = LazyDevice(), LazyStream("mine")
    with model_of(chain(), device) as model:
        resident = model.prepare({"x": (2, 4)}, to="device").resident
        assert resident is not None
        execute = resident.plan.execute

        def fail(*args: object) -> None:
            raise error

        given = Kept(data(0))
        seen = weakref.ref(given)
        resident.plan.execute = fail  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(type(error)):
            model.run({"x": given}, to="device", stream=stream)
        resident.plan.execute = execute  # pyright: ignore[reportAttributeAccessIssue]
        error.__traceback__ = None
        del given
        gc.collect()
        assert stream.work, "the copy of the input waits"
        assert seen() is not None
        again = model.run({"x": Foreign(data(1))}, to="device", stream=stream)["y"]
        np.testing.assert_array_equal(again.numpy(), expected(data(1)))
        stream.synchronize()
        model.run({"x": Foreign(data(2))}, to="device", stream=stream)
        gc.collect()
        assert seen() is None
