"""The same model in float64, every result moved as rounding would move it, or far more.

What a runtime rounds is moved here by chance: every tensor that a node computes by a random share
of its unit in the last place, and so is what goes into a sum, the further the more terms it has.
TF32 is the format of factors: what is multiplied is read in it, all else is float32. What is exact
stays: whole numbers and all that the dtype can hold as they are, so counts, sizes, indices and
masks do not flip. A quotient, a mean or a function stays only where a decision hinges on it, as
libraries may give a neighbour of what is exact. Nor does rounding touch what only moves, selects or
compares numbers.

*Fair* runs move numbers about as far as a runtime does, *rough* ones far further: what does not
move even there is not rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array, HostValue, TensorType
from .float64_reference import Oracle
from .operators import (
    BASIC,
    BITS,
    BOUNDED,
    BYTES,
    COMPARING,
    GATED,
    NAMES,
    NEVER_NEGATIVE,
    PRODUCTS,
    QUANTIZING,
    SMALLEST,
    before_decisions,
    greatest_position,
    interpolates,
    is_faithful,
    noise_growth,
    plain_kind,
    reaches_rounding,
    rounds,
)

ROUGH, FAIR = "rough", "fair"
#: How many times as far as rounding to nearest numbers are moved. Accumulators of half precision
#: are float32 nearly everywhere, so the formats themselves are all that makes it rough.
STRENGTH = {
    ROUGH: {"float64": 16.0, "float32": 16.0, "tf32": 4.0, "float16": 4.0, "bfloat16": 4.0},
    FAIR: {"float64": 2.0, "float32": 2.0, "tf32": 1.0, "float16": 1.0, "bfloat16": 1.0},
}
#: How far from a pixel others may be that libraries add to it and subtract again: Winograd's
#: transforms of tiles of six by six.
_TILE = 3
#: A magnitude that every number but zero has.
_ANY = 1e-300
#: A table of noise of a prime length, read from a random place on.
_PRIME = 1_000_003


@lru_cache(maxsize=4)
def _drawn(seed: int) -> tuple[Array, Any]:
    """Return a table of noise, and the state of the generator that drew it."""
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, _PRIME), generator.bit_generator.state


class _Noise:
    """Random numbers between -1 and 1, as many as one wants at next to no cost.

    An even seed and the next one give the same numbers with opposite signs: of two that are nearly
    equal each is the greater one in one of both.
    """

    def __init__(self, seed: int) -> None:
        table, state = _drawn(seed // 2)
        self._generator = np.random.default_rng()
        self._generator.bit_generator.state = state
        self._table, self._sign = table, -1.0 if seed % 2 else 1.0

    def __call__(self, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        start = int(self._generator.integers(_PRIME))
        if start + size <= _PRIME:
            found = self._table[start : start + size]
        else:
            found = np.resize(np.roll(self._table, -start), size)
        return (self._sign * found).reshape(shape)


def moved(
    noise: _Noise,
    x: Array,
    like: Array | None = None,
    *,
    amount: float = 0.0,
    bits: int = 0,
    smallest: float = 0.0,
    floor: float = 0.0,
    radius: int = 0,
    channels: bool = False,
    coordinates: float = 0.0,
    rows: bool = False,
    steps: bool = True,
    negative: bool = True,
) -> Array:
    """Return numbers moved by at most a share of themselves.

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
    if like is not None and like.shape != x.shape:
        like = None
    if x.dtype != float64:
        return _stepped(noise, x) if amount and steps and x.dtype in BYTES else x
    with np.errstate(all="ignore"):
        size = x if like is None else np.maximum(np.abs(x), np.abs(like))
        size = np.maximum(np.abs(size), max(floor, smallest)) if floor or smallest else size
        size = _greatest_near(np.abs(size), radius) if radius else size
        size = np.abs(size).max(1, keepdims=True) if channels and size.size else size
        step = np.multiply(size, noise(x.shape), out=np.empty(x.shape))
        if rows:
            step += size * noise((*x.shape[:-1], 1))
        step *= amount
        if smallest and not floor:  # what is rounded to zero does not pass it
            np.clip(step, -np.abs(x), np.abs(x), out=step)
        if not negative:
            np.maximum(step, -x, out=step)
        if not (floor or radius or channels or coordinates) and like is None:
            step *= ~_exact(x, bits)
        if coordinates:
            step += _slopes(x) * noise(x.shape) * coordinates
        step += x
    np.copyto(step, x, where=~np.isfinite(x))
    return step


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


def _stepped(noise: _Noise, x: Array) -> Array:
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
        kind: `ROUGH` or `FAIR`.
        seed: another one gives other noise.
    """

    def __init__(self, graph: Graph, precision: str, kind: str, seed: int) -> None:
        noise = _Noise(seed + (1000 if kind == FAIR else 0))
        self._shake = _Shake(noise, precision, STRENGTH[kind])
        self._graph = graph

    def run(self, inputs: Mapping[str, HostValue]) -> dict[str, HostValue]:
        """Return the results by name."""
        shake = self._shake
        oracle = Oracle(shake.applied(self._graph), shake.constant, shake.input)
        try:
            return oracle.run(dict(inputs))
        finally:
            oracle.close()


class _Shake:
    """Puts noise into a graph."""

    def __init__(self, noise: _Noise, precision: str, strength: Mapping[str, float]) -> None:
        self._noise, self._precision, self._strength = noise, precision, strength
        self._stored = "float32" if precision == "tf32" else precision
        function = CustomOperator(partial(moved, noise), lambda x, like=None, **_: x)
        self._op: Any = declare("tercet.noise", "Noise", function)

    def _name(self, value: Value | None) -> str:
        """Return the format of a tensor, empty for what is not a float."""
        if value is None or not isinstance(value.type, TensorType):
            return ""
        name = NAMES.get(value.type.dtype, "")
        return self._stored if name == "float32" else name

    def _narrows(self, node: Node, value: Value | None = None) -> bool:
        """Whether a node multiplies in a narrower format; if a value is given, that value."""
        factors = node.inputs[:2] if plain_kind(node) in PRODUCTS else node.inputs
        multiplies = value is None or value in factors
        return self._precision != self._stored and node.op.dense and multiplies

    def _fixed_point(self, node: Node, value: Value) -> str:
        """Return whether bytes are interpolated, which libraries do with weights of few bits."""
        type_ = value.type
        bytes_ = isinstance(type_, TensorType) and type_.dtype in BYTES
        is_rough = self._strength is STRENGTH[ROUGH]
        return "float32" if is_rough and bytes_ and interpolates(node) else ""

    def _amount(self, name: str) -> float:
        return self._strength[name] * 2.0 ** -BITS[name]

    def _is_rounded(self, value: Value) -> bool:
        """Whether a runner rounds a tensor, or anything that it computes of it."""
        coarse = BITS[self._stored] < BITS["float32"]
        return coarse or reaches_rounding(value)

    def constant(self, value: Value) -> Array:
        """Move constants that passes may fold into others, or that a narrower format rounds.

        Single numbers are not folded, and limits are only compared with.
        """
        assert value.data is not None
        if not self._is_rounded(value):
            return value.data.astype(float64)
        narrows = any(self._narrows(node, value) for node in value.consumers)
        return self._moved(value.data, self._precision if narrows else self._stored)

    def input(self, data: Array) -> Array:
        """Move inputs that runners narrow; all others are what both of them read."""
        coarser = data.dtype == float32 and BITS[self._stored] < BITS["float32"]
        return self._moved(data, self._stored) if coarser else data.astype(float64)

    def _moved(self, data: Array, precision: str) -> Array:
        wide = data.astype(float64)
        name = NAMES[data.dtype]
        name = precision if name == "float32" else name
        if data.size > 1 and any(data.strides):
            return moved(self._noise, wide, amount=self._amount(name))
        if BITS[name] == BITS["float32"]:
            return wide
        return moved(self._noise, wide, amount=self._amount(name), bits=BITS[name])

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
                    self._shake_inputs(each, node)
                    self._shake_outputs(each, node, stays=bool(stays))
        return copy

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
            if value is None or value.data is not None or not name or coarse:
                continue
            amount, reach = growth * self._amount(name), 0 if i else greatest_position(node)
            chosen = {"floor": _ANY} if quantizing or reach else own.get(i, {})
            if name == "float32" and self._narrows(node, value):
                narrow = self._precision
                amount, chosen = max(amount, self._amount(narrow)), {"bits": BITS[narrow], **chosen}
            op = self._op(amount=max(amount, reach * self._amount("float32")), **chosen)
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
            name = self._name(value) or self._fixed_point(node, value)
            name = name if is_known else self._precision
            if name == "float32" and self._narrows(node) and plain_kind(node) not in PRODUCTS:
                name = self._precision  # of what it multiplies on its way
            if not name:
                continue
            coarse = name not in ("float32", "float64")
            amount = self._amount(name) * (1.0 if coarse else growth)
            bits = 0 if narrow else BITS[name]
            coordinates = self._amount("float32") if interpolates(node) else 0.0
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


def _of_inputs(node: Node) -> dict[int, dict[str, Any]]:
    """Return what is special about the noise of a node's inputs, by position; see `moved`."""
    if node.kind == "Conv" and set(getattr(node.op, "strides", ()) or (1,)) == {1}:
        return {0: {"radius": _TILE}}
    if node.kind == "LRN":  # libraries add the next channel to a sum and subtract the last one
        return {0: {"channels": True}}
    # Keys are only seen in scores, which have a rounding of their own.
    return {1: {"rows": True}} if node.kind in ("Attention", "FlexAttention") else {}


def _with_bodies(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.walk():
        yield from node.op.graphs()
