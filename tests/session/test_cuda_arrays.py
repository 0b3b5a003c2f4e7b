"""What the CUDA backend makes of callers' streams and arrays, as far as no GPU is needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="the packages of tercet[cuda] are not installed")

from tercet.backends.cuda.interop.array import DeviceArray
from tercet.backends.cuda.interop.exchange import _format_of, _handle_of
from tercet.runtime.errors import UsageError
from tercet.runtime.ir.dtypes import bfloat16, float32, int4
from tercet.runtime.ir.types import TensorType
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.format import Format
from tercet.runtime.session.dlpack import see

from ..plan.fakes import FakeBuffer, FakeDevice


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 77)


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        (None, 1),
        (0, 1),
        (1, 1),
        (2, 2),
        (77, 77),
        (Protocol(), 77),
        (SimpleNamespace(cuda_stream=77), 77),
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(ptr=77), 77),
    ],
)
def test_streams(given: Any, handle: int) -> None:
    assert _handle_of(given) == handle


def test_what_is_no_stream() -> None:
    with pytest.raises(UsageError, match="stream='mine' is not a CUDA stream: give one that has"):
        _handle_of("mine")


def test_formats() -> None:
    image = np.zeros((2, 3, 4, 5), np.float32)
    last = np.moveaxis(np.zeros((2, 4, 5, 3), np.float32), -1, 1)
    assert _format_of(see(image)) is Format.CONTIGUOUS
    assert _format_of(see(last)) is Format.CHANNELS_LAST
    assert _format_of(see(last[:, :1])) is None
    assert _format_of(see(np.zeros((1, 3, 1, 1), np.float32))) is Format.CONTIGUOUS
    assert _format_of(see(image[:, :, :, ::2])) is None
    assert _format_of(see(image.transpose(3, 2, 1, 0))) is None
    assert _format_of(see(image[:, :0])) is Format.CONTIGUOUS


def array_of(dtype: Any = float32) -> DeviceArray:
    device: Any = FakeDevice()
    return DeviceArray(View(device, FakeBuffer(device, 96), 0, TensorType(dtype, (2, 3, 4))))


def test_an_array_describes_itself() -> None:
    array = array_of()
    assert repr(array) == "<DeviceArray float32[2,3,4] on fake:0>"
    assert (array.shape, array.dtype, array.ndim, array.nbytes) == ((2, 3, 4), float32, 3, 96)
    assert (len(array), array.device) == (2, "fake:0")
    assert array.view("int32").dtype == np.int32
    assert array.reshape(6, 4).shape == (6, 4)
    with pytest.raises(UsageError, match="float32 take 4 bytes, those of int8 1"):
        array.view("int8")
    with pytest.raises(UsageError, match=r"cannot have the shape \[5, 5\]"):
        array.reshape(5, 5)
    with pytest.raises(UsageError, match=r"cannot have the shape \[-6, -4\]"):
        array.reshape(-6, -4)
    with pytest.raises(TypeError, match=r"is not on the host; array.numpy\(\) copies it there"):
        np.asarray(array)


def test_what_cannot_be_shared() -> None:
    with pytest.raises(BufferError, match="DLPack packs int4"):
        array_of(int4).__dlpack__()
    assert not hasattr(array_of(bfloat16), "__cuda_array_interface__")
    closed = array_of()
    closed.close()
    with pytest.raises(UsageError, match="is closed"):
        closed.numpy()
