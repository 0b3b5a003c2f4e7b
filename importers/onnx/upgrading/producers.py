"""What nodes mean in the files of producers that compute otherwise than ONNX's own cases say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....runtime.ir.constraints import takes
from ....runtime.ir.dtypes import INTEGERS, TO_ONNX, float32, float64, int64
from ....runtime.ir.types import TensorType
from ....runtime.ops.attention import Attention
from ....runtime.ops.movement import that_add_nothing
from ..source.raw import RawNode
from .rewrite import NodeSite, dtype_of, integers, made, rank_of, without

Meaning = Callable[[RawNode, NodeSite], Sequence[RawNode]]
#: By the first word of the file's producer, the domain and the operator; nodes of the newest opset.
#: What all producers mean is that of `ANY`.
MEANINGS: dict[tuple[str, str, str], Meaning] = {}

ANY = "*"
#: onnxruntime's quantizers and optimizer, which mean what onnxruntime computes.
ONNXRUNTIME = ("onnx.quantize", "onnxruntime.transformers")
#: The rank of signals without an axis for their parts.
_REAL = 2
#: The rank of columns.
_COLUMN = 2
#: The place of an Attention's mask among its inputs.
_MASK = 3


def written_by(op: str, *producers: str, domain: str = "") -> Callable[[Meaning], Meaning]:
    """Register what nodes of an operator mean in files of some producers."""

    def declare(function: Meaning) -> Meaning:
        for producer in producers:
            MEANINGS[producer, domain, op] = function
        return function

    return declare


def meant(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Return what stands for a node of the newest opset in a file of its producer."""
    producers = (site.producer.partition(" ")[0], ANY)
    found = (MEANINGS.get((producer, node.domain, node.op)) for producer in producers)
    meaning = next((each for each in found if each is not None), None)
    return [node] if meaning is None else meaning(node, site)


@written_by("STFT", ANY)
def real_signals(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Signals [batch, length] are real: PyTorch writes them so, and onnxruntime reads them."""
    if not node.inputs or rank_of(node.inputs[0], site) != _REAL:
        return [node]
    last, signals = site.constant(np.array([-1], int64), "last"), site.fresh("signals")
    unsqueezed = made("Unsqueeze", (node.inputs[0], last), signals)
    return [unsqueezed, node.change(inputs=(signals, *node.inputs[1:]))]


@written_by("Attention", ANY)
def added_masks(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Integers in a mask are added to scores like floats: no kernel has to read them.

    Files of encoders give their attention_mask of 0 and 1 as it is.
    """
    query, _, _, mask = (*node.inputs, *("",) * 4)[:4]
    given = dtype_of(mask, site) if mask else None
    if given is None or given not in INTEGERS or not takes(Attention, given, _MASK):
        return [node]
    wide = float64 if dtype_of(query, site) == float64 else float32
    cast = site.fresh(f"{mask}/added")
    inputs = (*node.inputs[:3], cast, *node.inputs[4:])
    return [made("Cast", (mask,), cast, to=TO_ONNX[wide]), node.change(inputs=inputs)]


@written_by("Concat", ANY)
def empty_operands(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Tensors without elements are left out if their other sizes are none of the result.

    PyTorch's exporters write such nodes (masks of an Emformer); onnxruntime does not look at these
    sizes when it runs a node, but only if it knows them before.
    """
    types = [site.type_of(name) if name else None for name in node.inputs]
    shapes = [each.shape if isinstance(each, TensorType) else None for each in types]
    axis = node.attributes.get("axis")
    if not isinstance(axis, int):
        return [node]
    nothing = that_add_nothing(shapes, axis)
    kept = [name for name, is_nothing in zip(node.inputs, nothing, strict=True) if not is_nothing]
    return [node.change(inputs=tuple(kept))]


@written_by("Transpose", "pytorch")
def axes_from_the_end(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Negative axes count from the end, as in PyTorch.

    Its older exporter writes those of moveaxis and of scripted calls of permute as they are.
    """
    perm = integers(node, "perm", site)
    if perm is None or not (perm < 0).any():
        return [node]
    return [without(node, perm=tuple(np.where(perm < 0, perm + perm.size, perm).tolist()))]


@written_by("ConvTranspose", "MindSpore")
def whole_shapes(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """`output_shape` begins with batch and channels, and odd paddings have more at the end.

    MindSpore writes SAME_LOWER for that, as the first versions of the operator could be read.
    """
    shape, kernel = (integers(node, name, site) for name in ("output_shape", "kernel_shape"))
    if shape is None or kernel is None or shape.size != kernel.size + 2:
        return [node]
    changed: dict[str, object] = {"output_shape": tuple(shape[2:].tolist())}
    if node.attributes.get("auto_pad") == "SAME_LOWER":
        changed["auto_pad"] = "SAME_UPPER"
    return [without(node, **changed)]


@written_by("Resize", "caffe")
def columns_as_vectors(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Columns are vectors: caffe2onnx writes scales [n, 1], and onnxruntime reads them."""
    nodes: list[RawNode] = []
    inputs = list(node.inputs)
    flat = site.constant(np.array([-1], int64), "flat")
    for i, name in enumerate(inputs[1:], 1):
        if name and rank_of(name, site) == _COLUMN:
            inputs[i] = site.fresh(f"{name}/vector")
            nodes.append(made("Reshape", (name, flat), inputs[i]))
    return [*nodes, node.change(inputs=tuple(inputs))]


@written_by("Resize", "pytorch", *ONNXRUNTIME)
def whole_lengths(node: RawNode, site: NodeSite) -> Sequence[RawNode]:
    """Corners are aligned over the size of the result: 3 of 2 * 1.7, where ONNX's cases take 3.4.

    PyTorch's exporters write a factor as it is; PyTorch itself and onnxruntime take the size.
    Simplifiers and converters keep the name of the producer.
    """
    x, roi, scales = (*node.inputs, "", "", "")[:3]
    is_aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners"
    if not (x and scales and is_aligned):
        return [node]
    type_ = site.type_of(scales)
    known = type_.known if isinstance(type_, TensorType) else None
    if known is not None and bool(np.all(known == np.floor(known))):
        return [node]
    names = ("shape", "resized", "lengths", "products", "floors", "sizes")
    shape, some, lengths, products, floors, sizes = map(site.fresh, names)
    nodes = [made("Shape", (x,), shape)]
    if (axes := node.attributes.get("axes")) is not None:
        places = site.constant(np.array(axes, int64), "axes")
        nodes.append(made("Gather", (shape, places), some))
        shape = some
    return [
        *nodes,
        made("Cast", (shape,), lengths, to=TO_ONNX[float32]),
        made("Mul", (lengths, scales), products),
        made("Floor", (products,), floors),
        made("Cast", (floors,), sizes, to=TO_ONNX[int64]),
        without(node, "keep_aspect_ratio_policy").change(inputs=(x, roi, "", sizes)),
    ]
