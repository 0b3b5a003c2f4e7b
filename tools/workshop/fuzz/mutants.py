"""Valid models that are changed a little, and what rewrites make of them."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.shape_inference import InferenceError

from .... import load
from ....runtime.errors import TercetError, UnsupportedError
from ....runtime.ir.types import Array
from ....runtime.options import Precision
from ....runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES
from ....runtime.session.model import Model
from ...bisect.reduction import thinned
from ...common.archives import write_archive
from ...common.nested import flat
from ...common.onnxruntime_errors import onnxruntime_errors
from ..onnxruntime_process import run_onnxruntime
from .differential import PRECISIONS, Case, emulated, has_nan, in_other_dtype, of_other_sizes, tried
from .emulation import Kernels
from .mutant_seeds import MutantSeeds, network, part_of
from .mutation import Mutation
from .mutations import mutate

PASSES = sorted({each.name for each in (*SYMBOLIC_PASSES, *STATIC_PASSES)})
#: Element types in the place of float32, or float16 as the precision, and how often each is drawn.
HALVES = "in half precision"
DTYPES = {"float32": 5, "float64": 3, "float16": 2, "int32": 0.5, "int64": 0.5, HALVES: 1}
#: What mutants end as.
FOUND, SAME, INVALID = "findings", "mutants that give the same", "changes that make no model"


@dataclass(frozen=True, slots=True)
class Ways:
    """How a mutant is run.

    Attributes:
        dtype: in the place of float32; see `DTYPES`.
        skip: passes that are left out.
        finite: whether nothing is infinite, which allows more rewrites.
        sizes: whether one loaded model gets inputs of several sizes.
        onnxruntime: whether onnxruntime runs it, too.
        kernels: what runs kernels, in the place of numpy; None if nothing does.
        precision: that of kernels.
        seed: of what is drawn in a run.
    """

    dtype: str = "float32"
    skip: tuple[str, ...] = ()
    finite: bool = False
    sizes: bool = False
    onnxruntime: bool = False
    kernels: Kernels | None = None
    precision: Precision = "float32"
    seed: int = 0

    def __str__(self) -> str:
        dtype = self.dtype if self.kernels is None else f"kernels of {self.precision}"
        said = [dtype, *(["finite"] if self.finite else [])]
        said += ["of other sizes"] if self.sizes else []
        return ", ".join([*said, *([f"without {' '.join(self.skip)}"] if self.skip else [])])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed model.

    Attributes:
        source: the name of the model that was changed.
        changes: names of what was changed.
        proto: the model.
        feeds: its inputs.
        ways: how it is run.
    """

    source: str
    changes: tuple[str, ...]
    proto: ModelProto
    feeds: Mapping[str, Array]
    ways: Ways


@dataclass(frozen=True, slots=True)
class MutantDraws:
    """Draws mutants: one is a function of the campaign's seed and its own number.

    Attributes:
        seed: of the campaign.
        seeds: what is changed.
        dtypes: element types, and how often each is drawn.
        skipping: of how many mutants some passes are skipped, as a share.
        sizes: of how many one model gets several sizes.
        onnxruntime: how many run on it, too.
        kernels: what runs kernels, in the place of numpy; None if nothing does.
        alike: how many with successive numbers are made of one model, in one element type; they
            share most kernels, which are compiled once.
    """

    seed: int
    seeds: MutantSeeds
    dtypes: Mapping[str, float]
    skipping: float = 0.35
    sizes: float = 0.25
    onnxruntime: float = 0.15
    kernels: Kernels | None = None
    alike: int = 1

    def draw(self, number: int) -> Mutant:
        """Return a mutant.

        Raises:
            ValueError: what was drawn is no model.
        """
        source = Random(f"{self.seed} {number // self.alike}")
        dice = source if self.alike == 1 else Random(f"{self.seed} change {number}")
        try:
            name, proto, feeds = self.seeds.draw(source)
            mutation = Mutation.of(proto, feeds, dice)
            changes = mutate(mutation, dice.choice((1, 1, 2, 3)))
            model, feeds = mutation.finished()
        except InferenceError as error:
            raise ValueError(str(error)) from error
        skip = dice.sample(PASSES, dice.randrange(1, 16)) if dice.random() < self.skipping else ()
        (dtype,) = source.choices(list(self.dtypes), list(self.dtypes.values()))
        sizes, other = dice.random() < self.sizes, dice.random() < self.onnxruntime
        finite = dice.random() < 0.1
        precision = source.choice(PRECISIONS)
        ways = Ways(dtype, tuple(skip), finite, sizes, other, self.kernels, precision, number)
        return Mutant(name, tuple(changes), model, feeds, ways)


def complaints(
    proto: ModelProto, feeds: Mapping[str, Array], ways: Ways, passes: set[str] | None = None
) -> Iterator[str]:
    """Run a model; yield what is wrong with it, a line each.

    Args:
        proto: the model.
        feeds: its inputs.
        ways: how it is run.
        passes: gets the names of those that rewrite it.

    Raises:
        TercetError: it does not run without rewrites, or gives NaN.
    """
    with load(proto, stop_at=0) as plain:
        case = Case(proto, feeds, flat(plain.run(feeds)))
        if any(has_nan(data) for data in case.reference.values()):
            raise UnsupportedError("rewrites may give numbers in the place of NaN")
        halves = ways.dtype == HALVES if ways.kernels is None else ways.precision == "float16"
        fits = not halves or _fits_half(plain, feeds)
    case.passes = set[str]() if passes is None else passes
    sizes = [data.size for data in (*feeds.values(), *case.reference.values())]
    sizes += [size for constant in proto.graph.initializer for size in constant.dims]
    if ways.onnxruntime and all(sizes):  # it keeps axes of empty sums, and drops those of no axes
        try:
            found = run_onnxruntime(proto, feeds, "ORT_DISABLE_ALL")
            yield from tried(case.against, "onnxruntime", found, doubts=False)
        except onnxruntime_errors():
            pass  # it has limits of its own
    if ways.kernels is not None:
        if fits:
            yield from tried(emulated, case, ways.kernels, ways.skip, (ways.precision,))
        return
    if ways.dtype == "float32" or (ways.dtype == HALVES and fits):
        yield from tried(_optimised, case, ways)
    elif ways.dtype != HALVES:
        yield from tried(in_other_dtype, case, ways.dtype, skip=ways.skip)
    if ways.sizes and all(data.size for data in feeds.values()):  # else they may be for 0 alone
        yield from tried(of_other_sizes, case, Random(ways.seed), check=False, skip=ways.skip)


def _optimised(case: Case, ways: Ways) -> Iterator[str]:
    """Yield what rewrites do to the model in float32, or in half precision."""
    precision: Precision = "float16" if ways.dtype == HALVES else "float32"
    results = [data for data in case.reference.values() if data.dtype.kind == "f"]
    finite = ways.finite and all(np.isfinite(data).all() for data in results)
    with load(case.proto, skip=ways.skip, finite=finite, precision=precision) as model:
        found = flat(model.run(case.feeds))
        case.passes.update(rewrite.name for rewrite in model.rewrites)
    case = replace(case, precision=precision)
    yield from case.against(f"rewritten, {precision}", found, doubts=False)


def _fits_half(plain: Model, feeds: Mapping[str, Array]) -> bool:
    """Whether float16 has all numbers that a model takes and computes, in the middle as well."""
    names = [value.name for node in plain.imported.nodes for value in node.outputs]
    whole = (*feeds.values(), *flat(plain.run(feeds, list(dict.fromkeys(names)))).values())
    largest = np.finfo(np.float16).max
    return not any((np.abs(x) > largest).any() for x in whole if x.dtype.kind == "f")


def reduced(mutant: Mutant, until: float = inf) -> Mutant:
    """Return the nodes of a mutant that show what is wrong with it; itself if they do not alone.

    Args:
        mutant: the mutant.
        until: point of `time.monotonic` after which no more nodes are left out.
    """
    try:
        whole = network("", mutant.proto, mutant.feeds)
    except (TercetError, ValueError):
        return mutant

    def attempt(places: Sequence[int]) -> bool:
        if monotonic() > until:
            return False
        try:
            return any(complaints(*part_of(whole, places), mutant.ways))
        except (TercetError, ValueError):
            return False

    places = list(range(len(mutant.proto.graph.node)))
    if not attempt(places):
        return mutant
    proto, feeds = part_of(whole, thinned(places, attempt))
    return replace(mutant, proto=proto, feeds=feeds)


def blamed(mutant: Mutant, until: float = inf) -> str:
    """Return the passes without which a mutant shows nothing, as text.

    Args:
        mutant: the mutant.
        until: point of `time.monotonic` after which no more passes are left out.
    """
    ways, passes = replace(mutant.ways, onnxruntime=False), set[str]()

    def found(skip: tuple[str, ...]) -> list[str]:
        try:
            chosen = replace(ways, skip=skip)
            return list(complaints(mutant.proto, mutant.feeds, chosen, passes))
        except TercetError as error:
            return [str(error)]

    lines, names = found(ways.skip), list[str]()
    ends = all("MISMATCH" in line for line in lines)  # else some passes had no turn
    for name in sorted(passes) if ends else PASSES if lines else ():
        if monotonic() > until:
            return ", ".join([*names, "what is not known: no time is left"])
        if name not in ways.skip and not found((*ways.skip, name)):
            names.append(name)
    return ", ".join(names) or "something else"


def text_of(proto: ModelProto, feeds: Mapping[str, Array]) -> Iterator[str]:
    """Yield a line for each node of a small model, and for its inputs."""
    shapes = {one.name: str(list(one.dims)) for one in proto.graph.initializer}
    yield ", ".join(f"{name}: {data.dtype}{list(data.shape)}" for name, data in feeds.items())
    for node in proto.graph.node:
        given = ", ".join(f"{name}{shapes.get(name, '')}" for name in node.input)
        yield f"{', '.join(node.output)} = {node.op_type}{_attributes(node)}({given})"


def _attributes(node: NodeProto) -> str:
    def value(one: Any) -> Any:
        for kind in ("ints", "floats"):
            if len(getattr(one, kind)):
                return list(getattr(one, kind))
        return next((getattr(one, kind) for kind in ("i", "f", "s") if one.HasField(kind)), "…")

    said = [f"{one.name}={value(one)}" for one in node.attribute]
    return f"<{', '.join(said)}>" if said else ""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a mutant.

    Attributes:
        number: the mutant's.
        kind: `FOUND`, `SAME` or `INVALID`.
        changes: names of what was changed.
        dtype: in the place of float32; empty if that was not drawn any more.
        passes: those that rewrite it.
        lines: what is wrong with it, reduced; empty if nothing is.
    """

    number: int
    kind: str
    changes: tuple[str, ...] = ()
    dtype: str = ""
    passes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def try_mutant(
    draws: MutantDraws, number: int, folder: Path | None = None, until: float = inf
) -> Ended:
    """Draw a mutant and run it.

    Args:
        draws: what draws it.
        number: its own.
        folder: where one with findings is written, reduced.
        until: point of `time.monotonic` after which nothing more is left out of it.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            mutant = draws.draw(number)
        except ValueError:
            return Ended(number, INVALID)
        about, passes = (mutant.changes, mutant.ways.dtype), set[str]()
        try:
            found = list(complaints(mutant.proto, mutant.feeds, mutant.ways, passes))
        except TercetError:
            return Ended(number, INVALID, *about)
        if not found:
            return Ended(number, SAME, *about, tuple(sorted(passes)))
        small = reduced(mutant, until)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.onnx").write_bytes(small.proto.SerializeToString())
            write_archive(folder / f"{number}.npz", dict(small.feeds))
        lines = [f"{mutant.source}; {', '.join(mutant.changes)}; {mutant.ways}", *found[:3]]
        lines += [f"  {line}" for line in text_of(small.proto, small.feeds)]
        lines.append(f"not without: {blamed(small, until)}")
        return Ended(number, FOUND, *about, lines=tuple(lines))


def run_mutants(
    draws: MutantDraws,
    numbers: Sequence[int],
    *,
    jobs: int = 1,
    seconds: float = inf,
    folder: Path | None = None,
) -> Iterator[Ended]:
    """Yield what becomes of mutants, in the order in which they end.

    They run in processes of their own: ONNX's inference ends some by a signal.

    Args:
        draws: what draws them.
        numbers: theirs.
        jobs: how many processes.
        seconds: when to end.
        folder: where those with findings are written, reduced.
    """
    until = monotonic() + seconds
    waiting = [
        deque(number for number in numbers if number // draws.alike % jobs == job)
        for job in range(jobs)
    ]
    workers = [_Worker(draws, each, until, folder) for each in waiting]
    try:
        while workers:
            for connection in wait([worker.connection for worker in workers]):
                worker = next(each for each in workers if each.connection is connection)
                ended = worker.received()
                if ended is not None:
                    yield ended
                    continue
                workers.remove(worker)
                if worker.numbers and monotonic() < until:
                    yield Ended(worker.numbers.popleft(), INVALID)
                    workers.append(_Worker(draws, worker.numbers, until, folder))
    finally:
        for worker in workers:
            worker.process.terminate()


class _Worker:
    """A process that tries mutants.

    Args:
        draws: what draws them.
        numbers: theirs; those that have ended are removed.
        until: point of `time.monotonic` after which none is begun.
        folder: where those with findings are written.
    """

    def __init__(
        self, draws: MutantDraws, numbers: deque[int], until: float, folder: Path | None
    ) -> None:
        self.numbers = numbers
        self.connection, theirs = Pipe(duplex=False)
        given = draws, tuple(numbers), until, folder, theirs
        self.process = get_context("spawn").Process(target=_serve, args=given, daemon=True)
        self.process.start()
        theirs.close()

    def received(self) -> Ended | None:
        """Return what became of a mutant; None if the process has ended."""
        try:
            ended: Ended = self.connection.recv()
        except EOFError:
            return None
        self.numbers.popleft()
        return ended


def _serve(
    draws: MutantDraws,
    numbers: Sequence[int],
    until: float,
    folder: Path | None,
    connection: Connection,
) -> None:
    for number in numbers:
        if monotonic() > until:
            break
        connection.send(try_mutant(draws, number, folder, until))
    connection.close()
