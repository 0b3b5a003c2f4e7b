"""Nodes in the form of an older opset: inputs that were attributes, and former names.

The reverse of `upgrade`, as far as possible: an input becomes an attribute only if it is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ....runtime.base.record import record
from ....runtime.ir.graph import Node, Value


@record
class Older:
    """The form of a node in an older opset.

    Attributes:
        inputs: number of inputs that remain.
        attributes: attributes that replace the others.
        without: attributes to drop, because the old operator behaves as they say.
    """

    inputs: int
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    without: frozenset[str] = frozenset()


Form = Callable[[Node], Older | str]


def older_form(node: Node, version: int) -> Older | str | None:
    """Return the form of a node in an older opset, if it differs.

    Args:
        node: with types inferred.
        version: of the node's domain.

    Returns:
        The form; the reason why there is none; None for nodes that need no change.
    """
    until, form = _FORMS.get((node.op.domain, type(node.op).__name__), (0, None))
    return form(node) if form is not None and version < until else None


def _constant(node: Node, index: int, name: str) -> tuple[int, ...] | str | None:
    """Return the elements of an input that must be constant, or why that is impossible."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    if value.data is None:
        return f"{name} is an attribute there, and '{value.name}' is not a constant"
    return tuple(int(item) for item in value.data.flat)


def _reduction(node: Node) -> Older | str:
    axes = _constant(node, 1, "axes")
    if isinstance(axes, str):
        return axes
    if not axes and getattr(node.op, "noop_with_empty_axes", 0):
        return "noop_with_empty_axes is not there"
    given = {"axes": axes} if axes else {}
    return Older(1, given, frozenset({"noop_with_empty_axes"}))


_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(node: Node) -> Older | str:
    rank = _rank(node.inputs[0])
    mode = getattr(node.op, "mode", "")
    if rank != 4:
        return "it samples only images"
    return Older(2, {"mode": _MODES.get(mode, mode)})


def _dft(node: Node) -> Older | str:
    axis, rank = _constant(node, 2, "axis"), _rank(node.inputs[0])
    if isinstance(axis, str):
        return axis
    where = axis[0] if axis else -2
    if where < 0:
        if rank is None:
            return "the axis is counted from the front, and the rank is unknown"
        where += rank
    kept = 2 if len(node.inputs) > 1 and node.inputs[1] is not None else 1
    return Older(kept, {"axis": where})


def _roi_align(node: Node) -> Older | str:
    mode = getattr(node.op, "coordinate_transformation_mode", "")
    if mode != "output_half_pixel":
        return f"coordinate_transformation_mode={mode} is not there"
    return Older(len(node.inputs), {}, frozenset({"coordinate_transformation_mode"}))


def _batch_normalization(node: Node) -> Older | str:
    if getattr(node.op, "training_mode", 0):
        return "training_mode is not there"
    return Older(len(node.inputs), {}, frozenset({"training_mode"}))


def _without_broadcast(node: Node) -> Older | str:
    shapes = {getattr(value.type, "shape", None) for value in node.operands}
    if len(shapes) > 1 or any(shape is None or None in shape for shape in shapes):
        return "it does not broadcast, and operands may differ in shape"
    return Older(len(node.inputs))


def _rank(value: Value | None) -> int | None:
    return getattr(value.type, "rank", None) if value is not None else None


_FORMS: dict[tuple[str, str], tuple[int, Form]] = {
    **{
        ("", f"Reduce{kind}"): (18, _reduction)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
    **{("", name): (8, _without_broadcast) for name in ("Max", "Mean", "Min", "Sum")},
    ("", "BatchNormalization"): (14, _batch_normalization),
    ("", "DFT"): (20, _dft),
    ("", "GridSample"): (20, _grid_sample),
    ("", "RoiAlign"): (16, _roi_align),
}
