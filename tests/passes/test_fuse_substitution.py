"""Unrolled forward substitutions are inverses of triangles: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet

from .graphs import optimised_file

BATCH, SIZE = 2, 5
#: What brings a matrix below the diagonal, if anything does.
TRIANGLES = {
    "tril": "l = Trilu <upper = 0> (a, below)",
    "masked": "l = Where (upper, zero, a)",
    "whole": "l = Identity (a)",
}


def rows(size: int, *, add: str = "Add", above: str = "") -> list[str]:
    """Return ``for i in range(size): x[:, i, :i] += x[:, i, :i] @ x[:, :i, :i]``, as it is traced.

    Args:
        size: rows of the matrix.
        add: what joins a row and its product.
        above: how many rows above a row are read in place of all.
    """
    lines = ["x0 = Neg (l)"]
    for i in range(1, size):
        x, other = f"x{i - 1}", above or i
        lines += [
            f"row{i} = Gather <axis = 1> ({x}, {i}_)",
            f"r{i} = Slice (row{i}, _0, _{i}, _1)",
            f"s{i} = Slice ({x}, _0, _{other}, _1)",
            f"t{i} = Slice (s{i}, _0, _{i}, _2)",
            f"u{i} = Unsqueeze (r{i}, last)",
            f"p{i} = Mul (u{i}, t{i})",
            f"q{i} = ReduceSum <keepdims = 0> (p{i}, rows)",
            f"n{i} = {add} (r{i}, q{i})",
        ]
    return lines


def by_elements(size: int) -> list[str]:
    """Return how dynamo writes rows: each as a whole, in a tensor transposed there and back."""
    lines = list[str]()
    for i in range(1, size):
        lines += [
            f"v{i} = Transpose <perm = [1, 0]> (n{i})",
            f"w{i} = Transpose <perm = [1, 0]> (row{i})",
            f"y{i} = ScatterND (w{i}, first{i}, v{i})",
            f"z{i} = Transpose <perm = [1, 0]> (y{i})",
            f"k{i} = Unsqueeze (z{i}, _1)",
            f"x{i} = ScatterElements <axis = 1> (x{i - 1}, at{i}, k{i})",
        ]
    return lines


def by_places(size: int) -> list[str]:
    """Return how TorchScript writes them: the first elements, whose places are listed."""
    return [
        line
        for i in range(1, size)
        for line in (f"k{i} = Unsqueeze (n{i}, _1)", f"x{i} = ScatterND (x{i - 1}, at{i}, k{i})")
    ]


def constants(size: int, *, listed: bool) -> str:
    """Return the constants that these lines read."""

    def ints(name: str, data: np.ndarray | list[int] | int) -> str:
        data = np.asarray(data)
        dims = f"[{', '.join(map(str, data.shape))}]" if data.ndim else ""
        numbers = ", ".join(map(str, data.reshape(-1)))
        return f"int64{dims} {name} = {{{numbers}}}"

    found = [ints(f"_{i}", [i]) for i in range(size)] + [ints("rows", [-2]), ints("last", [-1])]
    for i in range(1, size):
        grid = np.stack(np.meshgrid(range(BATCH), [i], range(i), indexing="ij"), -1)
        found.append(ints(f"at{i}", grid if listed else np.full((BATCH, 1, size), i)))
        found += [ints(f"first{i}", np.arange(i)[:, None])] * (not listed)
    upper = ", ".join(str(int(c >= r)) for r in range(size) for c in range(size))
    eye = ", ".join(str(float(c == r)) for r in range(size) for c in range(size))
    found += [f"bool[{size}, {size}] upper = {{{upper}}}", "float zero = {0.0}"]
    found += [f"float[{size}, {size}] eye = {{{eye}}}", ints("below", -1)]
    found += [ints(f"i{i}", i) for i in range(1, size)]
    return ", ".join(found)


def model(
    triangle: str, *, listed: bool, ends: str = "y = Add ({x}, eye)", **how: str
) -> ModelProto:
    lines = rows(SIZE, **how)
    written = (by_places if listed else by_elements)(SIZE)
    in_order = [TRIANGLES[triangle], lines[0]]
    for i in range(1, SIZE):
        count = 8
        in_order += lines[1 + count * (i - 1) : 1 + count * i]
        step = len(written) // (SIZE - 1)
        in_order += written[step * (i - 1) : step * i]
    in_order.append(ends.format(x=f"x{SIZE - 1}"))
    body = "\n".join(in_order)
    for i in range(1, SIZE):
        body = body.replace(f"{i}_)", f"i{i})")
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[{BATCH}, {SIZE}, {SIZE}] a) => (y)
        <{constants(SIZE, listed=listed)}> {{ {body} }}"""
    )


def assert_as_onnxruntime(proto: ModelProto) -> None:
    a = np.random.default_rng(0).standard_normal((BATCH, SIZE, SIZE), np.float32)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {"a": a})
    with tercet.load(proto, "numpy") as loaded:
        np.testing.assert_allclose(
            loaded.run({"a": a})["y"], np.asarray(want), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("listed", [False, True], ids=["rows", "places"])
@pytest.mark.parametrize("triangle", ["tril", "masked"])
def test_a_triangle_is_inverted(triangle: str, listed: bool) -> None:
    proto = model(triangle, listed=listed)
    kinds, log = optimised_file(proto)
    assert log.counts["fuse_substitution"] == 1
    assert kinds[1:] == ["Neg", "Sub", "com.microsoft::Inverse"]
    assert_as_onnxruntime(proto)


def test_an_identity_that_is_not_added_is_subtracted() -> None:
    proto = model("tril", listed=True, ends="y = Identity ({x})")
    kinds, log = optimised_file(proto)
    assert log.counts["fuse_substitution"] == 1
    assert kinds[1:] == ["Neg", "Sub", "com.microsoft::Inverse", "Sub"]
    assert_as_onnxruntime(proto)


def test_matrices_that_may_have_other_elements_stay() -> None:
    """Rows would be multiplied by what is above the diagonal, too."""
    proto = model("whole", listed=True)
    _, log = optimised_file(proto)
    assert "fuse_substitution" not in log.counts
    assert_as_onnxruntime(proto)


def test_other_recurrences_stay() -> None:
    for how in ({"add": "Sub"}, {"above": "1"}):
        proto = model("tril", listed=True, **how)
        _, log = optimised_file(proto)
        assert "fuse_substitution" not in log.counts
        assert_as_onnxruntime(proto)
