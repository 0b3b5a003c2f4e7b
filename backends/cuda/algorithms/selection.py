"""Menus: the named ways to run an operator, of which one is taken, and why the others are not.

A way says in which formats it wants its tensors and gives a recipe, or says why it cannot. The one
that is taken is the one that the user asked for by name; else the one that was measured to be the
fastest, if the user wants that; else the one whose estimate is least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from ....runtime.errors import did_you_mean
from ....runtime.ir.op import Op
from ....runtime.plan.backend import Format
from ..codegen.epilogue import Tail
from ..recipe.bounds import as_reason
from ..recipe.launch import Recipe, launches_of
from ..recipe.operands import Tensor
from .registry import Answer, Kernel, RecipeContext, Setting, register

#: Physical formats of the first input and of the first output.
Formats = tuple[Format, Format]
PLAIN: Formats = (Format.PLAIN, Format.PLAIN)
LAST: Formats = (Format.CHANNELS_LAST, Format.CHANNELS_LAST)


class Task(Protocol):
    """What a menu has ways for: an operator with its operands."""

    @property
    def setting(self) -> Setting:
        """The GPU and the user's choices."""
        ...

    @property
    def signature(self) -> str:
        """Everything that the speed of a way depends on; no names."""
        ...

    @property
    def y(self) -> Tensor:
        """The result."""
        ...

    @property
    def tail(self) -> Tail:
        """What follows on every result."""
        ...

    @property
    def formats(self) -> Formats:
        """The formats in which its tensors lie."""
        ...

    def within(self, formats: Formats) -> Any:
        """Return the same task on tensors in other formats."""
        ...


#: Why a way is not taken that is less accurate than others.
UNASKED = "taken only where it is asked for by name"

T = TypeVar("T", bound=Task)


@dataclass(frozen=True, slots=True)
class Way(Generic[T]):
    """One way to run an operator.

    Attributes:
        name: the field's term for it.
        make: gives a recipe for a task whose tensors lie in the formats wanted, or the reason why
            there is none; its second argument is one of `variants`, or empty for its own choice.
        formats: the formats that it wants, or the reason why it cannot be used at all.
        estimate: microseconds that it is expected to take, in the formats that it wants; known
            before there is a recipe.
        floor: microseconds that the estimate is never below, infinite where the formats are
            refused. A way is not looked at whose floor another's estimate does not exceed.
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
class Offer:
    """What one way has to say to a task.

    Attributes:
        way: its name.
        formats: of the tensors.
        recipe: what it launches; None where it cannot be used.
        reason: why it cannot; empty where it can.
        microseconds: what it takes, as estimated; infinite where it cannot be used.
        variant: its form, where a certain one was wanted.
    """

    way: str
    formats: Formats = PLAIN
    recipe: Recipe | None = None
    reason: str = ""
    microseconds: float = inf
    variant: str = ""

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return workspace_of(self.recipe) if self.recipe is not None else 0


@dataclass(frozen=True, slots=True)
class Menu(Generic[T]):
    """The ways to run an operator.

    Attributes:
        operator: its name.
        ways: in order of preference; it decides between equal estimates.
        task: makes the task of an operator and its operands, or says why there is no way at all.
    """

    operator: str
    ways: tuple[Way[T], ...]
    task: Callable[[RecipeContext], T | str]

    def named(self, name: str) -> Way[T] | str:
        """Return the way of this name, or what is known instead."""
        names = [way.name for way in self.ways]
        if name not in names:
            hint = did_you_mean(name, names)
            return f"{self.operator} has no such way; it has {', '.join(names)}{hint}"
        return self.ways[names.index(name)]

    def offer(self, task: T, way: Way[T], variant: str = "") -> Offer:
        """Return what a way makes of a task, in the formats that it wants."""
        formats = way.formats(task)
        if isinstance(formats, str):
            return Offer(way.name, reason=formats, variant=variant)
        return self._served(task.within(formats), way, formats, variant)

    def _served(self, task: T, way: Way[T], formats: Formats, variant: str) -> Offer:
        answer = as_reason(way.make)(task, variant)
        if isinstance(answer, str):
            return Offer(way.name, formats, reason=answer, variant=variant)
        limit, needed = task.setting.options.workspace, workspace_of(answer)
        if limit is not None and needed > limit:
            reason = f"workspace over the limit: needs {needed} bytes, {limit} are allowed"
            return Offer(way.name, formats, reason=reason, variant=variant)
        return Offer(way.name, formats, answer, "", way.estimate(task), variant)

    def offers(self, task: T) -> tuple[Offer, ...]:
        """Return what every way has to say, in the order of the menu."""
        return tuple(
            Offer(way.name, reason=UNASKED) if way.by_name else self.offer(task, way)
            for way in self.ways
        )

    # ── the choice ───────────────────────────────────────────────────────────────────────────

    def pick(self, task: T) -> Offer:
        """Return the offer that is taken, or one without a recipe and with all that was said."""
        setting = task.setting
        known = (task.signature, task.tail.title, *setting.asked)
        if known not in setting.picks:
            offer = self._pick(task)
            setting.picks[known] = (offer.way, offer.variant, offer.reason)
            return offer
        name, variant, reason = setting.picks[known]
        way = self.named(name)
        if reason or isinstance(way, str):
            return Offer(name, reason=reason)
        return self.offer(task, way, variant)

    def _pick(self, task: T) -> Offer:
        if task.setting.asked:
            return self._asked(task)
        chosen = task.setting.choices.get(task.signature)
        if chosen is not None:
            way = self.named(chosen.way)
            if not isinstance(way, str) and chosen.variant in ("", *way.variants(task)):
                offer = self.offer(task, way, chosen.variant)
                if offer.recipe is not None:
                    return offer
        return self._quickest(task, {way: None for way in self.ways if not way.by_name})

    def _quickest(self, task: T, left: dict[Way[T], Formats | None]) -> Offer:
        """Return the offer of the way with the least estimate among those that can be used.

        Only that one's recipe is made; if it turns out that there is none, the next one's.

        Args:
            task: what is to be done.
            left: the ways, with the formats of the tensors; None for those that a way wants.
        """
        refused = {way.name: UNASKED for way in self.ways if way.by_name and way not in left}
        while left:
            best: tuple[float, Way[T], Formats] | None = None
            for way, given in tuple(left.items()):
                if best is not None and way.floor(task) >= best[0]:
                    continue
                formats = given or way.formats(task)
                if isinstance(formats, str):
                    refused[way.name] = formats
                    del left[way]
                    continue
                time = way.estimate(task.within(formats))
                if best is None or time < best[0]:
                    best = time, way, formats
            if best is not None:
                time, way, formats = best
                offer = self._served(task.within(formats), way, formats, "")
                if offer.recipe is not None:
                    return offer
                refused[way.name] = offer.reason
                del left[way]
        names = (way.name for way in self.ways if way.name in refused)
        return Offer(self.operator, reason="; ".join(f"{n}: {refused[n]}" for n in names))

    def _asked(self, task: T) -> Offer:
        """Return the first way of those asked for that can be used."""
        reasons: list[str] = []
        for name in task.setting.asked:
            way = self.named(name)
            offer = Offer(name, reason=way) if isinstance(way, str) else self.offer(task, way)
            if offer.recipe is not None:
                return offer
            reasons.append(f"algorithm '{name}' cannot be used: {offer.reason}")
        return Offer(task.setting.asked[0], reason="; ".join(reasons))

    # ── what the registry asks for ───────────────────────────────────────────────────────────

    def formats(self, context: RecipeContext) -> Formats:
        """Return the formats of the first input and of the result; plain where no way fits."""
        task = self.task(context)
        return PLAIN if isinstance(task, str) else self.pick(task).formats

    def build(self, context: RecipeContext) -> Answer:
        """Return the recipe for tensors in the formats that they have, or why there is none."""
        task = self.task(context)
        if isinstance(task, str):
            return task
        offer = self.pick(task)
        if offer.recipe is None:
            return offer.reason
        if offer.formats == task.formats:
            return offer.recipe
        return self._elsewhere(task, offer.way)

    def _elsewhere(self, task: T, wanted: str) -> Answer:
        """Return the best recipe for tensors that lie otherwise than the chosen way wants."""
        asked, able = task.setting.asked, dict[Way[T], Formats | None]()
        for way in self.ways:
            formats = way.formats(task)
            if isinstance(formats, str) or (way.name not in asked if asked else way.by_name):
                continue
            if way.anywhere or formats == task.formats:
                able[way] = task.formats
        answer = self._quickest(task, able)
        if answer.recipe is not None:
            return answer.recipe
        given = " and ".join(format.value for format in task.formats)
        return f"{wanted} does not take tensors that lie {given}"

    def register(self, *operators: type[Op]) -> None:
        """Enter the menu into the table of kernels."""
        kernel = Kernel(self.build, formats=self.formats, tail=True, menu=self)
        register(kernel, *operators)


def workspace_of(recipe: Recipe) -> int:
    """Return the bytes of scratch memory that a recipe needs."""
    return max((launch.scratch for launch in launches_of(recipe)), default=0)
