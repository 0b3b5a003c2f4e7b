"""Convolutions as matrix products.

Every convolution is one product ``weights [m, c * kernel] @ columns [c * kernel, positions]`` per
block of positions. A block's columns are gathered by one strided copy into the workspace (none for
1x1 with stride 1), and bias and activation are applied while its result is in the cache. Groups,
including depthwise convolutions, are stacks of such products, several groups per block. Where it is
faster, 3x3 and depthwise convolutions, and those of padding for the most part, use other
algorithms: see `winograd`, `depthwise`, `separable` and `shifted`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from typing import cast

import numpy as np

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.graph import Graph, Node
from ....runtime.ir.types import Array
from ....runtime.ops.conv import Conv
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.blocking import Block, Frame, blocks, lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT, blocks_worth
from ..engine.registry import builder, joiner
from ..engine.step import Bound, HostStep, Piece, ScratchLayout, Tape
from ..numerics.halves import store
from ..numerics.products import is_small, stacked
from ..windows.algorithm import ConvAlgorithm
from ..windows.columns import Unfolding
from ..windows.depthwise import Depthwise
from ..windows.depthwise_last import DepthwiseLast
from ..windows.separable import Separable
from ..windows.shifted import Shifted
from ..windows.winograd import Winograd

#: Bytes of columns per block, so that they are still in the cache when multiplied.
COLUMNS = 1 << 21
#: Maximum terms of a product for which a term more is cheaper than adding the bias.
FEW_TERMS = 576
#: Minimum positions and filters per block of a partial image: thin products are slow.
NARROWEST, FEWEST = 256, 32
#: Maximum relative time for which Winograd, which is less accurate, is chosen.
WORTHWHILE = 0.85
#: Maximum relative time for which one product per tap is chosen, as its products are small.
MOSTLY = 0.7


@builder(Conv, fuses=True, dtypes=FLOATS)
def conv(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Run a convolution over any number of axes with its fused elementwise nodes."""
    return _fastest(chain, options).step(site)


@joiner(Conv)
def separable(graph: Graph, chains: Mapping[Node, Chain], options: Options) -> list[Separable]:
    """Return disjoint groups of adjacent convolutions that are faster as one step.

    Args:
        graph: their graph.
        chains: all chains by their head.
        options: those of the plan.
    """
    found: list[Separable] = []
    free = {n: chain for n, chain in chains.items() if not _is_direct(chain, options)}
    left = {node: chain for node, chain in free.items() if isinstance(node.op, Conv)}
    results = {chain.output: chain for chain in left.values()}
    for chain in list(left.values()):
        gains: list[tuple[float, Separable]] = []
        ways = Separable.around(graph, chain, left, results) if chain.head in left else []
        for way in ways:
            fits = options.workspace is None or way.nbytes * way.workers <= options.workspace
            apart = sum(_fastest(each, options).nanoseconds for each in way.chains)
            if fits and way.nanoseconds < apart:
                gains.append((apart - way.nanoseconds, way))
        if gains:
            _, best = max(gains, key=lambda gain: gain[0])
            found.append(best)
            for each in best.chains:
                del left[each.head], results[each.output]
    return found


def _is_direct(chain: Chain, options: Options) -> bool:
    """Whether the user asks for a sum over windows, by one of the backend's ``ALGORITHMS``."""
    asked = options.algorithms_for(chain.head.kind, (chain.head.name, *chain.head.origin))
    return not {"direct", "naive"}.isdisjoint(asked)


def _fastest(chain: Chain, options: Options) -> ConvAlgorithm:
    """Return the algorithm for a convolution that an estimate expects to be fastest."""
    made = _Convolution(chain, COLUMNS, NARROWEST)
    limit = COLUMNS
    while not made.fits(options.workspace) and limit:
        limit //= 2
        made = _Convolution(chain, limit, 1)
    if _is_direct(chain, options):
        return made
    others: list[tuple[ConvAlgorithm, float]] = []
    if Winograd.applies(chain):
        others.append((Winograd(chain), WORTHWHILE * made.nanoseconds))
    if Depthwise.applies(chain):
        depthwise = Depthwise(chain)
        if DepthwiseLast.applies(chain):
            others.append((DepthwiseLast(chain), min(depthwise.nanoseconds, depthwise.unfolded)))
        others.append((depthwise, depthwise.unfolded))
    if Shifted.applies(chain):
        others.append((Shifted(chain), MOSTLY * made.nanoseconds))
    for other, most in others:
        if other.fits(options.workspace) and other.nanoseconds < most:
            return other
    return made


class _Convolution(ConvAlgorithm):
    """A convolution as a product of weights and columns.

    Args:
        chain: the convolution and its fused nodes.
        limit: bytes of columns and sums per block.
        narrowest: minimum positions per block of a partial image.
    """

    def __init__(self, chain: Chain, limit: int, narrowest: int) -> None:
        super().__init__(chain)
        w = self.w.tensor
        self.group = cast(Conv, chain.head.op).group
        self.filters, self.rows = w.dims[0] // self.group, prod(w.dims[1:])
        self.positions = prod(self.window.output)
        self._cut(limit, narrowest)
        self.scratch = ScratchLayout()
        self.unfolding = Unfolding.of(
            self.window,
            self.x.tensor,
            self.group,
            self.dtype,
            (self.together, self.boxes),
            self.scratch,
            ones=self._joins_bias(),
        )
        self.sums = self._reserve_sums()
        self.nbytes = self.scratch.nbytes

    def _joins_bias(self) -> bool:
        """Whether the bias is a term of the products.

        That saves a pass over the result, at the cost of packed weights, and of a copy of the image
        if it is a matrix already.
        """
        if self.bias is None or not (self.bias.is_constant and self.w.is_constant):
            return False
        is_matrix = {*self.window.kernel, *self.window.strides} == {1}
        return self.rows <= FEW_TERMS and not (is_matrix and self.rows > self.filters)

    def _reserve_sums(self) -> Piece | None:
        """Return workspace for a block's sums unless they go directly into the result.

        A block of some columns is not contiguous in the result; bias and activation take half the
        time on a contiguous copy.
        """
        adds = self.bias is not None and not self.unfolding.has_ones
        is_split = len(self.boxes) > 1 and (adds or self.chain.stages)
        if not is_split and self.x.tensor.dtype == self.dtype:
            return None
        widest = max((prod(lengths(box)) for box in self.boxes), default=0)
        maximum = max((part.stop - part.start for part in self.parts), default=0)
        return self.scratch.take(self.together * maximum * widest, self.dtype)

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        columns = self.x.tensor.dims[0] * self.group * self.positions
        gathering = self.rows * ELEMENT
        result = self.filters * (self.rows * PRODUCT + (1 + self.chain.calls) * ELEMENT)
        return columns * (gathering + result)

    def _cut(self, limit: int, narrowest: int) -> None:
        """Choose blocks: whole groups, or boxes of outputs and filters of one group."""
        wanted = blocks_worth(self.nanoseconds, self.workers)
        images = max(1, self.x.tensor.dims[0])
        column = max(1, (self.rows + self.filters) * self.dtype.itemsize)
        whole = max(1, self.positions * column)
        self.together = max(1, min(self.group, limit // whole, -(-self.group * images // wanted)))
        have = images * -(-self.group // self.together)
        positions = self.positions
        if self.together == 1:
            share = self._share(-(-wanted // have))
            positions = max(narrowest, min(limit // column, share))
        workers = 1 if have % self.workers == 0 else self.workers
        self.boxes = list(blocks(self.window.output, max(1, positions), workers))
        have *= max(1, len(self.boxes))
        parts = 1
        if self.together == 1:
            parts = max(1, min(self.filters // FEWEST, -(-wanted // have), self.workers))
        bounds = [self.filters * i // parts for i in range(parts + 1)]
        self.parts = [slice(start, stop) for start, stop in pairwise(bounds)]

    def _share(self, count: int) -> int:
        """Return the positions of one of `count` boxes, in whole rows if there are enough."""
        rows, *inner = self.window.output
        return -(-rows // count) * prod(inner) if rows >= count else -(-self.positions // count)

    @property
    def kernel(self) -> str:
        """The sizes of the product."""
        how = "direct" if self.unfolding.matrix is None else "unfolded"
        stack = f"{self.group}x " if self.group > 1 else ""
        return f"{how} product {stack}{self.filters}x{self.rows}x{self.positions}"

    def _blocks(self) -> Iterator[tuple[int, slice, slice, Block]]:
        """Yield image, groups, filters and box of every block."""
        for image in range(self.x.tensor.dims[0]):
            for first in range(0, self.group, self.together):
                groups = slice(first, min(first + self.together, self.group))
                for part in self.parts:
                    for box in self.boxes:
                        yield image, groups, part, box

    def _record(self, bound: Bound) -> list[Tape]:
        tapes: list[Tape] = []
        x, channels = bound[self.x], self.unfolding.channels
        weights, bias = self._matrices(bound), self._addend(bound)
        joined = Frame(self.chain.output.tensor.dims, (0, 1, 2))
        frame = self.chain.frame(joined.starts)
        finish = self.chain.finish(frame, bound, self.dtype)
        result = bound[self.chain.output]
        result = result.reshape(len(x), self.group, self.filters, self.positions)
        for image, groups, part, box in self._blocks():
            tape: Tape = []
            inputs = x[image, groups.start * channels : groups.stop * channels]
            count = groups.stop - groups.start
            columns = self.unfolding.fill(tape, bound, inputs, count, box)
            outputs = slice(
                groups.start * self.filters + part.start,
                (groups.stop - 1) * self.filters + part.stop,
            )
            place = (slice(image, image + 1), outputs, *box)
            target = result[image, groups, part, joined.block(place)[2]]
            sums = target if self.sums is None else bound.scratch(self.sums, target.shape)
            tape.append(stacked(weights[groups, part], columns, sums))
            last = sums
            if bias is not None:
                is_other = bool(self.chain.stages) or sums.dtype != target.dtype
                last = sums if is_other else target
                tape.append(partial(np.add, sums, bias[groups, part], last))
            if not self.chain.stages and last is not target:
                tape.append(partial(store, target, last))
            block = frame.block(place)
            finish(tape, block, sums.reshape(lengths(block)) if self.sums else None)
            tapes.append(tape)
        return tapes

    def _matrices(self, bound: Bound) -> Array:
        """Return the weights as matrices [groups, filters, rows], with the bias if it is joined."""
        shape = self.group, self.filters, self.rows
        widest = max((prod(lengths(box)) for box in self.boxes), default=0)

        def transposed(w: Array, *bias: Array) -> Array:
            columns = [w.reshape(shape), *(b.reshape(*shape[:2], 1) for b in bias)]
            return np.concatenate(columns, 2).swapaxes(1, 2).astype(self.dtype, "C")

        layout = ("transposed", self.group, self.dtype)
        if self.bias is not None and self.unfolding.has_ones:
            return bound.packed((self.w, self.bias), layout, transposed).swapaxes(1, 2)
        if not self.w.is_constant or not is_small(self.filters, self.rows, widest):
            return bound.as_dtype(self.w, self.dtype).reshape(shape)
        return bound.packed((self.w,), layout, transposed).swapaxes(1, 2)

    def _addend(self, bound: Bound) -> Array | None:
        """Return the bias as [groups, filters, 1], unless it is one of the products' terms."""
        if self.bias is None or self.unfolding.has_ones:
            return None
        return bound.as_dtype(self.bias, self.dtype).reshape(self.group, self.filters, 1)
