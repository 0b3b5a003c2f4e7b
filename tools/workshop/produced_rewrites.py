"""How optimizers, quantizers and converters of precision rewrite a file: `PRODUCERS`' ways."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

Feeds = dict[str, Any]
#: Writes a rewritten copy of a file to a path, given inputs for calibration.
Rewrite = Callable[[Path, Path, Feeds], None]


def of_proto(function: Callable[[onnx.ModelProto], onnx.ModelProto]) -> Rewrite:
    """Return the rewrite that is a function of models."""

    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        onnx.save(function(onnx.load(source)), target)

    return rewrite


def called(module: str, name: str, *more: Any, **options: Any) -> Rewrite:
    """Return the rewrite by a function of a module that takes and returns a model."""

    def call(model: onnx.ModelProto) -> onnx.ModelProto:
        return getattr(import_module(module), name)(model, *more, **options)

    return of_proto(call)


class Repeated:
    """The same inputs twice, as calibration reads them in every quantizer."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self.rewind()

    def rewind(self) -> None:
        """Start again."""
        self._left: Iterator[Feeds] = iter([self._feeds] * 2)

    def get_next(self) -> Feeds | None:
        """Return the next inputs, None at the end."""
        return next(self._left, None)


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────


def _versions() -> dict[str, Rewrite]:
    convert = "onnx.version_converter"
    return {f"opset{v}": called(convert, "convert_version", v) for v in (13, 17, 20, 22, 24, 26)}


ONNX = {
    **_versions(),
    "inlined": called("onnx.inliner", "inline_local_functions"),
    "prefixed": called("onnx.compose", "add_prefix", "p/", rename_inputs=False),
}
_ELIMINATIONS = """
    eliminate_common_subexpression eliminate_deadend eliminate_consecutive_idempotent_ops
    eliminate_shape_gather eliminate_shape_op eliminate_slice_after_shape
"""
_FUSIONS = """
    fuse_bn_into_conv fuse_consecutive_transposes fuse_consecutive_unsqueezes
    fuse_matmul_add_bias_into_gemm fuse_pad_into_conv fuse_qkv fuse_transpose_into_gemm
"""
OPTIMIZER = {
    "default": called("onnxoptimizer", "optimize"),
    "fixed_point": called("onnxoptimizer", "optimize", fixed_point=True),
    "eliminated": called("onnxoptimizer", "optimize", _ELIMINATIONS.split()),
    "fused": called("onnxoptimizer", "optimize", _FUSIONS.split()),
}
SLIM = {
    "default": called("onnxslim", "slim"),
    "no_inference": called("onnxslim", "slim", no_shape_infer=True),
    "float16": called("onnxslim", "slim", dtype="fp16"),
}


def _simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    return import_module("onnxsim").simplify(model)[0]


SIMPLIFIER = {"default": of_proto(_simplified)}


def _fused_for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    ir, fusions = import_module("onnx_ir"), import_module("onnxscript.rewriter.ort_fusions")
    found = fusions.optimize_for_ort(ir.from_proto(model))
    return ir.to_proto(found[0] if isinstance(found, tuple) else found)


ONNXSCRIPT = {
    "optimized": called("onnxscript.optimizer", "optimize"),
    "for_onnxruntime": of_proto(_fused_for_onnxruntime),
}


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    surgeon = import_module("onnx_graphsurgeon")
    graph = surgeon.import_onnx(model)
    graph.fold_constants().cleanup().toposort()
    return surgeon.export_onnx(graph)


GRAPHSURGEON = {"folded": of_proto(_folded)}


# ── precision ────────────────────────────────────────────────────────────────────────────────────


def _mixed(source: Path, target: Path, feeds: Feeds) -> None:
    mixed = import_module("onnxconverter_common.auto_mixed_precision")
    made = mixed.auto_convert_mixed_precision(
        onnx.load(source), feeds, rtol=0.01, atol=0.01, keep_io_types=True
    )
    onnx.save(made, target)


_HALF = "convert_float_to_float16"
CONVERTER_COMMON = {
    "float16": called("onnxconverter_common.float16", _HALF),
    "float16_kept": called("onnxconverter_common.float16", _HALF, keep_io_types=True),
    "mixed": _mixed,
}


def _transformers(kind: str, level: int) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        optimizer = import_module("onnxruntime.transformers.optimizer")
        found = optimizer.optimize_model(
            str(source), model_type=kind, num_heads=0, hidden_size=0, opt_level=level, use_gpu=False
        )
        onnx.save(found.model, target)

    return rewrite


def _blocks(bits: int, block: int, *, symmetric: bool, operators: tuple[str, ...]) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        tools = import_module("onnxruntime.quantization.matmul_nbits_quantizer")
        config = tools.DefaultWeightOnlyQuantConfig(
            bits=bits, block_size=block, is_symmetric=symmetric, op_types_to_quantize=operators
        )
        quantizer = tools.MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))

    return rewrite


_ORT16 = "onnxruntime.transformers.float16"
_TABLES = ("MatMul", "Gather")
ONNXRUNTIME = {
    "float16": called(_ORT16, _HALF),
    "float16_kept": called(_ORT16, _HALF, keep_io_types=True, force_fp16_initializers=True),
    **{f"as_{kind}_{level}": _transformers(kind, level)
       for kind in ("bert", "gpt2", "vit", "unet", "t5", "clip") for level in (0, 1)},
    **{f"{bits}bits_{block}": _blocks(bits, block, symmetric=bits == 4, operators=_TABLES)
       for bits in (2, 4, 8) for block in (16, 64)},
}  # fmt: skip


# ── quantizers ───────────────────────────────────────────────────────────────────────────────────


def _olive(name: str, **config: Any) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        package = import_module("olive.package_config").OlivePackageConfig
        found = package.load_default_config().import_pass_module(name)
        spec = import_module("olive.hardware.accelerator").AcceleratorSpec(
            "cpu", "CPUExecutionProvider", memory=4 * 10**9
        )
        create = import_module("olive.passes.olive_pass").create_pass_from_dict
        handler = import_module("olive.model").ONNXModelHandler(str(source))
        create(found, config, disable_search=True, accelerator_spec=spec).run(handler, str(target))
        if target.is_dir():
            (made,) = target.glob("*.onnx")
            model = onnx.load(made)
            shutil.rmtree(target)
            onnx.save(model, target)

    return rewrite


_SURGEONS = ("MatMulAddToGemm", "GemmToMatMulAdd", "ReplaceErfWithTanh", "RMSNormToL2Norm",
             "SimplifiedLayerNormToL2Norm", "PowReduceSumPowDiv2LpNorm", "DeduplicateNodes",
             "ReciprocalMulToDiv", "Non4DReshape", "Non4DSlice", "StandaloneReduceSum",
             "QuantizeEmbeddingInt8", "TieWordEmbeddings")  # fmt: skip
OLIVE = {
    "dynamic_int8": _olive("OnnxDynamicQuantization", precision="int8", per_channel=True),
    "dynamic_uint8": _olive("OnnxDynamicQuantization", precision="uint8", reduce_range=True),
    "rtn4": _olive("OnnxBlockWiseRtnQuantization", block_size=16),
    "rtn4_zeros": _olive("OnnxBlockWiseRtnQuantization", block_size=32, is_symmetric=False),
    "rtn8": _olive("OnnxBlockWiseRtnQuantization", block_size=32, bits=8),
    "kquant4": _olive("OnnxKQuantQuantization", block_size=32),
    "hqq4": _olive("OnnxHqqQuantization", block_size=32),
    "nf4": _olive("OnnxBnb4Quantization", precision="nf4"),
    "float16": _olive("OnnxFloatToFloat16", keep_io_types=True),
    "mixed": _olive("OrtMixedPrecision"),
    "peephole": _olive("OnnxPeepholeOptimizer"),
    "script": _olive("OnnxScriptFusion"),
    **{name: _olive("GraphSurgeries", surgeries=[{"surgeon": name}]) for name in _SURGEONS},
}


def _compressed(make: Callable[[Any, Any], Any]) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        package = "onnx_neural_compressor"
        config = import_module(f"{package}.quantization.config")
        settings = make(config, Repeated(feeds))
        import_module(f"{package}.quantization").quantize(str(source), str(target), settings)

    return rewrite


def _static(form: str, activations: str, weights: str, *, channels: bool) -> Rewrite:
    def settings(config: Any, reader: Repeated) -> Any:
        quantization = import_module("onnx_neural_compressor.quantization")
        return config.StaticQuantConfig(
            reader,
            quant_format=quantization.QuantFormat[form],
            activation_type=quantization.QuantType[activations],
            weight_type=quantization.QuantType[weights],
            per_channel=channels,
            reduce_range=not channels,
        )

    return _compressed(settings)


NEURAL_COMPRESSOR = {
    **{f"{form.lower()}_{a}_{w}".lower(): _static(form, a, w, channels=w == "QInt8")
       for form in ("QDQ", "QOperator")
       for a, w in (("QUInt8", "QInt8"), ("QUInt8", "QUInt8"), ("QInt8", "QInt8"))},
    "dynamic": _compressed(lambda config, _: config.DynamicQuantConfig()),
    **{f"rtn{bits}_{group}": _compressed(lambda config, _, bits=bits, group=group: config.RTNConfig(
           weight_bits=bits, weight_group_size=group, weight_sym=group > 0))
       for bits in (2, 4, 8) for group in (32, -1)},
    "gptq4": _compressed(lambda config, data: config.GPTQConfig(calibration_data_reader=data)),
    "awq4": _compressed(lambda config, data: config.AWQConfig(calibration_data_reader=data)),
}  # fmt: skip


def _functions(**options: Any) -> Rewrite:
    """Return how onnx-quantize replaces products by functions of its own."""

    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        package = import_module("onnx_quantize")
        config = package.QConfig(weights_only=True, **options)
        onnx.save(package.quantize(onnx.load(source), config), target)

    return rewrite


ONNX_QUANTIZE = {
    "weights8": _functions(),
    "weights8_channels": _functions(strategy="channel"),
    "weights4": _functions(weights_dtype="int4", weights_symmetric=True),
    "weights4_groups": _functions(weights_dtype="uint4", strategy="group", group_size=16),
}


def _model_optimizer(mode: str, **options: Any) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        import_module("modelopt.onnx.quantization").quantize(
            str(source),
            mode,
            calibration_data=feeds,
            calibration_eps=["cpu"],
            output_path=str(target),
            log_level="ERROR",
            **options,
        )

    return rewrite


def _autocast(dtype: str) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        convert = import_module("modelopt.onnx.autocast").convert_to_mixed_precision
        onnx.save(convert(str(source), low_precision_type=dtype, keep_io_types=True), target)

    return rewrite


MODEL_OPTIMIZER = {
    "int8": _model_optimizer("int8", high_precision_dtype="fp32"),
    "int8_float16": _model_optimizer("int8"),
    "fp8": _model_optimizer("fp8", high_precision_dtype="fp32"),
    "int4_awq": _model_optimizer("int4", calibration_method="awq_clip", block_size=16),
    "int4_zeros": _model_optimizer("int4", calibration_method="awq_lite", use_zero_point=True),
    "float16": _autocast("fp16"),
    "bfloat16": _autocast("bf16"),
}


def _quark(name: str) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        config = import_module("quark.onnx.quantization.config")
        settings = config.Config(global_quant_config=config.get_default_config(name))
        quantizer = import_module("quark.onnx").ModelQuantizer(settings)
        quantizer.quantize_model(str(source), str(target), Repeated(feeds))

    return rewrite


_QUARK = """
    UINT8_DYNAMIC_QUANT XINT8 S8S8_AAWS U8U8_AAWA S16S8_ASWS A16W8 U16S8_AAWS BF16 BFP16 MXINT8
    MXFP8E4M3 MXFP6E3M2 MXFP4E2M1
"""
QUARK = {name.lower(): _quark(name) for name in _QUARK.split()}


def _aimet(parameters: str, activations: str, block: int = 0) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        aimet, simulation = import_module("aimet_onnx"), import_module("aimet_onnx.quantsim")
        model = simulation.QuantizationSimModel(
            onnx.load(source),
            param_type=getattr(aimet, parameters),
            activation_type=getattr(aimet, activations),
            providers=["CPUExecutionProvider"],
        )
        if block:
            simulation.set_blockwise_quantization_for_weights(
                model, ("MatMul", "Gemm", "Conv"), 4, True, block, strict=False
            )
        model.compute_encodings([feeds] * 2)
        onnx.save(model.to_onnx_qdq(), target)

    return rewrite


AIMET = {
    **{f"{weights}_{values}": _aimet(weights, values)
       for weights in ("int4", "int8") for values in ("int8", "int16")},
    "int16_int16": _aimet("int16", "int16"),
    "blocks": _aimet("int8", "int16", 8),
    "float16": _aimet("float16", "float16"),
}  # fmt: skip


def _nncf(**options: Any) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        nncf = import_module("nncf")
        kinds = {"preset": nncf.QuantizationPreset, "model_type": nncf.ModelType}
        given = {name: kinds[name][value] for name, value in options.items()}
        dataset = nncf.Dataset([feeds] * 2)
        onnx.save(nncf.quantize(onnx.load(source), dataset, subset_size=2, **given), target)

    return rewrite


def _nncf_weights(mode: str, **options: Any) -> Rewrite:
    def rewrite(source: Path, target: Path, feeds: Feeds) -> None:
        nncf = import_module("nncf")
        model = import_module("onnx.version_converter").convert_version(onnx.load(source), 23)
        kind = nncf.CompressWeightsMode[mode]
        onnx.save(nncf.compress_weights(model, mode=kind, **options), target)

    return rewrite


NNCF = {
    "default": _nncf(),
    "mixed": _nncf(preset="MIXED"),
    "transformer": _nncf(model_type="TRANSFORMER"),
    "weights8": _nncf_weights("INT8_SYM"),
    "weights8_zeros": _nncf_weights("INT8_ASYM"),
    "weights4": _nncf_weights("INT4_SYM", group_size=16, all_layers=True),
    "weights4_zeros": _nncf_weights("INT4_ASYM", group_size=16, all_layers=True),
    "weights4_channels": _nncf_weights("INT4_SYM", group_size=-1, ratio=0.5),
}
