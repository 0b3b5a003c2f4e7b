"""Cuts a tensor before its axes are split, or change places, where parts are columns of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from math import prod

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axes_of, part_of, place_of, split_sizes
from ...ops.elementwise import Mul
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Transpose
from ...ops.shape import Reshape, Squeeze
from ..editing import Builder, drop, shape_of, static_dims, static_size
from .cut_splits import cut_split

#: Parts of rows are read in place if they consist of words of 16 bytes, which are 8 16-bit floats.
_WORD = 8


def cut_before_transposes(graph: Graph) -> Iterator[str]:
    """Cut the source of a Transpose all of whose readers take one place of the same axis.

    Queries, keys and values of a single head: behind the axis that tells them apart, all others
    are in order, so that each part is a slice of rows.
    """
    yield from _cut_where(graph, _is_cut_again)


def cut_for_products(graph: Graph) -> Iterator[str]:
    """Cut the source of a Transpose whose parts only products read: these need no order of axes.

    Queries, keys and values of heads that are mixed, or weighted otherwise, between the products
    (CaiT, ConViT), so that they are not an attention.
    """
    yield from _cut_where(graph, _is_multiplied)


def _cut_where(graph: Graph, is_free: Callable[[Graph, Value], bool]) -> Iterator[str]:
    """Cut the sources of Transposes where the order of axes stays, or where this is so."""
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Transpose) and not graph.is_output(node.output):
            text = _cut(graph, node, node.op, is_free)
            if text:
                yield text


def cut_columns(graph: Graph) -> Iterator[str]:
    """Split rows instead of the first of the axes that a Reshape makes of their columns.

    Queries, keys and values that onnxruntime's optimiser cuts before it moves heads: parts of
    adjacent columns, which layers and attention read in place.
    """
    for node in list(graph.nodes):
        found = split_sizes(node)
        view = None if found is None else node.operands[0].producer
        if found is None or view is None or not isinstance(view.op, Reshape):
            continue
        axis, counts = found
        before, after = shape_of(view.inputs[0]), shape_of(view.output)
        if not before or not after or axis != len(before) - 1 or len(after) <= len(before):
            continue
        inner = static_dims(after[axis + 1 :])
        if before[:-1] != after[:axis] or None in before or inner is None:
            continue
        add = Builder(graph, node, node.name, (node, view))
        parts = add.split(view.inputs[0], axis, (count * prod(inner) for count in counts))
        shapes = [(*(0 for _ in before[:-1]), count, *inner) for count in counts]
        made = [
            add(Reshape(), part, add.integers(shape, "shape"))
            for part, shape in zip(parts, shapes, strict=True)
        ]
        name = node.name
        graph.replace(node, made)
        drop(graph, view)
        yield f"Split '{name}' cuts rows, of which {len(made)} parts are split into axes"


def cut_before_merges(graph: Graph) -> Iterator[str]:
    """Cut the source of a Transpose whose first axis is cut behind a Reshape of the other ones.

    Queries, keys and values whose samples and heads are one axis before they are cut (SAM, ViTDet):
    cut first, each is a view of columns of rows, which attention reads in place.
    """
    for view in list(graph.nodes):
        made = view.operands[0].producer if isinstance(view.op, Reshape) else None
        if made is None or not isinstance(made.op, Transpose) or graph.is_output(view.output):
            continue
        source, dims, after = made.operands[0], shape_of(made.inputs[0]), shape_of(view.output)
        if not dims or not after:
            continue
        perm = made.op.order(len(dims))
        inner = static_dims(dims[perm[0] + 1 :])
        if inner is None or not inner or prod(inner) % _WORD:
            continue
        parts = [part for reader in view.output.consumers for part in reader.outputs]
        cuts = [part_of(part) for part in parts]
        places = [c.places.start for c in cuts if c and c[:2] == (view.output, 0)]
        are_single = all(len(c.places) == 1 for c in cuts if c)
        if len(places) < max(len(parts), 2) or not are_single or dims[perm[0]] != after[0]:
            continue
        if sum(not isinstance(size, int) for size in after[1:]) > 1:
            continue
        for part, place in zip(parts, places, strict=True):
            add = Builder(graph, view, part.name, (view,))
            piece = add.slice(source, perm[0], place, place + 1)
            piece = add(Squeeze(), piece, add.integers([perm[0]], "axes"))
            rest = tuple(axis - (axis > perm[0]) for axis in perm[1:])
            piece = add(Transpose(perm=rest), piece)
            kept = len(shape_of(part) or ()) - len(after[1:])
            graph.redirect(part, add.shaped(piece, ((1,) * kept) + after[1:]))
        for reader in list(view.output.consumers):
            drop(graph, reader)
        yield f"Reshape '{view.name}' is behind {len(parts)} parts, which are cut before it"


def cut_merged_heads(graph: Graph) -> Iterator[str]:
    """Split [b, h, w, n] instead of [b * h, w, n], where a Reshape of [b, h * w, n] makes these.

    Queries, keys and values of each head (guided diffusion): with an axis for heads, they are
    channels of one image, as they are where an image is cut before its heads.
    """
    for node in list(graph.nodes):
        found = split_sizes(node)
        view = None if found is None else node.operands[0].producer
        if found is None or view is None or not isinstance(view.op, Reshape):
            continue
        before, after = shape_of(view.inputs[0]) or (), shape_of(view.output) or ()
        if found[0] != 1 or len(before) < 3 or len(after) != 3:
            continue
        merged, (width, places) = static_dims(before[1:2]), static_dims(after[1:]) or (0, 0)
        if merged is None or not width or merged[0] % width or merged[0] == width:
            continue
        if static_size(before[2:]) != places:
            continue
        heads, sizes = merged[0] // width, found[1]
        add = Builder(graph, node, node.name, (node, view))
        apart = add.shaped(view.inputs[0], (-1, heads, width, places))
        parts = zip(add.split(apart, 2, sizes), sizes, strict=True)
        made = [add.shaped(part, (-1, size, places)) for part, size in parts]
        name = node.name
        graph.replace(node, made)
        drop(graph, view)
        yield f"Split '{name}' cuts {heads} heads of each sample"


def _cut(graph: Graph, node: Node, op: Transpose, is_free: Callable[[Graph, Value], bool]) -> str:
    source, dims = node.inputs[0], shape_of(node.inputs[0])
    readers, split = list(node.output.consumers), graph.sole_consumer(node.output)
    if source is None or source.is_constant or not dims:
        return ""
    perm = op.order(len(dims))
    found = None if split is None else split_sizes(split)
    if split is not None and found is not None:
        axis, sizes = found
        parts, places = list(split.outputs), list(range(len(sizes)))
        if set(sizes) != {1}:
            return ""
    else:
        taken = [place_of(each) if each.inputs[0] is node.output else None for each in readers]
        axis = _same(None if each is None else each[0] for each in taken)
        parts, places = [reader.output for reader in readers], [each[1] for each in taken if each]
    if axis is None or len(parts) < 2:
        return ""
    cut = perm[axis]
    kept = [place for place in perm if place != cut and dims[place] != 1]
    width = 1
    for size in dims[cut + 1 :]:
        if not isinstance(size, int):
            return ""
        width *= size
    if perm[-1] == cut or width % _WORD:
        return ""
    if kept != sorted(kept) and not any(is_free(graph, part) for part in parts):
        return ""
    if split is not None and found is not None:
        readers = [v.producer for v in cut_split(graph, split, *found) if v.producer is not None]
    for reader, place in zip(readers, places, strict=True):
        _cut_first(graph, reader, source, (cut, place, perm))
    name = node.name
    drop(graph, node)
    return f"Transpose '{name}' only led to {len(readers)} parts, which are cut before it"


def _same(numbers: Iterable[int | None]) -> int | None:
    """Return the number that all are; None if they differ or one is None."""
    found = set(numbers)
    return found.pop() if len(found) == 1 else None


def _is_cut_again(graph: Graph, part: Value) -> bool:
    """Whether a part is cut along another axis before an image is made of it, or of its products.

    It is copied there anyway, and transposed as well unless that comes last.
    """
    views = takewhile(lambda n: isinstance(n.op, (Reshape, Squeeze)), chain_behind(graph, part))
    *_, whole = part, *(view.output for view in views)
    return any(isinstance(each.op, Slice) for each in whole.consumers)


def _is_multiplied(graph: Graph, part: Value) -> bool:
    """Whether only a product reads a part, through views, transpositions and numbers."""
    for node in chain_behind(graph, part):
        if isinstance(node.op, MatMul):
            return True
        numbers = [v for v in node.distinct_reads if v.data is not None]
        is_scaled = isinstance(node.op, Mul) and any(v.tensor.size == 1 for v in numbers)
        if not is_scaled and not isinstance(node.op, (Reshape, Squeeze, Transpose)):
            break
    return False


def slice_before_transposes(graph: Graph) -> Iterator[str]:
    """Cut rows before they are transposed, where the part is only transposed again."""
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Slice) or len(node.inputs) < 4:
            continue
        transpose = node.operands[0].producer
        reader = graph.sole_consumer(node.output)
        axes, dims = axes_of(node), shape_of(node.output)
        if transpose is None or not isinstance(transpose.op, Transpose) or axes is None or not dims:
            continue
        if reader is None or not isinstance(reader.op, Transpose):
            continue
        perm = transpose.op.order(len(dims))
        places = [perm[axis] for axis in axes]
        add = Builder(graph, node, node.name, (node,))
        _, starts, ends, _, *steps = node.inputs
        along = add.integers(places, "axes", starts)
        part = add(Slice(), transpose.inputs[0], starts, ends, along, *steps)
        name = node.name
        graph.replace(node, [add(transpose.op, part)])
        drop(graph, transpose)
        yield f"Slice '{name}' cuts what Transpose '{transpose.name}' reads"


def _cut_first(
    graph: Graph, reader: Node, source: Value, taken: tuple[int, int, tuple[int, ...]]
) -> None:
    """Replace the part of a transposed tensor by the transposed part of it.

    Args:
        graph: the graph.
        reader: takes the part.
        source: what is transposed.
        taken: the axis of the source, its place, and the order of axes.
    """
    (cut, place, perm), last = taken, reader
    add = Builder(graph, reader, reader.name, (reader,))
    if isinstance(reader.op, Gather):
        part = add(Gather(axis=cut), source, reader.inputs[1])
        rest = [place - (place > cut) for place in perm if place != cut]
    else:
        part, rest = add.slice(source, cut, place, place + 1), list(perm)
        view = graph.sole_consumer(reader.output)
        if view is not None and _squeezed(view, len(perm)) == [perm.index(cut)]:
            part = add(Squeeze(), part, add.integers([cut], "axes"))
            rest = [place - (place > cut) for place in perm if place != cut]
            last = view
    transposed = part if rest == sorted(rest) else add(Transpose(perm=tuple(rest)), part)
    graph.redirect(last.output, transposed)
    for node in dict.fromkeys((last, reader)):
        graph.remove(node)


def _squeezed(node: Node, rank: int) -> list[int] | None:
    """Return the axes that a Squeeze is told to drop, counted from the front; None of others."""
    axes = (*node.inputs, None)[1] if isinstance(node.op, Squeeze) else None
    if axes is None or axes.data is None:
        return None
    return [int(axis) % rank for axis in axes.data.reshape(-1)]
