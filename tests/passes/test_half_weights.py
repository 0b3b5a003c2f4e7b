"""Layers whose weights or filters are computed or chosen, in half precision."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float16, float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops import elementwise as ew
from tercet.runtime.ops import reduce as red
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.gather import Gather, GatherND
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, make, normal
from .test_half_range import ints
from .test_to_half import dtypes_of, halved


@pytest.mark.parametrize(("axis", "narrow"), [(3, True), (2, False)])
def test_a_sum_of_what_a_softmax_weighs_is_a_mean(axis: int, narrow: bool) -> None:
    """The separable attention of MobileViTv2; along another axis the weights do not add up to 1."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(), x, normal(8, 8, 1, 1))
        scores = apply(g, Softmax(axis=-1), apply(g, Conv(), x, normal(1, 8, 1, 1)))
        sums = apply(g, red.ReduceSum(), apply(g, ew.Mul(), y, scores), np.array([axis]))
        return apply(g, Conv(), apply(g, ew.Mul(), y, sums), normal(5, 8, 1, 1))

    after = halved(make(build, (1, 8, 9, 1500) if axis == 3 else (1, 8, 1500, 9)))
    last = [node for node in after.nodes if isinstance(node.op, Conv)][-1]
    assert (last.output.tensor.dtype == float16) == narrow


@pytest.mark.parametrize(("is_read", "dtype"), [(True, float16), (False, float32)])
def test_a_correlation_between_rounded_images_is_rounded(is_read: bool, dtype: DType) -> None:
    """Nothing bounds it (SiamRPN); but only its results are 16 bits where a layer reads them."""

    def build(g: Graph, x: Value) -> Value:
        image, template = (apply(g, Conv(), x, normal(8, 8, 1, 1)) for _ in range(2))
        rows = apply(g, Slice(), template, ints(0), ints(3), ints(2))
        filters = apply(g, Reshape(), rows, ints(8, 1, 3, 9))
        y = apply(g, Conv(group=8, pads=(1, 4, 1, 4)), image, filters)
        return apply(g, Conv(), y, normal(5, 8, 1, 1)) if is_read else y

    after = halved(make(build, (1, 8, 9, 9)))
    found = [n for n in after.nodes if isinstance(n.op, Conv) and not n.operands[1].is_constant]
    assert [node.output.tensor.dtype for node in found] == [dtype]


def test_mixtures_of_small_filters_are_small() -> None:
    """Many terms of a convolution by filters that a Softmax mixes (dynamic convolution)."""

    def build(g: Graph, x: Value) -> Value:
        means = apply(g, Reshape(), apply(g, red.ReduceMean(), x, ints(2, 3)), ints(1, 64))
        table = normal(64, 64 * 64 * 9) * np.float32(0.02)
        mixed = apply(g, MatMul(), apply(g, Softmax(), means), table)
        filters = apply(g, Reshape(), mixed, ints(64, 64, 3, 3))
        y = apply(g, Conv(), apply(g, Conv(), x, normal(64, 64, 1, 1)), filters)
        return apply(g, red.ReduceMax(), y)

    assert dtypes_of(halved(make(build, (1, 64, 9, 9))), "Conv") == {float16}


@pytest.mark.parametrize(("is_table", "dtype"), [(True, float16), (False, float32)])
def test_matrices_that_indices_choose_are_weights(is_table: bool, dtype: DType) -> None:
    """Exported experts: each row with its own; not so what is chosen of a computed tensor."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, MatMul(), x, normal(64, 64))
        table = normal(4, 96, 64) if is_table else apply(g, MatMul(), normal(96, 8), x)
        chosen = apply(g, GatherND(), table, g.add_input("chosen", TensorType(int64, (32, 1))))
        columns = apply(g, Reshape(), rows, ints(32, 64, 1))
        return apply(g, MatMul(), chosen, columns)

    after = halved(make(build, (1, 32, 64) if is_table else (4, 8, 64)))
    found = [node for node in after.nodes if node.output.tensor.dims == (32, 96, 1)]
    assert [node.output.tensor.dtype for node in found if node.kind == "MatMul"] == [dtype]
    if is_table:
        (gather,) = (node for node in after.nodes if isinstance(node.op, Gather))
        assert gather.operands[0].is_constant
        assert gather.output.tensor.dtype == float16
