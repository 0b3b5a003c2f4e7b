"""Masks of attention as sums of tensors that are read where they are."""

from __future__ import annotations

from ....runtime.base.record import record
from ..recipe.operands import Ints, Tensor


@record
class MaskTerm:
    """A tensor that is part of a mask.

    Attributes:
        tensor: the tensor.
        steps: strides of samples, heads, rows and keys, in elements; where rows or keys are two
            axes, of the outer one.
        inner: strides of the inner axes of rows and keys.
    """

    tensor: Tensor
    steps: Ints
    inner: Ints = (0, 0)

    @property
    def numbers(self) -> Ints:
        """The members of struct `TermSteps` of heads.cuh."""
        return (*self.steps, *self.inner)


@record
class MaskTerms:
    """A mask as the sum of one or two tensors, which are read where they are.

    Attributes:
        terms: the tensors; neighbouring keys share the first one's elements more often.
        samples: after how many samples the mask repeats; 0 if it does not.
        inner: sizes of the inner axes of rows and keys; 0 if these are single axes.
    """

    terms: tuple[MaskTerm, ...]
    samples: int = 0
    inner: Ints = (0, 0)

    @property
    def are_of_rows_and_columns(self) -> bool:
        """Whether there is a number for each row of keys, and one for each column."""
        first, second = self.terms[0], self.terms[-1]
        return self.inner[1] > 0 and first.inner[1] == 0 and second.steps[3] == 0

    @property
    def are_of_pairs(self) -> bool:
        """Whether the first term is the same for a key and the next one, and the other adjacent."""
        first, second = self.terms[0], self.terms[-1]
        others = (*second.steps, second.inner[0], second.tensor.pitch)
        pairs = first.inner[1] == 0 and second.inner[1] == 1 and self.inner[1] > 0
        return pairs and all(n % 2 == 0 for n in (self.inner[1], *others))
