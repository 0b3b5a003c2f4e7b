"""Numbers of Python as inputs: they have no dtype, and take that of the input, as in numpy."""

import numpy as np
import pytest

import tercet


def identity(dtype: str, rank: int) -> tercet.Model:
    shape = f"[{','.join('nm'[:rank])}]" if rank else ""
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({dtype}{shape} x) => ({dtype}{shape} y)'
    return tercet.load(f"{text} {{ y = Identity(x) }}")


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("value", [3, [3, 250], [[1, 2], [3, 4]], (1, 2), []])
def test_whole_numbers(dtype: str, value: object) -> None:
    with identity(dtype, np.ndim(np.asarray(value))) as model:
        wanted = np.asarray(value, model.inputs[0].dtype)
        found = model.run({"x": value})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
def test_fractions(dtype: str) -> None:
    value = [[0.1, -2.5], [3, 4.25]]
    with identity(dtype, 2) as model:
        found = model(value)[0]
        np.testing.assert_array_equal(found, np.asarray(value, model.inputs[0].dtype))


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        ("uint8", [1, 300], "input 'x': .*out of bounds for uint8; the model expects x: uint8"),
        ("float", [1e300], "input 'x': overflow"),
        ("int64", [1, 2.5], "has dtype float64"),
        ("bool", [1, 0], "has dtype int64"),
        ("float", [True], "has dtype bool"),
        ("float", [np.float64(1)], "has dtype float64"),
        ("float", [np.ones(2)], "has dtype float64"),
        ("float", [[1.0], [2.0, 3.0]], "is not an array"),
        ("float", ["1.5"], "dtype"),
    ],
)
def test_what_numpy_would_not_convert_either(dtype: str, value: object, reason: str) -> None:
    rank = 2 if dtype == "float" and np.ndim(np.asarray(value, object)) == 2 else 1
    with identity(dtype, rank) as model, pytest.raises(tercet.InputError, match=reason):
        model.run({"x": value})
