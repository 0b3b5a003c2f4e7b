"""Packs images with few channels for cuDNN, by a cuda kernel, so that a pixel is a whole word."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...runtime.base.record import record
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import TensorType
from ..cuda.device import CudaDevice
from ..cuda.driver.step import bind_launch
from ..cuda.driver.streams import CudaStream
from ..cuda.gemm.problem import packed_image
from ..cuda.recipe.launch import Launch
from ..cuda.recipe.operands import Tensor
from .operation import Operand

#: Alignment in bytes of cuDNN's workspace after a packed image.
ALIGNMENT = 256


@record
class Front:
    """A kernel that packs an image into the workspace: channels last, padded with zero channels.

    Attributes:
        role: the operand of cuDNN's graph that it packs.
        image: its input: the operand with fewer channels, in C order.
        channels: in the workspace.
    """

    role: str
    image: Operand
    channels: int

    @property
    def nbytes(self) -> int:
        """Bytes of workspace that it needs."""
        images, _, *spatial = self.image.dims
        size = images * self.channels * prod(spatial) * self.image.dtype.itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT

    def __str__(self) -> str:
        return f"{self.role} packed from {self.image}"


def front_launch(front: Front) -> Launch:
    """Return the launch; its argument `x` is the image, `y` the packed image."""
    value = Graph("front").add_input(front.role, TensorType(front.image.dtype, front.image.dims))
    _, launch = packed_image(Tensor(value), front.channels, front.image.dims[-1], 0)
    return launch


def front_kernel(
    device: CudaDevice, front: Front, image: int, packed: int
) -> Callable[[CudaStream], None]:
    """Return a function that packs an image.

    Args:
        device: the GPU.
        front: the packing.
        image: address of the image.
        packed: address of the packed image.
    """
    launch = front_launch(front)
    return bind_launch(
        device, launch, device.compiler.submit(launch.source), {"x": image, "y": packed}
    )
