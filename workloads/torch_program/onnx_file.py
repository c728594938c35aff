"""An ONNX file as a recorded program: its nodes as the operators of PyTorch that do the same, the rest by what they move.

Shapes are those that `onnx.shape_inference` finds; weights kept in other files are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...features.errors import SpecError, listed
from ...features.kernel import MAX_DIM
from .captured import Program, capture
from .operation import INPUTS, WEIGHTS, Operation, Recording, TensorInfo

if TYPE_CHECKING:
    import onnx

_MOST_B = 2**31
"""Largest file read, which is protobuf's own limit."""

_ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "BitShift", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Silu", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
    "Where", "Xor",
})  # fmt: skip
_COPIES = (
    "Concat", "DepthToSpace", "Expand", "OneHot", "Pad", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Tile",
    "Transpose",
)  # fmt: skip
_VIEWS = frozenset({
    "Constant", "ConstantOfShape", "Dropout", "Flatten", "Identity", "Range", "Reshape", "Shape", "Size", "Squeeze",
    "Unsqueeze",
})  # fmt: skip
"""What moves nothing in a runtime that plans its memory; dropout does nothing in inference."""

_NAMES: Mapping[str, str] = {
    **{name: f"aten.{name.lower()}" for name in _ELEMENTWISE}, **dict.fromkeys(_COPIES, "aten.cat"),
    "Where": "aten.where", "Cast": "aten._to_copy", "CastLike": "aten._to_copy", "Softmax": "aten._softmax",
    "LogSoftmax": "aten._log_softmax", "LayerNormalization": "aten.native_layer_norm",
    "SimplifiedLayerNormalization": "aten._fused_rms_norm", "RMSNormalization": "aten._fused_rms_norm",
    "SkipLayerNormalization": "aten.native_layer_norm", "SkipSimplifiedLayerNormalization": "aten._fused_rms_norm",
    "BatchNormalization": "aten.native_batch_norm", "GroupNormalization": "aten.native_group_norm",
    "InstanceNormalization": "aten.native_group_norm", "Gather": "aten.index_select", "GatherElements": "aten.gather",
    "GatherND": "aten.index", "ScatterElements": "aten.scatter", "ScatterND": "aten.index_put",
    "MaxPool": "aten.max_pool2d_with_indices", "AveragePool": "aten.avg_pool2d", "GlobalAveragePool": "aten.mean",
    "GlobalMaxPool": "aten.amax", "Resize": "aten.upsample_nearest2d", "Upsample": "aten.upsample_nearest2d",
    "CumSum": "aten.cumsum", "TopK": "aten.topk", "ArgMax": "aten.argmax", "ArgMin": "aten.argmin",
    "ReduceMean": "aten.mean", "ReduceSum": "aten.sum", "ReduceMax": "aten.amax", "ReduceMin": "aten.amin",
    "ReduceProd": "aten.prod", "ReduceL2": "aten.norm", "ReduceL1": "aten.norm", "ReduceLogSumExp": "aten.logsumexp",
    "ReduceSumSquare": "aten.norm",
}  # fmt: skip
"""Operators of PyTorch by those of ONNX, beside products and convolutions, which `_PRODUCTS` has."""


class _Node(NamedTuple):
    """A node with its tensors and attributes."""

    node: onnx.NodeProto
    inputs: Sequence[TensorInfo | None]
    outputs: Sequence[TensorInfo]
    attributes: Mapping[str, Any]


def read_onnx(path: Path, sizes: Mapping[str, int] | None = None) -> Program:
    """The program of an ONNX file, of which one run is an inference.

    Args:
        path: the file.
        sizes: sizes of its dynamic dimensions, by name.

    Raises:
        SpecError: onnx is not installed, the file cannot be read, or a size is missing; the message names it.
    """
    try:
        import onnx
    except ImportError as error:
        raise SpecError(
            f"{path.name} is read by the package onnx, and there is none here ({error}); run: pip install 'kernelcast[onnx]'",
            field="onnx",
        ) from error
    model = _load(path, onnx)
    graph = model.graph
    _bind(graph, dict(sizes or {}), path)
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise SpecError(f"{path}: the shapes of its tensors do not fit together: {error}", field="onnx") from error
    return capture(_record(graph, path, onnx))


def _load(path: Path, onnx: Any) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

    try:
        if path.stat().st_size > _MOST_B:
            raise SpecError(f"{path} is larger than 2 GiB; keep its weights in a file beside it", field="onnx")
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", field="onnx") from error
    except DecodeError as error:
        raise SpecError(f"{path} is no ONNX file: {error}", field="onnx") from error
    if all(node.op_type in _VIEWS for node in model.graph.node):
        size_b = path.stat().st_size
        raise SpecError(f"{path} ({size_b} bytes) has no node that computes or moves anything", field="onnx")
    return model


def _bind(graph: Any, sizes: dict[str, int], path: Path) -> None:
    """Give dynamic dimensions of the inputs their sizes."""
    weights = {item.name for item in graph.initializer}
    dynamic: dict[str, list[Any]] = {}
    for item in graph.input:
        for i, dim in enumerate(item.type.tensor_type.shape.dim):
            if item.name not in weights and dim.dim_value < 1:
                dynamic.setdefault(dim.dim_param or f"{item.name}.{i}", []).append(dim)
    for name, size in sizes.items():
        if name not in dynamic:
            raise SpecError(f"{path} has no dynamic size {name!r}; it has {listed(dynamic) or 'none'}", field="bind")
        if not 1 <= size <= MAX_DIM:
            raise SpecError(f"{name} is {size}; a size is at least 1 and at most {MAX_DIM}", field="bind")
        for dim in dynamic[name]:
            dim.dim_value = size
    if missing := [name for name in dynamic if name not in sizes]:
        raise SpecError(
            f"{path} has dynamic sizes; give {listed(missing)}, such as --bind {missing[0]}=8", field="bind"
        )


_BRANCHES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Nodes with graphs inside, of which values say which run and how often."""


def _record(graph: Any, path: Path, onnx: Any) -> Recording:
    # As PyTorch and ONNX Runtime do unless told otherwise.
    recording = Recording(tf32_convolutions=True)
    tensors = _tensors(graph, recording, onnx)
    unknown: dict[str, None] = {}
    if branches := [_title(node) for node in graph.node if node.op_type in _BRANCHES]:
        raise SpecError(
            f"{path} decides while it runs what it computes: {listed(branches[:5])}; export the branch that runs, or fold "
            "constants (onnxsim), which removes those that depend on shapes alone",
            field="onnx",
        )
    for node in graph.node:
        lacking = [name for name in node.output if name and name not in tensors]
        if lacking and node.op_type not in _VIEWS:
            unknown[f"{node.op_type} ({node.name or lacking[0]})"] = None
            continue
        inputs = [tensors.get(name) if name else None for name in node.input]
        outputs = [tensors[name] for name in node.output if name in tensors]
        if node.op_type in _VIEWS:
            recording.views += 1
            _share(tensors, recording, node, inputs, outputs)
            continue
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        place = len(recording.operations)
        operation = _operation(_Node(node, inputs, outputs, attributes))
        # A recurrent layer runs once for each direction.
        ways = operation.inputs[1].shape[0] if node.op_type in _RECURRENT and len(operation.inputs) > 1 else 1
        recording.operations += [operation] * ways
        for tensor in outputs:
            size_b, _, went = recording.lifetimes[tensor.storage]
            recording.lifetimes[tensor.storage] = (size_b, place, went)
        for tensor in (*outputs, *(each for each in inputs if each is not None)):
            if recording.roles.get(tensor.storage) != WEIGHTS:
                size_b, came, _ = recording.lifetimes[tensor.storage]
                recording.lifetimes[tensor.storage] = (size_b, came, len(recording.operations))
    if unknown:
        raise SpecError(
            f"{path}: the sizes of what these compute are not known: {listed(list(unknown)[:5])}; custom operators need their "
            "shapes in the file (value_info)",
            field="onnx",
        )
    for item in graph.output:
        if item.name in tensors:
            size_b, came, _ = recording.lifetimes[tensors[item.name].storage]
            recording.lifetimes[tensors[item.name].storage] = (size_b, came, None)
    recording.notes.append("nodes of ONNX are priced as PyTorch's operators; a runtime fuses more of them")
    return recording


def _tensors(graph: Any, recording: Recording, onnx: Any) -> dict[str, TensorInfo]:
    """Every tensor of a known shape, weights first, then inputs."""
    tensors: dict[str, TensorInfo] = {}

    def add(name: str, shape: Sequence[int], kind: int, role: str | None) -> None:
        if name in tensors or kind not in _dtypes(onnx):
            return
        dtype, itemsize_b = _dtypes(onnx)[kind]
        storage = len(recording.lifetimes)
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        tensors[name] = TensorInfo(tuple(shape), strides, dtype, itemsize_b, storage)
        recording.lifetimes[storage] = (tensors[name].nbytes, 0, None)
        if role is not None:
            recording.roles[storage] = role

    for item in graph.initializer:
        add(item.name, tuple(item.dims), item.data_type, WEIGHTS)
    for items, role in ((graph.input, INPUTS), (graph.output, None), (graph.value_info, None)):
        for item in items:
            kind = item.type.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
            if kind.HasField("shape") and min(dims, default=0) >= 0:
                add(item.name, dims, kind.elem_type, role)
    return tensors


def _dtypes(onnx: Any) -> Mapping[int, tuple[str, int]]:
    """PyTorch's names of ONNX's types, with bytes of an element."""
    kinds = onnx.TensorProto
    return {
        kinds.FLOAT: ("float32", 4), kinds.DOUBLE: ("float64", 8), kinds.FLOAT16: ("float16", 2),
        kinds.BFLOAT16: ("bfloat16", 2), kinds.INT8: ("int8", 1), kinds.UINT8: ("uint8", 1), kinds.INT16: ("int16", 2),
        kinds.INT32: ("int32", 4), kinds.INT64: ("int64", 8), kinds.BOOL: ("bool", 1), kinds.FLOAT8E4M3FN: ("float8_e4m3fn", 1),
        kinds.FLOAT8E5M2: ("float8_e5m2", 1),
    }  # fmt: skip


def _share(
    tensors: dict[str, TensorInfo], recording: Recording, node: Any, inputs: Sequence[TensorInfo | None],
    outputs: Sequence[TensorInfo],
) -> None:  # fmt: skip
    """A view lies where its source does."""
    source = inputs[0] if inputs else None
    for name, tensor in zip((each for each in node.output if each in tensors), outputs, strict=True):
        recording.lifetimes[tensor.storage] = (0, 0, 0)
        if source is not None and source.nbytes == tensor.nbytes:
            tensors[name] = TensorInfo(tensor.shape, tensor.strides, tensor.dtype, tensor.itemsize_b, source.storage)


def _operation(item: _Node) -> Operation:
    inputs = tuple(tensor for tensor in item.inputs if tensor is not None)
    outputs = tuple(item.outputs)
    kind = item.node.op_type
    name = _NAMES.get(kind, f"onnx.{kind}")
    if kind in _INT8:
        operands = [item.inputs[i] for i in _INT8[kind] if i < len(item.inputs)]
        # Matrix units multiply integers with and without a sign alike.
        inputs = tuple(replace(each, dtype="int8") if each.dtype == "uint8" else each for each in operands if each)
    product = _PRODUCTS[kind](item, inputs) if kind in _PRODUCTS and len(inputs) >= 2 else None
    name, arguments, inputs, flops = product or (name, _arguments(name, item, inputs), inputs, 0.0)
    module = item.node.name.strip("/").replace("/", ".").rpartition(".")[0]
    pointwise = kind in _ELEMENTWISE or name == "aten.mul"
    return Operation(name, arguments, inputs, outputs, flops, module=module, pointwise=pointwise)


def _arguments(name: str, item: _Node, inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """What costings read of the operators of PyTorch."""
    axis = item.attributes.get("axis", -1)
    if name in ("aten.native_layer_norm", "aten._fused_rms_norm"):
        rank = len(inputs[0].shape)
        # Fused forms of other makers normalise the last dimension.
        return {"normalized_shape": inputs[0].shape[(axis % rank if item.node.op_type[:4] != "Skip" else rank - 1) :]}
    if name in ("aten._softmax", "aten._log_softmax"):
        return {"dim": axis}
    if item.node.op_type.startswith("Global"):
        return {"dim": tuple(range(2, len(inputs[0].shape)))}
    if item.node.op_type.startswith(("Reduce", "Arg")):
        # Axes as an input are values; dimensions that stay as they were are not summed.
        after = item.outputs[0].shape
        dims = item.attributes.get("axes") or [
            i for i, size in enumerate(inputs[0].shape) if after[i : i + 1] != (size,)
        ]
        return {"dim": tuple(dims)}
    if name in ("aten.max_pool2d_with_indices", "aten.avg_pool2d"):
        return {"kernel_size": tuple(item.attributes.get("kernel_shape", ()))}
    return {}


def _as_matrices(tensor: TensorInfo, *shape: int, transposed: bool = False) -> TensorInfo:
    rows, cols = shape[-2:]
    strides = (1, rows) if transposed else (cols, 1)
    return replace(tensor, shape=shape, strides=(rows * cols, *strides)[-len(shape) :])


Product = tuple[str, dict[str, Any], tuple[TensorInfo, ...], float]


def _check(item: _Node, fits: bool, a: TensorInfo, b: TensorInfo) -> None:
    if not fits:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise SpecError(f"{_title(item.node)}: the shapes {shapes} do not fit together", field="onnx")


def _title(node: Any) -> str:
    return f"{node.op_type} ({node.name or next(filter(None, node.output), '')})"


def _matmul(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    a, b = inputs[:2]
    batches = zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False)
    _check(item, a.shape[-1:] == b.shape[-2:][:1] != () and all(x == y or 1 in (x, y) for x, y in batches), a, b)
    m, k = a.shape[-2] if len(a.shape) > 1 else 1, a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    if prod(b.shape[:-2]) == 1:
        rows = prod(a.shape[:-1])
        left, right = _as_matrices(a, rows, k), _as_matrices(b, k, n)
        return "aten.mm", {"self": left, "mat2": right}, (left, right), 2.0 * rows * n * k
    batch = prod(item.outputs[0].shape[:-2])
    return "aten.bmm", {}, (_as_matrices(a, batch, m, k), _as_matrices(b, batch, k, n)), 2.0 * batch * m * n * k


def _gemm(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    a, b = inputs[:2]
    turned = [bool(item.attributes.get(name, 0)) for name in ("transA", "transB")]
    _check(item, len(a.shape) == len(b.shape) == 2 and a.shape[not turned[0]] == b.shape[turned[1]], a, b)
    m, k = reversed(a.shape) if turned[0] else a.shape
    n = b.shape[0] if turned[1] else b.shape[1]
    left, right = _as_matrices(a, m, k, transposed=turned[0]), _as_matrices(b, k, n, transposed=turned[1])
    added = inputs[2] if len(inputs) > 2 else None
    if added is None:
        return "aten.mm", {"self": left, "mat2": right}, (left, right), 2.0 * m * n * k
    arguments = {"self": added, "mat1": left, "mat2": right}
    return "aten.addmm", arguments, (added, left, right), 2.0 * m * n * k


def _convolution(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    x, weight = inputs[:2]
    dims = len(weight.shape) - 2
    named, transposed = item.attributes, item.node.op_type == "ConvTranspose"
    channels = weight.shape[0] if transposed else prod(weight.shape[1:2]) * named.get("group", 1)
    _check(item, dims > 0 and len(x.shape) == dims + 2 and x.shape[1] == channels, x, weight)
    padding = named.get("pads") or [0] * 2 * dims
    if named.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
        padding = [size // 2 for size in weight.shape[2:]] * 2
    arguments = {
        "input": x, "weight": weight, "stride": tuple(named.get("strides") or [1] * dims), "padding": tuple(padding[:dims]),
        "dilation": tuple(named.get("dilations") or [1] * dims), "groups": named.get("group", 1), "transposed": transposed,
        "bias": next(iter(inputs[2:]), None) if item.node.op_type in ("Conv", "ConvTranspose") else None,
    }  # fmt: skip
    positions = prod((x if transposed else item.outputs[0]).shape)
    return "aten.convolution", arguments, inputs, 2.0 * positions * prod(weight.shape[1:])


def _recurrent(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    """One direction of a layer."""
    x, weight = inputs[:2]
    mode, gates = _RECURRENT[item.node.op_type]
    ranks = len(x.shape) == len(weight.shape) == 3
    _check(item, ranks and x.shape[2] == weight.shape[2] and weight.shape[0] in (1, 2), x, weight)
    order = (1, 0, 2) if item.attributes.get("layout") else (0, 1, 2)
    x = replace(x, shape=tuple(x.shape[i] for i in order), strides=tuple(x.strides[i] for i in order))
    hidden = weight.shape[1] // gates
    arguments = {"input": x, "mode": mode, "hidden_size": hidden}
    flops = 2.0 * prod(x.shape[:2]) * weight.shape[1] * (x.shape[2] + hidden)
    return "kernelcast.recurrent_layer", arguments, (x, *inputs[1:]), flops


def _einsum(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product | None:
    """Two operands as the batched product that `torch.einsum` makes of them; None for diagonals, sums of one and others."""
    terms, arrow, result = item.attributes.get("equation", b"").decode().replace(" ", "").partition("->")
    names = terms.split(",")
    if len(inputs) != 2 or len(names) != 2:
        return None
    a, b = inputs
    # Dimensions of an ellipsis are labelled by their place from its end.
    parts = [name.partition("...") for name in names]
    spare = [len(tensor.shape) - len(x) - len(y) for tensor, (x, _, y) in zip(inputs, parts, strict=True)]
    _check(item, all(more >= 0 if dots else more == 0 for more, (_, dots, _) in zip(spare, parts, strict=True)), a, b)
    labels = [(*x, *map(str, range(more, 0, -1)), *y) for more, (x, _, y) in zip(spare, parts, strict=True)]
    # A dimension of size 1 is repeated.
    left, right = (
        {label: size for label, size in zip(some, tensor.shape, strict=True) if size != 1}
        for some, tensor in zip(labels, inputs, strict=True)
    )
    both = left.keys() & right.keys()
    _check(item, all(left[label] == right[label] for label in both), a, b)
    sizes = left | right
    out = set(result) if arrow else {label for label in terms if terms.count(label) == 1}
    if not arrow or "..." in result:
        out |= {label for label in sizes if label.isdigit()}
    if any(len(set(some)) < len(some) for some in labels) or not sizes.keys() - both <= out:
        return None
    if both <= out:
        return "aten.mul", {}, inputs, 0.0
    batch, k = (prod(sizes[label] for label in some) for some in (both & out, both - out))
    m, n = (prod(size for label, size in some.items() if label not in both) for some in (left, right))
    ends_in_k = [list(some)[-1] not in out for some in (left, right)]
    first = _as_matrices(a, batch, m, k, transposed=not ends_in_k[0])
    second = _as_matrices(b, batch, k, n, transposed=ends_in_k[1])
    return "aten.bmm", {}, (first, second), 2.0 * batch * m * n * k


_RECURRENT = {"RNN": (1, 1), "LSTM": (2, 4), "GRU": (3, 3)}
"""PyTorch's numbers of their modes, and their gates."""

_INT8 = {"MatMulInteger": (0, 1), "ConvInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
"""Where operands stand among scales and zero points."""

_PRODUCTS: Mapping[str, Callable[[_Node, tuple[TensorInfo, ...]], Product | None]] = {
    "Gemm": _gemm, "Einsum": _einsum, **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"), _convolution),
    **dict.fromkeys(_RECURRENT, _recurrent),
}  # fmt: skip
