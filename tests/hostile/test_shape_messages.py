"""Every rejection of shapes names the node, its tensors, and both of the shapes that clash."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import tercet
from tercet.runtime.errors import DeviceError, ModelError

#: What is wrong: the inputs, the node, and the reason that `load` gives.
AT_LOAD: dict[str, tuple[str, str, str]] = {
    "float16 in part": (
        "float16[2] x, float[2] w",
        "y = Mul(x, w)",
        "b is float32, where the inputs before it are float16: the dtypes must agree (a conversion "
        "to float16 that leaves Casts to float32 as they are writes such files; that of "
        "onnxruntime.transformers.float16 does not)",
    ),
    "float16 where ONNX has none": (
        "float16[1,1,2,2] x, float16[4] s",
        "y = Resize(x, , s)",
        "scales of Resize is float16; ONNX allows float32 (convert to float16 with 'Resize' in "
        "op_block_list, which keeps it in float32, and without disable_shape_infer)",
    ),
    "float64 where ONNX has none": (
        "double[4] x",
        "y, s, z = DynamicQuantizeLinear(x)",
        "x of DynamicQuantizeLinear is float64; ONNX allows float32 (put a Cast to float32 in "
        "front of it)",
    ),
    "complex numbers of a framework": (
        "complex64[2,2] x",
        "y = Mul(x, x)",
        "a of Mul is complex64; ONNX allows complex numbers only as pairs of floats, in a last "
        "axis of size 2: write the layer with real and imaginary parts, or with STFT or DFT",
    ),
    "Conv channels": (
        "float[1,3,8,8] x, float[4,2,3,3] w",
        "y = Conv(x, w)",
        "channels of x float32[1,3,8,8] and of weights float32[4,2,3,3] with group=1 must agree: "
        "3 against 2",
    ),
    "Conv ranks": (
        "float[1,3,8] x, float[4,3,3,3] w",
        "y = Conv(x, w)",
        "x float32[1,3,8] and weights float32[4,3,3,3] must be of the same rank",
    ),
    "Conv without spatial axes": (
        "float[1,3] x, float[4,3] w",
        "y = Conv(x, w)",
        "x float32[1,3] and weights float32[4,3] have no spatial axis; 3 or more axes are needed",
    ),
    "Conv groups": (
        "float[1,6,8,8] x, float[4,2,3,3] w",
        "y = Conv <group = 3> (x, w)",
        "filters by group: 3 does not divide 4",
    ),
    "Conv bias": (
        "float[1,3,8,8] x, float[4,3,3,3] w, float[3] b",
        "y = Conv(x, w, b)",
        "b float32[3] must have 4 elements",
    ),
    "Conv kernel_shape": (
        "float[1,3,8,8] x, float[4,3,3,3] w",
        "y = Conv <kernel_shape = [5, 5]> (x, w)",
        "kernel_shape=(5, 5) and the weights' [3,3] must agree: 5 against 3",
    ),
    "Conv window": (
        "float[1,3,2,2] x, float[4,3,3,3] w",
        "y = Conv(x, w)",
        "a window of 3 does not fit into 2 elements padded by 0 and 0",
    ),
    "Conv pads": (
        "float[1,3,8,8] x, float[4,3,3,3] w",
        "y = Conv <pads = [1, 1]> (x, w)",
        "pads=(1, 1) has 2 elements; 4 are needed",
    ),
    "GlobalMaxPool of nothing": (
        "float[1,3,0,8] x",
        "y = GlobalMaxPool(x)",
        "a spatial axis of 0 elements",
    ),
    "GridSample of nothing": (
        "float[1,3,8,0] x, float[1,2,2,2] g",
        "y = GridSample(x, g)",
        "a spatial axis of 0 elements",
    ),
    "RoiAlign of nothing": (
        "float[1,3,0,8] x, float[2,4] r, int64[2] i",
        "y = RoiAlign(x, r, i)",
        "a spatial axis of 0 elements",
    ),
    "ConvTranspose channels": (
        "float[1,3,8,8] x, float[4,2,3,3] w",
        "y = ConvTranspose(x, w)",
        "channels of x float32[1,3,8,8] and of weights float32[4,2,3,3] must agree: 3 against 4",
    ),
    "Gemm inner": (
        "float[2,3] a, float[3,5] b",
        "y = Gemm <transB = 1> (a, b)",
        "inner sizes of a float32[2,3] and b float32[3,5] must agree: 3 against 5",
    ),
    "Gemm rank": (
        "float[2,3,4] a, float[4,5] b",
        "y = Gemm(a, b)",
        "a must be of rank 2, not float32[2,3,4]",
    ),
    "Gemm addend": (
        "float[2,3] a, float[3,5] b, float[4] c",
        "y = Gemm(a, b, c)",
        "c float32[4] does not broadcast to [2,5]",
    ),
    "MatMul inner": (
        "float[2,3] a, float[4,5] b",
        "y = MatMul(a, b)",
        "inner sizes of float32[2,3] and float32[4,5] must agree: 3 against 4",
    ),
    "MatMul stacks": (
        "float[2,3,4] a, float[3,4,5] b",
        "y = MatMul(a, b)",
        "[2] and [3] do not broadcast",
    ),
    "MatMul scalar": (
        "float[2,3] a, float b",
        "y = MatMul(a, b)",
        "b is a scalar; a matrix product needs an axis to sum over",
    ),
    "BatchNormalization channels": (
        "float[1,3,8,8] x, float[4] s, float[3] b, float[3] m, float[3] v",
        "y = BatchNormalization(x, s, b, m, v)",
        "scale float32[4] must have 3 elements",
    ),
    "BatchNormalization rank": (
        "float[1,3,8,8] x, float[3] s, float[3] b, float[3] m, float[3,1] v",
        "y = BatchNormalization(x, s, b, m, v)",
        "input_var must be of rank 1, not float32[3,1]",
    ),
    "LSTM input size": (
        "float[5,2,4] x, float[1,24,3] w, float[1,24,6] r",
        "y = LSTM <hidden_size = 6> (x, w, r)",
        "input sizes of x float32[5,2,4] and w float32[1,24,3] must agree: 4 against 3",
    ),
    "LSTM gates": (
        "float[5,2,4] x, float[1,24,4] w, float[1,20,6] r",
        "y = LSTM <hidden_size = 6> (x, w, r)",
        "second axis of r float32[1,20,6] by 4 and the hidden size must agree: 5 against 6",
    ),
    "LSTM hidden_size": (
        "float[5,2,4] x, float[1,24,4] w, float[1,24,6] r",
        "y = LSTM <hidden_size = 7> (x, w, r)",
        "hidden_size and last axis of r float32[1,24,6] must agree: 7 against 6",
    ),
    "LSTM directions": (
        "float[5,2,4] x, float[2,24,4] w, float[2,24,6] r",
        "y = LSTM <hidden_size = 6> (x, w, r)",
        "first axis of w float32[2,24,4] and number of directions must agree: 2 against 1",
    ),
    "LSTM rank": (
        "float[5,4] x, float[1,24,4] w, float[1,24,6] r",
        "y = LSTM <hidden_size = 6> (x, w, r)",
        "x must be of rank 3, not float32[5,4]",
    ),
    "LSTM state": (
        "float[5,2,4] x, float[1,24,4] w, float[1,24,6] r, float[1,3,6] h",
        "y = LSTM <hidden_size = 6> (x, w, r, , , h)",
        "initial_h float32[1,3,6] and the state [1,2,6] must agree: 3 against 2",
    ),
    "GRU lengths": (
        "float[5,2,4] x, float[1,18,4] w, float[1,18,6] r, int32[3] n",
        "y = GRU <hidden_size = 6> (x, w, r, , n)",
        "sequence_lens int32[3] must have 2 elements",
    ),
    "RNN hidden_size": (
        "float[5,2,4] x, float[1,6,4] w, float[1,6,5] r",
        "y = RNN <hidden_size = 6> (x, w, r)",
        "hidden_size and last axis of r float32[1,6,5] must agree: 6 against 5",
    ),
    "Concat sizes": (
        "float[2,3] a, float[4,3] b",
        "y = Concat <axis = 1> (a, b)",
        "axis 0 of [2,3] and [4,3] must agree: 2 against 4",
    ),
    "Concat ranks": (
        "float[2,3] a, float[2,3,1] b",
        "y = Concat <axis = 1> (a, b)",
        "[2,3] and [2,3,1] must have the same rank to be concatenated",
    ),
    "Concat axis": (
        "float[2,3] a, float[2,3] b",
        "y = Concat <axis = 2> (a, b)",
        "axis=2 is out of range for a tensor of rank 2",
    ),
    "Split sizes": (
        "float[2,6] x",
        "s = Constant <value_ints = [2, 3]> () y, z = Split <axis = 1> (x, s)",
        "the sum of split=[2,3] and axis 1 must agree: 5 against 6",
    ),
    "Split parts": (
        "float[2,2] x",
        "y, z, u, v = Split <axis = 1, num_outputs = 4> (x)",
        "axis of size 2 cannot be split into 4 parts [1, 1, 1, -1]",
    ),
    "Reshape elements": (
        "float[2,6] x",
        "s = Constant <value_ints = [5, 3]> () y = Reshape(x, s)",
        "[2,6] cannot take the shape [5,3]: 12 elements against 15 where they differ",
    ),
    "Reshape open axis": (
        "float[2,6] x",
        "s = Constant <value_ints = [5, -1]> () y = Reshape(x, s)",
        "[2,6] cannot take the shape [5,?]: no size fits the open axis",
    ),
    "Reshape copies": (
        "float[2,6] x",
        "s = Constant <value_ints = [2, 6, 0]> () y = Reshape(x, s)",
        "shape=[2,6,0] copies an axis that the data lacks",
    ),
    "Gather axis": (
        "float[2,6] x, int64[3] i",
        "y = Gather <axis = 2> (x, i)",
        "axis=2 is out of range for a tensor of rank 2",
    ),
    "Gather indices": (
        "float[2,6] x",
        "i = Constant <value_ints = [1, 7]> () y = Gather <axis = 1> (x, i)",
        "indices from 1 to 7 point outside of [6]",
    ),
    "Gather elements": (
        "float[2,6] x, int64[3,2] i",
        "y = GatherElements <axis = 1> (x, i)",
        "indices is int64[3,2]; axis 0 of float32[2,6] has only 2 elements",
    ),
    "Scatter elements": (
        "float[2,6] x, int64[2,7] i, float[2,7] u",
        "y = ScatterElements (x, i, u)",
        "indices is int64[2,7]; axis 1 of float32[2,6] has only 6 elements",
    ),
    "CumSum": (
        "float x, int64 axis",
        "y = CumSum(x, axis)",
        "x is float32[]; expected one axis or more",
    ),
    "Expand": (
        "float[2,6] x",
        "s = Constant <value_ints = [3, 6]> () y = Expand(x, s)",
        "[2,6] and [3,6] do not broadcast",
    ),
    "Pad widths": (
        "float[2,6] x",
        "p = Constant <value_ints = [1, 1]> () y = Pad(x, p)",
        "2 pads for 2 axes; expected two per axis",
    ),
    "Pad cuts": (
        "float[2,6] x",
        "p = Constant <value_ints = [0, -4, 0, -4]> () y = Pad(x, p)",
        "pads=[0,-4,0,-4] leave nothing of [2,6]",
    ),
    "Pad without amounts": (
        "float[1,1,2,4] x",
        'n = Constant <value_ints: ints = []> () y = Pad <mode = "reflect"> (x, n)',
        "0 pads for 4 axes; expected two per axis",
    ),
    "Pad with two numbers": (
        "float[4] x, int64[2] n, float[2] c",
        "y = Pad (x, n, c)",
        "constant_value is float32[2]; expected one element",
    ),
    "Squeeze sizes": (
        "float[2,6] x",
        "a = Constant <value_ints = [1]> () y = Squeeze(x, a)",
        "axis 1 of float32[2,6] has size 6; only 1 can be squeezed (PyTorch's squeeze leaves such "
        "an axis, and its exporter writes a Squeeze all the same: export the module without that "
        "call)",
    ),
    "Squeeze axes": (
        "float[2,1,6] x, int64[2] a",
        "y = Squeeze(x, a)",
        "2 axes of float32[2,1,6] are squeezed; 1 may have size 1",
    ),
    "Slice axes": (
        "float[2,6] x",
        "s = Constant <value_ints = [0]> () a = Constant <value_ints = [2]> () "
        "y = Slice(x, s, a, a)",
        "axes=2 is out of range for a tensor of rank 2",
    ),
    "Slice lengths": (
        "float[2,6] x",
        "s = Constant <value_ints = [0, 0]> () e = Constant <value_ints = [1]> () "
        "y = Slice(x, s, e)",
        "starts, ends, axes and steps have different lengths",
    ),
    "Resize scales": (
        "float[1,1,4,4] x",
        "s = Constant <value_floats = [2.0, 2.0]> () y = Resize(x, , s)",
        "scales float32[2] must have 4 elements",
    ),
    "Resize of no elements": (
        "float[1,3,0,8] x",
        "s = Constant <value_ints = [1, 3, 4, 8]> () y = Resize(x, , , s)",
        "sizes=(1, 3, 4, 8) of axes (1, 3, 0, 8); no factor makes 4 of 0",
    ),
    "Resize sizes": (
        "float[1,1,4,4] x",
        "s = Constant <value_ints = [8, 8]> () y = Resize(x, , , s)",
        "sizes int64[2] must have 4 elements",
    ),
}


def model_of(inputs: str, body: str) -> ModelProto:
    """Return a model of some nodes, the last of which is called `culprit`."""
    results = body.rpartition("() ")[2].split(" = ")[0].split(", ")
    outputs = ", ".join(f"float {name}" for name in results)
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    model = parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {body} }}")
    for output in model.graph.output:
        output.ClearField("type")
    model.graph.node[-1].name = "culprit"
    return model


@pytest.mark.parametrize("what", AT_LOAD)
def test_rejections_at_load(what: str) -> None:
    inputs, body, reason = AT_LOAD[what]
    model = model_of(inputs, body)
    node = model.graph.node[-1]
    with pytest.raises(ModelError) as caught:
        tercet.load(model)
    message = str(caught.value)
    assert message.startswith(f"node 'culprit' ({node.op_type}): {reason}; inputs: "), message
    shown = message.partition("; inputs: ")[2]
    for declared in model.graph.input:
        if declared.name in node.input:
            sizes = ",".join(str(d.dim_value) for d in declared.type.tensor_type.shape.dim)
            assert re.search(rf"\b{declared.name}: \w+\[{sizes}\]", shown), message


def test_sizes_that_clash_only_in_a_run() -> None:
    model = model_of("float[n,c] a, float[d,m] b", "y = MatMul(a, b)")
    reason = r"node 'culprit' \(MatMul\): inner sizes of float32\[2,3\] and float32\[4,5\]"
    with tercet.load(model) as loaded, pytest.raises(ModelError, match=reason):
        loaded.run({"a": np.ones((2, 3), np.float32), "b": np.ones((4, 5), np.float32)})


#: Inputs whose elements are wrong: the inputs, the node, what is fed for `i`, and the reason.
IN_A_RUN: dict[str, tuple[str, str, list[int], str]] = {
    "Gather": ("float[2,6] x, int64[2] i", "y = Gather <axis = 1> (x, i)", [1, 7], "axis of 6"),
    "Expand": ("float[1,6] x, int64[2] i", "y = Expand(x, i)", [3, 5], "[1,6] and [3,5] do not"),
    "Reshape": ("float[2,6] x, int64[2] i", "y = Reshape(x, i)", [5, 3], "12 elements against 15"),
    "Pad": ("float[2,6] x, int64[4] i", "y = Pad(x, i)", [0, -4, 0, -4], "leave nothing of [2,6]"),
    "Split": ("float[2,6] x, int64[2] i", "y, z = Split(x, i)", [2, 1], "split=[2,1] and axis 0"),
    "Tile": ("float[2,6] x, int64[2] i", "y = Tile(x, i)", [1, -2], "impossible size -2"),
    "Expand of full axes": (
        "float[2,6] x, int64[2] i",
        "y = Expand(x, i)",
        [3, 6],
        "[2,6] and [3,6]",
    ),
    "Compress": (
        "float[2,6] x, int64[3] i",
        "c = Cast <to = 9> (i) unread = Constant <value_int = 0> () y = Compress <axis = 0> (x, c)",
        [0, 1, 1],
        "places of the condition run from 1 to 2, outside of an axis of 2 elements",
    ),
    "ReverseSequence": (
        "float[2,3] x, int64[2] i",
        "y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, i)",
        [1, 9],
        "lengths run from 1 to 9, outside of 0 to 3",
    ),
}


@pytest.mark.parametrize("what", IN_A_RUN)
def test_rejections_in_a_run(what: str) -> None:
    inputs, body, elements, reason = IN_A_RUN[what]
    model = model_of(inputs, body)
    x = np.ones([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], np.float32)
    with tercet.load(model) as loaded, pytest.raises((ModelError, DeviceError)) as caught:
        loaded.run({"x": x, "i": np.array(elements)})
    assert f"'culprit' ({what.partition(' ')[0]})" in str(caught.value)
    assert reason in str(caught.value)


def of_rows(size: str | int | None) -> ModelProto:
    """A sum of [size,4] and [3,4]."""
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"], name="sum")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]))


SIZES = r"node 'sum' \(Add\): .*do not broadcast.*leaves sizes open: 'x' is float32\[2,4\]"


@pytest.mark.parametrize("size", ["n", None])
def test_sizes_that_a_model_leaves_open_are_the_inputs_fault(size: str | None) -> None:
    """The model runs with other sizes; without any that is open, the model is wrong."""
    with tercet.load(of_rows(size)) as loaded:
        assert loaded.run({"x": np.ones((1, 4), np.float32)})["y"].shape == (3, 4)
        with pytest.raises(tercet.InputError, match=SIZES) as caught:
            loaded.run({"x": np.ones((2, 4), np.float32)})
    assert (caught.value.exit_code, isinstance(caught.value, ModelError)) == (2, True)


#: What binds sizes besides a run.
BINDING: dict[str, Callable[[ModelProto, Path], object]] = {
    "layers": lambda m, out: tercet.compare_layers(m, ["numpy", "numpy"], dims={"n": 2}),
    "layers of the file": lambda m, out: tercet.compare_layers(
        m, ["numpy", "numpy"], dims={"n": 2}, optimise=False
    ),
    "bisect": lambda m, out: tercet.bisect(m, ["numpy"], {"x": np.ones((2, 4), np.float32)}),
    "inspect": lambda m, out: tercet.inspect(m, shapes={"x": (2, 4)}),
    "export": lambda m, out: tercet.export(m, out / "bound.onnx", dims={"n": 2}),
    "simplify": lambda m, out: tercet.simplify(m, out / "bound.onnx", dims={"n": 2}),
}


@pytest.mark.parametrize("command", BINDING)
def test_commands_blame_inputs_as_runs_do(command: str, tmp_path: Path) -> None:
    with pytest.raises(tercet.InputError, match=SIZES) as caught:
        BINDING[command](of_rows("n"), tmp_path)
    assert (caught.value.exit_code, isinstance(caught.value, ModelError)) == (2, True)


@pytest.mark.parametrize("command", BINDING)
def test_sizes_that_a_model_declares_are_its_own_fault(command: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"do not broadcast") as caught:
        BINDING[command](of_rows(2), tmp_path)
    assert (caught.value.exit_code, isinstance(caught.value, tercet.InputError)) == (4, False)
