"""Which of the named algorithms of an operator is taken, and why the others are not.

An algorithm says in which formats it wants its tensors and gives a recipe, or says why it cannot.
The one that is taken is the one that the user asked for by name; else the one that was measured to
be the fastest, if the user wants that; else the one whose estimate is least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from ....runtime.errors import did_you_mean
from ....runtime.ir.op import Op
from ....runtime.plan.backend import Format
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
    """What a selector has algorithms for: an operator with its operands."""

    @property
    def setting(self) -> Setting:
        """The GPU and the user's choices."""
        ...

    @property
    def signature(self) -> str:
        """Everything that the speed of an algorithm depends on; no names."""
        ...

    @property
    def y(self) -> Tensor:
        """The result."""
        ...

    @property
    def epilogue(self) -> Epilogue:
        """What follows on every result."""
        ...

    @property
    def formats(self) -> Formats:
        """The formats in which its tensors lie."""
        ...

    def within(self, formats: Formats) -> Any:
        """Return the same task on tensors in other formats."""
        ...


#: Why an algorithm is not taken that is less accurate than others.
UNASKED = "taken only where it is asked for by name"

T = TypeVar("T", bound=Task)


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[T]):
    """One algorithm to run an operator.

    Attributes:
        name: the field's term for it.
        make: gives a recipe for a task whose tensors lie in the formats wanted, or the reason why
            there is none; its second argument is one of `variants`, or empty for its own choice.
        formats: the formats that it wants, or the reason why it cannot be used at all.
        estimate: microseconds that it is expected to take, in the formats that it wants; known
            before there is a recipe.
        floor: microseconds that the estimate is never below, infinite where the formats are
            refused. An algorithm is not looked at whose floor another's estimate does not exceed.
        variants: names of the forms that it has for a task, such as tile sizes; for the tuner.
        anywhere: it takes its tensors in every format, not only in those that it wants.
        by_name: it is taken only where the user asks for it, because its results are worse.
    """

    name: str
    make: Callable[[T, str], Answer]
    formats: Callable[[T], Formats | str]
    estimate: Callable[[T], float]
    variants: Callable[[T], tuple[str, ...]] = lambda task: ()
    anywhere: bool = False
    by_name: bool = False
    floor: Callable[[T], float] = lambda task: 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The answer of one algorithm to a task.

    Attributes:
        algorithm: its name.
        formats: of the tensors.
        recipe: what it launches; None where it cannot be used.
        reason: why it cannot; empty where it can.
        microseconds: what it takes, as estimated; infinite where it cannot be used.
        variant: its form, where a certain one was wanted.
    """

    algorithm: str
    formats: Formats = CONTIGUOUS
    recipe: Recipe | None = None
    reason: str = ""
    microseconds: float = inf
    variant: str = ""

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return workspace_of(self.recipe) if self.recipe is not None else 0


@dataclass(frozen=True, slots=True)
class Selector(Generic[T]):
    """The algorithms to run an operator.

    Attributes:
        operator: its name.
        algorithms: in order of preference; it decides between equal estimates.
        task: makes the task of an operator and its operands, or says why there is no algorithm at
        all.
    """

    operator: str
    algorithms: tuple[Algorithm[T], ...]
    task: Callable[[RecipeContext], T | str]

    def named(self, name: str) -> Algorithm[T] | str:
        """Return the algorithm of this name, or what is known instead."""
        names = [algorithm.name for algorithm in self.algorithms]
        if name not in names:
            hint = did_you_mean(name, names)
            return f"{self.operator} has no such algorithm; it has {', '.join(names)}{hint}"
        return self.algorithms[names.index(name)]

    def candidate(self, task: T, algorithm: Algorithm[T], variant: str = "") -> Candidate:
        """Return the candidate of an algorithm for a task, in the formats that it wants."""
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
        return Candidate(algorithm.name, formats, answer, "", algorithm.estimate(task), variant)

    def candidates(self, task: T) -> tuple[Candidate, ...]:
        """Return the candidate of each algorithm, in the order of the selector."""
        return tuple(
            Candidate(algorithm.name, reason=UNASKED)
            if algorithm.by_name
            else self.candidate(task, algorithm)
            for algorithm in self.algorithms
        )

    # ── the choice ───────────────────────────────────────────────────────────────────────────

    def pick(self, task: T) -> Candidate:
        """Return the candidate that is taken; one without a recipe has all reasons."""
        setting = task.setting
        known = (task.signature, task.epilogue.title, *setting.asked)
        if known not in setting.picks:
            candidate = self._pick(task)
            setting.picks[known] = (candidate.algorithm, candidate.variant, candidate.reason)
            return candidate
        name, variant, reason = setting.picks[known]
        algorithm = self.named(name)
        if reason or isinstance(algorithm, str):
            return Candidate(name, reason=reason)
        return self.candidate(task, algorithm, variant)

    def _pick(self, task: T) -> Candidate:
        if task.setting.asked:
            return self._asked(task)
        chosen = task.setting.choices.get(task.signature)
        if chosen is not None:
            algorithm = self.named(chosen.algorithm)
            if not isinstance(algorithm, str) and chosen.variant in ("", *algorithm.variants(task)):
                candidate = self.candidate(task, algorithm, chosen.variant)
                if candidate.recipe is not None:
                    return candidate
        return self._quickest(
            task, {algorithm: None for algorithm in self.algorithms if not algorithm.by_name}
        )

    def _quickest(self, task: T, left: dict[Algorithm[T], Formats | None]) -> Candidate:
        """Return the candidate of the algorithm with the lowest estimate that can be used.

        Only that one's recipe is made; if it turns out that there is none, the next one's.

        Args:
            task: what is to be done.
            left: the algorithms, with the formats of the tensors; None for those that an algorithm
            wants.
        """
        refused = {
            algorithm.name: UNASKED
            for algorithm in self.algorithms
            if algorithm.by_name and algorithm not in left
        }
        while left:
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
            if best is not None:
                time, algorithm, formats = best
                candidate = self._served(task.within(formats), algorithm, formats, "")
                if candidate.recipe is not None:
                    return candidate
                refused[algorithm.name] = candidate.reason
                del left[algorithm]
        names = (algorithm.name for algorithm in self.algorithms if algorithm.name in refused)
        return Candidate(self.operator, reason="; ".join(f"{n}: {refused[n]}" for n in names))

    def _asked(self, task: T) -> Candidate:
        """Return the first algorithm of those asked for that can be used."""
        reasons: list[str] = []
        for name in task.setting.asked:
            candidate = self._named_candidate(task, *name.partition(":")[::2])
            if candidate.recipe is not None:
                return candidate
            reasons.append(f"algorithm '{name}' cannot be used: {candidate.reason}")
        return Candidate(task.setting.asked[0], reason="; ".join(reasons))

    def _named_candidate(self, task: T, name: str, form: str) -> Candidate:
        """Return the candidate of an algorithm, in one of its forms if one is named."""
        algorithm = self.named(name)
        if isinstance(algorithm, str):
            return Candidate(name, reason=algorithm)
        forms = algorithm.variants(task) if form else ()
        if form and form not in forms:
            known = f"it has {', '.join(forms)}" if forms else "it has one form only"
            hint = did_you_mean(form, forms)
            return Candidate(name, reason=f"there is no form '{form}' for this task; {known}{hint}")
        return self.candidate(task, algorithm, form)

    # ── what the registry asks for ───────────────────────────────────────────────────────────

    def formats(self, context: RecipeContext) -> Formats:
        """Return the formats of the first input and of the result; plain if no algorithm fits."""
        task = self.task(context)
        return CONTIGUOUS if isinstance(task, str) else self.pick(task).formats

    def build(self, context: RecipeContext) -> Answer:
        """Return the recipe for tensors in the formats that they have, or why there is none."""
        task = self.task(context)
        if isinstance(task, str):
            return task
        candidate = self.pick(task)
        if candidate.recipe is None:
            return candidate.reason
        if candidate.formats == task.formats:
            return candidate.recipe
        if candidate.variant and task.setting.asked:
            return _misplaced(f"{candidate.algorithm}:{candidate.variant}", task)
        return self._elsewhere(task, candidate.algorithm)

    def _elsewhere(self, task: T, wanted: str) -> Answer:
        """Return the best recipe for tensors in other formats than the chosen algorithm wants."""
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
        """Enter the selector into the table of kernels."""
        kernel = Kernel(self.build, formats=self.formats, epilogue=True, selector=self)
        register(kernel, *operators)


def _misplaced(wanted: str, task: Task) -> str:
    given = " and ".join(format.value for format in task.formats)
    return f"{wanted} does not take tensors that lie {given}"


def workspace_of(recipe: Recipe) -> int:
    """Return the bytes of scratch memory that a recipe needs."""
    return max((launch.scratch for launch in launches_of(recipe)), default=0)
