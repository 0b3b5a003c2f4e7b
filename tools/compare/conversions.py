"""Conversions of floats: each result is one of the two numbers next to what is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...runtime.ir.dtypes import bfloat16, float16, float32, float64
from ...runtime.ir.graph import Node
from ...runtime.ir.types import Array, HostValue
from ..verdict.error_bounds import Finding
from ..verdict.rounding import elements

#: Formats to which floats are converted, and what runtimes flush to zero there.
_FLUSHED = {float16: 0.0, bfloat16: 2.0**-126}


def with_conversions(
    nodes: Sequence[Node],
    findings: Sequence[Finding],
    values: Mapping[str, HostValue],
    found: Mapping[str, HostValue],
) -> Sequence[Finding]:
    """Return the findings of a step, wrong where it is a conversion that no rounding explains.

    ONNX leaves open which of the two numbers next to an element is taken, and nothing else.

    Args:
        nodes: of the step.
        findings: of its results.
        values: of the reference, by name: what the step reads and what it should give.
        found: what the runner gives.
    """
    if len(nodes) != 1 or nodes[0].kind not in ("Cast", "CastLike"):
        return findings
    (node,) = nodes
    source, result = node.operands[0], node.output.name
    given, wanted, got = source.data, values.get(result), found.get(result)
    given = values.get(source.name) if given is None else given
    if not (
        isinstance(given, np.ndarray)
        and isinstance(wanted, np.ndarray)
        and isinstance(got, np.ndarray)
    ):
        return findings
    return [_judged(each, given, wanted, got) for each in findings]


def _judged(finding: Finding, given: Array, wanted: Array, got: Array) -> Finding:
    is_narrowed = given.dtype in (float32, float64) and got.dtype in _FLUSHED
    if not is_narrowed or finding.verdict in ("equal", "wrong") or got.dtype != wanted.dtype:
        return finding
    count = _far(given, got)
    if not count or _far(given, wanted):
        return finding
    said = f"{elements(count)} from both {got.dtype.name} numbers next to what is converted"
    return replace(finding, agreement=replace(finding.agreement, verdict="MISMATCH", reason=said))


def _far(given: Array, got: Array) -> int:
    """Return how many elements are neither of the two numbers next to what is converted."""
    x, y = given.astype(np.float64), got.astype(np.float64)
    to = np.where(y < x, np.inf, -np.inf).astype(got.dtype)
    with np.errstate(all="ignore"):
        beyond = np.nextafter(got, to).astype(np.float64)
    is_next = (x == y) | ((y < x) & (x < beyond)) | ((beyond < x) & (x < y))
    is_flushed = np.abs(x) < _FLUSHED[got.dtype]
    return int(np.count_nonzero(~(is_next | is_flushed | np.isnan(x) | np.isnan(y))))
