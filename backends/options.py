"""Options of one backend: a frozen dataclass in its module, filled with what the user gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from ..runtime.base.arguments import shown
from ..runtime.errors import UsageError, did_you_mean
from ..runtime.options import Options

if TYPE_CHECKING:
    from ..runtime.passes.driver import IntegerChoice

#: What the module of `open_backends` may have: the dataclass of its options, its algorithms, and
#: its choice of layers of integers.
OPTIONS, ALGORITHMS, INTEGERS = "OPTIONS", "ALGORITHMS", "INTEGERS"


def with_own(options: Options, name: str, opener: Callable[..., Any]) -> Options:
    """Return `options` with those of one backend checked, as an instance of its dataclass.

    Args:
        options: `Options.backend_options` has what the user gave, by name of a backend.
        name: the backend.
        opener: its `open_backends`; the module around it has the dataclass as ``OPTIONS``.

    Raises:
        UsageError: the backend has no options, not that one, or the value does not fit.
    """
    given = options.backend_options.get(name)
    if given is None:
        return options
    kind = getattr(_module(opener), OPTIONS, None)
    if kind is None or not is_dataclass(kind) or not isinstance(kind, type):
        raise UsageError(f"backend_options: backend '{name}' has no options")
    own = given if isinstance(given, kind) else _made(name, kind, given)
    return replace(options, backend_options={**options.backend_options, name: own})


def check_algorithms(options: Options, openers: Iterable[Callable[..., Any]]) -> None:
    """Raise UsageError for an algorithm in `options` that no backend has.

    Args:
        options: `Options.conv` and `Options.algorithms` name algorithms.
        openers: `open_backends` of all backends; the module around it lists its algorithms, if it
            has any, as ``ALGORITHMS``. One backend ignores the algorithms of another.
    """
    asked = {f"algorithms, {node!r}": names for node, names in options.algorithms.items()}
    if options.conv is not None:
        asked["conv"] = options.conv
    if not asked:
        return
    known = dict.fromkeys(
        name for opener in openers for name in getattr(_module(opener), ALGORITHMS, ())
    )
    for where, names in asked.items():
        for name in names.split(","):
            if name.partition(":")[0] not in known:
                hint = did_you_mean(name, known)
                raise UsageError(f"{where}: '{name}' is not one of {', '.join(known)}{hint}")


def integers_of(opener: Callable[..., Any]) -> IntegerChoice | bool:
    """Return which layers a backend computes faster on integers than as floats, False for none.

    Args:
        opener: its `open_backends`; the module around it has the choice as ``INTEGERS``.
    """
    found: IntegerChoice | bool = getattr(_module(opener), INTEGERS, False)
    return found


def _module(opener: Callable[..., Any]) -> ModuleType | None:
    return sys.modules.get(opener.__module__)


def _made(name: str, kind: type[Any], given: object) -> Any:
    if not isinstance(given, Mapping):
        raise UsageError(
            f"backend_options: {shown(given)} is neither a dict nor the {kind.__name__} of '{name}'"
        )
    values, known = cast("Mapping[str, Any]", given), [field.name for field in fields(kind)]
    hints = get_type_hints(kind)
    for option, value in values.items():
        if option not in known:
            hint = did_you_mean(option, known)
            raise UsageError(
                f"backend '{name}' has no option '{option}'{hint} (options: {', '.join(known)})"
            )
        if not _fits(value, hints[option]):
            wanted = getattr(hints[option], "__name__", hints[option])
            raise UsageError(f"option '{option}' of '{name}': {shown(value)} is not {wanted}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"backend_options of '{name}': {error}") from error


def _fits(value: object, wanted: Any) -> bool:
    """Whether a value is of a plain type; other types are the dataclass's own business."""
    if wanted not in (bool, int, float, str):
        return True
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def parsed(texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return options from texts such as ``{"toy.limit": "5"}``: values are JSON, else text.

    Raises:
        UsageError: a name without a backend.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, text in texts.items():
        backend, dot, option = name.partition(".")
        if not (backend and dot and option):
            given = f"{name}={text}" if text else name
            raise UsageError(
                f"--backend-option {given}: expected BACKEND.OPTION=VALUE, such as "
                "openvino.min_nodes=2"
            )
        try:
            value: Any = json.loads(text)
        except ValueError:
            value = text
        found.setdefault(backend, {})[option] = value
    return found
