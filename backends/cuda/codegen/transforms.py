"""Fourier transforms of lines in shared memory: what their kernels have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..recipe.launch import Launch
from ..recipe.operands import Given, Packed, ceil_div
from ..recipe.source import arithmetic
from ..recipe.targets import Target

#: Minimum of numbers of a block's lines in shared memory, how many there are of short lines, and
#: how many are kept of each of a line.
FEW, FILLED, KEPT = 32, 256, 2
#: Bytes of adjacent lines of a block, and of shared memory, so that a multiprocessor has several;
#: and blocks for which there are fewer lines of each.
SECTOR, SHARED, BLOCKS = 32, 72 << 10, 128


@record
class Transform:
    """Transforms of lines, some of which a block has; see `lines.cuh`.

    Attributes:
        length: of a transform.
        lines: struct `Lines`.
        count: of lines.
        dtype: of the signals.
        parts: those of a number, and those of a number of the result.
    """

    length: int
    lines: Mapping[str, int]
    count: int
    dtype: DType
    parts: tuple[int, int]

    def fits(self, target: Target) -> bool:
        """Whether a line fits into shared memory, and a block's are worth it."""
        if not self.count or self._bytes(1) > target.shared:
            return False
        return self.length * self.beside(target) >= FEW

    def _bytes(self, beside: int) -> int:
        numbers = (KEPT * beside + 1) * self.length
        return 2 * arithmetic(self.dtype).itemsize * numbers

    def beside(self, target: Target) -> int:
        """Return the lines of a block: some that are adjacent, if numbers of a line are not.

        There are more of lines that are too short for the threads of a block.
        """
        inner, most = self.lines["inner"], min(SHARED, target.shared)
        sector = SECTOR // (self.dtype.itemsize * self.parts[0])
        beside = max(sector, FILLED // self.length) if inner > 1 else 1
        while beside > 1 and (
            beside > inner or self._bytes(beside) > most or self.count < beside * BLOCKS
        ):
            beside //= 2
        return max(beside, 1)

    def launch(
        self,
        kernel: tuple[str, str],
        target: Target,
        args: Mapping[str, Given],
        types: Sequence[tuple[str, DType]],
        constants: Sequence[tuple[str, int]],
        code: Sequence[str] = (),
    ) -> Launch:
        """Return the launch of a kernel, which is a file and its entry point.

        Args:
            kernel: see above.
            target: the GPU.
            args: what it is given besides roots of unity and lines.
            types: those that `lines.cuh` does not have.
            constants: likewise.
            code: generated functions and macros besides the steps.
        """
        beside, inner = self.beside(target), self.lines["inner"]
        threads = min(256, max(32, self.length * beside // 4 // 32 * 32))
        computed = arithmetic(self.dtype)
        return Launch(
            *kernel,
            grid=(self.count // inner * ceil_div(inner, beside), 1, 1),
            block=threads,
            args={**args, "unity": self._unity, "l": self.lines},
            types=(("A", computed), *types),
            constants=(
                *(("LENGTH", self.length), ("LINES", beside), ("THREADS", threads)),
                *(("PARTS", self.parts[0]), ("OUT_PARTS", self.parts[1]), *constants),
            ),
            code="\n".join((self._steps, *code)),
            shared=self._bytes(beside),
            note=f"of {self.length}",
        )

    @property
    def _steps(self) -> str:
        """The steps of a transform: its factors, fours first, each with what came before."""
        found, done = list[str](), 1
        while done < self.length:
            rest = self.length // done
            factor = next(p for p in (4, *range(2, rest + 1)) if rest % p == 0)
            found.append(f"X({factor}, {done})")
            done *= factor
        return f"#define STEPS(X) {' '.join(found)}"

    @property
    def _unity(self) -> Packed:
        """The roots of unity."""
        dtype = arithmetic(self.dtype)
        key = ("roots of unity", self.length, dtype)
        return Packed((), key, partial(_roots, self.length, dtype))


def lines_of(dims: tuple[int, ...], axis: int) -> dict[str, int]:
    """Return struct `Lines` of the lines along an axis of a tensor, whose last one has parts."""
    parts, inner = dims[-1], 1
    for size in dims[axis + 1 : -1]:
        inner *= size
    return {
        **{"frames": 1, "inner": inner, "of_outer": dims[axis] * inner * parts, "of_frame": 0},
        **{"of_inner": parts, "step": inner * parts},
    }


def _roots(length: int, dtype: DType) -> Array:
    """Return exp(-2 pi i j / length) for each j, as pairs."""
    angles = -2 * np.pi * np.arange(length) / length
    return np.stack((np.cos(angles), np.sin(angles)), 1).astype(dtype)
