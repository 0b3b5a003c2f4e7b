"""Argument checks of public functions, with errors that name the argument.

A rule takes the name of an argument and the given value, and returns the value in the form that the
function needs or raises `UsageError`. `checked` applies a function's rules before it runs.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from ..errors import Argument, FileError, TercetError, UsageError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=TercetError)

#: Takes an argument's name and value; returns the converted value, or raises UsageError.
Rule = Callable[[str, Any], Any]

#: How short names of floating-point types begin: fp16, bf16, f32.
_DTYPE = re.compile(r"^(b?)fp?(?=\d)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
#: The maximum size of an axis, and a time limit that counts as none.
MAX_SIZE, FOREVER = 2**63 - 1, 1e8


def refused(name: str, value: object, expected: str) -> UsageError:
    """Return the UsageError for an argument: its name, its value, and what is expected."""
    return unfit(UsageError, name, f"expected {expected}", value)


def unfit(kind: type[E], name: str, reason: str, *given: object) -> E:
    """Return an error about an argument: ``name=value: reason``, or ``name: reason``.

    Args:
        kind: the class of the error.
        name: the argument.
        reason: what is wrong, and what to do.
        *given: its value, unless the reason says it.
    """
    value = "".join(f"={shown(each)}" for each in given)
    error = kind(f"{name}{value}: {reason}")
    error.argument = Argument(name, given, reason)
    return error


def shown(value: object) -> str:
    """Return a short representation of any value."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return f"<array {array.dtype}{list(array.shape)}>"
    if value is None or isinstance(value, str | bytes | bool | int | float | list | tuple | dict):
        try:
            text = repr(cast("object", value))
        except ValueError:  # an integer with more digits than Python converts
            return "<a huge number>"
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"<{type(value).__name__}>"


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


def optional(rule: Rule) -> Rule:
    """Return a rule that takes None as well."""
    return lambda name, value: None if value is None else rule(name, value)


def anything(name: str, value: Any) -> Any:
    """Accept any value: the function checks it itself."""
    return value


def whole(minimum: int | None = None, maximum: int = MAX_SIZE) -> Rule:
    """Return the rule for an integer within bounds."""
    bound = "" if minimum is None else f" >= {minimum}"

    def rule(name: str, value: Any) -> int:
        expected = f"a whole number{bound}"
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            raise refused(name, cast("object", value), expected)
        try:
            number = operator.index(value)
        except TypeError as error:  # an array of several elements
            raise refused(name, value, expected) from error
        if minimum is not None and number < minimum:
            raise refused(name, value, expected)
        if number > maximum:
            raise refused(name, value, f"{expected}, at most {maximum}")
        return number

    return rule


def number(*, above: float | None = None, minimum: float | None = None) -> Rule:
    """Return the rule for a finite number with an exclusive or inclusive lower bound."""
    bound = (
        f" > {above:g}" if above is not None else f" >= {minimum:g}" if minimum is not None else ""
    )

    def rule(name: str, value: Any) -> float:
        is_number = isinstance(value, int | float | np.integer | np.floating)
        if not is_number or isinstance(value, bool):
            raise refused(name, cast("object", value), f"a number{bound}")
        try:
            found = float(cast("float", value))
        except OverflowError as error:
            expected = f"a number{bound} within the range of float64"
            raise refused(name, cast("object", value), expected) from error
        small = (above is not None and found <= above) or (minimum is not None and found < minimum)
        if small or not math.isfinite(found):
            raise refused(name, cast("object", value), f"a finite number{bound}")
        return found

    return rule


def seconds(name: str, value: Any) -> float | None:
    """Accept a positive number of seconds; None, infinity and huge numbers mean no limit."""
    if value is None or (isinstance(value, float) and value == math.inf):
        return None
    found: float = number(above=0)(name, value)
    return None if found >= FOREVER else found


def instance(kind: type[Any]) -> Rule:
    """Return the rule for an instance of a class."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise refused(name, value, f"a {kind.__name__}")
        return value

    return rule


def flag(name: str, value: Any) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool | np.bool_):
        raise refused(name, value, "True or False")
    return bool(cast("bool", value))


def text(name: str, value: Any) -> str:
    """Accept a string, which may be empty."""
    if not isinstance(value, str):
        raise refused(name, value, "a text (str)")
    return value


def one_of(*known: str) -> Rule:
    """Return the rule for one of several words."""

    def rule(name: str, value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        hint = did_you_mean(_DTYPE.sub(r"\1float", value), known) if isinstance(value, str) else ""
        raise refused(name, value, f"one of {', '.join(known)}{hint}")

    return rule


def word(what: str) -> Rule:
    """Return the rule for a name that is not empty."""

    def rule(name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise refused(name, value, what)
        return value

    return rule


def words(what: str) -> Rule:
    """Return the rule for several names; a single string is one name."""

    def rule(name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            return (value,)
        found = items(name, value, f"a list of {what}")
        for each in found:
            if not isinstance(each, str):
                raise refused(name, each, f"a list of {what}")
        return found

    return rule


def items(name: str, value: Any, expected: str) -> tuple[Any, ...]:
    """Return the items of an iterable that is neither a string nor a mapping."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise refused(name, cast("object", value), expected)
    try:
        return tuple(cast("Iterable[Any]", value))
    except TypeError as error:  # a 0-d array
        raise refused(name, cast("object", value), expected) from error


def path(name: str, value: Any) -> Path:
    """Accept the path of a file: a string, bytes in the system's encoding, or a path object."""
    expected = "the path of a file (str, bytes or os.PathLike)"
    if not isinstance(value, str | bytes | os.PathLike):
        raise refused(name, value, expected)
    try:
        found = os.fsdecode(cast("str", value))
    except (TypeError, UnicodeError) as error:
        raise refused(name, cast("object", value), expected) from error
    if not found or "\0" in found:
        raise refused(name, found, expected)
    return Path(found)


def nbytes(name: str, value: Any) -> int:
    """Accept a number of bytes, or a string such as ``64MB`` (10**6) or ``64MiB`` (2**20)."""
    expected = "a number of bytes >= 0, such as 67108864, '64MB' or '64MiB'"
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]i?|)b?\s*", value.lower())
        if match is None:
            raise refused(name, value, expected)
        value = int(float(match[1]) * {**_UNITS, **_BINARY}[match[2]])
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return whole(0)(name, value)
    except UsageError as error:
        raise refused(name, value, expected) from error


def mapping(expected: str, key: Rule = text, value: Rule = anything) -> Rule:
    """Return the rule for a dictionary, with rules for its keys and values."""

    def rule(name: str, given: Any) -> dict[Any, Any]:
        if not isinstance(given, Mapping):
            raise refused(name, given, expected)
        pairs = cast("Mapping[Any, Any]", given).items()
        return {key(f"a key of {name}", k): value(f"{name}[{shown(k)}]", v) for k, v in pairs}

    return rule


def dims(name: str, value: Any) -> tuple[str, ...]:
    """Accept sizes of symbolic dimensions, ``{"batch": 4}`` or ``["batch=4"]``, as the latter."""
    expected = "sizes by symbolic dimension, such as {'batch': 4} or ['batch=4']"
    if isinstance(value, Mapping):
        sizes = mapping(expected, value=whole(0))(name, cast("object", value))
        return tuple(f"{symbol}={size}" for symbol, size in sizes.items())
    return _texts(name, value, expected)


def shapes(name: str, value: Any) -> tuple[str, ...]:
    """Accept input shapes: ``{"x": (1, 3)}``, ``["x=1x3"]``, or ``(1, 3)`` if there is one."""
    expected = "shapes by input, such as {'image': (1, 3, 224, 224)} or ['image=1x3x224x224']"
    if isinstance(value, Mapping):
        found = mapping(expected, value=shape)(name, cast("object", value))
        return tuple(f"{each}={'x'.join(map(str, sizes))}" for each, sizes in found.items())
    if isinstance(value, list | tuple) and value:
        given = cast("list[Any]", value)
        if all(hasattr(size, "__index__") for size in given):
            return ("x".join(map(str, shape(name, given))),)
    return _texts(name, value, expected)


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Accept the shape of one tensor."""
    expected = "the sizes of its axes, such as (1, 3, 224, 224)"
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise refused(name, array, f"{expected}; arrays go to run")
    size = whole(0)
    return tuple(size(name, each) for each in items(name, value, expected))


def _texts(name: str, value: Any, expected: str) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else items(name, value, expected)
    for each in found:
        if not isinstance(each, str):
            raise refused(name, each, expected)
    return found


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


class ArgumentRules:
    """The parameters of a public function, with a rule for each.

    Args:
        function: must have no positional-only parameters.
        rules: by name, those of options included.
        options: by name of a keyword that ``**options`` accepts.
        aliases: other names of parameters, by the name they stand for.

    Attributes:
        names: of the parameters.
        rules: of these, and of the options.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rules: Mapping[str, Rule],
        options: Mapping[str, Rule],
        aliases: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._name = function.__qualname__.removesuffix(".__init__")
        self._signature = inspect.signature(function)
        kinds = {name: each.kind for name, each in self._signature.parameters.items()}
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        self.names = tuple(name for name, kind in kinds.items() if kind not in variable)
        self._positional = [
            name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        self._takes_all = inspect.Parameter.VAR_POSITIONAL in kinds.values()
        self._free = inspect.Parameter.VAR_KEYWORD in kinds.values() and "options" not in kinds
        own = {name: rules.get(name, anything) for name in self.names}
        self.rules = own | ({**options, **own} if "options" in kinds else {})
        self._aliases = {
            alias: name
            for alias, names in aliases.items()
            for name in reversed(names)
            if name in self.rules and alias not in kinds
        }

    def settle(
        self, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the converted arguments; raises UsageError if one is invalid or unknown."""
        if len(given) > len(self._positional) and not self._takes_all:
            raise UsageError(
                f"{self._name} takes {len(self._positional)} positional arguments "
                f"({', '.join(self._positional)}), not {len(given)}; name the others"
            )
        names = self._positional[: len(given)]
        by_name = {self._known(name): value for name, value in named.items()}
        twice = next((name for name in names if name in by_name), None)
        if twice is not None or len(by_name) < len(named):
            raise UsageError(f"{self._name}: '{twice or ', '.join(named)}' is given twice")
        for name, parameter in self._signature.parameters.items():
            missing = parameter.default is parameter.empty and name in self.names
            if missing and name not in by_name and name not in names:
                raise UsageError(f"{self._name} needs the argument '{name}'")
        values = [self.rules[n](n, v) for n, v in zip(names, given, strict=False)]
        rest = given[len(names) :]
        return (*values, *rest), {n: self.rules.get(n, anything)(n, v) for n, v in by_name.items()}

    def _known(self, name: str) -> str:
        found = self._aliases.get(name, name)
        if found in self.rules or self._free:
            return found
        hint = did_you_mean(name, self.rules)
        raise UsageError(f"{self._name}: there is no option '{name}'{hint}")


def checked(
    rules: Mapping[str, Rule],
    options: Mapping[str, Rule] | None = None,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a function before it runs.

    Args:
        rules: by parameter name; parameters without a rule are passed on as they are.
        options: by name of a keyword that ``**options`` accepts.
        aliases: other names of parameters, with what they stand for.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        settle = ArgumentRules(function, rules, options or {}, aliases or {}).settle

        @wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            values, options = settle(given, named)
            try:
                return cast("Callable[..., R]", function)(*values, **options)
            except FileError:
                raise
            except OSError as error:
                raise FileError(*_parts(error)) from error

        return call

    return decorate


def _parts(error: OSError) -> tuple[Any, ...]:
    return error.errno, error.strerror or str(error), error.filename


def checked_methods(kind: type[R]) -> type[R]:
    """Decorate a class: unknown arguments of its public methods raise UsageError."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, _told(method))
    return kind


def _told(function: Callable[P, R]) -> Callable[P, R]:
    """Return a wrapper that examines the arguments only after a call failed."""

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        try:
            return function(*given, **named)
        except TypeError as error:
            signature = inspect.signature(function)
            try:
                signature.bind(*given, **named)
            except TypeError as unfit:
                known = tuple(signature.parameters)[1:]
                raise UsageError(_unfit(function.__name__, known, named, unfit)) from error
            raise

    return call


def _unfit(function: str, known: Sequence[str], named: Mapping[str, Any], error: TypeError) -> str:
    unknown = next((name for name in named if name not in known), None)
    if unknown is None:
        return f"{function}: {error} (it takes {', '.join(known) or 'nothing'})"
    hint = did_you_mean(unknown, known)
    return f"{function}: there is no option '{unknown}'{hint} (options: {', '.join(known)})"


def checked_fields(kind: type[R]) -> type[R]:
    """Decorate a dataclass: an unknown field raises UsageError naming the closest one."""
    kind.__init__ = checked({})(kind.__init__)
    return kind
