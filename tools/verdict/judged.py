"""Results that have a verdict."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ...runtime.base.notebook import Shown
from ..common.ended import RunnerEnded
from ..common.views import shown
from .agreement import Word
from .error_bounds import exit_code


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Judged(Shown):
    """A result with a verdict: of `compare`, `compare_layers`, `bisect` and `export`.

    Attributes:
        stopped: why the result is incomplete; empty if it is complete.
        ended: runners that crashed or did not answer: nothing is known of what they compute.
        allow_inconclusive: whether `exit_code` is 0 for inconclusive results.
    """

    stopped: str = ""
    ended: tuple[RunnerEnded, ...] = ()
    allow_inconclusive: bool = False

    @property
    @abstractmethod
    def verdict(self) -> Word:
        """``ok``, ``MISMATCH`` or ``inconclusive``."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong or inconclusive."""
        return self.verdict == "ok"

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        allowed = self.allow_inconclusive
        ended = bool(self.ended)
        return exit_code(self.verdict, self.stopped, allow_inconclusive=allowed, ended=ended)

    def __str__(self) -> str:
        return shown(self)
