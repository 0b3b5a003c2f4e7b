"""Terminal view of a bisection."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..common.console import caution, counted, facts, lines, listed
from ..compare.importing import NOT_READ
from .bisection import Bisection


def show_bisection(console: Console, found: Bisection) -> None:
    """Print what is wrong, and the smallest part showing it."""
    console.print(Text(*_verdict(found)))
    wrong = [finding.agreement for finding in found.findings if not finding.ok]
    if wrong:
        console.print(lines(listed([f"  {each.output}: {each.reason}" for each in wrong])))
    caution(console, NOT_READ, found.unread)
    caution(console, "not complete", found.stopped)
    console.print()
    facts(
        console,
        {
            "model": found.model,
            "inputs": str(found.inputs),
            "reference": f"{found.reference}, the file as it is",
            "runner": found.runner,
            "rewrites": str(len(found.rewrites)),
            "runs": str(found.runs),
        },
    )
    if found.reduced is not None:
        part, what = found.reduced, "ends it" if found.fault == "crash" else "is wrong"
        console.print()
        console.print(Text(f"smallest part that {what}: {counted(len(part.nodes), 'node')}"))
        console.print(Text(str(part.graph)), overflow="fold")


def _verdict(found: Bisection) -> tuple[str, str]:
    if found.fault == "unknown":
        return "what is wrong is not known yet", "bold yellow"
    if found.ended:
        return "; ".join(f"CRASH: {end}" for end in found.ended), "bold red"
    if found.ok:
        return f"no mismatch found on {found.runner}", "bold green"
    if found.verdict == "inconclusive":
        where = f"; importing changes {', '.join(found.nodes)}" if found.nodes else ""
        return f"inconclusive: no mismatch found on {found.runner}{where}", "bold yellow"
    if found.rewrite is not None:
        number, total = found.rewrite.number, len(found.rewrites)
        said = f"rewrite {number} of {total} ({found.rewrite.name}): {found.rewrite.text}"
        return f"first diverging step: {said}", "bold red"
    if found.fault == "later":
        where = ", ".join(found.nodes) or "but only as a whole"
        return f"WRONG on {found.runner} after the first run: {where}", "bold red"
    if found.fault == "import":
        outputs = ", ".join(finding.agreement.output for finding in found.findings)
        where = f", first in {', '.join(found.nodes)}" if found.nodes else ""
        return f"WRONG: importing changes {outputs}{where}", "bold red"
    if found.nodes:
        return f"WRONG on {found.runner}: {', '.join(found.nodes)}", "bold red"
    return f"WRONG on {found.runner}, but only as a whole", "bold red"
