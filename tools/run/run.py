"""Running one model on one backend: outputs, latencies, and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ...api import load
from ...runtime.ir.dtypes import COMPLEX, FLOATS, string
from ...runtime.ir.graph import Value
from ...runtime.ir.infer import specialise
from ...runtime.ir.types import Array, HostValue, TensorType, ValueType
from ...runtime.options import NARROW
from ...runtime.session.model import Model
from ...runtime.session.placement import Placement
from ..common.console import (
    Say,
    announce_compiling,
    caution,
    counted,
    facts,
    grid,
    ms_text,
    silent,
    value_text,
)
from ..common.deadline import time_limit
from ..common.imports import clocked
from ..common.inputs import InputRequest, Inputs, given_inputs
from ..common.measure import Repeat, Timing, interleave
from ..common.nested import flat, type_text
from .not_finite import origin_of

SHOWN_ELEMENTS = 8
SHOWN_VECTORS = 8
TOP = 5


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """One node of the file with the types of its values for given inputs."""

    name: str
    operator: str
    inputs: tuple[ValueType | None, ...]
    outputs: tuple[ValueType | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return names and types as text, for JSON."""
        return {
            "name": self.name,
            "operator": self.operator,
            "inputs": [str(type_ or "?") for type_ in self.inputs],
            "outputs": [str(type_ or "?") for type_ in self.outputs],
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of a tensor; NaN if not applicable.

    Attributes:
        name: the output.
        type: dtype and shape.
        min: smallest element, without NaN and infinities.
        max: largest element, without NaN and infinities.
        mean: mean of the elements; the fraction of True for booleans.
        nan: number of NaN.
        inf: number of infinities.
        top: for class scores, the highest ones: a row of (class, score) per vector.
    """

    name: str
    type: str
    min: float
    max: float
    mean: float
    nan: int
    inf: int
    top: tuple[tuple[tuple[int, float], ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "name": self.name,
            "type": self.type,
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
            "nan": self.nan,
            "inf": self.inf,
            "top": [[{"class": at, "score": score} for at, score in row] for row in self.top],
        }


@dataclass(frozen=True, slots=True)
class Run:
    """The result of `run_model`.

    Attributes:
        model: the file.
        backend: the requested backend and its device.
        precision: compute precision of float32 tensors.
        inputs: the inputs.
        outputs: by name.
        load: seconds from the file to a ready model.
        first: seconds of the first run, arrays in to arrays out.
        steady: later runs.
        placement: which backend ran which node.
        layers: shapes of all nodes; empty if not requested.
        not_finite: where infinities and NaN in the outputs come from; empty if there are none.
        stopped: why there are fewer runs than requested; empty if there are not.
    """

    model: str
    backend: str
    precision: str
    inputs: Inputs
    outputs: Mapping[str, HostValue] = field(repr=False)
    load: float
    first: float
    steady: Timing
    placement: Placement | None = field(repr=False)
    layers: tuple[NodeTypes, ...] = field(repr=False)
    not_finite: str = ""
    stopped: str = ""

    def summaries(self) -> tuple[Summary, ...]:
        """Return statistics of each output; lists and dictionaries by element, see `flat`."""
        found: list[Summary] = []
        for name, value in self.outputs.items():
            arrays = flat({name: value})
            found += [summary(each, data) for each, data in arrays.items()] or [_empty(name, value)]
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, times in milliseconds, for JSON."""
        return {
            "model": self.model,
            "backend": self.backend,
            "precision": self.precision,
            "inputs": self.inputs.to_dict(),
            "outputs": [found.to_dict() for found in self.summaries()],
            "load_ms": self.load * 1e3,
            "first_ms": self.first * 1e3,
            "steady_ms": self.steady.to_dict(),
            "ran_on": share_of_backends(self.placement) if self.placement else {},
            "layers": [layer.to_dict() for layer in self.layers],
            "not_finite": self.not_finite,
            "stopped": self.stopped,
        }


def run_model(
    file: Path,
    backend: str,
    wanted: InputRequest | Inputs,
    outputs: Sequence[str] = (),
    *,
    repeat: Repeat | None = None,
    trace_shapes: bool = False,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Run:
    """Load a model and run it repeatedly.

    Args:
        file: the path.
        backend: the backend to run on.
        wanted: the input request.
        outputs: tensors to return, intermediate ones included; the model's outputs if empty.
        repeat: number of further runs.
        trace_shapes: whether to list the shapes of every node.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        **options: see `tercet.load`.

    Raises:
        TimeLimitError: the time limit passed before the first run had ended.
    """
    run: Run | None = None
    samples: dict[str, list[float]] = {backend: []}
    with time_limit(timeout, say) as (limit, tell), ExitStack() as stack:
        tell("loading")
        model, loaded = clocked(partial(load, file, backend, **options))
        stack.enter_context(model)
        inputs = given_inputs(model.inputs, wanted)
        tell("first run")
        announce_compiling(model, say)
        found: dict[str, HostValue] = {}
        names = tuple(outputs) or None
        with inputs.explained():
            _, first = clocked(lambda: found.update(model.run(inputs.arrays, names)))
        run = Run(
            model=str(file),
            backend=f"{model.backend} on {model.backends[0].device.name}",
            precision=model.precision,
            inputs=inputs,
            outputs=found,
            load=loaded,
            first=first,
            steady=Timing(()),
            placement=model.placement(outputs=names),
            layers=_traced(model, inputs) if trace_shapes else (),
        )
        if model.precision not in NARROW:  # of these, a warning names the node
            tell("looking at the outputs")
            run = replace(run, not_finite=origin_of(model, inputs.arrays, found))
        calls = {backend: lambda: model.run(inputs.arrays, names)}
        interleave(calls, repeat or Repeat(), tell, {backend: first}, samples)
    if run is None:
        raise limit.error()
    return replace(run, steady=Timing(tuple(samples[backend])), stopped=limit.stopped)


def _traced(model: Model, inputs: Inputs) -> tuple[NodeTypes, ...]:
    with inputs.explained():
        return layers_of(model, inputs.arrays)


def layers_of(model: Model, inputs: Mapping[str, Array]) -> tuple[NodeTypes, ...]:
    """Return all nodes of the file, in order, with their shapes for these inputs."""
    types: dict[str, ValueType] = {
        name: TensorType(data.dtype, data.shape) for name, data in inputs.items()
    }
    graph = specialise(model.imported, types)
    return tuple(
        NodeTypes(
            node.name,
            node.kind,
            tuple(_type(v) for v in node.distinct_reads if not v.is_constant),
            tuple(_type(v) for v in node.outputs),
        )
        for node in graph.nodes
    )


def _type(value: Value) -> ValueType | None:
    return value.type.without_value() if isinstance(value.type, TensorType) else value.type


def share_of_backends(placement: Placement) -> dict[str, int]:
    """Return the number of nodes by backend, and the number of ``copies``, if any."""
    found: dict[str, int] = {}
    for row in placement:
        if row.operators and row.kind != "view":
            found[row.backend] = found.get(row.backend, 0) + len(row.nodes)
    if placement.copies:
        found["copies"] = len(placement.copies)
    return found


def summary(name: str, data: Array) -> Summary:
    """Return the statistics of a tensor."""
    nothing = float("nan")
    if data.dtype == string or data.dtype in COMPLEX or not data.size:
        return Summary(name, type_text(data), nothing, nothing, nothing, 0, 0, ())
    wide = data.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    low, high, mean = (
        (float(finite.min()), float(finite.max()), float(finite.mean()))
        if finite.size
        else (nothing, nothing, nothing)
    )
    nan, inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    return Summary(name, type_text(data), low, high, mean, nan, inf, _top(data))


def _empty(name: str, value: HostValue) -> Summary:
    """Return the description of an output without arrays."""
    nothing = float("nan")
    text = "absent" if value is None else f"empty {type(value).__name__}"
    return Summary(name, text, nothing, nothing, nothing, 0, 0, ())


def _top(data: Array) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the greatest elements of vectors, [c], [n, c] or [n, c, 1, 1], with their indices.

    NaN is not among them.
    """
    shape = data.shape
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if data.dtype not in FLOATS or not 1 <= len(shape) <= 2 or shape[-1] < TOP:
        return ()
    vectors = data.reshape(-1, shape[-1])[:SHOWN_VECTORS].astype(np.float64)
    best = np.argsort(-vectors, axis=1, kind="stable")[:, :TOP]
    found = tuple(
        tuple((int(at), float(vector[at])) for at in row if vector[at] == vector[at])
        for vector, row in zip(vectors, best, strict=True)
    )
    return found if any(found) else ()


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def show_run(console: Console, run: Run) -> None:
    """Print shapes if requested, outputs, and latencies."""
    facts(
        console,
        {
            "model": run.model,
            "backend": f"{run.backend}, {run.precision}{_share_text(run)}",
            "inputs": str(run.inputs),
        },
    )
    console.print()
    if run.layers:
        _show_layers(console, run.layers)
        console.print()
    _show_outputs(console, run)
    if run.not_finite:
        console.print(Text(run.not_finite, "bold yellow"))
        console.print()
    steady = run.steady
    share = f"p10 {ms_text(steady.quantile(0.1))}, p90 {ms_text(steady.quantile(0.9))}"
    again = f"{ms_text(steady.median)} ms, median of {len(steady.samples)} ({share})"
    facts(
        console,
        {
            "load": f"{ms_text(run.load)} ms",
            "first run": f"{ms_text(run.first)} ms",
            "steady": again if steady.samples else "",
        },
    )
    caution(console, "not complete", run.stopped)


def _share_text(run: Run) -> str:
    """Return how many nodes ran where; empty if all ran on the backend that was asked for."""
    share = share_of_backends(run.placement) if run.placement else {}
    copies = share.pop("copies", 0)
    if share.keys() <= {run.backend.partition(" ")[0]} and not copies:
        return ""
    flow = share.pop("host", 0)  # control flow decided by the host
    said = [f"{counted(nodes, 'node')} on {name}" for name, nodes in share.items()]
    said += [counted(flow, "control-flow node")] if flow else []
    said += [f"{counted(copies, 'copy', 'copies')} between devices"] if copies else []
    return f"; {', '.join(said)}"


def _show_layers(console: Console, layers: Sequence[NodeTypes]) -> None:
    table = grid("node", "operator", "inputs", "outputs", left=4)
    for layer in layers:
        table.add_row(
            Text(layer.name),
            Text(layer.operator),
            *(Text(" ".join(map(_shape_text, types))) for types in (layer.inputs, layer.outputs)),
        )
    console.print(table)


def _shape_text(type_: ValueType | None) -> str:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return "?" if type_ is None or isinstance(type_, TensorType) else str(type_)
    return "x".join("?" if d is None else str(d) for d in type_.shape) or "scalar"


def _show_outputs(console: Console, run: Run) -> None:
    table = grid("output", "type", "min", "max", "mean", "NaN/Inf", left=2)
    found = run.summaries()
    for each in found:
        numbers = ("-" if x != x else value_text(x) for x in (each.min, each.max, each.mean))
        strange = f"{each.nan}/{each.inf}"
        style = "bold red" if each.nan or each.inf else "dim"
        table.add_row(Text(each.name), Text(each.type), *numbers, Text(strange, style))
    console.print(table)
    arrays = flat(run.outputs)
    for each in found:
        if each.name in arrays:
            _show_elements(console, each, arrays[each.name])
    console.print()


def _show_elements(console: Console, found: Summary, data: Array) -> None:
    if found.top:
        console.print()
        table = grid("greatest, by index", "1st", "2nd", "3rd", "4th", "5th")
        for number, row in enumerate(found.top):
            name = Text(f"{found.name}[{number}]")
            scores = [f"{at}: {score:.3g}" for at, score in row]
            table.add_row(name, *(scores or ["all NaN"]))
        console.print(table)
    if len(found.top) == SHOWN_VECTORS < len(data):
        said = f"{found.name}: the first {SHOWN_VECTORS} of {len(data)} vectors; --save has all"
        console.print(Text(said, "dim"))
    few = 0 < data.size <= SHOWN_ELEMENTS
    if not found.top and (few or data.dtype == string):  # texts have no minimum and mean
        whole = data.dtype not in FLOATS
        text = " ".join(str(v) if whole else value_text(v) for v in data.flat[:SHOWN_ELEMENTS])
        rest = "" if few else f" … ({data.size:,} in all; --save has them)"
        console.print(Text.assemble((f"{found.name} =", "dim"), f" {text}", (rest, "dim")))
