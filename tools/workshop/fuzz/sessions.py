"""Random lives of sessions: what one loaded model gives, whatever it was given before.

    python -m tercet.tools.workshop.fuzz.sessions --models 1000 --seed 1

A random model, whose sizes all have names, is loaded once and runs many times: on other values and
sizes, on arrays of every layout, after errors, on several threads, for some of its tensors, with
results written to, kept, and fed again. A run gives what a session gives that has run nothing else,
without rewrites; inputs and earlier results stay as they are; what does not fit is refused by an
error of the model or of its data.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

from .... import Model, load
from ....runtime.errors import DeviceError, InputError, ModelError, TercetError
from ....runtime.ir.types import Array
from ...common.console import open_console
from ...common.nested import flat
from .differential import Arrays, Case, tried
from .emulation import Kernels, add_kernels, kernels_of
from .graphs import random_model
from .numbering import add_numbering, numbers_of, until, verify_passes
from .trial import is_unread
from .variants import resized, with_names, with_outputs

#: Models of one campaign; the next one has others.
_APART = 1_000_000
_RUNS = 10


@dataclass
class Life:
    """A session that runs many times.

    Attributes:
        proto: its model.
        model: the session.
        feeds: inputs that fit.
        dice: draws what happens.
        rng: draws values.
        kernels: run it; numpy does where None.
        kept: results of earlier runs, and copies of them.
    """

    proto: ModelProto
    model: Model
    feeds: Arrays
    dice: Random
    rng: np.random.Generator
    kernels: Kernels | None = None
    kept: list[tuple[str, Array, Array]] = field(default_factory=list[tuple[str, Array, Array]])

    def values(self) -> dict[str, Array]:
        """Return the inputs' numbers in another order."""
        return {name: _shuffled(data, self.rng) for name, data in self.feeds.items()}

    def case(self, feeds: Arrays) -> Case:
        """Return what a new session gives for some inputs without rewrites."""
        with load(self.proto, stop_at=0) as plain:
            return Case(self.proto, feeds, flat(plain.run(dict(feeds))))

    def compare(self, what: str, case: Case, given: dict[str, Any] | None = None) -> Iterator[str]:
        """Run on a case's inputs, or on the same written otherwise; yield what is wrong."""
        given = dict(case.feeds) if given is None else given
        before = {name: _copy(data) for name, data in given.items()}
        found = flat(self.model.run(given))
        yield from case.against(what, found, doubts=False)
        yield from (f"{what}: {n} was written to" for n in given if not _same(given[n], before[n]))
        for name, data in found.items():
            if any(np.shares_memory(data, x) for x in given.values() if isinstance(x, np.ndarray)):
                yield f"{what}: {name} shares memory with an input"
            self.kept.append((what, data, _copy(data)))


def _copy(data: Any) -> Any:
    return data.copy() if isinstance(data, np.ndarray) else data


def _same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _shuffled(data: Array, rng: np.random.Generator) -> Array:
    return rng.permutation(data.ravel()).reshape(data.shape)


def _other_values(life: Life) -> Iterator[str]:
    yield from life.compare("other values", life.case(life.values()))


def _other_sizes(life: Life) -> Iterator[str]:
    feeds = resized(life.feeds, life.dice, life.rng)
    try:
        case = life.case(feeds)
    except TercetError as error:
        is_of_elements = life.kernels is not None and isinstance(error, DeviceError)
        or_runs = is_of_elements or is_unread(life.model.imported, str(error))
        yield from _is_refused(life, "sizes that the model refuses", feeds, or_runs=or_runs)
        return
    shapes = {name: data.shape for name, data in feeds.items()}
    yield from life.compare(f"of {shapes}", case)


def _layouts(life: Life) -> Iterator[str]:
    """The same arrays, elsewhere in memory."""
    case = life.case(life.values())
    names = [life.dice.choice(list(_LAYOUTS)) for _ in case.feeds]
    pairs = zip(case.feeds.items(), names, strict=True)
    given = {name: _LAYOUTS[how](data) for (name, data), how in pairs}
    yield from life.compare(f"as {', '.join(names)}", case, given)


def _as_part(data: Array) -> Array:
    """Every other element of something larger."""
    whole = np.zeros([2 * size + 1 for size in data.shape], data.dtype)
    part = whole[(*(slice(1, None, 2) for _ in data.shape), ...)]
    part[...] = data
    return part


def _unaligned(data: Array) -> Array:
    if data.dtype == object:
        return data
    raw = np.zeros(data.nbytes + 1, np.uint8)[1:].view(data.dtype)
    raw[:] = data.ravel()
    return raw.reshape(data.shape)


def _read_only(data: Array) -> Array:
    data = data.copy()
    data.flags.writeable = False
    return data


_LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "backwards": lambda x: np.flip(np.flip(x).copy()),
    "part": _as_part,
    "Fortran": lambda x: np.asarray(x, order="F"),
    "unaligned": _unaligned,
    "read-only": _read_only,
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()) if x.dtype.isnative else x,
    "lists": lambda x: x.tolist() if x.size and x.ndim else x,
    "subclass": lambda x: x.view(_Sub),
}


class _Sub(np.ndarray):
    """An array of another class."""


def _aliased(life: Life) -> Iterator[str]:
    """Inputs of one type are one array."""
    feeds = life.values()
    firsts: dict[Any, Array] = {}
    feeds = {n: firsts.setdefault((x.dtype, x.shape), x) for n, x in feeds.items()}
    yield from life.compare("inputs that are one array", life.case(feeds))


def _results_written(life: Life) -> Iterator[str]:
    """Who gets a result may write to it."""
    found = flat(life.model.run(dict(life.feeds)))
    for name, data in found.items():
        if not data.flags.writeable:
            yield f"{name} is read-only"
        elif data.size and data.dtype != object:
            data[...] = np.zeros((), data.dtype)
    yield from life.compare("after results were written to", life.case(life.feeds))


def _results_fed(life: Life) -> Iterator[str]:
    """Results are inputs of the next run, where they fit."""
    found = flat(life.model.run(dict(life.feeds)))
    types = {(x.dtype, x.shape): x for x in found.values() if np.isfinite(_numbers(x)).all()}
    feeds = {n: types.get((x.dtype, x.shape), x) for n, x in life.values().items()}
    try:
        case = life.case(feeds)
    except TercetError:
        return  # they are no indices, say
    yield from life.compare("results fed again", case)


def _numbers(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "fV" else np.zeros(1)


def _some_tensors(life: Life) -> Iterator[str]:
    """Tensors from the middle, some of them twice."""
    names = [name for name in life.model.imported.values if name]
    wanted = life.dice.choices(names, k=life.dice.randrange(1, 5))
    with load(life.proto, stop_at=0) as plain:
        expected = flat(plain.run(dict(life.feeds), wanted))
    found = flat(life.model.run(dict(life.feeds), wanted))
    case = Case(with_outputs(life.proto, expected), life.feeds, expected)
    if list(found) != list(expected):
        yield f"of {wanted}: {list(found)} in the place of {list(expected)}"
    else:
        yield from case.against(f"of {wanted}", found, doubts=False)


def _threads(life: Life) -> Iterator[str]:
    cases = [life.case(life.values()) for _ in range(3)]
    work = [case for case in cases for _ in range(3)]
    life.dice.shuffle(work)
    with ThreadPoolExecutor(life.kernels.threads if life.kernels else 3) as pool:
        found = list(pool.map(lambda case: flat(life.model.run(dict(case.feeds))), work))
    for case, one in zip(work, found, strict=True):
        yield from case.against("by threads", one, doubts=False)


def _beside(life: Life) -> Iterator[str]:
    """A second session of the same model runs, and ends."""
    case = life.case(life.values())
    with _opened(life.proto, life.kernels) as other:
        yield from case.against("a second session", flat(other.run(dict(case.feeds))), doubts=False)
    yield from life.compare("after a second session", case)


def _errors(life: Life) -> Iterator[str]:
    """Inputs that do not fit are refused, and change nothing."""
    feeds: dict[str, Any] = dict(life.feeds)
    name = life.dice.choice(list(feeds))
    data = feeds[name]
    how = life.dice.choice(("missing", "more", "rank", "dtype", "object", "negative", "huge"))
    if how == "missing":
        del feeds[name]
    elif how == "more":
        feeds["nowhere"] = data
    elif how == "rank":
        feeds[name] = data[None]
    elif how == "dtype":
        feeds[name] = data.astype(np.complex64)
    elif how == "object":
        feeds[name] = object()
    elif data.dtype.kind == "i":
        feeds[name] = np.full_like(data, -100 if how == "negative" else 127)
    else:
        feeds[name] = np.full_like(data, np.nan if how == "negative" else np.inf)
    is_typed = how in ("missing", "more", "rank", "dtype", "object")
    yield from _is_refused(life, how, feeds, or_runs=not is_typed)
    yield from life.compare(f"after an error ({how})", life.case(life.feeds))


def _is_refused(life: Life, how: str, feeds: dict[str, Any], *, or_runs: bool) -> Iterator[str]:
    try:
        life.model.run(feeds)
    except (DeviceError, InputError, ModelError):
        return
    except TercetError as error:
        if not or_runs:
            yield f"{how}: {type(error).__name__}: {error}"
        return
    if not or_runs:
        yield f"{how}: runs"


_EVENTS: tuple[Callable[[Life], Iterator[str]], ...] = (
    _other_values,
    _other_sizes,
    _other_sizes,
    _layouts,
    _layouts,
    _aliased,
    _results_written,
    _results_fed,
    _some_tensors,
    _threads,
    _beside,
    _errors,
    _errors,
)


def _opened(proto: ModelProto, kernels: Kernels | None) -> Model:
    return load(proto, "cuda", fallback="numpy") if kernels else load(proto)


def lived(
    proto: ModelProto, feeds: Arrays, dice: Random, kernels: Kernels | None = None
) -> Iterator[str]:
    """Load a model and run it many times; yield what is wrong, a line each.

    Args:
        proto: the model.
        feeds: its inputs.
        dice: draws what happens.
        kernels: run the model; numpy does where None.
    """
    named = with_names(proto)
    rng = np.random.default_rng(dice.getrandbits(32))
    before = {name: _copy(data) for name, data in feeds.items()}
    with _opened(named, kernels) as model:
        life = Life(named, model, feeds, dice, rng, kernels)
        for _ in range(_RUNS):
            event = dice.choice(_EVENTS)
            yield from tried(event, life)
        yield from (f"{n} was written to" for n in feeds if not _same(feeds[n], before[n]))
        for what, data, copy in life.kept:
            if not _same(data, copy):
                yield f"a result of {what} changed later"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0 where nothing was found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbering(parser, "models", 200, "the number of one model")
    parser.add_argument("--nodes", type=int, default=8, help="of each model, about")
    add_kernels(parser)
    given = parser.parse_args(arguments)
    verify_passes()
    console = open_console()
    kernels = kernels_of(given)
    counted: Counter[str] = Counter()
    for number in until(given.seconds, numbers_of(given)):
        proto, feeds = random_model(_APART * given.seed + number, given.nodes)
        counted["models"] += 1
        for line in tried(lived, proto, feeds, Random(number), kernels):
            counted["findings"] += 1
            console.print(f"{number}: {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(", ".join(f"{count} {what}" for what, count in counted.items()))
    return int(counted["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
