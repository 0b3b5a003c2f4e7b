"""tercet: import an ONNX model, run it on interchangeable backends, compare them.

import tercet

model = tercet.load("model.onnx", backend="cuda")
outputs = model.run({"x": array})
"""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

__version__ = "0.1.0"

# A checkout keeps the sub-packages beside this folder; an installed package has them inside it.
_here = _Path(__file__).resolve().parent
if not (_here / "runtime").is_dir():
    __path__.append(str(_here.parent))

from .runtime.errors import (  # noqa: E402 - the path above comes first
    BackendUnavailable,
    DeviceError,
    DeviceFault,
    DeviceOutOfMemory,
    FileError,
    InputError,
    KernelError,
    LimitError,
    ModelError,
    ModelFileError,
    ModelWarning,
    PerformanceWarning,
    PrecisionWarning,
    ShapeError,
    TercetError,
    TercetWarning,
    TimeLimitError,
    UnsupportedError,
    UsageError,
)

if _TYPE_CHECKING:
    from .api import available, load, pinned, run_op, to_device
    from .backends import Availability
    from .runtime.bound_plan import BoundModel
    from .runtime.custom import CustomOperator
    from .runtime.model import Model
    from .runtime.options import Options
    from .runtime.pipeline import Pipeline
    from .tools.bench import Bench, bench
    from .tools.bisection import Bisection, bisect
    from .tools.compare import Comparison, compare
    from .tools.doctor import Diagnosis, diagnose
    from .tools.export import ExportResult, export, extract, simplify
    from .tools.inspection import Inspection, inspect
    from .tools.layers import Layers, compare_layers
    from .tools.precision import PrecisionResult, keep_float32
    from .tools.profiling import Profile, profile
    from .tools.report import Report, report

__all__ = [
    "Availability",
    "BackendUnavailable",
    "Bench",
    "Bisection",
    "BoundModel",
    "Comparison",
    "CustomOperator",
    "DeviceError",
    "DeviceFault",
    "DeviceOutOfMemory",
    "Diagnosis",
    "ExportResult",
    "FileError",
    "InputError",
    "Inspection",
    "KernelError",
    "Layers",
    "LimitError",
    "Model",
    "ModelError",
    "ModelFileError",
    "ModelWarning",
    "Options",
    "PerformanceWarning",
    "Pipeline",
    "PrecisionResult",
    "PrecisionWarning",
    "Profile",
    "Report",
    "ShapeError",
    "TercetError",
    "TercetWarning",
    "TimeLimitError",
    "UnsupportedError",
    "UsageError",
    "available",
    "bench",
    "bisect",
    "compare",
    "compare_layers",
    "diagnose",
    "export",
    "extract",
    "inspect",
    "keep_float32",
    "load",
    "pinned",
    "profile",
    "report",
    "run_op",
    "simplify",
    "to_device",
]

_LAZY = {
    "Availability": ".backends",
    "Bench": ".tools.bench",
    "Bisection": ".tools.bisection",
    "BoundModel": ".runtime.bound_plan",
    "Comparison": ".tools.compare",
    "CustomOperator": ".runtime.custom",
    "Diagnosis": ".tools.doctor",
    "ExportResult": ".tools.export",
    "Inspection": ".tools.inspection",
    "Layers": ".tools.layers",
    "Model": ".runtime.model",
    "Options": ".runtime.options",
    "Pipeline": ".runtime.pipeline",
    "PrecisionResult": ".tools.precision",
    "Profile": ".tools.profiling",
    "Report": ".tools.report",
    "available": ".api",
    "bench": ".tools.bench",
    "bisect": ".tools.bisection",
    "compare": ".tools.compare",
    "compare_layers": ".tools.layers",
    "diagnose": ".tools.doctor",
    "export": ".tools.export",
    "extract": ".tools.export",
    "inspect": ".tools.inspection",
    "keep_float32": ".tools.precision",
    "load": ".api",
    "pinned": ".api",
    "profile": ".tools.profiling",
    "report": ".tools.report",
    "run_op": ".api",
    "simplify": ".tools.export",
    "to_device": ".api",
}

#: Former names, which still work in this release.
_RENAMED = {"Bound": "BoundModel", "Exported": "ExportResult", "Kept": "PrecisionResult"}


def __getattr__(name: str) -> _Any:
    """Import what is asked for the first time it is asked for: `import tercet` stays fast."""
    if name in _RENAMED:
        return __getattr__(_RENAMED[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'tercet' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
