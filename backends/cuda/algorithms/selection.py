"""Algorithm selection: which algorithm of an operator is used, and why not the others.

An algorithm states the formats it needs and returns a recipe, or the reason why it does not apply.
The algorithm that the user requested by name is selected; otherwise the fastest measured one, if
tuned; otherwise the one with the lowest estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from ....runtime.base.record import record
from ....runtime.errors import did_you_mean
from ....runtime.ir.graph import Node
from ....runtime.ir.op import Op
from ....runtime.plan.format import Format
from ..codegen.epilogue import Epilogue
from ..recipe.arguments import as_reason
from ..recipe.launch import Recipe, launches_of
from ..recipe.operands import Tensor
from .registry import Answer, Kernel, RecipeContext, Setting, register

#: Physical formats of the first input and of the first output.
Formats = tuple[Format, Format]
CONTIGUOUS: Formats = (Format.CONTIGUOUS, Format.CONTIGUOUS)
CHANNELS_LAST: Formats = (Format.CHANNELS_LAST, Format.CHANNELS_LAST)


class Task(Protocol):
    """A problem that a selector has algorithms for: an operator with its operands."""

    @property
    def setting(self) -> Setting:
        """The GPU and the user's options."""
        ...

    @property
    def signature(self) -> str:
        """Everything that the speed of an algorithm depends on, without names."""
        ...

    @property
    def around(self) -> tuple[str, ...]:
        """What its speed depends on besides, in the graph that it is in."""
        ...

    @property
    def y(self) -> Tensor:
        """The result."""
        ...

    @property
    def epilogue(self) -> Epilogue:
        """The fused elementwise nodes."""
        ...

    @property
    def formats(self) -> Formats:
        """The formats of input and result."""
        ...

    @property
    def plain(self) -> Any:
        """The same task, with results as they are, for which algorithms are chosen."""
        ...

    def within(self, formats: Formats) -> Any:
        """Return the same task with tensors in other formats."""
        ...


def key_of(task: Task) -> str:
    """Return what a measured choice applies to: the problem with its epilogue."""
    return " then ".join(filter(None, (task.signature, task.epilogue.title)))


def _problem_of(task: Task, *, tuned: bool = False) -> tuple[str, ...]:
    """Return all that a choice depends on."""
    setting = task.setting
    measured = ("tuned",) if tuned and setting.choices else ()
    return (task.signature, task.epilogue.title, *task.around, *setting.asked, *measured)


#: Algorithms with an estimate beyond this multiple of the lowest one are not measured.
HOPELESS = 3.0
#: Maximum number of variants of an algorithm that are measured.
VARIANTS = 12
#: The reason given for less accurate algorithms.
UNASKED = "used only if requested by name"

T = TypeVar("T", bound=Task)


@record
class Algorithm(Generic[T]):
    """One algorithm of an operator.

    Attributes:
        name: the usual term for it.
        make: returns a recipe for a task in the requested formats, or the reason why there is none;
            its second argument is one of `variants`, or empty for its own choice.
        formats: returns the formats it needs, or the reason why it does not apply.
        estimate: expected microseconds in the formats it needs, before a recipe is made.
        floor: a lower bound of the estimate in microseconds, infinite if it does not apply. An
            algorithm whose floor exceeds another's estimate is not considered.
        variants: names of its variants for a task, such as tile sizes, most promising first; for
            the tuner.
        anywhere: whether it accepts every format, not only the one that it requests.
        by_name: whether it is used only on request, because it is less accurate.
    """

    name: str
    make: Callable[[T, str], Answer]
    formats: Callable[[T], Formats | str]
    estimate: Callable[[T], float]
    variants: Callable[[T], tuple[str, ...]] = lambda task: ()
    anywhere: bool = False
    by_name: bool = False
    floor: Callable[[T], float] = lambda task: 0.0


@record
class Candidate:
    """The answer of one algorithm to a task.

    Attributes:
        algorithm: its name.
        formats: of the tensors.
        recipe: its launches; None if it does not apply.
        reason: why it does not apply; empty if it does.
        variant: the requested variant, if any.
        estimate: returns its estimate in microseconds.
    """

    algorithm: str
    formats: Formats = CONTIGUOUS
    recipe: Recipe | None = None
    reason: str = ""
    variant: str = ""
    estimate: Callable[[], float] = field(default=lambda: inf, compare=False, repr=False)

    @property
    def title(self) -> str:
        """The algorithm with its variant."""
        return f"{self.algorithm} {self.variant}".strip()

    @property
    def microseconds(self) -> float:
        """Its estimate, made when it is asked for; infinite if it does not apply."""
        return self.estimate()

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return workspace_of(self.recipe) if self.recipe is not None else 0


@record
class Selector(Generic[T]):
    """The algorithms of an operator.

    Attributes:
        operator: its name.
        algorithms: in order of preference, which decides between equal estimates.
        task: makes the task of an operator and its operands, or returns why no algorithm applies.
    """

    operator: str
    algorithms: tuple[Algorithm[T], ...]
    task: Callable[[RecipeContext], T | str]

    def named(self, name: str) -> Algorithm[T] | str:
        """Return the algorithm of this name, or a message listing the known ones."""
        names = [algorithm.name for algorithm in self.algorithms]
        if name not in names:
            hint = did_you_mean(name, names)
            return f"{self.operator} has no such algorithm; it has {', '.join(names)}{hint}"
        return self.algorithms[names.index(name)]

    def candidate(self, task: T, algorithm: Algorithm[T], variant: str = "") -> Candidate:
        """Return the candidate of an algorithm, in the formats that it needs."""
        formats = algorithm.formats(task)
        if isinstance(formats, str):
            return Candidate(algorithm.name, reason=formats, variant=variant)
        return self._served(task.within(formats), algorithm, formats, variant)

    def _served(
        self, task: T, algorithm: Algorithm[T], formats: Formats, variant: str
    ) -> Candidate:
        answer = as_reason(algorithm.make)(task, variant)
        if isinstance(answer, str):
            return Candidate(algorithm.name, formats, reason=answer, variant=variant)
        limit, needed = task.setting.options.workspace, workspace_of(answer)
        if limit is not None and needed > limit:
            reason = f"workspace over the limit: needs {needed} bytes, {limit} are allowed"
            return Candidate(algorithm.name, formats, reason=reason, variant=variant)
        estimate = partial(algorithm.estimate, task)
        return Candidate(algorithm.name, formats, answer, variant=variant, estimate=estimate)

    def candidates(self, task: T) -> tuple[Candidate, ...]:
        """Return the candidate of each algorithm, in the selector's order."""
        return tuple(
            Candidate(algorithm.name, reason=UNASKED)
            if algorithm.by_name
            else self.candidate(task, algorithm)
            for algorithm in self.algorithms
        )

    def in_place(self, task: T) -> Iterator[Candidate]:
        """Yield the candidates that take the tensors of a task as they are, in several variants.

        Algorithms whose estimate is more than `HOPELESS` times the lowest one are left out.
        """
        usable = [
            algorithm
            for algorithm in self.algorithms
            if not algorithm.by_name and algorithm.formats(task) == task.formats
        ]
        times = {algorithm: algorithm.estimate(task) for algorithm in usable}
        limit = HOPELESS * min(times.values(), default=inf)
        for algorithm, time in times.items():
            if time > limit:
                continue
            for variant in ("", *algorithm.variants(task)[:VARIANTS]):
                candidate = self.candidate(task, algorithm, variant)
                if candidate.recipe is not None:
                    yield candidate

    # ── the choice ───────────────────────────────────────────────────────────────────────────

    def pick(self, task: T, *, tuned: bool = True) -> Candidate:
        """Return the selected candidate; one without a recipe has all reasons.

        Args:
            task: the task.
            tuned: whether measured choices count.
        """
        picks, problem = task.setting.picks, _problem_of(task, tuned=tuned)
        if problem in picks:
            name, variant, reason = picks[problem]
            algorithm = self.named(name)
            if reason or isinstance(algorithm, str):
                return Candidate(name, reason=reason)
            candidate = self.candidate(task, algorithm, variant)
            if candidate.recipe is not None:
                return candidate
        candidate = self._pick(task, tuned=tuned)
        picks[problem] = (candidate.algorithm, candidate.variant, candidate.reason)
        return candidate

    def expected(self, task: T) -> tuple[Formats, Callable[[], float]]:
        """Return the formats that estimates select for a task, and what returns the lowest one.

        No recipe is made, unless algorithms were requested by name.
        """
        picks, problem = task.setting.picks, _problem_of(task)
        if problem not in picks and not task.setting.asked:
            best = self._best(task, self._unasked(), {})
            if best is not None:
                picks[problem] = (best[1].name, "", "")
        name, _, reason = picks.get(problem, ("", "", "new"))
        algorithm = reason or self.named(name)
        formats = algorithm if isinstance(algorithm, str) else algorithm.formats(task)
        if isinstance(algorithm, str) or isinstance(formats, str):
            candidate = self.pick(task, tuned=False)
            return candidate.formats, candidate.estimate
        return formats, partial(algorithm.estimate, task.within(formats))

    def _pick(self, task: T, *, tuned: bool) -> Candidate:
        if task.setting.asked:
            return self._asked(task)
        chosen = task.setting.choices.get(key_of(task)) if tuned else None
        if chosen is not None:
            algorithm = self.named(chosen.algorithm)
            if not isinstance(algorithm, str) and chosen.variant in ("", *algorithm.variants(task)):
                candidate = self.candidate(task, algorithm, chosen.variant)
                if candidate.recipe is not None:
                    return candidate
        return self._quickest(task, self._unasked())

    def _unasked(self) -> dict[Algorithm[T], Formats | None]:
        """Return the algorithms that need not be requested, each with the formats that it needs."""
        return {algorithm: None for algorithm in self.algorithms if not algorithm.by_name}

    def _quickest(self, task: T, left: dict[Algorithm[T], Formats | None]) -> Candidate:
        """Return the applicable candidate with the lowest estimate.

        Only its recipe is made; if there is none after all, the next one's.

        Args:
            task: the task.
            left: the algorithms, with the formats to use; None for those that an algorithm needs.
        """
        refused = {
            algorithm.name: UNASKED
            for algorithm in self.algorithms
            if algorithm.by_name and algorithm not in left
        }
        while (best := self._best(task, left, refused)) is not None:
            _, algorithm, formats = best
            candidate = self._served(task.within(formats), algorithm, formats, "")
            if candidate.recipe is not None:
                return candidate
            refused[algorithm.name] = candidate.reason
            del left[algorithm]
        names = (algorithm.name for algorithm in self.algorithms if algorithm.name in refused)
        return Candidate(self.operator, reason="; ".join(f"{n}: {refused[n]}" for n in names))

    def _best(
        self, task: T, left: dict[Algorithm[T], Formats | None], refused: dict[str, str]
    ) -> tuple[float, Algorithm[T], Formats] | None:
        """Return the lowest estimate with its algorithm and the formats that this needs.

        Args:
            task: the task.
            left: see `_quickest`; algorithms that do not apply are removed.
            refused: gets the reasons, by name.
        """
        best: tuple[float, Algorithm[T], Formats] | None = None
        for algorithm, given in tuple(left.items()):
            if best is not None and algorithm.floor(task) >= best[0]:
                continue
            formats = given or algorithm.formats(task)
            if isinstance(formats, str):
                refused[algorithm.name] = formats
                del left[algorithm]
                continue
            time = algorithm.estimate(task.within(formats))
            if best is None or time < best[0]:
                best = time, algorithm, formats
        return best

    def _asked(self, task: T) -> Candidate:
        """Return the first applicable algorithm among those requested."""
        reasons: list[str] = []
        for name in task.setting.asked:
            candidate = self._named_candidate(task, *name.partition(":")[::2])
            if candidate.recipe is not None:
                return candidate
            reasons.append(f"algorithm '{name}' cannot be used: {candidate.reason}")
        return Candidate(task.setting.asked[0], reason="; ".join(reasons))

    def _named_candidate(self, task: T, name: str, form: str) -> Candidate:
        """Return the candidate of a named algorithm, optionally in a named variant."""
        algorithm = self.named(name)
        if isinstance(algorithm, str):
            return Candidate(name, reason=algorithm)
        forms = algorithm.variants(task) if form else ()
        if form and form not in forms:
            known = f"it has {', '.join(forms)}" if forms else "it has none"
            hint = did_you_mean(form, forms)
            text = f"there is no variant '{form}' for this task; {known}{hint}"
            return Candidate(name, reason=text)
        return self.candidate(task, algorithm, form)

    # ── what the registry asks for ───────────────────────────────────────────────────────────

    def formats(self, context: RecipeContext) -> Formats:
        """Return the formats of input and result; contiguous if no algorithm applies.

        Measured choices are for tensors as estimates arrange them.
        """
        task = self.task(context)
        return CONTIGUOUS if isinstance(task, str) else self.expected(task)[0]

    def build(self, context: RecipeContext) -> Answer:
        """Return the recipe for tensors in their actual formats, or why there is none."""
        task = self.task(context)
        return task if isinstance(task, str) else self.made(task)

    def made(self, task: T) -> Answer:
        """Return the recipe of a task, or why there is none."""
        candidate = self.pick(task.plain)
        if candidate.recipe is None:
            return candidate.reason
        if task.epilogue.halves:
            algorithm = self.named(candidate.algorithm)
            assert not isinstance(algorithm, str)
            candidate = self.candidate(task, algorithm, candidate.variant)
            if candidate.recipe is None:
                return candidate.reason
        if candidate.formats == task.formats:
            return candidate.recipe
        if candidate.variant and task.setting.asked:
            return _misplaced(f"{candidate.algorithm}:{candidate.variant}", task)
        return self._elsewhere(task, candidate.algorithm)

    def _elsewhere(self, task: T, wanted: str) -> Answer:
        """Return the best recipe for formats other than those of the selected algorithm."""
        asked = [name.partition(":")[0] for name in task.setting.asked]
        able: dict[Algorithm[T], Formats | None] = {}
        for algorithm in self.algorithms:
            formats = algorithm.formats(task)
            if isinstance(formats, str) or (
                algorithm.name not in asked if asked else algorithm.by_name
            ):
                continue
            if algorithm.anywhere or formats == task.formats:
                able[algorithm] = task.formats
        answer = self._quickest(task, able)
        if answer.recipe is not None:
            return answer.recipe
        return _misplaced(wanted, task)

    def register(self, *operators: type[Op]) -> None:
        """Add the selector to the tables of kernels and of selectors."""
        register(Kernel(self.build, formats=self.formats, epilogue=True), *operators)
        SELECTORS.update(dict.fromkeys(operators, self))


@record
class TuningTask:
    """A task with its selector.

    Attributes:
        selector: the algorithms.
        task: the problem.
        node: the node.
    """

    selector: Selector[Any]
    task: Task
    node: Node

    @property
    def microseconds(self) -> float:
        """The estimate of the algorithm that estimates choose; infinite if none applies."""
        return self.selector.expected(self.task)[1]()


#: Selectors by operator; users and the tuner choose from their algorithms.
SELECTORS: dict[type[Op], Selector[Any]] = {}


def _misplaced(wanted: str, task: Task) -> str:
    given = " and ".join(format.value for format in task.formats)
    return f"{wanted} does not accept tensors in the formats {given}"


def workspace_of(recipe: Recipe) -> int:
    """Return the bytes of scratch memory that a recipe needs."""
    return max((launch.scratch for launch in launches_of(recipe)), default=0)
