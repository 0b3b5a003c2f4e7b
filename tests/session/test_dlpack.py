"""What DLPack's capsules say, of arrays that numpy knows and of others."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import InputError
from tercet.runtime.ir.dtypes import bfloat16
from tercet.runtime.ir.types import Array
from tercet.runtime.session.dlpack import CODES, on_host, place_name, place_of, relabel, see
from tercet.runtime.session.io_types import as_array


class Theirs:
    """An array of a library whose types numpy does not know, as PyTorch's bfloat16."""

    def __init__(self, data: Array, place: tuple[int, int] = (1, 0)) -> None:
        self.carrier = data.view(f"u{data.dtype.itemsize}") if data.dtype in CODES else data
        self.dtype, self.place = data.dtype, place

    def __array__(self, *how: Any, **more: Any) -> Array:
        raise TypeError("Got unsupported ScalarType")

    def __dlpack__(self, **how: Any) -> object:
        return relabel(self.carrier.__dlpack__(**how), self.dtype, self.place)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "u2", "i8", "c8", "?"])
def test_what_numpy_knows(dtype: str) -> None:
    data = np.arange(24).reshape(2, 3, 4).astype(dtype)
    seen = see(data)
    assert (seen.pointer, seen.dtype, seen.shape) == (data.ctypes.data, data.dtype, data.shape)
    assert seen.order() == (0, 1, 2)
    np.testing.assert_array_equal(on_host(data), data)


@pytest.mark.parametrize("dtype", list(CODES), ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_what_numpy_does_not_know(dtype: Any, shape: tuple[int, ...]) -> None:
    data = np.ones(shape).astype(dtype)
    found = as_array(Theirs(data))
    assert (found.dtype, found.shape) == (dtype, shape)
    assert found.tobytes() == data.tobytes()


def test_both_kinds_of_capsules() -> None:
    data = np.arange(4, dtype=np.uint16)
    for theirs in (data.__dlpack__(), data.__dlpack__(max_version=(1, 0))):
        capsule = relabel(theirs, bfloat16, (2, 1))

        class Holder:
            def __dlpack__(self, capsule: object = capsule, **how: Any) -> object:
                return capsule

        seen = see(Holder())
        assert (seen.dtype, seen.place, seen.shape) == (bfloat16, (2, 1), (4,))


def test_orders() -> None:
    data = np.zeros((2, 3, 1, 5), np.float32)
    assert see(data).order() == (0, 1, 3)
    assert see(np.moveaxis(data, 1, -1)).order() == (0, 3, 2)
    assert see(data.transpose(0, 3, 2, 1)).order() == (0, 3, 1)
    assert see(data[:, ::2]).order() is None
    assert see(data[:, :, :0]).order() == (0, 1, 2, 3)
    np.testing.assert_array_equal(on_host(data.T), data.T)


def test_memory_lives_as_long_as_the_view() -> None:
    class Kept(np.ndarray[Any, Any]):
        pass

    data = np.arange(5, dtype=np.float32).view(Kept)
    reference = weakref.ref(data)
    found = on_host(data)
    del data
    gc.collect()
    assert reference() is not None
    np.testing.assert_array_equal(found, range(5))
    del found
    gc.collect()
    assert reference() is None


def test_places() -> None:
    assert place_of(np.ones(3)) is place_of(1.5) is place_of([1]) is place_of(object()) is None
    assert place_of(Theirs(np.ones(2, bfloat16))) is None
    assert place_of(Theirs(np.ones(2, bfloat16), (2, 1))) == (2, 1)
    assert [place_name(p) for p in ((2, 0), (13, 1), (2, -1))] == ["cuda:0", "cuda:1", "a GPU"]
    with pytest.raises(BufferError, match="is on cuda:1"):
        on_host(Theirs(np.ones(2, bfloat16), (2, 1)))
    with pytest.raises(InputError, match="is on cuda:1"):
        as_array(Theirs(np.ones(2, bfloat16), (2, 1)))


def test_what_only_dlpack_describes() -> None:
    """As an array of nanobind, which numpy takes for a single object."""

    class Exported:
        data = np.arange(6, dtype=np.float32).reshape(2, 3)

        def __dlpack__(self, **how: Any) -> object:
            return self.data.__dlpack__(**how)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.data.__dlpack_device__()

    np.testing.assert_array_equal(as_array(Exported()), Exported.data)


def test_what_is_no_array() -> None:
    with pytest.raises(InputError, match="is not an array"):
        as_array([[1, 2], [3]])


@pytest.mark.parametrize(
    "reason", [ValueError("no such device"), NotImplementedError("no storage")]
)
def test_what_dlpack_cannot_describe(reason: Exception) -> None:
    """As a tensor of PyTorch on the device `meta`, or in the layout of oneDNN."""

    class Opaque(Theirs):
        def __dlpack__(self, **how: Any) -> object:
            raise reason

        def __dlpack_device__(self) -> tuple[int, int]:
            raise reason

    array = Opaque(np.ones(2, np.float32))
    assert place_of(array) is None
    with pytest.raises(InputError, match=f"cannot be read through DLPack: {reason}"):
        as_array(array)
