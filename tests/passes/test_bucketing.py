"""Graphs in buckets give what onnxruntime gives for true sizes, whatever is in the padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.grown import Grown
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.options import Options
from tercet.runtime.passes.bucketing import Bucket, bucketed
from tercet.runtime.session.model import Model

ROOM = 16
FIRST = 3
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
#: What is fed behind the true end of an axis: large, but with a finite sum.
GARBAGE = 1e30


def model(text: str) -> ModelProto:
    return parse_model(HEAD + text)


#: One graph each, of an input x [2, n, 3] and i [2, n] unless it says otherwise.
GRAPHS = {
    "sums": "ReduceSum <keepdims = 0> (x, axis)",
    "sums of all": "ReduceSum <keepdims = 0> (x)",
    "means": "ReduceMean <keepdims = 0> (x, axis)",
    "means of all": "ReduceMean <keepdims = 0> (x)",
    "greatest": "ReduceMax (x, axis)",
    "least": "ReduceMin (x, axis)",
    "products": "ReduceProd (x, axis)",
    "norms": "ReduceL2 (x, axis)",
    "logarithms of sums": "ReduceLogSumExp (x, axis)",
    "softmax": "Softmax <axis = 1> (x)",
    "softmax of rows": "Softmax <axis = 2> (x)",
    "hardmax": "Hardmax <axis = 1> (x)",
    "first of the greatest": "ArgMax <axis = 1> (x)",
    "first of the least": "ArgMin <axis = 1> (x)",
    "running sums": "CumSum (x, one)",
    "running sums backwards": "CumSum <reverse = 1> (x, one)",
    "appended": "Concat <axis = 1> (x, tail)",
    "put in front": "Concat <axis = 1> (tail, x)",
    "joined": "Concat <axis = 1> (x, tail, x, tail)",
    "transposed": "Transpose <perm = [1, 0, 2]> (x)",
    "the last": "Slice (x, minus, far, axis)",
    "all but the first": "Slice (x, axis, far, axis)",
    "all but the last": "Slice (x, zero, minus, axis)",
    "the first two": "Slice (x, zero, two, axis)",
    "padded": "Pad (x, widths, fill)",
    "of one": "Gather <axis = 1> (x, last)",
}
MORE = {
    "products over positions": "t = Transpose <perm = [0, 2, 1]> (x)\n y = MatMul (t, x)",
    "products of positions": "t = Transpose <perm = [0, 2, 1]> (x)\n y = MatMul (x, t)",
    "products of bytes over positions": """q = QuantizeLinear (x, tenth, at)
        t = Transpose <perm = [0, 2, 1]> (q)
        p = QLinearMatMul (t, tenth, at, q, tenth, at, fill, at)
        y = DequantizeLinear (p, fill, at)""",
    "products of bytes of positions": """q = QuantizeLinear (x, tenth, at)
        t = Transpose <perm = [0, 2, 1]> (q)
        p = QLinearMatMul (q, tenth, at, t, tenth, at, fill, at)
        y = DequantizeLinear (p, fill, at)""",
    "bytes of rows as images": """q = QuantizeLinear (x, tenth, at)
        r = Reshape (q, rows)
        p = QLinearConv (r, tenth, at, kernel, tenth, at, tenth, at)
        b = DequantizeLinear (p, tenth, at)
        y = Squeeze (b, ends)""",
    "counted": """s = Shape <start = 1, end = 2> (x)
        f = Cast <to = 1> (s)
        y = Mul (x, f)""",
    "a table by positions": """s = Shape <start = 1, end = 2> (x)
        n = Squeeze (s)
        r = Range (nought, n, step)
        c = Gather (table, r)
        y = Add (x, c)""",
    "flat and back": """s = Constant <value_ints = [-1, 3]> ()
        f = Transpose <perm = [1, 0, 2]> (x)
        t = Reshape (f, s)
        h = Shape (f)
        y = Reshape (t, h)""",
    "merged behind another axis": "y = Reshape (x, minus)",
    "parted elsewhere": """t = Transpose <perm = [0, 2, 1]> (x)
        h = Constant <value_ints = [3, -1, 2]> ()
        y = Reshape (t, h)""",
    "broadcast": """h = Shape (x)
        y = Expand (row, h)""",
    "filled": """h = Shape (x)
        c = ConstantOfShape (h)
        y = Add (c, x)""",
    "triangles": """t = Transpose <perm = [0, 2, 1]> (x)
        m = MatMul (x, t)
        y = Trilu <upper = 0> (m)""",
    "the greatest three": """y, places = TopK <axis = 1> (x, three)""",
    "the rows behind a window": """s = Shape <start = 1, end = 2> (x)
        b = Sub (s, two)
        y = Slice (x, b, far, axis)""",
    "rows of a table from a place on": """s = Shape <start = 1, end = 2> (x)
        e = Add (s, two)
        y = Slice (table, s, e, zero)""",
    "the last rows of a table": """s = Shape <start = 1, end = 2> (x)
        b = Sub (fourteen, s)
        c = Slice (table, b, far, zero)
        y = Add (x, c)""",
    "what is left of a table": """s = Shape <start = 1, end = 2> (x)
        y = Slice (table, s, far, zero)""",
    "coordinates": """g = Constant <value_ints = [0, -1, 1, 1, 1, -3]> ()
        h = Constant <value_ints = [3, 2]> ()
        c = Reshape (g, h)
        y = GatherND (x, c)""",
    "coordinates of positions": """s = Shape <start = 1, end = 2> (x)
        n = Squeeze (s)
        r = Range (nought, n, step)
        c = Unsqueeze (r, axis)
        t = Transpose <perm = [1, 0, 2]> (x)
        y = GatherND (t, c)""",
    "coordinates behind positions": """s = Shape <start = 1, end = 2> (x)
        n = Squeeze (s)
        r = Range (nought, n, step)
        b = Sub (r, n)
        c = Unsqueeze (b, axis)
        t = Transpose <perm = [1, 0, 2]> (x)
        y = GatherND (t, c)""",
    "as many as are missing": """s = Shape <start = 1, end = 2> (x)
        b = Sub (fourteen, s)
        c = Slice (table, b, far, zero)
        d = Slice (table, zero, b, zero)
        a = ReduceSum <keepdims = 0> (d, zero)
        y = Add (c, a)""",
}
CONSTANTS = """<int64[1] axis = {1}, int64 one = {1}, int64[1] zero = {0}, int64[1] two = {2},
    int64[1] fourteen = {14}, int64[1] three = {3}, int64[1] minus = {-1},
    int64[1] far = {9223372036854775807},
    int64 last = {-1}, int64 nought = {0}, int64 step = {1}, float fill = {2.5},
    int64[6] widths = {0, 0, 0, 0, 2, 0}, float[1, 1, 3] row = {1.5, 2.5, 3.5},
    float[2, 2, 3] tail = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
    float tenth = {0.1}, uint8 at = {120}, int64[4] rows = {-1, 3, 1, 1},
    int64[2] ends = {2, 3}, uint8[1, 3, 1, 1] kernel = {7, 120, 255},
    float[14, 3] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
    21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41}>"""


def graph(name: str) -> ModelProto:
    body = MORE.get(name) or f"y = {GRAPHS[name]}"
    return model(f"g (float[2,n,3] x) => (y) {CONSTANTS} {{ {body} }}")


def bucket_of(proto: ModelProto, types: Mapping[str, TensorType]) -> Bucket:
    with tercet.load(proto) as loaded:
        return bucketed(specialise(loaded.graph, types), ROOM)


def run_padded(bucket: Bucket, feeds: Mapping[str, Array], count: int) -> dict[str, Array]:
    """Run a bucket on the reference, garbage behind the end of every axis that grows."""
    padded: dict[str, Array] = {bucket.count: np.array([count], np.int64)}
    for value in bucket.graph.inputs:
        if value.name in feeds:
            type_, data = value.tensor, feeds[value.name]
            fill = GARBAGE if type_.dtype.kind == "f" else 77
            padded[value.name] = np.full(type_.dims, fill, type_.dtype)
            padded[value.name][tuple(map(slice, data.shape))] = data
    with Model(bucket.graph, [NumpyBackend()], Options(), evaluate) as reference:
        found = reference.run(padded)
    cut = {}
    for name, type_ in bucket.outputs.items():
        sizes = (s.first + s.step * count if isinstance(s, Grown) else s for s in type_.shape or ())
        cut[name] = found[name][tuple(map(slice, sizes))]
    return cut


@pytest.mark.parametrize("name", [*GRAPHS, *MORE])
def test_padding_is_not_seen(name: str) -> None:
    proto = graph(name)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    grown = Grown(FIRST, 1, 10)
    bucket = bucket_of(proto, {"x": TensorType(np.dtype(np.float32), (2, grown, 3))})
    assert all(value.tensor.is_static for node in bucket.graph.nodes for value in node.outputs)
    for count in (0, 1, 6):
        rng = np.random.default_rng(count)
        feeds = {"x": rng.standard_normal((2, FIRST + count, 3)).astype(np.float32)}
        found = run_padded(bucket, feeds, count)
        wanted = session.run(None, feeds)
        for each, right in zip(found.values(), wanted, strict=False):
            np.testing.assert_allclose(each, np.asarray(right), rtol=2e-6, atol=2e-6)


#: What has no place in a bucket, and a part of the reason.
REFUSED = {
    "merged axes that both grow": (
        "t = Transpose <perm = [0, 2, 1]> (x)\n m = MatMul (x, t)\n y = Reshape (m, minus)",
        "is not known",
    ),
    "the last of equal ones": ("y = ArgMax <axis = 1, select_last_index = 1> (x)", "last of equal"),
    "places of non-zeros": ("y = NonZero (x)", "no rule keeps"),
    "an axis repeated": (
        "r = Constant <value_ints = [1, 2, 1]> ()\n y = Tile (x, r)",
        "repeats an axis",
    ),
    "numbers that are drawn by position": (
        "half = Constant <value_float = 0.5> ()\n on = Cast <to = 9> (half)\n"
        "y = Dropout <seed = 1> (x, half, on)",
        "random numbers",
    ),
    "a sequence": ("y = SequenceConstruct (x, x)", "sequence"),
    "mirrored": ('y = Pad <mode = "reflect"> (x, widths)', "pads the front"),
    "normalized over positions": (
        "t = Transpose <perm = [0, 2, 1]> (x)\n y = LpNormalization <axis = 2> (t)",
        "no rule keeps",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bucket_says_why(name: str) -> None:
    body, reason = REFUSED[name]
    proto = model(f"g (float[2,n,3] x) => (y) {CONSTANTS} {{ {body} }}")
    grown = Grown(FIRST, 1, ROOM - FIRST)
    with pytest.raises(tercet.UnsupportedError, match=reason):
        bucket_of(proto, {"x": TensorType(np.dtype(np.float32), (2, grown, 3))})


@pytest.mark.parametrize(("index", "least"), [(2, 0), (6, 4), (-3, 0), (-5, 2)])
@pytest.mark.parametrize("node", ["y = Gather <axis = 1> (x, i)", "y = GatherND (x, c)"])
def test_a_constant_index_needs_so_many_elements(node: str, index: int, least: int) -> None:
    proto = model(f"""g (float[2,n,3] x) => (y)
      <int64[1] i = {{{index}}}, int64[1,2] c = {{0, {index}}}> {{ {node} }}""")
    grown = Grown(FIRST, 1, 10)
    bucket = bucket_of(proto, {"x": TensorType(np.dtype(np.float32), (2, grown, 3))})
    assert bucket.least == least
    x = np.random.default_rng(0).standard_normal((2, FIRST + least, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = run_padded(bucket, {"x": x}, least).values()
    np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("index", [5, 6, 12, 15, -6, -7, -12, -16])
@pytest.mark.parametrize(
    "node",
    [
        "y = Gather <axis = 1> (x, i)",
        "z = Unsqueeze (i, two)\n y = GatherElements <axis = 1> (x, z)",
        "z = Concat <axis = 0> (zero, i)\n y = GatherND (x, z)",
    ],
)
def test_an_index_beyond_the_true_size_is_beyond_the_bucket(node: str, index: int) -> None:
    """What is in the padding is never read."""
    constants = "<int64[2] two = {0, 1}, int64[1] zero = {0}>"
    proto = model(f"g (float[2,n,3] x, int64[1] i) => (y) {constants} {{ {node} }}")
    types = {
        "x": TensorType(np.dtype(np.float32), (2, Grown(FIRST, 1, 10), 3)),
        "i": TensorType(np.dtype(np.int64), (1,)),
    }
    bucket, x = bucket_of(proto, types), np.ones((2, FIRST + 2, 3), np.float32)
    run_padded(bucket, {"x": x, "i": np.array([4])}, 2)
    run_padded(bucket, {"x": x, "i": np.array([-5])}, 2)
    with pytest.raises(tercet.DeviceError, match="outside of an axis"):
        run_padded(bucket, {"x": x, "i": np.array([index])}, 2)


@pytest.mark.parametrize("index", [7, 15, -8, 77])
@pytest.mark.parametrize(
    "node",
    [
        "y = Gather <axis = 1> (x, i)",
        "z = Unsqueeze (i, two)\n y = GatherElements <axis = 1> (x, z)",
        "z = Unsqueeze (i, one)\n w = Transpose <perm = [1, 0, 2]> (x)\n y = GatherND (w, z)",
    ],
)
def test_indices_that_grow_are_checked_up_to_their_end(node: str, index: int) -> None:
    """Those in the padding may be anything."""
    constants = "<int64[2] two = {0, 2}, int64[1] one = {1}>"
    proto = model(f"g (float[2,n,3] x, int64[n] i) => (y) {constants} {{ {node} }}")
    grown = Grown(FIRST, 1, 10)
    types = {
        "x": TensorType(np.dtype(np.float32), (2, grown, 3)),
        "i": TensorType(np.dtype(np.int64), (grown,)),
    }
    bucket = bucket_of(proto, types)
    x = np.random.default_rng(0).standard_normal((2, FIRST + 4, 3)).astype(np.float32)
    places = np.array([6, 0, -7, -1, 3, 3, 2])
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = run_padded(bucket, {"x": x, "i": places}, 4).values()
    np.testing.assert_array_equal(found, session.run(None, {"x": x, "i": places})[0])
    places[2] = index
    with pytest.raises(tercet.DeviceError, match="outside of an axis"):
        run_padded(bucket, {"x": x, "i": places}, 4)


RANGES = """s = Shape <start = 1, end = 2> (x)  t = Squeeze (s)  r = Range (from, t, step)
    z = Unsqueeze (r, one)  y = Gather <axis = %s> (%s, z)"""


@pytest.mark.parametrize(
    ("start", "axis", "of", "room"), [(0, 1, "x", 13), (2, 1, "x", 13), (0, 0, "table", 8)]
)
def test_numbers_of_places_need_no_check(start: int, axis: int, of: str, room: int) -> None:
    """Positions end with the axis, and those of a table where that ends."""
    constants = f"<int64 from = {{{start}}}, int64 step = {{1}}, int64[1] one = {{1}}>"
    proto = model(f"g (float[2,n,3] x) => (y) {constants} {{ {RANGES % (axis, of)} }}")
    table = np.random.default_rng(0).standard_normal((8 + FIRST, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(table, "table"))
    types = {"x": TensorType(np.dtype(np.float32), (2, Grown(FIRST, 1, 10), 3))}
    bucket = bucket_of(proto, types)
    assert bucket.most == room
    assert not any(node.kind == "Where" for node in bucket.graph.nodes)
    x = np.random.default_rng(0).standard_normal((2, FIRST + 4, 3)).astype(np.float32)
    (found,) = run_padded(bucket, {"x": x}, 4).values()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])


def test_sizes_that_grow_by_several_have_multiples_of_room() -> None:
    proto = graph("sums")
    bucket = bucket_of(proto, {"x": TensorType(np.dtype(np.float32), (2, Grown(5, 2), 3))})
    assert bucket.graph.inputs[0].tensor.dims == (2, 2 * ROOM, 3)
    assert bucket.most == ROOM - 3


#: Steps of attention over a past [1, 2, p, 4]: what is declared before them, and the nodes.
ATTENTIONS = {
    "a past": ("", "y, pk, pv = Attention (q, k, v, , past_k, past_v)"),
    "a causal past": ("", "y, pk, pv = Attention <is_causal = 1> (q, k, v, , past_k, past_v)"),
    "joined heads": (
        "",
        """t = Transpose <perm = [0, 2, 1, 3]> (q)
        r = Reshape (t, rows)
        y, pk, pv = Attention <q_num_heads = 4, kv_num_heads = 2>
            (r, k3, v3, , past_k, past_v)""",
    ),
    "keys that are joined": (
        "",
        """pk = Concat <axis = 2> (past_k, k)
        pv = Concat <axis = 2> (past_v, v)
        y = Attention (q, pk, pv)""",
    ),
    "a mask that ends before the keys do": (
        "float[1, 1, 1, p] mask,",
        "y, pk, pv = Attention (q, k, v, mask, past_k, past_v)",
    ),
    "choices that end before the keys do": (
        "float[1, 1, 1, p] mask,",
        """none = Constant <value_float = 0.0> ()
        seen = Greater (mask, none)
        y, pk, pv = Attention (q, k, v, seen, past_k, past_v)""",
    ),
    "a mask": (
        "float[1, 1, 1, t] mask,",
        "y, pk, pv = Attention (q, k, v, mask, past_k, past_v)",
    ),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_over_a_past_that_grows(name: str) -> None:
    inputs, nodes = ATTENTIONS[name]
    new, queries = "float[1, 2, 3, 4]", "float[1, 4, 3, 4]"
    past = "float[1, 2, p, 4]"
    text = f"""g ({inputs} {queries} q, {new} k, {new} v, {past} past_k, {past} past_v)
        => (y, pk, pv) <int64[3] rows = {{1, 3, 16}}, int64[3] grouped = {{1, 3, 8}}> {{
        kt = Transpose <perm = [0, 2, 1, 3]> (k)
        vt = Transpose <perm = [0, 2, 1, 3]> (v)
        k3 = Reshape (kt, grouped)
        v3 = Reshape (vt, grouped)
        {nodes} }}"""
    proto = parse_model(HEAD.replace("21", "24") + text)
    with tercet.load(proto) as plain:
        shapes = {info.name: info.shape or () for info in plain.inputs}
        grown = {"p": Grown(FIRST, 1, ROOM - 6), "t": Grown(FIRST + 3, 1, ROOM - 6)}
        types = {
            n: TensorType(np.dtype(np.float32), tuple(grown.get(str(d), d) for d in dims))
            for n, dims in shapes.items()
        }
        bucket = bucket_of(proto, types)
        for count in (0, 5):
            rng = np.random.default_rng(count)
            sizes = {"p": FIRST + count, "t": FIRST + 3 + count}
            feeds = {
                n: rng.standard_normal([sizes.get(str(d)) or int(str(d)) for d in dims]).astype(
                    "f4"
                )
                for n, dims in shapes.items()
            }
            wanted = plain.run(feeds)
            for each, found in run_padded(bucket, feeds, count).items():
                np.testing.assert_allclose(found, wanted[each], rtol=2e-6, atol=2e-6)


def test_a_graph_without_nodes() -> None:
    proto = model("g (float[2,n,3] x) => (y) { y = Identity (x) }")
    bucket = bucket_of(proto, {"x": TensorType(np.dtype(np.float32), (2, Grown(FIRST, 1), 3))})
    data = np.ones((2, FIRST + 2, 3), np.float32)
    np.testing.assert_array_equal(run_padded(bucket, {"x": data}, 2)["y"], data)
