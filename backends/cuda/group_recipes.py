"""The recipe of a group of nodes: which of the families of kernels computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ...runtime.ir.graph import Node, Value
from ...runtime.ops.conv import Conv
from ...runtime.plan.backend import BuildContext
from ...runtime.plan.format import Format
from .algorithms.registry import (
    PLAIN,
    Answer,
    Kernel,
    RecipeContext,
    Setting,
    Stored,
)
from .algorithms.selection import SELECTORS, TuningTask
from .codegen.chain_kernel import elementwise, refusal
from .codegen.elementwise import chain_of, in_chains
from .codegen.epilogue import no_epilogue
from .families import kernel_of
from .fusion import FusionGroup
from .recipe.arguments import as_reason
from .recipe.launch import launches_of
from .recipe.operands import Tensor

NO_PITCHES: Mapping[Value, int] = MappingProxyType({})


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

    y = operand(group.result)
    head = group.head
    halves = Tensor(y.value, y.format.halves) if stored.halves else None
    if group.whole is not None:
        return _storing(group.whole.recipe(y, operand, setting, stored), halves)
    if head is None:
        return _recipe_of_chain(group, y, operand)
    registered = kernel_of_head(head)
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
        from .conv.pooled import pooled_convolution  # with the kernels of all convolutions

        before = Tensor(group.nodes[-2].output, y.format)
        epilogue = group.epilogue_in(before, operand)
        if isinstance(epilogue, str):
            return epilogue
        epilogue = epilogue.storing(halves, plain=stored.plain)
        recipe = pooled_convolution(replace(context, epilogue=epilogue), before, group.pool)
        return _reading_wide(_storing(recipe, halves), group, operand)
    if not registered.epilogue:
        return _storing(registered.build(replace(context, stored=stored)), halves)
    epilogue = group.epilogue_in(y, operand)
    if isinstance(epilogue, str):
        return epilogue
    epilogue = epilogue.storing(halves, plain=stored.plain)
    recipe = _storing(registered.build(replace(context, epilogue=epilogue)), halves)
    if group.also is not None and not isinstance(recipe, str):
        second = Tensor(group.also.output, y.format)
        alike = halves is None and operand(second.value) == second
        recipe = group.also.stored_by(recipe, second) if alike else "its results are stored apart"
    return _reading_wide(recipe, group, operand)


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
    around = group.whole or group.pool or group.cast or group.also
    if head is None or around or type(head.op) not in SELECTORS:
        return None
    setting = setting.for_node(head)
    y = group.result
    if setting.asked or y not in site.outputs:
        return None

    def operand(value: Value) -> Tensor:
        return Tensor(value, formats.get(value, Format.CONTIGUOUS), site.pitches.get(value, 0))

    epilogue = group.epilogue_in(operand(y), operand)
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
    from .gemm.first_layer import reading_wide

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


def kernel_of_head(node: Node) -> Kernel:
    """Return how recipes for the head of a group are made."""
    found = kernel_of(node.op)
    assert found is not None
    return found
