"""Compiled kernels bound to their arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from ..recipe.launch import Launch
from .status import check
from .step import cell
from .streams import CudaStream

if TYPE_CHECKING:
    from .device import DriverDevice


def launcher(
    device: DriverDevice, launch: Launch, code: bytes, pointers: Mapping[str, int]
) -> Callable[[CudaStream], None]:
    """Load a kernel and return a function that launches it; see `step.bind_launch`.

    Args:
        device: the GPU.
        launch: the launch.
        code: the machine code.
        pointers: addresses of memory arguments by name; null if absent.

    Raises:
        DeviceError: the code does not load.
        ValueError: the kernel's parameters differ from the recipe's.
    """
    kernel = device.load(
        code,
        launch.entry,
        launch.shared,
        prefers_shared=launch.prefers_shared,
        cluster=prod(launch.cluster),
    )
    cells = [cell(argument, pointers.get(name)) for name, argument in launch.arguments.items()]
    _check_parameters(device, kernel, launch, cells)
    table = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
    function = driver.CUfunction(int(kernel))
    shape = (*launch.grid, launch.block, 1, 1, launch.shared)
    call = f"launch of {launch.title}"
    apart = device.compiler.target.has_clusters and (launch.early or launch.cluster != (1, 1, 1))
    if apart or launch.cooperative:
        config = _config(launch)

        def run_early(stream: CudaStream, _alive: object = (kernel, cells)) -> None:
            config.hStream = driver.CUstream(stream.handle)
            answer = driver.cuLaunchKernelEx(config, function, ctypes.addressof(table), 0)
            if answer[0]:
                check(call, answer)

        return run_early

    def run(stream: CudaStream, _alive: object = (kernel, cells)) -> None:
        answer = driver.cuLaunchKernel(function, *shape, stream.handle, ctypes.addressof(table), 0)
        if answer[0]:
            check(call, answer)

    return run


def _config(launch: Launch) -> driver.CUlaunchConfig:
    """Return the launch configuration of a kernel with a cluster, with PDL, or cooperative."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
    config.sharedMemBytes = launch.shared
    kinds, attributes = driver.CUlaunchAttributeID, list[driver.CUlaunchAttribute]()
    if launch.early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if launch.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extent = attribute.value.clusterDim
        extent.x, extent.y, extent.z = launch.cluster
        attributes.append(attribute)
    if launch.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _check_parameters(
    device: DriverDevice, kernel: driver.CUkernel, launch: Launch, cells: list[Any]
) -> None:
    """Raise ValueError unless the kernel's parameters have these sizes."""
    number, wanted = int(kernel), tuple(map(ctypes.sizeof, cells))
    if (number, wanted) in device.fitting:
        return
    for place, given in enumerate(wanted):
        answer = driver.cuKernelGetParamInfo(kernel, place)
        _, size = check(f"parameter {place} of {launch.title}", answer)
        if size != given:
            raise ValueError(f"{launch.title}: parameter {place} has {size} bytes, not {given}")
    device.fitting.add((number, wanted))
