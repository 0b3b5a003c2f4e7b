"""Models with control flow whose shapes never change, which a device can decide on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.parser import parse_model

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


@dataclass(frozen=True)
class Flow:
    """A model, and inputs that take it down different ways."""

    name: str
    text: str
    feeds: Sequence[Feeds]

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> onnx.ModelProto:
        return parse_model(HEADER + self.text)


def vector(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-2, 2, size).astype(np.float32)


def _condition(*values: float) -> list[Feeds]:
    return [{"x": np.full(4, value, np.float32) * vector(4, i)} for i, value in enumerate(values)]


#: The sign of the sum decides; branches give what they capture, a constant, one value twice.
BRANCHES = """
g (float[4] x) => (float[4] y, float[4] same, float[4] fixed, float[4] twice) {
  axes = Constant <value = int64[1] {0}> ()
  zero = Constant <value_float = 0.0> ()
  two = Constant <value_float = 2.0> ()
  sum = ReduceSum <keepdims = 0> (x, axes)
  up = Greater (sum, zero)
  doubled = Mul (x, two)
  y, same, fixed, twice = If (up) <
    then_branch = then () => (a, doubled, c, a2) {
      s = Sin (doubled)  a = Add (s, x)  a2 = Identity (a)
      c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
    },
    else_branch = other () => (b, x, d, e) {
      b = Relu (x)  d = Neg (doubled)  e = Exp (b)
    }
  >
}
"""

#: The count, the condition, or neither (zero rounds) ends it; values change places every round.
COUNTED = """
g (int64 m, bool go, float[3] a, float[3] b, float limit)
    => (float[3] p, float[3] q, float[3] kept, int64 n) {
  start = Constant <value = int64 {0}> ()
  axes = Constant <value = int64[1] {0}> ()
  p, q, kept, n = Loop (m, go, a, b, a, start) <
    body = b (int64 i, bool going, float[3] u, float[3] v, float[3] w, int64 c)
        => (bool more, float[3] v, float[3] u2, float[3] w, int64 c2) {
      f = CastLike (i, limit)
      sum = Add (u, w)  u2 = Add (sum, f)
      c2 = Add (c, i)
      size = ReduceMax <keepdims = 0> (u2, axes)
      more = Less (size, limit)
    }
  >
}
"""


def _counted(m: int, go: bool, limit: float) -> Feeds:
    return {
        "m": np.array(m),
        "go": np.array(go),
        "a": vector(3, 1),
        "b": vector(3, 2),
        "limit": np.array(limit, np.float32),
    }


#: The condition is what a round before has found out; values of all kinds are handed on.
DELAYED = """
g (float[4] x, float[4] y, bool go) => (float[4] a, float[8] b, bool c, int64 d) {
  zero = Constant <value_float = 0.0> ()
  start = Constant <value = int64 {0}> ()
  both = Concat <axis = 0> (x, y)
  a, b, c, d = Loop (, go, x, both, go, start) <
    body = b (int64 i, bool going, float[4] u, float[8] v, bool more, int64 n)
        => (bool more, float[4] u2, float[8] v2, bool later, int64 i) {
      u2, rest = Split <num_outputs = 2> (v)
      w = Sub (rest, u)
      v2 = Concat <axis = 0> (w, u)
      size = ReduceMax <keepdims = 0> (w)
      later = Greater (size, zero)
    }
  >
}
"""

#: How often it runs is known, so what it stacks has a known size; the carried value is not read.
STACKED = """
g (float[2, 3] x, float[3] w) => (float[5, 2, 3] all, float[5] sums, bool[5] flags) {
  m = Constant <value = int64 {5}> ()
  yes = Constant <value = bool {1}> ()
  zero = Constant <value_float = 0.0> ()
  last, all, sums, flags = Loop (m, yes, x) <
    body = b (int64 i, bool going, float[2, 3] v)
        => (bool more, float[2, 3] next, float[2, 3] seen, float s, bool flag) {
      more = Identity (going)
      next = Mul (v, w)
      seen = Identity (v)
      s = ReduceSum <keepdims = 0> (next)
      flag = Greater (s, zero)
    }
  >
}
"""

#: Both directions, several axes, and a state that is one of its results; of any sizes.
CUMULATIVE = """
g (float[k] s, float[t, k] xs, float[k, t] ys) => (last, sums, products) {
  last, sums, products = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1],
      scan_input_directions = [0, 1], scan_output_axes = [0, 1], scan_output_directions = [0, 1],
      body = b (state, x, y) => (next, out, product) {
    next = Add (state, x)
    out = Identity (next)
    product = Mul (x, y)
  }> (s, xs, ys)
}
"""

#: The same of fixed sizes.
SCANNED = CUMULATIVE.replace("[t, k]", "[4, 3]").replace("[k, t]", "[3, 4]").replace("[k]", "[3]")

#: Rows that are not zero, through a layer whose plan needs to know how many there are.
SELECTED = """
g (float[n, 4] x, float[4, 2] w) => (y, count) {
  axes = Constant <value = int64[1] {1}> ()
  total = ReduceSum <keepdims = 0> (x, axes)
  found = NonZero (total)
  zero = Constant <value = int64[1] {0}> ()
  rows = Squeeze (found, zero)
  chosen = Gather (x, rows)
  product = MatMul (chosen, w)
  y = Relu (product)
  shape = Shape (y)
  count = Gather (shape, zero)
}
"""

#: Products of matrices, whose kernels on a GPU begin before the ones in front of them have ended.
MULTIPLIED = """
g (int64 m, float[1, 4] x, float limit) => (float[1, 4] y, float[1, 4] z) {
  w = Constant <value = float[4, 4] {
    0.5, -0.25, 0.0, 1.0, 0.75, 0.5, -1.0, 0.0, 0.0, 0.25, 0.5, -0.5, 1.0, 0.0, 0.25, 0.5}> ()
  y = Loop (m, , x) <
    body = b (int64 i, bool going, float[1, 4] v) => (bool more, float[1, 4] next) {
      first = MatMul (v, w)
      second = MatMul (first, w)
      next = Add (second, x)
      size = ReduceMax <keepdims = 0> (next)
      more = Less (size, limit)
    }
  >
  sum = ReduceSum <keepdims = 0> (y)
  up = Greater (sum, limit)
  z = If (up) <
    then_branch = then () => (p) { p0 = MatMul (y, w)  p = MatMul (p0, w) },
    else_branch = other () => (q) { q0 = MatMul (x, w)  q = Relu (q0) }
  >
}
"""

#: An If in a Loop in an If; NaN is not less than anything, so it ends the loop.
NESTED = """
g (bool c, int64 m, float[4] x) => (float[4] y, int64 n) {
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  two = Constant <value_float = 2.0> ()
  big = Constant <value_float = 100.0> ()
  axes = Constant <value = int64[1] {0}> ()
  y, n = If (c) <
    then_branch = then () => (r, k) {
      r, k = Loop (m, , x, zero) <
        body = b (int64 i, bool going, float[4] v, int64 t) => (bool more, float[4] next, int64 u) {
          u = Add (t, one)
          rest = Mod (i, one_more)
          odd = Equal (rest, one)
          next = If (odd) <
            then_branch = up () => (p) { d = Mul (v, two)  p = Add (d, x) },
            else_branch = down () => (q) { q = Sub (v, x) }
          >
          size = ReduceMax <keepdims = 0> (next, axes)
          more = Less (size, big)
        }
      >
    },
    else_branch = other () => (s, m) { s = Neg (x) }
  >
}
""".replace("two = Constant", "one_more = Constant <value = int64 {2}> ()\n  two = Constant")


def _nested(c: bool, m: int, scale: float) -> Feeds:
    return {"c": np.array(c), "m": np.array(m), "x": vector(4, 3) * np.float32(scale)}


FLOWS = (
    Flow("branches", BRANCHES, _condition(1, -1, 3)),
    Flow(
        "counted",
        COUNTED,
        [
            _counted(0, True, 9.0),
            _counted(7, False, 9.0),
            _counted(5, True, 1e9),
            _counted(50, True, 4.0),
            _counted(1, True, 9.0),
            _counted(-3, True, 9.0),
        ],
    ),
    Flow(
        "delayed",
        DELAYED,
        [
            {"x": vector(4, 7) * scale, "y": vector(4, 8), "go": np.array(go)}
            for go, scale in ((True, np.float32(1)), (False, np.float32(1)), (True, np.float32(3)))
        ],
    ),
    Flow("stacked", STACKED, [{"x": vector(6).reshape(2, 3), "w": vector(3, 5)}]),
    Flow(
        "scanned",
        SCANNED,
        [{"s": vector(3), "xs": vector(12, 1).reshape(4, 3), "ys": vector(12, 2).reshape(3, 4)}],
    ),
    Flow(
        "multiplied",
        MULTIPLIED,
        [
            {"m": np.array(m), "x": vector(4, 9)[None], "limit": np.array(limit, np.float32)}
            for m, limit in ((0, 1.0), (3, 1e9), (40, 2.0), (2, -1e9))
        ],
    ),
    Flow(
        "nested",
        NESTED,
        [
            _nested(True, 6, 1.0),
            _nested(False, 6, 1.0),
            _nested(True, 40, 30.0),
            _nested(True, 9, float("nan")),
            _nested(True, 0, 1.0),
        ],
    ),
)


# ── at random ────────────────────────────────────────────────────────────────────────────────────


class _Writer:
    """Writes random nodes over vectors of four floats; every name is used once."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def pick(self, known: Sequence[str]) -> str:
        return known[int(self.rng.integers(len(known)))]

    def flag(self, known: Sequence[str]) -> tuple[list[str], str]:
        """Return nodes that compare two sums, and the name of the answer."""
        a, b, c = self.name(), self.name(), self.name()
        return [
            f"{a} = ReduceMax <keepdims = 0> ({self.pick(known)})",
            f"{b} = ReduceMax <keepdims = 0> ({self.pick(known)})",
            f"{c} = Less ({a}, {b})",
        ], c

    def nodes(self, known: list[str], depth: int) -> list[str]:
        """Return some nodes; `known` gets the names of their results."""
        lines: list[str] = []
        for _ in range(int(self.rng.integers(1, 4))):
            kinds = ["sum", "wave", "join", *(("if", "loop", "if", "loop") if depth else ())]
            kind = self.rng.choice(kinds)
            if kind == "sum":
                name = self.name()
                operator = self.rng.choice(["Add", "Mul", "Max", "Sub"])
                lines.append(f"{name} = {operator} ({self.pick(known)}, {self.pick(known)})")
                known.append(name)
            elif kind == "wave":
                name = self.name()
                operator = self.rng.choice(["Sin", "Relu", "Tanh", "Identity"])
                lines.append(f"{name} = {operator} ({self.pick(known)})")
                known.append(name)
            elif kind == "join":
                both, halves = self.name(), [self.name(), self.name()]
                lines.append(f"{both} = Concat <axis = 0> ({self.pick(known)}, {self.pick(known)})")
                lines.append(f"{', '.join(halves)} = Split <num_outputs = 2> ({both})")
                known += halves
            else:
                lines += (self.branches if kind == "if" else self.loop)(known, depth - 1)
        return lines

    def results(self, known: Sequence[str], count: int) -> tuple[list[str], list[str]]:
        names = [self.name() for _ in range(count)]
        return [f"{name} = Tanh ({self.pick(known)})" for name in names], names

    def branches(self, known: list[str], depth: int) -> list[str]:
        lines, flag = self.flag(known)
        count = int(self.rng.integers(1, 4))
        bodies: list[str] = []
        for branch in ("then_branch", "else_branch"):
            inner = list(known)
            body = self.nodes(inner, depth)
            if self.rng.integers(2):
                more, names = self.results(inner, count)
                body += more
            else:  # what is captured, or the same value several times
                own = [n for n in inner if n not in known] or self.results(inner, 1)[1]
                body += [] if own[0] in inner else [f"{own[0]} = Neg ({self.pick(inner)})"]
                names = [self.pick(own) for _ in range(count)]
                names = [self.fresh_copy(body, n) if names.count(n) > 1 else n for n in names]
            text = "\n".join(body)
            bodies.append(f"{branch} = {self.name()} () => ({', '.join(names)}) {{\n{text}\n}}")
        made = [self.name() for _ in range(count)]
        known += made
        return [*lines, f"{', '.join(made)} = If ({flag}) <\n{', '.join(bodies)}\n>"]

    def fresh_copy(self, body: list[str], name: str) -> str:
        copy = self.name()
        body.append(f"{copy} = Identity ({name})")
        return copy

    def loop(self, known: list[str], depth: int) -> list[str]:
        carried = int(self.rng.integers(1, 4))
        olds = [self.name() for _ in range(carried)]
        number, going, more = self.name(), self.name(), self.name()
        inner = [*known, *olds]
        body = [f"{number}f = CastLike ({number}, {self.pick(inner)})"]
        body.append(f"{number}x = Add ({self.pick(olds)}, {number}f)")
        inner.append(f"{number}x")
        body += self.nodes(inner, depth)
        news: list[str] = []
        for _ in range(carried):
            new = self.pick(inner)
            news.append(self.fresh_copy(body, new))
        lines: list[str] = []
        stacks = bool(self.rng.integers(2))
        first = delayed = flag = ""
        if stacks:
            body.append(f"{more} = Identity ({going})")
            m = self.name()
            lines.append(f"{m} = Constant <value = int64 {{{int(self.rng.integers(0, 5))}}}> ()")
        else:
            flags, flag = self.flag(inner)
            body += flags
            m = "m"
            if self.rng.integers(2):
                flags, first = self.flag(known)
                lines += flags
            if first and self.rng.integers(2):  # what a round finds out counts for the next but one
                delayed = self.name()
                body.append(f"{more} = Identity ({delayed})")
            else:
                body.append(f"{more} = Identity ({flag})")
        rows = [self.fresh_copy(body, self.pick(inner))] if stacks else []
        starts = [self.pick(known) for _ in olds]
        made = [self.name() for _ in range(carried + bool(delayed) + len(rows))]
        text = "\n".join(body)
        formals = [f"float[4] {name}" for name in olds]
        if delayed:
            formals.append(f"bool {delayed}")
            starts.append(first)
            news.append(flag)
        gives = ", ".join([more, *news, *rows])
        lines.append(
            f"{', '.join(made)} = Loop ({m}, {first}, {', '.join(starts)}) <body = {self.name()} "
            f"(int64 {number}, bool {going}, {', '.join(formals)}) => ({gives}) {{\n{text}\n}}>"
        )
        known += made[:carried]
        if rows:
            flat = self.name()
            lines.append(f"{flat} = ReduceSum <keepdims = 0> ({made[-1]}, axes)")
            known.append(flat)
        return lines


def random_flow(seed: int) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Return a model of nested branches and loops, and inputs for it."""
    writer = _Writer(seed)
    known = ["x", "y"]
    lines = ["axes = Constant <value = int64[1] {0}> ()"]
    while not any("If (" in line or "Loop (" in line for line in lines):
        lines += writer.nodes(known, 2)
    more, names = writer.results(known[-3:], 3)
    text = "\n".join([*lines, *more])
    gives = ", ".join(f"float[4] {name}" for name in names)
    source = f"g (int64 m, float[4] x, float[4] y) => ({gives}) {{\n{text}\n}}"
    rng = np.random.default_rng(seed)
    feeds = [
        {"m": np.array(m), "x": _floats(rng), "y": _floats(rng)} for m in (0, 1, 2, 5)
    ]  # fmt: skip
    return parse_model(HEADER + source), feeds


def _floats(rng: np.random.Generator) -> Array:
    return rng.uniform(-2, 2, 4).astype(np.float32)
