"""Random graphs, run in every way that there is: rewritten, as they are, by onnxruntime, planned.

    python -m tercet.tools.workshop.fuzz.differential --graphs 1000 --seed 1

What differs by more than rounding is printed with the graph's number; ``--only NUMBER --save FILE``
writes its model, which `tercet bisect` and `tercet compare` take from there.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
from onnx import ModelProto, TensorProto

from .... import load
from ....runtime.errors import TercetError, UnsupportedError
from ....runtime.ir.graph import Graph
from ....runtime.ir.types import Array
from ....runtime.options import Precision
from ...common.console import open_console
from ...common.environment import environment
from ...common.nested import flat
from ...common.onnxruntime_errors import onnxruntime_errors
from ...export.export import export
from ...inspect.inspection import inspect
from ...verdict.error_bounds import Judge
from ...verdict.float64_reference import Oracle
from ..honest import honest
from ..onnxruntime_process import ONNXRUNTIME, run_onnxruntime
from .emulation import Kernels, add_kernels, kernels_of
from .graphs import random_model
from .graphs_page import Tally, summary, write
from .numbering import add_numbering, numbers_of, shown, until, verify_passes
from .respelling import respelled
from .variants import (
    in_dtype,
    resized,
    with_bodies,
    with_functions,
    with_names,
    with_pieces,
    with_unknown_sizes,
)
from .whole_biases import with_whole_biases

#: Graphs of one campaign; the next one has others.
_APART = 1_000_000
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")
PLANNED: tuple[Precision, ...] = (*PRECISIONS, "bfloat16")
_OPSETS = (7, 9, 11, 13, 16, 18, 21, 23, 24)
#: What a row of results may be off by, as a share of its greatest element, and need no judge.
_CLOSE = 2e-6
#: What half precision may be off by, as a share of a tensor's greatest element.
_HALF = 2e-2
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
Arrays = Mapping[str, Array]


@dataclass
class Case:
    """A model, its inputs, and what it gives for them.

    Attributes:
        proto: the model.
        feeds: its inputs.
        reference: its outputs.
        precision: that of the results that are held against them.
        passes: those that have rewritten it.
        tried: counts what was held against the reference, by name.
    """

    proto: ModelProto
    feeds: Arrays
    reference: Arrays
    precision: Precision = "float32"
    passes: set[str] = field(default_factory=set[str])
    tried: Counter[str] = field(default_factory=Counter[str])

    @cached_property
    def judge(self) -> Judge:
        with load(self.proto, stop_at=0) as plain:
            return Judge(plain.imported, self.feeds, self.precision)

    @cached_property
    def is_rough(self) -> bool:
        """Whether parts are in half precision, which onnxruntime computes with more digits."""
        return any(
            attribute.name == "to" and attribute.i in _HALVES
            for node in self.proto.graph.node
            for attribute in node.attribute
        )

    def against(self, name: str, found: Arrays, *, doubts: bool = True) -> Iterator[str]:
        """Yield what of these outputs is wrong, and with `doubts` what may be."""
        self.tried[name.partition(": ")[0]] += 1
        rough = self.precision != "float32"
        share = _HALF if rough else _CLOSE
        if not all(_close(x, found[n], share, whole=rough) for n, x in self.reference.items()):
            for each in self.judge.outputs(self.reference, found):
                if each.verdict == "MISMATCH" or not (each.ok or self.is_rough or not doubts):
                    yield f"{name}: {each.verdict}: {each.output} {each.type}: {each.reason}"


def findings(
    proto: ModelProto,
    feeds: Arrays,
    target: str = "",
    dice: Random | None = None,
    kernels: Kernels | None = None,
    count: Counter[str] | None = None,
) -> Iterator[str]:
    """Run a model in every way; yield what is wrong with it, a line each.

    Args:
        proto: the model.
        feeds: its inputs.
        target: a GPU to plan for, such as ``sm_90a``; none where empty.
        dice: chooses in which other ways the model is written.
        kernels: run the model as well; see `emulation`.
        count: gets one for each way, by name.

    Raises:
        TercetError: it is refused, though it is a model.
    """
    refused: list[str] = []
    dice = dice or Random(0)
    (_, reference), *others = honest(proto, feeds, refused, "float32")
    case = Case(proto, feeds, reference, tried=Counter() if count is None else count)
    complaints = {name: list(case.against(name, found)) for name, found in others}
    is_misled = _forgive_rewrites_of_onnxruntime(complaints)
    if not refused:
        for optimised in (not is_misled, False):
            found = _exported(proto, feeds, optimised=optimised)
            complaints["exported"] = list(case.against("exported to onnxruntime", found))
            if not complaints["exported"]:
                break
    for lines in complaints.values():
        yield from lines
    yield from _written_otherwise(case, dice)
    yield from _of_integers(case)
    for dtype in ("float16", "float64", "int32"):
        yield from in_other_dtype(case, dtype)
    if not refused:
        yield from of_other_sizes(case, dice)
    for precision in PLANNED if target else ():
        case.tried[f"planned in {precision}"] += 1
        shapes = {name: data.shape for name, data in feeds.items()}
        inspect(proto, placement="cuda", target=target, precision=precision, shapes=shapes)
    if kernels is not None:
        yield from emulated(case, kernels)


def _forgive_rewrites_of_onnxruntime(complaints: dict[str, list[str]]) -> bool:
    """Drop what only onnxruntime's graph optimisations compute; return whether there is any.

    Its nodes one by one agree then, and its optimisations change the result of the same file.
    """
    if complaints.get("onnxruntime plain") != []:
        return False
    wrong = [name for name in complaints if name.startswith("onnxruntime") and complaints[name]]
    for name in wrong:
        del complaints[name]
    return bool(wrong)


def _exported(proto: ModelProto, feeds: Arrays, *, optimised: bool) -> Arrays:
    """Return what onnxruntime makes of the optimised file, with its own optimisations or not.

    It may refuse operators of the newest opset, and its own rewrites may end in errors.
    """
    if optimised:
        with suppress(*onnxruntime_errors()):
            return run_onnxruntime(export(proto).proto, feeds)
    return run_onnxruntime(export(proto, opset=_OPSETS[-1]).proto, feeds, "ORT_DISABLE_ALL")


def _written_otherwise(case: Case, dice: Random) -> Iterator[str]:
    """Yield what is wrong with functions, other spellings, and files of other opsets."""
    opset, optimise = dice.choice(_OPSETS), dice.random() < 0.5
    wrapped, given = with_bodies(case.proto, dice)
    models = {"with functions": with_functions(case.proto, dice), "with a body": wrapped}
    models["in other words"] = respelled(case.proto, dice)
    models["with more pieces"] = with_pieces(case.proto, dice)
    try:
        written = export(case.proto, opset=opset, optimise=optimise).proto
        models[f"written in opset {opset}"] = written
    except UnsupportedError:
        pass
    for name, model in models.items():
        with load(model) as held:
            found = flat(held.run({**case.feeds, **(given if model is wrapped else {})})).values()
        yield from case.against(name, dict(zip(case.reference, found, strict=False)))


def _of_integers(case: Case) -> Iterator[str]:
    """Yield what is wrong where layers between quantizers are layers of integers."""
    with load(case.proto, integers=True) as held:
        if "multiply_integers" in held.rewrites.counts:
            found, whole = flat(held.run(case.feeds)), with_whole_biases(case.proto)
            floats = replace(case, proto=whole, reference=_results(whole, case.feeds))
            yield from floats.against("on integers", found, doubts=False)


def in_other_dtype(case: Case, dtype: str, skip: Sequence[str] = ()) -> Iterator[str]:
    """Yield what rewrites do to the model with another type in the place of float32.

    Args:
        case: a model of float32.
        dtype: see `in_dtype`; ONNX lacks some operators of it.
        skip: passes that are left out.
    """
    model, feeds = in_dtype(case.proto, case.feeds, dtype)
    find = _finite_halves if dtype == "float16" else _results
    try:
        expected = find(model, feeds)
    except TercetError:
        return  # a node is for float32 alone
    with load(model, skip=skip) as held:
        found = flat(held.run(feeds))
        case.passes.update(rewrite.name for rewrite in held.rewrites)
    halves = dtype == "float16"
    if not halves or not all(
        _close(data, found[name], _HALF, whole=True) for name, data in expected.items()
    ):
        other = Case(model, feeds, expected)
        yield from other.against(f"in {dtype}", found, doubts=not halves)
    case.tried[f"in {dtype}"] += 1


def _results(model: ModelProto, feeds: Arrays) -> Arrays:
    """Return what a model gives without rewrites."""
    with load(model, stop_at=0) as plain:
        return flat(plain.run(feeds))


def _finite_halves(model: ModelProto, feeds: Arrays) -> Arrays:
    """Return the outputs of a model in float16 for which no number is missing there."""
    with load(model, stop_at=0) as plain:
        graph = plain.imported
        inside = [value.name for node in graph.nodes for value in node.outputs]
        every = [*dict.fromkeys([*graph.outputs, *inside])]
        values = flat(plain.run(feeds, every))
    with closing(Oracle(graph)) as oracle:
        overflown = _overflown(graph, values, flat(oracle.run(feeds, every)))
    outputs = [name for name in values if name.partition("[")[0] in graph.outputs]
    return {name: values[name] for name in outputs if name.partition("[")[0] not in overflown}


def _overflown(graph: Graph, narrow: Arrays, wide: Arrays) -> set[str]:
    """Return what is computed from numbers that float16 lacks: rewrites may avoid an overflow."""
    found: set[str] = set()
    for node in graph.nodes:
        names = [value.name for value in node.outputs]
        is_new = any(not _is_as_finite(narrow[n], wide[n]) for n in names if n in narrow)
        if is_new or any(value.name in found for value in node.distinct_reads):
            found.update(names)
    return found | {name for name, value in graph.outputs.items() if value.name in found}


def _is_as_finite(narrow: Array, wide: Array) -> bool:
    if narrow.shape != wide.shape or wide.dtype.kind != "f":
        return True
    return bool(np.isfinite(narrow[np.isfinite(wide)]).all())


def of_other_sizes(
    case: Case, dice: Random, skip: Sequence[str] = (), *, check: bool = True
) -> Iterator[str]:
    """Yield what one loaded model does wrong with inputs of several sizes.

    Args:
        case: a model, whose sizes all get names, or are unknown.
        dice: draws sizes.
        skip: passes that are left out.
        check: whether onnxruntime has to take these sizes, and doubts are due; else NaN may not
            come out.
    """
    rng = np.random.default_rng(dice.getrandbits(32))
    models = {"other": with_names(case.proto), "unknown": with_unknown_sizes(case.proto, dice)}
    for kind, model in models.items():
        with load(model, skip=skip) as held, load(model, stop_at=0) as plain:
            for round_ in range(4):
                feeds = resized(case.feeds, dice, rng) if round_ else case.feeds
                try:
                    if check and not _is_empty(feeds):  # else it may divide by 0
                        run_onnxruntime(model, feeds, "ORT_DISABLE_ALL")
                    expected = flat(plain.run(feeds))
                except (*onnxruntime_errors(), TercetError):
                    continue  # the graph is for some sizes alone
                if not check and any(has_nan(data) for data in expected.values()):
                    continue
                found = flat(held.run(feeds))
                shapes = {name: data.shape for name, data in feeds.items()}
                case.tried["of no elements" if _is_empty(feeds) else f"of {kind} sizes"] += 1
                yield from Case(model, feeds, expected).against(
                    f"of {kind} {shapes}", found, doubts=check
                )


def _is_empty(feeds: Arrays) -> bool:
    return not all(data.size for data in feeds.values())


def emulated(
    case: Case,
    kernels: Kernels,
    skip: Sequence[str] = (),
    precisions: Sequence[Precision] = PRECISIONS,
) -> Iterator[str]:
    """Yield what kernels compute that is wrong, in float32 and in half precision."""
    for precision in precisions:
        found = kernels.run(case.proto, case.feeds, precision, skip, case.passes)
        if precision == "float32":
            yield from case.against("emulated", found, doubts=False)
            continue
        with load(case.proto, precision=precision, skip=skip) as model:
            expected = flat(model.run(case.feeds))
        halves = replace(case, reference=expected, precision=precision)
        yield from halves.against(f"emulated in {precision}", found, doubts=False)


def has_nan(data: Array) -> bool:
    """Whether an array holds NaN, in whose place rewrites may give a number."""
    return data.dtype.kind == "f" and bool(np.isnan(data).any())


def _close(a: Array, b: Array, share: float = _CLOSE, *, whole: bool = False) -> bool:
    """Return whether two arrays are the same, but for rounding of rows, or of tensors."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f" and a.dtype.name != "bfloat16":
        return whole or bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return False
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    axes = None if whole or x.ndim == 0 else -1
    largest = np.abs(x).max(axis=axes, keepdims=True, initial=0)
    return bool(np.all(np.abs(x - y) <= share * largest))


def tried(run: Callable[..., Iterator[str]], *given: object, **options: object) -> Iterator[str]:
    """Yield findings, and an error as one of them: none is due."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from run(*given, **options)
    except TercetError as error:
        yield f"{type(error).__name__}: {error}"
    except onnxruntime_errors() as error:
        yield f"onnxruntime refuses what was exported: {error}"
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        yield f"untyped: {traceback.format_exc(limit=-3, chain=False)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where nothing was found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbering(parser, "graphs", 200, "the number of one graph")
    parser.add_argument("--nodes", type=int, default=16, help="of each graph, about")
    parser.add_argument("--target", default="", help="also plan for a GPU, such as sm_90a")
    add_kernels(parser)
    parser.add_argument("--save", type=Path, help="with --only: write its model")
    parser.add_argument("--output", type=Path, help="folder for random_graphs.md and .json")
    given = parser.parse_args(arguments)
    verify_passes()
    console = open_console()
    kernels = kernels_of(given)
    counted, ways, operators = Counter[str](), Counter[str](), Counter[str]()
    found: dict[str, list[str]] = {}
    for number in until(given.seconds, numbers_of(given)):
        proto, feeds = random_model(_APART * given.seed + number, given.nodes)
        if given.save and given.only is not None:
            given.save.write_bytes(proto.SerializeToString())
        counted["graphs"] += 1
        counted["nodes"] += len(proto.graph.node)
        dice = Random(number)
        operators.update({node.op_type for node in proto.graph.node})
        for line in tried(findings, proto, feeds, given.target, dice, kernels, ways):
            counted["findings"] += 1
            found.setdefault(str(number), []).append(line)
            console.print(f"{number}: {line}")
        for line in ONNXRUNTIME.ended:
            counted["crashes of onnxruntime"] += 1
            console.print(f"{number}: {line}")
        ONNXRUNTIME.ended.clear()
    console.print(", ".join(f"{count} {what}" for what, count in counted.items()))
    if given.output:
        command = shown("differential", arguments)
        tally = Tally(counted, ways, operators, found)
        write(summary(tally, environment(("numpy", "onnx", "onnxruntime")), command), given.output)
    return int(counted["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
