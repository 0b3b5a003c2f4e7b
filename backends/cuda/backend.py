"""The backend: claims groups of nodes that have recipes, and builds steps from these."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.attention import Attention, RotaryEmbedding
from ...runtime.ops.conv import Conv
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.movement import Concat, Slice, Split
from ...runtime.ops.norm import LayerNormalization, RMSNormalization
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline, Format, Formats
from ...runtime.plan.partition import reads_of, results_of
from .algorithms.registry import (
    PLAIN,
    Answer,
    Kernel,
    RecipeContext,
    Setting,
    Stored,
    TunedChoice,
)
from .algorithms.selection import SELECTORS, TuningTask
from .attention.channels import ChannelAttention, channel_attention
from .attention.cut_heads import CutAttention, cut_attention
from .attention.decode import DecodeAttention, decode_attention
from .attention.relu_linear import ReluLinear, relu_linear
from .attention.rotate_append import RotateAppend, rotate_append
from .attention.sink import SinkAttention, sink_attention
from .codegen.chain_kernel import copied_through, elementwise, refusal
from .codegen.elementwise import chain_of, in_chains
from .codegen.epilogue import epilogue_of, no_epilogue
from .codegen.moves import Movement
from .codegen.recurrence_kernel import recurrence
from .codegen.recurrences import Recurrence
from .conv.branches import beside_others
from .conv.inverted_residual import InvertedResidual, inverted_residual
from .conv.pooled import pooled_convolution
from .cutting import Cutting
from .driver.step import KernelStep
from .families import kernel_of
from .fusion import FusionGroup, Whole, groups, smaller
from .gemm.convolution import problem_of
from .gemm.f16x3 import judge
from .gemm.few_rows import FewRows, few_rows
from .gemm.first_layer import reading_wide
from .gemm.gated import GatedProducts, gated_products
from .gemm.image_halves import cost, gain
from .gemm.strided import StridedProduct, strided_product
from .norm.head_rows import HeadRows, head_rows
from .norm.unit_rows import UnitRows, unit_rows
from .recipe.arguments import as_reason
from .recipe.launch import launches_of, pitched_by
from .recipe.operands import Tensor

if TYPE_CHECKING:
    from .device import CudaDevice

NO_PITCHES: Mapping[Value, int] = MappingProxyType({})
Pairs = tuple[tuple[Value, Value], ...]


class CudaBackend:
    """Runs nodes with hand-written kernels."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._choices: Mapping[str, TunedChoice] = {}

    @property
    def name(self) -> str:
        """``cuda``."""
        return "cuda"

    @property
    def device(self) -> CudaDevice:
        """The GPU."""
        return self._device

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> CudaBackend:
        """Return a backend that knows what is fastest in this graph, with `Options.tune`."""
        if not options.tune:
            return self
        from .tuning.network import tuned

        say = self._device.compiler.announce
        found = copy(self)
        result = tuned(self, graph, free, options, say)
        found._choices = {} if result is None else result.choices
        say("")
        return found

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims of groups; a group without a recipe is split into smaller ones."""
        cut = dict[Value, Format]()
        target = self._device.compiler.target
        branches = beside_others(graph)
        setting = Setting(target, options, choices=self._choices, cut=cut, branches=branches)
        found = tuple(groups(graph, free))
        cutting = Cutting(
            *(graph, found, cut, partial(_formats, setting=setting)),
            *(partial(_is_made, setting=setting), partial(_gain, setting=setting), cost),
        )
        if target.has_wgmma:
            judge(free)
            found = cutting.find()
        for group in found:
            stored = cutting.stored(group.nodes[-1].output)
            yield from self._claims(graph, group, setting, stored)

    def _claims(
        self, graph: Graph, group: FusionGroup, setting: Setting, stored: Stored = PLAIN
    ) -> Iterator[Claim | Decline]:
        answer = self._claim(graph, group, setting, stored)
        if isinstance(answer, Decline) and stored.halves:
            answer = self._claim(graph, group, setting, PLAIN)
        if isinstance(answer, Claim) or len(group.nodes) == 1:
            yield answer
            return
        for part in smaller(graph, group):
            yield from self._claims(graph, part, setting)

    def _claim(
        self, graph: Graph, group: FusionGroup, setting: Setting, stored: Stored
    ) -> Claim | Decline:
        results = results_of(graph, group.nodes)
        formats = _formats(group, setting)
        recipes = _Recipes(group, setting)
        recipe = recipes.of(formats, results, stored=stored)
        if isinstance(recipe, str):
            return Decline(group.nodes[0], recipe)
        build = partial(self._build, recipes)
        wanted = _wanted(group, formats, results)
        if wanted.follows:  # slices with gaps are channels-last
            last = dict.fromkeys((*reads_of(group.nodes), *results), Format.CHANNELS_LAST)
            recipe = recipes.of(last, results)
        pitched = _pitched(group, recipe)
        rows = pitched if _reads_rows(group) else frozenset[Value]()
        wanted = replace(wanted, pitched=pitched, rows=rows)
        wanted = _also_in_halves(wanted, group.nodes[-1].output, stored)
        return Claim(group.nodes, build, wanted, _in_place(group))

    def _build(self, recipes: _Recipes, site: BuildContext) -> KernelStep | Decline:
        group, setting = recipes.group, recipes.setting
        y = group.nodes[-1].output
        formats = dict(site.formats)
        only = y in formats and formats[y].in_halves
        if only:
            formats[y] = formats[y].plain
        stored = Stored(True, not only) if only or y in site.also else PLAIN
        recipe = recipes.of(formats, site.outputs, site.pitches, stored)
        if isinstance(recipe, str):
            return Decline(group.nodes[0], recipe)
        if not pitched_by(recipe).issuperset(site.pitches):
            return Decline(group.nodes[0], "no kernel for slices")
        task = None if stored.halves else task_of(group, formats, setting, site)
        step = KernelStep(self._device, site, recipe, task)
        limit = setting.options.workspace
        if limit is not None and step.scratch > limit:
            return Decline(group.nodes[0], f"needs {step.scratch} bytes of workspace")
        return step


class _Recipes:
    """The recipes of a group, which are asked for as it is claimed and again as it is built."""

    def __init__(self, group: FusionGroup, setting: Setting) -> None:
        self.group, self.setting = group, setting
        self._known: dict[Hashable, Answer] = {}

    def of(
        self,
        formats: Mapping[Value, Format],
        results: Sequence[Value],
        pitches: Mapping[Value, int] = NO_PITCHES,
        stored: Stored = PLAIN,
    ) -> Answer:
        """Return `recipe_of` the group."""
        ends = (*reads_of(self.group.nodes), *results)
        places = tuple((formats.get(v, Format.CONTIGUOUS), pitches.get(v, 0)) for v in ends)
        key = places, tuple(results), stored
        if key not in self._known:
            found = recipe_of(self.group, formats, results, self.setting, pitches, stored)
            self._known[key] = found
        return self._known[key]


@as_reason
def recipe_of(
    group: FusionGroup,
    formats: Mapping[Value, Format],
    results: Sequence[Value],
    setting: Setting,
    pitches: Mapping[Value, int] = NO_PITCHES,
    stored: Stored = PLAIN,
) -> Answer:
    """Return the recipe of a group, or why there is none.

    Args:
        group: the nodes.
        formats: of its tensors; contiguous if missing.
        results: the outputs that are read.
        setting: the GPU and the user's options.
        pitches: of its tensors with gaps; see `Formats.pitched`.
        stored: how the result is stored.
    """

    def operand(value: Value) -> Tensor:
        return Tensor(value, formats.get(value, Format.CONTIGUOUS), pitches.get(value, 0))

    def tensor(value: Value | None) -> Tensor | None:
        return None if value is None else operand(value)

    y = operand(group.nodes[-1].output)
    head = group.head
    halves = Tensor(y.value, y.format.halves) if stored.halves else None
    if group.whole is not None:
        return _storing(_recipe_of_whole(group.whole, y, operand, setting, stored), halves)
    if head is None:
        return _recipe_of_chain(group, y, operand)
    registered = _kernel(head)
    setting = setting.for_node(head)
    if setting.asked and type(head.op) not in SELECTORS:
        return f"algorithm '{setting.asked[0]}' cannot be used: {head.kind} has only one"
    more = tuple(tensor(v if v in results else None) for v in head.outputs[1:])
    if registered.outputs == 1 and any(more):
        return "only its first output is computed"
    if registered.outputs == 1 and y.value not in results:
        return "its first output is not read"
    inputs = tuple(tensor(v) for v in _read_by(group, head))
    context = RecipeContext(head.op, y, inputs, setting, more)
    if y.value not in results:
        empty = no_epilogue(y.dtype) if registered.epilogue else None
        return registered.build(replace(context, y=None, epilogue=empty))
    if group.pool is not None:
        before = Tensor(group.nodes[-2].output, y.format)
        epilogue = epilogue_of(group.epilogue, before, head.output)
        if isinstance(epilogue, str):
            return epilogue
        epilogue = replace(epilogue, halves=halves, plain=stored.plain)
        recipe = pooled_convolution(replace(context, epilogue=epilogue), before, group.pool)
        return _reading_wide(_storing(recipe, halves), group, operand)
    if not registered.epilogue:
        return _storing(registered.build(replace(context, stored=stored)), halves)
    epilogue = epilogue_of(group.epilogue, y, head.output, pitches=pitches)
    if isinstance(epilogue, str):
        return epilogue
    epilogue = replace(epilogue, halves=halves, plain=stored.plain)
    recipe = _storing(registered.build(replace(context, epilogue=epilogue)), halves)
    return _reading_wide(recipe, group, operand)


def _recipe_of_whole(
    whole: Whole, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting, stored: Stored
) -> Answer:
    """Return the recipe of nodes that a dedicated kernel computes together."""
    match whole:
        case ReluLinear():
            return relu_linear(whole, y, operand(whole.x))
        case ChannelAttention():
            return channel_attention(whole, operand, setting.target)
        case CutAttention():
            return cut_attention(whole, y, operand, setting, stored)
        case RotateAppend():
            return rotate_append(whole, operand)
        case DecodeAttention():
            return decode_attention(whole, operand, setting.target)
        case SinkAttention():
            return sink_attention(whole, operand, setting)
        case FewRows():
            return few_rows(whole, y, operand, setting)
        case GatedProducts():
            return gated_products(whole, y, operand, setting)
        case StridedProduct():
            return strided_product(whole, y, operand, setting)
        case UnitRows():
            return unit_rows(whole, y, operand)
        case InvertedResidual():
            return inverted_residual(whole, y, operand, setting)
        case HeadRows():
            return head_rows(whole, y, operand)
        case Movement():
            return copied_through(whole, y, operand(whole.x))
        case Recurrence():
            return recurrence(whole, operand)


def _recipe_of_chain(group: FusionGroup, y: Tensor, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the recipe of elementwise nodes alone."""
    chain = chain_of(tuple(node for node in group.nodes if in_chains(node)))
    if isinstance(chain, str):
        return chain
    moved = {each.y: each for each in group.moves}
    places = {i: moved[v] for i, v in enumerate(chain.operands) if v in moved}
    read = [operand(moved[v].x if v in moved else v) for v in chain.operands]
    return refusal(y, read, places) or elementwise(chain, y, read, places)


def task_of(
    group: FusionGroup, formats: Mapping[Value, Format], setting: Setting, site: BuildContext
) -> TuningTask | None:
    """Return the problem of a group for which one of several recipes was chosen; None if none was.

    That is a node with a selector and nothing around it but an epilogue.
    """
    head = group.head
    if head is None or group.whole or group.pool or group.cast or type(head.op) not in SELECTORS:
        return None
    setting = setting.for_node(head)
    y = group.nodes[-1].output
    if setting.asked or y not in site.outputs:
        return None

    def operand(value: Value) -> Tensor:
        return Tensor(value, formats.get(value, Format.CONTIGUOUS), site.pitches.get(value, 0))

    epilogue = epilogue_of(group.epilogue, operand(y), head.output, pitches=site.pitches)
    if isinstance(epilogue, str):
        return None
    inputs = tuple(None if v is None else operand(v) for v in head.inputs)
    selector = SELECTORS[type(head.op)]
    context = RecipeContext(head.op, operand(y), inputs, setting, epilogue=epilogue)
    task = selector.task(context)
    return None if isinstance(task, str) else TuningTask(selector, task, head)


def _reading_wide(recipe: Answer, group: FusionGroup, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the recipe of a convolution that rounds what it reads, if there is a Cast."""
    if group.cast is None or group.head is None or not isinstance(group.head.op, Conv):
        return recipe
    image, wide = (operand(value) for value in (group.cast.output, group.cast.operands[0]))
    return reading_wide(recipe, image, wide)


def _storing(recipe: Answer, halves: Tensor | None) -> Answer:
    """Return a recipe, or that it does not store halves."""
    if halves is None or isinstance(recipe, str):
        return recipe
    stored = any(halves in launch.arguments.values() for launch in launches_of(recipe))
    return recipe if stored else "its kernel does not store halves"


def _read_by(group: FusionGroup, head: Node) -> tuple[Value | None, ...]:
    """Return the inputs of the head; of a reduction, the first as it is before the Cast."""
    cast = group.cast
    if cast is None or isinstance(head.op, Conv):
        return head.inputs
    return tuple(cast.inputs[0] if v is cast.output else v for v in head.inputs)


def _kernel(node: Node) -> Kernel:
    """Return how recipes for the head of a group are made."""
    found = kernel_of(node.op)
    assert found is not None
    return found


def _formats(group: FusionGroup, setting: Setting) -> dict[Value, Format]:
    """Return the formats that a group requests, unless contiguous."""
    if isinstance(group.whole, ReluLinear | ChannelAttention | CutAttention):
        return group.whole.formats
    if isinstance(group.whole, InvertedResidual):
        return dict.fromkeys(group.whole.images, Format.CHANNELS_LAST)
    if isinstance(group.whole, Movement):
        formats = {group.whole.x: group.whole.format, group.whole.y: group.whole.result}
        return {} if group.whole.is_plain else formats
    if group.moves:
        return {each.x: each.format for each in group.moves}
    registered = None if group.head is None else _kernel(group.head)
    if group.head is None or registered is None or registered.formats is None:
        return {}
    head, y = group.head, Tensor(group.head.output)
    inputs = tuple(None if value is None else Tensor(value) for value in head.inputs)
    context = RecipeContext(head.op, y, inputs, setting.for_node(head))
    given, result = registered.formats(context)
    wanted = {
        v: result
        for node in group.nodes
        for v in (*node.distinct_reads, *node.outputs)
        if v.tensor.dims == y.dims and (node is not group.head or v is y.value)
    }
    if group.pool is not None:
        wanted[group.pool.output] = result
    first = group.head.inputs[0]
    if first is None or wanted.get(first, given) is not given:
        return {}
    return wanted | {first: given}


def _wanted(
    group: FusionGroup, formats: Mapping[Value, Format], results: Sequence[Value]
) -> Formats:
    reads = reads_of(group.nodes)
    if isinstance(group.whole, Movement) and group.whole.is_plain:
        return Formats(follows=True)
    if group.head is None and group.whole is None and not group.moves:
        rank = group.nodes[-1].output.tensor.rank
        return Formats(follows=all(value.tensor.rank == rank for value in reads))
    if group.head is not None and _kernel(group.head).follows_for(group.head):
        return Formats(follows=True)
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


def _is_made(
    group: FusionGroup, formats: Mapping[Value, Format], stored: Stored, *, setting: Setting
) -> bool:
    """Whether there is a recipe for tensors in these formats that stores its result so."""
    results = (group.nodes[-1].output,)
    return not isinstance(recipe_of(group, formats, results, setting, stored=stored), str)


def _gain(group: FusionGroup, setting: Setting) -> float:
    """Return the microseconds that a convolution takes less with its image in halves."""
    head = group.head
    if head is None or not isinstance(head.op, Conv):
        return 0.0
    setting = setting.for_node(head)
    inputs = tuple(None if value is None else Tensor(value) for value in head.inputs)
    conv = problem_of(RecipeContext(head.op, Tensor(head.output), inputs, setting))
    if isinstance(conv, str):
        return 0.0
    return gain(conv, SELECTORS[Conv].pick(conv, tuned=False).microseconds)


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
    y = group.nodes[-1].output
    made = {value for node in group.nodes for value in node.outputs}
    along = {
        value
        for value in reads_of(group.epilogue)
        if value not in made and value.tensor.dims == y.tensor.dims
    }
    return pitched if along <= pitched else pitched - along - {y}


def _reads_rows(group: FusionGroup) -> bool:
    """Whether the kernel takes parts of rows of any tensor where it takes slices."""
    if isinstance(group.whole, DecodeAttention | HeadRows | RotateAppend | StridedProduct):
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
    if isinstance(group.whole, RotateAppend | DecodeAttention):
        return group.whole.in_place
    y = group.nodes[-1].output
    windows = [m.x for m in group.moves] if group.head is None else group.head.distinct_reads
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
    value = None if (place := _kernel(head).in_place) is None else head.inputs[place]
    return () if value is None or head.inputs.count(value) > 1 else ((head.output, value),)
