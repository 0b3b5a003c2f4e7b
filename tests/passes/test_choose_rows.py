"""Rows of the tables that an If chooses are those of one table."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.types import Array

TABLES = np.arange(3 * 2.0).reshape(3, 2), 100 + np.arange(5 * 2.0).reshape(5, 2)
INDICES = np.array([[0, 2], [-1, -3]], np.int64)


def model(reading: str, results: str, more: str = "") -> onnx.ModelProto:
    """An If between tables of 5 and 3 rows, and what reads them."""

    def branch(name: str, data: Array) -> str:
        nodes = "".join(
            f"{name}{i} = Constant<value = float[{len(data)},2] {{"
            f"{', '.join(str(i * 10 + x) for x in data.ravel())}}}>()\n"
            for i in range(2)
        )
        outputs = ", ".join(f"float[{len(data)},2] {name}{i}" for i in range(2))
        return f"{name}_branch = {name} () => ({outputs}) {{ {nodes} }}"

    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 23]>
        g (bool long, int64[2,2] i{more}) => ({results}) {{
            a, b = If(long) <{branch("then", TABLES[1])}, {branch("else", TABLES[0])}>
            {reading}
        }}""")


GATHERED = "y = Gather<axis=0>(a, i)\nk = ReduceSum<keepdims=0>(i)\nz = Gather<axis=0>(b, k)"


def kinds(made: tercet.Model) -> set[str]:
    return {node.kind for node in made.graph.nodes}


@pytest.mark.parametrize("long", [True, False])
def test_rows(long: bool) -> None:
    """Also those that are counted from the end, and by an index of no axes."""
    given = {"long": np.array(long), "i": INDICES}
    with tercet.load(model(GATHERED, "float[2,2,2] y, float[2] z")) as made:
        assert "If" not in kinds(made)
        found = made.run(given)
    table = TABLES[long].astype(np.float32)
    assert (found["y"] == table[INDICES]).all()
    assert (found["z"] == 10 + table[INDICES.sum()]).all()


@pytest.mark.parametrize(("long", "outside"), [(False, 3), (False, -4), (True, 5), (True, -6)])
def test_an_index_outside_of_its_own_table(long: bool, outside: int) -> None:
    with (
        tercet.load(model(GATHERED, "float[2,2,2] y, float[2] z")) as made,
        pytest.raises(tercet.DeviceError, match="outside of an axis"),
    ):
        made.run({"long": np.array(long), "i": INDICES * 0 + outside})


def test_rotations() -> None:
    text = "y = RotaryEmbedding(x, a, b, i)"
    made = model(text, "float[2,1,2,4] y", ", float[2,1,2,4] x")
    x = np.random.default_rng(0).standard_normal((2, 1, 2, 4)).astype(np.float32)
    for long in (True, False):
        given = {"long": np.array(long), "i": np.abs(INDICES) % 3, "x": x}
        with tercet.load(made) as one, tercet.load(made, skip=("choose_rows",)) as other:
            assert ("If" in kinds(one), "If" in kinds(other)) == (False, True)
            assert (one.run(given)["y"] == other.run(given)["y"]).all()


@pytest.mark.parametrize(
    ("reading", "results"),
    [
        ("y = Gather<axis=0>(a, i)\nz = Identity(b)", "float[2,2,2] y, float[n,2] z"),
        ("y = Gather<axis=1>(a, i)", "float[n,2,2] y"),
        ("y = Gather<axis=0>(a, i)\nz = ReduceSum(b)", "float[2,2,2] y, float[1,1] z"),
    ],
)
def test_other_readers_keep_the_choice(reading: str, results: str) -> None:
    with tercet.load(model(reading, results)) as made:
        assert "If" in kinds(made)
