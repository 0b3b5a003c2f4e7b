"""Matching of RE2 patterns against whole texts, in linear time.

The pattern becomes an automaton whose reachable state sets are built lazily and cached; so no
pattern and no text is slow, unlike with Python's `re`, whose syntax and classes also differ; it
only runs patterns that it matches alike (`python_pattern`).
Captures and greediness do not affect whether a whole text matches. Source:
https://github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ....runtime.base.record import record
from .parser import Alternatives, Assertion, Characters, RepeatNode, Sequence, Tree, parse
from .python_pattern import python_pattern

MAX_STATES = 100_000
MAX_REMEMBERED = 10_000

#: The neighbourhood of a position, as assertions distinguish it.
_EDGE, _NEWLINE, _WORD, _OTHER = range(4)

States = frozenset[int]


@lru_cache(64)
def compile_pattern(pattern: str) -> Automaton:
    """Return the automaton of a pattern; raises ValueError for one that RE2 rejects."""
    return Automaton(parse(pattern))


def _kind(char: str) -> int:
    if char == "\n":
        return _NEWLINE
    return _WORD if char == "_" or (char.isascii() and char.isalnum()) else _OTHER


def _holds(assertion: str, before: int, after: int) -> bool:
    """Return whether an assertion holds between two kinds of neighbours."""
    match assertion:
        case "A":
            return before == _EDGE
        case "z":
            return after == _EDGE
        case "^":
            return before in (_EDGE, _NEWLINE)
        case "$":
            return after in (_EDGE, _NEWLINE)
        case _:
            return ((before == _WORD) != (after == _WORD)) == (assertion == "b")


@record
class _Read:
    """A state that consumes a character of some ranges."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    target: int

    def takes(self, char: str) -> bool:
        """Return whether the character is in the ranges."""
        code = ord(char)
        at = bisect_right(self.starts, code) - 1
        return at >= 0 and code <= self.ends[at]


@record
class _Check:
    """A state that consumes nothing and continues if an assertion holds."""

    assertion: str
    target: int


class Automaton:
    """The automaton; state 0 accepts. A tuple is a state that leads to any of several."""

    def __init__(self, tree: Tree) -> None:
        self._states: list[_Read | _Check | tuple[int, ...]] = [()]
        self._start: States = frozenset((self._build(tree, 0),))
        self._reached: dict[tuple[States, int, int], States] = {}
        self._steps: dict[tuple[States, str], States] = {}
        self._python = python_pattern(tree)

    def matches(self, text: str) -> bool:
        """Return whether all of `text` matches."""
        if self._python is not None:
            return self._python.fullmatch(text) is not None
        states, before = self._start, _EDGE
        for char in text:
            after = _kind(char)
            states = self._step(self._reachable(states, before, after), char)
            if not states:
                return False
            before = after
        return 0 in self._reachable(states, before, _EDGE)

    def found(self, text: str) -> list[str]:
        """Return the texts of all matches; see `spans`."""
        if self._python is not None:
            return self._python.findall(text)
        return [text[first:end] for first, end in self.spans(text)]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where matches start and end, from left to right, each the longest with its start.

        The next one starts where the last one ended, or a character later if that is empty.
        Assertions see the whole text. Each position is tried in turn, so the time is linear only if
        failing matches are short.
        """
        if self._python is not None:
            yield from (match.span() for match in self._python.finditer(text))
            return
        kinds = [_EDGE, *map(_kind, text), _EDGE]
        first = 0
        while first <= len(text):
            end = self._longest(text, kinds, first)
            if end >= 0:
                yield first, end
            first = max(end, first + 1)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def _longest(self, text: str, kinds: list[int], first: int) -> int:
        """Return the end of the longest match from a start; -1 if there is none."""
        states, end = self._start, -1
        for at in range(first, len(text) + 1):
            reached = self._reachable(states, kinds[at], kinds[at + 1])
            if 0 in reached:
                end = at
            if at == len(text) or not (states := self._step(reached, text[at])):
                break
        return end

    def _reachable(self, states: States, before: int, after: int) -> States:
        """Return all states reachable from `states` without consuming a character."""
        key = (states, before, after)
        if key in self._reached:
            return self._reached[key]
        found, waiting = set(states), list(states)
        while waiting:
            state = self._states[waiting.pop()]
            targets: Iterable[int] = ()
            if isinstance(state, tuple):
                targets = state
            elif isinstance(state, _Check) and _holds(state.assertion, before, after):
                targets = (state.target,)
            new = [target for target in targets if target not in found]
            found.update(new)
            waiting += new
        if len(self._reached) >= MAX_REMEMBERED:
            self._reached.clear()
        kept = frozenset(i for i in found if i == 0 or isinstance(self._states[i], _Read))
        return self._reached.setdefault(key, kept)

    def _step(self, states: States, char: str) -> States:
        key = (states, char)
        if key in self._steps:
            return self._steps[key]
        if len(self._steps) >= MAX_REMEMBERED:
            self._steps.clear()
        reading = (self._states[i] for i in states)
        targets = (s.target for s in reading if isinstance(s, _Read) and s.takes(char))
        return self._steps.setdefault(key, frozenset(targets))

    # ── building ─────────────────────────────────────────────────────────────────────────────

    def _add(self, state: _Read | _Check | tuple[int, ...]) -> int:
        if len(self._states) >= MAX_STATES:
            raise ValueError(f"the pattern has more than {MAX_STATES} states")
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, tree: Tree, target: int) -> int:
        """Add the states of a tree that lead to `target`; return the first of them."""
        match tree:
            case Characters(ranges):
                starts, ends = tuple(a for a, _ in ranges), tuple(b for _, b in ranges)
                return self._add(_Read(starts, ends, target))
            case Assertion(kind):
                return self._add(_Check(kind, target))
            case Alternatives(parts):
                return self._add(tuple(self._build(part, target) for part in parts))
            case Sequence(parts):
                for part in reversed(parts):
                    target = self._build(part, target)
                return target
            case RepeatNode():
                return self._repeat(tree, target)

    def _repeat(self, tree: RepeatNode, target: int) -> int:
        if tree.maximum is None:
            loop = self._add(())
            self._states[loop] = (self._build(tree.part, loop), target)
            first = loop
        else:
            first = target
            for _ in range(tree.maximum - tree.minimum):
                first = self._add((self._build(tree.part, first), target))
        for _ in range(tree.minimum):
            first = self._build(tree.part, first)
        return first
