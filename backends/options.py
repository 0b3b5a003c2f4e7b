"""Options of one backend: a frozen dataclass in its module, filled with what the user gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from ..runtime.base.arguments import shown, unfit
from ..runtime.errors import UsageError, did_you_mean
from ..runtime.ir.graph import Graph
from ..runtime.options import Options

if TYPE_CHECKING:
    from ..runtime.passes.driver import IntegerChoice

#: What the module of `open_backends` may have: the dataclass of its options, its algorithms, which
#: options of `PARTIAL` it uses, its choice of layers of integers, whether it is faster for keeping
#: floats of 16 bits in float32, and whether it reads packed weights.
OPTIONS, ALGORITHMS, USES, INTEGERS = "OPTIONS", "ALGORITHMS", "USES", "INTEGERS"
WIDENS, PACKS = "WIDENS", "PACKS"
#: The pass that is for backends that read packed weights only.
PACKING = "pack_weights"
#: Fields of `Options` that only some backends use. Of the others, some are for all backends, and
#: some are limits, which hold where there is nothing to limit.
PARTIAL = ("device", "tune", "ranges")
_DEFAULTS = Options()
#: What `USES` calls the precision that is float32 where a backend does not have it.
TF32 = "tf32"


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
        raise unfit(UsageError, "backend_options", f"backend '{name}' has no options")
    own = given if isinstance(given, kind) else _made(name, kind, given)
    return replace(options, backend_options={**options.backend_options, name: own})


def check_algorithms(options: Options, openers: Iterable[Callable[..., Any]]) -> None:
    """Raise UsageError for an algorithm in `options` that no backend, or not that operator, has.

    Args:
        options: `Options.conv` and `Options.algorithms` name algorithms.
        openers: `open_backends` of all backends; the module around it lists its algorithms, if it
            has any, as ``ALGORITHMS``. One backend ignores the algorithms of another.
    """
    asked: list[tuple[str, object, str, str]] = [
        ("algorithms", {node: names}, node, names) for node, names in options.algorithms.items()
    ]
    if options.conv is not None:
        asked.append(("conv", options.conv, "Conv", options.conv))
    if not asked:
        return
    tables = [_algorithms(opener) for opener in openers]
    every = dict.fromkeys(name for table in tables for name in table)
    for argument, given, node, names in asked:
        for name in _plain(names):
            if name not in every:
                reason = f"there is no algorithm '{name}'{_among(name, every)}"
                raise unfit(UsageError, argument, reason, given)
            if _is_operator(node) and name not in _known(tables, [node]):
                raise unfit(UsageError, argument, _lacks(tables, [node], name), given)


def check_nodes(
    options: Options, graphs: Iterable[Graph], openers: Iterable[Callable[..., Any]]
) -> None:
    """Raise UsageError for a node in `Options.algorithms` that is missing, or lacks the algorithm.

    Names of operators are accepted whether or not the graphs have such nodes.

    Args:
        options: see `check_algorithms`.
        graphs: the graph as imported, and what the passes have made of it.
        openers: see `check_algorithms`.
    """
    kinds: dict[str, dict[str, None]] = {}
    for graph in graphs:
        for node in graph.walk():
            for name in (node.name, *node.origin):
                kinds.setdefault(name, {})[node.kind] = None
    tables = [_algorithms(opener) for opener in openers]
    for node, names in options.algorithms.items():
        if _is_operator(node):
            continue
        if node not in kinds:
            hint = did_you_mean(node, (*kinds, *_operators()))
            reason = f"the model has no node '{node}'{hint}"
            raise unfit(UsageError, "algorithms", reason, {node: names})
        known = _known(tables, kinds[node])
        for name in _plain(names):
            if name not in known:
                reason = _lacks(tables, kinds[node], name)
                raise unfit(UsageError, "algorithms", reason, {node: names})


def _plain(names: str) -> list[str]:
    """Return names of algorithms without their forms."""
    return [name.partition(":")[0] for name in names.split(",")]


def _among(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was meant, and the known ones."""
    known = [*known]
    return f"{did_you_mean(name, known)} (algorithms: {', '.join(known)})"


def _lacks(
    tables: Iterable[Mapping[str, Collection[str] | None]], operators: Iterable[str], name: str
) -> str:
    """Say that operators have no such algorithm, and what they have.

    Names that all operators have are no algorithms: they choose what runs a node.
    """
    operators, known = [*operators], [*_known(tables, operators)]
    lacks = f"{' and '.join(operators)} has no algorithm '{name}'"
    if [*_known(tables, ())] == known:
        return f"{lacks}; only what runs it can be chosen: {', '.join(known)}"
    return lacks + _among(name, known)


def _is_operator(node: str) -> bool:
    """Whether a name is that of an operator, not of a node."""
    return node in _operators()


def _operators() -> list[str]:
    """Return the names of all operators, which are declared when an option names one."""
    from ..runtime.ops import OPERATORS

    return [name for _, name in OPERATORS]


def _algorithms(opener: Callable[..., Any]) -> Mapping[str, Collection[str] | None]:
    """Return the operators of each algorithm of the module around `opener`; None for all."""
    found = getattr(_module(opener), ALGORITHMS, ())
    return cast("Any", found) if isinstance(found, Mapping) else dict.fromkeys(found)


def _known(
    tables: Iterable[Mapping[str, Collection[str] | None]], operators: Iterable[str]
) -> dict[str, None]:
    """Return the algorithms that some of these operators have, by `_algorithms` of backends."""
    wanted = set(operators)
    return {
        name: None
        for table in tables
        for name, able in table.items()
        if able is None or not wanted.isdisjoint(able)
    }


def usable(options: Options, openers: Mapping[str, Callable[..., Any]]) -> Options:
    """Return `options` with the defaults for what none of these backends can use.

    Args:
        options: the user's.
        openers: `open_backends` by name; ``USES`` and ``ALGORITHMS`` of the modules around them say
            what each backend, with those that it opens behind it, can use.
    """
    used, asked = _listed(USES, openers.values()), options.algorithms.items()
    left: dict[str, Any] = {f: getattr(_DEFAULTS, f) for f in PARTIAL if f not in used}
    left["conv"] = options.conv if _fits_any(options.conv, "Conv", openers) else None
    left["algorithms"] = {each: names for each, names in asked if _fits_any(names, each, openers)}
    own = options.backend_options.items()
    left["backend_options"] = {name: given for name, given in own if name in openers}
    if options.precision == TF32 and TF32 not in used:
        left["precision"] = "float32"
    return replace(options, **left)


def _fits_any(names: str | None, node: str, openers: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether one of these backends has one of the algorithms for a node or an operator."""
    tables = [_algorithms(opener) for opener in openers.values()]
    known = _known(tables, [node]) if _is_operator(node) else {n for each in tables for n in each}
    return any(name in known for name in _plain(names)) if names else False


def check_used(
    options: Options,
    openers: Mapping[str, Callable[..., Any]],
    every: Callable[[], Mapping[str, Callable[..., Any]]],
) -> None:
    """Raise UsageError for an option that none of these backends can use.

    ``tf32`` is none: it allows a precision.

    Args:
        options: the user's.
        openers: `open_backends` of the backends that it is for, by name.
        every: returns those of all backends.
    """
    some = (*PARTIAL, "conv", "algorithms", "backend_options")
    asked = [name for name in some if getattr(options, name) != getattr(_DEFAULTS, name)]
    if not asked:
        return
    kept = usable(options, openers)
    for name in asked:
        left = _without(getattr(options, name), getattr(kept, name))
        if not left:
            continue
        alone = {each: usable(options, {each: opener}) for each, opener in every().items()}
        able = [n for n, each in alone.items() if _without(left, getattr(each, name)) != left]
        few = [f"backend '{each}'" for each in openers] or ["another runtime"]
        none = f"{few[0]} does not use" if len(few) == 1 else f"none of {', '.join(openers)} uses"
        remedy = f"leave it out, or run on a backend that does: {', '.join(able)}"
        raise unfit(UsageError, name, f"{none} it; {remedy}", _written(left))


def _written(given: Any) -> Any:
    """Return options as a user writes them: those of one backend as a dict."""
    if isinstance(given, Mapping):
        return {key: _written(value) for key, value in cast("Mapping[str, Any]", given).items()}
    if not is_dataclass(given):
        return given
    own = ((each, getattr(given, each.name)) for each in fields(given))
    return {each.name: value for each, value in own if value != each.default}


def _without(given: Any, kept: Any) -> Any:
    """Return what was given and is not kept; None if it is kept."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        items = cast("Mapping[str, Any]", given).items()
        return {key: value for key, value in items if key not in kept}
    return None if given == kept else given


def _listed(list_: str, openers: Iterable[Callable[..., Any]]) -> dict[str, None]:
    """Return the names in one of the lists of the modules around `openers`."""
    return dict.fromkeys(name for opener in openers for name in getattr(_module(opener), list_, ()))


def integers_of(opener: Callable[..., Any]) -> IntegerChoice | bool:
    """Return which layers a backend computes faster on integers than as floats, False for none.

    Args:
        opener: its `open_backends`; the module around it has the choice as ``INTEGERS``.
    """
    found: IntegerChoice | bool = getattr(_module(opener), INTEGERS, False)
    return found


def widens(opener: Callable[..., Any]) -> bool:
    """Return whether a backend is faster where floats of 16 bits are kept in float32.

    Args:
        opener: its `open_backends`; the module around it says so as ``WIDENS``.
    """
    return bool(getattr(_module(opener), WIDENS, False))


def packs(opener: Callable[..., Any]) -> bool:
    """Return whether a backend reads packed weights of a few bits, as MatMulNBits has them.

    Args:
        opener: its `open_backends`; the module around it says so as ``PACKS``.
    """
    return bool(getattr(_module(opener), PACKS, False))


def _module(opener: Callable[..., Any]) -> ModuleType | None:
    return sys.modules.get(opener.__module__)


def _made(name: str, kind: type[Any], given: object) -> Any:
    if not isinstance(given, Mapping):
        reason = f"{shown(given)} is neither a dict nor the {kind.__name__} of '{name}'"
        raise unfit(UsageError, "backend_options", reason)
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
        raise unfit(UsageError, "backend_options", f"'{name}': {error}") from error


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
