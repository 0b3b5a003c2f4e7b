"""Normalizations by statistics of groups of elements: `standardize.cu`."""

from __future__ import annotations

from dataclasses import replace
from itertools import dropwhile
from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float32
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, need_dtypes
from ..codegen.epilogue import Epilogue, no_epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Given, Ints, Scratch, Tensor, index_type, merge, strides
from ..recipe.source import arithmetic
from ..recipe.targets import Target
from .norm_parts import WORD, cut
from .norm_rows import ScaleShift

DEVIATION, DEVIATION_PLUS, SUM, ROOT = range(4)


@record
class Statistic:
    """The statistics of a group.

    Attributes:
        kind: the divisor: DEVIATION, ROOT, ...
        centred: whether the mean is subtracted.
        epsilon: added to variance or deviation.
        outputs: mean and divisor (or running averages), if they are read.
        running: previous running averages that enter `outputs`.
        momentum: their weight.
    """

    kind: int = DEVIATION
    centred: bool = True
    epsilon: float = 0.0
    outputs: tuple[Tensor | None, Tensor | None] = (None, None)
    running: tuple[Tensor | None, Tensor | None] = (None, None)
    momentum: float = 0.0


@record
class Groups:
    """How the elements of a tensor are grouped.

    Attributes:
        number: number of groups.
        count: elements per group.
        origins: struct `Walk`: start of each group.
        elements: struct `Walk`: positions of a group's elements.
    """

    number: int
    count: int
    origins: Ints
    elements: Ints

    def vector(self, maximum: int) -> int:
        """Return how many adjacent elements can be read at once."""
        inner, outer_step, step = self.elements
        return gcd(maximum, inner, outer_step, *self.origins[1:]) if step == 1 else 1


_NO_PARAMETERS = ScaleShift()


@record
class Affine:
    """Scale and shift of the results.

    Attributes:
        scale: factors.
        shift: addends.
        count: elements of each.
        repeat: number of adjacent elements in memory with the same scale.
        per_group: whether the elements of a group share one.
    """

    scale: Tensor | None
    shift: Tensor | None
    count: int = 1
    repeat: int = 1
    per_group: bool = True

    @property
    def along(self) -> bool:
        """Whether adjacent elements have separate, adjacent scales."""
        return self.repeat == 1 and not self.per_group

    @property
    def vector(self) -> int:
        """How many adjacent elements can be computed at once; 0 for any number."""
        return 0 if self.per_group else self.count if self.along else self.repeat


def standardize(
    y: Tensor | None,
    x: Tensor,
    axes: Ints,
    how: Statistic,
    target: Target,
    parameters: ScaleShift = _NO_PARAMETERS,
    sizes: Ints | None = None,
    epilogue: Epilogue | None = None,
) -> Answer:
    """Return the launches that normalize groups of elements.

    Args:
        y: the result.
        x: the elements.
        axes: the axes of a group.
        how: the statistics.
        target: the GPU.
        parameters: scale and shift of the results.
        sizes: a shape to use instead of that of x, with axes in memory order.
        epilogue: applied to the results.
    """
    refused = need_dtypes(
        FLOATS, y, x, parameters.scale, parameters.shift, *how.outputs, *how.running
    )
    if refused:
        return refused
    groups = _groups(x, axes, sizes)
    if groups is None:
        return f"groups of {x.value.tensor} over axes {axes}"
    channel = parameters.channel
    affine = _affine(x, parameters, sizes is None and channel not in axes)
    if isinstance(affine, str):
        return affine
    finish = epilogue or no_epilogue(x.dtype if y is None else y.dtype)
    if finish.reads_channels and affine.count != x.dims[-1 if channel is None else channel]:
        return f"a per-channel operand after {affine.count} scales"
    return _launches(y, x, groups, how, affine, finish, target)


def channel_groups(
    y: Tensor,
    x: Tensor,
    number: int,
    how: Statistic,
    target: Target,
    parameters: ScaleShift,
    epilogue: Epilogue,
) -> Answer:
    """Return the launches that normalize `number` groups of channels of each image.

    Args:
        y: the result.
        x: the images, in C order or channels last.
        number: groups of an image.
        how: the statistics.
        target: the GPU.
        parameters: one scale and one shift per channel, of axis 1.
        epilogue: applied to the results.
    """
    if x.is_channels_last:
        depth, pixels = x.dims[1] // number, prod(x.dims[2:])
        sizes, axes = (x.dims[0], pixels, number, depth), (1, 3)
    else:
        sizes, axes = (x.dims[0], number, prod(x.dims[1:]) // number), (2,)
    return standardize(y, x, axes, how, target, parameters, sizes, epilogue)


def _groups(x: Tensor, axes: Ints, sizes: Ints | None) -> Groups | None:
    """Return the groups over these axes; None if two walks per group do not suffice."""
    dims = sizes or x.dims
    moves = x.strides if sizes is None else strides(sizes, Format.CONTIGUOUS)
    elements = _walk([a for a in range(len(dims)) if a in axes], dims, moves)
    origins = _walk([a for a in range(len(dims)) if a not in axes], dims, moves)
    if elements is None or origins is None:
        return None
    count = prod(dims[a] for a in axes)
    number = prod(size for a, size in enumerate(dims) if a not in axes)
    return Groups(number, count, origins if number > 1 else (1, 0, 0), elements)


def _walk(axes: list[int], dims: Ints, moves: Ints) -> Ints | None:
    """Return struct `Walk` of these axes; None if two do not suffice."""
    sizes, (walk,) = merge([dims[a] for a in axes], [tuple(moves[a] for a in axes)])
    inner, step = sizes[-1], walk[-1]
    if len(sizes) > 2:
        return None
    return (inner, walk[0] if len(sizes) == 2 else 0, step)


def _affine(x: Tensor, parameters: ScaleShift, per_group: bool) -> Affine | str:
    """Return how scale and shift vary along x; or why that is unsupported."""
    scale, shift, channel = parameters.scale, parameters.shift, parameters.channel
    if scale is None and shift is None and channel is not None:
        return Affine(None, None, x.dims[channel], x.strides[channel], per_group)
    if scale is None or scale.size == (1 if shift is None else shift.size) == 1:
        return Affine(scale, shift)
    given = [each.dims for each in (scale, shift) if each is not None]
    if channel is None:
        given = [tuple(dropwhile(lambda size: size == 1, dims)) for dims in given]
        wanted = x.dims[x.rank - len(given[0]) :]
    else:
        wanted = (x.dims[channel],)
    if any(dims != wanted for dims in given):
        return f"scale of {scale.value.tensor}"
    repeat = 1 if channel is None else x.strides[channel]
    return Affine(scale, shift, scale.size, repeat, channel is not None and per_group)


def _launches(
    y: Tensor | None,
    x: Tensor,
    groups: Groups,
    how: Statistic,
    affine: Affine,
    epilogue: Epilogue,
    target: Target,
) -> Answer:
    scale, compute, index = affine.scale, arithmetic(x.dtype), index_type(x.size)
    factors = x.dtype if scale is None else scale.dtype
    widest = max(x.dtype.itemsize, factors.itemsize if affine.along else 0)
    vector = gcd(groups.vector(WORD // widest), affine.vector)
    into = cut(groups.number, groups.count, x.dtype.itemsize, vector, target)
    if into.blocks >= 2**31:
        return f"{groups.number} groups"
    statistics = next((t.dtype for t in (*how.outputs, *how.running) if t is not None), float32)
    sums = Scratch(0) if into.is_shared else None
    parts = f"in {into.parts}" if sums else ""
    names = ("inner", "outer_step", "inner_step")
    args: dict[str, Given] = {
        **{"x": x, "sums": sums, "count": groups.count, "parts": into.struct},
        "groups": dict(zip(names, groups.origins, strict=True)),
        "elements": dict(zip(names, groups.elements, strict=True)),
    }
    (mean_out, deviation_out), (mean_in, variance_in) = how.outputs, how.running
    last = Launch(
        "norm/standardize.cu",
        "standardize",
        grid=(into.blocks, 1, 1),
        block=32 * into.warps,
        args={
            **{**args, "scale": scale, "shift": affine.shift, "y": y, "mean_out": mean_out},
            **{"deviation_out": deviation_out, "mean_in": mean_in, "variance_in": variance_in},
            **epilogue.args,
            **{"parameters": affine.count, "repeat": affine.repeat},
            **{"epsilon": how.epsilon, "momentum": how.momentum},
        },
        types=(
            *(("X", x.dtype), ("S", factors), *epilogue.types),
            *(("O", statistics), ("A", compute), ("I", index)),
        ),
        constants=(
            *(*into.constants, ("KIND", how.kind), ("CENTRED", how.centred)),
            *(("ALONG", affine.along), ("PER_GROUP", affine.per_group)),
            ("RUNNING", how.running[0] is not None),
        ),
        scratch=3 * compute.itemsize * into.blocks if sums else 0,
        code=epilogue.code,
        note=" ".join(filter(None, (f"{groups.number} x {groups.count}", parts, epilogue.title))),
    )
    if sums is None:
        return last
    return replace(last, entry="moments", args=args), last
