"""Mixtures of experts: products with the weights of chosen experts, of which only those are read.

Rows choose experts (`route_experts.cu`), experts multiply the rows that chose them by the main
loops of products of few rows (`experts_packed.cu`, `experts_floats.cu`) or of more rows with
weights of a few bits (`experts_mixed.cu`), and the results of a row's experts are added up
(`add_experts.cu`). The products of a single row do all of that themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, bfloat16, float32
from ....runtime.ops.experts import Mixture
from ....runtime.ops.packed import MatMulNBits
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, each, sharing
from ..recipe.operands import Given, Operand, Scratch, Tensor, ceil_div
from ..recipe.targets import Target
from . import gemv, packed
from .atoms import HALVES, atom_of
from .expert_activation import Activation, activation_of
from .expert_weights import ExpertWeights
from .gemv import EIGHT, RowTile, prologue_of
from .packed import BANKS, PLANES
from .problem import widest
from .schedules import mixed_input
from .tables.mixed_input import MIXED_INPUT
from .tile import CtaTile

#: Maximum rows that one block chooses experts for, and pairs that it sorts.
ALONE_ROWS, ALONE_PAIRS = 64, 1024
#: Warps per block that chooses experts, at most.
ROUTING_WARPS = 32
#: Rows of a tile, by how many an expert has on average.
TILES = (8, 16, 32)
#: Tiles of `experts_mixed.cu`, as rows, rows of weights, and warps among which these are divided.
MIXED = ((16, 128, 2), (32, 128, 2), (64, 128, 4), (128, 128, 4))
#: The tile of a single row where there are so many blocks per multiprocessor: a block begins to
#: read weights late, once experts are chosen, so many small ones are resident. On an H100, 3 % less
#: for a layer of gpt-oss-20b than with four warps.
SMALL, MANY = RowTile(4, 2, 1, 8), 4
#: The tile of several rows: eights of weights, warps, steps.
SEVERAL = RowTile(4, 8, 1)
#: Maximum number of tiles, which are blocks along y.
MAX_TILES = 65535
#: Alignment of parts of the workspace in bytes.
ALIGNED = 256
#: How `route_experts.cu` makes weights.
OF_CHOSEN, OF_ALL, GIVEN, GIVEN_SHARES, SPARSE = range(5)


@record
class Experts:
    """A mixture of experts.

    Attributes:
        op: the operator.
        y, x: [..., hidden].
        router: logits [rows, experts].
        given: weights of the same shape that replace the softmax, or None.
        first: the products that the activation reads.
        second: the product of its result.
    """

    op: Mixture
    y: Tensor
    x: Tensor
    router: Tensor
    given: Tensor | None
    first: ExpertWeights
    second: ExpertWeights

    @property
    def rows(self) -> int:
        """Rows of `x`."""
        return prod(self.x.dims[:-1])

    @property
    def pairs(self) -> int:
        """Number of rows times experts of each."""
        return self.rows * self.op.k

    @property
    def count(self) -> int:
        """Number of experts."""
        return self.first.layer.experts

    @property
    def workspace(self) -> dict[str, Scratch]:
        """The parts of the workspace by name, the last of which is where they end."""
        pairs, size = self.pairs, self.x.dtype.itemsize
        parts = {
            "chosen": 4 * pairs,
            "weights": 4 * pairs,
            "order": 4 * pairs,
            "ends": 4 * self.count,
            "hidden": size * pairs * self.second.layer.rows,
            "parts": 4 * pairs * self.second.layer.columns,
            "end": 0,
        }
        found, at = dict[str, Scratch](), 0
        for name, nbytes in parts.items():
            found[name] = Scratch(at)
            at += ceil_div(nbytes, ALIGNED) * ALIGNED
        return found

    def launches(self, epilogue: Epilogue, target: Target) -> tuple[Launch, ...] | str:
        """Return the launches with `epilogue` applied to the sums, or why there are none."""
        if not self.rows:
            return "no rows"
        if self.rows == 1 and not isinstance(alone := self._of_one_row(epilogue, target), str):
            return alone
        memory = self.workspace
        if max(self.x.size, self.pairs * self.second.layer.columns) >= 2**31:
            return f"{self.rows} rows"
        choice = {name: memory[name] for name in ("order", "ends")}
        activation = activation_of(self.op, self.first.products, self.x.dtype)
        first = _Product(self, self.first, self.x, memory["hidden"], self.op.k, activation)
        plain = activation_of(None, 1, self.x.dtype, float32)
        second = _Product(self, self.second, memory["hidden"], memory["parts"], 1, plain)
        products = [product.launch(choice, target) for product in (first, second)]
        refused = next((found for found in products if isinstance(found, str)), None)
        if refused is not None:
            return refused
        whole = replace(self._sum(memory, epilogue), scratch=memory["end"].offset)
        made = [found for found in products if isinstance(found, Launch)]
        return sharing(*self._routing(memory), *made, whole)

    def _of_one_row(self, epilogue: Epilogue, target: Target) -> tuple[Launch, ...] | str:
        """Return the products of a single row, the second of which adds up."""
        hidden = Scratch(0)
        activation = activation_of(self.op, self.first.products, self.x.dtype)
        none = {"order": None, "ends": None}
        first = _Product(self, self.first, self.x, hidden, self.op.k, activation)
        made = first.launch(none, target)
        if isinstance(made, str):
            return made
        epilogued = Activation(epilogue.code, epilogue.stored, epilogue.title)
        second = _Product(self, self.second, hidden, self.y, 1, epilogued, is_summed=True)
        summed = second.sum(epilogue, target)
        if isinstance(summed, str):
            return summed
        nbytes = self.pairs * self.second.layer.rows * self.x.dtype.itemsize
        return sharing(replace(made, scratch=nbytes), summed)

    def _routing(self, memory: Mapping[str, Scratch]) -> tuple[Launch, ...]:
        alone = self.rows <= ALONE_ROWS and self.pairs <= ALONE_PAIRS
        warps = min(max(self.rows, self.count), ROUTING_WARPS if alone else 4)
        choosing = Launch(
            "gemm/route_experts.cu",
            "route_experts",
            grid=(1 if alone else ceil_div(self.rows, warps), 1, 1),
            block=32 * warps,
            args={
                **{"router": self.router, "given": self.given},
                **{name: memory[name] for name in ("chosen", "weights", "order", "ends")},
                "rows": self.rows,
            },
            types=self.routing_types,
            constants=(*self.routing_constants, ("ALONE", alone)),
            note=f"{self.op.k} of {self.count} experts",
        )
        if alone:
            return (choosing,)
        sorting = Launch(
            "gemm/route_experts.cu",
            "sort_chosen",
            grid=(ceil_div(self.count, 4), 1, 1),
            block=128,
            args={name: memory[name] for name in ("chosen", "order", "ends")}
            | {"pairs": self.pairs},
            types=choosing.types,
            constants=choosing.constants,
        )
        return choosing, sorting

    @property
    def routing_types(self) -> tuple[tuple[str, DType], ...]:
        """The types of `route.cuh`."""
        given = self.router if self.given is None else self.given
        return ("L", self.router.dtype), ("G", given.dtype)

    @property
    def routing_constants(self) -> tuple[tuple[str, int], ...]:
        """The constants of `route.cuh`."""
        return ("EXPERTS", self.count), ("TOP", self.op.k), ("HOW", self._how)

    @property
    def _how(self) -> int:
        op = self.op
        if self.given is not None:
            return GIVEN_SHARES if op.normalize_routing_weights else GIVEN
        if op.use_sparse_mixer:
            return SPARSE
        return OF_CHOSEN if op.normalizes else OF_ALL

    def _sum(self, memory: Mapping[str, Scratch], epilogue: Epilogue) -> Launch:
        n = self.second.layer.columns
        return each(
            "gemm/add_experts.cu",
            "add_experts",
            self.rows * n,
            {
                **{"parts": memory["parts"], "weights": memory["weights"], "y": self.y},
                **{**epilogue.args, "n": n, "count": self.rows * n},
            },
            types=epilogue.types,
            constants=(("TOP", self.op.k),),
            code=epilogue.code,
            note=epilogue.title,
        )


@record
class _Product:
    """One product of a mixture.

    Attributes:
        experts: the mixture.
        weights: of the layer.
        x: rows that are multiplied; of every pair, or shared by the pairs of a row.
        y: results of every pair.
        share: pairs that read the same row of `x`.
        activation: makes the results of the sums.
        is_summed: whether a block adds up the results of all experts of a single row.
    """

    experts: Experts
    weights: ExpertWeights
    x: Operand
    y: Operand
    share: int
    activation: Activation
    is_summed: bool = False

    @property
    def dtype(self) -> DType:
        """Element type of `x`."""
        return self.weights.dtype

    @property
    def planes(self) -> int:
        """How many numbers represent one element of `x` on tensor cores."""
        return PLANES if self.weights.bits and self.dtype == float32 else 1

    @property
    def tile_rows(self) -> int:
        """Pairs of a tile, at most."""
        experts = self.experts
        if experts.rows == 1:
            return 1
        if self.dtype == float32:
            return TILES[0]
        average = experts.pairs / experts.count
        return next((rows for rows in TILES if rows >= average), TILES[-1])

    def tile(self, target: Target) -> RowTile:
        """Return how a block traverses the weights."""
        layer, products = self.weights.layer, self.weights.products
        if self.tile_rows > 1:
            return replace(SEVERAL, resident=1 if self.tile_rows > TILES[0] else 2)
        columns, terms = layer.columns, layer.rows
        if self.is_summed:
            terms *= self.experts.op.k
        else:
            columns *= self.experts.op.k
        if not self.weights.bits:
            return gemv.choose((1, columns, terms), self.dtype, target, products)
        if not self.is_summed and SMALL.blocks(columns * products) >= MANY * target.processors:
            return SMALL
        sizes = {"K": terms, "bits": self.weights.bits, "block_size": self.weights.block}
        op, filling = MatMulNBits(N=columns, **sizes), packed.FILLING_EXPERTS
        return packed.choose(op, target, products, filling=filling)

    def _fitting(self, target: Target, slots: int = 1) -> tuple[RowTile, int] | str:
        """Return the tile with room for its scales, and their bytes, or why there is none.

        Args:
            target: the GPU.
            slots: experts whose scales a block has.
        """
        weights, tile = self.weights, self.tile(target)
        if not weights.bits:
            return tile, 0
        pitch = (ceil_div(weights.row_factors, BANKS) * BANKS + BANKS) * slots
        per_row = pitch + 4 * tile.warps * self.tile_rows * self.planes
        beside = packed.between_sums(tile.warps * self.tile_rows * self.planes)
        tile = packed.with_scales(tile, per_row, beside, target)
        if tile.eights < weights.products:
            return f"{weights.row_factors} bytes of scales per row"
        return tile, tile.eights * EIGHT * pitch

    def sum(self, epilogue: Epilogue, target: Target) -> Launch | str:
        """Return the launch that adds up the results of a row's experts, or why there is none."""
        weights, experts = self.weights, self.experts
        found = self._fitting(target, experts.op.k)
        if isinstance(found, str):
            return found
        tile, shared = found
        grid = (tile.blocks(weights.layer.columns), 1, 1)
        note = tile.note(experts.op.k, 1)
        return self._launched(tile, shared, grid, epilogue.args, note, "_sum")

    def _launched(
        self,
        tile: RowTile,
        shared: int,
        grid: tuple[int, int, int],
        args: Mapping[str, Given],
        note: str,
        kind: str = "",
    ) -> Launch:
        weights, experts = self.weights, self.experts
        entry = f"experts_{'packed' if weights.bits else 'floats'}{kind}"
        return Launch(
            f"gemm/{entry}.cu",
            entry,
            grid=grid,
            block=32 * tile.warps,
            args={
                **{**weights.args, "x": self.x, "y": self.y, "n": weights.layer.columns, **args},
                **{"router": experts.router, "given": experts.given},
            },
            types=self._types,
            constants=self._constants(tile),
            code=f"{atom_of(self._fragment).code()}\n{self.activation.code}",
            shared=shared,
            note=f"{note}, {weights.title} {self.activation.title}".strip(),
        )

    def launch(self, choice: Mapping[str, Scratch | None], target: Target) -> Launch | str:
        """Return the launch, or why there is none."""
        weights, experts = self.weights, self.experts
        products, rows = weights.products, self.tile_rows
        mixed = self._mixed_tile(target)
        if mixed is not None:
            return self._mixed(mixed, choice)
        found = self._fitting(target)
        if isinstance(found, str):
            return found
        tile, shared = found
        if self._tiles(rows) > MAX_TILES:
            return f"{experts.rows} rows"
        grid = (tile.blocks(weights.layer.columns * products), self._tiles(rows), 1)
        return self._launched(tile, shared, grid, choice, tile.note(rows, products))

    def _tiles(self, rows: int) -> int:
        """Return how many tiles of this many rows there are, at most."""
        experts = self.experts
        if rows == 1:
            return experts.pairs
        active = min(experts.count, experts.pairs)
        return (experts.pairs - active) // rows + active

    def _mixed_tile(self, target: Target) -> CtaTile | None:
        """Return the tile of `experts_mixed.cu`; None if rows are too few or it does not fit."""
        experts, weights = self.experts, self.weights
        average = experts.pairs / experts.count
        if average <= TILES[0] or not weights.bits or self.dtype not in HALVES:
            return None
        wanted = next((one for one in MIXED if one[0] >= average), MIXED[-1])
        at = MIXED.index(wanted)
        sizes = weights.packed_like(experts.x)
        for bm, bn, warps in (wanted, *MIXED[:at][::-1]):
            for tile in MIXED_INPUT:
                if (tile.bm, tile.bn, tile.warps[1]) == (bm, bn, warps):
                    found = mixed_input.fitted(
                        replace(tile, stages=mixed_input.STAGES), sizes, target
                    )
                    if found is not None and self._tiles(bm) <= MAX_TILES:
                        return found
        return None

    def _mixed(self, tile: CtaTile, choice: Mapping[str, Scratch | None]) -> Launch:
        """Return the launch of `experts_mixed.cu`."""
        weights, experts = self.weights, self.experts
        n, k, products = weights.layer.columns, weights.layer.rows, weights.products
        sizes = weights.packed_like(experts.x)
        results, block = tile.bn // products, mixed_input.resources(tile, sizes)
        pair = f", {products} products" if products > 1 else ""
        return Launch(
            "gemm/experts_mixed.cu",
            "experts_mixed",
            grid=(ceil_div(n, results), self._tiles(tile.bm), 1),
            block=block.threads,
            args={
                **{**weights.args, "x": self.x, "y": self.y, **choice, "n": n},
                **{"router": experts.router, "given": experts.given},
            },
            types=(
                *(("T", self.dtype), ("R", self.activation.stored)),
                *experts.routing_types,
            ),
            constants=(
                *tile.constants("BM", "BN", "WARPS_N", "SLICES", "STAGES", "RESIDENT"),
                ("FACTORS_BYTES", mixed_input.factors_of(sizes, 1)),
                *sizes.constants,
                *(("K", k), ("BYTES", weights.bytes), ("BLOCKS", weights.blocks)),
                *(("EDGE", n % results != 0), ("VECTOR", widest(mixed_input.VECTORS, k))),
                *(("PRODUCTS", products), ("BIAS", weights.bias is not None)),
                *(*experts.routing_constants, ("SHARE", self.share), ("SORTED", True)),
            ),
            code=f"{atom_of(self.dtype).code()}\n{self.activation.code}",
            shared=block.shared,
            note=f"{tile}{pair}, {weights.title} {self.activation.title}".strip(),
        )

    def _constants(self, tile: RowTile) -> tuple[tuple[str, int | bool | float], ...]:
        weights, rows = self.weights, self.tile_rows
        return (
            *(("M", rows), ("PRODUCTS", weights.products), *tile.constants),
            *(*self.experts.routing_constants, ("SHARE", self.share), ("SORTED", rows > 1)),
            *weights.constants,
            *((("PLANES", self.planes),) if weights.bits else ()),
            ("EDGE", tile.is_uneven(weights.layer.columns, weights.products)),
            ("BIAS", weights.bias is not None),
            *prologue_of(None, weights.layer.rows, self.dtype).constants,
        )

    @property
    def _fragment(self) -> DType:
        """Element type on tensor cores."""
        if self.weights.bits:
            return bfloat16 if self.planes > 1 else self.dtype
        return self.dtype if self.dtype in HALVES else float32

    @property
    def _types(self) -> tuple[tuple[str, DType], ...]:
        types = (("R", self.activation.stored), *self.experts.routing_types)
        if self.weights.bits:
            return ("T", self._fragment), ("X", self.dtype), *types
        return ("T", self.dtype), *types
