"""Which operators become half precision, and which follow."""

from __future__ import annotations

from ..ir.op import Op
from ..ops import (
    attention,
    conv,
    elementwise,
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
    shape,
)

#: Operators that benefit from half precision.
LEADERS: frozenset[type[Op]] = frozenset(
    {
        *(conv.Conv, conv.ConvTranspose, matmul.Gemm, matmul.MatMul, attention.Attention),
        *(experts.MoE, experts.QMoE, packed.MatMulNBits, packed.MatMulBnb4),
        *(recurrent.GRU, recurrent.LSTM),
    }
)
#: Operators that follow if one of their inputs is half already.
FOLLOWERS: frozenset[type[Op]] = frozenset(
    {
        *(elementwise.Add, elementwise.Sub, elementwise.Mul, elementwise.Div, elementwise.Max),
        *(elementwise.Min, elementwise.Sum, elementwise.Mean, elementwise.Neg, elementwise.Abs),
        *(elementwise.Clip, elementwise.Where, elementwise.Celu, elementwise.Elu),
        *(elementwise.Gelu, elementwise.HardSigmoid, elementwise.HardSwish),
        *(elementwise.LeakyRelu, elementwise.Mish, elementwise.PRelu, elementwise.Relu),
        *(elementwise.Selu, elementwise.Shrink, elementwise.Sigmoid, elementwise.Softplus),
        *(elementwise.Softsign, elementwise.Swish, elementwise.SwiGLU, elementwise.Tanh),
        *(elementwise.ThresholdedRelu, elementwise.Erf, elementwise.Sin, elementwise.Cos),
        elementwise.Pow,
        *(norm.Softmax, norm.LogSoftmax, norm.LayerNormalization, norm.RMSNormalization),
        *(norm.BatchNormalization, norm.InstanceNormalization, norm.GroupNormalization),
        *(norm.LRN, norm.Dropout),
        *(pool.MaxPool, pool.AveragePool, pool.GlobalAveragePool, pool.GlobalMaxPool),
        *(reduce.ReduceMean, reduce.ReduceMax, reduce.ReduceMin, resize.Resize, gather.Gather),
        *(gather.GatherElements, gather.GatherND, gather.ScatterElements, gather.ScatterND),
        gather.TensorScatter,
        *(shape.Identity, shape.Reshape, shape.Flatten, shape.Squeeze, shape.Unsqueeze),
        *(movement.Transpose, movement.Expand, movement.Tile, movement.Concat),
        *(movement.Split, movement.Slice, movement.Pad),
        *(movement.DepthToSpace, movement.SpaceToDepth, attention.RotaryEmbedding),
        *(conv.Col2Im, resize.GridSample),
    }
)
