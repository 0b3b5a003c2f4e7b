"""Memory of large results, which is used again as soon as it is released, and not before."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.runtime.plan.result_memory import MIN_BYTES, ResultMemory

COUNT = MIN_BYTES // 4


def filled(value: float, dtype: type = np.float32, count: int = COUNT) -> np.ndarray:
    return np.full((2, count // 2), value, dtype)


def address(data: np.ndarray) -> int:
    return data.__array_interface__["data"][0]


def test_memory_that_was_let_go_of_is_used_again() -> None:
    memory = ResultMemory()
    result = memory.copy("y", filled(1))
    place = address(result)
    assert memory.nbytes == 0
    del result
    assert memory.nbytes == MIN_BYTES
    again = memory.copy("y", filled(2))
    assert address(again) == place
    assert again.flags.writeable
    assert (again == 2).all()


def test_memory_that_a_view_holds_stays_as_it_is() -> None:
    memory = ResultMemory()
    view = memory.copy("y", filled(1))[1, ::2].reshape(-1)[3:]
    others = [memory.copy("y", filled(value)) for value in (2, 3)]
    assert (view == 1).all()
    assert [other[0, 0] for other in others] == [2, 3]
    del others
    assert memory.nbytes == MIN_BYTES  # of one result of the name, not of two


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int8, np.complex64])
def test_any_dtype_goes_there(dtype: type) -> None:
    memory = ResultMemory()
    data = filled(1, dtype, 4 * COUNT)
    for _ in range(2):
        result = memory.copy("y", data)
        assert result.dtype == data.dtype
        np.testing.assert_array_equal(result, data)


def test_another_size_gets_its_own_memory() -> None:
    memory = ResultMemory()
    memory.copy("y", filled(1))
    longer = memory.copy("y", filled(2, count=2 * COUNT))
    assert longer.nbytes == 2 * MIN_BYTES
    assert memory.nbytes == 0


def test_small_results_and_texts_are_plain_copies() -> None:
    memory = ResultMemory()
    for data in (np.arange(8), np.array(["a", "b"] * COUNT, object)):
        memory.copy("y", data)
    assert memory.nbytes == 0


def test_results_outlive_their_model() -> None:
    model = tercet.load(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
        )
    )
    x = np.arange(COUNT, dtype=np.float32)
    first, second = (model.run({"x": x + i})["y"] for i in range(2))
    model.close()
    del model
    gc.collect()
    np.testing.assert_array_equal(first, -x)
    np.testing.assert_array_equal(second, -x - 1)
