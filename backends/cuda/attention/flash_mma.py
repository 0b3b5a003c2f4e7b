"""Flash attention of 16-bit floats with mma.sync: warp shapes, tiles, shared memory."""

from __future__ import annotations

from ....runtime.base.record import record
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .flash_parts import FEW, LOG2E, MAX_CLUSTER, FlashKernel, Sharing, group_of, launched, share
from .heads import AttentionTask

#: Maximum head size that fits in registers.
MAX_HEAD = 256
#: Minimum number of keys for tensor cores; below it, the row kernel is more accurate.
FEWEST_KEYS = 16


@record
class WarpShape:
    """How the warps of `mma_tiles.cuh` split rows and keys.

    Attributes:
        tm: rows per warp, in units of 16.
        warps_m: warp groups along the rows.
        warps_n: warp groups along the keys.
        keys: keys per step of a warp, at most.
        keys_left: whether keys, not rows, are the left operands of products; see `keys_left.cuh`.
    """

    tm: int
    warps_m: int
    warps_n: int
    keys: int = 64
    keys_left: bool = False

    @property
    def rows(self) -> int:
        """Rows per block."""
        return 8 if self.keys_left else 16 * self.tm * self.warps_m


#: Warp shapes in decreasing order of rows per block, each with the share of multiprocessors that
#: must have a block: larger blocks read keys and values less often, smaller ones end sooner where
#: all run at once. Measured on an H200 with 1 to 192 heads of 32 to 256 and 32 to 1500 keys, in
#: chains of attentions.
SHAPES = (
    *((WarpShape(1, 8, 1), 0.9), (WarpShape(1, 4, 2), 0.5), (WarpShape(1, 4, 1), 0.5)),
    *((WarpShape(1, 2, 4, 32), 0.5), (WarpShape(1, 1, 4, 32), 0.0)),
    *((WarpShape(1, 2, 2, 32), 0.0), (WarpShape(1, 4, 1), 0.0), (WarpShape(1, 1, 1), 0.0)),
)
#: Warp shapes for few queries, in increasing order of rows; and that for the fewest rows of heads
#: of moderate size, whose tile is most of what a block reads of a short cache.
FEW_SHAPES = (WarpShape(1, 1, 4), WarpShape(1, 2, 2), WarpShape(1, 4, 1), WarpShape(1, 8, 1))
SMALL_SHAPE = WarpShape(1, 1, 8)
#: Maximum head size, key plus value, of `SMALL_SHAPE`.
MAX_SMALL = 128
#: Those of decoding steps of at most eight rows, and their minimum head size, key plus value.
EIGHT_SHAPES = (WarpShape(1, 1, 8, keys_left=True), WarpShape(1, 1, 4, keys_left=True))
MIN_EIGHT = 288
#: Maximum number of stages for few queries.
MAX_STAGES = 4
#: Keys that a block processes in about the time of its fixed cost.
STEP = 64


@record
class MmaConfig:
    """The configuration of a block of `mma_tiles.cuh`, and its shared memory.

    Attributes:
        shape: the warp shape.
        sizes: head sizes of key and value, rounded up to 16.
        keys: keys per step of a warp.
        stages: number of key and value tiles in shared memory.
        sharing: how blocks share heads and keys.
        new: number of tokens whose keys, values and queries are preloaded.
    """

    shape: WarpShape
    sizes: tuple[int, int]
    keys: int
    stages: int
    sharing: Sharing
    new: int

    @property
    def inbox(self) -> int:
        """Shared memory offset of the exchange buffer within a cluster."""
        return _working(self.shape, self.keys, self.stages, self.sizes)

    @property
    def rotated(self) -> int:
        """Shared memory offset of the queries, keys and values of new tokens."""
        parts = self.sharing.parts if self.sharing.clustered else 0
        return self.inbox + _inbox(self.shape, self.sizes, parts)

    @property
    def shared(self) -> int:
        """Shared memory of a block in bytes."""
        return self.rotated + _rotated(self.shape, self.sizes, self.new)

    @property
    def block(self) -> int:
        """Threads per block."""
        return 32 * self.shape.warps_m * self.shape.warps_n

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time constants of `mma_tiles.cuh`."""
        return {
            **{"SIZE_K": self.sizes[0], "SIZE_V": self.sizes[1]},
            **{"KEYS": self.keys, "STAGES": self.stages, "TM": self.shape.tm},
            **{
                "WARPS_M": self.shape.warps_m,
                "WARPS_N": self.shape.warps_n,
                "ROWS": self.shape.rows,
            },
            **{"CLUSTER": self.sharing.parts if self.sharing.clustered else 0},
            "INBOX": self.inbox,
        }


def on_tensor_cores(task: AttentionTask, target: Target) -> tuple[Launch, ...]:
    """Return the launches of `attention_mma.cu`."""
    config = config_of(task, target)
    constants = {
        **config.constants,
        "VECTOR_K": min(task.q.vector(8), task.k.vector(8)),
        **{"VECTOR_V": task.v.vector(8), "VECTOR_Y": 8 if task.y.vector(8) == 8 else 1},
    }
    code = atom_of(task.q.tensor.dtype).code()
    kernel = FlashKernel("attention_mma", config.shared, config.block, constants, code)
    operands = {**task.operands, **task.strides, "sink": task.sink}
    return launched(task, kernel, config.sharing, steepness_of(task), operands)


def steepness_of(task: AttentionTask) -> float:
    """Return the factor of score differences before exp2."""
    return LOG2E * (task.scale if task.is_raw else 1)


def config_of(task: AttentionTask, target: Target, new: int = 0) -> MmaConfig:
    """Return the configuration for an attention.

    Args:
        task: the attention.
        target: the GPU.
        new: number of tokens whose keys, values and queries stay in shared memory.
    """
    size_k, size_v = sizes = ceil_div(task.q.dims[3], 16) * 16, ceil_div(task.v.dims[3], 16) * 16
    maximum, stages = 64 if max(sizes) <= 128 else 32, 2
    if task.q.dims[2] <= FEW:
        shape = _few_shape(group_of(task) * task.q.dims[2], sizes, target, new)
        maximum = min(maximum, max(16, 64 // shape.warps_n))
    else:
        shape = _shape(task, sizes, maximum, target)
    keys = min(maximum, shape.keys)
    tile = keys * shape.warps_n
    beside, inbox = _rotated(shape, sizes, new), _inbox(shape, sizes, MAX_CLUSTER)
    joins = _working(shape, keys, 1, sizes) + beside + inbox <= target.shared
    joins = joins and target.has_clusters and task.q.dims[2] <= FEW
    beside += inbox if joins else 0
    if task.q.dims[2] <= FEW:
        stages = _stages(tile * (size_k + size_v + 16) * 2, beside, target)
    shared = _working(shape, keys, stages, sizes) + beside
    sharing = share(task, shape.rows, min(tile, STEP), shared, target, joins=joins)
    stages = min(stages, max(1, ceil_div(ceil_div(task.seen, tile), sharing.parts)))
    return MmaConfig(shape, sizes, keys, stages, sharing, new)


def _few_shape(rows: int, sizes: tuple[int, int], target: Target, new: int) -> WarpShape:
    """Return the warp shape with this many rows per block, or as many as fit."""
    if rows <= SMALL_SHAPE.rows and sum(sizes) <= MAX_SMALL:
        return SMALL_SHAPE
    has_eights = new and rows <= EIGHT_SHAPES[0].rows and sum(sizes) >= MIN_EIGHT
    fitting = [
        shape
        for shape in (*(EIGHT_SHAPES if has_eights else ()), *FEW_SHAPES)
        if _working(shape, max(16, 32 // shape.warps_n), 1, sizes) + _rotated(shape, sizes, new)
        <= target.shared
    ]
    return next((shape for shape in fitting if rows <= shape.rows), fitting[-1])


def _stages(tile: int, beside: int, target: Target) -> int:
    """Return how many tiles of this size fit in shared memory, preferring two resident blocks."""
    of_two = (target.room(2) - beside) // tile
    of_one = max(1, (target.shared - beside) // tile)
    return min(MAX_STAGES, of_two if of_two >= 2 else of_one)


def _working(shape: WarpShape, keys: int, stages: int, sizes: tuple[int, int]) -> int:
    """Return the bytes for keys and values, or for the sums merged between warp groups.

    Args:
        shape: the warp shape.
        keys: keys per step of a warp.
        stages: number of tiles in shared memory.
        sizes: head sizes of key and value.
    """
    buffers = stages * keys * shape.warps_n * (sum(sizes) + 16) * 2
    return max(buffers, shape.warps_n * shape.rows * (sizes[1] + 6) * 4)


def _inbox(shape: WarpShape, sizes: tuple[int, int], parts: int) -> int:
    """Return the bytes of the exchange buffer of a cluster and its barrier, if there is one."""
    if not parts:
        return 0
    share = ceil_div(shape.rows * sizes[1] // 4, parts)
    return 16 + parts * (share + shape.rows) * 16


def _rotated(shape: WarpShape, sizes: tuple[int, int], new: int) -> int:
    """Return the bytes for queries, keys and values of this many preloaded tokens."""
    return 2 * ((shape.rows + new) * (sizes[0] + 8) + new * (sizes[1] + 8)) if new else 0


def _shape(task: AttentionTask, sizes: tuple[int, int], keys: int, target: Target) -> WarpShape:
    """Return the warp shape with most rows per block that keeps the multiprocessors busy.

    Args:
        task: the attention.
        sizes: head sizes of key and value, rounded up.
        keys: maximum number of keys per step of a warp.
        target: the GPU.
    """
    batch, heads, length, _ = task.q.dims

    def suits(shape: WarpShape, minimum: float) -> bool:
        own = min(keys, shape.keys)
        if _working(shape, own, 2, sizes) > target.shared:
            return False
        blocks = ceil_div(length, shape.rows) * heads * batch
        full = blocks >= minimum * target.processors and (length > shape.rows // 2 or not minimum)
        return full and (2 * task.total > own * shape.warps_n or shape.warps_n == 1)

    return next((shape for shape, minimum in SHAPES if suits(shape, minimum)), SHAPES[-1][0])
