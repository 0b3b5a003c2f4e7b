"""Other runtimes that end their process instead of raising an exception."""

from __future__ import annotations

from typing import Any

from ...runtime.errors import TercetError


class RunnerEnded(TercetError):
    """Another runtime crashed, or did not answer in time.

    Args:
        runner: its name.
        by: a signal such as ``SIGSEGV``, ``exit code 3`` or ``time limit``.
        cause: the same in a sentence whose subject is the runner.
        stage: ``loading`` or ``running``.
        model: the file.
        node: name of the first node that it does not survive; empty if unknown.
        operator: that node's.
        printed: the last lines that it printed.
    """

    exit_code = 10

    def __init__(
        self,
        runner: str,
        by: str,
        cause: str,
        stage: str,
        model: str,
        node: str = "",
        operator: str = "",
        printed: str = "",
    ) -> None:
        self.runner, self.by, self.cause, self.stage = runner, by, cause, stage
        self.model, self.node, self.operator, self.printed = model, node, operator, printed
        at = f", at node '{node}' ({operator})" if node else ""
        last = f"; the last that it printed: {printed}" if printed else ""
        super().__init__(f"{runner} {cause} while {stage} {model}{at}{last}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        names = ("runner", "by", "cause", "stage", "model", "node", "operator", "printed")
        return {name: getattr(self, name) for name in names} | {"message": str(self)}
