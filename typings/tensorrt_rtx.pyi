"""What TensorRT-RTX 1.7 has and TensorRT lacks, as far as backends/tensorrt calls it.

Written by hand. Everything else that the backend calls is in both: see tensorrt.pyi.
"""

import typing

import typing_extensions

class ComputeCapability:
    __members__: typing.ClassVar[dict[str, ComputeCapability]]
    NONE: typing.ClassVar[ComputeCapability]
    CURRENT: typing.ClassVar[ComputeCapability]
    SM75: typing.ClassVar[ComputeCapability]
    SM80: typing.ClassVar[ComputeCapability]
    SM86: typing.ClassVar[ComputeCapability]
    SM89: typing.ClassVar[ComputeCapability]
    SM120: typing.ClassVar[ComputeCapability]
    SM121: typing.ClassVar[ComputeCapability]

class CudaGraphStrategy:
    __members__: typing.ClassVar[dict[str, CudaGraphStrategy]]
    DISABLED: typing.ClassVar[CudaGraphStrategy]
    WHOLE_GRAPH_CAPTURE: typing.ClassVar[CudaGraphStrategy]

class DynamicShapesKernelSpecializationStrategy:
    __members__: typing.ClassVar[dict[str, DynamicShapesKernelSpecializationStrategy]]
    LAZY: typing.ClassVar[DynamicShapesKernelSpecializationStrategy]
    EAGER: typing.ClassVar[DynamicShapesKernelSpecializationStrategy]
    NONE: typing.ClassVar[DynamicShapesKernelSpecializationStrategy]

class IBuilderConfig:
    num_compute_capabilities: int
    def set_compute_capability(
        self, compute_capability: ComputeCapability, index: typing.SupportsInt
    ) -> bool: ...

class IRuntimeCache:
    def deserialize(self, blob: typing_extensions.Buffer) -> bool: ...
    def serialize(self) -> IHostMemory: ...

class IRuntimeConfig:
    cuda_graph_strategy: CudaGraphStrategy
    dynamic_shapes_kernel_specialization_strategy: DynamicShapesKernelSpecializationStrategy
    def create_runtime_cache(self) -> IRuntimeCache: ...
    def set_runtime_cache(self, cache: IRuntimeCache) -> bool: ...

class IHostMemory: ...
