"""Graph passes: the driver, and the order in which passes run.

A pass is a generator that makes one rewrite, then yields one sentence about it. So every rewrite is
counted, and `Options.stop_at` stops after any number of them, which bisecting relies on.
"""

from __future__ import annotations

from ..ir.graph import Graph
from . import (
    compose_moves,
    compose_views,
    count_loops,
    drop_overwritten,
    drop_requantization,
    drop_zero_units,
    flatten_batches,
    fold_affine,
    fold_batchnorm,
    fold_constants,
    fold_pad,
    fold_zero_weights,
    fuse_activation,
    fuse_attention,
    fuse_groups,
    fuse_norm,
    fuse_rotary,
    hoist_reshapes,
    inline_bodies,
    join_heads,
    lift_windows,
    lower_conv,
    lower_einsum,
    lower_gather_nd,
    merge_branches,
    merge_duplicates,
    merge_linear,
    merge_products,
    remove_dead,
    remove_identity,
    select_early,
    sink_transposes,
    split_labels,
    split_products,
    sum_branches,
    to_half,
    turn_rows,
    unflatten_softmax,
    unfold_patches,
    unpack_sequences,
    unshuffle,
)
from .driver import Context, Evaluate, Pass, PassOptions, Rewrite, Rewrites, run_passes
from .inline_bodies import lower

__all__ = [
    "STATIC_PASSES",
    "SYMBOLIC_PASSES",
    "Evaluate",
    "Pass",
    "Rewrite",
    "Rewrites",
    "lower",
    "optimise",
]

#: Passes that may change weights: they run once per model, while shapes are symbolic.
SYMBOLIC_PASSES: tuple[Pass, ...] = (
    Pass(
        "fold_constants",
        fold_constants.run,
        "first, because exporters write weights and attributes as chains of constant nodes",
    ),
    Pass(
        "inline_bodies",
        inline_bodies.run,
        "after the folding, which tells conditions; the nodes of a branch join the patterns below",
    ),
    Pass(
        "count_loops",
        count_loops.run,
        "after the folding, too; it tells the shapes of what is stacked",
    ),
    Pass(
        "unpack_sequences",
        unpack_sequences.run,
        "before the patterns below, which know tensors alone",
    ),
    Pass(
        "split_labels",
        split_labels.run,
        "once: a classifier of texts keeps what is behind its scores off a device",
    ),
    Pass(
        "remove_identity",
        remove_identity.run,
        "before the patterns below, which an Identity or a Dropout in between would hide",
    ),
    Pass(
        "merge_duplicates",
        merge_duplicates.run,
        "before the patterns below, which want a tensor to have one reader and not two equal ones",
    ),
    Pass(
        "unflatten_softmax",
        unflatten_softmax.run,
        "before the patterns below, which want it along an axis of the tensor itself",
    ),
    Pass(
        "lower_einsum",
        lower_einsum.run,
        "before the patterns below, which know products of matrices as MatMul",
    ),
    Pass(
        "lower_gather_nd",
        lower_gather_nd.run,
        "likewise, which know views and slices",
    ),
    Pass(
        "drop_requantization",
        drop_requantization.run,
        "before the patterns below, which would see quantization between their nodes",
    ),
    Pass(
        "fuse_activation",
        fuse_activation.run,
        "while the constants of a formula are as the exporter wrote them, before they are folded",
    ),
    Pass(
        "fuse_norm",
        fuse_norm.run,
        "likewise; the scale behind it is a normalization's own before it is anybody else's",
    ),
    Pass(
        "fuse_groups",
        fuse_groups.run,
        "likewise",
    ),
    Pass(
        "fold_row_norms",
        fold_batchnorm.run_rows,
        "before the patterns below, which know layers as MatMul and Add",
    ),
    Pass(
        "hoist_reshapes",
        hoist_reshapes.run,
        "before the patterns below, which know layers as MatMul and Add of the tensor's own axes",
    ),
    Pass(
        "turn_rows",
        turn_rows.run,
        "behind it, which shows layers; before transposes are composed with those of heads",
    ),
    Pass(
        "flatten_batches",
        flatten_batches.run,
        "before views are composed, those that it puts in front of heads with others there",
    ),
    Pass(
        "sum_branches",
        sum_branches.run,
        "before views are composed, by which it knows the channels of an image",
    ),
    Pass(
        "compose_views",
        compose_views.run,
        "before the patterns below, which know heads by one Transpose",
    ),
    Pass(
        "fuse_rotary",
        fuse_rotary.run,
        "before the heads are joined, which may then be rotated where they lie",
    ),
    Pass(
        "fuse_attention",
        fuse_attention.run,
        "before transposes move, which it knows keys by",
    ),
    Pass(
        "lift_windows",
        lift_windows.run,
        "behind it, when masks are operands of attentions",
    ),
    Pass(
        "join_heads",
        join_heads.run,
        "behind it: the transposes around an Attention are in nobody else's way",
    ),
    Pass(
        "select_early",
        select_early.run,
        "behind it, which shows queries as rows, and before q is computed together with k and v",
    ),
    Pass(
        "merge_products",
        merge_products.run,
        "behind it, when an Attention reads the products themselves",
    ),
    Pass(
        "split_products",
        split_products.run,
        "behind it: the parts that an Attention reads stay together",
    ),
    Pass(
        "unfold_patches",
        unfold_patches.run,
        "before transposes move: the one behind a convolution is how it is recognised",
    ),
    Pass(
        "compose_moves",
        compose_moves.run,
        "behind the attentions, whose windows it moves, and before other transposes move",
    ),
    Pass(
        "sink_transposes",
        sink_transposes.run,
        "before the folding into weights, which wants the channels where convolutions have them",
    ),
    Pass(
        "fold_pad",
        fold_pad.run,
        "Conv and AveragePool take over the zeros that a Pad in front of them adds",
    ),
    Pass(
        "fold_batchnorm",
        fold_batchnorm.run,
        "Conv, ConvTranspose and Gemm take over the BatchNormalization behind them",
    ),
    Pass(
        "fold_affine",
        fold_affine.run,
        "after the batch-norms: what scales or shifts their result joins the same weights",
    ),
    Pass(
        "merge_branches",
        merge_branches.run,
        "after the batch-norms behind convolutions, which become branches of weights alone",
    ),
    Pass(
        "merge_linear",
        merge_linear.run,
        "last of the arithmetic: it multiplies the weights that the others have settled",
    ),
    Pass(
        "fold_zero_weights",
        fold_zero_weights.run,
        "after it, when the bias of a product with zero has taken in all that is linear behind it",
    ),
    Pass(
        "drop_zero_units",
        drop_zero_units.run,
        "after the whole products, which would be all of a layer's units",
    ),
    Pass(
        "lower_conv",
        lower_conv.run,
        "after all that knows layers as convolutions",
    ),
    Pass(
        "to_half",
        to_half.run,
        "after all that changes weights, so that they are rounded once",
    ),
    Pass(
        "remove_dead",
        remove_dead.run,
        "at the end, to drop the constants and nodes that the others left behind",
    ),
)

#: Passes that run again once a plan has integer shapes; none of them changes weights.
STATIC_PASSES: tuple[Pass, ...] = (
    Pass(
        "fold_constants",
        fold_constants.run,
        "integer shapes make more of the shape arithmetic constant",
    ),
    Pass(
        "inline_bodies",
        inline_bodies.run,
        "a condition on shapes is known now, so that no control flow is left of it",
    ),
    Pass(
        "count_loops",
        count_loops.run,
        "sizes are the limits of counters",
    ),
    Pass(
        "unpack_sequences",
        unpack_sequences.run,
        "sizes tell how many parts a tensor is cut into",
    ),
    Pass(
        "remove_identity",
        remove_identity.run,
        "a Reshape, Slice, Expand or Pad may turn out to change nothing",
    ),
    Pass(
        "drop_overwritten",
        drop_overwritten.run,
        "sizes tell whether everything is overwritten",
    ),
    Pass("unflatten_softmax", unflatten_softmax.run, "sizes tell whether a shape is kept"),
    Pass("lower_einsum", lower_einsum.run, "it needs the sizes of axes that it joins"),
    Pass("lower_gather_nd", lower_gather_nd.run, "sizes tell which rows are adjacent"),
    Pass("hoist_reshapes", hoist_reshapes.run_bound, "sizes tell which axes are rows"),
    Pass("compose_views", compose_views.run_bound, "and of which axes a Reshape makes which"),
    Pass("fuse_rotary", fuse_rotary.run, "it needs the number of positions"),
    Pass("fuse_attention", fuse_attention.run, "sizes tell which masks are broadcast, and how"),
    Pass("lift_windows", lift_windows.run, "and which masks are windows"),
    Pass("join_heads", join_heads.run_bound, "and how many heads a Reshape makes"),
    Pass("unshuffle", unshuffle.run, "sizes tell which axes are cut and joined"),
    Pass("compose_moves", compose_moves.run, "sizes tell which rows are moved where"),
    Pass("fold_zero_weights", fold_zero_weights.run, "it needs the shape of the result"),
    Pass("merge_duplicates", merge_duplicates.run, "folded constants make more nodes equal"),
    Pass("remove_dead", remove_dead.run, "at the end, as above"),
)


def optimise(
    graph: Graph,
    passes: tuple[Pass, ...],
    options: PassOptions,
    evaluate: Evaluate,
    rewrites: Rewrites,
) -> None:
    """Run `passes` on `graph` in place.

    Args:
        graph: with inferred types (`runtime.infer.infer`).
        passes: `SYMBOLIC_PASSES` or `STATIC_PASSES`.
        options: budgets, and `stop_at`, which counts all rewrites in `rewrites` so far.
        evaluate: runs one operator on arrays.
        rewrites: gets one entry per rewrite.
    """
    run_passes(graph, passes, Context(options, evaluate), rewrites)
