"""The policy as an ONNX graph, written operator by operator from its weights.

The network is five matrix products, a lookup and a softmax, so the graph is written here rather than traced: no size of
an example can be frozen into it, and the operators are known. Only a state encoder or critic of your own goes through
torch.onnx, and its graph is put in its place.

`ort`, opset 18: state [B, S], actions [A, 64] float32 or [A] int64 table rows, segment [A] int64 (each action's state)
-> logit [A], log_prob [A], and value [B] if asked for.

`sentis15`, opset 15, for Unity: state [B, S], actions [B, N, 64] float32 or [B, N] int32, mask [B, N] float32 (1 legal,
0 padding) -> the same as [B, N]. No tensor in it has 64-bit integers.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from movelist.core.errors import CheckpointError, MissingExtraError
from movelist.learn.model import PolicyValueNet, StateEncoder

if TYPE_CHECKING:
    import onnx

OPSETS = {"ort": 18, "sentis15": 15}
IR_VERSION = 8  # the oldest that knows opset 18; older runtimes refuse newer files
CHECKSUM_DIGITS = 8
PADDING_LOGIT = -1e9  # exp of it is 0, and it is finite where -infinity times 0 is not

# What Unity lists under "Supported ONNX operators" both of Sentis 1.x and 2.1 and of Inference Engine 2.2, and a policy
# can need. The manual's page: docs.unity3d.com/Packages/com.unity.sentis@2.1/manual/supported-operators.html
_SENTIS_OPERATORS = (
    "Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Clip Concat Constant ConstantOfShape Conv Div "
    "Dropout Einsum Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gemm GlobalAveragePool "
    "GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization LayerNormalization "
    "LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Min Mul Neg Not Or Pad Pow PRelu Range Reciprocal "
    "ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape ScatterElements ScatterND Selu "
    "Shape Sigmoid Sign Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose "
    "Unsqueeze Where Xor"
)
SENTIS_OPERATORS = frozenset(_SENTIS_OPERATORS.split())
# Inputs that ONNX itself defines as 64-bit (a shape, axes, places to cut): Unity reads them when it imports the file.
_SHAPE_INPUTS = {
    "Reshape": {1}, "Unsqueeze": {1}, "Squeeze": {1}, "ReduceSum": {1}, "Slice": {1, 2, 3, 4}, "Split": {1},
    "Expand": {1}, "Tile": {1}, "Pad": {1}, "ConstantOfShape": {0}, "TopK": {1},
}  # fmt: skip


def import_onnx() -> Any:
    """The onnx package.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError.of("ONNX files need", "onnx", error) from None
    return onnx


class _Graph:
    """A list of operators and constants that grows."""

    def __init__(self, opset: int) -> None:
        self.onnx = import_onnx()
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add an operator; the name of its output."""
        output = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, value: NDArray[Any] | torch.Tensor) -> str:
        """Add a constant; its name."""
        array = value.detach().float().cpu().numpy() if isinstance(value, torch.Tensor) else value
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def linear(self, name: str, layer: nn.Linear, value: str) -> str:
        """A linear layer over the last dimension."""
        product = self.op("MatMul", value, self.constant(f"{name}.weight", layer.weight.t()))
        return product if layer.bias is None else self.op("Add", product, self.constant(f"{name}.bias", layer.bias))

    def module(self, name: str, module: nn.Module, value: str, width: int) -> str:
        """A state encoder or critic: linear layers and relus as they are, anything else through torch.onnx."""
        layers = module.layers if type(module) is StateEncoder else module
        parts = list(layers) if type(layers) is nn.Sequential else [layers]
        if not all(type(part) in (nn.Linear, nn.ReLU) for part in parts):
            return self._traced(name, module, value, width)
        for place, part in enumerate(parts):
            value = (
                self.linear(f"{name}.{place}", part, value) if isinstance(part, nn.Linear) else self.op("Relu", value)
            )
        return value

    def _traced(self, name: str, module: nn.Module, value: str, width: int) -> str:
        """The operators of a module [B, width] -> [B, any] as torch.onnx writes them, `name` before every name."""
        part = self.onnx.compose.add_prefix(_export_module(module, width, self.opset), f"{name}/")
        self.op("Identity", value, name=part.graph.input[0].name)
        self.nodes += part.graph.node
        self.constants += part.graph.initializer
        return str(part.graph.output[0].name)


def _export_module(module: nn.Module, width: int, opset: int) -> Any:
    """torch's own export of a module, from an example whose sizes differ and are at least 2."""
    batch = 3 if width != 3 else 5
    module = copy.deepcopy(module).cpu().eval()
    try:
        with warnings.catch_warnings(), _silence():
            warnings.simplefilter("ignore")  # of torch's own code, about its own future
            program = torch.onnx.export(
                module,
                (torch.zeros(batch, width),),
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=["state"],
                output_names=["hidden"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )
    except ImportError as error:
        raise MissingExtraError.of("a state encoder of your own needs", "onnx", error) from None
    except Exception as error:  # torch raises many types here, most with pages of advice for its developers
        raise CheckpointError(
            f"torch cannot write {type(module).__name__} as ONNX with opset {opset}",
            got=_reason(error),
            do="Use plain tensor operations in it, with no size taken from the batch.",
        ) from None
    proto = program.model_proto  # type: ignore[union-attr]
    if _opset(proto) != opset:
        raise CheckpointError(
            f"torch cannot write {type(module).__name__} with opset {opset}, only with opset {_opset(proto)}",
            got=", ".join(sorted({node.op_type for node in proto.graph.node})),
            do="At least one of them is newer, as LayerNormalization is. Use others, or export with --profile ort.",
        )
    return proto


@contextmanager
def _silence() -> Iterator[None]:
    """torch's exporter prints and logs pages for its developers, also where it succeeds."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The first line of the error that an exporter's own errors go back to."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0] or type(error).__name__


def build(net: PolicyValueNet, profile: str, metadata: dict[str, str], *, value: bool) -> Any:
    """The model of a network.

    Args:
        net: The network; its weights are copied.
        profile: "ort" or "sentis15".
        metadata: Written into the file.
        value: Add the output `value`.

    Raises:
        MissingExtraError: onnx is not installed.
        CheckpointError: torch cannot write a state encoder or critic of your own.
    """
    graph = _Graph(OPSETS[profile])
    hidden = graph.module("state_encoder", net.state_encoder, "state", net.shape.state_size)
    state_half = graph.linear("state_to_pair", net.state_to_pair, hidden)
    action_half = graph.linear("action_to_pair", net.action_to_pair, _encode_actions(graph, net))
    if profile == "ort":
        inputs = _score_flat(graph, net, state_half, action_half)
        sizes: tuple[str, ...] = ("num_actions",)
    else:
        inputs = _score_padded(graph, net, state_half, action_half)
        sizes = ("batch", "num_actions")
    outputs = {"logit": sizes, "log_prob": sizes}
    if value:
        two_dimensional = graph.module("critic", net.critic, hidden, net.shape.hidden_dim)
        # [B, 1] -> [B] without naming a size: the mean over one entry is that entry.
        axes = {"axes": [1]} if profile == "sentis15" else {}
        extra = () if profile == "sentis15" else (graph.constant("value_axis", np.array([1])),)
        graph.op("ReduceMean", two_dimensional, *extra, name="value", keepdims=0, **axes)
        outputs["value"] = ("batch",)
    return _model(graph, inputs, outputs, metadata)


def _encode_actions(graph: _Graph, net: PolicyValueNet) -> str:
    first = net.action_encoder.first
    if net.shape.action_encoder == "table":
        assert isinstance(first, nn.Embedding)
        rows = "actions"
        if graph.opset == OPSETS["ort"]:
            # Gather counts a negative id from the table's end; behind its end it fails, as it should.
            behind = graph.constant("num_rows", np.array(net.shape.num_actions))
            rows = graph.op("Where", graph.op("Less", rows, graph.constant("no_row", np.array(0))), behind, rows)
        encoded = graph.op("Gather", graph.constant("action_table", first.weight), rows, axis=0)
    else:
        assert isinstance(first, nn.Linear)
        encoded = graph.linear("action1", first, "actions")
    return graph.op("Relu", encoded)


def _score_flat(graph: _Graph, net: PolicyValueNet, state_half: str, action_half: str) -> dict[str, Any]:
    """Scores and log-softmax over flat lists; the inputs by name: type and sizes."""
    kind = graph.onnx.TensorProto
    pairs = graph.op("Relu", graph.op("Add", graph.op("Gather", state_half, "segment", axis=0), action_half))
    graph.op("MatMul", pairs, graph.constant("pair.weight", net.pair_weight), name="logit")
    # [B] constants of any batch: a shape [1] from the state's own, so that no size is frozen.
    batch = graph.op("Shape", "state", start=0, end=1)
    lowest = graph.op("ConstantOfShape", batch, value=_scalar(graph, -np.inf))
    largest = graph.op("ScatterElements", lowest, "segment", "logit", axis=0, reduction="max")
    shifted = graph.op("Sub", "logit", graph.op("Gather", largest, "segment", axis=0))
    zero = graph.op("ConstantOfShape", batch, value=_scalar(graph, 0.0))
    total = graph.op("ScatterElements", zero, "segment", graph.op("Exp", shifted), axis=0, reduction="add")
    graph.op("Sub", shifted, graph.op("Gather", graph.op("Log", total), "segment", axis=0), name="log_prob")
    bits = net.shape.action_encoder == "bits"
    return {
        "state": (kind.FLOAT, ("batch", net.shape.state_size)),
        "actions": (kind.FLOAT, ("num_actions", 64)) if bits else (kind.INT64, ("num_actions",)),
        "segment": (kind.INT64, ("num_actions",)),
    }


def _scalar(graph: _Graph, value: float) -> Any:
    return graph.onnx.numpy_helper.from_array(np.array([value], np.float32))


def _score_padded(graph: _Graph, net: PolicyValueNet, state_half: str, action_half: str) -> dict[str, Any]:
    """Scores and log-softmax over padded lists, with attributes in place of 64-bit axes."""
    kind = graph.onnx.TensorProto
    # [B, N, H] -> [N, B, H], to which [B, H] adds without an Unsqueeze, whose axes would be 64-bit integers.
    turned = graph.op("Transpose", action_half, perm=[1, 0, 2])
    pairs = graph.op("Relu", graph.op("Add", turned, state_half))
    # w . x as the mean of (H w) x, for the mean's axes are an attribute in opset 15.
    weight = graph.constant("pair.weight", net.pair_weight * net.shape.hidden_dim)
    scores = graph.op("ReduceMean", graph.op("Mul", pairs, weight), axes=[2], keepdims=0)  # [N, B]
    legal = graph.op("Mul", graph.op("Transpose", scores, perm=[1, 0]), "mask")  # [B, N]
    one, lowest = (
        graph.constant("one", np.ones(1, np.float32)),
        graph.constant("lowest", np.full(1, PADDING_LOGIT, np.float32)),
    )
    padding = graph.op("Mul", graph.op("Sub", one, "mask"), lowest)
    graph.op("LogSoftmax", graph.op("Add", legal, padding, name="logit"), name="log_prob", axis=1)
    bits = net.shape.action_encoder == "bits"
    return {
        "state": (kind.FLOAT, ("batch", net.shape.state_size)),
        "actions": (kind.FLOAT, ("batch", "num_actions", 64)) if bits else (kind.INT32, ("batch", "num_actions")),
        "mask": (kind.FLOAT, ("batch", "num_actions")),
    }


def _model(graph: _Graph, inputs: dict[str, Any], outputs: dict[str, Any], metadata: dict[str, str]) -> Any:
    helper, kind = graph.onnx.helper, graph.onnx.TensorProto
    proto = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info(name, dtype, list(sizes)) for name, (dtype, sizes) in inputs.items()],
        [helper.make_tensor_value_info(name, kind.FLOAT, list(sizes)) for name, sizes in outputs.items()],
        graph.constants,
    )
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", graph.opset)],
        producer_name="movelist",
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, metadata)
    return model


def to_bytes(model: onnx.ModelProto) -> bytes:
    """The file of a model that `build` made.

    Its last entry of metadata is `checksum`, and metadata comes last in the file, so the last eight bytes are the
    CRC-32 of all bytes before them, as text. Engines see one entry more and need not care.
    """
    entry = model.metadata_props.add()
    entry.key, entry.value = "checksum", "0" * CHECKSUM_DIGITS
    content: bytes = model.SerializeToString()[:-CHECKSUM_DIGITS]
    return content + _checksum(content)


def is_sound(content: bytes) -> bool:
    """Whether a file agrees with its checksum, or has none at its end, as one that a tool wrote anew without it."""
    stated = b"checksum" in content[-CHECKSUM_DIGITS - 12 :]  # the entry's name, and two bytes before each of the two
    return not stated or _checksum(content[:-CHECKSUM_DIGITS]) == content[-CHECKSUM_DIGITS:]


def _checksum(content: bytes) -> bytes:
    """The CRC-32 of bytes, as eight hexadecimal digits."""
    return f"{zlib.crc32(content):08x}".encode("ascii")


def _opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model uses; 0 if it uses others as well."""
    versions = [entry.version for entry in model.opset_import if entry.domain == ""]
    others = [node.domain for node in model.graph.node if node.domain not in ("", "ai.onnx")]
    return int(versions[0]) if len(versions) == 1 and not others else 0


def check_model(model: onnx.ModelProto, profile: str) -> None:
    """Check a model that was read back: by onnx, its opset, and for Unity its operators and types.

    Raises:
        CheckpointError: Names the operator or tensor that does not belong.
    """
    onnx = import_onnx()
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckpointError(
            "the file is no valid ONNX",
            got=str(error).strip().split("\n")[0],
            do="Does your state encoder give [B, hidden_dim], and your critic [B, 1]?",
        ) from None
    if _opset(model) != OPSETS[profile]:
        raise CheckpointError("the file has another opset", got=_opset(model), expected=OPSETS[profile])
    if profile != "sentis15":
        return
    unknown = sorted({node.op_type for node in model.graph.node} - SENTIS_OPERATORS)
    reduced = [node for node in model.graph.node if node.op_type == "ScatterElements" and _has(node, "reduction")]
    if unknown or reduced:
        raise CheckpointError(
            "Unity's Inference Engine does not have every operator of this policy",
            got=", ".join(unknown) or "ScatterElements with a reduction",
            do="Use others in your state encoder, or export with --profile ort.",
        )
    if wide := _wide_integers(model):
        raise CheckpointError(
            "Unity's Inference Engine has no 64-bit integers",
            got=", ".join(wide),
            do="In a state encoder of your own use int() in place of long().",
        )


def _has(node: onnx.NodeProto, attribute: str) -> bool:
    return any(entry.name == attribute and entry.s != b"none" for entry in node.attribute)


def _wide_integers(model: onnx.ModelProto) -> list[str]:
    """Names of inputs, outputs, casts and constants with 64-bit integers, other than shapes and axes."""
    onnx = import_onnx()
    wide_types = (onnx.TensorProto.INT64, onnx.TensorProto.UINT64)
    ends = [*model.graph.input, *model.graph.output]
    wide = {end.name for end in ends if end.type.tensor_type.elem_type in wide_types}
    wide |= {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Cast" and any(entry.name == "to" and entry.i in wide_types for entry in node.attribute)
    }
    constants = {entry.name for entry in model.graph.initializer if entry.data_type in wide_types}
    constants |= {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Constant" and any(entry.t.data_type in wide_types for entry in node.attribute)
    }
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in constants and place not in _SHAPE_INPUTS.get(node.op_type, set()):
                wide.add(name)
    return sorted(wide)
