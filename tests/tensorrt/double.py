"""A stand-in for the package `tensorrt`, made of the signatures in typings/tensorrt.pyi.

`Double(rtx=True)` stands in for `tensorrt_rtx`, with what typings/tensorrt_rtx.pyi adds.

Whatever the real bindings lack, a name, a parameter or a type that no overload takes, fails here,
too. Every call is recorded. What the calls do is written down in `BEHAVIOUR`: the parser reads the
model, an engine is the model's bytes, and a run computes it with onnxruntime on the memory at the
addresses that it was given.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

STUBS = Path(__file__).parents[2] / "typings"
STUB, RTX_STUB = STUBS / "tensorrt.pyi", STUBS / "tensorrt_rtx.pyi"
#: Python types by the annotation of a parameter; others are classes of the stub, or not checked.
SCALARS: dict[str, tuple[type, ...]] = {
    "typing.SupportsInt": (int, np.integer),
    "typing.SupportsFloat": (int, float),
    "str": (str,),
    "bool": (bool,),
    "tuple": (tuple,),
    "list": (list,),
    "typing_extensions.Buffer": (bytes, bytearray, memoryview),
}


class Enumerator:
    """A member of one of TensorRT's enumerations."""

    def __init__(self, kind: str, name: str, value: int) -> None:
        self.kind, self.name, self.value = kind, name, value

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"{self.kind}.{self.name}"


@dataclass
class Method:
    """A method of the stub: one signature for each overload."""

    signatures: list[tuple[inspect.Signature, dict[str, str]]] = field(default_factory=list)


class Double:
    """The module.

    Attributes:
        calls: class, method and arguments of every call, in order.
        refuses: operators that the parser refuses when it reads a model.
        unknown: operators that the parser does not know at all.
        failing: calls that answer None or False, as ``Builder.build_serialized_network``.
        builds: how many engines were built.
        rtx: whether it is TensorRT-RTX.
        serves: whether the GPU of this machine can run engines.
    """

    def __init__(self, *, rtx: bool = False, version: str = "11.4.0") -> None:
        self.rtx, self.serves, self.__version__ = rtx, True, version
        self.calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.refuses: set[str] = set()
        self.unknown: set[str] = set()
        self.failing: set[str] = set()
        self.builds = 0
        self._classes: dict[str, Any] = {}
        for name, node in declared(rtx).items():
            self._classes[name] = _class(self, node)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_classes"][name]
        except KeyError:
            raise AttributeError(f"the real tensorrt has no '{name}'") from None

    def init_libnvinfer_plugins(self, logger: Any, namespace: str) -> bool:
        """Register plug-ins, without which the parser refuses operators that need one."""
        self.calls.append(("", "init_libnvinfer_plugins", (logger, namespace)))
        return True

    def of(self, kind: str, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of every call of one method."""
        return [arguments for k, n, arguments in self.calls if (k, n) == (kind, name)]


def declared(rtx: bool) -> dict[str, ast.ClassDef]:
    """Return the classes of a library by name, as the stubs declare them."""
    found: dict[str, ast.ClassDef] = {}
    for stub in (STUB, RTX_STUB) if rtx else (STUB,):
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                before = [found[name].body for name in (*bases, node.name) if name in found]
                node.body = [item for body in (*before, node.body) for item in body]
                found[node.name] = node
    return found


def classes(stub: Path) -> dict[str, set[str]]:
    """Return the members that a stub declares, by class."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            assigned = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            names |= {target.id for target in assigned if isinstance(target, ast.Name)}
            found.setdefault(node.name, set()).update(names)
    return found


def _class(double: Double, node: ast.ClassDef) -> Any:
    """Return a class with the stub's methods, properties and members, and nothing else."""
    members: dict[str, Any] = {"__slots__": ("__weakref__", "state"), "double": double}
    methods: dict[str, Method] = {}
    names: list[str] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            decorators = {ast.unparse(each) for each in item.decorator_list}
            if decorators & {"property"} or any(d.endswith(".setter") for d in decorators):
                members[item.name] = _property(item.name)
            elif item.name not in {"__enter__", "__exit__", "__del__"}:
                methods.setdefault(item.name, Method()).signatures.append(_signature(item))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.append(item.target.id)
        elif isinstance(item, ast.ClassDef):
            members[item.name] = _class(double, item)
    enumeration = "__members__" in names
    for i, name in enumerate(n for n in names if n != "__members__"):
        value = Enumerator(node.name, name, i) if enumeration else _property(name)
        members[name] = value
    if enumeration:
        members["__members__"] = {n: members[n] for n in names if n != "__members__"}
    for name, method in methods.items():
        if not enumeration and (not name.startswith("__") or name == "__init__"):
            members[name] = _method(node.name, name, method)
    if "__init__" not in members:
        members["__init__"] = lambda self: object.__setattr__(self, "state", {})
    return type(node.name, (), members)


def _property(name: str) -> property:
    def read(self: Any) -> Any:
        return self.state.get(name)

    def write(self: Any, value: Any) -> None:
        self.double.calls.append((type(self).__name__, name, (value,)))
        self.state[name] = value

    return property(read, write)


def _signature(item: ast.FunctionDef) -> tuple[inspect.Signature, dict[str, str]]:
    given = item.args
    first = len(given.args) - len(given.defaults)
    parameters: list[inspect.Parameter] = []
    annotations: dict[str, str] = {}
    for i, argument in enumerate(given.args):
        default = None if i >= first else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(argument.arg, kind, default=default))
        if argument.annotation is not None:
            annotations[argument.arg] = ast.unparse(argument.annotation)
    return inspect.Signature(parameters), annotations


def _method(kind: str, name: str, method: Method) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "__init__":
            object.__setattr__(self, "state", {})
        problems: list[str] = []
        for signature, kinds in method.signatures:
            try:
                bound = signature.bind(self, *args, **kwargs).arguments
            except TypeError as error:
                problems.append(str(error))
                continue
            wrong = [n for n, v in bound.items() if not _suits(v, kinds.get(n, ""))]
            if not wrong:
                self.double.calls.append((kind, name, tuple(bound.values())[1:]))
                return _answer(self, kind, name, list(bound.values())[1:])
            problems.append(f"{wrong[0]}={bound[wrong[0]]!r} is no {kinds[wrong[0]]}")
        raise TypeError(f"the real tensorrt has no such {kind}.{name}: {'; '.join(problems)}")

    return call


def _suits(value: Any, annotation: str) -> bool:
    if annotation in SCALARS:
        return isinstance(value, SCALARS[annotation]) and (
            annotation == "bool" or not isinstance(value, bool)
        )
    if annotation.isidentifier() and value is not None:
        kinds = {base.__name__ for base in type(value).__mro__} | {getattr(value, "kind", "")}
        return annotation in kinds
    return True


def _answer(self: Any, kind: str, name: str, args: list[Any]) -> Any:
    if f"{kind}.{name}" in self.double.failing:
        return False if name.startswith(("set_", "execute")) else None
    behaviour = BEHAVIOUR.get((kind, name))
    return behaviour(self, *args) if behaviour else None


# ── what the calls do ────────────────────────────────────────────────────────────────────────────


def _made(name: str, *keep: str) -> Callable[..., Any]:
    """Return what makes an object of a class, which remembers the arguments."""

    def make(self: Any, *args: Any) -> Any:
        kind = self.double._classes[name]
        made = object.__new__(kind)
        object.__setattr__(made, "state", {"owner": self, **dict(zip(keep, args, strict=False))})
        return made

    return make


def _keep(*names: str) -> Callable[..., None]:
    def keep(self: Any, *args: Any) -> None:
        self.state.update(zip(names, args, strict=False))

    return keep


def _parse(self: Any, path: str) -> bool:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    for node in model.graph.node:
        if node.op_type in self.double.refuses:
            error = _made("ParserError", "node_name", "desc")(self, node.name, "no importer")
            self.state["errors"] = [error]
            self.state["num_errors"] = 1
            return False
    # The network refers to the parser's weights: no engine comes of it once the parser is gone.
    network = self.state["network"]
    network.state.update(model=model.SerializeToString(), parser=weakref.ref(self))
    border = {"input": model.graph.input, "output": model.graph.output}
    for kind, values in border.items():
        network.state[f"num_{kind}s"] = len(values)
        network.state[kind] = [_tensor(network, value) for value in values]
    self.state["num_errors"] = 0
    return True


def _tensor(network: Any, value: onnx.ValueInfoProto) -> Any:
    """Return what a parser makes of an input or output; float64 becomes float32."""
    made = _made("ITensor")(network)
    held = value.type.tensor_type
    dtype = "FLOAT" if held.elem_type == onnx.TensorProto.DOUBLE else _PARSED[held.elem_type]
    shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in held.shape.dim)
    made.state.update(name=value.name, dtype=Enumerator("DataType", dtype, 0), shape=shape)
    return made


def _build(self: Any, network: Any, config: Any, *_: Any) -> bytes | None:
    if "parser" not in network.state:
        return repr((b"", {}, [])).encode()  # made layer by layer
    assert network.state["parser"]() is not None, "the parser is gone, and its weights with it"
    if self.double.rtx:
        assert config.state.get("capability") is not None, "built for no GPU in particular"
    self.double.builds += 1
    profile = config.state.get("profile")
    shapes = dict(profile.state["shapes"]) if profile is not None else {}
    model, left_out = network.state["model"], []
    if "STRIP_PLAN" in config.state.get("flags", ()):
        model, left_out = _stripped(model)
    return repr((model, shapes, left_out)).encode()


def _stripped(model: bytes) -> tuple[bytes, list[str]]:
    """Return a model whose weights are zeros, and their names."""
    found = onnx.load_from_string(model)
    weights = [each for each in found.graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    for each in weights:
        each.raw_data = bytes(len(each.raw_data))
    return found.SerializeToString(), [each.name for each in weights]


def _refit_from_file(self: Any, path: str) -> bool:
    model = onnx.load(path)
    self.state["refitter"].state["given"] = {w.name: w.raw_data for w in model.graph.initializer}
    return True


def _refit(self: Any) -> bool:
    engine, given = self.state["engine"], self.state["given"]
    model = onnx.load_from_string(engine.state["model"])
    for each in model.graph.initializer:
        if each.name in engine.state["left_out"]:
            each.raw_data = given[each.name]
    engine.state.update(model=model.SerializeToString(), left_out=[])
    return True


def _missing(self: Any) -> list[str]:
    return [
        name for name in self.state["engine"].state["left_out"] if name not in self.state["given"]
    ]


def _deserialize(self: Any, data: bytes) -> Any:
    if not self.double.serves:
        logger = self.state["logger"]
        logger.log(self.double.ILogger.Severity.ERROR, "no kernels for this GPU")
        return None
    try:
        model, shapes, left_out = ast.literal_eval(bytes(data).decode())
    except (SyntaxError, ValueError, UnicodeDecodeError):
        return None
    engine = _made("ICudaEngine", "model", "shapes", "left_out")(self, model, shapes, left_out)
    nodes = len(onnx.load_from_string(model).graph.node) if model else 1
    engine.state.update(num_layers=nodes, device_memory_size_v2=256)
    return engine


def _input_shape(self: Any, name: str, shape: Any) -> bool:
    ranges = self.state["owner"].state["shapes"].get(name)
    shape = tuple(shape)
    if ranges and not all(a <= s <= b for a, s, b in zip(ranges[0], shape, ranges[2], strict=True)):
        return False
    self.state.setdefault("shapes", {})[name] = shape
    return True


def _address(self: Any, name: str, memory: int) -> bool:
    self.state.setdefault("addresses", {})[name] = memory
    return True


def _execute(self: Any, stream_handle: int) -> bool:
    assert stream_handle is not None
    memory = self.state.get("memory", (0, 0))
    assert memory[1] >= 256, "the engine's device memory was not provided"
    assert not self.state["owner"].state["left_out"], "it has no weights"
    session = ort.InferenceSession(
        self.state["owner"].state["model"], providers=["CPUExecutionProvider"]
    )
    addresses, shapes = self.state["addresses"], self.state["shapes"]
    feeds: dict[str, Any] = {}
    for each in session.get_inputs():
        feeds[each.name] = _at(addresses[each.name], shapes[each.name], _DTYPES[each.type]).copy()
    names = [each.name for each in session.get_outputs()]
    for name, result in zip(names, session.run(names, feeds), strict=True):
        data = np.asarray(result)
        _at(addresses[name], data.shape, data.dtype)[...] = data
    return True


_PARSED: dict[int, str] = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BOOL: "BOOL",
}
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(int8)": np.int8,
}


def _at(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)


def _profile_shape(self: Any, name: str, minimum: Any, usual: Any, maximum: Any) -> None:
    shapes = tuple(tuple(dims.state["shape"]) for dims in (minimum, usual, maximum))
    self.state.setdefault("shapes", {})[name] = shapes


def _add_profile(self: Any, profile: Any) -> int:
    self.state["profile"] = profile
    return 0


def _capability(self: Any, capability: Any, index: Any) -> bool:
    assert self.state["num_compute_capabilities"] > index
    self.state["capability"] = capability.name
    return True


def _information(self: Any, kind: Any) -> str:
    assert kind.name == "JSON"
    nodes = onnx.load_from_string(self.state["owner"].state["model"]).graph.node
    layers = [
        {
            "Name": f"layer {i}",
            "LayerType": "Gemm",
            "Metadata": f"[ONNX Layer: {node.name}]",
            "Inputs": [{"Name": node.input[0], "Dimensions": [1], "Format/Datatype": "Float"}],
        }
        for i, node in enumerate(nodes)
    ]
    return json.dumps({"Layers": layers, "Bindings": []})


BEHAVIOUR: dict[tuple[str, str], Callable[..., Any]] = {
    ("Builder", "__init__"): _keep("logger"),
    ("Builder", "create_network"): _made("INetworkDefinition", "flags"),
    ("Builder", "create_builder_config"): _made("IBuilderConfig"),
    ("Builder", "create_optimization_profile"): _made("IOptimizationProfile"),
    ("Builder", "build_serialized_network"): _build,
    ("Runtime", "__init__"): _keep("logger"),
    ("Runtime", "deserialize_cuda_engine"): _deserialize,
    ("OnnxParser", "__init__"): _keep("network", "logger"),
    ("OnnxParser", "supports_operator"): lambda self, op: op not in self.double.unknown,
    ("OnnxParser", "parse_from_file"): _parse,
    ("OnnxParser", "get_error"): lambda self, i: self.state["errors"][i],
    ("ParserError", "node_name"): lambda self: self.state["node_name"],
    ("ParserError", "desc"): lambda self: self.state["desc"],
    ("ParserError", "code"): lambda self: self.double.ErrorCode.UNSUPPORTED_NODE,
    ("Dims", "__init__"): _keep("shape"),
    ("INetworkDefinition", "add_input"): _made("ITensor"),
    ("INetworkDefinition", "add_activation"): _made("IActivationLayer"),
    ("IActivationLayer", "get_output"): _made("ITensor"),
    ("INetworkDefinition", "get_input"): lambda self, i: self.state["input"][i],
    ("INetworkDefinition", "get_output"): lambda self, i: self.state["output"][i],
    ("IBuilderConfig", "set_compute_capability"): _capability,
    ("IBuilderConfig", "set_flag"): lambda self, flag: self.state.setdefault("flags", set()).add(
        flag.name
    ),
    ("Refitter", "__init__"): _keep("engine", "logger"),
    ("Refitter", "get_missing_weights"): _missing,
    ("Refitter", "refit_cuda_engine"): _refit,
    ("OnnxParserRefitter", "__init__"): _keep("refitter", "logger"),
    ("OnnxParserRefitter", "refit_from_file"): _refit_from_file,
    ("IBuilderConfig", "create_timing_cache"): _made("ITimingCache", "data"),
    ("IBuilderConfig", "set_timing_cache"): lambda self, cache, _: True,
    ("IBuilderConfig", "get_timing_cache"): _made("ITimingCache"),
    ("IBuilderConfig", "add_optimization_profile"): _add_profile,
    ("IOptimizationProfile", "set_shape"): _profile_shape,
    ("ITimingCache", "serialize"): lambda self: b"timings",
    ("ICudaEngine", "create_execution_context"): _made("IExecutionContext", "strategy"),
    ("ICudaEngine", "create_runtime_config"): _made("IRuntimeConfig"),
    ("ICudaEngine", "create_engine_inspector"): _made("EngineInspector"),
    ("EngineInspector", "get_engine_information"): _information,
    ("IRuntimeConfig", "create_runtime_cache"): _made("IRuntimeCache"),
    ("IRuntimeConfig", "set_runtime_cache"): lambda self, cache: True,
    ("IRuntimeCache", "serialize"): lambda self: b"kernels",
    ("IRuntimeCache", "deserialize"): lambda self, blob: blob == b"kernels",
    ("IExecutionContext", "set_input_shape"): _input_shape,
    ("IExecutionContext", "set_tensor_address"): _address,
    ("IExecutionContext", "set_device_memory"): lambda self, at, n: self.state.update(
        memory=(at, n)
    ),
    ("IExecutionContext", "execute_async_v3"): _execute,
}
