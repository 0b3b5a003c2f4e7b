"""Which operators become half precision, which follow, and which keep others from it."""

from __future__ import annotations

from ...ir.graph import Node
from ...ir.op import Op
from ...ops import (
    attention,
    boxes,
    conv,
    experts,
    gather,
    matmul,
    movement,
    norm,
    packed,
    pool,
    recurrent,
    reduce,
    resize,
)
from ...ops import elementwise as ew
from ...ops import shape as sh

#: Operators that benefit from half precision.
LEADERS: frozenset[type[Op]] = frozenset(
    {
        *(conv.Conv, conv.ConvTranspose, matmul.Gemm, matmul.MatMul, attention.Attention),
        *(experts.MoE, experts.QMoE, packed.MatMulNBits, packed.MatMulBnb4, recurrent.GRU),
        *(recurrent.LSTM,),
    }
)
#: Operators that follow if one of their inputs is half already.
FOLLOWERS: frozenset[type[Op]] = frozenset(
    {
        *(ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Max, ew.Min, ew.Sum, ew.Mean, ew.Neg, ew.Abs, ew.Clip),
        *(ew.Where, ew.Celu, ew.Elu, ew.Gelu, ew.HardSigmoid, ew.HardSwish, ew.LeakyRelu, ew.Mish),
        *(ew.PRelu, ew.Relu, ew.Selu, ew.Shrink, ew.Sigmoid, ew.Softplus, ew.Softsign, ew.Swish),
        *(ew.SwiGLU, ew.Tanh, ew.ThresholdedRelu, ew.Erf, ew.Sin, ew.Cos, ew.Pow, norm.Softmax),
        *(norm.LogSoftmax, norm.LayerNormalization, norm.RMSNormalization, norm.BatchNormalization),
        *(norm.InstanceNormalization, norm.GroupNormalization, norm.LRN, norm.Dropout),
        *(pool.MaxPool, pool.AveragePool, pool.GlobalAveragePool, pool.GlobalMaxPool),
        *(reduce.ReduceMean, reduce.ReduceMax, reduce.ReduceMin, resize.Resize, gather.Gather),
        *(gather.GatherElements, gather.GatherND, gather.ScatterElements, gather.ScatterND),
        *(gather.TensorScatter, *sh.VIEWS),
        *(movement.Transpose, movement.Expand, movement.Tile, movement.Concat, movement.Split),
        *(movement.Slice, movement.Pad, movement.DepthToSpace, movement.SpaceToDepth),
        *(attention.RotaryEmbedding, conv.Col2Im, resize.GridSample),
    }
)
#: Functions with a pole, or with a limited domain.
SINGULAR: frozenset[type[Op]] = frozenset(
    {
        *(ew.Log, ew.Reciprocal, ew.Sqrt, ew.Acos, ew.Asin, ew.Acosh, ew.Atanh),
        *(reduce.ReduceLogSum,),
    }
)
#: Operators that propagate the rounding of their inputs, so these matter as well.
THROUGH: frozenset[type[Op]] = frozenset(
    {
        *(ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Max, ew.Min, ew.Sum, ew.Mean, ew.Neg, ew.Abs, ew.Clip),
        *(ew.Where, ew.Relu, ew.LeakyRelu, ew.PRelu, ew.Sigmoid, ew.HardSigmoid, ew.Tanh, ew.Erf),
        *(ew.Softplus, ew.Softsign, ew.Elu, ew.Celu, ew.Exp, ew.Pow, ew.Sqrt, ew.Reciprocal),
        *(norm.Softmax, norm.LogSoftmax, norm.Dropout, gather.Gather, resize.Resize, *sh.VIEWS),
        *(movement.Transpose, movement.Expand, movement.Tile, movement.Concat, movement.Split),
        *(movement.Slice, movement.Pad),
        *(movement.DepthToSpace, movement.SpaceToDepth),
    }
)
#: Operators that stay float32 there, but may read rounded inputs.
LAST: frozenset[type[Op]] = frozenset(
    {
        *(conv.Conv, conv.ConvTranspose, matmul.Gemm, matmul.MatMul, attention.Attention),
        *(reduce.ReduceMean, reduce.ReduceMax, reduce.ReduceMin, pool.AveragePool),
        *(pool.GlobalAveragePool, pool.MaxPool, pool.GlobalMaxPool),
    }
)
#: Which input of an operator says where another one is sampled.
POSITIONS: dict[type[Op], int] = {
    **{resize.GridSample: 1, resize.AffineGrid: 0},
    **{boxes.RoiAlign: 1, boxes.MaxRoiPool: 1},
}
#: Operators between scores and their Softmax, fused or decomposed.
SCORES: frozenset[type[Op]] = frozenset(
    {
        *(ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Where, ew.Clip, ew.Max, ew.Min, ew.Tanh, ew.Cast),
        *(*sh.VIEWS, movement.Transpose, movement.Slice),
        *(movement.Expand, movement.Concat, movement.Split, movement.Pad, gather.Gather),
    }
)
#: Operators that normalize scores, or parts of these.
NORMALISERS: frozenset[type[Op]] = frozenset(
    {norm.Softmax, norm.LogSoftmax, reduce.ReduceMax, ew.Exp, ew.IsNaN}
)
#: Layers with weights.
LAYERS: frozenset[type[Op]] = frozenset({conv.Conv, conv.ConvTranspose, matmul.Gemm, matmul.MatMul})
#: Operators that only move elements.
PLACES: frozenset[type[Op]] = frozenset(
    {
        *(*sh.VIEWS, gather.Gather, ew.Abs),
        *(movement.Transpose, movement.Expand, movement.Concat, movement.Split, movement.Slice),
        *(movement.Pad,),
    }
)


def has_sinks(node: Node) -> bool:
    """Whether a sum of exponentials reads the scores of an Attention, and nothing its caches."""
    if not isinstance(node.op, attention.Attention) or len(node.outputs) != 4:
        return False
    *caches, scores = node.outputs[1:]
    kinds = {type(reader.op) for reader in scores.consumers}
    return kinds == {reduce.ReduceLogSumExp} and not any(value.consumers for value in caches)
