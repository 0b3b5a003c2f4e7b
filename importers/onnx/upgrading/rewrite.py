"""Building blocks of operator upgrades."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ....runtime.errors import ModelError, ShapeError, UnsupportedError
from ....runtime.ir import dtypes
from ....runtime.ir.constraints import check_inputs
from ....runtime.ir.dtypes import DType
from ....runtime.ir.op import Op
from ....runtime.ir.types import Array, TensorType, ValueType
from ..source.raw import RawNode, items

#: The version of each domain in the intermediate representation.
NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}


class NodeSite(Protocol):
    """The position of a node in its graph, for upgrades."""

    @property
    def producer(self) -> str:
        """The program that wrote the file, and its version; "" if unknown."""
        ...

    def type_of(self, name: str) -> ValueType | None:
        """Return what is known about a value that the node reads."""
        ...

    def is_read(self, name: str) -> bool:
        """Whether a value has readers or is a graph output."""
        ...

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        ...

    def constant(self, data: Array, hint: str) -> str:
        """Add a constant and return its name."""
        ...

    def error(self, reason: str, node: RawNode) -> ModelError:
        """Return the error for a node that violates its opset."""
        ...

    def unsupported(self, reason: str, node: RawNode) -> UnsupportedError:
        """Return the error for a node that the newest opset cannot express."""
        ...


Upgrade = Callable[[RawNode, int, NodeSite], Sequence[RawNode]]
#: The first version that needs no upgrade, and the upgrade, by domain and operator.
UPGRADES: dict[tuple[str, str], tuple[int, Upgrade]] = {}


def before(until: int, *operators: str, domain: str = "") -> Callable[[Upgrade], Upgrade]:
    """Register the upgrade of operators in versions below `until`."""

    def declare(function: Upgrade) -> Upgrade:
        for name in operators:
            UPGRADES[domain, name] = (until, function)
        return function

    return declare


def without(node: RawNode, *names: str, **others: Any) -> RawNode:
    """Return the node without the attributes `names`, and with `others` set."""
    kept = {name: value for name, value in node.attributes.items() if name not in names}
    return node.change(attributes=kept | others)


def with_default(node: RawNode, name: str, value: Any) -> RawNode:
    """Return the node with an old default made explicit."""
    return node if name in node.attributes else without(node, **{name: value})


def made(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> RawNode:
    """Return a node of the newest opset with one output."""
    return RawNode(op, tuple(inputs), (output,), attributes, name=output)


def rank_of(name: str, site: NodeSite) -> int | None:
    """Return the rank of a value if known."""
    type_ = site.type_of(name)
    return type_.rank if isinstance(type_, TensorType) else None


def dtype_of(name: str, site: NodeSite) -> DType | None:
    """Return the element type of a value if known."""
    type_ = site.type_of(name)
    return type_.dtype if isinstance(type_, TensorType) else None


def integer(node: RawNode, name: str, default: int, site: NodeSite) -> int:
    """Return an integer attribute."""
    value = node.attributes.get(name, default)
    if not isinstance(value, int):
        raise site.error(f"attribute '{name}' must be an integer, not {value!r}", node)
    return value


def integers(node: RawNode, name: str, site: NodeSite) -> Array | None:
    """Return a list attribute of integers as int64, or None if absent."""
    value = node.attributes.get(name)
    if value is None:
        return None
    if not isinstance(value, tuple) or not all(isinstance(v, int) for v in items(value)):
        raise site.error(f"attribute '{name}' must be a list of integers", node)
    return np.array(value, np.int64)


def number(node: RawNode, name: str, site: NodeSite) -> float | None:
    """Return a float attribute, or None if absent."""
    value = node.attributes.get(name)
    if value is not None and not isinstance(value, float):
        raise site.error(f"attribute '{name}' must be a float, not {value!r}", node)
    return value


def attributes_to_inputs(node: RawNode, site: NodeSite, *names: str) -> RawNode:
    """Return the node with integer list attributes turned into inputs behind the first."""
    lists = [(name, integers(node, name, site)) for name in names]
    added = ["" if v is None else site.constant(v, f"{name}") for name, v in lists]
    while added and not added[-1]:
        added.pop()
    return without(node, *names).change(inputs=(*node.inputs[:1], *added))


def scalar_like(value: float, name: str, site: NodeSite) -> tuple[list[RawNode], str]:
    """Return a scalar with the dtype of `name`, and the nodes that create it if unknown."""
    dtype = dtype_of(name, site)
    if dtype is not None and dtype in dtypes.FLOATS:
        return [], site.constant(np.array(value, dtype), "value")
    scalar = site.constant(np.array(value, np.float32), "value")
    cast = site.fresh("value")
    return [made("CastLike", (scalar, name), cast)], cast


def need_dtypes(op: Op, node: RawNode, site: NodeSite) -> None:
    """Reject inputs that the old operator did not accept, although the new one does."""
    try:
        check_inputs(op, [site.type_of(name) for name in node.inputs])
    except ShapeError as error:
        raise site.error(str(error), node) from error


def need_inputs(node: RawNode, count: int, site: NodeSite) -> tuple[str, ...]:
    """Return the first inputs; raises ModelError if one is omitted."""
    if len(node.inputs) < count or not all(node.inputs[:count]):
        raise site.error(f"has {len(node.inputs)} inputs, but needs {count}", node)
    return node.inputs
