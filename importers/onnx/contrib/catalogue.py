"""The catalogue: which module defines which operator; imports modules on demand."""

from __future__ import annotations

from importlib import import_module

from .declaration import CONTRIB, DOMAIN, Contrib

#: Operators of the domain com.microsoft, by the module that defines them.
MODULES: dict[str, str] = {
    "activations": "BiasDropout BiasGelu BiasSoftmax FastGelu Gelu QuickGelu",
    "convolution": "FusedConv NhwcConv NhwcFusedConv NhwcMaxPool",
    "diffusion": "BiasAdd BiasSplitGelu GroupNorm SkipGroupNorm",
    "embedding": "EmbedLayerNormalization",
    "gated": "BranchwiseRMSNorm CausalConvWithState GatedAdd GatedRMSNorm LinearAttention "
    "LinearAttentionGate RouterGateUpProj "
    "ScaledSiLU SwiGLU",
    "grouped_query": "GroupQueryAttention",
    "hyper": "EngramGate HyperConnectionLowRankMix HyperConnectionPostMix "
    "HyperConnectionPreMix NGramHashMapping",
    "images": "CropAndResize",
    "logits": "NGramRepeatBlock",
    "masked_decoder": "DecoderMaskedMultiHeadAttention",
    "multi_head": "MultiHeadAttention",
    "normalization": "SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization",
    "packed_formats": "GatherPacked MatMulPacked",
    "packed_hashes": "VarlenNGramHashMapping",
    "packed_states": "GatedDeltaNet VarlenCausalConvWithState",
    "products": "FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu MatMulFpQ4 "
    "TransposeMatMul",
    "quantized_elementwise": "DequantizeLinear MulInteger QLinearAdd QLinearConcat "
    "QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearWhere QuantizeLinear",
    "quantized_layers": "ConvTransposeWithDynamicPads DynamicQuantizeLSTM QAttention "
    "QEmbedLayerNormalization",
    "quantized_products": "DynamicQuantizeMatMul GatherBlockQuantized MatMulIntegerToFloat "
    "MatMulNBitsQLoRA QGemm",
    "quantized_rows": "QLinearAveragePool QLinearConv QLinearGlobalAveragePool QLinearReduceMean "
    "QLinearSoftmax",
    "relative": "RelativePositionBias",
    "rotary": "GemmaRotaryEmbedding MRotaryEmbedding RotaryEmbedding",
    "router": "MoEGroupRouter",
    "self_attention": "Attention",
    "signal": "ComplexMul ComplexMulConj Rfft",
    "sparse": "SparseAttention",
    "standardized": "ExpandDims GatherND GridSample MatMulInteger16 Pad Range SampleOp "
    "TorchEmbedding Trilu Unique",
    "tensors": "IsAllFinite UnfoldTensor",
    "unpadded": "GatedRelativePositionBias PackedAttention PackedMultiHeadAttention RemovePadding "
    "RestorePadding",
    "words": "BifurcationDetector WordConvEmbedding",
}
_EXPERIMENTAL = (
    "Affine ConstantFill Crop DynamicSlice GivenTensorFill ImageScaler ParametricSoftplus Scale "
    "ScaledTanh"
)
#: What tf2onnx leaves as it is in TensorFlow, by module.
_UNCONVERTED = {
    "tensorflow": "ApproximateEqual Bincount Bitcast Bucketize Cross DenseBincount Diag "
    "DiagPart Erfc EuclideanNorm Expm1 HSVToRGB HistogramFixedWidth InTopK InTopKV2 Invert "
    "L2Loss Log1p LowerBound MatrixSetDiag MulNoNan NthElement PopulationCount RGBToHSV "
    "TruncateMod UpperBound Xdivy Xlog1py Xlogy",
    "tensorflow_bessel": "BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 "
    "BesselK0e BesselK1 BesselK1e BesselY0 BesselY1",
    "tensorflow_complex": "Complex RFFT RFFT2D RFFT3D",
    "tensorflow_images": "Dilation2D ScaleAndTranslate",
    "tensorflow_incomplete": "Betainc Igamma Igammac Polygamma Zeta",
    "tensorflow_matrices": "Cholesky LogMatrixDeterminant MatrixInverse MatrixSolve "
    "MatrixTriangularSolve Qr",
    "tensorflow_older": "Cumprod Cumsum IsFinite IsNan MatrixBandPart ResizeBicubic "
    "ResizeBilinear ResizeNearestNeighbor ReverseV2 Rint Roll ScatterNd TensorScatterAdd "
    "TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate",
    "tensorflow_special": "Digamma Erfinv Lgamma Ndtri",
    "tensorflow_xla": "XlaDynamicSlice XlaDynamicUpdateSlice",
}
#: Modules of operators in the domain of ONNX itself: onnxruntime's, and experimental ones.
DEFAULT_DOMAIN = {
    "SimplifiedLayerNormalization": "normalization",
    **dict.fromkeys(_EXPERIMENTAL.split(), "experimental"),
}
#: Modules of operators without a domain that belong to another framework.
FOREIGN: dict[str, str] = {
    name: module for module, names in _UNCONVERTED.items() for name in names.split()
}
#: The domain of QONNX under its present and its former names.
QONNX = ("qonnx.custom_op.general", "finn.custom_op.general", "onnx.brevitas")
#: What qonnx writes in that domain where it lowers a file for FINN.
_LOWERED = frozenset(
    ("DebugMarker", "Im2Col", "MaxPoolNHWC", "QuantAvgPool2d", "XnorPopcountMatMul")
)
#: The domain of ONNX's own operators after qonnx has moved the channels last.
CHANNELS_LAST = "qonnx.custom_op.channels_last"
#: That of AMD Quark, and the one that it had before.
QUARK = ("com.amd.quark", "com.vai.quantize")
#: TensorRT finds its plugins by their names, so that the domain may be left out.
TENSORRT, PLUGIN = "trt", "TRT_"
#: The domain of what OpenVINO adds to ONNX.
OPENVINO = "org.openvinotoolkit"
#: The domain of onnxruntime-extensions, of whose operators some have definitions.
EXTENSIONS = "ai.onnx.contrib"
#: The domain of the custom operators of tf2onnx.
TENSORFLOW = "ai.onnx.converters.tensorflow"
#: What operators of complex numbers are declared in; see `find_complex`.
COMPLEX = "complex"
#: Modules of other domains, each with all of its operators.
_OTHER_MODULES = {
    **dict.fromkeys(QONNX, "qonnx"),
    CHANNELS_LAST: "qonnx_layers",
    **dict.fromkeys(QUARK, "quark"),
    TENSORRT: "tensorrt",
    OPENVINO: "openvino",
    EXTENSIONS: "extensions",
}
#: All domains besides ONNX's own and onnxruntime's.
OTHER_DOMAINS = frozenset({*_OTHER_MODULES, TENSORFLOW})
_MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}


def find(domain: str, name: str) -> Contrib | None:
    """Return the declaration of an operator, or None; imports the module that defines it."""
    if not domain and name.startswith(PLUGIN):
        domain = TENSORRT
    module = _OTHER_MODULES.get(domain)
    if domain == DOMAIN:
        module = _MODULE_OF.get(name)
    elif domain in QONNX and name in _LOWERED:
        module = _OTHER_MODULES[CHANNELS_LAST]
    elif domain == TENSORFLOW:
        module = FOREIGN.get(name)
    elif not domain:
        module = DEFAULT_DOMAIN.get(name) or FOREIGN.get(name)
    if module is None:
        return None
    import_module(f".{module}", __package__)
    return CONTRIB.get((domain, name))


def find_complex(name: str) -> Contrib | None:
    """Return what an operator without a domain does with complex numbers, or None."""
    import_module(".tensorflow_complex", __package__)
    return CONTRIB.get((COMPLEX, name))


def names() -> list[tuple[str, str]]:
    """Return domain and name of all operators of these two domains, without importing modules."""
    found = [(DOMAIN, name) for name in _MODULE_OF]
    return sorted([*found, *(("", name) for name in DEFAULT_DOMAIN)])
