"""1x1 convolutions with the mean over all pixels behind them as one kernel: `multistage.cu`.

So classifiers end: with convolutions of few pixels and many filters, and a GlobalAveragePool, which
would be a kernel of its own. A block has all pixels of an image, so the images are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.cuts import reduced_axes
from ....runtime.ops.pool import GlobalAveragePool
from ....runtime.ops.reduce import ReduceMean
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Tail, epilogue_of, read_along
from ..gemm import conv_f16
from ..gemm.atoms import HALVES
from ..gemm.by_image import gemm_by_image
from ..gemm.convolution import problem_of
from ..gemm.schedules import multistage
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import DECIDED, Stored

#: Nodes between a convolution and the mean, at most: a sum, an activation and a Cast, or those that
#: the activation consists of.
BETWEEN = 4


@record
class AveragedConv(Whole):
    """A convolution, the elementwise nodes after it, and the mean of its pixels.

    Attributes:
        conv: the convolution, by 1x1 windows.
        epilogue: the nodes after it.
        mean: a GlobalAveragePool, or a ReduceMean over the spatial axes.
    """

    conv: Node
    epilogue: tuple[Node, ...]
    mean: Node

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((self.conv, *self.epilogue, self.mean))

    @property
    def before(self) -> Value:
        """The images whose pixels are averaged."""
        return self.mean.operands[0]

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        along = read_along(self.epilogue, self.before.tensor.dims)
        return dict.fromkeys((self.conv.operands[0], *along), Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return averaged_conv(self, y, operand, setting)


def averaged_conv_at(graph: Graph, mean: Node, free: Set[Node], tail: Tail) -> AveragedConv | None:
    """Return the convolution whose pixels a node averages, with what is between them, if it is one.

    Args:
        graph: the graph.
        mean: the node.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    x = mean.operands[0]
    if x.tensor.dtype not in HALVES or x.tensor.rank != 4 or graph.sole_consumer(x) is not mean:
        return None
    if mean not in free or not _is_mean(mean):
        return None
    for conv in _convolutions(x, free):
        epilogue = tail(graph, conv, free)
        if (conv, *epilogue)[-1].output is x:
            return AveragedConv(conv, epilogue, mean)
    return None


def _is_mean(node: Node) -> bool:
    """Whether a node averages all pixels of images."""
    if isinstance(node.op, GlobalAveragePool):
        return True
    return isinstance(node.op, ReduceMean) and reduced_axes(node) == (2, 3)


def _convolutions(value: Value, free: Set[Node], left: int = BETWEEN) -> Iterator[Node]:
    """Yield free convolutions by 1x1 windows from which few nodes lead to a value of their size."""
    node = value.producer
    if node is None or node not in free or not left:
        return
    if isinstance(node.op, Conv):
        x, w = node.operands[:2]
        plain = node.op.group == 1 and w.is_constant and w.tensor.dims[2:] == (1, 1)
        if plain and x.tensor.dtype == value.tensor.dtype:
            yield node
        return
    for read in node.distinct_reads:
        if read.tensor.dims == value.tensor.dims:
            yield from _convolutions(read, free, left - 1)


def averaged_conv(
    found: AveragedConv, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of a convolution whose pixels are averaged, or why that is another kernel.

    Args:
        found: the nodes.
        y: the means.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    own = setting.for_node(found.conv)
    if own.is_decided:
        return DECIDED
    before = Tensor(found.before, Format.CHANNELS_LAST)
    epilogue = epilogue_of(found.epilogue, before, found.conv.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.stored != y.dtype:
        return "results of another dtype"
    x, *constants = found.conv.operands
    inputs = (operand(x), *map(Tensor, constants))
    conv = problem_of(RecipeContext(found.conv.op, before, inputs, own, epilogue=epilogue))
    if isinstance(conv, str):
        return conv
    refused = conv_f16.formats_of(conv)
    if isinstance(refused, str) or not conv.is_pointwise or prod(conv.view.strides) > 1:
        return refused if isinstance(refused, str) else "windows of several pixels"
    gemm = gemm_by_image(conv)
    if gemm is None:
        return f"{conv.channels} channels, whose image is packed first"
    target = setting.target
    ways = multistage.candidates(multistage.problem_of(gemm), target)
    fitting = (way for way in ways if way.config.splits == 1 and way.tile.bm >= gemm.shape[0])
    best = min(fitting, key=lambda way: way.microseconds, default=None)
    if best is None:
        return f"{gemm.shape[0]} pixels, more than a block has"
    apart = SELECTORS[Conv].pick(conv).microseconds + LAUNCH + 2 * before.size / MEMORY
    if best.microseconds > apart:
        return "estimated to take as long as two kernels"
    return multistage.means(replace(gemm, c=y), epilogue, best.config, target)
