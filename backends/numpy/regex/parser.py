"""Parser of RE2 syntax: from text to tree."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_letters, digits, hexdigits, octdigits

from ....runtime.base.record import record
from .char_classes import (
    LAST,
    PERL,
    POSIX,
    Ranges,
    categories,
    complement,
    in_every_case,
    ranges_of,
    union,
)

MAX_REPEAT = 1000
MAX_DEPTH = 100

_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


@record
class Characters:
    """One character of sorted, disjoint ranges of code points."""

    ranges: Ranges


@record
class Assertion:
    """An empty match between two characters for which `kind` (one of ``A z ^ $ b B``) holds."""

    kind: str


@record
class Sequence:
    """A concatenation."""

    parts: tuple[Tree, ...]


@record
class Alternatives:
    """An alternation."""

    parts: tuple[Tree, ...]


@record
class RepeatNode:
    """Between `minimum` and `maximum` repetitions; None for any number."""

    part: Tree
    minimum: int
    maximum: int | None


Tree = Characters | Assertion | Sequence | Alternatives | RepeatNode


def parse(pattern: str) -> Tree:
    """Return the tree of a pattern; raises ValueError if RE2 rejects it."""
    return _RegexParser(pattern).whole()


def _times(tree: Tree) -> int:
    """Return the product of nested repetition counts."""
    match tree:
        case RepeatNode(part, minimum, maximum):
            return max(1, minimum, maximum or 0) * _times(part)
        case Sequence(parts) | Alternatives(parts):
            return max(map(_times, parts), default=1)
        case _:
            return 1


@record
class _Flags:
    """Ignore case, multi-line, dot matches newline, ungreedy."""

    i: bool = False
    m: bool = False
    s: bool = False
    U: bool = False  # RE2's letter


class _RegexParser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._flags = _Flags()
        self._depth = 0

    def whole(self) -> Tree:
        """Return the tree of the whole pattern."""
        tree = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("unexpected )")
        return tree

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def _error(self, what: str) -> ValueError:
        shown = self._pattern[:80]
        return ValueError(f"pattern {shown!r}: {what} at {self._at}; RE2's syntax is needed")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        """Consume `text` if it comes next."""
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at == len(self._pattern):
            raise self._error("an unexpected end")
        self._at += 1
        return self._pattern[self._at - 1]

    def _until(self, end: str) -> str:
        """Consume up to and including `end`; return the text before it."""
        stop = self._pattern.find(end, self._at)
        if stop < 0:
            raise self._error(f"missing {end}")
        found, self._at = self._pattern[self._at : stop], stop + len(end)
        return found

    def _while(self, allowed: str, maximum: int) -> str:
        first = self._at
        while self._at < first + maximum and self._peek() and self._peek() in allowed:
            self._at += 1
        return self._pattern[first : self._at]

    # ── structure ────────────────────────────────────────────────────────────────────────────

    def _alternatives(self) -> Tree:
        """Parse up to a closing parenthesis or the end; flags set inside end there."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} groups inside each other")
        flags, parts = self._flags, [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._flags = flags
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        is_repeatable = False
        while (char := self._peek()) and char not in "|)":
            start = self._at
            if (counts := self._counts()) is not None:
                if not is_repeatable:
                    self._at = start
                    raise self._error("nothing to repeat")
                parts[-1] = RepeatNode(parts[-1], *counts)
                if _times(parts[-1]) > MAX_REPEAT:
                    raise self._error(f"repetitions of repetitions, more than {MAX_REPEAT} in all,")
                is_repeatable = False
            else:
                found = self._atoms()
                is_repeatable = bool(found)
                parts += found
        return Sequence(tuple(parts))

    def _counts(self) -> tuple[int, int | None] | None:
        """Parse a repetition operator; return None if there is none."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        start = self._at
        if self._peek() in simple:
            counts = simple[self._next()]
        elif self._take("{"):
            minimum = self._while(digits, 5)
            maximum = self._while(digits, 5) if (is_range := self._take(",")) else minimum
            if not minimum or not self._take("}"):
                self._at = start
                return None
            counts = (int(minimum), int(maximum) if maximum or not is_range else None)
            if max(counts[0], counts[1] or 0) > MAX_REPEAT or counts[0] > (counts[1] or MAX_REPEAT):
                raise self._error(f"bad numbers {{{minimum},{maximum}}}; at most {MAX_REPEAT}")
        else:
            return None
        self._take("?")
        return counts

    def _atoms(self) -> list[Tree]:
        """Parse one atom, or all characters of a quotation; none if only flags are set."""
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return [self._class()]
            case ".":
                return [Characters(complement(() if self._flags.s else ranges_of("\n")))]
            case "^":
                return [Assertion("^" if self._flags.m else "A")]
            case "$":
                return [Assertion("$" if self._flags.m else "z")]
            case "\\":
                return self._escaped()
            case _:
                return [self._literal(char)]

    def _literal(self, char: str) -> Characters:
        return Characters(self._of_case(ranges_of(char)))

    def _of_case(self, ranges: Ranges, is_negated: bool = False) -> Ranges:
        """Return the set of these characters, or its complement, under the flags."""
        found = in_every_case(ranges) if self._flags.i else ranges
        return complement(found) if is_negated else found

    def _group(self) -> list[Tree]:
        flags = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._name()
            else:
                end = self._set_flags()
                if end == ")":
                    return []
        tree = self._alternatives()
        if not self._take(")"):
            raise self._error("missing )")
        self._flags = flags
        return [tree]

    def _name(self) -> None:
        name = self._until(">")
        if not name or not all(c == "_" or c.isalnum() for c in name):
            raise self._error(f"a bad name {name!r} of a group")

    def _set_flags(self) -> str:
        """Parse flags; return the terminator, a colon or a parenthesis."""
        value, flags = True, self._flags
        while (char := self._next()) not in ":)":
            if char == "-" and value:
                value = False
            elif char in "imsU":
                flags = replace(flags, **{char: value})
            else:
                raise self._error(f"a group (?{char}, which RE2 does not have,")
        self._flags = flags
        return char

    # ── escapes and classes ──────────────────────────────────────────────────────────────────

    def _escaped(self) -> list[Tree]:
        char = self._peek()
        if char and char in "AzbB":
            self._at += 1
            return [Assertion(char)]
        if self._take("Q"):
            stop = self._pattern.find("\\E", self._at)
            text = self._pattern[self._at :] if stop < 0 else self._until("\\E")
            self._at = len(self._pattern) if stop < 0 else self._at
            return [self._literal(c) for c in text]
        ranges = self._escaped_class()
        if ranges is not None:
            return [Characters(ranges)]
        return [self._literal(self._escaped_character())]

    def _escaped_class(self) -> Ranges | None:
        """Parse a class after a backslash: ``d``, ``pL``, ``P{Lu}``."""
        char = self._peek()
        if char and char in "dswDSW":
            return self._of_case(PERL[self._next().lower()], char.isupper())
        if not char or char not in "pP":
            return None
        self._at += 1
        name = self._until("}") if self._take("{") else self._next()
        is_negated = (char == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name not in categories():
            raise self._error(f"a class {name!r}, which is not a general category of Unicode,")
        return self._of_case(categories()[name], is_negated)

    def _escaped_character(self) -> str:
        char = self._next()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            code = self._until("}") if self._take("{") else self._while(hexdigits, 2)
            if code and all(c in hexdigits for c in code) and int(code, 16) <= LAST:
                return chr(int(code, 16))
        elif char in octdigits:
            code = char + self._while(octdigits, 2)
            if char == "0" or len(code) > 1:
                return chr(int(code, 8))
        elif char.isascii() and char not in ascii_letters + digits:
            return char
        raise self._error(f"an escape \\{char}, which RE2 does not have,")

    def _class(self) -> Characters:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._take("[:"):
                name = self._until(":]")
                if name.removeprefix("^") not in POSIX:
                    raise self._error(f"a class [:{name}:], which RE2 does not have,")
                ranges += self._of_case(POSIX[name.removeprefix("^")], name.startswith("^"))
            else:
                ranges += self._range()
        self._at += 1
        found = union(ranges)
        return Characters(complement(found) if is_negated else found)

    def _range(self) -> Ranges:
        if self._take("\\"):
            if (found := self._escaped_class()) is not None:
                return found
            first = self._escaped_character()
        else:
            first = self._next()
        last = first
        if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 :][:1] != "]":
            self._at += 1
            last = self._escaped_character() if self._take("\\") else self._next()
        if ord(first) > ord(last):
            raise self._error(f"a range {first}-{last} that is empty")
        return self._of_case(((ord(first), ord(last)),))
