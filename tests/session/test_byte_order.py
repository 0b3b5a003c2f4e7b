"""Arrays in the other byte order, as files of other machines have them, count as numbers."""

import numpy as np
import pytest

import tercet


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint16", "complex64", "U2"])
def test_swapped_bytes(dtype: str) -> None:
    data = np.arange(6).reshape(2, 3).astype(dtype)
    swapped = data.astype(data.dtype.newbyteorder("S"))
    found = tercet.run_op("Transpose", swapped, perm=[1, 0])
    np.testing.assert_array_equal(found, data.T)
    assert found.dtype == tercet.run_op("Identity", data).dtype


def test_swapped_inputs_of_a_model() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Neg (x) }'
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    with tercet.load(text) as model:
        np.testing.assert_array_equal(model(x.astype(x.dtype.newbyteorder("S")))[0], -x)
        with pytest.raises(tercet.InputError, match="float64"):
            model(x.astype(np.dtype(np.float64).newbyteorder("S")))
