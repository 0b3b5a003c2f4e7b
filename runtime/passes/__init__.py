"""Graph passes: the driver, and the order in which passes run.

A pass is a generator that makes one rewrite, then yields one sentence about it. So every rewrite is
counted, and `Options.stop_at` stops after any number of them; `tercet bisect` relies on this.
"""

from __future__ import annotations

from ..ir.graph import Graph
from . import (
    add_to_heads,
    add_to_slices,
    batch_scans,
    choose_parts,
    compose_moves,
    compose_views,
    convolve_early,
    convolve_heads,
    convolve_rows,
    count_loops,
    cut_joined,
    cut_splits,
    cut_top_k,
    drop_overwritten,
    drop_requantization,
    drop_zero_units,
    factor_filters,
    flatten_batches,
    flatten_pixels,
    fold_affine,
    fold_batchnorm,
    fold_constants,
    fold_pad,
    fold_prenorm,
    fold_zero_weights,
    fuse_activation,
    fuse_attention,
    fuse_groups,
    fuse_norm,
    fuse_rotary,
    fuse_substitution,
    hoist_reshapes,
    inline_bodies,
    join_assigned,
    join_chains,
    join_heads,
    join_pairs,
    join_pixels,
    join_places,
    join_products,
    join_samples,
    join_steps,
    join_sums,
    join_whole,
    join_written,
    latent_heads,
    lift_windows,
    log_sigmoid,
    lower_batchnorm,
    lower_col2im,
    lower_conv,
    lower_einsum,
    lower_gather_elements,
    lower_gather_nd,
    lower_norms,
    merge_branches,
    merge_convolutions,
    merge_duplicates,
    merge_linear,
    merge_products,
    merge_stacks,
    merge_sums,
    mix_rows,
    multiply_early,
    multiply_integers,
    order_heads,
    order_pixels,
    order_sums,
    pad_channels,
    pad_heads,
    pad_joined,
    remove_dead,
    remove_identity,
    repeat_chains,
    select_by_weights,
    select_early,
    sink_concats,
    sink_expands,
    sink_transposes,
    sink_views,
    sizes_from_inputs,
    split_batches,
    split_labels,
    split_products,
    stack_branches,
    stack_products,
    stack_tables,
    sum_bags,
    sum_branches,
    sum_heads,
    sum_places,
    sum_windows,
    to_half,
    transpose_rows,
    unflatten_softmax,
    unfold_patches,
    unpack_sequences,
    unshuffle,
    weigh_pixels,
    weigh_terms,
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
        "remove_dead",
        remove_dead.run,
        "first, so that no tensor has readers that nothing depends on",
    ),
    Pass(
        "multiply_integers",
        multiply_integers.run,
        "before constants are folded, while weights are the integers of the file",
    ),
    Pass(
        "fold_constants",
        fold_constants.run,
        "early, because exporters write weights and attributes as chains of constant nodes",
    ),
    Pass(
        "inline_bodies",
        inline_bodies.run,
        "after folding, which computes conditions; nodes of a branch then match the patterns below",
    ),
    Pass(
        "count_loops",
        count_loops.run,
        "after folding, too; it determines the shapes of stacked results",
    ),
    Pass(
        "sum_bags",
        sum_bags.run,
        "after counting, and before sequences are unpacked",
    ),
    Pass(
        "unpack_sequences",
        unpack_sequences.run,
        "before the patterns below, which match only tensors",
    ),
    Pass(
        "split_labels",
        split_labels.run,
        "once: a classifier of strings would keep the nodes after its scores off a device",
    ),
    Pass(
        "cut_top_k",
        cut_top_k.run,
        "before what then changes nothing is removed",
    ),
    Pass(
        "remove_identity",
        remove_identity.run,
        "before the patterns below, which an Identity or a Dropout in between would hide",
    ),
    Pass(
        "merge_duplicates",
        merge_duplicates.run,
        "before the patterns below, which require one reader of a tensor, not two equal ones",
    ),
    Pass(
        "sizes_from_inputs",
        sizes_from_inputs.run,
        "likewise: who asks for a tensor's sizes is a reader of it",
    ),
    Pass(
        "lower_einsum",
        lower_einsum.run,
        "before the patterns below, which match matrix products as MatMul",
    ),
    Pass(
        "lower_gather_elements",
        lower_gather_elements.run,
        "in front of the next one, for the GatherND that it writes",
    ),
    Pass(
        "lower_gather_nd",
        lower_gather_nd.run,
        "likewise: they match views and slices",
    ),
    Pass(
        "sum_places",
        sum_places.run,
        "while each place is a Gather of its own",
    ),
    Pass(
        "lower_col2im",
        lower_col2im.run,
        "next to it: one is often the inverse of the other",
    ),
    Pass(
        "stack_tables",
        stack_tables.run,
        "behind it, which cuts columns of indices",
    ),
    Pass(
        "factor_filters",
        factor_filters.run,
        "before the patterns below, which match layers of constant weights",
    ),
    Pass(
        "join_assigned",
        join_assigned.run,
        "likewise: assignments to slices of slices of a tensor are Concats",
    ),
    Pass(
        "join_written",
        join_written.run,
        "behind it: a tensor that is assigned in parts, one after the other, is their Concat",
    ),
    Pass(
        "add_to_slices",
        add_to_slices.run,
        "after it: what is left are assignments to parts, some of which are sums",
    ),
    Pass(
        "fuse_substitution",
        fuse_substitution.run,
        "after it, which writes rows; early, as it replaces very many nodes",
    ),
    Pass(
        "drop_requantization",
        drop_requantization.run,
        "before the patterns below, whose nodes quantization would separate",
    ),
    Pass(
        "fuse_activation",
        fuse_activation.run,
        "while the constants of a formula are as the exporter wrote them, not yet folded",
    ),
    Pass(
        "log_sigmoid",
        log_sigmoid.run,
        "after it: gates that it takes are no longer there",
    ),
    Pass(
        "fuse_norm",
        fuse_norm.run,
        "likewise; the scale after a normalization belongs to it rather than to the next layer",
    ),
    Pass(
        "fuse_groups",
        fuse_groups.run,
        "likewise",
    ),
    Pass(
        "lower_norms",
        lower_norms.run,
        "after them, and before the patterns below, whose normalizations have scales of rows",
    ),
    Pass(
        "fold_row_norms",
        fold_batchnorm.run_rows,
        "before the patterns below, which match layers as MatMul and Add",
    ),
    Pass(
        "multiply_early",
        multiply_early.run,
        "likewise; it finds the parts of a layer's input by the nodes that repeat them",
    ),
    Pass(
        "sum_heads",
        sum_heads.run,
        "before the next one, which moves the views that cut rows into heads",
    ),
    Pass(
        "hoist_reshapes",
        hoist_reshapes.run,
        "before the patterns below, which match layers as MatMul and Add on the tensor's own axes",
    ),
    Pass(
        "unflatten_softmax",
        unflatten_softmax.run,
        "after it, which adds views, and before patterns with a Softmax of the tensor itself",
    ),
    Pass(
        "transpose_rows",
        transpose_rows.run,
        "after it, which exposes layers; before transposes are composed with those of heads",
    ),
    Pass(
        "flatten_batches",
        flatten_batches.run,
        "before views are composed: those that it inserts before heads merge with others there",
    ),
    Pass(
        "join_places",
        join_places.run,
        "before views are composed: it finds what steps cut by them",
    ),
    Pass(
        "join_steps",
        join_steps.run,
        "likewise",
    ),
    Pass(
        "join_pairs",
        join_pairs.run,
        "before branches are stacked: what the nodes read is joined, and may be branches",
    ),
    Pass(
        "join_products",
        join_products.run,
        "before attention, whose weights one product reads",
    ),
    Pass(
        "join_sums",
        join_sums.run,
        "before products are stacked: more of them are joined",
    ),
    Pass(
        "stack_products",
        stack_products.run,
        "before views are composed: it finds what steps cut by them",
    ),
    Pass(
        "stack_branches",
        stack_branches.run,
        "likewise",
    ),
    Pass(
        "sum_branches",
        sum_branches.run,
        "before views are composed: it finds the channels of an image by them",
    ),
    Pass(
        "weigh_pixels",
        weigh_pixels.run,
        "before views are composed: it finds images by them, and adds some",
    ),
    Pass(
        "mix_rows",
        mix_rows.run,
        "before views are composed: it adds some",
    ),
    Pass(
        "convolve_heads",
        convolve_heads.run,
        "likewise, and before an Attention is found among its heads",
    ),
    Pass(
        "fuse_rotary",
        fuse_rotary.run,
        "before views are composed: pairs may have an axis where heads have been transposed",
    ),
    Pass(
        "compose_views",
        compose_views.run,
        "before the patterns below, which find heads by one Transpose",
    ),
    Pass(
        "add_to_heads",
        add_to_heads.run,
        "after it: heads are a Reshape and a Transpose of a layer's columns",
    ),
    Pass(
        "fuse_rotary",
        fuse_rotary.run,
        "before heads are joined, which may then be rotated in place",
    ),
    Pass(
        "fuse_attention",
        fuse_attention.run,
        "before transposes move: it finds keys by them",
    ),
    Pass(
        "split_batches",
        split_batches.run,
        "after it: what an Attention of one head reads and writes is reshaped",
    ),
    Pass(
        "lift_windows",
        lift_windows.run,
        "after it, when masks are operands of Attention",
    ),
    Pass(
        "latent_heads",
        latent_heads.run,
        "after it, when heads are operands of Attention, and before they are joined otherwise",
    ),
    Pass(
        "order_heads",
        order_heads.run,
        "in front of the next one, which knows heads whose elements are adjacent",
    ),
    Pass(
        "join_heads",
        join_heads.run,
        "after it: the transposes around an Attention no longer obstruct other patterns",
    ),
    Pass(
        "select_early",
        select_early.run,
        "after it, when queries are rows, and before q is computed together with k and v",
    ),
    Pass(
        "merge_products",
        merge_products.run,
        "after it, when an Attention reads the products directly",
    ),
    Pass(
        "merge_sums",
        merge_sums.run,
        "after activations, which follow sums",
    ),
    Pass(
        "split_products",
        split_products.run,
        "after it: the parts that an Attention reads stay together",
    ),
    Pass(
        "order_sums",
        order_sums.run,
        "after it, when layers are as they stay",
    ),
    Pass(
        "cut_joined",
        cut_joined.run,
        "after rows are joined instead of their heads, which moves views out of the way",
    ),
    Pass(
        "join_pixels",
        join_pixels.run,
        "after it: boxes and classes are joined apart from each other",
    ),
    Pass(
        "join_samples",
        join_samples.run,
        "before transposes move: it adds one that is free where channels are last in memory",
    ),
    Pass(
        "unfold_patches",
        unfold_patches.run,
        "before transposes move: it is recognised by the one after a convolution",
    ),
    Pass(
        "flatten_pixels",
        flatten_pixels.run,
        "before transposes move: it adds one that is free where channels are last in memory",
    ),
    Pass(
        "compose_moves",
        compose_moves.run,
        "after attention, whose windows it moves, and before other transposes move",
    ),
    Pass(
        "order_pixels",
        order_pixels.run,
        "before transposes move: it leaves one that is free where channels are last in memory",
    ),
    Pass(
        "sink_transposes",
        sink_transposes.run,
        "before folding into weights, which needs channels where convolutions have them",
    ),
    Pass(
        "fold_pad",
        fold_pad.run,
        "Conv and AveragePool absorb the zeros of a preceding Pad",
    ),
    Pass(
        "sink_concats",
        sink_concats.run,
        "before folding into weights, whose layers get their parts of what follows their Concat",
    ),
    Pass(
        "fold_batchnorm",
        fold_batchnorm.run,
        "Conv, ConvTranspose and Gemm absorb a following BatchNormalization",
    ),
    Pass(
        "fold_prenorm",
        fold_prenorm.run,
        "behind it: what no layer in front takes over, those behind may",
    ),
    Pass(
        "fold_affine",
        fold_affine.run,
        "after batch norms: scales and shifts of their results are folded into the same weights",
    ),
    Pass(
        "fold_pad",
        fold_pad.run,
        "again: more Slices follow a convolution where scales in between were folded",
    ),
    Pass(
        "lower_batchnorm",
        lower_batchnorm.run,
        "behind them: what no layer takes over may join what a layer does to its results",
    ),
    Pass(
        "merge_branches",
        merge_branches.run,
        "after batch norms are folded, so that branches consist of weights only",
    ),
    Pass(
        "merge_linear",
        merge_linear.run,
        "last of the arithmetic: it multiplies weights that are final",
    ),
    Pass(
        "convolve_early",
        convolve_early.run,
        "after it: a convolution has its batch norm, which a sum would separate from it",
    ),
    Pass(
        "fold_zero_weights",
        fold_zero_weights.run,
        "after it, when the bias of a product with zeros has absorbed all linear nodes after it",
    ),
    Pass(
        "drop_zero_units",
        drop_zero_units.run,
        "after whole products of zeros, which would be all units of a layer",
    ),
    Pass("unshuffle", unshuffle.run, "after them: a shuffle is a selection of channels"),
    Pass("select_by_weights", select_by_weights.run, "after it, which writes selections"),
    Pass(
        "convolve_rows",
        convolve_rows.run,
        "after all passes of linear layers, just before channels are padded",
    ),
    Pass(
        "pad_channels",
        pad_channels.run,
        "after all passes that change weights or remove zeros, while layers are convolutions",
    ),
    Pass("pad_joined", pad_joined.run, "likewise, of what is left"),
    Pass("join_whole", join_whole.run, "after them: only parts of whole words stay in place"),
    Pass(
        "pad_heads",
        pad_heads.run,
        "after the passes that find and join the linear layers around an Attention",
    ),
    Pass(
        "lower_conv",
        lower_conv.run,
        "after all passes that match layers as convolutions",
    ),
    Pass(
        "to_half",
        to_half.run,
        "after all passes that change weights, so that these are rounded once",
    ),
    Pass(
        "remove_dead",
        remove_dead.run,
        "last, to drop constants and nodes that the others left unused",
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
        "conditions on shapes are known now, so that their control flow disappears",
    ),
    Pass(
        "count_loops",
        count_loops.run,
        "sizes are limits of counters",
    ),
    Pass("sum_bags", sum_bags.run, "sizes determine how many bags there are"),
    Pass(
        "batch_scans",
        batch_scans.run,
        "sizes determine whether there is memory for all elements at once",
    ),
    Pass(
        "unpack_sequences",
        unpack_sequences.run,
        "sizes determine how many parts a tensor is split into",
    ),
    Pass("cut_top_k", cut_top_k.run, "sizes determine how many elements are sorted"),
    Pass(
        "remove_identity",
        remove_identity.run,
        "a Reshape, Slice, Expand or Pad may turn out to change nothing",
    ),
    Pass(
        "drop_overwritten",
        drop_overwritten.run,
        "sizes determine whether everything is overwritten",
    ),
    Pass("lower_einsum", lower_einsum.run, "it needs the sizes of merged axes"),
    Pass("lower_gather_elements", lower_gather_elements.run, "sizes determine what is expanded"),
    Pass("lower_gather_nd", lower_gather_nd.run, "sizes determine which rows are adjacent"),
    Pass("fuse_substitution", fuse_substitution.run, "and which rows of a matrix are written"),
    Pass("lower_norms", lower_norms.run, "sizes determine along which axes scales vary"),
    Pass("hoist_reshapes", hoist_reshapes.run_bound, "sizes determine which axes are rows"),
    Pass("unflatten_softmax", unflatten_softmax.run, "sizes determine whether a shape is kept"),
    Pass("compose_views", compose_views.run_bound, "and which axes a Reshape merges or splits"),
    Pass("fuse_rotary", fuse_rotary.run, "it needs the number of positions"),
    Pass("fuse_attention", fuse_attention.run, "sizes determine how masks are broadcast"),
    Pass("split_batches", split_batches.run, "and how many samples there are"),
    Pass("lift_windows", lift_windows.run, "and which masks are windows"),
    Pass("order_heads", order_heads.run_bound, "and how many rows a Transpose moves"),
    Pass("join_heads", join_heads.run_bound, "and how many heads a Reshape creates"),
    Pass("merge_stacks", merge_stacks.run, "after attention, which has heads that share keys"),
    Pass("sink_expands", sink_expands.run, "after both, which know heads by what repeats them"),
    Pass("weigh_terms", weigh_terms.run, "after it: what heads share is not repeated any more"),
    Pass("unshuffle", unshuffle.run, "sizes determine which axes are split and merged"),
    Pass("compose_moves", compose_moves.run, "sizes determine which rows are moved where"),
    Pass("cut_splits", cut_splits.run, "after it, which moves what Splits cut and Concats join"),
    Pass("lower_conv", lower_conv.run_bound, "behind to_half, which converts layers"),
    Pass("sum_windows", sum_windows.run, "when it is known which windows are moved from where"),
    Pass("sink_views", sink_views.run, "last of the views, when layers and sums are as they stay"),
    Pass("join_chains", join_chains.run, "behind it, which moves views for the sake of layers"),
    Pass("choose_parts", choose_parts.run, "behind them: the views in between are the shortest"),
    Pass("merge_convolutions", merge_convolutions.run, "sizes determine whether it pays"),
    Pass("fold_zero_weights", fold_zero_weights.run, "it needs the shape of the result"),
    Pass("merge_duplicates", merge_duplicates.run, "folded constants make more nodes equal"),
    Pass("repeat_chains", repeat_chains.run, "after it, which would merge them again"),
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
        graph: with inferred types (`ir.infer.infer`).
        passes: `SYMBOLIC_PASSES` or `STATIC_PASSES`.
        options: budgets, and `stop_at`, which counts all rewrites in `rewrites` so far.
        evaluate: runs one operator on arrays.
        rewrites: gets one entry per rewrite.
    """
    run_passes(graph, passes, Context(options, evaluate), rewrites)
