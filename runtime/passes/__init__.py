"""Graph passes: the driver, and the order in which passes run.

A pass is a generator that makes one rewrite, then yields one sentence about it. So every rewrite is
counted, and `Options.stop_at` stops after any number of them; `tercet bisect` relies on this.
"""

from __future__ import annotations

from .control.inline_bodies import lower
from .driver import InModule, Pass, Rewrite, Rewrites, optimise
from .moved_places import Evaluate

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


def _pass(place: str, reason: str, *, run: str = "", at: str = "", narrow: bool = False) -> Pass:
    """Return a pass of a package in this one; see `Pass`.

    Args:
        place: the package and its name in there.
        reason: the reason for its position.
        run: its module there and function if they are not those of its name and `run`.
        at: the operators, with spaces in between, and commas between groups of them.
        narrow: whether it is for half precision only.
    """
    package, _, name = place.partition(".")
    module, _, function = (run or name).partition(".")
    groups = tuple(tuple(group.split()) for group in at.split(",") if group)
    return Pass(name, InModule(f"{package}.{module}", function or "run"), reason, groups, narrow)


#: A graph in which elements are moved, or were before other passes, has one of these operators.
_MOVERS = "Transpose Slice Split Concat Gather ReduceSum RotaryEmbedding"
#: Passes that may change weights: they run once per model, while shapes are symbolic.
SYMBOLIC_PASSES: tuple[Pass, ...] = (
    _pass("tidying.remove_dead", "first, so that no tensor has readers that nothing depends on"),
    _pass(
        "integers.multiply_integers",
        "before constants are folded, while weights are the integers of the file",
        at="QuantizeLinear",
    ),
    _pass(
        "integers.pack_weights",
        "behind it, which takes weights of bytes that quantized tensors are multiplied by",
        at="DequantizeLinear, MatMul Gemm Gather",
    ),
    _pass(
        "tidying.fold_constants",
        "early, because exporters write weights and attributes as chains of constant nodes",
    ),
    _pass(
        "control.inline_bodies",
        "after folding, which computes conditions; nodes of a branch then match the patterns below",
        at="If FlexAttention",
    ),
    _pass("control.choose_rows", "behind it, for conditions that are not known", at="If"),
    _pass(
        "control.count_loops",
        "after folding, too; it determines the shapes of stacked results",
        at="Loop",
    ),
    _pass("control.sum_bags", "after counting, and before sequences are unpacked", at="Loop"),
    _pass(
        "control.repeat_rows",
        "likewise, when the number of rounds is known",
        at="ConcatFromSequence Expand",
    ),
    _pass(
        "control.unpack_sequences",
        "before the patterns below, which match only tensors",
        at="SplitToSequence SequenceEmpty SequenceConstruct",
    ),
    _pass(
        "tidying.split_labels",
        "once: a classifier of strings would keep the nodes after its scores off a device",
        at="TreeEnsembleClassifier LinearClassifier SVMClassifier LabelEncoder",
    ),
    _pass("tidying.cut_top_k", "before what then changes nothing is removed", at="TopK"),
    _pass(
        "tidying.remove_identity",
        "before the patterns below, which an Identity or a Dropout in between would hide",
    ),
    _pass(
        "tidying.merge_duplicates",
        "before the patterns below, which require one reader of a tensor, not two equal ones",
    ),
    _pass("tidying.sizes_from_inputs", "likewise: who asks for a tensor's sizes is a reader of it"),
    _pass(
        "moves.split_slices",
        "before the patterns below, which match parts of a tensor as those of a Split",
        at="Slice",
    ),
    _pass(
        "stacks.join_complex",
        "while products are as they were written, also as an Einsum",
        at="Add Sub",
    ),
    _pass(
        "products.lower_einsum",
        "before the patterns below, which match matrix products as MatMul",
        at="Einsum",
    ),
    _pass(
        "products.shift_rows",
        "in front of the next one, which would take its indices for those of rows",
        at="GatherElements, MatMul",
    ),
    _pass(
        "moves.lower_gather_elements",
        "in front of the next one, for the GatherND that it writes",
        at="GatherElements ScatterElements",
    ),
    _pass("moves.lower_gather_nd", "likewise: they match views and slices", at="Gather GatherND"),
    _pass("elementwise.sum_places", "while each place is a Gather of its own", at="Gather"),
    _pass("moves.lower_col2im", "next to it: one is often the inverse of the other", at="Col2Im"),
    _pass("stacks.stack_tables", "behind it, which cuts columns of indices", at="Gather"),
    _pass(
        "images.factor_filters",
        "before the patterns below, which match layers of constant weights",
        at="Conv ConvTranspose ReduceSum, Mul",
    ),
    _pass(
        "moves.join_assigned",
        "likewise: assignments to slices of slices of a tensor are Concats",
        at="ScatterND ScatterElements",
    ),
    _pass(
        "moves.join_written",
        "behind it: a tensor that is assigned in parts, one after the other, is their Concat",
        at="ScatterND ScatterElements",
    ),
    _pass(
        "moves.add_to_slices",
        "after it: what is left are assignments to parts, some of which are sums",
        at="ScatterND ScatterElements Pad",
    ),
    _pass(
        "images.pad_moved",
        "after them, which write Concats; before the patterns below, which compose views",
        at="Concat",
    ),
    _pass(
        "products.fuse_substitution",
        "after it, which writes rows; early, as it replaces very many nodes",
        at="ScatterND ScatterElements",
    ),
    _pass(
        "integers.drop_requantization",
        "before the patterns below, whose nodes quantization would separate",
        at="QuantizeLinear",
    ),
    _pass(
        "elementwise.fuse_activation",
        "while the constants of a formula are as the exporter wrote them, not yet folded",
    ),
    _pass("elementwise.log_sigmoid", "after it: gates that it takes are no longer there", at="Log"),
    _pass(
        "norms.fuse_norm",
        "likewise; the scale after a normalization belongs to it rather than to the next layer",
    ),
    _pass("norms.fuse_groups", "likewise", at="InstanceNormalization"),
    _pass(
        "norms.lower_norms",
        "after them, and before the patterns below, whose normalizations have scales of rows",
        at="LayerNormalization RMSNormalization",
    ),
    _pass(
        "norms.fold_row_norms",
        "before the patterns below, which match layers as MatMul and Add",
        run="fold_batchnorm.run_rows",
        at="BatchNormalization",
    ),
    _pass(
        "products.multiply_early",
        "likewise; it finds the parts of a layer's input by the nodes that repeat them",
        at="Concat",
    ),
    _pass(
        "products.sum_heads",
        "before the next one, which moves the views that cut rows into heads",
        at="ReduceSum",
    ),
    _pass(
        "moves.hoist_reshapes",
        "before the patterns below, which match layers as MatMul and Add on the tensor's own axes",
    ),
    _pass(
        "moves.unflatten_softmax",
        "after it, which adds views, and before patterns with a Softmax of the tensor itself",
        at="Softmax LogSoftmax",
    ),
    _pass(
        "moves.transpose_rows",
        "after it, which exposes layers; before transposes are composed with those of heads",
        at="MatMul",
    ),
    _pass(
        "attention.flatten_batches",
        "before views are composed: those that it inserts before heads merge with others there",
        at="MatMul",
    ),
    _pass(
        "stacks.join_places",
        "before views are composed: it finds what steps cut by them",
        at="Gather Slice",
    ),
    _pass("stacks.join_steps", "likewise", at="Gather"),
    _pass(
        "elementwise.join_pairs",
        "before branches are stacked: what the nodes read is joined, and may be branches",
        at="Concat",
    ),
    _pass("stacks.join_products", "before attention, whose weights one product reads", at="Concat"),
    _pass("stacks.join_sums", "before products are stacked: more of them are joined", at="Concat"),
    _pass(
        "stacks.stack_products",
        "before views are composed: it finds what steps cut by them",
        at="Concat",
    ),
    _pass("stacks.stack_branches", "likewise", at="Concat"),
    _pass(
        "stacks.sum_branches",
        "before views are composed: it finds the channels of an image by them",
        at="ReduceSum ReduceMean",
    ),
    _pass(
        "images.weigh_pixels",
        "before views are composed: it finds images by them, and adds some",
        at="MatMul",
    ),
    _pass("images.mix_rows", "before views are composed: it adds some", at="MatMul"),
    _pass(
        "images.convolve_heads",
        "likewise, and before an Attention is found among its heads",
        at="Conv",
    ),
    _pass(
        "products.multiply_places",
        "after it, which cuts rows instead of heads; before views are composed",
        at="MatMul",
    ),
    _pass(
        "attention.fuse_rotary",
        "before views are composed: pairs may have an axis where heads have been transposed",
        at=_MOVERS,
    ),
    _pass("moves.compose_views", "before the patterns below, which find heads by one Transpose"),
    _pass(
        "attention.add_to_heads",
        "after it: heads are a Reshape and a Transpose of a layer's columns",
        at="MatMul",
    ),
    _pass(
        "attention.fuse_rotary",
        "before heads are joined, which may then be rotated in place",
        at=_MOVERS,
    ),
    _pass(
        "attention.fuse_attention", "before transposes move: it finds keys by them", at="Softmax"
    ),
    _pass(
        "attention.split_batches",
        "after it: what an Attention of one head reads and writes is reshaped",
        at="Attention",
    ),
    _pass(
        "attention.lift_windows", "after it, when masks are operands of Attention", at="Attention"
    ),
    _pass(
        "attention.latent_heads",
        "after it, when heads are operands of Attention, and before they are joined otherwise",
        at="Attention, RotaryEmbedding, Concat",
    ),
    _pass(
        "attention.order_heads",
        "in front of the next one, which knows heads whose elements are adjacent",
        at="Attention",
    ),
    _pass(
        "attention.join_heads",
        "after it: the transposes around an Attention no longer obstruct other patterns",
    ),
    _pass(
        "products.select_early",
        "after it, when queries are rows, and before q is computed together with k and v",
    ),
    _pass("attention.merge_products", "after it, when an Attention reads the products directly"),
    _pass("products.merge_sums", "after activations, which follow sums"),
    _pass(
        "products.split_products",
        "after it: the parts that an Attention reads stay together",
        at="Split Slice",
    ),
    _pass("products.order_sums", "after it, when layers are as they stay", at="Add"),
    _pass(
        "moves.cut_joined",
        "after rows are joined instead of their heads, which moves views out of the way",
        at="Concat",
    ),
    _pass(
        "images.join_pixels",
        "after it: boxes and classes are joined apart from each other",
        narrow=True,
    ),
    _pass(
        "images.join_samples",
        "before transposes move: it adds one that is free where channels are last in memory",
        at="Conv",
    ),
    _pass(
        "images.unfold_patches",
        "before transposes move: it is recognised by the one after a convolution",
        at="Conv",
    ),
    _pass(
        "images.flatten_pixels",
        "before transposes move: it adds one that is free where channels are last in memory",
        at="MatMul Gemm",
    ),
    _pass(
        "moves.compose_moves",
        "after attention, whose windows it moves, and before other transposes move",
        at=_MOVERS,
    ),
    _pass(
        "images.order_pixels",
        "before transposes move: it leaves one that is free where channels are last in memory",
        at="Transpose",
    ),
    _pass(
        "layouts.sink_transposes",
        "before folding into weights, which needs channels where convolutions have them",
    ),
    _pass("layouts.fold_pad", "Conv and AveragePool absorb the zeros of a preceding Pad"),
    _pass(
        "images.sink_concats",
        "before folding into weights, whose layers get their parts of what follows their Concat",
    ),
    _pass(
        "products.pad_rows",
        "after it, which adds constants to the parts of a Concat",
        at="Concat, MatMul, Transpose",
    ),
    _pass(
        "norms.fold_batchnorm",
        "Conv, ConvTranspose and Gemm absorb a following BatchNormalization",
        at="BatchNormalization",
    ),
    _pass(
        "norms.fold_prenorm",
        "behind it: what no layer in front takes over, those behind may",
        at="BatchNormalization",
    ),
    _pass(
        "norms.fold_affine",
        "after batch norms: scales and shifts of their results are folded into the same weights",
    ),
    _pass(
        "layouts.fold_pad",
        "again: more Slices follow a convolution where scales in between were folded",
    ),
    _pass(
        "images.lower_batchnorm",
        "behind them: what no layer takes over may join what a layer does to its results",
        at="BatchNormalization",
    ),
    _pass(
        "products.merge_branches",
        "after batch norms are folded, so that branches consist of weights only",
        at="Conv Gemm",
    ),
    _pass(
        "products.merge_sums",
        "again, of convolutions that have their batch norms",
        at="Conv, Add Sum",
    ),
    _pass(
        "images.pool_globally",
        "before what knows the mean of all pixels by its operator",
        at="AveragePool",
    ),
    _pass(
        "images.average_early",
        "when convolutions have their batch norms; the next pass merges layers of one pixel",
        at="Conv, GlobalAveragePool ReduceMean",
    ),
    _pass(
        "images.average_late",
        "likewise: no batch norm is left between a convolution and its activation",
        at="AveragePool, Conv",
    ),
    _pass(
        "products.merge_linear",
        "last of the arithmetic: it multiplies weights that are final",
        at="Conv Gemm",
    ),
    _pass(
        "images.convolve_early",
        "after it: a convolution has its batch norm, which a sum would separate from it",
        at="Conv",
    ),
    _pass(
        "products.fold_zero_weights",
        "after it, when the bias of a product with zeros has absorbed all linear nodes after it",
        at="Conv ConvTranspose Gemm MatMul",
    ),
    _pass(
        "products.drop_zero_units",
        "after whole products of zeros, which would be all units of a layer",
    ),
    _pass("images.unshuffle", "after them: a shuffle is a selection of channels", at=_MOVERS),
    _pass("images.select_by_weights", "after it, which writes selections", at="Conv, Gather Slice"),
    _pass(
        "images.convolve_rows",
        "after all passes of linear layers, just before channels are padded",
        at="MatMul, Transpose",
    ),
    _pass("products.merge_linear", "again, of layers that it made convolutions", at="Conv"),
    _pass(
        "images.pad_channels",
        "after all passes that change weights or remove zeros, while layers are convolutions",
    ),
    _pass("images.pad_joined", "likewise, of what is left", at="Concat MatMul"),
    _pass(
        "images.pad_products",
        "likewise, and of products that are moved next",
        run="pad_moved.run_products",
        at="MatMul, Pad Slice",
    ),
    _pass("images.join_whole", "after them: only parts of whole words stay in place", at="Concat"),
    _pass(
        "attention.pad_heads",
        "after the passes that find and join the linear layers around an Attention",
        narrow=True,
    ),
    _pass("images.lower_conv", "after all passes that match layers as convolutions", at="Conv"),
    _pass(
        "half.to_half",
        "after all passes that change weights, so that these are rounded once",
        narrow=True,
    ),
    _pass(
        "half.join_casts",
        "after it, which casts what is read in two types",
        at="Cast",
    ),
    _pass("tidying.remove_dead", "last, to drop constants and nodes that the others left unused"),
    _pass(
        "attention.cosine_heads",
        "after it: norms of heads, which are cast now, are read by nothing else",
        at="Attention, ReduceL2",
    ),
)

#: Passes that run again once a plan has integer shapes; none of them changes weights.
STATIC_PASSES: tuple[Pass, ...] = (
    _pass("tidying.fold_constants", "integer shapes make more of the shape arithmetic constant"),
    _pass(
        "control.inline_bodies",
        "conditions on shapes are known now, so that their control flow disappears",
        at="If FlexAttention",
    ),
    _pass("control.count_loops", "sizes are limits of counters", at="Loop"),
    _pass("control.sum_bags", "sizes determine how many bags there are", at="Loop"),
    _pass("control.repeat_rows", "and how many rows", at="ConcatFromSequence Expand"),
    _pass(
        "control.batch_scans",
        "sizes determine whether there is memory for all elements at once",
        at="Scan",
    ),
    _pass(
        "control.unpack_sequences",
        "sizes determine how many parts a tensor is split into",
        at="SplitToSequence SequenceEmpty SequenceConstruct",
    ),
    _pass("tidying.cut_top_k", "sizes determine how many elements are sorted", at="TopK"),
    _pass(
        "tidying.remove_identity", "a Reshape, Slice, Expand or Pad may turn out to change nothing"
    ),
    _pass(
        "moves.drop_overwritten",
        "sizes determine whether everything is overwritten",
        at="ScatterND",
    ),
    _pass("products.lower_einsum", "it needs the sizes of merged axes", at="Einsum"),
    _pass(
        "products.shift_rows",
        "again: indices are constant as soon as sizes are known",
        at="GatherElements, MatMul",
    ),
    _pass(
        "moves.lower_gather_elements",
        "sizes determine what is expanded",
        at="GatherElements ScatterElements",
    ),
    _pass("moves.lower_gather_nd", "sizes determine which rows are adjacent", at="Gather GatherND"),
    _pass(
        "products.fuse_substitution",
        "and which rows of a matrix are written",
        at="ScatterND ScatterElements",
    ),
    _pass(
        "norms.lower_norms",
        "sizes determine along which axes scales vary",
        at="LayerNormalization RMSNormalization",
    ),
    _pass(
        "moves.hoist_reshapes",
        "sizes determine which axes are rows",
        run="hoist_reshapes.run_bound",
    ),
    _pass(
        "moves.unflatten_softmax",
        "sizes determine whether a shape is kept",
        at="Softmax LogSoftmax",
    ),
    _pass(
        "moves.compose_views",
        "and which axes a Reshape merges or splits",
        run="compose_views.run_bound",
    ),
    _pass("attention.fuse_rotary", "it needs the number of positions", at=_MOVERS),
    _pass("attention.fuse_attention", "sizes determine how masks are broadcast", at="Softmax"),
    _pass("attention.split_batches", "and how many samples there are", at="Attention"),
    _pass("attention.lift_windows", "and which masks are windows", at="Attention"),
    _pass(
        "attention.order_heads",
        "and how many rows a Transpose moves",
        run="order_heads.run_bound",
        at="Attention",
    ),
    _pass(
        "attention.join_heads", "and how many heads a Reshape creates", run="join_heads.run_bound"
    ),
    _pass("products.merge_stacks", "after attention, which has heads that share keys", at="MatMul"),
    _pass("layouts.sink_expands", "after both, which know heads by what repeats them", at="Expand"),
    _pass(
        "products.weigh_terms", "after it: what heads share is not repeated any more", at="MatMul"
    ),
    _pass("images.unshuffle", "sizes determine which axes are split and merged", at=_MOVERS),
    _pass("moves.compose_moves", "sizes determine which rows are moved where", at=_MOVERS),
    _pass("moves.cut_splits", "after it, which moves what Splits cut and Concats join"),
    _pass(
        "images.lower_conv",
        "behind to_half, which converts layers",
        run="lower_conv.run_bound",
        at="Conv",
    ),
    _pass("images.sum_windows", "when it is known which windows are moved from where", at="MatMul"),
    _pass("layouts.sink_views", "last of the views, when layers and sums are as they stay"),
    _pass("layouts.join_chains", "behind it, which moves views for the sake of layers"),
    _pass(
        "elementwise.choose_parts",
        "behind them: the views in between are the shortest",
        at="Concat",
    ),
    _pass("images.pool_globally", "sizes determine whether a window is an image", at="AveragePool"),
    _pass("images.merge_convolutions", "sizes determine whether it pays", at="Conv"),
    _pass(
        "products.fold_zero_weights",
        "it needs the shape of the result",
        at="Conv ConvTranspose Gemm MatMul",
    ),
    _pass("tidying.merge_duplicates", "folded constants make more nodes equal"),
    _pass("half.repeat_chains", "after it, which would merge them again", at="Cast"),
    _pass("tidying.remove_dead", "at the end, as above"),
)
