"""How inverted residuals are divided among blocks: the forms that apply, and their estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ..codegen.epilogue import Epilogue
from ..gemm.convolution import ConvProblem
from ..gemm.tile import CLUSTERED, MAX_CLUSTER, MEMORY, clusters_of, inbox
from ..recipe.operands import Ints, Tensor, ceil_div
from ..recipe.targets import Target, resident_with
from .pack_residual import pitch

#: Pixels of the result per block, rows and columns.
TILES = ((8, 16), (7, 14), (8, 8), (7, 7), (4, 8), (4, 7), (2, 7))
#: Expanded channels at a time.
CHUNKS = (96, 64, 48, 32)
#: Maximum blocks that share the expanded channels of a tile: of 16-bit floats, where more than
#: portable clusters have must start together, and of float32, where so many are slower.
MAX_SPLIT, MAX_SPLIT_WIDE = 16, MAX_CLUSTER
#: Share of the largest clusters that fit, up to which those of more than portable clusters are few:
#: blocks of the kernel before are still there. On an H200 eight clusters of ten or twelve take 4 to
#: 10 us longer than estimated, four of twelve or fifteen do not.
LARGE = 2 / 3
#: Maximum warps of a block with several parts of a chunk, and maximum bands of a warp.
MAX_WARPS, RUN = 12, 4
#: Maximum columns that a warp expands at once: of 16-bit floats, and of float32, with three sums.
MAX_GROUP, MAX_GROUP_WIDE = 64, 48
#: Registers of a thread besides its sums.
OTHERS = 80
#: Instructions per microsecond that a multiprocessor issues, and clock in MHz.
ISSUED, CLOCK = 6924.0, 1755.0


@record
class Cost:
    """The measured cost of a form, in instructions unless it says otherwise; see `time_of`.

    Attributes:
        begin: microseconds of a launch.
        alone: instructions per microsecond of a warp alone in a multiprocessor, which depend on
            each other.
        item: an item of an expansion, 16 pixels by some columns.
        terms: 16 terms of it.
        columns: the same per eight columns.
        stored: storing it, per column.
        window: an element of the windows, or a pair in 16 bits, of 16 channels.
        step: filtering 16 channels otherwise.
        width: projecting them to eight columns.
        ends: before and after all chunks.
        factor: of those before and after, which wait for memory.
    """

    begin: float
    alone: float
    item: float
    terms: float
    columns: float
    stored: float
    window: float
    step: float
    width: float
    ends: float
    factor: float


#: The costs of 16-bit floats, fitted to 461 forms of 42 inverted residuals of MobileNetV2's and
#: EfficientNet's sizes on an H100, at batch 1 and 32, where windows are bound by shared memory; and
#: of float32, fitted to 47 forms of 11 of MobileNetV2's on an H200, at batch 1, where products wait
#: for one another, and blocks that start early share multiprocessors.
NARROW = Cost(1.29, 1019.0, 40.0, 1.0, 1.5, 3.0, 23.3, 60.0, 1.5, 700.0, 3.09)
WIDE = Cost(0.8, 2500.0, 390.0, 90.0, 0.0, 8.0, 10.0, 0.0, 22.4, 300.0, 7.1)
#: Instructions for a term of a first layer.
UNFOLDED = 16
#: Microseconds by which short forms of 16-bit floats differ besides: for a warp of a
#: multiprocessor, for a chunk, and for a kilobyte of sums that a block sends. Fitted to 95 forms of
#: MobileNetV2's blocks at batch 1 on an H200, each timed in the network, of which the fastest were
#: estimated to take up to 5.5 us, with windows of nine elements.
OF_WARP, OF_CHUNK, OF_SENT = 0.12, 0.3, 0.01
SHORT, WINDOW = 5.5, 9
#: The same of float32, but for warps. Fitted to 72 forms of 9 blocks.
OF_CHUNK_WIDE, OF_SENT_WIDE, SHORT_WIDE = 0.9, 0.19, 10.0
#: Factor of the estimate of forms whose warps load pixels once for all windows. Fitted to seven
#: forms of MobileNetV2's first block in float16 at batch 32 on an H200.
ROLLED = 1.18


@dataclass(frozen=True)
class ResidualProblem:
    """The convolutions of an inverted residual; see `InvertedResidual`.

    Attributes:
        expansion, filtering, projection: the convolutions.
        unrounded: the epilogue of the expansion with results in float32.
        is_first: whether the expansion is a first layer, of any windows.
        source: what such a one reads through a Cast.
    """

    expansion: ConvProblem | None
    filtering: ConvProblem
    projection: ConvProblem | None
    unrounded: Epilogue
    is_first: bool = False
    source: Tensor | None = None

    @cached_property
    def layers(self) -> tuple[ConvProblem, ...]:
        """The convolutions in order."""
        found = self.expansion, self.filtering, self.projection
        return tuple(layer for layer in found if layer is not None)

    @cached_property
    def x(self) -> Tensor:
        """The image."""
        return self.layers[0].x

    @cached_property
    def y(self) -> Tensor:
        """The result."""
        return self.layers[-1].y

    @property
    def pitched(self) -> tuple[Tensor, ...]:
        """The tensors that may be slices: what is added is found where the result is."""
        image = () if self.is_first else (self.x,)
        return image if self.layers[-1].epilogue.along else (*image, self.y)

    @cached_property
    def images(self) -> int:
        """Number of images."""
        return self.x.dims[0]

    @cached_property
    def size(self) -> Ints:
        """Height and width of what the depthwise convolution reads."""
        return self.filtering.x.dims[2:]

    @cached_property
    def output(self) -> Ints:
        """Height and width of the result."""
        return self.y.dims[2:]

    @cached_property
    def traffic(self) -> int:
        """Bytes of image and result."""
        return self.itemsize * (self.x.size + self.y.size)

    @cached_property
    def hidden(self) -> int:
        """Number of expanded channels."""
        return self.filtering.x.dims[1]

    @cached_property
    def terms(self) -> int:
        """Channels of the image, or terms of a first layer's windows, in sixteens."""
        return ceil_div(self.x.dims[1] * self.taps, 16) * 16

    @cached_property
    def taps(self) -> int:
        """Elements of the windows of an expansion; 1 unless it is a first layer."""
        return prod(self.expansion.view.kernel) if self.expansion else 1

    @cached_property
    def width(self) -> int:
        """Channels of a projection, in sixteens; 0 if there is none."""
        return ceil_div(self.y.dims[1], 16) * 16 if self.projection else 0

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.x.dtype.itemsize

    @cached_property
    def wide(self) -> bool:
        """Whether elements are float32, multiplied as three products of float16."""
        return self.x.dtype == float32

    @cached_property
    def pairs(self) -> int:
        """Pairs of elements of a window: of two rows, and of one where their number is odd."""
        height, width = self.filtering.view.kernel
        return height // 2 * width + height % 2 * ceil_div(width, 2)

    @cached_property
    def window(self) -> int:
        """Bytes of the weights of a window."""
        return 4 * prod(self.filtering.view.kernel) if self.wide else 8 * self.pairs

    @cached_property
    def rolls(self) -> bool:
        """Whether pixels are loaded once for all windows, of up to three rows and three columns.

        In 16 bits; where they are expanded first, that takes as long as loading them for each.
        """
        height, width = self.filtering.view.kernel
        return not self.wide and self.expansion is None and height <= 3 and width == 3

    @cached_property
    def target(self) -> Target:
        """The GPU."""
        return self.filtering.setting.target


@record
class Tile:
    """Pixels of the result per block."""

    rows: int
    columns: int

    def grid(self, p: ResidualProblem) -> tuple[int, int]:
        """Return the number of tiles along the height and the width."""
        height, width = p.output
        return ceil_div(height, self.rows), ceil_div(width, self.columns)

    def box(self, p: ResidualProblem) -> int:
        """Return the number of pixels that its windows cover."""
        view = p.filtering.view
        spans = zip((self.rows, self.columns), view.kernel, view.strides, strict=True)
        return prod((size - 1) * stride + kernel for size, kernel, stride in spans)


@record
class Form(Tile):
    """How a problem is divided among blocks.

    Attributes:
        chunk: expanded channels at a time.
        split: blocks of a cluster that share the expanded channels.
    """

    chunk: int
    split: int = 1

    def __str__(self) -> str:
        """Return its name, such as ``8x8x64 split 4``."""
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.rows}x{self.columns}x{self.chunk}{split}"

    @staticmethod
    def parse(text: str) -> Form:
        """Return the form of this name."""
        sizes, _, split = text.partition(" split ")
        rows, columns, chunk = map(int, sizes.split("x"))
        return Form(rows, columns, chunk, int(split or 1))

    @property
    def bands(self) -> int:
        """Bands of 16 pixels: a line of the tile, or two of eight."""
        return self.rows if self.columns > 8 else ceil_div(self.rows, 2)

    def run(self, p: ResidualProblem) -> int:
        """Return the bands of a warp."""
        if not p.rolls:
            return 1
        return max(1, min(self.bands, RUN, 64 // max(p.width // 2, 16)))

    def parts(self, p: ResidualProblem) -> int:
        """Return the parts of a chunk; warps have one of them."""
        steps, most = self.chunk // 16, max(1, MAX_WARPS // ceil_div(self.bands, self.run(p)))
        return max(n for n in range(1, min(steps, most) + 1) if steps % n == 0)

    def warps(self, p: ResidualProblem) -> int:
        """Return the warps of a block."""
        return ceil_div(self.bands, self.run(p)) * self.parts(p)

    def group(self, p: ResidualProblem) -> int:
        """Return the columns of a chunk that a warp expands at once."""
        bands, warps = ceil_div(self.box(p), 16), self.warps(p)
        most = MAX_GROUP_WIDE if p.wide else MAX_GROUP
        counts = [n for n in (1, 2, 3, 4) if self.chunk % (16 * n) == 0 and self.chunk // n <= most]

        def cost(count: int) -> tuple[int, int]:  # of all rounds of all warps
            return ceil_div(bands * count, warps) * (self.chunk // count + 16), count

        return self.chunk // min(counts, key=cost)

    def weights(self, p: ResidualProblem) -> int:
        """Return the bytes of the weights of a chunk."""
        factors = 8 if p.wide else 4  # biases, and scales of rows in halves
        first = 0 if p.expansion is None else self.chunk * (pitch(p.terms, p.itemsize) + factors)
        return first + p.width * pitch(self.chunk, p.itemsize) + (p.window + 4) * self.chunk

    def shared(self, p: ResidualProblem) -> int:
        """Return the bytes of shared memory."""
        box = self.box(p)
        rows = ceil_div(box, 16) * 16
        image = 0 if p.expansion is None else rows * pitch(p.terms, p.itemsize)
        # Floats that a thread reads at a time are two, and words of four.
        row = (self.chunk // 8 | 1) * 32 if p.wide else pitch(self.chunk, p.itemsize)
        stages = image + 2 * box * row + 2 * self.weights(p) + 8 * rows
        sums = self.parts(p) * self.bands * 16 * (p.width + 8) * 4
        own = ceil_div(max(stages, sums), 16) * 16
        own += 4 * p.width if p.wide else 0
        shares = self.split > 1 and p.projection is not None
        return own + (inbox(self.bands * 16, p.width, self.split) if shares else 0)

    def resident(self, p: ResidualProblem) -> int:
        """Return the blocks that fit on a multiprocessor."""
        blocks = resident_with(OTHERS + self.run(p) * p.width // 2, 32 * self.warps(p))
        return max(1, min(blocks, p.target.resident(self.shared(p))))


def forms(p: ResidualProblem) -> Iterator[Form]:
    """Yield the forms that apply."""
    chunks = [chunk for chunk in CHUNKS if ceil_div(p.hidden, chunk) * chunk < p.hidden + 16]
    for rows, columns in TILES:
        for chunk in chunks or CHUNKS[-1:]:
            for split in _splits(p, ceil_div(p.hidden, chunk)):
                form = Form(rows, columns, chunk, split)
                blocks = prod(form.grid(p)) * p.images * split
                few = split == 1 or blocks <= 3 * p.target.processors
                if split > MAX_CLUSTER:
                    few = blocks // split <= LARGE * clusters_of(MAX_SPLIT, p.target)
                if few and form.shared(p) <= p.target.shared:
                    yield form


def _splits(p: ResidualProblem, chunks: int) -> Iterator[int]:
    """Yield how many blocks may share chunks: each number leaves them fewer than those before."""
    least, most = chunks + 1, MAX_SPLIT_WIDE if p.wide else MAX_SPLIT
    for split in range(1, (most if p.target.has_clusters else 1) + 1):
        if ceil_div(chunks, split) < least:
            least = ceil_div(chunks, split)
            yield split


def time_of(p: ResidualProblem, form: Form) -> float:
    """Return the estimate of a form in microseconds."""
    warps, parts = form.warps(p), form.parts(p)
    group, steps = form.group(p), form.chunk // 16 // parts
    pixels = _pixels(p, form)
    items = ceil_div(pixels, 16) * (form.chunk // group) if p.expansion else 0
    cost = WIDE if p.wide else NARROW
    window = cost.window * (prod(p.filtering.view.kernel) if p.wide else p.pairs)
    item = cost.item + p.terms / 16 * (cost.terms + cost.columns * group / 8) + cost.stored * group
    rest = 120 + steps * (window + cost.step + cost.width * p.width / 8)
    loads = UNFOLDED * ceil_div(pixels, 32) if p.is_first else 12 * pixels / 256
    ends = cost.ends + loads * p.terms / warps + parts * p.width
    ends += 300 * ceil(form.rows * form.columns * p.width / (256 * warps))
    blocks = prod(form.grid(p)) * p.images * form.split
    processors = p.target.processors * (CLUSTERED if form.split > 1 else 1)
    waves, resident = blocks / processors, form.resident(p)
    running = resident if p.wide else min(resident, ceil(waves))
    chunk = (ceil_div(items, warps) * item + rest) / cost.alone
    chunk += running * (items * item + warps * rest) / ISSUED
    chunks = ceil_div(ceil_div(p.hidden, form.chunk), form.split)
    time = ceil(waves / resident) * (chunks * chunk + cost.factor * ends / CLOCK)
    time *= ROLLED if p.rolls else 1.0
    memory = p.traffic / MEMORY
    return cost.begin + (time**4 + memory**4) ** 0.25


def settled(p: ResidualProblem, best: Form, time: float) -> Form:
    """Return the form of a problem, of which one is estimated to be the fastest: if short, another.

    Args:
        p: the problem.
        best: the form with the lowest estimate.
        time: this estimate in microseconds.
    """
    windows = prod(p.filtering.view.kernel)
    short = SHORT_WIDE if p.wide else SHORT
    if not p.projection or windows > WINDOW or time > short:
        return best
    together = (form for form in forms(p) if _together(p, form) <= form.resident(p))
    return min(together, key=lambda form: (_short_time(p, form), str(form)), default=best)


def _together(p: ResidualProblem, form: Form) -> int:
    """Return the most blocks of a multiprocessor if all of them start at once."""
    return ceil_div(prod(form.grid(p)) * p.images * form.split, p.target.processors)


def _short_time(p: ResidualProblem, form: Form) -> float:
    """Return the estimate of a form whose blocks start at once, to compare with others."""
    chunks = ceil_div(ceil_div(p.hidden, form.chunk), form.split)
    sent = form.bands * 16 * p.width * 4 / 1024 if form.split > 1 else 0.0
    if p.wide:
        return time_of(p, form) + OF_CHUNK_WIDE * chunks + OF_SENT_WIDE * sent
    warps = form.warps(p) * _together(p, form)
    return time_of(p, form) + OF_WARP * warps + OF_CHUNK * chunks + OF_SENT * sent


def _pixels(p: ResidualProblem, form: Form) -> int:
    """Return the most pixels of the image that the windows of a tile cover."""
    view, found = p.filtering.view, 1
    for axis, (tile, count) in enumerate(zip((form.rows, form.columns), form.grid(p), strict=True)):
        stride, size = view.strides[axis], p.size[axis]
        begins = (i * tile * stride - view.pads_begin[axis] for i in range(count))
        reach = (tile - 1) * stride + view.kernel[axis]
        found *= max(max(0, min(begin + reach, size) - max(begin, 0)) for begin in begins)
    return found
