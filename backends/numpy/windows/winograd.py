"""Winograd's minimal filtering of 3x3 convolutions with stride 1: F(4x4, 3x3).

A tile of 4 x 4 outputs depends on 6 x 6 inputs. Transformed, they take one product with each
transformed filter and element, 36 instead of 144 (Lavin and Gray, Fast algorithms for convolutional
neural networks, 2015). Filters are transformed in float64, once per model.

The sums cost accuracy. With the points 0, ±1/√2, ±√2 and infinity, which keep all numbers in the
transforms near 1, the relative error of a convolution (Euclidean norms, against float64) is below
`ERROR`, where one matrix product is at 3e-7; the usual points 0, ±1, ±2 have twice that. An
infinity or a NaN in the input makes NaN of all outputs of its tiles, not only of those whose
windows contain it.

Rows of tiles have one tile more than the result, the `pitch`. Inputs are split into phases, the
pixels at rows q and columns p modulo 4, so that every step of the transforms works on long
contiguous stretches: the next tile's pixels are the same phase one place further on. Results
for the tile after the end of a row are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import log2, sqrt

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.window import window
from ..engine.chain import Chain
from ..engine.cost import PRODUCT
from ..engine.step import Bound, ScratchLayout, Tape
from ..numerics import blas
from ..numerics.elementwise import ELEMENTWISE
from ..numerics.elementwise_calls import elementwise_call
from ..numerics.products import recorded, sums
from .algorithm import ConvAlgorithm

#: Upper bound of the relative error for independent normal inputs and filters.
ERROR = 5e-6

#: Outputs and inputs of a tile along each axis.
M, N = 4, 6
#: The filter transform: G g Gᵀ.
G = np.array(
    [
        [1, 0, 0],
        [-2 / 3, -sqrt(2) / 3, -1 / 3],
        [-2 / 3, sqrt(2) / 3, -1 / 3],
        [1 / 6, sqrt(2) / 6, 1 / 3],
        [1 / 6, -sqrt(2) / 6, 1 / 3],
        [0, 0, 1],
    ]
)

#: Nanoseconds on one core: the transforms of a tile of one input channel and of one filter's
#: products, fetching an element of a filter, and the calls that a block makes.
INPUT_TILE, OUTPUT_TILE, FETCH, BLOCK = 50.0, 40.0, 0.4, 150_000.0
#: Bytes of workspace that stay in the cache, and nanoseconds per tile of a channel or filter for
#: every doubling beyond them.
CACHE, SPILL = 4 << 20, 20.0
#: Products with fewer columns take as long as with this many.
THINNEST = 16


def _transform(d: Sequence[Array], r: Sequence[Array], t: Array) -> None:
    """Compute the transform of six inputs into `r`; `t` is scratch."""
    d0, d1, d2, d3, d4, d5 = d
    r0, r1, r2, r3, r4, r5 = r
    np.multiply(d1, sqrt(0.5), out=r1)
    np.multiply(d3, sqrt(0.5), out=r2)
    np.add(r2, r2, out=r4)
    np.subtract(r4, r1, out=r4)
    np.subtract(r2, r1, out=r2)
    np.subtract(r2, r1, out=r2)
    np.multiply(d2, 0.5, out=t)
    np.subtract(d4, t, out=t)
    np.add(t, r4, out=r3)  # d4 - d2 / 2 ± √2 (d3 - d1 / 2)
    np.subtract(t, r4, out=r4)
    np.add(d2, d2, out=t)
    np.subtract(d4, t, out=t)
    np.add(t, r2, out=r1)  # d4 - 2 d2 ± √½ (d3 - 2 d1)
    np.subtract(t, r2, out=r2)
    np.multiply(d2, 2.5, out=t)
    np.subtract(d0, t, out=r0)
    np.add(r0, d4, out=r0)
    np.multiply(d3, 2.5, out=t)
    np.subtract(d1, t, out=r5)
    np.add(r5, d5, out=r5)


def _collect(m: Sequence[Array], y: Sequence[Array], t: Array) -> None:
    """Compute the four outputs of six products into `y`; `t` is scratch."""
    m0, m1, m2, m3, m4, m5 = m
    y0, y1, y2, y3 = y
    np.add(m1, m2, out=y2)
    np.add(m3, m4, out=t)
    np.add(m0, y2, out=y0)
    np.add(y0, t, out=y0)
    np.multiply(y2, 0.5, out=y2)
    np.add(y2, t, out=y2)
    np.add(y2, t, out=y2)
    np.subtract(m1, m2, out=y3)
    np.multiply(y3, sqrt(0.5), out=y3)
    np.subtract(m3, m4, out=t)
    np.multiply(t, sqrt(2), out=t)
    np.add(y3, t, out=y1)
    np.multiply(y3, 0.5, out=y3)
    np.add(y3, t, out=y3)
    np.add(y3, t, out=y3)
    np.add(y3, m5, out=y3)


def _transformed(filters: Array) -> Array:
    """Return filters [k, c, 3, 3] as matrices [36, c, k], for products by their transposes."""
    with blas.one_thread():
        found = np.einsum("ia,kcab,jb->ijck", G, filters.astype(float64), G, optimize=True)
    return found.reshape(N * N, *filters.shape[1::-1]).astype(sums(filters.dtype), "C")


class Winograd(ConvAlgorithm):
    """A Winograd convolution, cut into blocks of tile rows and filters.

    Args:
        chain: a convolution for which `applies` holds, and its fused nodes.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        self.images, self.channels = self.x.tensor.dims[:2]
        self.filters = self.w.tensor.dims[0]
        self.rows, columns = (-(-size // M) for size in self.window.output)
        self.pitch = columns + 1
        self._time, *_ = self._minimum(1)
        _, self.depth, self.parts = self._minimum(self.workers)
        self.early = self._early()
        scratch, sizes = (
            ScratchLayout(),
            self._sizes(self.depth * self.pitch, -(-self.filters // self.parts)),
        )
        self.phases, self.halves, self.spare, self.inputs, self.products = (
            scratch.take(size, self.dtype) for size in sizes
        )
        self.nbytes = scratch.nbytes

    @classmethod
    def applies(cls, chain: Chain) -> bool:
        """Whether the head is a 3x3 convolution with stride 1."""
        x, w, _ = chain.operands
        kernel = w.tensor.dims[2:]
        if not cls.is_plain(chain) or x.tensor.dtype != float32 or kernel != (3, 3):
            return False
        geometry = window(chain.head.op, x.tensor.dims[2:], kernel)
        return geometry.strides == geometry.dilations == (1, 1) and all(geometry.output)

    def _sizes(self, tiles: int, filters: int) -> tuple[int, ...]:
        """Return the elements of each part of a block's workspace."""
        c, k = self.channels, filters
        return (
            M * M * c * (tiles + self.pitch),
            max(N * (M * c * tiles + 1), N * M * k * tiles),
            N * max(c, k) * tiles,
            max(N * N * c, M * M * k) * tiles,
            N * N * k * tiles,
        )

    def _minimum(self, workers: int) -> tuple[float, int, int]:
        """Return the estimate of the fastest blocking, its rows and filter shares."""
        choices = product(range(1, self.rows + 1), range(1, workers + 1))
        return min((self._cost(*choice, workers), *choice) for choice in choices)

    def _cost(self, depth: int, parts: int, workers: int) -> float:
        """Return the estimate for blocks of this many rows and a share of the filters."""
        blocks = self.images * -(-self.rows // depth) * parts
        filters, tiles = -(-self.filters // parts), depth * self.pitch
        product = PRODUCT * max(tiles, THINNEST) + FETCH
        block = N * N * self.channels * filters * product + BLOCK
        block += tiles * (self.channels * INPUT_TILE + filters * OUTPUT_TILE)
        excess = max(0.0, log2(sum(self._sizes(tiles, filters)) * self.dtype.itemsize / CACHE))
        block += tiles * (self.channels + filters) * SPILL * excess
        return -(-blocks // workers) * block

    def _early(self) -> int:
        """Return how many stages can process outputs while they are in tile order."""
        count = 0
        for stage in self.chain.stages:
            if stage.others:
                break
            count += 1
        return count

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        return self._time

    @property
    def kernel(self) -> str:
        """The sizes."""
        size = "x".join(map(str, self.window.output))
        return f"Winograd 4x4 of {self.filters}x{self.channels}x{size}"

    def _blocks(self) -> Iterator[tuple[int, range, slice]]:
        """Yield image, rows of tiles and filters of every block."""
        bounds = [self.filters * i // self.parts for i in range(self.parts + 1)]
        for image in range(self.images):
            for first in range(0, self.rows, self.depth):
                rows = range(first, min(first + self.depth, self.rows))
                for i in range(self.parts):
                    yield image, rows, slice(bounds[i], bounds[i + 1])

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.x], bound[self.chain.output]
        filters = bound.packed((self.w,), ("winograd", M), _transformed)
        late = Chain(self.chain.head, self.chain.stages[self.early :])
        frame = self.chain.frame((0, 1, 2))
        finish = late.finish(frame, bound) if late.stages else None
        tapes: list[Tape] = []
        for image, rows, part in self._blocks():
            tape: Tape = []
            inputs = self._take_in(tape, bound, x[image], rows)
            products = bound.scratch(
                self.products, (N * N, part.stop - part.start, len(rows) * self.pitch)
            )
            matrices = filters[:, :, part].swapaxes(1, 2)
            tape.append(recorded(matrices, inputs, products))
            outputs = self._add_up(tape, bound, products, part)
            tiled = outputs.reshape(M, M, -1, len(rows), self.pitch)
            high = slice(M * rows.start, min(M * rows.stop, result.shape[2]))
            _put_back(tape, tiled, result[image, part, high])
            if finish is not None:
                box = (slice(image, image + 1), part, high, slice(0, result.shape[3]))
                finish(tape, frame.block(box))
            tapes.append(tape)
        return tapes

    def _take_in(self, tape: Tape, bound: Bound, image: Array, rows: range) -> Array:
        """Record the input transform of tile rows; return it, [36, c, tiles]."""
        c, pitch, depth = self.channels, self.pitch, len(rows)
        tiles = depth * pitch
        phases = bound.scratch(self.phases, (M, M, c, depth + 1, pitch))
        tape.append(partial(phases.fill, 0))
        below, across = self.window.pads_begin
        for q, p in product(range(M), repeat=2):
            height = _phase(M * rows.start + q - below, depth + 1, image.shape[1])
            width = _phase(p - across, pitch, image.shape[2])
            pixels = image[:, height[1], width[1]]
            if pixels.size:
                tape.append(partial(np.copyto, phases[q, p][:, height[0], width[0]], pixels))
        flat = phases.reshape(M, M, c, -1)
        halves = bound.scratch(self.halves, (N, M * c * tiles + 1))
        starts = [(i % M, i // M * pitch) for i in range(N)]
        across_rows = [flat[q][:, :, first : first + tiles] for q, first in starts]
        half = halves[:, :-1].reshape(N, M, c, tiles)
        spare = bound.scratch(self.spare, (M, c, tiles))
        tape.append(partial(_transform, across_rows, list(half), spare))
        size = c * tiles
        inputs = bound.scratch(self.inputs, (N, N, size))
        firsts = [i % M * size + i // M for i in range(N)]
        along_rows = [halves[:, first : first + size] for first in firsts]
        spare = bound.scratch(self.spare, (N, size))
        tape.append(partial(_transform, along_rows, list(inputs.swapaxes(0, 1)), spare))
        return inputs.reshape(N * N, c, tiles)

    def _add_up(self, tape: Tape, bound: Bound, products: Array, part: slice) -> Array:
        """Record the output transform [4, 4, filters * tiles] of the products; return it."""
        size = products[0].size
        m = products.reshape(N, N, size)
        halves = bound.scratch(self.halves, (M, N, size))
        outputs = bound.scratch(self.inputs, (M, M, size))
        tape.append(partial(_collect, list(m), list(halves), bound.scratch(self.spare, (N, size))))
        tape.append(
            partial(
                _collect,
                list(halves.swapaxes(0, 1)),
                list(outputs.swapaxes(0, 1)),
                bound.scratch(self.spare, (M, size)),
            )
        )
        bias = bound.get(self.bias)
        if bias is not None:
            by_filter = outputs.reshape(M * M, *products.shape[1:])
            tape.append(partial(np.add, by_filter, bias[part, np.newaxis], by_filter))
        for stage in self.chain.stages[: self.early]:
            function = ELEMENTWISE[type(stage.node.op)](stage.node.op)
            tape.append(elementwise_call(function, outputs, out=outputs))
        return outputs


def _phase(first: int, count: int, size: int) -> tuple[slice, slice]:
    """Return the positions of a phase inside an axis, and their pixels.

    Args:
        first: pixel of the first position; later ones are four pixels apart.
        count: number of places.
        size: pixels of the axis.
    """
    low = max(0, -(first // M))
    high = max(low, min(count, -(-(size - first) // M)))
    return slice(low, high), slice(first + M * low, first + M * high, M)


def _put_back(tape: Tape, outputs: Array, result: Array) -> None:
    """Record the copies of outputs [4, 4, filters, rows, pitch] to rows of a result."""
    for q, p in product(range(M), repeat=2):
        target = result[:, q::M, p::M]
        if target.size:
            source = outputs[q, p][:, : target.shape[1], : target.shape[2]]
            tape.append(partial(np.copyto, target, source))
