"""Unknown operators: reported together in one error, and placeholders for them.

A model with placeholders can be inspected: outputs of an unknown operator have no type except the
dtype that the file declares, and no backend runs it.
"""

from __future__ import annotations

from typing import Any

from ..base.record import record
from ..errors import UnsupportedError
from ..text import printable
from .op import Inferred, Op, op_base
from .types import ValueType

#: Who runs an unknown operator, and why.
NOBODY, REASON = "nobody", "the operator is unknown"
#: Names of nodes in a message.
SHOWN = 3


@record
class UnknownOperator:
    """An operator of a model that tercet does not have.

    Attributes:
        domain: "" for ai.onnx.
        name: its name in the file.
        overload: which of several functions of that name; "" if it is not a function.
        opset: the version of the domain that the file imports.
        nodes: names of its nodes, or of their outputs if they have none.
        hint: the closest known operator, or where such operators come from; or "".
    """

    domain: str
    name: str
    overload: str
    opset: int | None
    nodes: tuple[str, ...]
    hint: str

    @property
    def kind(self) -> str:
        """The operator with its domain, as shown in messages."""
        name = f"{self.name}:{self.overload}" if self.overload else self.name
        return f"{self.domain}::{name}" if self.domain else name

    def __str__(self) -> str:
        nodes = ", ".join(f"'{node}'" for node in self.nodes[:SHOWN])
        more = f" and {len(self.nodes) - SHOWN} more" if len(self.nodes) > SHOWN else ""
        count = f"{len(self.nodes)} nodes" if len(self.nodes) > 1 else "node"
        return f"{self.kind} (opset {self.opset}), {count} {nodes}{more}{self.hint}"


class UnknownOperators(UnsupportedError):
    """Operators of a model that tercet does not have.

    Args:
        operators: all of them.
        file: the model's path, or None.
    """

    def __init__(self, operators: tuple[UnknownOperator, ...], file: str | None) -> None:
        self.operators = operators
        one = len(operators) == 1
        count = "unknown operator" if one else f"{len(operators)} unknown operators"
        listed = "\n  ".join(map(str, operators))
        model, gap = (f"{file}: " if file else ""), " " if one else "\n  "
        foreign = [each for each in operators if each.domain]
        recipe = ""
        if foreign:
            key = foreign[0].domain, foreign[0].name
            recipe = (
                f"{gap.rstrip(' ') or '; '}load(..., operators={{{key}: function}}) defines one, "
                "--operators FILE.py on the command line"
            )
        super().__init__(f"{model}{count}:{gap}{listed}{recipe}")


@op_base
class Opaque(Op):
    """Base class of placeholders for unknown operators; see `stand_in`."""

    outputs = (0, None)
    given: tuple[tuple[str, Any], ...] = ()

    def infer(self, *inputs: ValueType | None) -> Inferred:
        return None


def stand_in(domain: str, name: str) -> type[Op]:
    """Return a placeholder operator that accepts any inputs and cannot be run.

    Args:
        domain: its domain in the file.
        name: its name in the file, without control characters.
    """
    return type(printable(name), (Opaque,), {"domain": domain, "__doc__": "Unknown."})
