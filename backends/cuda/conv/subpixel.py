"""Transposed convolutions as one convolution with the filters of every phase.

Results whose positions are congruent modulo the strides, a phase, are those of an ordinary
convolution by the taps that reach them. All phases read the same pixels, so their filters are those
of one convolution, whose channels `interleave.cu` then puts in their places (Shi et al., sub-pixel
convolution).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array, TensorType
from ....runtime.ops.conv import Conv
from ....runtime.ops.window import Window
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..codegen.epilogue import no_epilogue
from ..gemm import conv_f16, conv_f32
from ..gemm.atoms import HALVES
from ..gemm.convolution import ConvProblem
from ..gemm.problem import widest
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.launch import Launch, behind, each, launches_of, reading, sharing
from ..recipe.operands import (
    Ints,
    Operand,
    Packed,
    Scratch,
    Tensor,
    ceil_div,
    index_type,
    three,
)
from ..recipe.source import arithmetic
from .volume import volume, volume_formats, volume_time


def subpixel_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `subpixel`, or why it does not apply."""
    refused = conv.need_one_group() or conv.need_constants()
    if refused or not conv.x.size or not conv.y.size:
        return refused or "no elements"
    if conv.view.is_dilated:
        return "dilations"
    if conv.b is not None and conv.b.data is None:
        return "a computed bias"
    phases = _phases(conv)
    if isinstance(phases, str):
        return phases
    if conv.x.rank == 5:
        return volume_formats(phases)
    by_dtype = conv_f16 if conv.x.dtype in HALVES else conv_f32
    return by_dtype.formats_of(phases)


def subpixel_time(conv: ConvProblem) -> float:
    """Return the estimate of `subpixel`."""
    phases = _phases(conv)
    assert isinstance(phases, ConvProblem)
    moved = (phases.y.size + conv.y.size) * conv.x.dtype.itemsize
    last = LAUNCH + moved / MEMORY if _is_apart(conv) else 0.0
    if conv.x.rank == 5:
        return last + volume_time(phases)
    halves = conv.x.dtype in HALVES
    by_dtype = conv_f16 if halves else conv_f32
    return last + by_dtype.convolution_time(phases)


def subpixel(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the convolution, and the launch that interleaves its channels."""
    phases = _phases(conv, packed=conv.x.dtype not in HALVES)
    if isinstance(phases, str):
        return phases
    by_dtype = conv_f16.convolution if conv.x.dtype in HALVES else conv_f32.convolution
    made = (volume if conv.x.rank == 5 else by_dtype)(phases)
    if isinstance(made, str):
        return made
    launches = launches_of(made)
    there = Scratch(behind(launches)) if _is_apart(conv) else conv.y
    first = [_with_operands(launch, conv, phases, there) for launch in launches]
    if isinstance(there, Tensor):
        return sharing(*first)
    return sharing(*first, _interleaved(conv, phases, there))


def _is_apart(conv: ConvProblem) -> bool:
    """Whether there are several phases, which a separate launch interleaves."""
    return prod(conv.view.strides) > 1


def _phases(conv: ConvProblem, *, packed: bool = False) -> ConvProblem | str:
    """Return the convolution that computes all phases as channels, or why there is none.

    Its operands are stand-ins, except for the image.

    Args:
        conv: the transposed convolution.
        packed: whether weights have their elements: products of float32 depend on these, estimates
            and other products do not.
    """
    view, count = conv.view, prod(conv.view.strides)
    begin, end, kernel, output = zip(
        *(
            _along(*axis)
            for axis in zip(
                *(view.kernel, view.strides, view.pads_begin, view.output, conv.x.dims[2:]),
                strict=True,
            )
        ),
        strict=True,
    )
    if min(begin) < 0:
        return f"pads of {view.pads_begin} beyond windows of {view.kernel}"
    channels, filters = conv.x.dims[1], conv.filters * count
    ones = (1,) * len(kernel)
    epilogue = no_epilogue(conv.x.dtype) if count > 1 else conv.epilogue
    y = Value("phases", TensorType(epilogue.stored, (conv.x.dims[0], filters, *output)))
    inner = Conv(kernel_shape=kernel)
    made = replace(
        conv,
        op=inner,
        y=Tensor(y, Format.CHANNELS_LAST, conv.y.pitch if count == 1 else 0),
        w=_constant(conv.w, (filters, channels, *kernel), _pack(conv) if packed else None),
        view=Window(kernel, ones, ones, begin, end, output),
        epilogue=epilogue,
    )
    if conv.b is None:
        return made
    return replace(made, b=_constant(conv.b, (filters,), partial(np.tile, reps=count)))


def _along(kernel: int, stride: int, pad: int, output: int, size: int) -> tuple[int, int, int, int]:
    """Return pads before and after, the window, and the results of the phases along an axis."""
    taps, first, last = ceil_div(kernel, stride), pad // stride, (output - 1 + pad) // stride
    return taps - 1 - first, max(0, last - size + 1), taps, last - first + 1


def _constant(given: Tensor, dims: Ints, pack: Callable[[Array], Array] | None) -> Tensor:
    """Return a constant made of another one; zeros that take no memory if `pack` is None."""
    assert given.data is not None
    zeros = np.broadcast_to(np.zeros((), given.data.dtype), dims)
    data = zeros if pack is None else pack(given.data)
    return Tensor(Value(given.value.name, TensorType(given.dtype, dims), data=data))


def _pack(conv: ConvProblem) -> Callable[[Array], Array]:
    return partial(pack_phases, strides=conv.view.strides)


def pack_phases(w: Array, strides: Ints) -> Array:
    """Return weights [c, m, *kernel] of a transposed convolution as [phase * m, c, *taps].

    Tap k of a window reaches phase k mod stride, of the pixel k / stride before. Taps are in the
    order of the pixels; missing ones are zero.
    """
    c, m, *kernel = w.shape
    taps = tuple(map(ceil_div, kernel, strides))
    rest = ((0, t * s - k) for t, s, k in zip(taps, strides, kernel, strict=True))
    wide = np.pad(w, ((0, 0), (0, 0), *rest))
    split = wide.reshape(c, m, *(n for pair in zip(taps, strides, strict=True) for n in pair))
    axes = range(len(taps))
    last, phase = (tuple(n + 2 * axis for axis in axes) for n in (2, 3))
    flipped = np.flip(split, last).transpose(*phase, 1, 0, *last)
    return np.ascontiguousarray(flipped).reshape(prod(strides) * m, c, *taps)


def _tiled(data: Array, count: int) -> Array:
    return np.tile(data, count)


def _with_operands(
    launch: Launch, conv: ConvProblem, phases: ConvProblem, there: Scratch | Tensor
) -> Launch:
    """Return a launch of the phases' convolution with operands in place of the stand-ins."""
    w, b, y = phases.w.value, phases.b and phases.b.value, phases.y.value
    strides = conv.view.strides

    def packed(found: Packed) -> Packed:
        if found.sources != (w,):
            return found
        layout = ("phases", strides, found.layout)
        return Packed((conv.w.value,), layout, partial(_composed, _pack(conv), found.pack))

    def operand(given: Operand) -> Operand:
        if isinstance(given, Packed):
            return packed(given)
        if isinstance(given, Tensor) and given.value is y:
            return there
        if isinstance(given, Tensor) and given.value is b and conv.b is not None:
            tiled = partial(_tiled, count=prod(strides))
            return Packed((conv.b.value,), ("tiled", prod(strides)), tiled)
        return given

    pitched = tuple(conv.y if each.value is y else each for each in launch.pitched)
    if isinstance(there, Scratch):
        pitched = tuple(each for each in launch.pitched if each.value is not y)
    return replace(reading(launch, operand), pitched=pitched)


def _composed(first: Callable[..., Array], then: Callable[..., Array], source: Array) -> Array:
    return then(first(source))


def _interleaved(conv: ConvProblem, phases: ConvProblem, there: Scratch) -> Launch:
    """Return the launch that puts the channels of the phases in their places."""
    x, y, view, epilogue = conv.x, conv.y, conv.view, conv.epilogue
    channels = y.dims[1]
    maximum = 16 // max(x.dtype.itemsize, epilogue.stored.itemsize)
    vector = widest(tuple(v for v in (8, 4, 2) if v <= maximum), channels, y.row)
    count = y.size // vector
    first = tuple(p % s for p, s in zip(view.pads_begin, view.strides, strict=True))
    return replace(
        each(
            "conv/interleave.cu",
            "interleave",
            count,
            args={
                **{"phases": there, "y": y, **epilogue.args, "count": count},
                **{"channels": channels, "row": y.row},
                "g": {
                    **{"in": three(phases.y.dims[2:], 1), "out": three(y.dims[2:], 1)},
                    **{"stride": three(view.strides, 1), "first": three(first, 0)},
                },
            },
            types=(
                *epilogue.types,
                ("A", arithmetic(x.dtype)),
                ("Index", index_type(max(y.size, phases.y.size))),
            ),
            constants=(("VECTOR", vector), ("FIRST", 5 - x.rank)),
            code=epilogue.code,
            note=epilogue.title,
            pitched=() if epilogue.reads_along else (y,),
        ),
        scratch=there.offset + phases.y.size * x.dtype.itemsize,
    )
