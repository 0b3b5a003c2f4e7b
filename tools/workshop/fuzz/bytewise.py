"""Changes of a file's bytes, blind to what they mean."""

from __future__ import annotations

from random import Random

from .structure import Mutant


def damaged_bytes(seed: bytes, other: bytes, rng: Random) -> Mutant:
    """Return a seed with some bytes changed.

    Args:
        seed: the file.
        other: a file whose bytes may be put into it.
        rng: decides.
    """
    data = bytearray(seed)
    kind = rng.choice(("flip", "overwrite", "insert", "delete", "repeat", "splice", "truncate"))
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, size = rng.randrange(len(data) or 1), rng.choice((1, 1, 2, 4, 8, 64))
        match kind:
            case "flip" if data:
                data[at] ^= 1 << rng.randrange(8)
            case "overwrite":
                patch = rng.choice((rng.randbytes(size), b"\xff" * size, bytes(size)))
                data[at : at + size] = patch
            case "insert":
                data[at:at] = rng.randbytes(size)
            case "delete":
                del data[at : at + size]
            case "repeat":
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 100))
            case "splice":
                begin = rng.randrange(len(other) or 1)
                data[at : at + size] = other[begin : begin + rng.choice((4, 32, 512))]
            case _:
                del data[at:]
    return Mutant(f"bytes: {kind}", bytes(data), None)
