"""Upgrades of layers: images, normalization, recurrent layers, signals and ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import TensorType
from ....runtime.ops.norm import Dropout
from ..source.raw import RawGraph, RawNode, items
from .rewrite import (
    NEWEST,
    NodeSite,
    before,
    dtype_of,
    integer,
    made,
    need_dtypes,
    need_inputs,
    number,
    rank_of,
    scalar_like,
    without,
)

# ── images ───────────────────────────────────────────────────────────────────────────────────


@before(11, "Upsample", "Resize")
def resize(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Pixels were addressed by their corners, and `nearest` rounded by the direction of resizing.

    It rounded down where an axis grew and up where it shrank, which takes two steps.
    """
    scales = _scales(node, opset, site)
    mode = node.attributes.get("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    names = ("mode", "scales", "width_scale", "height_scale")
    others: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    node = without(node, *names, **others).change(op="Resize")
    x = node.inputs[0]
    type_ = site.type_of(scales)
    known = type_.known if isinstance(type_, TensorType) and type_.dtype == float32 else None
    shrinks = known is None or bool((known < 1).any())
    grows = known is None or bool((known > 1).any())
    if mode != "nearest" or not (shrinks and grows):
        rounding = {"nearest_mode": "ceil" if shrinks else "floor"} if mode == "nearest" else {}
        return [without(node, **rounding).change(inputs=(x, "", scales))]
    one = site.constant(np.array(1, np.float32), "one")
    up, down, larger = (site.fresh(hint) for hint in ("scales/up", "scales/down", "larger"))
    return [
        made("Max", (scales, one), up),
        made("Min", (scales, one), down),
        made("Resize", (x, "", up), larger, **others, nearest_mode="floor"),
        without(node, nearest_mode="ceil").change(inputs=(larger, "", down)),
    ]


def _scales(node: RawNode, opset: int, site: NodeSite) -> str:
    """Return the scales of an old Upsample or Resize as an input."""
    if node.op == "Resize" or opset >= 9:
        return need_inputs(node, 2, site)[1]
    need_inputs(node, 1, site)
    scales = items(node.attributes.get("scales"))
    if opset < 7:
        scales = (1.0, 1.0, number(node, "height_scale", site), number(node, "width_scale", site))
    if not all(isinstance(scale, float) for scale in scales):
        raise site.error("has no scales", node)
    return site.constant(np.array(scales, np.float32), "scales")


@before(16, "RoiAlign")
def roi_align(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Regions were not shifted by half a pixel."""
    return [without(node, coordinate_transformation_mode="output_half_pixel")]


@before(20, "GridSample")
def grid_sample(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The modes had the names of image filters."""
    mode = node.attributes.get("mode", "bilinear")
    return [without(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))]


@before(2, "LpPool", "GlobalLpPool")
def lp_pool(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """`p` was a float."""
    p = number(node, "p", site)
    if p is not None and not p.is_integer():
        raise site.unsupported(f"p={p} is not a whole number", node)
    return [node if p is None else without(node, p=int(p))]


# ── normalization ────────────────────────────────────────────────────────────────────────────


@before(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """All axes from `axis` on were normalized together."""
    (x,) = need_inputs(node, 1, site)[:1]
    axis = integer(node, "axis", 1, site)
    type_ = site.type_of(x)
    if isinstance(type_, TensorType) and type_.shape is not None:
        rank = len(type_.shape)
        first = axis + rank if axis < 0 else axis
        if 0 <= first < rank and all(d == 1 for d in type_.shape[first + 1 :]):
            return [without(node, axis=first - rank if first == rank - 1 else first)]
    flat, shape, result = (site.fresh(f"{node.outputs[0]}/{n}") for n in ("flat", "shape", "rows"))
    return [
        made("Shape", (x,), shape),
        made("Flatten", (x,), flat, axis=axis),
        without(node, axis=-1).change(inputs=(flat,), outputs=(result,)),
        made("Reshape", (result, shape), node.outputs[0], allowzero=1),
    ]


@before(14, "BatchNormalization")
def batch_normalization(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """A node with more than one output is training; `spatial=0` normalised every element by itself.

    Older exporters of MXNet write it with one number per channel, and normalise channels. What
    training keeps for its gradients is a variance or its inverse root, as the runtime wants.
    """
    x, scale, bias, mean, variance = need_inputs(node, 5, site)[:5]
    for name in node.outputs[3:]:
        if name and site.is_read(name):
            raise site.unsupported(f"output '{name}' is for gradients only", node)
    spatial = integer(node, "spatial", 1, site)
    epsilon = number(node, "epsilon", site)
    trains = any(node.outputs[1:]) and not integer(node, "is_test", 0, site)
    if trains and not spatial:
        raise site.unsupported("spatial=0 with more than one output, which is training", node)
    node = without(node, "consumed_inputs", "is_test", "spatial")
    if trains:
        return [without(node, training_mode=1).change(outputs=node.outputs[:3])]
    node = node.change(outputs=node.outputs[:1])
    if spatial or rank_of(scale, site) == 1:
        return [node]
    epsilon = float(np.float32(1e-5)) if epsilon is None else epsilon
    nodes, tiny = scalar_like(epsilon, variance, site)
    names = ("centred", "variance", "deviation", "normalized", "scaled")
    centred, safe, deviation, normalized, scaled = (
        site.fresh(f"{node.outputs[0]}/{n}") for n in names
    )
    return [
        *nodes,
        made("Sub", (x, mean), centred),
        made("Add", (variance, tiny), safe),
        made("Sqrt", (safe,), deviation),
        made("Div", (centred, deviation), normalized),
        made("Mul", (normalized, scale), scaled),
        made("Add", (scaled, bias), node.outputs[0]),
    ]


@before(9, "MeanVarianceNormalization")
def mean_variance(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attributes told whether channels share their statistics, and whether to divide at all."""
    (x,) = need_inputs(node, 1, site)[:1]
    rank = 4 if (known := rank_of(x, site)) is None else known
    are_shared = integer(node, "across_channels", 0, site)
    axes = tuple(axis for axis in range(rank) if are_shared or axis != 1)
    is_scaled = integer(node, "normalize_variance", 1, site)
    node = without(node, "across_channels", "normalize_variance", axes=axes)
    if is_scaled:
        return [node]
    mean, over = site.fresh(f"{node.outputs[0]}/mean"), site.constant(np.array(axes), "axes")
    return [
        made("ReduceMean", (x, over), mean),
        made("Sub", (x, mean), node.outputs[0]),
    ]


@before(21, "GroupNormalization")
def group_normalization(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Scale and bias had one element per group; now one per channel."""
    x, *per_group = need_inputs(node, 3, site)[:3]
    channels, groups, each, size = (site.fresh(n) for n in ("channels", "groups", "each", "size"))
    one = site.constant(np.array([1], np.int64), "one")
    every = site.constant(np.array([-1], np.int64), "every")
    nodes = [
        made("Shape", (x,), channels, start=1, end=2),
        made("Shape", (per_group[0],), groups),
        made("Div", (channels, groups), each),
        made("Concat", (groups, each), size, axis=0),
    ]
    per_channel: list[str] = []
    for name in per_group:
        column, table, row = (site.fresh(f"{name}/{n}") for n in ("column", "table", "channels"))
        nodes.append(made("Unsqueeze", (name, one), column))
        nodes.append(made("Expand", (column, size), table))
        nodes.append(made("Reshape", (table, every), row))
        per_channel.append(row)
    return [*nodes, node.change(inputs=(x, *per_channel))]


@before(12, "Dropout")
def dropout(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Outside training it is the identity; `ratio` and `is_test` were about training."""
    (x,) = need_inputs(node, 1, site)[:1]
    need_dtypes(Dropout(), node, site)
    node = without(node, "consumed_inputs", "is_test", "ratio")
    if len(node.outputs) < 2 or not site.is_read(node.outputs[1]):
        return [node.change(op="Identity", attributes={}, outputs=node.outputs[:1])]
    if opset >= 10:
        return [node]
    mask = site.fresh("mask")  # the mask had the type of the data
    output = (node.outputs[0] or site.fresh("output"), mask)
    return [node.change(outputs=output), made("CastLike", (mask, x), node.outputs[1])]


# ── recurrence and signals ───────────────────────────────────────────────────────────────────


@before(7, "RNN", "GRU", "LSTM")
def recurrent(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Attribute `output_sequence` requested the first output, as its name does now."""
    if node.attributes.get("direction") == "foward":
        node = without(node, direction="forward")  # spelling of the default in GRU 1
    return [without(node, "output_sequence")]


@before(20, "DFT")
def dft(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """The axis was an attribute, 1 by default."""
    signal, *length = need_inputs(node, 1, site)
    axis = site.constant(np.array(integer(node, "axis", 1, site), np.int64), "axis")
    return [without(node, "axis").change(inputs=(signal, *(length or [""]), axis))]


@before(9, "Scan")
def scan(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Axis 0 was a batch whose entries were scanned separately: a Scan of Scans."""
    lengths, *inputs = node.inputs or ("",)
    if lengths:
        raise site.unsupported("sequences of different lengths", node)
    body = node.attributes.get("body")
    scanned = integer(node, "num_scan_inputs", 0, site)
    if not isinstance(body, RawGraph) or not 0 < scanned <= len(inputs):
        raise site.error("needs a body and num_scan_inputs", node)
    formals = tuple(site.fresh(f"{name}/item") for name in inputs)
    results = tuple(site.fresh(f"{name}/item") for name in body.outputs)
    inner: dict[str, Any] = {"body": body, "num_scan_inputs": scanned}
    if "directions" in node.attributes:
        inner["scan_input_directions"] = node.attributes["directions"]
    each = RawNode("Scan", formals, results, inner, name=node.name, opset=NEWEST[""])
    outer = RawGraph(f"{node.name}/batch", dict.fromkeys(formals), results, {}, {}, (each,))
    attributes = {"body": outer, "num_scan_inputs": len(inputs)}
    return [node.change(inputs=tuple(inputs), attributes=attributes)]


# ── ai.onnx.ml ───────────────────────────────────────────────────────────────────────────────


@before(2, "LabelEncoder", domain="ai.onnx.ml")
def label_encoder(node: RawNode, opset: int, site: NodeSite) -> Sequence[RawNode]:
    """Strings became their index in a list, or indices strings, by the input's type.

    Of equal strings, the last one counted, as in onnxruntime; of the keys of today, the first.
    """
    (x,) = need_inputs(node, 1, site)[:1]
    classes = node.attributes.get("classes_strings", ())
    dtype = dtype_of(x, site)
    if dtype is None:
        raise site.unsupported(f"cannot be upgraded: the type of '{x}' is unknown", node)
    positions = tuple(range(len(classes)))
    node = without(node, "classes_strings")
    if dtype == dtypes.string:
        return [without(node, keys_strings=classes[::-1], values_int64s=positions[::-1])]
    return [without(node, keys_int64s=positions, values_strings=classes)]
