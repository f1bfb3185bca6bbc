"""ONNX graphs: what is in them, and that what Unity cannot run is seen."""

import builtins

import numpy as np
import pytest
import torch

from movelist.core.errors import CheckpointError, MissingExtraError
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play import onnx_graph

try:
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    onnx = None
needs_onnx = pytest.mark.skipif(onnx is None, reason="needs the extra onnx")
NET = PolicyValueNet(ModelShape(state_size=5, hidden_dim=8))
TABLE = PolicyValueNet(ModelShape(state_size=5, hidden_dim=8, action_encoder="table", num_actions=7))


def sizes(entries):
    return {e.name: [d.dim_param or d.dim_value for d in e.type.tensor_type.shape.dim] for e in entries}


@needs_onnx
@pytest.mark.parametrize("net", [NET, TABLE], ids=["bits", "table"])
def test_no_size_but_the_networks_is_frozen(net):
    bits = [64] if net is NET else []
    model = onnx_graph.build(net, "ort", {"game": "x"}, value=True)
    assert sizes(model.graph.input) == {
        "state": ["batch", 5], "actions": ["num_actions", *bits], "segment": ["num_actions"]
    }  # fmt: skip
    assert sizes(model.graph.output) == {"logit": ["num_actions"], "log_prob": ["num_actions"], "value": ["batch"]}
    model = onnx_graph.build(net, "sentis15", {}, value=False)
    assert sizes(model.graph.input) == {
        "state": ["batch", 5], "actions": ["batch", "num_actions", *bits], "mask": ["batch", "num_actions"]
    }  # fmt: skip
    assert sizes(model.graph.output) == {name: ["batch", "num_actions"] for name in ("logit", "log_prob")}


@needs_onnx
@pytest.mark.parametrize(("profile", "opset"), [("ort", 18), ("sentis15", 15)])
def test_opset_and_types(profile, opset):
    for net in (NET, TABLE):
        model = onnx_graph.build(net, profile, {"game": "x"}, value=True)
        onnx_graph.check_model(model, profile)
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
        assert {entry.key: entry.value for entry in model.metadata_props} == {"game": "x"}
        wide = {e.name for e in model.graph.initializer if e.data_type == TensorProto.INT64}
        assert not wide or profile == "ort"
        kinds = {node.op_type for node in model.graph.node}
        assert not kinds & {"BitShift", "If", "Loop", "Unique"}
        assert profile == "ort" or kinds <= onnx_graph.SENTIS_OPERATORS


def tiny(nodes, constants=(), inputs=(("x", 1),), output=("n",)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, [2]) for name, kind in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@needs_onnx
def test_what_unity_cannot_run_is_named():
    with pytest.raises(CheckpointError, match="does not have every operator of this policy: got Hardmax, NonZero"):
        nodes = [helper.make_node("Hardmax", ["x"], ["y"], axis=0), helper.make_node("NonZero", ["x"], ["z"])]
        onnx_graph.check_model(tiny(nodes), "sentis15")
    node = helper.make_node("Gather", ["x", "places"], ["y"])
    with pytest.raises(CheckpointError, match="no 64-bit integers: got places"):
        onnx_graph.check_model(tiny([node], [("places", np.array([1]))]), "sentis15")
    onnx_graph.check_model(tiny([node], [("places", np.array([1], np.int32))]), "sentis15")
    with pytest.raises(CheckpointError, match="no 64-bit integers: got places"):
        onnx_graph.check_model(tiny([node], inputs=(("x", 1), ("places", TensorProto.INT64))), "sentis15")
    cast = helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64)
    back = helper.make_node("Cast", ["whole"], ["y"], to=TensorProto.FLOAT)
    with pytest.raises(CheckpointError, match=r"no 64-bit integers: got whole\. .* use int\(\) in place of long\(\)"):
        onnx_graph.check_model(tiny([cast, back]), "sentis15")
    axes = helper.make_node("Unsqueeze", ["x", "axes"], ["y"])  # ONNX defines axes as 64-bit; Unity reads them
    onnx_graph.check_model(tiny([axes], [("axes", np.array([0]))], output=(1, 2)), "sentis15")
    with pytest.raises(CheckpointError, match="another opset: got 15, expected 18"):
        onnx_graph.check_model(tiny([axes], [("axes", np.array([0]))], output=(1, 2)), "ort")


@needs_onnx
def test_an_encoder_that_cannot_be_traced_is_named(capfd):
    class Loops(torch.nn.Linear):
        def forward(self, state):
            return super().forward(state) if state.sum().item() > 0 else state[:, :8]

    net = PolicyValueNet(ModelShape(state_size=9, hidden_dim=8), state_encoder=Loops(9, 8))
    with pytest.raises(CheckpointError) as caught:
        onnx_graph.build(net, "ort", {}, value=False)
    # The reason, and not that torch's first of three steps failed, in colours.
    assert str(caught.value).startswith(
        "torch cannot write Loops as ONNX with opset 18: got Could not guard on data-dependent expression"
    )
    assert capfd.readouterr() == ("", "")


@needs_onnx
def test_an_encoder_that_unitys_opset_cannot_say_is_named(capfd):
    net = PolicyValueNet(
        ModelShape(state_size=9, hidden_dim=8),
        state_encoder=torch.nn.Sequential(torch.nn.LayerNorm(9), torch.nn.Linear(9, 8)),
    )
    with pytest.raises(CheckpointError) as caught:
        onnx_graph.build(net, "sentis15", {}, value=False)
    assert "torch cannot write Sequential with opset 15, only with opset 18: got Gemm, LayerNorm" in str(caught.value)
    assert str(caught.value).endswith("Use others, or export with --profile ort.")
    assert capfd.readouterr() == ("", "")


class Looked(torch.nn.Module):
    """Numbers of a state as rows of a table."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.table = kind, torch.nn.Embedding(5, 4)

    def forward(self, state):
        return self.table(state.abs().clamp(0, 4).to(self.kind)).flatten(1)


@needs_onnx
def test_rows_of_a_table_reach_unity_as_32_bits():
    shape = ModelShape(state_size=2, hidden_dim=8)
    good, wide = (PolicyValueNet(shape, state_encoder=Looked(kind)) for kind in (torch.int32, torch.int64))
    onnx_graph.check_model(onnx_graph.build(good, "sentis15", {}, value=False), "sentis15")
    with pytest.raises(CheckpointError, match="no 64-bit integers"):
        onnx_graph.check_model(onnx_graph.build(wide, "sentis15", {}, value=False), "sentis15")
    onnx_graph.check_model(onnx_graph.build(wide, "ort", {}, value=False), "ort")


@needs_onnx
def test_an_encoder_of_another_shape_is_named():
    class Deep(torch.nn.Linear):
        def forward(self, state):
            return super().forward(state).unsqueeze(1)

    net = PolicyValueNet(ModelShape(state_size=9, hidden_dim=8), state_encoder=Deep(9, 8))
    for profile in ("ort", "sentis15"):
        with pytest.raises(CheckpointError) as caught:
            onnx_graph.check_model(onnx_graph.build(net, profile, {}, value=True), profile)
        assert str(caught.value).startswith("the file is no valid ONNX: got ") and "\n" not in str(caught.value)
        assert str(caught.value).endswith("Does your state encoder give [B, hidden_dim], and your critic [B, 1]?")


def test_without_onnx_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == "onnx":
            raise ImportError("No module named 'onnx'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "movelist\[onnx\]"') as caught:
        onnx_graph.build(NET, "ort", {}, value=False)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@needs_onnx
@pytest.mark.parametrize("wrong", [-1, -7, 7])
def test_an_id_outside_the_table_is_no_row_of_it(wrong):
    runtime = pytest.importorskip("onnxruntime")
    model = onnx_graph.build(TABLE, "ort", {}, value=False)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {"state": np.zeros((1, 5), np.float32), "segment": np.zeros(2, np.int64)}
    session.run(None, inputs | {"actions": np.array([0, 6])})
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, inputs | {"actions": np.array([0, wrong])})
