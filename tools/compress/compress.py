"""Models with pruned and shared weights, in operators that every runtime has.

Weights are float constants with at least two axes that layers multiply by. A weight is stored as
one byte per gap between remaining elements, and a byte (the code) or a float for each of these; a
few nodes restore the tensor, which runtimes evaluate once, when they load the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import in_data_dir, public
from ...runtime.base.arguments import number, refused, whole
from ...runtime.base.notebook import Shown
from ...runtime.errors import UsageError, did_you_mean
from ...runtime.ir.dtypes import int32, int64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array
from ...runtime.ops.elementwise import Cast
from ...runtime.ops.gather import Gather, ScatterElements
from ...runtime.ops.reduce import CumSum
from ...runtime.ops.shape import ConstantOfShape, Reshape
from ...runtime.passes.editing import Builder
from ..common.console import Say, silent
from ..common.deadline import limited
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.nested import flat
from ..common.shapes import Dims, Shapes
from ..common.views import shown
from ..export.writing import ExportResult, said_in, write_model
from ..verdict.accuracy import distance_of
from .codec import MAX_BITS, gaps_of, huffman_bytes, pruned, shared

#: Smaller tensors are not compressed: the additional nodes would take more.
MIN_ELEMENTS = 1024

#: One number for all weights, or by name of a weight, node or operator; "" for all others.
PerWeight = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CompressedWeight:
    """One tensor of weights.

    Attributes:
        name: of the tensor.
        node: the layer that multiplies by it.
        elements: number of elements.
        density: fraction of non-zero elements.
        values: number of distinct remaining values; 0 if not shared.
        before: bytes of the original tensor.
        after: bytes stored.
        huffman: bytes with Huffman-coded codes and gaps, which no ONNX operator reads; about the
            size of the file in a compressed archive.
        error: relative L2 distance from the original tensor.
    """

    name: str
    node: str
    elements: int
    density: float
    values: int
    before: int
    after: int
    huffman: int
    error: float


@dataclass(frozen=True, slots=True)
class ChangedOutput:
    """The change of an output.

    Attributes:
        name: its name.
        error: relative L2 distance from the original's.
        top1: fraction of vectors along the last axis with an unchanged argmax.
    """

    name: str
    error: float
    top1: float


@dataclass(frozen=True, slots=True, repr=False)
class Compression(Shown):
    """The result of `compress`; print it, or read `weights`.

    Attributes:
        exported: the written model.
        before: bytes of the model's constants.
        weights: all compressed tensors.
        inputs: the common inputs of both models.
        outputs: the changes of outputs.
    """

    exported: ExportResult
    before: int
    weights: tuple[CompressedWeight, ...]
    inputs: Inputs
    outputs: tuple[ChangedOutput, ...]

    @property
    def after(self) -> int:
        """Bytes of the stored constants."""
        return self.before - sum(each.before - each.after for each in self.weights)

    @property
    def huffman(self) -> int:
        """The same with Huffman codes."""
        return self.before - sum(each.before - each.huffman for each in self.weights)

    def _about(self) -> str:
        return f"{self.exported.file or 'in memory'}: {self.before / max(self.after, 1):.1f}x"

    def __str__(self) -> str:
        return shown(self)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per tensor, for `pandas.DataFrame`."""
        return [asdict(each) for each in self.weights]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, for JSON."""
        return {
            **self.exported.to_dict(),
            "constants": {"before": self.before, "after": self.after, "huffman": self.huffman},
            "weights": self.table(),
            "inputs": self.inputs.to_dict(),
            "outputs": [asdict(each) for each in self.outputs],
        }


def _per_weight(name: str, value: Any, rule: Any, maximum: int, wanted: str) -> Any:
    def checked(each: Any, given: object) -> Any:
        with suppress(UsageError):
            found = rule(name, each)
            if found <= maximum:
                return found
        raise refused(name, given, wanted)

    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value).items()
        return {str(key): checked(one, {key: one} if key else one) for key, one in named}
    return checked(value, value)


def sparsity_rule(name: str, value: Any) -> Any:
    """Accept a fraction from 0 to 1, or fractions by name."""
    return _per_weight(name, value, number(minimum=0), 1, "a share of the weights, from 0 to 1")


def bits_rule(name: str, value: Any) -> Any:
    """Accept a number of bits, or numbers by name; 0 disables sharing."""
    return _per_weight(name, value, whole(0), MAX_BITS, f"0 to {MAX_BITS} bits")


@public(sparsity=sparsity_rule, bits=bits_rule, min_elements=whole(1))
@in_data_dir
@limited
def compress(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    inputs: Given = None,
    *,
    sparsity: PerWeight = 0.0,
    bits: PerWeight = 0,
    min_elements: int = MIN_ELEMENTS,
    opset: int | None = None,
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    freeze: Mapping[str, Array] | None = None,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    say: Say = silent,
) -> Compression:
    """Prune weights and share their values; write a model that any runtime loads.

    There is no retraining: only a network's own data, which `inputs` should be, show how much it
    tolerates.

    Args:
        source: a path, the file's bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        inputs: the inputs of both models: arrays by name or in a list by position; an .npz file or
            a folder of ONNX test data; random ones if None.
        sparsity: fraction of each tensor's elements that become zero, smallest first; or fractions
            by name of a tensor, node or operator, "" for all others.
        bits: bits per code of the remaining elements, 1 to 8; 0 keeps all values; or by name
            likewise.
        min_elements: smaller tensors are not compressed.
        opset: as for `export`; 11 or more.
        external: as for `export`.
        sparse: as for `export`.
        force: as for `export`.
        freeze: arrays for inputs that become constants, by name.
        seed: seed of random inputs.
        shapes: of random inputs, by name.
        dims: sizes of symbolic dimensions of random inputs; 1 if not given.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        say: called with a description of each stage.

    Raises:
        UsageError: neither `sparsity` nor `bits` is given, or the model has no such name.
        ModelError: the model cannot be read.
        OSError: the file cannot be written.
    """
    if not _is_any(sparsity) and not _is_any(bits):
        raise UsageError(
            "nothing to do: give sparsity, the share of weights to prune, or bits, or both (on the "
            "command line --sparsity, --bits)"
        )
    say("optimising")
    with load(source, freeze=freeze, operators=operators, keep_quantized=True) as model:
        graph = model.graph.clone()
        if opset is not None:
            graph = said_in(graph, opset, model)
        found = tuple(_compressed(graph, sparsity, bits, min_elements, say))
        before = sum(value.data.nbytes for value in model.graph.constants if value.data is not None)
        say("writing")
        written_as: dict[str, Any] = {
            "opset": opset,
            "external": external,
            "sparse": sparse,
            "force": force,
        }
        exported = write_model(model, graph, source, file, **written_as)
        given = asked(None, seed, shapes, dims) if inputs is None else asked(inputs)
        feeds = given_inputs(model.inputs, given)
        say("running the original")
        with feeds.explained():
            expected = flat(model.run(feeds.arrays))
    say("running what was written")
    target = exported.proto if exported.file is None else exported.file
    with load(target, operators=operators) as written:
        results = flat(written.run(feeds.arrays))
    outputs = tuple(_changed(name, results[name], data) for name, data in expected.items())
    return Compression(exported, before, found, feeds, outputs)


def _is_any(given: PerWeight) -> bool:
    return any(given.values()) if isinstance(given, Mapping) else bool(given)


def _changed(name: str, found: Array, expected: Array) -> ChangedOutput:
    top1 = 1.0
    if expected.ndim and expected.size and expected.dtype.kind in "fiu":
        top1 = float(np.mean(found.argmax(-1) == expected.argmax(-1)))
    return ChangedOutput(name, distance_of(found, expected), top1)


# ── weights ──────────────────────────────────────────────────────────────────────────────────────


def _weights(graph: Graph, min_elements: int) -> Iterator[tuple[Value, Node]]:
    """Yield the constants that layers multiply by, each with the first of these layers."""
    for value in graph.constants:
        data = value.data
        if data is None or data.ndim < 2 or data.size < min_elements or data.dtype.kind != "f":
            continue
        readers = list(value.consumers)
        if readers and all(node.op.dense and value in node.inputs[1:] for node in readers):
            yield value, min(readers, key=list(graph.nodes).index)


def _compressed(
    graph: Graph, sparsity: PerWeight, bits: PerWeight, min_elements: int, say: Say
) -> Iterator[CompressedWeight]:
    """Replace weights by nodes that restore them; yield a description of each."""
    pairs = list(_weights(graph, min_elements))
    known = {name for value, node in pairs for name in (value.name, node.name, node.kind)}
    for name in {*_names(sparsity), *_names(bits)} - known - {""}:
        raise UsageError(
            f"compress: no weight, node or operator '{name}'{did_you_mean(name, known)} among "
            f"those with {min_elements} weights or more"
        )
    for value, node in pairs:
        say(f"weights {value.name}")
        data = cast("Array", value.data)
        share, width = (_figure(given, value, node) for given in (sparsity, bits))
        if share or width:
            yield _stored(graph, value, node, pruned(data, share), int(width))


def _names(given: PerWeight) -> tuple[str, ...]:
    return tuple(given) if isinstance(given, Mapping) else ()


def _figure(given: PerWeight, value: Value, node: Node) -> float:
    if not isinstance(given, Mapping):
        return given
    names = (value.name, node.name, node.kind, "")
    return next((given[name] for name in names if name in given), 0)


def _stored(graph: Graph, value: Value, node: Node, data: Array, bits: int) -> CompressedWeight:
    """Store a weight in the fewest bytes; one that does not shrink is unchanged."""
    original, name = cast("Array", value.data), value.name
    values, positions = data.reshape(-1), np.flatnonzero(data)
    gaps, is_weight = gaps_of(positions)
    per_weight = 1 if bits else data.itemsize
    is_sparse = len(gaps) * (1 + per_weight) < data.size * per_weight
    if is_sparse:
        values = np.zeros(len(gaps), data.dtype)
        values[is_weight] = data.reshape(-1)[positions]
    codes, codebook = _shared(values, bits) if bits else (values, values[:0])
    build = Builder(graph, graph.nodes[0], name=f"{name}/stored")
    parts = [codes, codebook] if bits else [values]
    made = build.constant(codes, f"{name}/codes" if bits else f"{name}/values")
    if bits:
        wide = build(Cast(to=int32), made)
        made = build(Gather(), build.constant(codebook, f"{name}/codebook"), wide)
    if is_sparse:
        made = _scattered(build, made, gaps, data.size, f"{name}/gaps")
        parts.append(gaps)
    after = sum(part.nbytes for part in parts)
    restored = _restored(codes, codebook, gaps if is_sparse else None, data, bits)
    if bits or is_sparse:
        made = build(Reshape(), made, build.integers(data.shape, f"{name}/shape"))
        graph.redirect(value, made)
    else:
        graph.set_data(value, data)
    packed = [huffman_bytes(part) for part in parts if part.dtype == np.uint8]
    plain = [part.nbytes for part in parts if part.dtype != np.uint8]
    return CompressedWeight(
        name=name,
        node=node.name,
        elements=data.size,
        density=np.count_nonzero(restored) / data.size,
        values=len(codebook),
        before=original.nbytes,
        after=after,
        huffman=sum(packed) + sum(plain),
        error=distance_of(restored, original),
    )


def _shared(values: Array, bits: int) -> tuple[Array, Array]:
    """Return codes and a codebook in which zero, if present, stays exact."""
    left = values != 0
    if left.all():
        return shared(values, 1 << bits)
    codes = np.zeros(len(values), np.uint8)
    codebook = np.zeros(1, values.dtype)
    if left.any():
        codes[left], centres = shared(values[left], (1 << bits) - 1)
        codes[left] += 1
        codebook = np.concatenate([codebook, centres])
    return codes, codebook


def _scattered(build: Builder, values: Value, gaps: Array, size: int, name: str) -> Value:
    """Scatter values to the running sums of gaps in a vector of zeros."""
    line = build(Cast(to=int64), build.constant(gaps, name))
    positions = build(CumSum(), line, build.constant(np.array(0, np.int64), "axis"))
    zeros = build(ConstantOfShape(), build.integers([size], "size"))
    if values.tensor.dtype != zeros.tensor.dtype:
        zeros = build(Cast(to=values.tensor.dtype), zeros)
    return build(ScatterElements(), zeros, positions, values)


def _restored(codes: Array, codebook: Array, gaps: Array | None, data: Array, bits: int) -> Array:
    """Return the tensor that a runtime restores from what is stored."""
    values = codebook[codes] if bits else codes
    if gaps is None:
        return values.reshape(data.shape)
    found = np.zeros(data.size, data.dtype)
    found[np.cumsum(gaps, dtype=np.int64)] = values
    return found.reshape(data.shape)
