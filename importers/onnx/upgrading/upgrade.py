"""Upgrades of operators of older opsets to the newest.

An upgrade states below which version it is needed and returns equivalent nodes of the newest opset.
All other operators kept their meaning: only element types, wording, or optional attributes and
inputs with backward-compatible defaults changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx.defs

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX
from ....runtime.ir.types import TensorType, ValueType
from ....runtime.ops.shapes import MAX_RANK
from ..source.raw import RawGraph, RawNode
from . import gpu_layouts, upgrade_layers
from .producers import meant
from .rewrite import (
    NEWEST,
    UPGRADES,
    NodeSite,
    attributes_to_inputs,
    before,
    integer,
    made,
    need_inputs,
    number,
    rank_of,
    scalar_like,
    with_default,
    without,
)

#: The opset from which on slopes of PRelu broadcast.
PRELU_BROADCASTS = 7
#: The least rank at which axis 1 is not the last one.
FIRST_IMAGE_RANK = 3
#: Importing these modules registers their upgrades.
__all__ = ["gpu_layouts", "upgrade", "upgrade_layers"]


def upgrade(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Return nodes of the newest opset equivalent to `node`.

    Raises:
        UnsupportedError: the newest opset cannot express it.
        ModelError: the node violates its opset.
    """
    until, become = UPGRADES.get((node.domain, node.op), (0, None))
    if become is None or node.opset is None or node.opset >= until:
        return meant(node, site)
    _check_count(node, node.opset, site)
    nodes = [each.change(opset=NEWEST[each.domain]) for each in become(node, node.opset, site)]
    # Others are made here, and read what is not yet in the graph.
    read = (meant(each, site) if each.op == node.op else [each] for each in nodes)
    return [each for several in read for each in several]


def _check_count(node: RawNode, opset: int, site: NodeSite) -> None:
    """Raise ModelError for inputs that only a newer opset knows."""
    if not onnx.defs.has(node.op, max_inclusive_version=opset, domain=node.domain):
        return
    schema = onnx.defs.get_schema(node.op, max_inclusive_version=opset, domain=node.domain)
    if len(node.inputs) > schema.max_input:
        raise site.error(
            f"has {len(node.inputs)} inputs; in opset {opset}, which the file imports, the "
            f"operator takes {schema.max_input} at most",
            node,
        )


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────


@before(6, "Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization")
@before(6, "LeakyRelu", "Log", "Max", "Mean", "Min", "Neg", "Reciprocal", "Relu", "Sigmoid")
@before(6, "Sqrt", "Sum", "Tanh")
def drop_consumed_inputs(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attribute `consumed_inputs` permitted in-place computation."""
    return [without(node, "consumed_inputs")]


@before(6, "Selu")
def selu(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Two default constants had fewer digits."""
    node = without(node, "consumed_inputs")
    alpha, gamma = (float(np.float32(value)) for value in (1.6732, 1.0507))
    return [with_default(with_default(node, "alpha", alpha), "gamma", gamma)]


@before(7, "Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "Less", "Pow")
def align(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attribute `axis` aligned the second operand; it needs trailing axes of size 1 instead."""
    axis = integer(node, "axis", 0, site)
    broadcast = integer(node, "broadcast", 0, site) and "axis" in node.attributes
    node = without(node, "axis", "broadcast", "consumed_inputs")
    if not broadcast:
        return [node]
    a, b = need_inputs(node, 2, site)[:2]
    rank = rank_of(a, site)
    maximum = MAX_RANK if rank is None else rank
    if not -maximum <= axis <= maximum:
        known = "the maximum rank" if rank is None else f"the rank of '{a}'"
        raise site.error(f"axis={axis} is outside [{-maximum}, {maximum}], {known}", node)
    nodes, aligned = _aligned(b, a, axis, site)
    return [*nodes, node.change(inputs=(a, aligned))]


def _aligned(b: str, a: str, axis: int, site: NodeSite) -> tuple[Sequence[RawNode], str]:
    """Return nodes that append axes of size 1 to `b`, to align it with `a` from `axis` on.

    If a rank is unknown or only declared, this happens at run time.
    """
    rank, inner = rank_of(a, site), rank_of(b, site)
    if rank is not None and inner is not None:
        behind = rank - (axis + rank if axis < 0 else axis) - inner
        if behind <= 0:
            return [], b
        axes = site.constant(np.arange(inner, inner + behind), "axes")
        aligned = site.fresh(f"{b}/aligned")
        return [made("Unsqueeze", (b, axes), aligned)], aligned
    hints = ("shape", "rank", "first", "own", "inner", "start", "rest", "count", "ones", "dims")
    shape, whole, first, own, size, start, rest, count, ones, dims = map(site.fresh, hints)
    maximum = np.iinfo(np.int64).max
    begin, one, end = (site.constant(np.array([n], np.int64), "number") for n in (axis, 1, maximum))
    aligned = site.fresh(f"{b}/aligned")
    nodes = [
        made("Shape", (a,), shape),
        made("Shape", (shape,), whole),
        made("Add", (whole, begin), first) if axis < 0 else made("Identity", (begin,), first),
        made("Shape", (b,), own),
        made("Shape", (own,), size),
        made("Add", (first, size), start),
        made("Slice", (shape, start, end), rest),
        made("Shape", (rest,), count),
        made("Expand", (one, count), ones),
        made("Concat", (own, ones), dims, axis=0),
        made("Reshape", (b, dims), aligned, allowzero=1),
    ]
    return nodes, aligned


@before(NEWEST[""] + 1, "PRelu")
def prelu(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """A vector of slopes was per channel, along axis 1, before opset 7.

    Exporters of MXNet and Caffe write such vectors in newer opsets, too.
    """
    node = without(node, "consumed_inputs")
    x, slope = need_inputs(node, 2, site)[:2]
    if opset >= PRELU_BROADCASTS:
        if not _is_only_of_channels(slope, x, site):
            return [node]
    else:
        type_ = site.type_of(slope)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise site.unsupported(f"cannot be upgraded: the shape of '{slope}' is unknown", node)
        if len(type_.shape) != 1 or type_.shape[0] == 1:
            return [node]
    nodes, aligned = _aligned(slope, x, 1, site)
    return [*nodes, node.change(inputs=(x, aligned))]


def _is_only_of_channels(slope: str, x: str, site: NodeSite) -> bool:
    """Return whether `slope` is a vector that has the size of axis 1, but not of the last one."""
    types = (site.type_of(slope), site.type_of(x))
    own, shape = (each.shape if isinstance(each, TensorType) else None for each in types)
    if own is None or shape is None or len(own) != 1 or len(shape) < FIRST_IMAGE_RANK:
        return False
    return own[0] == shape[1] and own[0] not in (1, shape[-1]) and isinstance(shape[-1], int)


@before(11, "Clip")
def clip(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The bounds were attributes; the extreme float32 numbers meant none."""
    (x,) = need_inputs(node, 1, site)[:1]
    minimum, maximum = number(node, "min", site), number(node, "max", site)
    outermost = float(np.finfo(np.float32).max)
    casts: list[RawNode] = []
    bounds = ["", ""]
    for i, bound in enumerate((minimum, maximum)):
        if bound is not None and abs(bound) < outermost:
            nodes, bounds[i] = scalar_like(bound, x, site)
            casts.extend(nodes)
    inputs = (x, *bounds) if bounds[1] else (x, *bounds[:1]) if bounds[0] else (x,)
    return [*casts, without(node, "min", "max", "consumed_inputs").change(inputs=inputs)]


@before(6, "Cast")
def cast(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attribute `to` was the name of a type."""
    name = node.attributes.get("to")
    if not isinstance(name, str):
        return [node]
    names = {dtypes.name_of(dtype): dtype for dtype in TO_ONNX}
    dtype = names.get({"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower()))
    if dtype is None:
        raise site.error(f"casts to unknown type '{name}'", node)
    return [without(node, to=TO_ONNX[dtype])]


@before(7, "Gemm")
def gemm(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attribute `broadcast` is implied now."""
    return [without(node, "broadcast")]


# ── shapes ───────────────────────────────────────────────────────────────────────────────────


@before(4, "Concat")
def concat(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The default axis was 1."""
    return [with_default(node, "axis", 1)]


@before(5, "Reshape")
def reshape(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The shape was an attribute."""
    if "shape" not in node.attributes:
        raise site.error("has no attribute 'shape'", node)
    return [attributes_to_inputs(without(node, "consumed_inputs"), site, "shape")]


@before(13, "Squeeze", "Unsqueeze", "ReduceSum")
@before(18, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean")
@before(18, "ReduceMin", "ReduceProd", "ReduceSumSquare")
def axes_to_input(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The axes were an attribute; an empty list meant all."""
    if node.attributes.get("axes") == () and node.op != "Unsqueeze":
        node = without(node, "axes")
    return [attributes_to_inputs(node, site, "axes")]


@before(NEWEST[""] + 1, "Split")
def split(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The sizes were an attribute, or at first an input of the data's type.

    `num_outputs` is set for every opset, with or without sizes, so that the operator knows it.
    """
    count = len(node.outputs)
    if integer(node, "num_outputs", count, site) != count:
        raise site.error(f"has {count} outputs, but another num_outputs", node)
    node = without(node, num_outputs=count)
    if "split" in node.attributes:
        return [attributes_to_inputs(node, site, "split")]
    if len(node.inputs) < 2 or opset >= 13:
        return [node]
    sizes = site.fresh("split")
    cast_ = made("Cast", node.inputs[1:2], sizes, to=TO_ONNX[dtypes.int64])
    return [cast_, node.change(inputs=(node.inputs[0], sizes))]


@before(10, "Slice")
def slice_(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The bounds were attributes."""
    for name in ("starts", "ends"):
        if name not in node.attributes:
            raise site.error(f"has no attribute '{name}'", node)
    return [attributes_to_inputs(node, site, "starts", "ends", "axes")]


@before(11, "Pad")
def pad(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The pads (first called paddings) and the value were attributes."""
    (data,) = need_inputs(node, 1, site)[:1]
    name = "paddings" if "paddings" in node.attributes else "pads"
    if name not in node.attributes:
        raise site.error("has no attribute 'pads'", node)
    value = number(node, "value", site)
    node = attributes_to_inputs(without(node, "value"), site, name)
    if not value:
        return [node]
    nodes, scalar = scalar_like(value, data, site)
    return [*nodes, node.change(inputs=(*node.inputs, scalar))]


@before(6, "Tile")
def tile(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """It repeated one axis: `tiles` times along `axis`, both inputs."""
    x, tiles, axis = need_inputs(node, 3, site)[:3]
    one = site.constant(np.array([1], np.int64), "one")
    names = [site.fresh(hint) for hint in ("shape", "rank", "ones", "tiles", "axis")]
    shape, rank, ones, *flat = names
    nodes = [
        made("Shape", (x,), shape),
        made("Shape", (shape,), rank),
        made("Expand", (one, rank), ones),
    ]
    for source, result in zip((tiles, axis), flat, strict=True):
        whole = site.fresh("whole")
        nodes.append(made("Cast", (source,), whole, to=TO_ONNX[dtypes.int64]))
        nodes.append(made("Reshape", (whole, one), result))
    repeats = site.fresh("repeats")
    nodes.append(made("ScatterElements", (ones, flat[1], flat[0]), repeats))
    return [*nodes, node.change(inputs=(x, repeats))]


@before(11, "Scatter")
def scatter(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Renamed to ScatterElements."""
    return [node.change(op="ScatterElements")]


@before(11, "OneHot")
def one_hot(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Negative indices were out of range instead of counting from the end."""
    indices, *rest = need_inputs(node, 3, site)
    whole, negative, moved = (site.fresh(f"{indices}/{n}") for n in ("int64", "negative", "moved"))
    zero = site.constant(np.array(0, np.int64), "zero")
    nowhere = site.constant(np.array(np.iinfo(np.int64).min), "nowhere")
    return [
        made("Cast", (indices,), whole, to=TO_ONNX[dtypes.int64]),
        made("Less", (whole, zero), negative),
        made("Where", (negative, nowhere, whole), moved),
        node.change(inputs=(moved, *rest)),
    ]


@before(10, "TopK")
def top_k(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The count was an attribute."""
    if "k" not in node.attributes:
        raise site.error("has no attribute 'k'", node)
    k = site.constant(np.array([integer(node, "k", 1, site)], np.int64), "k")
    return [without(node, "k").change(inputs=(*node.inputs[:1], k))]


# ── control flow ─────────────────────────────────────────────────────────────────────────────


@before(NEWEST[""] + 1, "Loop")
def loop(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Accept a body that declares its scalars with shape [1], as onnxruntime does.

    The specification leaves open the shapes of the iteration number, and of a condition that is
    not given; spox and others declare them as [1].
    """
    body = node.attributes.get("body")
    if not isinstance(body, RawGraph) or len(body.inputs) < 2:
        return [node]
    number, condition = (_is_list(type_) for type_ in list(body.inputs.values())[:2])
    inputs = (*node.inputs, "", "")[: max(2, len(node.inputs))]
    if condition and not inputs[1]:
        inputs = (inputs[0], site.constant(np.array([True]), "going"), *inputs[2:])
    body = _listed(body) if number else body
    return [without(node, body=body).change(inputs=inputs)]


def _is_list(type_: ValueType | None) -> bool:
    """Whether a scalar is declared as a list of one element; other lengths are mistakes."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return (
        shape is not None and len(shape) == 1 and (shape[0] == 1 or not isinstance(shape[0], int))
    )


def _listed(body: RawGraph) -> RawGraph:
    """Return a body that makes a list of one element of its first input, a scalar."""
    name, *others = body.inputs
    taken = {*body.inputs, *body.constants}
    taken |= {each for node in body.nodes for each in (*node.inputs, *node.outputs)}
    scalar, one = (
        f"{name}/{part}" + "_" * len(taken & {f"{name}/{part}"}) for part in ("scalar", "one")
    )
    made_list = made("Unsqueeze", (scalar, one), name).change(opset=NEWEST[""])
    return replace(
        body,
        inputs={
            scalar: TensorType(dtypes.int64, ()),
            **{each: body.inputs[each] for each in others},
        },
        constants={**body.constants, one: np.array([0], np.int64)},
        nodes=(made_list, *body.nodes),
    )
