"""Inverted residuals of 16-bit floats whose expanded pixels stay in registers.

Where `inverted_residual.cu` stores expanded pixels in shared memory, from which the depthwise
convolution loads each of them for several elements of a window, a lane of `residual_patches.cu`
expands the pixels of a patch one after the other, and adds each to the sums of all windows that it
is in. Patches overlap by what their windows do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from math import ceil, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ..gemm.first_layer import CHANNELS, pack_strips
from ..gemm.tile import MAX_KEPT, MEMORY
from ..recipe.launch import Launch
from ..recipe.operands import Packed, by_axis, ceil_div, sizes
from .pack_residual import joined, layers_of, padded_floats, pitch, projection_rows
from .residual_forms import ResidualProblem, Tile

#: Pixels of a patch, rows and columns; patches of a tile, down and across.
PATCHES = ((7, 7), (14, 7), (4, 7), (8, 4), (4, 4))
TILES = ((1, 4), (2, 2), (4, 1), (2, 4), (1, 2), (1, 1))
#: Maximum expanded channels at a time, walks of a warp in a chunk, and warps of a block.
MAX_CHUNK, WALKS, MAX_WARPS = 144, (1, 2, 3), 16
#: Elements of the longest side of a window.
MAX_WINDOW = 5
#: Maximum channels of the image and of the result.
MAX_CHANNELS, MAX_FILTERS = 96, 160
#: Registers of a thread besides those of a walk and of a projection, those of a multiprocessor,
#: and the most that a thread may be estimated to need.
OTHERS, REGISTERS, MAX_REGISTERS = 50, 1 << 16, 224
#: Columns from one window of a first layer to the next, and maximum of pixels of a row of one.
STEP_FIRST, MAX_SPAN = 2, 8
#: Bytes of a word of its image.
WORD = 16
#: Instructions for a pixel of a first layer's image.
OF_PIXEL = 20
#: Microseconds of a launch; bytes of weights per microsecond that a block loads; instructions per
#: microsecond of a warp, and of a multiprocessor. Fitted to 335 forms of 20 inverted residuals of
#: MobileNets and MnasNet at batch 32 on an H200, with a mean error of 10 %.
BEGIN, LOADED, ALONE, ISSUED = 4.0, 28e3, 2400.0, 4370.0
#: Those of a warp behind a first layer, whose products of a pixel depend on one another. Fitted to
#: seven forms of MobileNetV2's at batch 32.
ALONE_FIRST = 1500.0
#: Instructions of an activation such as HardSwish, besides those of Relu or Clip.
DEAR = 4

_NAME = re.compile(r"(\d+)x(\d+) of (\d+)x(\d+)x(\d+) by (\d+) in (\d+)")


@record
class PatchForm:
    """How a problem is divided among blocks.

    Attributes:
        height, width: pixels of a patch.
        down, across: patches of a tile.
        chunk: expanded channels at a time.
        walks: maximum walks of a warp in a chunk.
        stages: chunks whose filtered pixels are in shared memory at once.
    """

    height: int
    width: int
    down: int
    across: int
    chunk: int
    walks: int = 1
    stages: int = 1

    def __str__(self) -> str:
        """Return its name, such as ``2x2 of 7x7x96 by 2 in 1``."""
        patch = f"{self.down}x{self.across} of {self.height}x{self.width}x{self.chunk}"
        return f"{patch} by {self.walks} in {self.stages}"

    @staticmethod
    def parse(text: str) -> PatchForm | None:
        """Return the form of this name; None for other names."""
        found = _NAME.fullmatch(text)
        if not found:
            return None
        down, across, height, width, chunk, walks, stages = map(int, found.groups())
        return PatchForm(height, width, down, across, chunk, walks, stages)

    @property
    def tile(self) -> Tile:
        """The pixels of the result per block."""
        return Tile(self.down * self.height, self.across * self.width)

    @property
    def sets(self) -> int:
        """Sets of four patches, of which a warp has one at a time."""
        return ceil_div(self.down * self.across, 4)

    @property
    def bands(self) -> int:
        """Bands of 16 rows of sums: eight are two rows of a column of each patch of a set."""
        return ceil_div(self.sets * ceil_div(self.height, 2) * self.width, 2)

    @property
    def items(self) -> int:
        """Walks of a chunk: sixteen channels of a set each."""
        return self.sets * (self.chunk // 16)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return ceil_div(self.items, self.walks)

    def terms(self, p: ResidualProblem) -> int:
        """Return the channels of a pixel in shared memory; all chunks, if these are filtered."""
        return terms_of(p) if p.expansion else ceil_div(p.hidden, self.chunk) * self.chunk

    def slices(self, p: ResidualProblem) -> int:
        """Return the slices of the columns of a projection, so that every warp has one."""
        return _slices(self.bands, self.warps, p.width)

    def run(self, slices: int) -> int:
        """Return the most slices of bands of a warp."""
        return ceil_div(self.bands * slices, self.warps)

    def chunks(self, p: ResidualProblem) -> int:
        """Return the number of chunks."""
        return ceil_div(p.hidden, self.chunk)

    def row_pairs(self, p: ResidualProblem) -> int:
        """Return the steps of a walk, of two rows of pixels."""
        kernel, step = p.filtering.view.kernel[0], p.filtering.view.strides[0]
        return (self.height + kernel) // 2 if step == 1 else self.height + kernel // 2

    def box(self, p: ResidualProblem) -> tuple[int, int]:
        """Return the rows and columns of the image that a block keeps."""
        kernel, step = p.filtering.view.kernel[1], p.filtering.view.strides[0]
        rows = (self.down - 1) * self.height * step + 2 * self.row_pairs(p)
        return rows, (self.tile.columns - 1) * step + kernel

    def image(self, p: ResidualProblem) -> tuple[int, int]:
        """Return the rows and columns of the image of a first layer that a block keeps."""
        rows, columns = self.box(p)
        step_h, kernel_h, span = first_of(p)
        return (rows - 1) * step_h + kernel_h, (columns - 1) * STEP_FIRST + span

    def pitch_box(self, p: ResidualProblem) -> int:
        """Return the pixels between rows of the image, so that few of eight share banks."""
        return self.banks(p)[1]

    def banks(self, p: ResidualProblem) -> tuple[int, int]:
        """Return how many of eight pixels that are read at once share a bank, and the pitch."""
        step, across = p.filtering.view.strides[0], self.width * p.filtering.view.strides[0]
        patches = self.down * self.across, self.across
        if not p.is_first:
            return _banks(self.box(p)[1], patches, self.height * step, across)
        # Two pixels of the image are a word, and as far apart are windows.
        step_h, _, _ = first_of(p)
        words = ceil_div(self.image(p)[1], 2)
        conflicts, pitch_of = _banks(words, patches, self.height * step, across, step_h)
        return conflicts, 2 * pitch_of

    def weights(self, p: ResidualProblem) -> int:
        """Return the bytes of the weights of a chunk."""
        expansion = 2 * terms_of(p) + 8 if p.expansion else 0
        first = expansion + 4 + 4 * prod(p.filtering.view.kernel)
        return self.chunk * first + p.width * pitch(self.chunk, 2)

    def shared(self, p: ResidualProblem) -> int:
        """Return the bytes of shared memory, as in `residual_patches.cu`."""
        image = (self.box(p)[0] * self.pitch_box(p) + 1) * pitch(self.terms(p), 2)
        if p.is_first:
            image = (self.image(p)[0] * self.pitch_box(p) + 2) * 2 * CHANNELS
        filtered = self.stages * self.bands * 16 * pitch(self.chunk, 2)
        weights = self.chunks(p) * self.weights(p)
        return image + filtered + weights + (self.raw(p) if in_words(p) else 0)

    def raw(self, p: ResidualProblem) -> int:
        """Return the bytes of the image of a first layer as it is, of which rows have words."""
        source, (rows, columns) = p.source or p.x, self.image(p)
        word = WORD // source.dtype.itemsize
        row = ceil_div(columns + word - 1, word) * WORD
        return source.dims[1] * rows * row

    def registers(self, p: ResidualProblem) -> int:
        """Return an estimate of the registers of a thread."""
        kernel, step = p.filtering.view.kernel[0], p.filtering.view.strides[0]
        walk = 2 * (kernel // step + 1) * self.width + 2 * prod(p.filtering.view.kernel)
        slices = self.slices(p)
        projection = self.run(slices) * p.width // slices // 2
        walk += terms_of(p) // 4 + (projection if self.chunks(p) > 1 else 0)
        return OTHERS + max(walk, 2 * projection)  # sums, and operands of their epilogue

    def resident(self, p: ResidualProblem) -> int:
        """Return the blocks that fit on a multiprocessor."""
        warps = REGISTERS // (32 * ceil_div(self.registers(p), 8) * 8) // 4 * 4
        return max(1, min(warps // self.warps, p.target.resident(self.shared(p))))

    def applies(self, p: ResidualProblem) -> bool:
        """Whether a block fits on a multiprocessor, and each walk of a warp saves other warps."""
        warps = self.warps
        fewer = self.walks == 1 or warps < ceil_div(self.items, self.walks - 1)
        if not fewer or warps > MAX_WARPS or self.stages > self.chunks(p):
            return False
        registers = self.registers(p)
        fits = registers <= MAX_REGISTERS and warps <= REGISTERS // (32 * registers) // 4 * 4
        return fits and self.shared(p) <= p.target.shared

    def tiles(self, p: ResidualProblem) -> int:
        """Return the number of tiles."""
        return prod(self.tile.grid(p)) * p.images

    def masks(self, p: ResidualProblem) -> tuple[bool, int, int]:
        """Return MASKED, FIRST_INSIDE and FIRST_OUTSIDE of `residual_patches.cu`."""
        view, step = p.filtering.view, p.filtering.view.strides[0]
        (height, width), (rows, columns) = p.output, p.size
        span = (self.width - 1) * step + view.kernel[1]
        right = columns + view.pads_begin[1] - (width - self.width) * step
        last = rows + view.pads_begin[0] - (height - self.height) * step
        exact = height % self.height == 0 and width % self.width == 0
        exact &= view.pads_begin[0] <= 2 and last >= 2 * (self.row_pairs(p) - 1)
        return not exact, min(view.pads_begin[1], span), min(right, span)

    def time_of(self, p: ResidualProblem) -> float:
        """Return the estimate in microseconds."""
        kernel, step = p.filtering.view.kernel, p.filtering.view.strides[0]
        pixels = 2 * self.row_pairs(p) * ((self.width - 1) * step + kernel[1])
        conflicts = self.banks(p)[0] - 1
        of_pixel, of_result = 2.5 + conflicts, 3 + prod(kernel)
        if p.expansion:
            of_pixel = 4.5 + (0.75 + 0.5 * conflicts) * terms_of(p) / 16
            of_pixel += 0 if p.unrounded.is_cheap else 2 * DEAR
        of_result += 0 if p.filtering.epilogue.is_cheap else DEAR
        walk = 100 + pixels * of_pixel + 2 * self.height * self.width * of_result
        run, columns = self.run(self.slices(p)), p.width // self.slices(p)
        project = 30 + run * (self.chunk // 16) * (3 + columns / 5)
        rows, row = self.box(p)
        ends = 120 + run * (30 + columns)
        if p.is_first:
            ends += OF_PIXEL * ceil_div(prod(self.image(p)), 32 * self.warps)
        else:
            ends += 7 * ceil_div(rows, self.warps) * ceil_div(row * self.terms(p), 256)
        tile = self.chunks(p) * (self.walks * walk + project) + ends
        waves, resident = self.tiles(p) / p.target.processors, self.resident(p)
        running = ceil_div(min(resident, ceil(waves)) * self.warps, 4) * 4
        alone = ALONE_FIRST if p.is_first else ALONE
        time = ceil(waves / resident) * tile * (1 / alone + running / ISSUED)
        memory = 2 * (p.x.size + p.y.size) / MEMORY
        return BEGIN + self.chunks(p) * self.weights(p) / LOADED + max(time, memory)


@lru_cache(MAX_KEPT)
def _slices(bands: int, warps: int, width: int) -> int:
    """Return the number of slices that leaves a warp the fewest columns of bands."""
    counts = [n for n in range(1, width // 16 + 1) if width % (16 * n) == 0]
    return min(counts, key=lambda n: (ceil_div(bands * n, warps) * width // n, n))


@lru_cache(MAX_KEPT)
def _banks(
    columns: int, patches: tuple[int, int], down: int, across: int, rows: int = 1
) -> tuple[int, int]:
    """Return how many of eight pixels share a bank, with the pitch where these are the fewest.

    Args:
        columns: pixels of a row.
        patches: of a tile, and of a row of them.
        down: rows of pixels from one patch to the next.
        across: columns of pixels from one patch to the next.
        rows: rows in memory of a row of pixels.
    """
    places = {divmod(min(i, patches[0] - 1), patches[1]) for i in range(4)}

    def conflicts(pitch: int) -> int:
        banks = [
            ((y * down + row) * rows * pitch + x * across) % 8
            for row in range(2)
            for y, x in places
        ]
        return max(map(banks.count, banks))

    return min((conflicts(pitch), pitch) for pitch in range(columns, columns + 8))


def refusal(p: ResidualProblem) -> str:
    """Return why the kernel does not apply; empty if it does."""
    view = p.filtering.view
    if p.wide or p.projection is None:
        return "other layers than a depthwise convolution and a projection in 16 bits"
    if len(set(view.strides)) > 1 or view.strides[0] > 2:
        return f"strides of {view.strides}"
    if any(size % 2 == 0 or size > MAX_WINDOW for size in view.kernel):
        return f"windows of {view.kernel}"
    if p.is_first and (first_of(p)[2] > MAX_SPAN or p.layers[0].view.strides[1] != STEP_FIRST):
        return "a first layer of other windows"
    if p.x.dims[1] > MAX_CHANNELS or p.width > MAX_FILTERS:
        return f"{p.x.dims[1]} to {p.y.dims[1]} channels"
    return ""


def first_of(p: ResidualProblem) -> tuple[int, int, int]:
    """Return the vertical stride and the rows of a first layer's windows, and pixels of a row."""
    if not p.is_first:
        return 1, 1, 0
    view = p.layers[0].view
    return view.strides[0], view.kernel[0], ceil_div(view.kernel[1], 4) * 4


def in_words(p: ResidualProblem) -> bool:
    """Whether rows of a first layer's image are copied in words."""
    source = p.source or p.x
    return p.is_first and source.dims[-1] * source.dtype.itemsize % WORD == 0


def terms_of(p: ResidualProblem) -> int:
    """Return the terms of the expansion; those of a first layer have gaps."""
    _, rows, span = first_of(p)
    return rows * span * CHANNELS if p.is_first else p.terms


def forms(p: ResidualProblem) -> Iterator[PatchForm]:
    """Yield the forms that apply."""
    if refusal(p):
        return
    groups = ceil_div(p.hidden, 16)
    chunks = [16 * count for count in range(1, MAX_CHUNK // 16 + 1) if groups % count == 0]
    for (height, width), (down, across), chunk in product(PATCHES, TILES, chunks):
        for walks, stages in product(WALKS, (1, 2)):
            form = PatchForm(height, width, down, across, chunk, walks, stages)
            if form.applies(p):
                yield form


def launch(p: ResidualProblem, form: PatchForm, code: str) -> Launch:
    """Return the launch in a form.

    Args:
        p: the problem.
        form: the form.
        code: the atom and the epilogues.
    """
    assert p.projection is not None
    x, y, view, epilogue = p.x, p.y, p.filtering.view, p.projection.epilogue
    down, across = form.tile.grid(p)
    bias, masked = p.projection.b, form.masks(p)
    members = {
        **{"channels": x.dims[1], "filters": y.dims[1]},
        **{**sizes("", p.size), **sizes("out_", y.dims[2:]), **by_axis(pad=view.pads_begin)},
        **{"row_x": x.row, "row_y": y.row, "down": down, "across": across},
        "chunks": form.chunks(p),
    }
    constants = [t for layer in p.layers for t in (layer.w, layer.b) if t and t is not bias]
    biases = tuple(layer.b is not None for layer in p.layers[:-1])
    (step_first, rows_first, span), first = first_of(p), p.layers[0].view
    how = (form.chunk, p.width, biases, span)
    titles = (layer.epilogue.title for layer in p.layers)
    return Launch(
        "conv/residual_patches.cu",
        "residual_patches",
        grid=(min(form.tiles(p), p.target.processors * form.resident(p)), 1, 1),
        block=32 * form.warps,
        args={
            "x": p.source or x,
            "weights": Packed(
                tuple(t.value for t in constants),
                ("residual patches", *how),
                partial(pack_weights, chunk=form.chunk, width=p.width, biases=biases, span=span),
            ),
            **{"y": y, "bias": bias, **epilogue.args, "tiles": form.tiles(p), "p": members},
            "source": {**sizes("", x.dims[2:]), **by_axis(pad=first.pads_begin)},
        },
        types=(("S", (p.source or x).dtype), ("T", x.dtype), *epilogue.aliases),
        constants=(
            ("EXPANDS", p.expansion is not None),
            *(("UNFOLDED", x.dims[1] if p.is_first else 0), ("SPAN_FIRST", span)),
            ("IN_WORDS", in_words(p)),
            *(("FIRST_H", rows_first), ("FIRST_STEP_H", step_first)),
            *(("TERMS", form.terms(p)), ("CHUNK", form.chunk)),
            *(("CHUNKS", form.chunks(p)), ("COLUMNS", p.width)),
            *zip(("KH", "KW"), view.kernel, strict=True),
            ("STEP", view.strides[0]),
            *(("PATCH_H", form.height), ("PATCH_W", form.width)),
            *(("DOWN", form.down), ("ACROSS", form.across), ("PITCH_BOX", form.pitch_box(p))),
            *(("WARPS", form.warps), ("SLICES", form.slices(p)), ("STAGES", form.stages)),
            *zip(("MASKED", "FIRST_INSIDE", "FIRST_OUTSIDE"), masked, strict=True),
            *(("RESIDENT", form.resident(p)), ("VECTOR_C", 8), *epilogue.flags(bias)),
        ),
        code=code,
        shared=form.shared(p),
        note=" ".join(filter(None, ("Cast" if p.source else "", str(form), *titles))),
        pitched=p.pitched,
    )


def pack_weights(
    *arrays: Array, chunk: int, width: int, biases: tuple[bool, ...], span: int = 0
) -> Array:
    """Return the weights of all chunks, each in the order of shared memory.

    That is, if there is an expansion, its rows as left fragments and its biases, each twice; the
    windows [element, channel] and their biases, in float32; rows of the projection.

    Args:
        arrays: for each convolution its weights, and its bias if it has one; of the projection, the
            weights alone.
        chunk: expanded channels per chunk.
        width: rows of the projection.
        biases: whether convolutions before the projection have one.
        span: pixels of a row of a first layer's windows; 0 if the expansion is none.
    """
    layers, left = layers_of(arrays, biases)
    windows, shift = layers[-1]
    hidden = len(windows)
    if span:
        layers[0] = pack_strips(layers[0][0], span)[0], layers[0][1]
    count, projection = ceil_div(hidden, chunk) * chunk, left.pop().reshape(-1, hidden)
    taps = np.zeros((windows[0].size, count), np.float32)
    taps[:, :hidden] = windows.reshape(hidden, -1).T
    expansion = [
        (_fragments(w, count), padded_floats(b, count)[:, None].repeat(2, 1))
        for w, b in layers[:-1]
    ]
    second, parts = padded_floats(shift, count), list[Array]()
    for begin in range(0, count, chunk):
        here = slice(begin, begin + chunk)
        parts += [part[here] for pair in expansion for part in pair]
        parts += [taps[:, here], second[here], projection_rows(projection[:, here], width, chunk)]
    return joined(parts, arrays[0].dtype)


def _fragments(w: Array, count: int) -> Array:
    """Return weights as left fragments, the rows of 16 channels one after the other."""
    terms = ceil_div(w.shape[1], 16) * 16
    rows = np.zeros((count, terms), w.dtype)
    rows[: len(w), : w.shape[1]] = w.reshape(len(w), -1)
    # Channel 2 i + j of 16 is row i + 8 j; a lane has words [half of terms, half of rows].
    order = rows.reshape(count // 16, 8, 2, terms // 16, 2, 4, 2).transpose(0, 3, 1, 5, 4, 2, 6)
    return np.ascontiguousarray(order).reshape(count, terms)
