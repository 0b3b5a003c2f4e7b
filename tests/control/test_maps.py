"""Lists of maps, one for each row of a classifier's scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.backends.numpy.engine import node_alone
from tercet.runtime.base.budget import Budget
from tercet.runtime.control.tally import Tally
from tercet.runtime.errors import LimitError, TercetError
from tercet.runtime.session.io_types import Owned

MODEL = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
    g (float[n,3] x) => (seq(map(int64, float)) y) {
        y = ai.onnx.ml.ZipMap <classlabels_int64s = [4, 5, 6]> (x)
    }"""


def file(columns: int = 3) -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL.replace("n,3", f"n,{columns}" if columns else "n,c"))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_map_of_each_row(rows: int) -> None:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) / 7
    with tercet.load(file()) as model:
        found = model.run({"x": x})["y"]
        again = model.run({"x": x})["y"]
    assert found == [dict(zip((4, 5, 6), row, strict=True)) for row in x.tolist()]
    assert found == again
    assert all(type(score) is float for each in found for score in each.values())
    assert not {*map(id, found)} & {*map(id, again)}


def test_other_numbers_of_scores_are_refused() -> None:
    with tercet.load(file(0)) as model, pytest.raises(TercetError):
        model.run({"x": np.ones((2, 4), np.float32)})


def test_types_are_inferred_for_the_first_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    inferred = node_alone._inferred

    def counted(*given: Any) -> Any:
        calls.append(given[0])
        return inferred(*given)

    monkeypatch.setattr(node_alone, "_inferred", counted)
    with tercet.load(file()) as model:
        for _ in range(3):
            model.run({"x": np.ones((2, 3), np.float32)})
        before = len(calls)
        model.run({"x": np.ones((2, 3), np.float32)})
    assert before
    assert len(calls) == before


def test_maps_count_once_in_the_budget() -> None:
    budget = Budget(1000)
    tally = Tally(budget)
    maps: list[Any] = [{1: 0.5, 2: 0.5} for _ in range(4)]
    empty, large = dict[int, float](), {1: 0.5, 2: 0.5, 3: 0.0}
    tally.add(maps, "maps")  # 800 bytes
    tally.add([maps[0], empty], "some of them")
    tally.add([maps[1], maps[1]], "one of them")
    with pytest.raises(LimitError, match="more maps"):
        tally.add([large], "more maps")
    tally.drop(maps)  # two of which are held by others
    tally.add([dict(large)], "more maps")
    tally.close()
    budget.take(1000, "everything")


def test_new_maps_are_not_copied() -> None:
    made: list[Any] = [{1: 0.5}, {2: 0.25}]
    own = Owned([[{1: 0.5}]])
    assert own(made) is made
    assert own(made) == made
    assert own(made) is not made
    shared = [{3: 0.5}] * 2
    found = Owned([])(shared)
    assert isinstance(found, list)
    assert found[0] is not found[1]


def test_results_are_maps_of_their_own() -> None:
    inner = [np.ones(2)]
    given: list[Any] = [{1: 0.5}, {2: 0.25}]
    own = Owned([given])
    found, again = own(given), own(given)
    assert found == again == given
    assert isinstance(found, list)
    assert isinstance(again, list)
    owners = [id(each) for every in (found, again, given) for each in every]
    assert len({*owners}) == len(owners)
    nested = own([{1: inner}])
    assert isinstance(nested, list)
    assert nested[0][1] is not inner
