"""The same model in float64: as it is, and every result moved as rounding would move it, or more.

What a runtime rounds is moved here by chance: every tensor that a node computes by a random share
of its unit in the last place, and so is what goes into a sum, the further the more terms it has.
TF32 is the format of factors: what is multiplied is read in it, all else is float32. What is exact
stays: whole numbers and all that the dtype can hold as they are, so counts, sizes, indices and
masks do not flip. A quotient, a mean or a function stays only where a decision hinges on it, as
libraries may give a neighbour of what is exact. Nor does rounding touch what only moves, selects or
compares numbers.

*Fair* runs move numbers about as far as a runtime does, *rough* ones far further: what does not
move even there is not rounding. All runs share one plan: noise comes from operators, which read
how much and which from the run, as do constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any
from weakref import finalize

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import DType, float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array, HostValue, TensorType
from .definitions import Definitions
from .float64_reference import Oracle
from .operators import (
    BASIC,
    BITS,
    BOUNDED,
    BYTES,
    COMPARING,
    COMPOSED,
    GATED,
    NAMES,
    NEVER_NEGATIVE,
    PRODUCTS,
    QUANTIZING,
    SHIFTED,
    SMALLEST,
    before_decisions,
    greatest_position,
    interpolates,
    is_faithful,
    is_size,
    noise_growth,
    plain_kind,
    reaches_rounding,
    rounds,
)

EXACT, FAIR, ROUGH = "exact", "fair", "rough"
#: How many times as far as rounding to nearest numbers are moved. Accumulators of half precision
#: are float32 nearly everywhere, so the formats themselves are all that makes it rough.
STRENGTH = {
    FAIR: {"float64": 2.0, "float32": 2.0, "tf32": 1.0, "float16": 1.0, "bfloat16": 1.0},
    ROUGH: {"float64": 16.0, "float32": 16.0, "tf32": 4.0, "float16": 4.0, "bfloat16": 4.0},
}
#: How far from a pixel others may be that libraries add to it and subtract again: Winograd's
#: transforms of tiles of six by six.
_TILE = 3
#: A magnitude that every number but zero has.
_ANY = 1e-300
#: A table of noise of a prime length, read from a random place on.
_PRIME = 1_000_003


@lru_cache(maxsize=1)
def _table() -> Array:
    """Return the table twice, one behind the other, so that every part of it is a slice."""
    found = np.random.default_rng(0).uniform(-1, 1, _PRIME)
    return np.concatenate([found, found])


@dataclass(frozen=True, slots=True)
class Amount:
    """By which share of themselves numbers move, in fair and in rough runs."""

    fair: float = 0.0
    rough: float = 0.0

    def __mul__(self, times: float) -> Amount:
        return Amount(self.fair * times, self.rough * times)

    def __or__(self, other: Amount) -> Amount:
        """Return the greater ones."""
        return Amount(max(self.fair, other.fair), max(self.rough, other.rough))

    @classmethod
    def of(cls, name: str) -> Amount:
        """Return that of a format, for a number that is rounded once."""
        return cls(*(STRENGTH[kind][name] * 2.0 ** -BITS[name] for kind in (FAIR, ROUGH)))


_NONE = Amount()


class Noise:
    """Random numbers between -1 and 1, as many as one wants at next to no cost; of one run.

    An even seed and the next one give the same numbers with opposite signs: of two that are nearly
    equal each is the greater one in one of both.
    """

    def __init__(self) -> None:
        self.start(EXACT, 0)

    def start(self, kind: str, seed: int) -> None:
        """Begin a run.

        Args:
            kind: `EXACT`, `FAIR` or `ROUGH`.
            seed: another one gives other noise.
        """
        self._kind = kind
        self._generator = np.random.default_rng((kind == FAIR, seed // 2))
        self._sign = -1.0 if seed % 2 else 1.0
        #: Constants of this run, which loops read more than once.
        self.constants: dict[int, Array] = {}

    @property
    def is_exact(self) -> bool:
        """Whether nothing moves in this run."""
        return self._kind == EXACT

    def share(self, amount: Amount) -> float:
        """Return by which share of themselves numbers move in this run."""
        return 0.0 if self.is_exact else getattr(amount, self._kind)

    def __call__(self, shape: tuple[int, ...]) -> Array:
        """Return random numbers."""
        size = prod(shape)
        start = int(self._generator.integers(_PRIME))
        found = _table()[start : start + min(size, _PRIME)]
        if size > _PRIME:
            found = np.resize(found, size)
        return (self._sign * found).reshape(shape)


def moved(
    noise: Noise,
    x: Array,
    like: Array | None = None,
    *,
    amount: Amount = _NONE,
    bits: int = 0,
    smallest: float = 0.0,
    floor: float = 0.0,
    radius: int = 0,
    channels: bool = False,
    coordinates: Amount = _NONE,
    rows: bool = False,
    steps: bool = True,
    negative: bool = True,
) -> Array:
    """Return numbers moved by at most a share of themselves; as they are in an exact run.

    Args:
        noise: where random numbers come from.
        x: any dtype; of what is not float64, bytes move by a step and all else stays.
        like: numbers of whose magnitude the share is taken where it is greater.
        amount: the share.
        bits: numbers of so many bits stay; whole ones where 0.
        smallest: the least magnitude that the share is taken of, where a number does not stay.
        floor: the least magnitude that the share is taken of; where there is one nothing stays.
        radius: how far away, along all axes but the first two, the greatest magnitude is looked
            for that the share is taken of; nothing stays.
        channels: whether the share is taken of the greatest magnitude along axis 1; nothing stays.
        coordinates: the share of their indices by which elements are moved towards neighbours.
        rows: whether rows along the last axis are moved as a whole, too.
        steps: whether bytes move.
        negative: whether numbers may become negative.
    """
    share = noise.share(amount)
    if not share:
        return x
    if like is not None and like.shape != x.shape:
        like = None
    if x.dtype != float64:
        return _stepped(noise, x) if steps and x.dtype in BYTES else x
    with np.errstate(all="ignore"):
        size = x if like is None else np.maximum(np.abs(x), np.abs(like))
        size = np.maximum(np.abs(size), max(floor, smallest)) if floor or smallest else size
        size = _greatest_near(np.abs(size), radius) if radius else size
        size = np.abs(size).max(1, keepdims=True) if channels and size.size else size
        step = np.multiply(size, noise(x.shape), out=np.empty(x.shape))
        if rows:
            step += size * noise((*x.shape[:-1], 1))
        step *= share
        if smallest and not floor:  # what is rounded to zero does not pass it
            np.clip(step, -np.abs(x), np.abs(x), out=step)
        if not negative:
            np.maximum(step, -x, out=step)
        if not (floor or radius or channels or coordinates != _NONE) and like is None:
            step *= ~_exact(x, bits)
        if positions := noise.share(coordinates):
            step += _slopes(x) * noise(x.shape) * positions
        step += x
    np.copyto(step, x, where=~np.isfinite(x))
    return step


def _by_steps(noise: Noise, x: Array, steps: Array) -> Array:
    """Return a result; in a noisy run what its definition gives, where that does not overflow."""
    return x if noise.is_exact else np.where(np.isfinite(steps), steps, x)


def _greatest_near(size: Array, radius: int) -> Array:
    """Return the greatest of the elements up to so far away along all axes but the first two."""
    width = 2 * radius + 1
    for axis in range(2, size.ndim):
        length = size.shape[axis]
        ends = [(radius, radius) if i == axis else (0, 0) for i in range(size.ndim)]
        found, covered = np.moveaxis(np.pad(size, ends), axis, 0), 1
        while 2 * covered <= width:
            found, covered = np.maximum(found[:-covered], found[covered:]), 2 * covered
        rest = width - covered
        size = np.moveaxis(np.maximum(found[:length], found[rest : rest + length]), 0, axis)
    return size


def _slopes(x: Array) -> Array:
    """Return how far elements are from their neighbours times their indices, over all axes."""
    found = np.zeros(x.shape)
    for axis, length in enumerate(x.shape):
        if length > 1:
            away = np.abs(np.diff(x, axis=axis))
            steep = np.maximum(np.insert(away, 0, 0, axis), np.insert(away, length - 1, 0, axis))
            shape = [length if i == axis else 1 for i in range(x.ndim)]
            found += np.arange(length, dtype=float64).reshape(shape) * steep
    return found


def _stepped(noise: Noise, x: Array) -> Array:
    """Return bytes some of which are one more or less: fixed-point weights have few bits."""
    limits = np.iinfo(x.dtype)
    steps = np.rint(noise(x.shape) * 0.75).astype(np.int16)
    return np.clip(x + steps, limits.min, limits.max).astype(x.dtype)


def _exact(x: Array, bits: int) -> Array:
    if not bits:
        return np.asarray(np.rint(x) == x)
    if bits == BITS["float32"]:
        return np.asarray(x.astype(float32) == x)
    part, _ = np.frexp(x)
    part = np.ldexp(part, bits)
    return np.asarray(np.rint(part) == part)


class Shaken:
    """A graph in float64 with noise; see `Oracle`.

    Args:
        graph: an imported graph, its shapes known or not; stays as it is.
        precision: compute precision of float32 tensors.
    """

    def __init__(self, graph: Graph, precision: str) -> None:
        self._noise = Noise()
        shake = _Shake(self._noise, precision)
        self._oracle = Oracle(shake.applied(graph), change_input=shake.input)
        finalize(self, self._oracle.close).atexit = False

    def run(
        self, inputs: Mapping[str, HostValue], kind: str = EXACT, seed: int = 0
    ) -> dict[str, HostValue]:
        """Return the results by name.

        Args:
            inputs: a value for every input.
            kind: `EXACT`, `FAIR` or `ROUGH`.
            seed: another one gives other noise.
        """
        self._noise.start(kind, seed)
        return self._oracle.run(dict(inputs))


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant, how it moves, and whether a run may read it more than once."""

    data: Array
    noise: dict[str, Any]
    is_repeated: bool


class _Shake:
    """Puts noise into a graph.

    Args:
        noise: where it comes from.
        precision: compute precision of float32 tensors.
        wide: the format of what is float64 in the graph.
    """

    def __init__(self, noise: Noise, precision: str, wide: str = "float64") -> None:
        self._noise, self._precision = noise, precision
        self._stored = "float32" if precision == "tf32" else precision
        self._formats = {"float32": self._stored, "float64": wide}
        function = CustomOperator(partial(moved, noise), lambda x, like=None, **_: x)
        self._op: Any = declare("tercet.noise", "Noise", function)
        function = CustomOperator(self._constant, self._constant_type)
        self._constant_op: Any = declare("tercet.noise", "Constant", function)
        function = CustomOperator(partial(_by_steps, noise), lambda x, steps: x)
        self._steps_op: Any = declare("tercet.noise", "Steps", function)
        self._constants: list[_Constant] = []
        self._definitions: dict[str, Definitions] = {}

    def _name(self, value: Value | None) -> str:
        """Return the format of a tensor, empty for what is not a float."""
        if value is None or not isinstance(value.type, TensorType):
            return ""
        name = NAMES.get(value.type.dtype, "")
        return self._formats.get(name, name)

    def _narrows(self, node: Node, value: Value | None = None) -> bool:
        """Whether a node multiplies in a narrower format; if a value is given, that value."""
        factors = node.inputs[:2] if plain_kind(node) in PRODUCTS else node.inputs
        multiplies = value is None or value in factors
        return self._precision != self._stored and node.op.dense and multiplies

    def input(self, data: Array) -> Array:
        """Move inputs that runners narrow; all others are what both of them read."""
        wide = data.astype(float64)
        if data.dtype != float32 or BITS[self._stored] == BITS["float32"]:
            return wide
        return moved(self._noise, wide, **_of_data(data, self._stored))

    def _constant(self, *, index: int) -> Array:
        """Return a constant of this run."""
        constant, known = self._constants[index], self._noise.constants
        if index in known:
            return known[index]
        found = moved(self._noise, constant.data.astype(float64), **constant.noise)
        if constant.is_repeated:
            known[index] = found
        return found

    def _constant_type(self, *, index: int) -> TensorType:
        return TensorType(float64, self._constants[index].data.shape)

    def applied(self, graph: Graph) -> Graph:
        """Return a copy in which noise goes into every sum and comes out of all that rounds."""
        copy = graph.clone()
        hinge = before_decisions(copy)
        for each in _with_bodies(copy):
            for node in list(each.nodes):
                if rounds(node):
                    stays = (
                        each is not copy or is_faithful(node) or hinge.intersection(node.outputs)
                    )
                    self._shake_steps(each, node)
                    self._shake_inputs(each, node)
                    self._shake_outputs(each, node, stays=bool(stays))
        for each in _with_bodies(copy):
            for value in each.constants:
                self._shake_constant(each, value, is_repeated=each is not copy)
        return copy

    def _shake_steps(self, graph: Graph, node: Node) -> None:
        """Let noisy runs compute a node of a narrow format as ONNX defines it, step by step."""
        names = {self._name(value) for value in (*node.distinct_reads, *node.outputs)}
        for name in names.intersection(("float16", "bfloat16")):
            if name not in self._definitions:
                self._definitions[name] = Definitions(partial(self._shake_definition, name))
            steps = self._definitions[name].of(node)
            if steps is None:
                continue
            found = graph.splice(node, steps, [v for v in node.inputs if v is not None])
            after = graph.nodes.index(node) + 1
            follower = graph.nodes[after] if after < len(graph.nodes) else None
            for value, made in zip(node.outputs, found, strict=True):
                chosen = graph.insert(self._steps_op(), [made, made], before=follower)
                chosen.output.type = value.type
                graph.redirect(value, chosen.output)
                graph.set_inputs(chosen, [value, made])

    def _shake_definition(self, name: str, graph: Graph, dtype: DType) -> Graph:
        """Put noise of a format into the definition of an operator that reads this dtype."""
        is_wide = dtype == float64
        inner = _Shake(self._noise, "float32" if is_wide else name, name if is_wide else "float64")
        return inner.applied(graph)

    def _shake_constant(self, graph: Graph, value: Value, *, is_repeated: bool) -> None:
        """Move a constant that passes may fold into others, or that a narrower format rounds.

        Single numbers are not folded, and limits are only compared with.
        """
        data, name = value.data, self._name(value)
        if data is None or name in ("", "float64") or graph.is_output(value):
            return
        coarse = BITS[self._stored] < BITS["float32"] or data.dtype == float64
        if is_size(value) or not (coarse or reaches_rounding(value)):
            return
        if data.dtype == float32 and any(self._narrows(node, value) for node in value.consumers):
            name = self._precision
        noise = _of_data(data, name)
        if not noise or _exact(data.astype(float64), noise["bits"]).all():
            return
        first = graph.in_order(value.consumers)[0]
        node = graph.insert(self._constant_op(index=len(self._constants)), [], before=first)
        self._constants.append(_Constant(data, noise, is_repeated))
        node.output.type = TensorType(data.dtype, data.shape)
        graph.redirect(value, node.output)
        graph.drop(value)

    def _shake_inputs(self, graph: Graph, node: Node) -> None:
        quantizing = node.kind in QUANTIZING
        growth = noise_growth(node)
        if node.kind in BASIC or plain_kind(node) in COMPARING:
            return
        inputs = list(node.inputs)
        own = _of_inputs(node)
        for i, value in enumerate(inputs):
            name = self._name(value)
            coarse = name not in ("float32", "float64") and not quantizing
            composed = node.kind in COMPOSED
            if value is None or value.data is not None or not name or (coarse and not composed):
                continue
            amount, reach = Amount.of(name), 0 if i else greatest_position(node)
            amount *= 1.0 if coarse else growth  # accumulators are float32
            special = {} if quantizing or reach else own.get(i, {})
            chosen = {"floor": _ANY, **special} if quantizing or reach or coarse else special
            if name == "float32" and self._narrows(node, value):
                narrow = self._precision
                amount, chosen = amount | Amount.of(narrow), {"bits": BITS[narrow], **chosen}
            op = self._op(amount=amount | Amount.of("float32") * reach, **chosen)
            noisy = graph.insert(op, [value], before=node).output
            noisy.type, inputs[i] = value.type, noisy
        graph.set_inputs(node, inputs)

    def _shake_outputs(self, graph: Graph, node: Node, *, stays: bool) -> None:
        """Move results; those that fit into the format only where they do not have to stay."""
        after = graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        growth = noise_growth(node)
        floor = 1.0 / growth if plain_kind(node) in BOUNDED else 0.0
        narrow = node.op.domain == "ai.onnx.ml" or node.kind == "DynamicQuantizeLinear"
        for value in node.outputs:
            is_known = value.type is not None  # of a custom operator's result only a run knows
            fixed_point = interpolates(node) and _is_of_bytes(value)
            name = "float32" if fixed_point else self._name(value)
            name = name if is_known else self._precision
            if name == "float32" and self._narrows(node) and plain_kind(node) not in PRODUCTS:
                name = self._precision  # of what it multiplies on its way
            if not name:
                continue
            coarse = name not in ("float32", "float64")
            amount = Amount.of(name) * (1.0 if coarse else growth)
            amount = Amount(rough=amount.rough) if fixed_point else amount
            bits = 0 if narrow else BITS[name]
            coordinates = Amount.of("float32") if interpolates(node) else _NONE
            if not (coarse or stays):
                floor = max(floor, _ANY)
            chosen = {"bits": bits, "smallest": SMALLEST.get(name, 0.0), "floor": floor}
            chosen["negative"] = plain_kind(node) not in NEVER_NEGATIVE
            op = self._op(amount=amount, coordinates=coordinates, steps=is_known, **chosen)
            gated = node.kind in GATED and node.inputs[0]
            reads = [value, node.inputs[0]] if gated else [value]
            noisy = graph.insert(op, reads, before=follower)
            noisy.output.type = value.type
            graph.redirect(value, noisy.output)
            graph.set_inputs(noisy, reads)


def _is_of_bytes(value: Value) -> bool:
    """Whether its elements are bytes, which libraries interpolate with weights of few bits."""
    return isinstance(value.type, TensorType) and value.type.dtype in BYTES


def _of_data(data: Array, name: str) -> dict[str, Any]:
    """Return the noise of a constant or an input in a format; empty where it has none."""
    if data.size > 1 and any(data.strides):
        return {"amount": Amount.of(name), "bits": 0}
    if BITS[name] == BITS["float32"]:
        return {}
    return {"amount": Amount.of(name), "bits": BITS[name]}


def _of_inputs(node: Node) -> dict[int, dict[str, Any]]:
    """Return what is special about the noise of a node's inputs, by position; see `moved`."""
    if node.kind == "Conv" and set(getattr(node.op, "strides", ()) or (1,)) == {1}:
        return {0: {"radius": _TILE}}
    if plain_kind(node) in SHIFTED:  # a sum of whole numbers is exact, that of the products is not
        return {0: {"floor": _ANY}}
    if node.kind == "LRN":  # libraries add the next channel to a sum and subtract the last one
        return {0: {"channels": True}}
    # Keys are only seen in scores, which have a rounding of their own.
    return {1: {"rows": True}} if node.kind in COMPOSED else {}


def _with_bodies(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.walk():
        yield from node.op.graphs()
