"""Remedies for unsupported operators of other domains: who writes them, and how to avoid them."""

from __future__ import annotations

import re

import onnx.defs

from .catalogue import CHANNELS_LAST, EXTENSIONS, OPENVINO, PLUGIN, QONNX, QUARK, TENSORRT
from .declaration import DOMAIN

_FUSIONS = (
    "optimisers, quantizers and converters write it for onnxruntime; make the file without it"
)
_LAYOUT = (
    "onnxruntime laid the model out for one processor; save it again with "
    "graph_optimization_level ORT_ENABLE_EXTENDED"
)
_COMPILED = "a part of the model, compiled for one device; use the model that it was made from"
_SERVER = "caches that a server manages; export with GroupQueryAttention"
_TRAINING = "it is part of training; export the model for inference"

_ATEN = "PyTorch left it as it was; export without operator_export_type, or with dynamo=True"
_PLUGIN = "a plugin of TensorRT; export the model with ONNX's own operators"
_BOXES = "a plugin of TensorRT; export the model without NMS, or with ONNX's NonMaxSuppression"
_EXTENSIONS = (
    "onnxruntime-extensions runs it; do that step outside of the model, of which `tercet extract` "
    "writes the rest"
)
_LACKING = "a function that the file lacks; export the model once more"
_MMCV = "MMDeploy writes it for plugins of its own; export the model with operators of ONNX"
_TORCHVISION = "an operator of torchvision; export with its newest release and dynamo=True"
_FINN = "FINN writes it for its hardware; use the file of Brevitas"
_QUARK = "AMD Quark's formats for its hardware; quantize with integers, such as its A8W8, instead"
_CELL = "Brevitas writes cells with quantized gates for FINN; leave this layer in floats"

#: By domain.
_DOMAINS = {
    DOMAIN: _FUSIONS,
    f"{DOMAIN}.nchwc": _LAYOUT,
    "com.ms.internal.nhwc": _LAYOUT,
    **dict.fromkeys(QONNX, _FINN),
    **{f"finn.custom_op.fpgadataflow{each}": _FINN for each in ("", ".hls", ".rtl")},
    OPENVINO: "an operator of OpenVINO; export the model with ONNX's own operators",
    CHANNELS_LAST: "qonnx moved the channels last; use the file before that",
    EXTENSIONS: _EXTENSIONS,
    f"{DOMAIN}.extensions": _EXTENSIONS,
    "ai.onnx.training": _TRAINING,
    f"{DOMAIN}.dml": "DirectML's fusions; save the model again with the CPU's optimiser",
    **dict.fromkeys(("org.pytorch.aten", "aten", "prim", "caffe2", "org.pytorch._caffe2"), _ATEN),
    TENSORRT: "TensorRT's plugins; export with standard QuantizeLinear and DequantizeLinear",
    "trt.plugins": _PLUGIN,
    **dict.fromkeys(("mmcv", "mmdeploy", "mmdet", "mmdet3d", "mmrotate"), _MMCV),
    "torchvision": _TORCHVISION,
    **dict.fromkeys(QUARK, _QUARK),
    **dict.fromkeys(("pkg.onnxscript.torch_lib", "onnxscript.atenlib"), _LACKING),
}
#: By name, in the domain of onnxruntime's own operators.
_NAMES = {
    _COMPILED: "EPContext Snpe",
    _LAYOUT: "ReorderInput ReorderOutput",
    _SERVER: (
        "PagedAttention SparsePagedAttention DynamicSparseAttention PackedSparseAttentionIndexer "
        "PackedSparseAttentionIndexerMerge SparseAttentionIndexer"
    ),
    "a step of speculative decoding; export the model without it": (
        "ConvStateReplay GatedDeltaNetStateReplay Mamba2Verify SpeculativePrefixCommit"
    ),
    "a fusion for one GPU; export the model for the CPU": "RMSNormRotary",
    _TRAINING: (
        "BatchNormInternal BiasSoftmaxDropout BitmaskBiasDropout BitmaskDropout FakeQuant "
        "InPlaceAccumulator InPlaceAccumulatorV2 MixedPrecisionScale PythonOp ReduceAllL2 "
        "Scale SoftmaxCrossEntropyLossInternal SparseSoftmaxCrossEntropy TrainableDropout YieldOp"
    ),
    "a part of a model that was cut for several GPUs; export the whole model": (
        "AdasumAllReduce AllGather AllReduce AllToAll MegatronF MegatronG NcclAllGather "
        "NcclAllReduce NcclReduceScatter Recv Send ShardedMoE"
    ),
    "an LSTM with attention inside, of a toolkit that is no more; export LSTM and attention": (
        "AttnLSTM"
    ),
    "skl2onnx writes it for GaussianProcessClassifier, and no runtime has it; convert another "
    "classifier": "Solve",
    "an operator of one model inside onnxruntime; use MaxPool of Where(mask, x, lowest number)": (
        "MaxpoolWithMask"
    ),
    "it reads sparse tensors, which files cannot hold as weights; use MatMul of a dense one": (
        "SparseToDenseMatMul"
    ),
    "weights that onnxruntime packed for one GPU; quantize the model again without prepacking": (
        "MatMulNBitsMlp MatMulNBitsQkv MatMulBlockQuantizedFp4Weight "
        "MatMulBlockQuantizedFp8Weight GemmFloat8 MoEPacked"
    ),
    "integers in an order of one GPU; quantize the model again in QDQ format": (
        "QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention "
        "QOrderedMatMul QuantizeWithOrder DequantizeWithOrder QuantizeBFP DequantizeBFP"
    ),
    "beams of one shared buffer; export the decoder without --use_decoder_masked_mha": (
        "DecoderMaskedSelfAttention DecoderAttention"
    ),
}
#: By name, of what converters leave without a domain.
_LEFT = {
    name: text
    for text, names in {
        "it takes as many steps as its numbers need, and ONNX has no such operator; compute it "
        "before the export, or define this one (operators=, --operators)": (
            "Eig MatrixExponential MatrixLogarithm MatrixSquareRoot SelfAdjointEigV2 Svd"
        ),
        "a branch that the converter did not recognize; write tf.switch_case and tf.case as "
        "tf.cond": "Merge RefMerge RefSwitch Switch _SwitchN",
    }.items()
    for name in names.split()
}
#: Parts of names of such operators, which training has by the hundred.
_TRAINS = re.compile("Grad|Optimizer|Training$")
#: How names of plugins end.
_PLUGS = re.compile("(_TRT|Plugin|PluginDynamic)$")
_BY_NAME = {
    **{(DOMAIN, name): text for text, names in _NAMES.items() for name in names.split()},
    ("", "ATen"): _ATEN,  # PyTorch 0.4 to 1.10, without a domain
    **{(domain, "QuantLSTMCell"): _CELL for domain in QONNX},
}


def exact_recipe(domain: str, name: str) -> str:
    """Return the remedy for this very operator, whatever else has a similar name; "" if none."""
    if _PLUGS.search(name):
        return _BOXES if "NMS" in name else _PLUGIN
    if domain == DOMAIN and _TRAINS.search(name):
        return _TRAINING
    return _BY_NAME.get((domain, name), "")


def recipe(domain: str, name: str, producer: str = "") -> str:
    """Return where an unknown operator comes from and a remedy; "" if unknown.

    Args:
        domain: of the operator.
        name: likewise.
        producer: the program that wrote the file, with its version; "" if unknown.
    """
    if not domain and name.startswith(PLUGIN):
        domain = TENSORRT
    if not domain and producer and not onnx.defs.has(name):
        return _LEFT.get(name) or (
            f"ONNX has no such operator: {producer.split()[0]} left it as it was in the framework; "
            "convert for a newer opset, write the layer with operators that it converts, or define "
            "this one (operators=, --operators)"
        )
    if not domain and onnx.defs.has(name) and (last := onnx.defs.get_schema(name)).deprecated:
        since = last.since_version
        return f"ONNX dropped it in opset {since}; import opset {since - 1}, or use its successor"
    return exact_recipe(domain, name) or _DOMAINS.get(domain, "")
