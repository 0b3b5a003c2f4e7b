"""Folds what is added around an image into the pads of the layer after it, or into a transform.

Results that a Slice drops are windows that the Conv before it need not have, and pads of the
ConvTranspose before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import lt

import numpy as np

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Shape, TensorType
from ...ops.conv import Conv, ConvTranspose
from ...ops.cuts import is_along_last, sliced_places
from ...ops.elementwise import Relu
from ...ops.movement import Concat, Pad, Slice
from ...ops.pool import AveragePool, MaxPool
from ...ops.shape import Unsqueeze
from ...ops.signal import DFT
from ..driver import Context, Reason
from ..editing import dtype_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply, OneOf


def _build(found: Found) -> Outcome:
    node, pad = found.top, found.match.made("pad")
    added, op = _spatial_pads(pad), node.op
    if added is None or not isinstance(op, Conv | AveragePool | MaxPool):
        return None
    if not _is_neutral(pad, node):
        return None
    if 0 in (shape_of(pad.inputs[0]) or ())[2:]:
        return found.refuse(Reason.SHAPE, "an image without pixels has no windows")
    if not isinstance(op, Conv) and _may_have_none(shape_of(pad.inputs[0]), added, op):
        return found.refuse(Reason.SHAPE, "without pixels, its padding alone would have windows")
    if isinstance(op, AveragePool):
        if not _counts_zeros(op):
            return found.refuse(Reason.NUMBERS, "the window does not count its padding")
        if not all(map(lt, added, op.kernel_shape * 2)):
            return found.refuse(Reason.SHAPE, "a window would contain only padding")
    pads = op.pads if op.pads and op.auto_pad == "NOTSET" else (0,) * len(added)
    total = tuple(a + b for a, b in zip(pads, added, strict=True))
    if isinstance(op, MaxPool):
        if op.ceil_mode:
            return found.refuse(Reason.SHAPE, "no window begins in padding")
        if not all(map(lt, total, op.kernel_shape * 2)) or not _meets(op, pad.inputs[0]):
            return found.refuse(Reason.SHAPE, "a window would contain only padding")
    new = with_attributes(op, pads=total, auto_pad="NOTSET")
    return Replacement(new, (pad.inputs[0], *node.inputs[1:]))


def _may_have_none(shape: Shape | None, added: Sequence[int], op: AveragePool | MaxPool) -> bool:
    """Whether an image of unknown size has windows though its size is 0."""
    wide = zip(added, added[len(added) // 2 :], op.kernel_shape, strict=False)
    sizes = (shape or ())[2:]
    return any(
        not isinstance(size, int) and begin + end >= kernel
        for size, (begin, end, kernel) in zip(sizes, wide, strict=True)
    )


def _build_cropped(found: Found) -> Outcome:
    conv, shape = found.match.made("conv"), shape_of(found["conv"])
    op, dropped = conv.op, _dropped(found.top, shape)
    if dropped is None or shape is None or not isinstance(op, Conv) or found.top.inputs[0] is None:
        return None
    rank = len(shape) - 2
    strides, pads = op.strides or (1,) * rank, op.pads or (0,) * 2 * rank
    if any(stride > 1 and cut for stride, cut in zip(strides * 2, dropped, strict=True)):
        return found.refuse(Reason.SHAPE, "the first or the last windows need not be at the edges")
    left = tuple(pad - cut for pad, cut in zip(pads, dropped, strict=True))
    if min(left) < 0:
        return found.refuse(Reason.SHAPE, "more windows are dropped than begin or end in padding")
    return Replacement(with_attributes(op, pads=left), conv.inputs)


def _build_cropped_transposed(found: Found) -> Outcome:
    conv, shape = found.match.made("conv"), shape_of(found["conv"])
    op, dropped = conv.op, _dropped(found.top, shape)
    window = (shape_of(conv.inputs[1]) or ())[2:]
    if dropped is None or shape is None or not isinstance(op, ConvTranspose) or op.output_shape:
        return None
    pads = op.pads or (0,) * len(dropped)
    total = tuple(pad + cut for pad, cut in zip(pads, dropped, strict=True))
    sides = [size for size in window if isinstance(size, int)]
    # A kernel of its own for each channel reads only pixels with results; products read all.
    if op.group == 1 and not (len(sides) * 2 == len(total) and all(map(lt, total, sides * 2))):
        return found.refuse(Reason.SHAPE, "whole pixels of the image would have no results")
    return Replacement(with_attributes(op, pads=total), conv.inputs)


def _build_longer(found: Found) -> Outcome:
    """Return a DFT that adds the zeros itself that follow a signal."""
    node, pad = found.top, found.match.made("pad")
    signal, length, axis = (*node.inputs, None, None)[:3]
    added, shape = _pads(pad), shape_of(signal)
    known = axis is None or axis.data is not None
    if added is None or shape is None or not known or not _is_neutral(pad, node):
        return None
    along = (-2 if axis is None or axis.data is None else int(axis.data.flat[0])) % len(shape)
    before, after = added
    elsewhere = [n for i, n in enumerate(after) if i != along]
    if any(before) or any(elsewhere) or along >= len(after) or after[along] < 0:
        return None
    source, view = pad.inputs[0], found.match.get("view")
    if view is not None:
        op, (_, axes) = found.match.made("view").op, found.match.made("view").operands
        last = len(shape) - 1
        if axes.data is None or [int(i) % len(shape) for i in axes.data.flat] != [last]:
            return found.refuse(Reason.SHAPE, "the axis of parts is not the one that is added")
        source = found.builder(found.match.made("view").name)(op, source, axes)
    if length is None:
        size = shape[along]
        if not isinstance(size, int) or not isinstance(node.op, DFT):
            return None
        whole = 2 * (size - 1) if node.op.inverse and node.op.onesided else size
        length = found.graph.constant(np.array(whole, np.int64), f"{node.name}.length")
    return Replacement(node.op, (source, length, *([] if axis is None else [axis])))


def _build_real(found: Found) -> Outcome:
    """Return the DFT of a signal without the imaginary parts that are zero."""
    pair, node = found.match.made("pair"), found.top
    shape = shape_of(pair.output)
    if shape is None or not isinstance(pair.op, Concat) or len(pair.inputs) != 2:
        return None
    if not isinstance(node.op, DFT) or (node.op.inverse and node.op.onesided):
        return None  # half of a spectrum has imaginary parts
    real, imaginary = pair.operands
    is_zero = imaginary.data is not None and not imaginary.data.any()
    if (
        not is_along_last(pair)
        or not is_zero
        or (shape_of(real) or ())[-1:] != (1,)
        or shape[-1] != 2
    ):
        return None
    return Replacement(node.op, (real, *node.inputs[1:]))


def _build_around(found: Found) -> Outcome:
    """Return the Pad that adds what two add, one around the other."""
    node, inner = found.top, found.match.made("pad")
    first, second = _pads(inner), _pads(node)
    if first is None or second is None or min(*first[0], *first[1], *second[0], *second[1]) < 0:
        return None
    one, other = ((*pad.inputs, None, None)[2] for pad in (inner, node))
    if any(value is not None and value.data is None for value in (one, other)):
        return None
    numbers = [0 if v is None or v.data is None else v.data.reshape(-1)[0] for v in (one, other)]
    if numbers[0] != numbers[1]:
        return None
    total = np.add([*first[0], *first[1]], [*second[0], *second[1]])
    pads = found.graph.constant(total.astype(np.int64), f"{node.name}.pads")
    return Replacement(Pad(), (inner.inputs[0], pads, *([] if other is None else [other])))


def _dropped(node: Node, shape: Shape | None) -> tuple[int, ...] | None:
    """Return how many elements a Slice drops before, then after those it keeps of each axis."""
    places = sliced_places(node)
    if shape is None or len(shape) < 3 or places is None:
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, part in places.items():
        size = shape[axis]
        if axis < 2 or not part or part.step != 1 or not isinstance(size, int):
            return None
        before[axis], after[axis] = part[0], size - 1 - part[-1]
    return (*before[2:], *after[2:])


def _is_explicit(node: Node) -> bool:
    return getattr(node.op, "auto_pad", "") in ("NOTSET", "VALID")


_ADDED = Apply(Pad, name="pad")

FUSIONS = (
    Fusion(
        Apply(Pad, _ADDED),
        _build_around,
        text="{new} adds what two add, one around the other",
    ),
    Fusion(
        Apply((Conv, AveragePool, MaxPool), Apply(Pad, name="pad"), where=_is_explicit),
        _build,
        text="the Pad became part of {new}",
    ),
    Fusion(
        Apply(Slice, Apply(Conv, name="conv", where=_is_explicit)),
        _build_cropped,
        text="the Slice became part of {new}",
    ),
    Fusion(
        Apply(Slice, Apply(ConvTranspose, name="conv", where=_is_explicit)),
        _build_cropped_transposed,
        text="the Slice became part of {new}",
    ),
    Fusion(
        Apply(DFT, OneOf(Apply(Unsqueeze, _ADDED, name="view"), _ADDED)),
        _build_longer,
        text="the Pad became part of {new}",
    ),
    Fusion(
        Apply(DFT, Apply(Concat, name="pair")),
        _build_real,
        text="{new} reads a signal without imaginary parts of zero",
    ),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Pad by pads of the windows that read it.

    The Pad must add zeros on spatial axes only, and have no other reader; an averaging window must
    count the padding, and must not be truncated at an edge (`ceil_mode`). The greatest element of a
    window is that without padding of -inf, or of 0 after a Relu. Windows of stride 1 whose results
    a Slice drops, and which reach into padding, need less of it. What a Slice drops of a transposed
    convolution, such as those of audio codecs, is padding of its windows. Zeros after a signal are
    part of its Fourier transform (S4, Hyena), whose length is an operand; so are imaginary parts of
    a real signal, which are zero (FNet). A Pad around another one, of other axes (assignments to
    parts of scores: MViTv2), is one with it.
    """
    return fuse(graph, context, FUSIONS)


def _counts_zeros(op: AveragePool) -> bool:
    """Whether padding counts like zeros of the input."""
    unpadded = not op.pads or not any(op.pads) or op.auto_pad == "VALID"
    return bool(op.count_include_pad) and not op.ceil_mode and unpadded


def _is_neutral(pad: Node, reader: Node) -> bool:
    """Whether what a Pad adds has the effect of a window's own padding."""
    x, value = pad.inputs[0], pad.inputs[2] if len(pad.inputs) > 2 else None
    if value is not None and value.data is None:
        return False
    added = 0.0 if value is None or value.data is None else float(value.data.reshape(-1)[0])
    if not isinstance(reader.op, MaxPool):
        return added == 0
    if len(reader.outputs) > 1 or dtype_of(x) not in FLOATS:  # positions count padding
        return False
    after_relu = x is not None and x.producer is not None and isinstance(x.producer.op, Relu)
    return added == -inf or (added == 0 and after_relu)


def _meets(op: MaxPool, x: Value | None) -> bool:
    """Whether an image is not so small that a dilated window passes it by."""
    dilations = op.dilations or (1,) * len(op.kernel_shape)
    sizes = (shape_of(x) or (None,) * (2 + len(dilations)))[2:]
    known = zip(sizes, dilations, strict=True)
    return all(step == 1 or (isinstance(size, int) and size >= step) for size, step in known)


def _spatial_pads(node: Node) -> tuple[int, ...] | None:
    """Return what a Pad adds before, then after each spatial axis; None for other pads."""
    found = _pads(node)
    if found is None:
        return None
    before, after = found
    if len(before) < 3 or any(before[:2] + after[:2]) or min(before + after) < 0:
        return None
    return (*before[2:], *after[2:])


def _pads(node: Node) -> tuple[list[int], list[int]] | None:
    """Return what a Pad adds before and after each axis, if it adds one number."""
    data, pads, *rest = (*node.inputs, None, None)
    if not isinstance(node.op, Pad) or node.op.mode != "constant" or data is None or pads is None:
        return None
    axes = rest[1]
    type_ = data.type
    if pads.data is None or not isinstance(type_, TensorType) or type_.rank is None:
        return None
    if axes is not None and axes.data is None:
        return None
    rank = type_.rank
    along = range(rank) if axes is None or axes.data is None else axes.data.reshape(-1).tolist()
    before, after = [0] * rank, [0] * rank
    count = pads.data.size // 2
    for i, axis in enumerate(along):
        before[axis], after[axis] = int(pads.data[i]), int(pads.data[count + i])
    return before, after


def transposed_pads(pad: Node, order: Sequence[int]) -> list[int]:
    """Return the pads of a Pad behind a Transpose of this order as one in front of it has them.

    Empty if they are not constants for all axes.
    """
    pads, rank = pad.operands[1].data, len(order)
    if pads is None or pads.size != 2 * rank or any(v is not None for v in pad.inputs[3:]):
        return []
    if any(value is not None and value.data is None for value in pad.inputs[2:3]):
        return []
    places = [order.index(axis) for axis in range(rank)]
    return [int(pads[place + of]) for of in (0, rank) for place in places]
