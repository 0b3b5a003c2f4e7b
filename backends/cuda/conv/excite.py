"""Squeeze-and-excite as two kernels: sums of pixels, and `excite.cu` (Hopper and newer).

Two products of means and what multiplies the image are short: at batch 1 most of the time goes into
the boundaries between their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.elementwise import Mul
from ....runtime.ops.matmul import Gemm
from ....runtime.ops.pool import GlobalAveragePool
from ....runtime.ops.reduce import ReduceMean
from ....runtime.ops.shape import VIEWS
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..codegen.elementwise import chain_of
from ..codegen.epilogue import Epilogue, Tail, epilogue_of, read_along
from ..codegen.fold_kernel import sums_of_pixels
from ..codegen.folds import folded_axes
from ..codegen.namespaces import in_namespaces
from ..codegen.stages import head_of
from ..gemm.atoms import HALVES
from ..gemm.linear import linear_of
from ..gemm.multiplication import multiplication
from ..gemm.pack import in_words
from ..gemm.problem import Linear, packed_matrix
from ..gemm.tile import clusters_of
from ..gemm.totals import leaves_totals, with_totals
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Stored
from ..recipe.source import C_TYPES
from ..recipe.targets import Target

#: Threads of a block.
THREADS = 256
#: Bytes of a word.
WORD = 16
#: Maximum number of images: of 32, some layers of EfficientNet-B0 and MobileNetV3 would be such in
#: 16 bits, and the networks take 0.6 % more and less time.
MAX_IMAGES = 16
#: Maximum number of blocks of a cluster, which share the weights; and where these would not fit in
#: the memory of so few, on Hopper, which has larger clusters than are portable.
PORTABLE_CLUSTER, MAX_CLUSTER = 8, 16
#: How many of such larger clusters start together.
TOGETHER = 4
#: Bytes of weights of a block from which more blocks share them.
LIGHT = 4 << 10
#: Maximum number of channels, of whose means each warp has all in its registers.
MAX_CHANNELS = 6144
#: Parts of a mean that a thread adds up itself, at most.
FEW_PARTS = 4
#: Words of the image for a thread, where there are blocks enough, and at most.
FEW_WORDS, MAX_WORDS = 2, 8


@record
class Excited(Whole):
    """Two products of the means of images, and the multiplication of images by their result.

    Attributes:
        before: the mean, and the views of it.
        first: the product of the means, with its epilogue.
        second: the one of its results, with its epilogue.
        views: what makes an image of one pixel of them.
        scale: the multiplication; None if something else reads the results.
        conv: the convolution of which the averaged image is the result, with its epilogue, if it
            may leave totals.
        stores: whether something else reads the averaged image.
    """

    before: tuple[Node, ...]
    first: tuple[Node, ...]
    second: tuple[Node, ...]
    views: tuple[Node, ...] = ()
    scale: Node | None = None
    conv: tuple[Node, ...] = ()
    stores: bool = False

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        scale = () if self.scale is None else (self.scale,)
        return frozenset((*self.conv, *self.before, *self.first, *self.second, *self.views, *scale))

    @property
    def image(self) -> Value | None:
        """The image that is multiplied."""
        if self.scale is None:
            return None
        factors = (*self.second, *self.views)[-1].output
        return next((v for v in self.scale.operands if v is not factors), None)

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        images = [node.operands[0] for node in (*self.conv[:1], *self.before[:1])]
        images += read_along(self.conv[1:], self.before[0].operands[0].tensor.dims)
        if self.scale is not None and self.image is not None:
            images += [self.image, self.scale.output]
        return dict.fromkeys(images, Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return excite(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return the same without the convolution; see `Pattern`."""
        if not self.conv:
            return (Rest(self.nodes, self.regrouped),)
        return replace(self, conv=()), Rest(frozenset(self.conv), self.regrouped)


def excited_at(graph: Graph, product: Node, free: Set[Node], tail: Tail) -> Excited | None:
    """Return two products, and what multiplies an image by their result, if a node is the first.

    Args:
        graph: the graph.
        product: the node.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    if not _is_product(product, free):
        return None
    before = _mean_before(graph, product, free)
    if not before:
        return None
    first = (product, *tail(graph, product, free))
    behind = graph.sole_consumer(first[-1].output)
    if behind is None or not _is_product(behind, free):
        return None
    if behind.operands[0] is not first[-1].output:
        return None
    second = (behind, *tail(graph, behind, free - set(first)))
    views, value = list[Node](), second[-1].output
    view = graph.sole_consumer(value)
    while view is not None and view in free and isinstance(view.op, VIEWS):
        views.append(view)
        value = view.output
        view = graph.sole_consumer(value)
    whole = Excited(before, first, second, tuple(views), view)
    if before[0].operands[0].tensor.dims[0] > MAX_IMAGES or not _multiplies(graph, whole, free):
        whole = Excited(before, first, second)
    return _behind_conv(graph, whole, free, tail)


def _behind_conv(graph: Graph, found: Excited, free: Set[Node], tail: Tail) -> Excited:
    """Return a pattern with the convolution of whose result it averages the pixels, if it may."""
    image = found.before[0].operands[0]
    head = head_of(image, Conv)
    if head is None or head not in free or not leaves_totals(head):
        return found
    if found.image not in (None, image):
        return found  # which may be computed from this image
    conv = (head, *tail(graph, head, free - found.nodes))
    if conv[-1].output is not image:
        return found
    return replace(found, conv=conv, stores=graph.is_read_outside(image, found.nodes))


def _mean_before(graph: Graph, product: Node, free: Set[Node]) -> tuple[Node, ...]:
    """Return the mean of images that a product reads, and its views; empty if there is none."""
    found = list[Node]()
    node, reader = product.operands[0].producer, product
    while node is not None and node in free and graph.sole_consumer(node.output) is reader:
        found.insert(0, node)
        if isinstance(node.op, GlobalAveragePool | ReduceMean):
            rank = len(node.operands[0].tensor.dims)
            return tuple(found) if rank > 2 and folded_axes(node) == tuple(range(2, rank)) else ()
        if not isinstance(node.op, VIEWS):
            return ()
        node, reader = node.operands[0].producer, node
    return ()


def _is_product(node: Node, free: Set[Node]) -> bool:
    """Whether a node is a product of rows by constants."""
    if node not in free or not isinstance(node.op, Gemm):
        return False
    dtype = node.output.tensor.dtype
    return all(v.is_constant for v in node.operands[1:]) and dtype in HALVES | {float32}


def _multiplies(graph: Graph, found: Excited, free: Set[Node]) -> bool:
    """Whether the last node multiplies channels of an image by the results.

    Of an image that nothing else reads this may be the epilogue of the kernel that computes it.
    """
    scale, image = found.scale, found.image
    if scale is None or image is None or scale not in free or not isinstance(scale.op, Mul):
        return False
    if graph.sole_consumer(image) is scale or len(scale.operands) != 2:
        return False
    dims, factors = image.tensor.dims, (*found.second, *found.views)[-1].output.tensor.dims
    return factors == (*dims[:2], *(1,) * (len(dims) - 2)) and scale.output.tensor.dims == dims


# ── which blocks ─────────────────────────────────────────────────────────────────────────────────


@record
class Sizes:
    """The sizes of two products of rows and of images.

    Attributes:
        images: rows, and images.
        channels: terms of the first product.
        hidden: terms of the second one.
        results: channels of an image.
        pixels: of an image.
        itemsize: bytes of an element.
    """

    images: int
    channels: int
    hidden: int
    results: int
    pixels: int
    itemsize: int

    @property
    def each(self) -> int:
        """Elements of a word."""
        return WORD // self.itemsize

    @property
    def padded(self) -> int:
        """Terms of the second product with those that fill words."""
        return ceil_div(self.hidden, self.each) * self.each

    @property
    def weights(self) -> int:
        """Bytes of weights."""
        return self.itemsize * (self.hidden * self.channels + self.results * self.padded)

    @property
    def gathered(self) -> int:
        """Bytes of shared memory for sums of many parts of means."""
        return 4 * max(4 * THREADS, self.channels)

    def form(self, target: Target) -> Form | None:
        """Return how blocks share an image, if all run at once; else None."""
        light = LIGHT if self.pixels else 1
        shares = min(PORTABLE_CLUSTER, ceil_div(self.weights, light))
        found = self._shared_by(shares, target)
        if found is None and target.has_wgmma:
            found = self._shared_by(MAX_CLUSTER, target)
        return found

    def _shared_by(self, shares: int, target: Target) -> Form | None:
        """Return the form with at most this many blocks that share the weights, if there is one."""
        own = ceil_div(ceil_div(self.results, self.each), shares) * self.each
        shares = ceil_div(self.results, own)
        most = target.processors // (self.images * shares)
        if shares > PORTABLE_CLUSTER:
            most = min(most, TOGETHER // self.images, clusters_of(shares, target))
        words = self.pixels * own // self.each
        parts = min(most, max(1, ceil_div(words, THREADS * FEW_WORDS)))
        if not parts:
            return None
        form = Form(shares, own, ceil_div(self.pixels, parts))
        fits = self.shared(form) + self.gathered <= target.shared
        return form if fits and self.words(form) <= MAX_WORDS else None

    def words(self, form: Form) -> int:
        """Return the words of the image for each thread."""
        return ceil_div(form.pixels * form.own // self.each, THREADS)

    def rows(self, form: Form) -> int:
        """Return the rows of the first product of a block."""
        return ceil_div(self.hidden, form.shares)

    def shared(self, form: Form) -> int:
        """Return the bytes of shared memory of a block."""
        rows = self.rows(form)
        floats = self.padded + ceil_div(rows + form.own, 4) * 4
        weights = rows * self.channels + form.own * (self.padded + 1)
        return WORD + 4 * floats + self.itemsize * weights


@record
class Form:
    """How blocks share an image.

    Attributes:
        shares: blocks of a cluster, which share the weights.
        own: channels of a block.
        pixels: of a block, at most.
    """

    shares: int
    own: int
    pixels: int

    def __str__(self) -> str:
        return f"{self.pixels}x{self.own} split {self.shares}"


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


@record
class Layer:
    """A product of rows.

    Attributes:
        rows: its matrices.
        epilogue: what is applied to its results.
    """

    rows: Linear
    epilogue: Epilogue


@record
class Task:
    """What two kernels compute.

    Attributes:
        first, second: the products.
        averaged: the image whose pixels are averaged.
        x: the image that is multiplied; None if there is none.
        sizes: of all of these.
    """

    first: Layer
    second: Layer
    averaged: Tensor
    x: Tensor | None
    sizes: Sizes


def _task(found: Excited, y: Tensor, operand: OperandOf, setting: Setting) -> Task | str:
    """Return what is computed, or why no kernel does so; see `excite`."""
    made = [_layer(nodes, operand, setting) for nodes in (found.first, found.second)]
    refused = next((each for each in made if isinstance(each, str)), "")
    if refused:
        return refused
    first, second = (each for each in made if not isinstance(each, str))
    averaged = operand(found.before[0].operands[0])
    x = None if found.image is None else operand(found.image)
    if found.conv:
        averaged = Tensor(averaged.value, Format.CHANNELS_LAST)
        x = averaged if found.image is averaged.value else x
    images = (averaged,) if x is None else (averaged, x, y)
    if any(each.format is not Format.CHANNELS_LAST for each in images):
        return "images not in channels-last format"
    stored = (first.epilogue.stored, second.epilogue.stored, first.rows.a.dtype)
    if {*stored, *(each.dtype for each in (*images, y))} != {y.dtype}:
        return "several dtypes"
    (count, hidden, channels), results = first.rows.shape, second.rows.shape[1]
    if averaged.dims[:2] != (count, channels) or (x and x.dims[:2] != (count, results)):
        return "rows that are no images"
    if not averaged.size:
        return "images without pixels"
    if channels > MAX_CHANNELS:
        return f"{channels} channels"
    pixels = 0 if x is None else prod(x.dims[2:])
    sizes = Sizes(count, channels, hidden, results, pixels, y.dtype.itemsize)
    rows = (channels, results, *(each.row for each in images))
    if any(row % sizes.each for row in rows) or averaged.row != channels:
        return f"{channels} channels, which do not fill words"
    return Task(first, second, averaged, x, sizes)


def excite(found: Excited, y: Tensor, operand: OperandOf, setting: Setting) -> Answer:
    """Return the launches, or why products and multiplication are kernels of their own.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    if not setting.target.has_clusters:
        return f"{setting.target.arch} has no clusters"
    task = _task(found, y, operand, setting)
    if isinstance(task, str):
        return task
    if task.sizes.images > MAX_IMAGES:
        return f"{task.sizes.images} images"
    form = task.sizes.form(setting.target)
    if form is None:
        return "more blocks than run at once"
    if not found.conv:
        # In 16 bits EfficientNet-B0 takes 2 % more time with blocks that begin so early.
        launches = task.x is None or y.dtype == float32
        sums, parts = sums_of_pixels(task.averaged, launches=launches)
        return sums, _launch(found, task, form, (sums, parts), (task.x, y))
    totals = with_totals(found.conv, operand, setting, stores=found.stores)
    if isinstance(totals, str):
        return totals
    x = totals.image if task.x is task.averaged else task.x
    return totals.launch, _launch(found, task, form, (totals.launch, totals.parts), (x, y))


def _launch(
    found: Excited,
    task: Task,
    form: Form,
    sums: tuple[Launch, int],
    ends: tuple[Tensor | Scratch | None, Tensor],
) -> Launch:
    """Return the launch behind the one that adds up pixels.

    Args:
        found: the nodes.
        task: what is computed.
        form: how blocks share it.
        sums: the launch in front, and in how many parts sums are.
        ends: where the image is, and the result.
    """
    (x, y), (before, parts), sizes = ends, sums, task.sizes
    first, second, several = task.first, task.second, parts > FEW_PARTS
    code, title = _multiplication(found, y.dtype)
    pitched = tuple(each for each in ends if isinstance(each, Tensor)) if sizes.pixels else ()
    return Launch(
        "conv/excite.cu",
        "excite",
        grid=(form.shares, ceil_div(max(1, sizes.pixels), max(1, form.pixels)), sizes.images),
        block=THREADS,
        args={
            **{"means": Scratch(0), "first": _rows(first.rows), "first_bias": first.rows.bias},
            **{"second": _rows(second.rows), "bias": second.rows.bias, "x": x, "y": y},
            "share_of_mean": 1 / prod(task.averaged.dims[2:]),
            **{"pixels": sizes.pixels, "of_block": form.pixels},
            **{"row_x": task.x.row if task.x else 0, "row_y": y.row},
        },
        types=(("T", y.dtype),),
        constants=(
            *(("THREADS", THREADS), ("PARTS", parts), ("SHARED", several)),
            *(("CHANNELS", sizes.channels), ("HIDDEN", sizes.hidden)),
            *(("RESULTS", sizes.results), ("CLUSTER", form.shares), ("ROWS", sizes.rows(form))),
            *(("OWN", form.own), ("WORDS", sizes.words(form))),
            *(("FIRST_BIAS", first.rows.bias is not None), ("BIAS", second.rows.bias is not None)),
        ),
        code=f"{in_namespaces({'squeeze': first.epilogue}, second.epilogue)}\n{code}",
        shared=sizes.shared(form) + (sizes.gathered if several else 0),
        scratch=before.scratch,
        cluster=(form.shares, 1, 1),
        note=f"{form} {first.epilogue.title}, {second.epilogue.title} {title}".strip(),
        pitched=pitched,
    )


def _multiplication(found: Excited, dtype: DType) -> tuple[str, str]:
    """Return the code that multiplies an element, and its title; nothing if there is no image."""
    kind = C_TYPES[dtype]
    head = f"__device__ __forceinline__ {kind} scaled({kind} x, {kind} factor)"
    if found.scale is None:
        return f"{head} {{ return x; }}", ""
    chain = chain_of((found.scale,), "multiplied")
    assert not isinstance(chain, str)
    order = "x, factor" if chain.operands[0] is found.image else "factor, x"
    return f"{chain.code}\n{head} {{ return multiplied({order}); }}", chain.title


def _layer(nodes: tuple[Node, ...], operand: OperandOf, setting: Setting) -> Layer | str:
    """Return a product of rows with its epilogue, or why there is none."""
    product, *behind = nodes
    own = setting.for_node(product)
    if own.asked:
        return f"algorithm '{own.asked[0]}'"
    y = Tensor(nodes[-1].output)
    epilogue = epilogue_of(tuple(behind), y, product.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.operands:
        return f"{len(epilogue.operands)} operands"
    inputs = tuple(value and operand(value) for value in product.inputs)
    task = multiplication(RecipeContext(product.op, y, inputs, own, epilogue=epilogue))
    layer = task if isinstance(task, str) else linear_of(task)
    return layer if isinstance(layer, str) else Layer(layer, epilogue)


def _rows(layer: Linear) -> Packed:
    """Return the weights, a row of whole words for each result."""
    return packed_matrix(layer.b, layer.form, *in_words(layer.a.dtype))
