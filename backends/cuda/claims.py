"""Claims of the backend: groups of nodes that have recipes, and steps built from these."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from ...runtime.ir.custom import Custom
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.attention import Attention, RotaryEmbedding
from ...runtime.ops.conv import Conv
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.movement import Concat, Slice, Split
from ...runtime.ops.norm import LayerNormalization, RMSNormalization
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline, Formats
from ...runtime.plan.format import Format
from ...runtime.plan.partition import reads_of, results_of
from .algorithms.registry import Answer, RecipeContext
from .algorithms.selection import SELECTORS
from .conv.branches import beside_others
from .cutting import Cutting
from .driver.step import KernelStep
from .families import provide
from .fusion import FusionGroup, groups
from .gemm.f16x3 import judge
from .group_recipes import NO_PITCHES, kernel_of_head, recipe_of, task_of
from .recipe.launch import accessed_by, finds, launches_of, pitched_by
from .recipe.operands import MAX_WORD, Tensor
from .recipe.setting import PLAIN, Setting, Stored, TunedChoice
from .smaller_groups import smaller

if TYPE_CHECKING:
    from .device import CudaDevice

Pairs = tuple[tuple[Value, Value], ...]
#: How many results there are at least of an element that is repeated in any format.
REPEATED = 64


class Claims:
    """What the backend claims of a graph.

    Args:
        device: the GPU.
        choices: what has been measured to be fastest.
    """

    def __init__(self, device: CudaDevice, choices: Mapping[str, TunedChoice]) -> None:
        self._device, self._choices = device, choices

    def of(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims of groups; a group without a recipe is split into smaller ones.

        Nodes whose results have no elements are in none: there is nothing to compute.
        """
        for kind in dict.fromkeys(type(node.op) for node in graph.nodes):
            provide(kind)
        empty = frozenset(node for node in free if _is_empty(node))
        yield from (Claim((node,), self._build_nothing) for node in graph.in_order(empty))
        free = free - empty
        wide = frozenset(node for node in free if _is_wide(node))
        for node in graph.in_order(wide):
            yield Decline(node, f"elements of more than {MAX_WORD} bytes")
        free = free - wide
        cut = dict[Value, Format]()
        target = self._device.compiler.target
        branches = beside_others(graph)
        setting = Setting(target, options, choices=self._choices, cut=cut, branches=branches)
        recipes = _RecipesOfGroups(setting)
        found = tuple(part for group in groups(graph, free) for part in recipes.made(graph, group))
        cutting = Cutting(
            graph,
            found,
            cut,
            formats=recipes.formats,
            is_made=recipes.is_made,
            gain=partial(_gain, setting=setting),
            cost=_cost,
            smaller=partial(smaller, graph),
        )
        if target.has_wgmma:
            judged = judge(free)
            found = cutting.find()
            judged()
        for group in found:
            stored = cutting.stored(group.result)
            yield from self._claims(graph, recipes.of(group), stored)

    def _claims(
        self, graph: Graph, recipes: _Recipes, stored: Stored = PLAIN
    ) -> Iterator[Claim | Decline]:
        group = recipes.group
        answer = self._claim(graph, recipes, stored)
        if isinstance(answer, Decline) and stored.halves:
            answer = self._claim(graph, recipes, PLAIN)
        if isinstance(answer, Claim) or len(group.nodes) == 1:
            yield answer
            return
        for part in smaller(graph, group):
            yield from self._claims(graph, _Recipes(part, recipes.setting))

    def _claim(self, graph: Graph, recipes: _Recipes, stored: Stored) -> Claim | Decline:
        group, formats = recipes.group, recipes.formats
        results = results_of(graph, group.nodes)
        recipe = recipes.of(formats, results, stored=stored)
        if isinstance(recipe, str):
            return Decline(group.nodes[0], recipe)
        known = accessed_by(recipe)
        if unstored := [value.name for value in results if value not in known]:
            return Decline(group.nodes[0], f"no kernel of the group stores '{unstored[0]}'")
        build = partial(self._build, recipes)
        wanted = _wanted(group, formats, results)
        if wanted.follows:  # slices with gaps are channels-last
            last = dict.fromkeys((*reads_of(group.nodes), *results), Format.CHANNELS_LAST)
            recipe = recipes.of({**last, **wanted.wants}, results)
            if isinstance(recipe, str) and group.nodes[1:]:
                return Decline(group.nodes[0], recipe)
        else:  # its formats stay, so its kernels compile while others are claimed
            for launch in launches_of(recipe):
                if not launch.is_empty:
                    self._device.compiler.submit(launch.source)
        pitched = _pitched(group, recipe)
        rows = pitched if _reads_rows(group) else frozenset[Value]()
        wanted = replace(wanted, pitched=pitched, rows=rows)
        wanted = _also_in_halves(wanted, group.result, stored)
        return Claim(group.nodes, build, wanted, _in_place(group))

    def _build_nothing(self, site: BuildContext) -> KernelStep:
        return KernelStep(self._device, site, ())

    def _build(self, recipes: _Recipes, site: BuildContext) -> KernelStep | Decline:
        group, setting = recipes.group, recipes.setting
        y = group.result
        formats = dict(site.formats)
        only = y in formats and formats[y].in_halves
        if only:
            formats[y] = formats[y].plain
        stored = Stored(True, not only) if only or y in site.also else PLAIN
        recipe = recipes.of(formats, site.outputs, site.pitches, stored)
        if isinstance(recipe, str):
            return Decline(group.nodes[0], recipe)
        if site.pitches and not finds(recipe, site.pitches):
            return Decline(group.nodes[0], "no kernel for slices")
        task = None if stored.halves else task_of(group, formats, setting, site)
        step = KernelStep(self._device, site, recipe, task)
        limit = setting.options.workspace
        if limit is not None and step.scratch > limit:
            return Decline(group.nodes[0], f"needs {step.scratch} bytes of workspace")
        return step


class _Recipes:
    """The recipes of a group, which are asked for before it is claimed, then, and as it is built.

    What they depend on is known as soon as the groups before it are.
    """

    def __init__(self, group: FusionGroup, setting: Setting) -> None:
        self.group, self.setting = group, setting
        self._known: dict[Hashable, Answer] = {}

    @cached_property
    def formats(self) -> Mapping[Value, Format]:
        """The formats that the group requests, unless contiguous."""
        return _formats(self.group, self.setting)

    @cached_property
    def _reads(self) -> tuple[Value, ...]:
        return reads_of(self.group.nodes)

    @cached_property
    def _every(self) -> tuple[Value, ...]:
        """All results of its nodes."""
        return tuple(value for node in self.group.nodes for value in node.outputs)

    def of(
        self,
        formats: Mapping[Value, Format],
        results: Sequence[Value],
        pitches: Mapping[Value, int] = NO_PITCHES,
        stored: Stored = PLAIN,
    ) -> Answer:
        """Return `recipe_of` the group; that of a pattern is the same whatever is read of it."""
        if self.group.whole is not None:
            results = self._every
        ends = (*self._reads, *results)
        places = tuple((formats.get(v, Format.CONTIGUOUS), pitches.get(v, 0)) for v in ends)
        key = places, tuple(results), stored
        if key not in self._known:
            found = recipe_of(self.group, formats, results, self.setting, pitches, stored)
            self._known[key] = found
        return self._known[key]


class _RecipesOfGroups:
    """The recipes of all groups of a graph."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: dict[int, _Recipes] = {}

    def of(self, group: FusionGroup) -> _Recipes:
        """Return the recipes of this very group."""
        if id(group) not in self._known:
            self._known[id(group)] = _Recipes(group, self._setting)
        return self._known[id(group)]

    def formats(self, group: FusionGroup) -> Mapping[Value, Format]:
        """Return the formats that a group requests, unless contiguous."""
        return self.of(group).formats

    def made(self, graph: Graph, group: FusionGroup) -> tuple[FusionGroup, ...]:
        """Return a group; without its second result, if its kernel does not store that."""
        if group.also is None or self.is_made(group, self.formats(group), PLAIN):
            return (group,)
        return smaller(graph, group)

    def is_made(self, group: FusionGroup, formats: Mapping[Value, Format], stored: Stored) -> bool:
        """Whether there is a recipe for tensors in these formats that stores its result so."""
        results = (group.result,)
        return not isinstance(self.of(group).of(formats, results, stored=stored), str)


def _is_empty(node: Node) -> bool:
    """Whether a node computes no elements, and is not a view, which a plan never runs."""
    return not node.op.view and not any(value.tensor.size for value in node.outputs)


def _is_wide(node: Node) -> bool:
    """Whether elements are wider than any that kernels copy; custom kernels know their own."""
    if node.op.view or isinstance(node.op, Custom):
        return False
    values = (*node.distinct_reads, *node.outputs)
    tensors = (value.type for value in values if isinstance(value.type, TensorType))
    return any(each.dtype.itemsize > MAX_WORD for each in tensors)


def _formats(group: FusionGroup, setting: Setting) -> dict[Value, Format]:
    """Return the formats that a group requests, unless contiguous."""
    if group.whole is not None:
        return dict(group.whole.requested(setting))
    if group.moves:
        return {each.x: each.format for each in group.moves if not each.x.is_constant}
    registered = None if group.head is None else kernel_of_head(group.head)
    if group.head is None or registered is None or registered.formats is None:
        return {}
    head, y = group.head, Tensor(group.head.output)
    inputs = tuple(None if value is None else Tensor(value) for value in head.inputs)
    context = RecipeContext(head.op, y, inputs, setting.for_node(head))
    given, result = registered.formats(context)
    first = head.inputs[0]  # constants are contiguous
    if given.in_halves and first in reads_of(group.epilogue):  # which reads it as it is
        context = replace(context, setting=replace(context.setting, cut={}))
        given, result = registered.formats(context)
    lines = (*y.dims[:1], 1, *y.dims[2:])  # one element for each pixel, perhaps a slice of more
    wanted = {
        v: result
        for node in group.nodes
        for v in (*node.distinct_reads, *node.outputs)
        if v.tensor.dims == y.dims or (v.tensor.dims == lines and not v.is_constant)
        if node is not group.head or v is y.value
    }
    if group.pool is not None:
        wanted[group.pool.output] = result
    if first is None or first.is_constant or wanted.get(first, given) is not given:
        return {}
    return wanted | {first: given}


def _wanted(
    group: FusionGroup, formats: Mapping[Value, Format], results: Sequence[Value]
) -> Formats:
    reads = reads_of(group.nodes)
    y = group.result.tensor
    # Numbers are the same in any format.
    numbers = {
        v: Format.CONTIGUOUS for v in reads if v.tensor.size == 1 and v.tensor.rank != y.rank
    }
    if group.whole is not None and group.whole.follows:
        return Formats(numbers, follows=True)
    moved = {each.x for each in group.moves}
    # What each group of channels has is repeated for images in any format.
    small = all(x.tensor.size * REPEATED <= y.size for x in moved)
    if group.head is None and group.whole is None and small:
        whole = [v.tensor.rank for v in reads if v not in moved and v not in numbers]
        if whole or not (moved or numbers):
            own = numbers | {v: formats[v] for v in moved if v.tensor.rank != y.rank}
            follows = all(rank == y.rank for rank in whole)
            return Formats(own if follows else {}, follows=follows)
    if group.head is not None and kernel_of_head(group.head).follows_for(group.head):
        apart = (group.head.operands[i] for i in kernel_of_head(group.head).contiguous)
        return Formats(dict.fromkeys(apart, Format.CONTIGUOUS), follows=True)
    return Formats(
        {v: formats[v] for v in reads if v in formats},
        {v: formats[v] for v in results if v in formats},
    )


def _also_in_halves(formats: Formats, y: Value, stored: Stored) -> Formats:
    """Return the formats of a claim whose result may be stored in halves."""
    if not stored.halves:
        return formats
    halves = formats.gives.get(y, Format.CONTIGUOUS).halves
    if stored.plain:
        return replace(formats, also={y: halves})
    gives = {**formats.gives, y: halves}
    return replace(formats, gives=gives, pitched=formats.pitched - {y}, rows=formats.rows - {y})


def _gain(group: FusionGroup, setting: Setting) -> float:
    """Return the microseconds that a convolution takes less with its image in halves."""
    head = group.head
    if head is None or not isinstance(head.op, Conv):
        return 0.0
    from .gemm.convolution import problem_of
    from .gemm.image_halves import gain

    setting = setting.for_node(head)
    inputs = tuple(None if value is None else Tensor(value) for value in head.inputs)
    conv = problem_of(RecipeContext(head.op, Tensor(head.output), inputs, setting))
    if isinstance(conv, str):
        return 0.0
    return gain(conv, SELECTORS[Conv].expected(replace(conv, boxed=False))[1]())


def _cost(size: int, both: bool) -> float:
    """Return the microseconds that it takes to store an image in halves; see `Cutting`."""
    from .gemm.image_halves import cost

    return cost(size, both)


def _pitched(group: FusionGroup, recipe: Answer) -> frozenset[Value]:
    """Return tensors that may be slices.

    A kernel that finds operands of its epilogue by their own rows lists them; others find them
    where the result is, which is dense then, as they are.
    """
    if isinstance(recipe, str):
        return frozenset()
    pitched = pitched_by(recipe)
    if group.head is None:
        return pitched
    y = group.result
    made = {value for node in group.nodes for value in node.outputs}
    along = {
        value
        for value in reads_of(group.epilogue)
        if value not in made and value.tensor.dims == y.tensor.dims
    }
    if group.also is not None:  # results are at the same places
        pitched -= {y, group.also.output}
    return pitched if along <= pitched else pitched - along - {y}


def _reads_rows(group: FusionGroup) -> bool:
    """Whether the kernel takes parts of rows of any tensor where it takes slices."""
    if group.whole is not None and group.whole.reads_rows:
        return True
    if group.head is None and group.whole is None:
        return True
    if isinstance(group.nodes[0].op, LayerNormalization | RMSNormalization):
        return group.head is group.nodes[0]
    if group.head is not None and isinstance(group.head.op, Concat | Slice | Split | MatMul):
        return True
    return all(isinstance(node.op, Attention | RotaryEmbedding) for node in group.nodes)


def _in_place(group: FusionGroup) -> Pairs:
    """Return which inputs the result may overwrite: those read only elementwise."""
    if group.whole is not None:
        return group.whole.in_place
    y = group.result
    moved = [each.x for each in group.moves]
    windows = moved if group.head is None else group.head.distinct_reads
    pairs = tuple(
        (y, value)
        for value in reads_of(group.epilogue)
        if value not in windows
        and value.tensor.dims == y.tensor.dims
        and value.tensor.dtype.itemsize == y.tensor.dtype.itemsize
        and value.producer not in group.nodes
    )
    return pairs if group.head is None else (*_overwritten(group.head), *pairs)


def _overwritten(head: Node) -> Pairs:
    """Return the input that the head's kernel updates in place; see `Kernel`."""
    place = kernel_of_head(head).in_place
    value = None if place is None else head.inputs[place]
    if value is None or head.inputs.count(value) > 1:
        return ()
    return ((head.output, value),)
