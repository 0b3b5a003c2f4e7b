"""Bags of rows that a Loop reduces one after the other, as PyTorch exports its EmbeddingBag."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .graphs import kinds

#: Rows of the table, and indices into it.
TABLE, COUNT, WIDTH = 20, 12, 5
EVEN, RAGGED, COMPUTED = (0, 3, 6, 9, 12), (0, 2, 2, 7, 12), None
#: How a round reduces the rows of its bag; the last one in another way, as PyTorch's exporter does.
SUM = "c = Slice (rows, s, e) r = ReduceSum (c, first)"
MEAN = """c = Slice (rows, s, e) is_last = Equal (i, last)
    r = If (is_last) <
        then_branch = t () => (float[1, 5] p) {
            w = ReduceSum (c, first) d = Sub (count, s) some = Greater (d, zero)
            p = If (some) <
                then_branch = tt () => (float[1, 5] g) { f = Cast <to = 1> (d) g = Div (w, f) },
                else_branch = te () => (float[1, 5] h) { h = Identity (w) }>
        },
        else_branch = e () => (float[1, 5] q) { q = ReduceMean (c, first) }>"""
CLIPPED = """c = Slice (rows, s, e) w = ReduceSum (c, first) d = Sub (e, s)
    some = Clip (d, one) f = Cast <to = 1> (some) r = Div (w, f)"""
MAX = """is_last = Equal (i, last)
    c = If (is_last) <
        then_branch = t () => (float[m, 5] p) { p = Slice (rows, s, count) },
        else_branch = e () => (float[n, 5] q) { q = Slice (rows, s, e) }>
    r = ReduceMax (c, first)"""


@dataclass(frozen=True)
class Case:
    """A Loop over bags.

    Attributes:
        reduction: the nodes that compute `r` from `s` and `e`.
        offsets: where bags begin and end; None if they are an input.
        insert: the other operands of SequenceInsert.
        table: whether the rows are those of a constant table.
    """

    reduction: str
    offsets: tuple[int, ...] | None
    insert: str = ""
    table: bool = True


def model_of(case: Case) -> ModelProto:
    bags = len(case.offsets or RAGGED) - 1
    given = "" if case.offsets else f", int64[{bags + 1}] offsets"
    given += "" if case.table else f", float[{TABLE}, {WIDTH}] table"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (int64[{COUNT}] index{given}) => (float[b, {WIDTH}] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 bags = {{{bags}}},
     int64 last = {{{bags - 1}}}, int64[1] count = {{{COUNT}}}, int64[1] first = {{0}}>
    {{
        rows = Gather (table, index)
        yes = Less (zero, bags)
        empty = SequenceEmpty ()
        all, end = Loop (, yes, empty, zero) <body = body (
            int64 round, bool going, seq(float) before, int64 i
        ) => (bool more, seq(float) after, int64 next) {{
            at = Reshape (i, first_shape)
            behind = Add (at, one)
            beyond = Add (at, two)
            s = Slice (offsets, at, behind)
            e = Slice (offsets, behind, beyond)
            none = Equal (s, e)
            row = If (none) <
                then_branch = then () => (float[1, {WIDTH}] z) {{ z = Identity (zeros) }},
                else_branch = other () => (float[1, {WIDTH}] r) {{ {case.reduction} }}>
            after = SequenceInsert (before, row{case.insert})
            next = Add (i, one)
            more = Less (next, bags)
        }}>
        joined = ConcatFromSequence <axis = 0> (all)
        y = Mul (joined, half)
    }}"""
    model = parse_model(text)
    numbers = np.random.default_rng(3).standard_normal((TABLE, WIDTH)).astype(np.float32)
    constants = {
        "first_shape": np.array([-1]),
        "zeros": np.zeros((1, WIDTH), np.float32),
        "half": np.array(0.5, np.float32),
    }
    if case.table:
        constants["table"] = numbers
    if case.offsets:
        constants["offsets"] = np.array(case.offsets)
    made = [onnx.numpy_helper.from_array(data, name) for name, data in constants.items()]
    model.graph.initializer.extend(made)
    return model


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    feeds: dict[str, np.ndarray] = {"index": rng.integers(0, TABLE, COUNT)}
    if case.offsets is None:
        feeds["offsets"] = np.array(RAGGED)
    if not case.table:
        feeds["table"] = rng.standard_normal((TABLE, WIDTH)).astype(np.float32)
    return feeds


CASES = [
    Case(reduction, offsets, table=table)
    for reduction in (SUM, MEAN, CLIPPED, MAX)
    for offsets in (EVEN, RAGGED, COMPUTED)
    for table in (True, False)
]


@pytest.mark.parametrize("case", CASES)
def test_no_loop_is_left(case: Case) -> None:
    assert_same(case, left=0)


def test_even_bags_are_one_reduction() -> None:
    """The last one, which is computed in another way, has the same bounds."""
    for reduction, kind in ((SUM, "ReduceSum"), (MEAN, "ReduceMean"), (MAX, "ReduceMax")):
        graph = Model(
            load(model_of(Case(reduction, EVEN))).graph, [NumpyBackend()], Options(), evaluate
        ).graph
        assert [each for each in kinds(graph) if each != "Reshape"] == ["Gather", kind, "Mul"]


def test_a_bag_before_the_others_stays() -> None:
    assert_same(Case(SUM, RAGGED, ", zero"), left=1)


def test_offsets_may_count_from_the_end() -> None:
    case = Case(SUM, COMPUTED)
    feeds = {**feeds_of(case), "offsets": np.array([-12, 2, 2, -5, 12])}
    assert_same(case, left=0, feeds=feeds)


def assert_same(case: Case, left: int, feeds: dict[str, np.ndarray] | None = None) -> None:
    proto, feeds = model_of(case), feeds or feeds_of(case)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (wanted,) = session.run(None, feeds)
    with Model(load(proto).graph, [NumpyBackend()], Options(), evaluate) as model:
        assert kinds(model.graph).count("Loop") == left
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6)


#: Bags of which each has rows: those of none have no mean.
FILLED = (0, 2, 5, 7, 12)
BAGS = {
    "even": EVEN,
    "filled": FILLED,
    "even of some": (1, 4, 7, 10),
    "of some": (2, 3, 8, 9),
    "computed": None,
}


def stacked(kind: str, offsets: tuple[int, ...] | None, *, table: bool) -> ModelProto:
    """TorchScript's form: a round looks up the rows of its bag, and results are stacked."""
    bags = len(offsets or FILLED) - 1
    given = "" if offsets else f", int64[{bags + 1}] offsets"
    given += "" if table else f", float[{TABLE}, {WIDTH}] table"
    model = parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (int64[{COUNT}] index{given}) => (float[{bags}, {WIDTH}] y)
    <int64 bags = {{{bags}}}, bool yes = {{1}}, int64 one = {{1}}, int64[1] first = {{0}}>
    {{
        y = Loop (bags, yes) <body = body (
            int64 round, bool going
        ) => (bool more, float[{WIDTH}] r) {{
            more = Identity (going)
            next = Add (round, one)
            begin = Gather (offsets, round)
            end = Gather (offsets, next)
            s = Unsqueeze (begin, first)
            e = Unsqueeze (end, first)
            bag = Slice (index, s, e, first)
            rows = Gather (table, bag)
            r = {kind} <axes = [0], keepdims = 0> (rows)
        }}>
    }}""")
    numbers = np.random.default_rng(3).standard_normal((TABLE, WIDTH)).astype(np.float32)
    constants = {"table": numbers} if table else {}
    made = [onnx.numpy_helper.from_array(data, name) for name, data in constants.items()]
    if offsets:
        made.append(onnx.numpy_helper.from_array(np.array(offsets), "offsets"))
    model.graph.initializer.extend(made)
    return model


@pytest.mark.parametrize("table", [True, False], ids=["table", "input"])
@pytest.mark.parametrize("offsets", BAGS.values(), ids=BAGS)
@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax"])
def test_stacked_results(kind: str, offsets: tuple[int, ...] | None, table: bool) -> None:
    proto = stacked(kind, offsets, table=table)
    feeds = feeds_of(Case(SUM, offsets, table=table))
    if offsets is None:
        feeds["offsets"] = np.array(FILLED)
    else:  # the others are no rows of the table
        feeds["index"][: offsets[0]] = feeds["index"][offsets[-1] :] = -100
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with Model(load(proto).graph, [NumpyBackend()], Options(), evaluate) as model:
        assert "Loop" not in kinds(model.graph)
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6)


def test_rounds_that_reduce_all_rows_stay() -> None:
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 5] rows) => (float[3, 5] y)
    <int64 rounds = {3}, bool yes = {1}>
    {
        last, y = Loop (rounds, yes, rows) <body = body (
            int64 round, bool going, float[4, 5] before
        ) => (bool more, float[4, 5] after, float[5] r) {
            more = Identity (going)
            after = Neg (before)
            r = ReduceMean <axes = [0], keepdims = 0> (before)
        }>
    }""")
    feeds = {"rows": np.random.default_rng(3).standard_normal((4, 5)).astype(np.float32)}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(["y"], feeds)
    with Model(load(proto).graph, [NumpyBackend()], Options(), evaluate) as model:
        np.testing.assert_allclose(model.run(feeds)["y"], np.asarray(wanted), rtol=1e-6)


def padded(
    kind: str, offsets: tuple[int, ...], test: str = "is_kept = Not (is_padding)"
) -> ModelProto:
    """Return bags without a row of padding, of which a Loop lists the places in each bag.

    Args:
        kind: the reduction.
        offsets: where bags begin and end.
        test: of a row.
    """
    bags = len(offsets) - 1
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (int64[{COUNT}] index) => (float[b, {WIDTH}] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 bags = {{{bags}}}, int64 padding = {{3}},
     int64 size = {{{TABLE}}}, int64[1] flat = {{-1}}, int64[1] first = {{0}}>
    {{
        rows = Gather (table, index)
        yes = Less (zero, bags)
        empty = SequenceEmpty ()
        all, end = Loop (, yes, empty, zero) <body = body (
            int64 round, bool going, seq(float) before, int64 i
        ) => (bool more, seq(float) after, int64 next) {{
            s = Gather (offsets, i)
            behind = Add (i, one)
            e = Gather (offsets, behind)
            nobody = Shape <start = 0, end = 0> (index)
            is_first = Less (s, e)
            last, kept = Loop (, is_first, s, nobody) <body = places (
                int64 step, bool goes, int64 j, int64[n] listed
            ) => (bool on, int64 j_next, int64[m] longer) {{
                it = Gather (index, j)
                is_negative = Less (it, zero)
                row_of = If (is_negative) <
                    then_branch = back () => (int64 p) {{ p = Add (it, size) }},
                    else_branch = as_is () => (int64 q) {{ q = Identity (it) }}>
                is_padding = Equal (row_of, padding)
                {test}
                longer = If (is_kept) <
                    then_branch = append () => (int64[u] w) {{
                        at = Reshape (j, flat)
                        w = Concat <axis = 0> (listed, at)
                    }},
                    else_branch = leave () => (int64[v] x) {{ x = Identity (listed) }}>
                j_next = Add (j, one)
                on = Less (j_next, e)
            }}>
            number = Size (kept)
            none = Equal (number, zero)
            row = If (none) <
                then_branch = then () => (float[1, {WIDTH}] z) {{ z = Identity (zeros) }},
                else_branch = other () => (float[1, {WIDTH}] r) {{
                    some = Gather (rows, kept)
                    r = {kind} (some, first)
                }}>
            after = SequenceInsert (before, row)
            next = Add (i, one)
            more = Less (next, bags)
        }}>
        y = ConcatFromSequence <axis = 0> (all)
    }}"""
    model = parse_model(text)
    numbers = np.random.default_rng(3).standard_normal((TABLE, WIDTH)).astype(np.float32)
    constants = {
        "table": numbers,
        "zeros": np.zeros((1, WIDTH), np.float32),
        "offsets": np.array(offsets),
    }
    made = [onnx.numpy_helper.from_array(data, name) for name, data in constants.items()]
    model.graph.initializer.extend(made)
    return model


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("offsets", [EVEN, RAGGED, (1, 4, 7, 10)], ids=["even", "ragged", "some"])
def test_rows_of_padding_are_left_out(kind: str, offsets: tuple[int, ...]) -> None:
    """Rows 3 and -17 are padding; the last bag but one has nothing else."""
    feeds = {"index": np.array([1, 3, 5, -17, 2, 7, 3, -17, 3, 3, 4, -1])}
    proto = padded(kind, offsets)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with Model(load(proto).graph, [NumpyBackend()], Options(), evaluate) as model:
        assert not {"Loop", "If"} & {*kinds(model.graph)}
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("nodes", "kind"), [(60, "And ({0}, {0})"), (1200, "Not ({0})")])
def test_a_long_test_of_rows_stays(nodes: int, kind: str) -> None:
    """Each node reads the one before, once or twice: neither depth nor paths count."""
    feeds = {"index": np.array([1, 3, 5, -17, 2, 7, 3, -17, 3, 3, 4, -1])}
    names = ["is_kept_row", *(f"t{i}" for i in range(nodes - 1)), "is_kept"]
    chain = " ".join(f"{to} = {kind.format(of)}" for of, to in pairwise(names))
    proto = padded("ReduceSum", EVEN, f"is_kept_row = Not (is_padding) {chain}")
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with Model(load(proto).graph, [NumpyBackend()], Options(), evaluate) as model:
        assert "Loop" in kinds(model.graph)
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6)
