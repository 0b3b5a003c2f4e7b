"""Where the windows of images begin, as kernels count them."""

from __future__ import annotations

from dataclasses import fields
from math import prod

from ....runtime.ops.window import Window
from ..recipe.operands import Ints, by_axis, divisor, sizes

#: Most places that windows reach along an axis: numbers of rows and columns have 15 bits and a
#: sign. On a line, those of columns have 31.
MAX_REACH = 1 << 15
#: The same along the axes of a volume, whose numbers share a word.
VOLUME_REACH = 511, 1023, 1023


def reach_of(spatial: Ints, view: Window) -> int:
    """Return how many places of the longest axis there are, before or behind the first element."""
    axes = zip(spatial, view.output, view.strides, view.extent, view.pads_begin, strict=True)
    return max(
        max(size + before, (count - 1) * stride + extent - before)
        for size, count, stride, extent, before in axes
    )


def plane_of(view: Window) -> Window:
    """Return windows along the last two spatial axes."""
    names = (field.name for field in fields(view))
    return Window(**{name: getattr(view, name)[-2:] for name in names})


def image_of(spatial: Ints, output: Ints, view: Window, moves: Ints) -> dict[str, int]:
    """Return struct `Image` of simt.cu; a single spatial axis counts as the width.

    Args:
        spatial: sizes of the input.
        output: sizes of the result.
        view: the windows.
        moves: strides of the input in memory: image, channel, then spatial axes.
    """
    flat = len(spatial) == 1
    one = (1,) if flat else ()
    pads = (*(0 for _ in one), *view.pads_begin)
    row, column = (0, moves[2]) if flat else moves[2:]
    return {
        **{**sizes("", spatial), **sizes("out_", output)},
        **by_axis(stride=(*one, *view.strides), pad=pads),
        **{"of_image": moves[0], "of_row": row, "of_column": column},
    }


def divided_image(
    spatial: Ints, output: Ints, view: Window, moves: Ints, *, squares: bool = False
) -> dict[str, int | tuple[int, int]]:
    """Return struct `Image` of operand_a.cuh, with divisors for output sizes, or for squares."""
    columns = output[-1] // 2 if squares else output[-1]
    divided = {"pixels": divisor(prod(output)), "columns": divisor(columns)}
    names = "depth", "out_depth", "stride_d", "pad_d", "of_plane"
    if len(spatial) < 3:
        image = image_of(spatial, output, view, moves)
        return {**image, **divided, **dict.fromkeys(names, 0), "plane": divisor(1)}
    image = image_of(spatial[1:], output[1:], plane_of(view), (*moves[:2], *moves[3:]))
    deep = spatial[0], output[0], view.strides[0], view.pads_begin[0], moves[2]
    deep = dict(zip(names, deep, strict=True))
    return {**image, **divided, **deep, "plane": divisor(prod(output[1:]))}
