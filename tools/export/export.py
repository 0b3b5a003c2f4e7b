"""Export: the optimised graph, a graph with bound shapes, or a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...backends.options import PACKING
from ...runtime.base.arguments import dims as dim_texts
from ...runtime.base.arguments import shapes as shape_texts
from ...runtime.base.arguments import words
from ...runtime.errors import InputError, UsageError
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import Array
from ...runtime.options import NARROW
from ..common.console import Say, silent
from ..common.deadline import limited
from ..common.inputs import Given, asked, given_inputs
from ..common.shapes import Dims, Shapes
from ..common.tensors import tensor
from ..verdict.error_bounds import Judge
from .bound import bound
from .writing import ExportResult, write_model


@public()
@in_data_dir
@limited
def export(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    *,
    optimise: bool = True,
    opset: int | None = None,
    shapes: Shapes = (),
    dims: Dims = (),
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    freeze: Mapping[str, Array] | None = None,
    weights: Mapping[str, Array] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    **options: Any,
) -> ExportResult:
    """Write a model as ONNX, optimised or as imported.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        optimise: whether to run the passes.
        opset: version of ai.onnx to write; if None, the lowest one from that of `source` on in
            which every node can be written unchanged. Without passes, that of `source` is kept if
            operators of other domains can be written in it.
        shapes: ``{"image": (1, 3, 224, 224)}`` to fix the shapes of inputs.
        dims: ``{"batch": 4}`` to fix symbolic dimensions.
        external: constants of at least this many bytes go to ``FILE.data``; if None, only if the
            model exceeds 2 GB.
        sparse: whether constants become sparse initializers, which stay in the file, where those
            take fewer bytes, as those of pruned weights do.
        force: whether the source file may be overwritten.
        freeze: arrays for inputs that become constants, by name.
        weights: other weights by name; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        **options: further fields of `Options`, such as `stop_at`; weights stay quantized unless
            ``keep_quantized=False``. With ``precision="float16"`` or ``"bfloat16"``, the operations
            that tolerate it are written in that type; inputs and outputs keep theirs.

    Raises:
        UnsupportedError: a node cannot be written in the requested opset.
        ModelError: the model cannot be read, or rejects inputs of these shapes.
        InputError: `shapes` or `dims` do not fit the model.
        OSError: the file cannot be written.
    """
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    if not options.setdefault("keep_quantized", True):
        options["skip"] = (*options.get("skip", ()), PACKING)  # floats, no operator of onnxruntime
    if not optimise and options.get("precision") in NARROW:
        raise UsageError(
            f"a pass lowers the precision to {options['precision']}, and no pass runs: write the "
            "optimised graph (without --no-optimise, optimise=False)"
        )
    with load(source, freeze=freeze, weights=weights, operators=operators, **options) as model:
        graph = model.graph if optimise else model.imported
        if any(texts):
            graph = bound(model, graph, *texts, optimise=optimise)
        found = write_model(
            model,
            graph,
            source,
            file,
            opset=opset,
            external=external,
            sparse=sparse,
            force=force,
            keep_opset=not optimise,
        )
        if not freeze:
            return found
        folded = _folded(model.imported, graph, freeze)
        return replace(found, frozen=tuple(freeze), folded=folded)


@public()
@in_data_dir
@limited
def simplify(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    inputs: Given = None,
    *,
    seed: int = 0,
    opset: int | None = None,
    shapes: Shapes = (),
    dims: Dims = (),
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    freeze: Mapping[str, Array] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    allow_inconclusive: bool = False,
    say: Say = silent,
    **options: Any,
) -> ExportResult:
    """Write the optimised graph as ONNX, read it back, and compare it with the original.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        inputs: the inputs of both: arrays by name or in a list by position; an .npz file or a
            folder of ONNX test data; random ones if None.
        seed: seed of random inputs.
        opset: as for `export`.
        shapes: as for `export`.
        dims: as for `export`.
        external: as for `export`.
        sparse: as for `export`.
        force: as for `export`.
        freeze: as for `export`; the original gets these arrays as inputs.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        allow_inconclusive: whether `ExportResult.exit_code` is 0 for inconclusive results.
        say: called with a description of each stage.
        **options: further fields of `Options`, as for `export`: with ``precision="float16"`` or
            ``"bfloat16"``, rounding to that format is allowed for.

    Returns:
        The result; check `ok`.

    Raises:
        See `export`; and InputError if inputs do not fit.
    """
    say("optimising")
    found = export(
        source,
        file,
        opset=opset,
        shapes=shapes,
        dims=dims,
        external=external,
        sparse=sparse,
        force=force,
        freeze=freeze,
        operators=operators,
        **options,
    )
    say("running the original")
    plain: dict[str, Any] = {"stop_at": 0, "operators": operators}
    with load(source, freeze=freeze, **plain) as held:
        given = asked(None, seed, shapes, dims) if inputs is None else asked(inputs)
        feeds = given_inputs(held.inputs, given)
    everything = {**feeds.arrays, **(freeze or {})}
    with load(source, **plain) as original:
        with feeds.explained():
            expected = original.run(everything)
        judge = Judge(original.imported, everything, options.get("precision", "float32"))
        say("running what was written")
        with load(found.proto if found.file is None else found.file, **plain) as written:
            results = written.run(feeds.arrays)
        agreements = tuple(judge.outputs(expected, results))
    return replace(
        found, inputs=feeds, agreements=agreements, allow_inconclusive=allow_inconclusive
    )


@public(inputs=words("names of tensors"))
@in_data_dir
@freezing
@limited
def extract(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    opset: int | None = None,
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    shapes: Shapes = (),
    dims: Dims = (),
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> ExportResult:
    """Write the part of a model that computes some tensors from others, unoptimised.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        inputs: tensors that become inputs; if empty, those inputs of the model on which the outputs
            depend.
        outputs: tensors that become outputs; the model's outputs if empty.
        opset: as for `export`.
        external: as for `export`.
        sparse: as for `export`.
        force: as for `export`.
        shapes: as for `export`, for the model's own inputs.
        dims: as for `export`.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.

    Raises:
        InputError: `shapes` or `dims` do not fit, the model has no such tensor, or the outputs
            depend on further inputs.
        UnsupportedError: a node cannot be written in the requested opset.
        OSError: the file cannot be written.
    """
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    with load(source, stop_at=0, operators=operators) as model:
        graph = model.imported
        if any(texts):
            graph = bound(model, graph, *texts, optimise=False)
        part = cut(graph, inputs, outputs)
        return write_model(
            model,
            part,
            source,
            file,
            opset=opset,
            external=external,
            sparse=sparse,
            force=force,
            keep_opset=True,
        )


def cut(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return the part of a graph between named tensors; see `extract`."""
    results = {name: tensor(graph, name) for name in outputs} or dict(graph.outputs)
    starts = [tensor(graph, name) for name in dict.fromkeys(inputs)]
    needed = _dependencies(results.values(), set(starts))
    if inputs:
        missing = [v.name for v in graph.inputs if v in needed and v not in starts]
    else:
        starts, missing = [v for v in graph.inputs if v in needed], []
    if missing:
        raise InputError(
            f"{', '.join(results)} cannot be computed from {', '.join(inputs)} alone: "
            f"{', '.join(missing)} is read, too; name it among the inputs"
        )
    return graph.cut(starts, results)


def _dependencies(results: Any, given: set[Value]) -> set[Value]:
    """Return everything that some values depend on, stopping at given ones."""
    found: set[Value] = set()
    waiting = list(results)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            if value not in given and value.producer is not None:
                waiting.extend(value.producer.distinct_reads)
    return found


def _folded(imported: Graph, graph: Graph, names: Iterable[str]) -> tuple[str, ...]:
    """Return the folded nodes, which depended only on frozen inputs and constants."""
    left = {name for node in graph.walk() for name in node.origin}
    frozen = {imported.values[name] for name in names}
    known = set(imported.constants)
    found: list[str] = []
    for node in imported.nodes:
        if not known.issuperset(node.distinct_reads):
            continue
        known.update(node.outputs)
        if not frozen.isdisjoint(node.distinct_reads):
            frozen.update(node.outputs)
            found.extend(name for name in node.origin if name not in left)
    return tuple(found)
