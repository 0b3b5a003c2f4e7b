"""The kernels for what is not in cuDNN's graph; compiled, which needs no GPU."""

from __future__ import annotations

import pytest

from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.elementwise import Add, Clip, Mish, Mul, Relu, Sigmoid
from tercet.runtime.plan.format import Format

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.cudnn.epilogue import rest_launch
from tercet.backends.cudnn.operation import Operand
from tercet.backends.cudnn.stages import FLOW, PointwiseStage, Tail

BIAS = PointwiseStage(Add(), (FLOW, "bias"))
TAILS: list[list[PointwiseStage]] = [
    [BIAS],
    [PointwiseStage(Relu(), (FLOW,))],
    [PointwiseStage(Add(), ("z", FLOW))],
    [PointwiseStage(Add(), (FLOW, "z")), BIAS, PointwiseStage(Relu(), (FLOW,))],
    [
        BIAS,
        PointwiseStage(Sigmoid(), (FLOW,)),
        PointwiseStage(Mul(), (FLOW, 0.5)),
        PointwiseStage(Mish(), (FLOW,)),
    ],
    [PointwiseStage(Clip(), (FLOW, 0.0, 6.0)), PointwiseStage(Clip(), (FLOW, None, 5.0))],
]


def tail_of(stages: list[PointwiseStage], y: Operand) -> Tail:
    bias = Operand.of((1, y.dims[1], 1, 1), y.dtype)
    return Tail.of(stages, {"z": y, "bias": bias})


@pytest.mark.parametrize("dtype", [float32, float16])
@pytest.mark.parametrize("format", [Format.CONTIGUOUS, Format.CHANNELS_LAST])
@pytest.mark.parametrize("stages", TAILS, ids=lambda stages: Tail(tuple(stages)).title)
def test_it_compiles(stages: list[PointwiseStage], format: Format, dtype: DType) -> None:
    y = Operand.of((2, 3, 7, 7), dtype, format)
    tail = tail_of(stages, y)
    launch, places = rest_launch(tail, "y", y)
    roles = [places[place] for place in sorted(places)]
    assert set(roles) == {"y", *dict(tail.operands)}
    assert roles.count("y") == 2, "in place"
    assert Compiler(H200).code(launch.source)


@pytest.mark.parametrize(
    ("format", "pitch"),
    [(Format.CONTIGUOUS, 0), (Format.CHANNELS_LAST, 0), (Format.CHANNELS_LAST, 32)],
)
def test_four_results_a_thread_where_the_channels_allow(format: Format, pitch: int) -> None:
    y = Operand.of((2, 8, 8, 8), float32, format, pitch)
    assert y.layout == (format, pitch)
    launch, _ = rest_launch(tail_of(TAILS[3], y), "y", y)
    constants = dict(launch.constants)
    assert (constants["VECTOR"], constants["GAPS"]) == (4, bool(pitch))


@pytest.mark.parametrize(
    ("op", "inputs", "text"),
    [(Relu(), (FLOW,), "Relu()(·)"), (Clip(), (FLOW, 0.0, None), "Clip()(·, 0.0, )")],
)
def test_a_stage_says_what_it_reads(op: Op, inputs: tuple[str | float | None, ...], text: str):
    assert str(PointwiseStage(op, inputs)) == text
