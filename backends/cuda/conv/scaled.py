"""1x1 convolutions of images whose channels are multiplied first, as one kernel.

That is `multistage.cu` in 16-bit floats, `wgmma_rs.cu` and `wgmma_rs_tma.cu` in float32. So
squeeze-and-excite ends: gates, a number for each channel of each image, multiply the image that
a convolution reads. A kernel that multiplies alone reads and writes all of it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.elementwise import Mul
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting, kernel_of
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Tail, epilogue_of, read_along
from ..gemm import conv_f16, f16
from ..gemm.atoms import HALVES
from ..gemm.by_image import gemm_by_image
from ..gemm.convolution import ConvProblem, problem_of
from ..gemm.schedules import multistage
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.launch import launches_of
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import DECIDED, Stored
from ..recipe.targets import H200
from .back_to_back import Sizes, back_to_back_at

#: Channels of a word of 16-bit floats, which a thread multiplies at once.
WORD = 8
#: Minimum bytes of images of 16-bit floats. Smaller ones are still in the cache when another kernel
#: multiplies them, and leave a choice of faster convolutions; see docs/algorithms.md.
LARGE = 9 << 20
#: Rows of a warp in float32: where these divide the pixels of an image, a warp has one image's.
ROWS = 16
#: The entries that can multiply rows of float32, and the parameters that they lack then.
SCALING = {"split_wgmma": {"halves", "terms"}, "split_linear": frozenset[str]()}


@record
class ScaledConv(Whole):
    """A convolution of an image whose channels are multiplied, and the nodes after it.

    Attributes:
        scale: the multiplication.
        image: the image.
        factors: one for each channel, [n, c, 1, 1].
        conv: the convolution, by 1x1 windows.
        epilogue: the nodes after it.
    """

    scale: Node
    image: Value
    factors: Value
    conv: Node
    epilogue: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((self.scale, self.conv, *self.epilogue))

    @property
    def result(self) -> Value:
        """What is stored."""
        return (self.conv, *self.epilogue)[-1].output

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        along = read_along(self.epilogue, self.result.tensor.dims)
        return dict.fromkeys((self.image, *along, self.result), Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return scaled_conv(self, y, operand, setting)


def scaled_conv_at(graph: Graph, conv: Node, free: Set[Node], tail: Tail) -> ScaledConv | None:
    """Return a convolution with the multiplication of its image's channels, if it has one.

    Args:
        graph: the graph.
        conv: the node.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    x, *constants = conv.operands
    scale = x.producer
    if conv not in free or scale is None or scale not in free or not isinstance(scale.op, Mul):
        return None
    if not isinstance(conv.op, Conv) or conv.op.group > 1 or graph.sole_consumer(x) is not conv:
        return None
    dims = x.tensor.dims
    pointwise = all(v.is_constant for v in constants) and {*constants[0].tensor.dims[2:]} == {1}
    if x.tensor.dtype not in HALVES | {float32} or len(dims) != 4 or not pointwise:
        return None
    if _is_of_pair(graph, conv, free, tail):
        return None
    of_channels = (*dims[:2], 1, 1)
    for image, factors in (scale.operands, scale.operands[::-1]):
        fits = image.tensor.dims == dims and factors.tensor.dims == of_channels != dims
        if fits and not (image.is_constant or factors.is_constant):
            epilogue = tail(graph, conv, free - {scale})
            return ScaledConv(scale, image, factors, conv, epilogue)
    return None


def _is_of_pair(graph: Graph, conv: Node, free: Set[Node], tail: Tail) -> bool:
    """Whether a convolution and the next one may be one kernel, on a GPU with many processors."""
    pair = back_to_back_at(graph, conv, free, tail)
    if pair is None:
        return False
    n, hidden, *spatial = pair.first.y.tensor.dims
    channels, filters = conv.operands[0].tensor.dims[1], pair.second.y.tensor.dims[1]
    return any(Sizes(n * prod(spatial), channels, hidden, filters).forms(H200))


def scaled_conv(
    found: ScaledConv, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of a convolution that multiplies what it reads, or why that is another one.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    own = setting.for_node(found.conv)
    if own.is_decided:
        return DECIDED
    epilogue = epilogue_of(found.epilogue, y, found.conv.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    x, factors, constants = operand(found.image), operand(found.factors), found.conv.operands[1:]
    inputs = (x, *map(Tensor, constants))
    conv = problem_of(RecipeContext(found.conv.op, y, inputs, own, epilogue=epilogue))
    if isinstance(conv, str):
        return conv
    if not conv.is_pointwise or prod(conv.view.strides) > 1:
        return "windows of several pixels"
    if conv.formats != (Format.CHANNELS_LAST, Format.CHANNELS_LAST) or factors.pitch:
        return "images not in channels-last format"
    if x.dtype == float32:
        return _wide(conv, factors)
    refused = conv_f16.formats_of(conv)
    if isinstance(refused, str):
        return refused
    if conv.channels % WORD or x.row % WORD:
        return f"{conv.channels} channels, which do not fill words"
    if x.size * x.dtype.itemsize < LARGE:
        return "images that stay in the cache"
    if x.dims[0] > f16.MAX_STACKED or max(x.size, y.size) >= 2**29:
        return f"{x.dims[0]} images of {max(x.size, y.size)} elements"
    gemm, target = gemm_by_image(conv), setting.target
    if gemm is None:
        return "an image that is packed first"
    traffic = 2 * (x.size + y.size * (1 + len(epilogue.along)) + conv.w.size)
    problem = replace(multistage.problem_of(gemm), traffic=traffic)
    ways = multistage.candidates(problem, target)
    fitting = (way for way in ways if way.config.splits == 1 or target.has_clusters)
    best = min(fitting, key=lambda way: way.microseconds)
    apart = SELECTORS[Conv].pick(conv).microseconds + LAUNCH + 4 * x.size / MEMORY
    if best.microseconds > apart:
        return "estimated to take as long as two kernels"
    return multistage.scaled(gemm, factors, epilogue, best.config, target)


def _wide(conv: ConvProblem, factors: Tensor) -> Answer:
    """Return a convolution of float32 by its kernel, if that can multiply what it reads."""
    pixels, kernel = prod(conv.y.dims[2:]), kernel_of(conv.op)
    if kernel is None:
        return "no kernel"
    inputs = (conv.x, conv.w, conv.b)
    context = RecipeContext(conv.op, conv.y, inputs, conv.setting, epilogue=conv.epilogue)
    made = kernel.build(context)
    if isinstance(made, str):
        return made
    launch, *more = launches_of(made)
    if more or launch.entry not in SCALING or "#define F16X3 1" not in launch.code:
        return "a kernel that multiplies nothing before"
    unused = SCALING[launch.entry]
    args = {name: each for name, each in launch.arguments.items() if name not in unused}
    sizes = {"factors": factors, "terms": conv.channels, "pixels": pixels}
    return replace(
        launch,
        entry=f"{launch.entry}_scaled",
        args={**args, **{name: each for name, each in sizes.items() if name not in unused}},
        constants=(*launch.constants, ("IMAGES", 1 if pixels % ROWS == 0 else 2)),
        code=f"#define FACTORS 1\n{launch.code}",
        note=f"{launch.note} scaled",
    )
