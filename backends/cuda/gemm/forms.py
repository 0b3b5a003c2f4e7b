"""Forms of a product of 16-bit floats: the kernels, tiles and splits that may be the fastest.

Estimates choose one; the tuner measures the others. A form's name is that of its kernel, tile and
splits, such as ``tma squares 64x64 split 2, 2+9 stages``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from ....runtime.base.record import record
from ..algorithms.registry import Setting
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, Recipe, sharing
from ..recipe.targets import Target
from .atoms import atom_of
from .problem import GemmArguments
from .schedules import multistage, stationary, tma, tma_persistent, tma_staging
from .tile import Config, CtaTile, TimedConfig

#: How many forms of one kernel are worth measuring, and of one of its tiles.
MOST, MOST_OF_TILE = 6, 2
#: Forms are not measured whose estimate exceeds the lowest one by this factor and these
#: microseconds. Of 86 forms found to be faster in eight networks at batch 1, two exceeded that.
FACTOR, MORE = 1.6, 0.5


@record
class Form:
    """One way to compute a product.

    Attributes:
        title: its name.
        microseconds: its estimate.
        tile: what a block computes.
        make: returns its launches.
    """

    title: str
    microseconds: float
    tile: CtaTile
    make: Callable[[], Recipe]


@record
class Source:
    """A product with the launches that prepare its operands.

    Attributes:
        gemm: the product.
        packing: the launches before it.
    """

    gemm: GemmArguments
    packing: tuple[Launch, ...] = ()


def by_multistage(source: Source, epilogue: Epilogue, target: Target) -> Iterator[Form]:
    """Yield the forms of `multistage.cu`, best first."""
    gemm, packing = source.gemm, source.packing
    used = max((launch.scratch for launch in packing), default=0)

    def made(config: Config) -> Recipe:
        atom = atom_of(gemm.dtype)
        return sharing(*packing, *multistage.multiply(gemm, epilogue, config, atom, target, used))

    problem = multistage.problem_of(gemm)
    for timed in multistage.candidates(problem, target, across=gemm.across):
        title = _title("multistage", timed.config)
        yield Form(title, timed.microseconds, timed.tile, partial(made, timed.config))


def tma_tile(
    products: Sequence[tma_staging.TmaProduct],
    setting: Setting,
    *key: Hashable,
    along: bool = False,
) -> tuple[int, TimedConfig, tma_staging.Staging] | None:
    """Return the fastest tile of any of these products, whose number comes first.

    Args:
        products: the same result in several ways.
        setting: keeps what was chosen.
        *key: what the choice depends on.
        along: see `tma.choose`.
    """
    tiles = setting.tiles
    if key not in tiles:
        found = [
            (number, choice, staging.layout)
            for number, product in enumerate(products)
            if (best := tma.choose(product, setting.target, along=along)) is not None
            for choice, staging in (best,)
        ]
        tiles[key] = min(found, key=lambda way: way[1].microseconds, default=None)
    if tiles[key] is None:
        return None
    number, choice, layout = tiles[key]
    staging = tma_staging.staged(products[number], choice.tile, layout)
    assert staging is not None, "it was staged before"
    return number, choice, staging


def by_tma(
    products: Iterable[tuple[tma_staging.TmaProduct, tuple[Launch, ...]]],
    epilogue: Epilogue,
    target: Target,
) -> Iterator[Form]:
    """Yield the forms of `tma.cu`, best first.

    Args:
        products: the product, in several ways, each with the launches before it.
        epilogue: applied to every result.
        target: the GPU.
    """
    found: list[Form] = []
    for number, (product, packing) in enumerate(products):
        for timed, staging in tma.candidates(product, target):
            tapwise = staging.layout is tma_staging.SmemLayout.TAPWISE
            if (
                tapwise
                and tma_staging.staged(product, timed.tile, tma_staging.SmemLayout.MATRIX)
                is not None
            ):
                continue  # the same as a matrix

            def made(
                product: tma_staging.TmaProduct = product,
                packing: tuple[Launch, ...] = packing,
                config: Config = timed.config,
                staging: tma_staging.Staging = staging,
            ) -> Recipe:
                return sharing(*packing, tma.multiply(product, epilogue, config, staging, target))

            joined = f"tma {staging.layout.name.lower()}{f' {number}' if number else ''}"
            title = _title(joined, timed.config)
            found.append(Form(title, timed.microseconds, timed.tile, made))
    return iter(sorted(found, key=lambda form: form.microseconds))


def by_stationary(
    products: Iterable[tuple[tma_staging.TmaProduct, tuple[Launch, ...]]],
    epilogue: Epilogue,
    target: Target,
) -> Iterator[Form]:
    """Yield the forms of `stationary.cu`, best first; see `by_tma`."""
    for product, packing in products:
        found = stationary.candidates(product, target)
        for timed in sorted(found, key=lambda timed: timed.microseconds):

            def made(
                product: tma_staging.TmaProduct = product,
                packing: tuple[Launch, ...] = packing,
                tile: CtaTile = timed.tile,
            ) -> Recipe:
                return sharing(*packing, stationary.multiply(product, epilogue, tile, target))

            yield Form(_title("stationary", timed.config), timed.microseconds, timed.tile, made)


def by_persistent(gemm: GemmArguments, epilogue: Epilogue, target: Target) -> Iterator[Form]:
    """Yield the forms of `tma_persistent.cu`, best first."""
    for timed in tma_persistent.candidates(gemm, epilogue, target):
        make = partial(tma_persistent.multiply, gemm, epilogue, timed.tile, target)
        yield Form(_title("tma_persistent", timed.config), timed.microseconds, timed.tile, make)


def worth_measuring(*kernels: Iterator[Form]) -> tuple[Form, ...]:
    """Return the forms worth measuring, best first.

    Args:
        kernels: the forms of each kernel, best first.
    """
    found = [form for forms in kernels for form in islice(_few_of_tile(forms), MOST)]
    found.sort(key=lambda form: form.microseconds)
    limit = FACTOR * found[0].microseconds + MORE if found else 0.0
    return tuple(form for form in found if form.microseconds <= limit)


def named(forms: Sequence[Form], title: str) -> Recipe | str:
    """Return the launches of the form of this name, or that there is none."""
    form = next((form for form in forms if form.title == title), None)
    return f"no form '{title}'" if form is None else form.make()


def _few_of_tile(forms: Iterator[Form]) -> Iterator[Form]:
    """Yield forms without those of a tile that has enough already."""
    counts: dict[CtaTile, int] = {}
    for form in forms:
        counts[form.tile] = counts.get(form.tile, 0) + 1
        if counts[form.tile] <= MOST_OF_TILE:
            yield form


def _title(kernel: str, config: Config) -> str:
    a, b = config.tile.ends
    stages = f"{a}+{b}" if a != b else str(a)
    return f"{kernel} {config}, {stages} stages"
