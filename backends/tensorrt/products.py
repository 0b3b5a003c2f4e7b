"""TensorRT and TensorRT-RTX, and every difference between them.

Both have the same parser, builder and runtime, and build strongly typed networks. TensorRT builds
for the GPU that it runs on, and times kernels there. TensorRT-RTX builds for compute capabilities
by name, without a GPU, and compiles the kernels of an engine on the GPU that runs it, into a
runtime cache.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...runtime.base.record import record

if TYPE_CHECKING:
    import tensorrt as trt


@record
class LibraryProduct:
    """A library that this backend can use.

    Attributes:
        name: NVIDIA's name for it.
        modules: its Python modules, in order of preference.
        major: the supported major version.
        extra: the extra of tercet that installs it.
        files: prefixes of the names of its shared libraries, dependencies first.
        lacks: operators that its parser reports as supported but does not accept.
        for_rtx: whether it builds for GPUs by name, and compiles kernels where an engine runs.
    """

    name: str
    modules: tuple[str, ...]
    major: int
    extra: str
    files: tuple[str, ...]
    lacks: frozenset[str] = frozenset()
    for_rtx: bool = False

    def capabilities(self, module: Any) -> tuple[str, ...]:
        """Return the compute capabilities that engines can be built for: ``8.9``; () if any."""
        if not self.for_rtx:
            return ()
        found = (re.fullmatch(r"SM(\d+)(\d)", n) for n in module.ComputeCapability.__members__)
        return tuple(f"{match[1]}.{match[2]}" for match in found if match)

    def aim(self, module: Any, config: Any, capability: str) -> bool:
        """Set an engine's target GPU; return whether the library accepts it.

        Args:
            module: the library.
            config: an `IBuilderConfig`.
            capability: such as ``8.9``; that of this machine's GPU if empty.
        """
        if not self.for_rtx:
            return not capability
        name = f"SM{capability.replace('.', '')}" if capability else "CURRENT"
        target = getattr(module.ComputeCapability, name, None)
        config.num_compute_capabilities = 1
        return target is not None and bool(config.set_compute_capability(target, 0))

    def keeps_timings(self) -> bool:
        """Whether building an engine times kernels, which a timing cache saves later."""
        return not self.for_rtx

    def context(
        self, module: Any, engine: trt.ICudaEngine, compiled: bytes | None
    ) -> tuple[trt.IExecutionContext | None, Any]:
        """Return a context whose memory the caller provides, and its runtime cache if it has one.

        Args:
            module: the library.
            engine: the engine.
            compiled: kernels of an earlier process; the library rejects those that do not match.
        """
        strategy = module.ExecutionContextAllocationStrategy.USER_MANAGED
        if not self.for_rtx:
            return engine.create_execution_context(strategy), None
        config: Any = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        # tercet records the plan: nothing may be compiled or replaced later.
        config.cuda_graph_strategy = module.CudaGraphStrategy.DISABLED
        kinds = module.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = kinds.EAGER
        kernels = config.create_runtime_cache()
        if compiled is not None:
            kernels.deserialize(compiled)
        config.set_runtime_cache(kernels)
        return engine.create_execution_context(config), kernels


TENSORRT = LibraryProduct(
    "TensorRT",
    ("tensorrt", "tensorrt_bindings"),
    11,
    "tensorrt",
    ("libnvinfer.so", "libnvinfer_plugin.so", "libnvonnxparser.so"),
)
RTX = LibraryProduct(
    "TensorRT-RTX",
    ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    1,
    "tensorrt-rtx",
    ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so"),
    lacks=frozenset(("RoiAlign",)),  # it does not find its own plug-in
    for_rtx=True,
)
#: In order of preference.
PRODUCTS = (TENSORRT, RTX)
