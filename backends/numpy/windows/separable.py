"""Depthwise convolutions together with the pointwise ones around them, some rows at a time.

An inverted bottleneck widens an image by a 1x1 convolution, convolves each channel, and narrows it
again. As one step, the wide images exist only for a few rows, which stay in the cache, and with
channels last: a product writes and reads its matrix in either order at no cost, and a tap of the
depthwise kernel is one long range of pixels and channels. Strided windows read columns sorted by
their remainder, so that their ranges are as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from math import gcd, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.conv import Conv
from ....runtime.ops.window import window
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import Frame, lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT, balanced, blocks_worth, workers_worth
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.calls import summing
from ..numerics.halves import copying, store
from ..numerics.products import COLUMNS, is_small, recorded, sums
from .columns import Region, region
from .depthwise import Depthwise, StridePhase
from .depthwise_last import FEWEST, INTO, OUT

#: Bytes of wide rows per block, sized for the cache.
ROWS = 1 << 21
#: Minimum elements per loop: shorter ones cost more to start than to run.
LONGEST = 768
#: Nanoseconds per multiply-add.
TAP = 0.12
#: Minimum terms of a product for which BLAS loses more by a transposed result than the bias takes.
MANY_TERMS = 96
#: Bytes of one way of a first-level cache, and the number of ways.
CACHE_WAY, WAYS = 4096, 8


@record
class Columns:
    """Columns of the padded image with one remainder, next to each other in a block.

    Attributes:
        phase: the columns of the kernel that meet them.
        source: the columns of the image.
        at: their places; the others are padding.
    """

    phase: StridePhase
    source: slice
    at: slice


class Separable:
    """A depthwise convolution with a pointwise one before it, after it, or both.

    Args:
        depthwise: the depthwise convolution and its elementwise nodes.
        before: the pointwise convolution that it reads, if any.
        after: the pointwise convolution that reads it, if any.
    """

    def __init__(self, depthwise: Chain, before: Chain | None, after: Chain | None) -> None:
        self.depthwise, self.before, self.after = depthwise, before, after
        x, w, _ = depthwise.operands
        self.chains = tuple(chain for chain in (before, depthwise, after) if chain is not None)
        self.output = self.chains[-1].output
        self.x = self.chains[0].operands[0]
        self.dtype, self.workers = sums(x.tensor.dtype), thread_pool.size()
        self.images, self.channels, *self.spatial = x.tensor.dims
        self.window = window(depthwise.head.op, x.tensor.dims[2:], w.tensor.dims[2:])
        self.phases = StridePhase.of(self.window, 1)
        taps = [len(range(self.window.kernel[1])[phase.taps]) for phase in self.phases]
        pairs = zip(self.phases, taps, strict=True)
        ends = [phase.start + (count - 1) * phase.step for phase, count in pairs]
        self.wide = self.window.output[1] + max(ends)
        self.columns = [self._columns(phase) for phase in self.phases]
        self.pitch = self._pitch()
        self.tile = self._tile()
        self.boxes = self._boxes(self.workers)
        scratch = ScratchLayout()
        rows = max(region(self.window, tuple(self.spatial), box).shape[0] for box in self.boxes)
        pixels = rows * len(self.phases) * self.pitch
        outputs = max(prod(lengths(box)) for box in self.boxes)
        self.image = None
        if self.dtype != self.x.tensor.dtype:
            row = self.x.tensor.dims[1] * self.spatial[1]
            self.image = scratch.take(min(rows, self.spatial[0]) * row, self.dtype)
        self.narrow = scratch.take(pixels * self.terms, self.dtype)
        self.rows = scratch.take((pixels + 2 * self.wide) * self.channels, self.dtype)
        self.sums, self.spare = (
            scratch.take(outputs * self.channels, self.dtype) for _ in range(2)
        )
        self.result, self.transposed = (
            scratch.take(outputs * self.output.tensor.dims[1], self.dtype) for _ in range(2)
        )
        self.nbytes = scratch.nbytes

    @classmethod
    def around(
        cls,
        graph: Graph,
        chain: Chain,
        heads: Mapping[Node, Chain],
        results: Mapping[Value, Chain],
    ) -> list[Separable]:
        """Return the steps that a depthwise chain may be part of; none for another chain.

        Args:
            graph: its graph.
            chain: the chain.
            heads: those it may run together with, by their head.
            results: the same by their result.
        """
        if not _is_depthwise(chain):
            return []
        x = chain.operands[0]
        before = results.get(x) if graph.sole_consumer(x) is chain.head else None
        if before is not None and not (_is_pointwise(before) and _has_scalars(before)):
            before = None
        reader = graph.sole_consumer(chain.output)
        after = None if reader is None else heads.get(reader)
        if after is not None and not _is_pointwise(after):
            after = None
        ways: list[Separable] = []
        if before is not None:
            ways.append(cls(chain, before, None))
        if after is not None and not _collides(x):
            ways.append(cls(chain, None, after))
        if before is not None and after is not None:
            ways.append(cls(chain, before, after))
        return ways

    @property
    def terms(self) -> int:
        """Channels that the first pointwise convolution reads, and one for its bias."""
        if self.before is None:
            return 0
        return self.x.tensor.dims[1] + (self.before.operands[2] is not None)

    def _columns(self, phase: StridePhase) -> Columns:
        stride, pad, size = self.window.strides[1], self.window.pads_begin[1], self.spatial[1]
        start = min(self.wide, max(0, -((phase.first - pad) // stride)))
        stop = max(start, min(self.wide, -((phase.first - pad - size) // stride)))
        first = start * stride + phase.first - pad
        source = slice(first, first + (stop - start - 1) * stride + 1, stride)
        return Columns(phase, source if stop > start else slice(0, 0), slice(start, stop))

    def _pitch(self) -> int:
        """Return how far apart columns of different remainders are, which share their padding."""
        after = [*self.columns[1:], self.columns[0]]
        pairs = zip(self.columns, after, strict=True)
        return max(max(one.at.stop, self.wide - other.at.start) for one, other in pairs)

    def _tile(self) -> int:
        """Return how many pixels of a row a tap takes in one loop."""
        wide = self.window.output[1]
        fits = (n for n in range(1, wide) if wide % n == 0 and n * self.channels >= LONGEST)
        return next(fits, wide)

    def _boxes(self, workers: int) -> list[tuple[slice, slice]]:
        """Return the outputs of each block."""
        high, wide = self.window.output
        row = self.pitch * len(self.phases) * self.channels * self.dtype.itemsize
        fits = ROWS // row - self.window.extent[0] + self.window.strides[0]
        share = -(-blocks_worth(self._nanoseconds(1.0), workers) // max(1, self.images))
        count = max(share, -(-high // max(1, fits // self.window.strides[0])))
        count = max(1, min(high, count if self.images % workers == 0 else balanced(count, workers)))
        bounds = [high * i // count for i in range(count + 1)]
        return [(slice(start, stop), slice(0, wide)) for start, stop in pairwise(bounds)]

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core, whatever the number of threads."""
        spatial = tuple(self.spatial)
        rows = sum(region(self.window, spatial, box).shape[0] for box in self._boxes(1))
        return self._nanoseconds(rows / max(1, self.spatial[0]))

    def _nanoseconds(self, overlap: float) -> float:
        """Return the estimated time if rows are computed `overlap` times on average."""
        rows = self.images * self.channels * self.spatial[0] * self.pitch * len(self.phases)
        into = INTO
        if self.before is not None:
            into = self.terms * PRODUCT + self.before.calls * ELEMENT
        outputs = self.images * prod(self.window.output)
        taps = prod(self.window.kernel) * TAP + (len(self.phases) - 1) * ELEMENT
        depthwise = self.channels * (taps + (1 + self.depthwise.calls) * ELEMENT)
        out = self.channels * OUT
        if self.after is not None:
            sums = self.channels * PRODUCT + (1 + self.after.calls) * ELEMENT
            out = self.output.tensor.dims[1] * sums
        return rows * overlap * into + outputs * (depthwise + out)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in topological order."""
        return tuple(node for chain in self.chains for node in chain.nodes)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        size = "x".join(map(str, (self.channels, *self.window.output)))
        kernel = (
            f"depthwise {'x'.join(map(str, self.window.kernel))} of {size}, some rows at a time"
        )
        name = f"{' + '.join(chain.title for chain in self.chains)}: {kernel}"
        workers = workers_worth(self.nanoseconds, self.workers)
        return HostStep(name, site, self._record, workers, self.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        tapes: list[Tape] = []
        for image in range(self.images):
            for box in self.boxes:
                tape: Tape = []
                covered = region(self.window, tuple(self.spatial), box)
                rows = self._fill(tape, bound, bound[self.x][image], covered)
                total = self._convolve(tape, bound, rows, box)
                self._leave(tape, bound, total, (slice(image, image + 1), *box))
                tapes.append(tape)
        return tapes

    def _fill(self, tape: Tape, bound: Bound, image: Array, covered: Region) -> Array:
        """Record the calls that fill wide rows [rows, phases, columns, channels].

        The last columns of some are the first ones of the next: padding.
        """
        at, shape = covered.at[0], (covered.shape[0], len(self.phases), self.pitch, self.channels)
        margin, row = self.wide * self.channels, prod(shape[1:])
        padded = bound.scratch(self.rows, (prod(shape) + 2 * margin,))
        matrix = padded[margin:-margin].reshape(shape)
        inside, source = matrix[at], image[:, covered.inside[0]]
        gaps = [padded]
        if inside.size:
            above, below = (padded[margin:][:end] for end in (at.start * row, prod(shape) + margin))
            gaps = [above, *self._gaps(padded, margin + at.start * row, len(inside))]
            if at.stop < len(matrix):
                gaps.append(below[at.stop * row :])
        if inside.size and self.image is not None:
            halves, source = source, bound.scratch(self.image, source.shape)
            tape.append(copying(source, halves))
        if inside.size and self.before is not None:
            self._expand(tape, bound, source, inside)
        elif inside.size:
            for i, columns in enumerate(self.columns):
                target = inside[:, i, columns.at].transpose(2, 0, 1)
                tape.append(partial(np.copyto, target, source[..., columns.source]))
        tape += [partial(gap.fill, 0) for gap in gaps if gap.size]
        strides = matrix.strides
        return as_strided(matrix, (*shape[:2], self.wide, self.channels), strides, writeable=False)

    def _gaps(self, padded: Array, start: int, count: int) -> list[Array]:
        """Return what is between the columns of rows, the first of which begins at `start`.

        A gap is the padding behind some columns and in front of the next ones. One of the last
        phase is in front of the first row, too.
        """
        gaps: list[Array] = []
        slot = self.pitch * self.channels
        row, size = len(self.phases) * slot, padded.itemsize
        after = [*self.columns[1:], self.columns[0]]
        for i, (one, other) in enumerate(zip(self.columns, after, strict=True)):
            width = self.pitch + other.at.start - one.at.stop
            is_last = i == len(self.phases) - 1
            first = start + i * slot + one.at.stop * self.channels - is_last * row
            shape, strides = (count + is_last, width * self.channels), (row * size, size)
            if width:
                gaps.append(as_strided(padded[first:], shape, strides))
        return gaps

    def _expand(self, tape: Tape, bound: Bound, source: Array, target: Array) -> None:
        """Record the calls that compute wide rows; what they write between columns is arbitrary."""
        assert self.before is not None
        x, w, bias = self.before.operands
        count = x.tensor.dims[1]
        narrow = bound.scratch(self.narrow, (self.terms, *target.shape[:3]))
        for i, columns in enumerate(self.columns):
            part = narrow[:count, :, i, columns.at]
            tape.append(partial(np.copyto, part, source[..., columns.source]))
        if bias is not None:
            tape.append(partial(narrow[count].fill, 1))
        sources = (w,) if bias is None else (w, bias)
        weights = bound.packed(sources, ("rows of inputs", self.dtype), self._with_bias)
        left = narrow.reshape(self.terms, -1).T
        right = target.reshape(-1, self.channels)
        tape.append(recorded(left, weights, right, is_fixed=True))
        self.before.apply(tape, bound, right)

    def _convolve(self, tape: Tape, bound: Bound, rows: Array, box: tuple[slice, slice]) -> Array:
        """Record the calls of the depthwise convolution; return its result [pixels, channels]."""
        _, w, bias = self.depthwise.operands
        high, wide = lengths(box)
        tiled = (high, wide // self.tile, self.tile * self.channels)
        total = bound.scratch(self.sums, tiled)
        spare = bound.scratch(self.spare, tiled)
        layout = ("tiles", self.tile, self.dtype)
        weights = bound.packed((w,), layout, self._tiled)
        row, _, pixel, one = rows.strides
        for i, phase in enumerate(self.phases):
            factors = weights[:, phase.taps]
            steps = (
                *(row * self.window.strides[0], pixel * self.tile),
                *(row * self.window.dilations[0], pixel * phase.step, one),
            )
            shape = (*tiled[:2], *factors.shape)
            seen = as_strided(rows[:, i, phase.start :], shape, steps, writeable=False)
            out = spare if i else total
            tape.append(summing("ytuvp,uvp->ytp", seen, factors, out=out))
            if i:
                tape.append(partial(np.add, total, spare, total))
        if bias is not None:
            addend = bound.packed((bias,), layout, self._tiled)
            tape.append(partial(np.add, total, addend, total))
        self.depthwise.apply(tape, bound, total)
        return total.reshape(high * wide, self.channels)

    def _leave(self, tape: Tape, bound: Bound, total: Array, box: tuple[slice, ...]) -> None:
        """Record the calls that write some rows of the result."""
        result = bound[self.output]
        joined = Frame(result.shape, (0, 1, 2))
        image, rows = box[0].start, joined.block((box[0], slice(0, result.shape[1]), *box[1:]))[2]
        target = result.reshape(*result.shape[:2], -1)[image, :, rows]
        if self.after is None:
            tape.append(partial(store, target, total.T))
            return
        _, w, bias = self.after.operands
        weights = bound.packed((w,), ("columns", self.dtype), self._columns_of_outputs)
        found = bound.scratch(self.result, target.shape)
        is_padded = is_small(len(total), self.channels, len(target)) and len(target) % COLUMNS
        if self.channels < MANY_TERMS or is_padded:
            sums = found
            tape.append(recorded(weights.T, total.T, sums))
        else:
            pixels = bound.scratch(self.transposed, target.shape[::-1])
            sums = pixels.T
            tape.append(recorded(total, weights, pixels, is_fixed=True))
        is_other = bool(self.after.stages) or target.dtype != self.dtype
        last = found if is_other else target
        if bias is not None:
            addend = bound.as_dtype(bias, self.dtype)[:, np.newaxis]
            tape.append(partial(np.add, sums, addend, last))
        elif sums is not last:
            tape.append(partial(store, last, sums))
        if not self.after.stages and last is not target:
            tape.append(partial(store, target, last))
        frame = self.after.frame((0, 1, 2))
        place = frame.block((box[0], slice(0, result.shape[1]), *box[1:]))
        self.after.finish(frame, bound, self.dtype)(tape, place, found.reshape(lengths(place)))

    def _tiled(self, data: Array) -> Array:
        """Return weights [channels, 1, high, wide] as [high, wide, tile * channels], or a bias."""
        transposed = data[:, 0].transpose(1, 2, 0) if data.ndim > 1 else data
        return np.tile(transposed.astype(self.dtype), self.tile)

    def _with_bias(self, w: Array, bias: Array | None = None) -> Array:
        """Return pointwise weights as [inputs, outputs], with the bias as the last row."""
        matrix = w.reshape(w.shape[0], -1).T
        return (matrix if bias is None else np.vstack((matrix, bias))).astype(self.dtype, "C")

    def _columns_of_outputs(self, w: Array) -> Array:
        """Return pointwise weights as [inputs, outputs]."""
        return w.reshape(w.shape[0], -1).T.astype(self.dtype, "C")


def _collides(image: Value) -> bool:
    """Whether the channels of a pixel do not fit into the cache sets that they belong to."""
    _, channels, *spatial = image.tensor.dims
    itemsize = sums(image.tensor.dtype).itemsize
    return channels * gcd(prod(spatial) * itemsize, CACHE_WAY) > WAYS * CACHE_WAY


def _has_constants(chain: Chain) -> bool:
    _, w, bias = chain.operands
    return w.is_constant and (bias is None or bias.is_constant)


def _has_scalars(chain: Chain) -> bool:
    """Whether the elementwise nodes do not care where an element is."""
    return all(value.tensor.size == 1 for stage in chain.stages for value in stage.others)


def _is_depthwise(chain: Chain) -> bool:
    """Whether this is a depthwise convolution that can run with channels last."""
    if not Depthwise.applies(chain) or not _has_constants(chain) or not _has_scalars(chain):
        return False
    x, w, _ = chain.operands
    dtype = x.tensor.dtype
    is_single = w.tensor.dims[0] == x.tensor.dims[1] >= FEWEST
    return is_single and x.tensor.size > 0 and sums(dtype) in (dtype, float32)


def _is_pointwise(chain: Chain) -> bool:
    """Whether this is a 1x1 convolution that multiplies every pixel by one matrix."""
    op = chain.head.op
    if not isinstance(op, Conv) or op.group != 1 or not _has_constants(chain):
        return False
    x, w, _ = chain.operands
    seen = window(op, x.tensor.dims[2:], w.tensor.dims[2:])
    return {*seen.kernel, *seen.strides} == {1} and seen.output == x.tensor.dims[2:]
