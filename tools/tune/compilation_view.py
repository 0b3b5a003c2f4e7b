"""Terminal view of compiled kernels."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..common.console import bytes_text, facts
from .compilation import Compilation


def show_compilation(console: Console, found: Compilation) -> None:
    """Print what has been compiled, for which GPU, and where it is."""
    known = found.kernels - found.compiled
    parts = [f"{found.compiled} compiled"] * bool(found.compiled or not known)
    parts += [f"{known} in the cache before"] * bool(known)
    facts(
        console,
        {
            "model": found.model,
            "target": found.target,
            "kernels": f"{found.kernels}, {bytes_text(found.nbytes)}: {', '.join(parts)}, in "
            f"{found.seconds:.1f} s",
            "cache": found.folder,
            "when run": _later(found.later),
        },
    )
    console.print(
        Text("TERCET_COMPILE=never makes it an error that a run lacks one of them", "dim")
    )


def _later(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"kernels of {', '.join(names[:3])}{rest}, whose shapes or bodies only a run knows"
