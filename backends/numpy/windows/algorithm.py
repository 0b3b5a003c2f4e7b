"""What all algorithms for convolutions have in common: operands, workspace and step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ....runtime.ops.conv import Conv
from ....runtime.ops.window import window
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.cost import workers_worth
from ..engine.step import Bound, HostStep, Tape
from ..numerics.products import sums


class ConvAlgorithm(ABC):
    """A convolution and its fused elementwise nodes, cut into blocks.

    Args:
        chain: the convolution and these nodes.

    Attributes:
        x: the image, [n, c, *spatial].
        w: the weights, [m, c / group, *kernel].
        bias: [m]; or None.
        window: the windows.
        dtype: element type of the sums.
        workers: number of threads.
        nbytes: bytes of workspace per thread.
    """

    nbytes: int

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.x, self.w, self.bias = chain.operands
        x, w = self.x.tensor, self.w.tensor
        self.window = window(chain.head.op, x.dims[2:], w.dims[2:])
        self.dtype, self.workers = sums(x.dtype), thread_pool.size()

    @staticmethod
    def is_plain(chain: Chain) -> bool:
        """Whether the head is a Conv by constant filters, in one group."""
        op, (_, w, _) = chain.head.op, chain.operands
        return isinstance(op, Conv) and op.group == 1 and w.is_constant

    @property
    @abstractmethod
    def kernel(self) -> str:
        """The algorithm with its sizes, for reports."""

    @property
    @abstractmethod
    def nanoseconds(self) -> float:
        """Estimated time on one core.

        It alone decides which algorithm is used, so that results do not depend on the number of
        threads.
        """

    @abstractmethod
    def _record(self, bound: Bound) -> list[Tape]:
        """Return the calls of every block."""

    def fits(self, limit: int | None) -> bool:
        """Whether the workspace of all threads is within a limit in bytes; None is no limit."""
        return limit is None or self.nbytes * self.workers <= limit

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self.chain.title}: {self.kernel}"
        workers = workers_worth(self.nanoseconds, self.workers)
        return HostStep(name, site, self._record, workers, self.nbytes)
