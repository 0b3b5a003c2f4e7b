"""What a backend in its own package needs; docs/adding_a_backend.md has one.

These names stay where they are, whatever moves inside of tercet.
"""

from __future__ import annotations

from .runtime.ir.graph import Graph, Node, Value
from .runtime.options import Options
from .runtime.passes.driver import IntegerChoice
from .runtime.plan.backend import (
    Backend,
    BuildContext,
    Claim,
    Decline,
    Device,
    Filling,
    Formats,
    Interpreter,
    Step,
    Stream,
    View,
)
from .runtime.plan.format import Format
from .runtime.plan.host import HOST, array

__all__ = [
    "HOST",
    "Backend",
    "BuildContext",
    "Claim",
    "Decline",
    "Device",
    "Filling",
    "Format",
    "Formats",
    "Graph",
    "IntegerChoice",
    "Interpreter",
    "Node",
    "Options",
    "Step",
    "Stream",
    "Value",
    "View",
    "array",
]
