"""Inverted residuals as one kernel: expansion, depthwise convolution, projection; or two of them.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018: a 1x1 convolution
expands the channels, usually six times, a depthwise convolution filters them, and a 1x1 convolution
projects them to few again. Between separate kernels, nearly all memory traffic is that of the
expanded tensors; at batch 1, most of the time are boundaries between kernels. Where
squeeze-and-excite comes before the projection, the first two are one kernel. In float32 that may
also be the one of `expanded_depthwise.py`.

In 16-bit floats the first layer of a network, whose windows are larger and have few terms, is an
expansion, too: its windows are unfolded in shared memory, and rounded if the image is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Epilogue, Tail, epilogue_of, read_along, unrounded_chain
from ..codegen.namespaces import in_namespaces
from ..gemm.atoms import F16X3, HALVES, atom_of
from ..gemm.convolution import ConvProblem, problem_of
from ..gemm.f16x3 import filter_refusal
from ..gemm.first_layer import CHANNELS
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Tensor, by_axis, ceil_div, sizes
from ..recipe.pattern import Grouping, OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Stored
from . import expanded_depthwise, residual_patches
from .pack_residual import pack_weights
from .residual_forms import Form, ResidualProblem, forms, settled, time_of
from .residual_patches import PatchForm

#: Maximum channels of the image, and of a projection, whose sums are kept in registers; maximum
#: stride.
MAX_CHANNELS, MAX_FILTERS, MAX_STRIDE = 320, 160, 4
#: Maximum terms of a first layer.
MAX_UNFOLDED = 80
#: Layers are fused if that is estimated to take less than this share of their own estimates plus,
#: for each boundary between kernels, these microseconds: so that none of the 42 takes longer.
MARGIN, BOUNDARY = 0.82, 0.6
#: That share in float32, of which estimates are less exact: on an H100 MobileNetV2 takes 14 % less
#: time at batch 1 and 4 % less at batch 32. With all layers fused it takes 5 % more at batch 32.
MARGIN_WIDE = 0.72
#: That share in float32 without an expansion, unless layers are short: kernels take half as long
#: again as estimated then. At batch 32 MobileNetV2 takes 1.3 % less time on an H200 with the two
#: largest apart.
MARGIN_WIDE_PAIR = 0.55
#: That share for `expanded_depthwise.cu`.
MARGIN_EXPANDED = 0.82
#: `residual_patches.cu` is taken if it is estimated to take less than this share of other forms: so
#: that none of 25 layers takes longer at batch 32.
OF_PATCHES = 0.9
#: Bytes of a large image between layers, about what an L2 cache of 50 MB keeps until it is read.
LARGE = 1 << 25
#: Boundaries in networks between layers that are estimated to take less than this many microseconds
#: on average: MobileNetV2 in float16 takes 3 to 4 % less time at batch 1 on an H200 than with 0.6,
#: MobileNetV3 1 % less. 1.2 would take 3 % more at batch 8.
SHORT, BOUNDARY_OF_SHORT = 4.0, 0.9


@record
class ConvLayer:
    """A convolution with the elementwise nodes after it."""

    conv: Node
    epilogue: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All its nodes."""
        return self.conv, *self.epilogue

    @property
    def y(self) -> Value:
        """Its result."""
        return self.nodes[-1].output


@record
class InvertedResidual(Whole):
    """Convolutions, each of which is the only reader of the previous one.

    Attributes:
        expansion: 1x1, or a first layer; None if the depthwise convolution reads the image itself.
        filtering: the depthwise one.
        projection: 1x1; None if something else reads the depthwise convolution's result.
        cast: the Cast before a first layer, which reads through it.
    """

    expansion: ConvLayer | None
    filtering: ConvLayer
    projection: ConvLayer | None
    cast: Node | None = None

    @property
    def layers(self) -> tuple[ConvLayer, ...]:
        """The layers in order."""
        found = self.expansion, self.filtering, self.projection
        return tuple(layer for layer in found if layer is not None)

    @property
    def smaller(self) -> InvertedResidual:
        """Two of three layers, for where all three are not one kernel.

        The first two, if a projection has more filters than a kernel; in float32 also if the
        depthwise convolution has strides and reads a large image.
        """
        conv = self.filtering.conv
        x = conv.operands[0].tensor
        strides = (conv.op.strides or ()) if isinstance(conv.op, Conv) else ()
        large = x.dtype == float32 and x.nbytes >= LARGE
        wide = self.projection is not None and self.projection.y.tensor.dims[1] > MAX_FILTERS
        if wide or (large and any(step > 1 for step in strides)):
            return replace(self, projection=None)
        return replace(self, expansion=None, cast=None)

    @property
    def is_first(self) -> bool:
        """Whether the expansion is a first layer."""
        return self.expansion is not None and not _is_layer(self.expansion.conv, depthwise=False)

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        cast = () if self.cast is None else (self.cast,)
        return frozenset((*cast, *(node for layer in self.layers for node in layer.nodes)))

    @property
    def images(self) -> tuple[Value, ...]:
        """The image, the result, and what its epilogue reads along with it; channels are last."""
        y = self.layers[-1].y
        along = read_along(self.layers[-1].epilogue, y.tensor.dims)
        image = () if self.is_first else self.layers[0].conv.operands[:1]
        return *image, y, *along

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return dict.fromkeys(self.images, Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return inverted_residual(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return two layers of three, and the other one; see `Pattern`."""
        if len(self.layers) < 3:
            return (Rest(self.nodes, Grouping.MOVED),)
        pair = self.smaller
        return Rest(self.nodes - pair.nodes), pair


def inverted_residual_at(
    graph: Graph,
    first: Node,
    free: Set[Node],
    tail: Tail,
    cast_before: Callable[[Graph, Node, Set[Node]], Node | None],
) -> InvertedResidual | None:
    """Return the inverted residual that begins with this convolution, if there is one.

    Args:
        graph: the graph.
        first: the convolution.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        cast_before: returns the Cast that a first layer reads through.
    """

    def layer(node: Node | None, *, depthwise: bool) -> ConvLayer | None:
        if node is None or node not in free or not _is_layer(node, depthwise=depthwise):
            return None
        return ConvLayer(node, tail(graph, node, free))

    expansion, cast = layer(first, depthwise=False), None
    if first in free and _is_first_layer(first):
        expansion = ConvLayer(first, tail(graph, first, free))
        cast = cast_before(graph, first, free)
    begin = first if expansion is None else graph.sole_consumer(expansion.y)
    filtering = layer(begin, depthwise=True)
    if filtering is None:
        return None
    projection = layer(graph.sole_consumer(filtering.y), depthwise=False)
    if expansion is None and projection is None:
        return None
    return InvertedResidual(expansion, filtering, projection, cast)


def _is_layer(node: Node, *, depthwise: bool) -> bool:
    """Whether a node is a convolution of floats: depthwise, or by 1x1 windows."""
    op = node.op
    if not isinstance(op, Conv) or any(v.data is None for v in node.operands[1:]):
        return False
    x, w = (value.tensor for value in node.operands[:2])
    if x.dtype not in HALVES | {float32} or len(x.dims) != 4:
        return False
    if depthwise:
        return 1 < op.group == x.dims[1] == w.dims[0]
    plain = op.group == 1 and w.dims[2:] == (1, 1) and not any(op.pads or ())
    return plain and all(stride == 1 for stride in op.strides or ())


def _is_first_layer(conv: Node) -> bool:
    """Whether a convolution of 16-bit floats has windows of few terms of an image."""
    op = conv.op
    if not isinstance(op, Conv) or any(v.data is None for v in conv.operands[1:]):
        return False
    x, w = (value.tensor for value in conv.operands[:2])
    if x.dtype not in HALVES or len(x.dims) != 4 or op.group != 1 or w.dims[1] > CHANNELS:
        return False
    return prod(w.dims[2:]) > 1 and prod(w.dims[1:]) <= MAX_UNFOLDED


# ── the problem ──────────────────────────────────────────────────────────────────────────────────


def _problem(
    found: InvertedResidual, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> ResidualProblem | str:
    """Return the problem, or why the layers are computed one by one."""
    made: list[ConvProblem] = []
    for layer in found.layers:
        last, own = layer is found.layers[-1], setting.for_node(layer.conv)
        if own.asked:
            return f"algorithm '{own.asked[0]}'"
        x, *constants = layer.conv.operands
        image = operand(x) if layer is found.layers[0] else Tensor(x, y.format)
        stored = y if last else Tensor(layer.y, y.format)
        epilogue = epilogue_of(layer.epilogue, stored, layer.conv.output, operand=operand)
        if isinstance(epilogue, str):
            return epilogue
        inner = not last or layer is found.filtering
        if inner and (epilogue.operands or stored.dtype != image.dtype):
            return "operands of an epilogue in between, or results of another dtype"
        inputs = (image, *(Tensor(value) for value in constants))
        one = problem_of(RecipeContext(layer.conv.op, stored, inputs, own, epilogue=epilogue))
        if isinstance(one, str):
            return one
        made.append(one)
    left = iter(made)
    layers = (found.expansion, found.filtering, found.projection)
    first, middle, last_one = (next(left) if layer else None for layer in layers)
    assert middle is not None
    inner = unrounded_chain(found.layers[0].epilogue, found.layers[0].conv.output)
    if isinstance(inner, str):
        return inner
    source = None if found.cast is None else operand(found.cast.operands[0])
    return ResidualProblem(first, middle, last_one, inner, found.is_first, source)


def _refusal(p: ResidualProblem) -> str:
    """Return why the kernel does not apply; empty if it does."""
    x, y, view = p.x, p.y, p.filtering.view
    if x.is_channels_last == p.is_first or not y.is_channels_last:
        return "channels that are not last, or those of a first layer's image that are"
    if view.is_dilated or max(view.strides) > MAX_STRIDE:
        return "windows with gaps"
    channels = (*(() if p.is_first else (x.dims[1], x.row)), p.hidden, y.dims[1], y.row)
    if any(count % 8 for count in channels):
        return f"{' to '.join(map(str, channels))} channels, which do not fill words"
    if (p.expansion and x.dims[1] > MAX_CHANNELS) or p.width > MAX_FILTERS:
        return f"{x.dims[1]} to {y.dims[1]} channels, more than {MAX_CHANNELS} to {MAX_FILTERS}"
    if max(x.extent, y.extent) >= 2**31:
        return f"{max(x.extent, y.extent)} elements"
    if p.expansion and p.expansion.view.is_dilated:
        return "a first layer of windows with gaps"
    products = (p.expansion, p.projection) if p.wide else ()
    weights = (layer.w.value.data for layer in products if layer is not None)
    refusals = (filter_refusal(data, 1) for data in weights if data is not None)
    return next(filter(None, refusals), "")


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def inverted_residual(
    found: InvertedResidual, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of an inverted residual, or why its layers are computed one by one.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    if setting.choices:
        return "layers are measured one by one"
    p = _problem(found, y, operand, setting)
    if isinstance(p, str):
        return p
    if refused := _refusal(p):
        return refused
    known = ("inverted residual", *(layer.signature for layer in p.layers))
    if known not in setting.picks:
        form, reason = _choice(p)
        setting.picks[known] = ("inverted residual", str(form or ""), reason)
    _, name, reason = setting.picks[known]
    if patches := PatchForm.parse(name):
        return residual_patches.launch(p, patches, _code(p, p.unrounded))
    form = Form.parse(name) if name else None
    if p.wide and (tile := _tile(p, form)):
        return expanded_depthwise.launch(p, tile, _code(p))
    return launch(p, form) if form else reason


def _tile(p: ResidualProblem, form: Form | None) -> expanded_depthwise.PairTile | None:
    """Return the tile of an expansion and a depthwise convolution if it is the fastest estimate.

    Args:
        p: the problem, of float32.
        form: the form to compare with; None for the layers one by one.
    """
    tile = expanded_depthwise.best_tile(p)
    if isinstance(tile, str):
        return None
    time = tile.time_of(p)
    if time > MARGIN_EXPANDED * _apart(p) + BOUNDARY:
        return None
    return tile if form is None or time < time_of(p, form) else None


def _apart(p: ResidualProblem) -> float:
    """Return the estimate of the layers one by one."""
    return sum(SELECTORS[Conv].expected(layer)[1]() for layer in p.layers)


def _choice(p: ResidualProblem) -> tuple[Form | PatchForm | None, str]:
    """Return the fastest form by estimates, or why the layers are computed one by one."""
    timed: list[tuple[float, str, Form | PatchForm]] = [
        *((time_of(p, form), str(form), form) for form in forms(p)),
        *((form.time_of(p) / OF_PATCHES, str(form), form) for form in residual_patches.forms(p)),
    ]
    best = min(timed, default=None)
    if best is None:
        return None, "tiles that do not fit in shared memory"
    apart = _apart(p)
    short = apart < SHORT * len(p.layers)
    boundary = BOUNDARY_OF_SHORT if short else BOUNDARY
    margin = MARGIN_WIDE if p.wide else MARGIN
    if p.wide and p.expansion is None and not short:
        margin = MARGIN_WIDE_PAIR
    if best[0] > margin * apart + boundary * (len(p.layers) - 1):
        return None, f"fusing {len(p.layers)} layers is not estimated to be faster"
    time, _, form = best
    return (form if isinstance(form, PatchForm) else settled(p, form, time)), ""


def launch(p: ResidualProblem, form: Form) -> Launch:
    """Return the launch in a form."""
    x, y, view, epilogue = p.x, p.y, p.filtering.view, p.layers[-1].epilogue
    chunks, (down, across) = ceil_div(p.hidden, form.chunk), form.grid(p)
    bias = p.projection.b if p.projection else None
    members = {
        **{"channels": x.dims[1], "filters": y.dims[1]},
        **{**sizes("", p.size), **sizes("out_", y.dims[2:]), **by_axis(pad=view.pads_begin)},
        **{"row_x": x.row, "row_y": y.row, "down": down, "across": across, "chunks": chunks},
    }
    constants = [t for layer in p.layers for t in (layer.w, layer.b) if t and t is not bias]
    biases = tuple(layer.b is not None for layer in p.layers if layer is not p.projection)
    how = (form.chunk, p.width, biases)
    titles = (layer.epilogue.title for layer in p.layers)
    unfolded = (p.expansion or p.filtering).view
    return Launch(
        "conv/inverted_residual.cu",
        "inverted_residual",
        grid=(down * across * x.dims[0], form.split, 1),
        block=32 * form.warps(p),
        args={
            "x": p.source or x,
            "weights": Packed(
                tuple(t.value for t in constants),
                ("inverted residual", *how),
                partial(pack_weights, chunk=form.chunk, width=p.width, biases=biases),
            ),
            **{"y": y, "bias": bias, **epilogue.args, "p": members},
            "source": {**sizes("", x.dims[2:]), **by_axis(pad=unfolded.pads_begin)},
        },
        types=(("S", (p.source or x).dtype), ("T", x.dtype), *epilogue.aliases),
        constants=(
            *(("EXPANDS", p.expansion is not None), ("PROJECTS", p.projection is not None)),
            ("UNFOLDED", x.dims[1] if p.is_first else 0),
            *zip(("FIRST_H", "FIRST_W"), unfolded.kernel, strict=True),
            *zip(("FIRST_STEP_H", "FIRST_STEP_W"), unfolded.strides, strict=True),
            *(("TERMS", p.terms), ("CHUNK", form.chunk), ("GROUP", form.group(p))),
            *(("PARTS", form.parts(p)), ("RUN", form.run(p)), ("ROLLS", p.rolls)),
            ("COLUMNS", max(p.width, 16)),
            *zip(("KH", "KW"), view.kernel, strict=True),
            *zip(("STEP_H", "STEP_W"), view.strides, strict=True),
            *(("TILE_H", form.rows), ("TILE_W", form.columns), ("SPLIT", form.split)),
            *(("RESIDENT", form.resident(p)), ("VECTOR_C", 8), *epilogue.flags(bias)),
        ),
        code=_code(p),
        shared=form.shared(p),
        cluster=(1, form.split if p.projection else 1, 1),
        note=" ".join(filter(None, ("Cast" if p.source else "", str(form), *titles))),
        pitched=p.pitched,
    )


def _code(p: ResidualProblem, first: Epilogue | None = None) -> str:
    """Return the epilogues behind all headers, those in between in their own namespaces.

    Args:
        p: the problem.
        first: the epilogue of the expansion, if it is not that of the problem.
    """
    first = first or (p.expansion or p.filtering).epilogue
    named = {"expanded": first, "filtered": p.filtering.epilogue}
    atom = (F16X3 if p.wide else atom_of(p.x.dtype)).code()
    return f"{atom}\n{in_namespaces(named, p.layers[-1].epilogue)}"
