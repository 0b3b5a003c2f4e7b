"""The view of each type of result, so that results are plain data and import no views."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.console import Console

from .console import text_of

#: Module under `tools`, and its function of a console and a result, by type of the result.
VIEWS = {
    "Bench": ("bench.bench_view", "show_bench"),
    "Bisection": ("bisect.bisection_view", "show_bisection"),
    "PrecisionResult": ("bisect.precision_view", "show_kept"),
    "Comparison": ("compare.compare_view", "show_comparison"),
    "Layers": ("compare.layers_view", "show_layers"),
    "Compilation": ("tune.compilation_view", "show_compilation"),
    "Compression": ("compress.compress_view", "show_compression"),
    "ExportResult": ("export.export_view", "show_exported"),
    "Inspection": ("inspect.inspection_view", "show_inspection"),
    "Profile": ("profile.profiling_view", "show_profile"),
}


def view_of(kind: type) -> Callable[[Console, Any], None]:
    """Return the function that prints results of a type."""
    module, function = VIEWS[kind.__name__]
    view: Callable[[Console, Any], None] = getattr(
        import_module(f"..{module}", __package__), function
    )
    return view


def shown(found: Any) -> str:
    """Return the text printed by the view of a result, without colours."""
    return text_of(view_of(type(found)), found)
