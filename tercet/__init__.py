"""tercet: import an ONNX model, run it on interchangeable backends, compare them.

import tercet

model = tercet.load("model.onnx", backend="cuda")
outputs = model.run({"x": array})
"""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .version import __version__ as __version__

# In a checkout the sub-packages are next to this folder; in an installed package, inside it.
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
    UncompiledError,
    UnsupportedError,
    UsageError,
)

if _TYPE_CHECKING:
    from .api import available, load, pinned, to_device
    from .backends import Availability
    from .backends.cuda.custom import CudaKernel
    from .generation.generator import Generator
    from .generation.result import Generation
    from .one_operator import run_op
    from .runtime.ir.custom import CustomOperator
    from .runtime.options import Options
    from .runtime.session.bound_plan import BoundModel
    from .runtime.session.model import Model
    from .runtime.session.pipeline import Pipeline
    from .tools.bench.bench import Bench, bench
    from .tools.bisect.bisection import Bisection, bisect
    from .tools.bisect.precision import PrecisionResult, keep_float32
    from .tools.common.decode_inputs import decode_inputs
    from .tools.compare.compare import Comparison, compare
    from .tools.compare.layers import Layers, compare_layers
    from .tools.compress.compress import Compression, compress
    from .tools.doctor.doctor import Diagnosis, diagnose
    from .tools.export.export import export, extract, simplify
    from .tools.export.writing import ExportResult
    from .tools.inspect.inspection import Inspection, inspect
    from .tools.profile.profiling import Profile, profile
    from .tools.report.report import Report, report
    from .tools.tune.compilation import Compilation, compile
    from .tools.tune.generation import compile_generation

__all__ = [
    "Availability",
    "BackendUnavailable",
    "Bench",
    "Bisection",
    "BoundModel",
    "Comparison",
    "Compilation",
    "Compression",
    "CudaKernel",
    "CustomOperator",
    "DeviceError",
    "DeviceFault",
    "DeviceOutOfMemory",
    "Diagnosis",
    "ExportResult",
    "FileError",
    "Generation",
    "Generator",
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
    "UncompiledError",
    "UnsupportedError",
    "UsageError",
    "available",
    "bench",
    "bisect",
    "compare",
    "compare_layers",
    "compile",
    "compile_generation",
    "compress",
    "decode_inputs",
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
    "Bench": ".tools.bench.bench",
    "Bisection": ".tools.bisect.bisection",
    "BoundModel": ".runtime.session.bound_plan",
    "Comparison": ".tools.compare.compare",
    "Compilation": ".tools.tune.compilation",
    "Compression": ".tools.compress.compress",
    "CudaKernel": ".backends.cuda.custom",
    "CustomOperator": ".runtime.ir.custom",
    "Diagnosis": ".tools.doctor.doctor",
    "ExportResult": ".tools.export.writing",
    "Generation": ".generation.result",
    "Generator": ".generation.generator",
    "Inspection": ".tools.inspect.inspection",
    "Layers": ".tools.compare.layers",
    "Model": ".runtime.session.model",
    "Options": ".runtime.options",
    "Pipeline": ".runtime.session.pipeline",
    "PrecisionResult": ".tools.bisect.precision",
    "Profile": ".tools.profile.profiling",
    "Report": ".tools.report.report",
    "available": ".api",
    "bench": ".tools.bench.bench",
    "bisect": ".tools.bisect.bisection",
    "compare": ".tools.compare.compare",
    "compare_layers": ".tools.compare.layers",
    "compile": ".tools.tune.compilation",
    "compile_generation": ".tools.tune.generation",
    "compress": ".tools.compress.compress",
    "decode_inputs": ".tools.common.decode_inputs",
    "diagnose": ".tools.doctor.doctor",
    "export": ".tools.export.export",
    "extract": ".tools.export.export",
    "inspect": ".tools.inspect.inspection",
    "keep_float32": ".tools.bisect.precision",
    "load": ".api",
    "pinned": ".api",
    "profile": ".tools.profile.profiling",
    "report": ".tools.report.report",
    "run_op": ".one_operator",
    "simplify": ".tools.export.export",
    "to_device": ".api",
}

#: Former names, which still work in this release.
_RENAMED = {"Bound": "BoundModel", "Exported": "ExportResult", "Kept": "PrecisionResult"}


def __getattr__(name: str) -> _Any:
    """Import what is requested the first time it is requested: `import tercet` stays fast."""
    if name in _RENAMED:
        return __getattr__(_RENAMED[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'tercet' has no attribute '{name}'")
    from importlib import import_module

    from .runtime.base.collecting import no_collection

    with no_collection(lasting=True):
        value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
