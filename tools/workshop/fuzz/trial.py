"""What becomes of one mutant: a result, an error of tercet's, or something that must not be."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .... import load
from ....runtime.errors import InputError, TercetError, TimeLimitError
from ....runtime.ir.graph import Graph
from ....runtime.ops.shape import Shape, Size
from ....runtime.session.model import TensorInfo
from ....runtime.text import printable
from ...common.environment import ROOT
from ...common.inputs import random_inputs
from ...common.shapes import input_shapes
from ...verdict.error_bounds import Judge
from .seeds import Seed
from .sites import Places
from .structure import Mutant

#: What a mutant may take of the host; no seed needs a hundredth of it.
MAX_BYTES = 256 << 20
#: Elements of an input that is drawn.
MAX_ELEMENTS = 1 << 20
#: What reading a mutant may take, and running it likewise.
SECONDS = 4.0
#: Outcomes that break the promise.
BROKEN = ("untyped", "different", "signal", "too long", "too large")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        kind: how it was changed.
        ended: ``ran``, ``loaded`` (no inputs could be made), ``refused at load``, ``refused in the
            run``, or one of `BROKEN`.
        error: class of the error.
        message: its text, or the place in the code that let something through.
        place: ``here``, ``near`` or ``elsewhere``: what the error names; empty if not known.
        seconds: of the processor, all threads together.
        megabytes: the largest resident size of the process meanwhile.
    """

    kind: str
    ended: str
    error: str = ""
    message: str = ""
    place: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)


def runs(seed: Seed) -> bool:
    """Whether a seed runs as it is: what is made of others says nothing."""
    return try_mutant(Mutant("none", seed.data, None), seed.feeds).ended == "ran"


def try_mutant(mutant: Mutant, feeds: Sequence[Any]) -> Outcome:
    """Load a mutant and run it, with the graph's rewrites and without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _try(mutant, feeds)
        except BaseException as error:
            return Outcome(mutant.kind, "untyped", type(error).__name__, _where(error))


def _try(mutant: Mutant, feeds: Sequence[Any]) -> Outcome:
    try:
        model = load(mutant.data, **options())
    except TercetError as error:
        return _refused(mutant, "refused at load", error)
    with model:
        given = inputs_for(model.inputs, feeds)
        if given is None:
            return Outcome(mutant.kind, "loaded")
        try:
            found = model.run(given, timeout=SECONDS)
        except TercetError as error:
            return _refused(mutant, "refused in the run", error)
    complaint = _differs(mutant.data, given, found)
    return Outcome(mutant.kind, "different" if complaint else "ran", message=complaint)


def options() -> dict[str, Any]:
    """Return what a mutant is loaded with."""
    return {"max_bytes": MAX_BYTES, "timeout": SECONDS}


def _refused(mutant: Mutant, ended: str, error: TercetError) -> Outcome:
    said = str(error)
    place = "" if mutant.places is None else _place(said, mutant.places)
    return Outcome(mutant.kind, ended, type(error).__name__, said[:300], place)


def _place(said: str, places: Places) -> str:
    if any(printable(name) in said for name in places.here):
        return "here"
    return "near" if any(printable(name) in said for name in places.near) else "elsewhere"


def inputs_for(infos: Sequence[TensorInfo], feeds: Sequence[Any]) -> dict[str, Any] | None:
    """Return the seed's own inputs where they are arrays that fit, else random ones; None: none."""
    found: dict[str, Any] = {}
    try:
        shapes = input_shapes(infos)
    except InputError:
        return None
    for at, info in enumerate(infos):
        own = feeds[at] if at < len(feeds) else None
        own = np.asarray(own) if isinstance(own, np.generic) else own
        if _fits(own, info):
            found[info.name] = own
        else:
            size = 1
            for dim in shapes.get(info.name, ()):
                size *= dim
            if size > MAX_ELEMENTS:
                return None
            try:
                found |= random_inputs([info], shapes, at)
            except InputError:
                return None
    return found


def _fits(data: Any, info: TensorInfo) -> bool:
    if info.dtype is None:
        return isinstance(data, list)
    if not isinstance(data, np.ndarray) or data.dtype != info.dtype:
        return False
    if info.shape is None:
        return True
    if len(info.shape) != data.ndim:
        return False
    sizes = zip(info.shape, data.shape, strict=True)
    return all(not isinstance(wanted, int) or wanted == size for wanted, size in sizes)


def _differs(data: bytes, given: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return what another result there is without the graph's rewrites; empty if none."""
    try:
        plain = load(data, stop_at=0, **options())
    except TimeLimitError:
        return ""
    with plain:
        if not all(node.op.deterministic for node in plain.graph.walk()):
            return ""
        try:
            expected = plain.run(given, timeout=SECONDS)
        except TimeLimitError:
            return ""
        except TercetError as error:
            said = str(error)
            return "" if is_unread(plain.imported, said) else f"runs with rewrites alone: {said}"
        for result in Judge(plain.imported, given).outputs(expected, found):
            if result.verdict == "MISMATCH":
                return f"{result.output}: {result.reason}"
    return ""


def is_unread(graph: Graph, said: str) -> bool:
    """Whether an error is that of a node of which no result needs more than sizes.

    Rewrites leave it out.

    Args:
        graph: as it was imported.
        said: the error's message.
    """
    needed = set(graph.outputs.values())
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            if f"node '{printable(node.name)}'" in said:
                return True
        elif not isinstance(node.op, Shape | Size):
            needed.update(node.distinct_reads)
    return False


def _where(error: BaseException) -> str:
    """Return the line of the project's code that let an error through, and its text."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [(Path(frame.filename), frame.lineno) for frame in frames]
    own = [found for found in files if found[0].is_relative_to(ROOT)]
    file, line = next((f for f in reversed(own) if f[0].parent.name != "fuzz"), own[-1])
    return f"{file.parent.name}/{file.name}:{line}: {str(error)[:200]}"
