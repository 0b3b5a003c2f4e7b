"""Normalizations: by given statistics, by statistics of the elements, and softmax."""

from __future__ import annotations

from functools import partial
from math import gcd, prod

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ops.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    Hardmax,
    InstanceNormalization,
    LayerNormalization,
    LogSoftmax,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
    Softmax,
    are_of_rows,
)
from ....runtime.ops.shapes import normalize_axes, normalize_axis
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes
from ..codegen.batch_norm import pack_batch_norm
from ..codegen.epilogue import Epilogue, are_divided, divides_channels
from ..norm.channel_groups import normalize_channels
from ..norm.norm_groups import (
    DEVIATION_PLUS,
    ROOT,
    SUM,
    Statistic,
    channel_groups,
    standardize,
)
from ..norm.norm_rows import RowStatistic, ScaleShift, normalize_rows
from ..norm.softmax import SHORT, softmax_of
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Packed, Tensor, ceil_div, index_type
from ..recipe.source import arithmetic
from ..recipe.targets import Target
from .pool_words import pools_words

THREADS = 128
#: Pixels per thread when scaling innermost channels, if that leaves every
#: multiprocessor this many threads.
PIXELS = 4
BUSY = 1024


@kernel(BatchNormalization, follows=True, outputs=3)
def batch_normalization(
    op: BatchNormalization,
    y: Tensor | None,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Scale and shift each channel."""
    refused = need_dtypes(FLOATS, y, x, scale, b, mean, var)
    if refused:
        return refused
    if op.training_mode:
        return _batch_statistics(op, y, x, (scale, b), (mean, var), more, epilogue, setting)
    if y is None:
        return "its first output is not read"
    compute = arithmetic(x.dtype)
    channels = x.dims[1] if x.rank > 1 else 1
    inner = 1 if x.is_channels_last else prod(x.dims[2:])
    vector = gcd(16 // x.dtype.itemsize, channels if inner == 1 else inner)
    innermost, busy = inner == 1, setting.target.processors * BUSY
    pixels = PIXELS if innermost and y.size // (vector * PIXELS) >= busy else 1
    lines = ceil_div(y.size // max(1, channels), pixels) * (channels // vector)
    threads = lines if innermost else ceil_div(y.size, vector)
    statistics = (scale, b, mean, var)
    values = tuple(operand.value for operand in statistics)
    pack = partial(pack_batch_norm, epsilon=op.epsilon, dtype=compute)
    fixed = all(operand.data is not None for operand in statistics)
    packed = Packed(values, ("batch_norm", op.epsilon, compute.name), pack)
    given = {"scale": scale, "b": b, "mean": mean, "var": var, "epsilon": op.epsilon}
    return each(
        "norm/scale.cu",
        "scale" if fixed else "normalize",
        threads,
        block=THREADS,
        args={
            **({"pairs": packed} if fixed else given),
            **{"x": x, "y": y, **epilogue.args, "count": y.size, "channels": channels},
            **{"inner": inner, "row_x": x.pitch or channels, "row_y": y.pitch or channels},
        },
        types=(
            *epilogue.types,
            *(("S", scale.dtype), ("M", mean.dtype), ("A", compute)),
            ("Index", index_type(y.size)),
        ),
        constants=(("VECTOR", vector), ("CHANNELS_LAST", innermost), ("PIXELS", pixels)),
        code=epilogue.code,
        note=epilogue.title,
        pitched=(x, y),
    )


# ── by statistics of the elements ────────────────────────────────────────────────────────────────


def _batch_statistics(
    op: BatchNormalization,
    y: Tensor | None,
    x: Tensor,
    parameters: tuple[Tensor, Tensor],
    running: tuple[Tensor, Tensor],
    more: tuple[Tensor | None, ...],
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Return the batch normalization of training."""
    if epilogue.title:
        return "training_mode=1 followed by fused nodes"
    mean, variance = (*more, None, None)[:2]
    how = Statistic(
        epsilon=op.epsilon, outputs=(mean, variance), running=running, momentum=op.momentum
    )
    axes = tuple(a for a in range(x.rank) if a != 1)
    return standardize(y, x, axes, how, setting.target, ScaleShift(*parameters, channel=1))


@kernel(LayerNormalization, outputs=3)
def layer_normalization(
    op: LayerNormalization,
    y: Tensor | None,
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Normalize the last axes."""
    mean, deviation = (*more, None, None)[:2]
    axis = normalize_axis(op.axis, x.rank)
    of_rows = are_of_rows(x.dims, axis, *(t.dims for t in (scale, b) if t is not None))
    if y is not None and mean is None and deviation is None and of_rows:
        own = RowStatistic(op.epsilon, centred=True)
        affine = ScaleShift(scale, b)
        quick = normalize_rows(y, x, axis, own, epilogue, setting.target, affine=affine)
        if quick is not None:
            return quick
    how = Statistic(epsilon=op.epsilon, outputs=(mean, deviation))
    axes = _last_axes(op.axis, x.rank)
    return standardize(y, x, axes, how, setting.target, ScaleShift(scale, b), epilogue=epilogue)


@kernel(RMSNormalization, follows=divides_channels)
def rms_normalization(
    op: RMSNormalization,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    *,
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Divide the last axes by their root mean square."""
    axis = normalize_axis(op.axis, x.rank)
    target, how = setting.target, Statistic(centred=False, epsilon=op.epsilon)
    if x.is_channels_last:
        number = x.dims[1]
        found = normalize_channels(y, x, None, number, op.epsilon, target, epilogue, centred=False)
        if not isinstance(found, str):
            return found
        return channel_groups(y, x, number, how, target, ScaleShift(channel=1), epilogue)
    if epilogue.reads_channels and are_divided(op, x.value, scale.value):
        by_channel = ScaleShift(channel=1)
        return standardize(y, x, _last_axes(2, x.rank), how, target, by_channel, epilogue=epilogue)
    if are_of_rows(x.dims, axis, scale.dims):
        own = RowStatistic(op.epsilon)
        quick = normalize_rows(y, x, axis, own, epilogue, target, affine=ScaleShift(scale))
        if quick is not None:
            return quick
    axes = _last_axes(op.axis, x.rank)
    return standardize(y, x, axes, how, target, ScaleShift(scale), epilogue=epilogue)


def _last_axes(axis: int, rank: int) -> Ints:
    return tuple(range(normalize_axis(axis, rank), rank))


@kernel(InstanceNormalization, follows=True)
def instance_normalization(
    op: InstanceNormalization,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    *,
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Normalize every channel of every image."""
    found = _of_groups(op, y, x, (scale, b), x.dims[1], epilogue, setting.target)
    if found is not None:
        return found
    how, axes = Statistic(epsilon=op.epsilon), tuple(range(2, x.rank))
    parameters = ScaleShift(scale, b, channel=1)
    return standardize(y, x, axes, how, setting.target, parameters, epilogue=epilogue)


@kernel(GroupNormalization, follows=True)
def group_normalization(
    op: GroupNormalization,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Normalize groups of channels of every image."""
    found = _of_groups(op, y, x, (scale, bias), op.num_groups, epilogue, setting.target)
    if found is not None:
        return found
    how = Statistic(epsilon=op.epsilon)
    parameters = ScaleShift(scale, bias, channel=1)
    return channel_groups(y, x, op.num_groups, how, setting.target, parameters, epilogue)


def _of_groups(
    op: InstanceNormalization | GroupNormalization,
    y: Tensor,
    x: Tensor,
    parameters: tuple[Tensor, Tensor],
    number: int,
    epilogue: Epilogue,
    target: Target,
) -> Answer | None:
    """Return what normalizes `number` groups of channels of images, or why nothing does.

    None for images in C order whose groups are long, or of several channels that have pixels.
    """
    if x.is_channels_last:
        found = normalize_channels(y, x, parameters, number, op.epsilon, target, epilogue)
        if not isinstance(found, str):
            return found
        how, affine = Statistic(epsilon=op.epsilon), ScaleShift(*parameters, channel=1)
        return channel_groups(y, x, number, how, target, affine, epilogue)
    pixels = prod(x.dims[2:])
    count = x.dims[1] // number * pixels
    if count > SHORT or not (number == x.dims[1] or pixels == 1) or epilogue.reads_channels:
        return None
    own = RowStatistic(op.epsilon, centred=True, heads=number, apart=True)
    return normalize_rows(y, x, 1, own, epilogue, target, affine=ScaleShift(*parameters))


@kernel(MeanVarianceNormalization)
def mean_variance_normalization(
    op: MeanVarianceNormalization, y: Tensor, x: Tensor, *, setting: Setting
) -> Answer:
    """Subtract the mean and divide by the standard deviation."""
    how = Statistic(DEVIATION_PLUS, epsilon=1e-9)
    return standardize(y, x, normalize_axes(op.axes, x.rank), how, setting.target)


@kernel(LpNormalization)
def lp_normalization(op: LpNormalization, y: Tensor, x: Tensor, *, setting: Setting) -> Answer:
    """Divide by the norm along an axis."""
    how = Statistic(SUM if op.p == 1 else ROOT, centred=False)
    return standardize(y, x, (normalize_axis(op.axis, x.rank),), how, setting.target)


# ── along channels, and softmax ──────────────────────────────────────────────────────────────────


@kernel(LRN, follows=True)
def lrn(op: LRN, y: Tensor, x: Tensor) -> Answer:
    """Divide by a power of the squares of neighbouring channels."""
    refused = need_dtypes(FLOATS, y, x)
    if refused:
        return refused
    before = (op.size - 1) // 2
    after, scale = op.size - 1 - before, op.alpha / op.size
    if pools_words(y, x) and op.size <= 16:
        return _lrn_of_words(y, x, (before, after), (scale, op.beta, op.bias))
    return each(
        "norm/lrn.cu",
        "lrn",
        y.size,
        block=THREADS,
        args={
            **{"x": x, "y": y, "count": y.size, "channels": x.dims[1], "of_channel": x.strides[1]},
            **{"before": before, "after": after, "alpha_by_size": scale},
            **{"beta": op.beta, "bias": op.bias},
        },
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        note=f"size {op.size}",
    )


def _lrn_of_words(
    y: Tensor, x: Tensor, reach: tuple[int, int], factors: tuple[float, float, float]
) -> Launch:
    """Return a local response normalization in words of channels.

    Args:
        y: the result.
        x: the input; `pools_words` must hold.
        reach: neighbours on each side of a channel, at most 8.
        factors: scale of the squares, exponent and bias.
    """
    count, (scale, beta, bias) = y.size // 8, factors
    return each(
        "norm/lrn_vectorized.cu",
        "lrn_words",
        count,
        block=THREADS,
        args={
            **{"x": x, "y": y, "count": count, "channels": x.dims[1]},
            **{"scale": scale, "beta": beta, "bias": bias},
        },
        types=(("T", x.dtype),),
        constants=(("BEFORE", reach[0]), ("AFTER", reach[1])),
        note=f"{sum(reach) + 1} channels",
    )


@kernel(Softmax, LogSoftmax, Hardmax, follows=True)
def softmax(
    op: Softmax | LogSoftmax | Hardmax, y: Tensor, x: Tensor, *, setting: Setting
) -> Answer:
    """Softmax, LogSoftmax or Hardmax over an axis."""
    return need_dtypes(FLOATS, y, x) or softmax_of(op, y, x, setting.target)
