"""Exports are equal to torch, or there is no file."""

import json
import zlib

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_tensors

from movelist.core.errors import CheckpointError, DataError, MissingExtraError, NonFiniteError, SettingsError
from movelist.core.ragged import Segments
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play import export, onnx_graph, scorers, weights_file
from movelist.play.export import export_net, publish, random_lists
from movelist.play.exported import load_exported
from movelist.play.policy import NetPolicy, Turns
from movelist.play.policy_info import describe
from movelist.play.profiles import profile_named

try:
    import onnx
    import onnxruntime  # noqa: F401
except ImportError:
    HAS_ONNX = False
else:
    HAS_ONNX = True
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
every_profile = pytest.mark.parametrize(
    "profile", [pytest.param("ort", marks=needs_onnx), pytest.param("sentis15", marks=needs_onnx), "weights"]
)
SHAPES = {
    "bits": ModelShape(state_size=11, hidden_dim=24),
    "table": ModelShape(state_size=6, hidden_dim=16, action_encoder="table", num_actions=450),
    "small table": ModelShape(state_size=3, hidden_dim=8, action_encoder="table", num_actions=2),
    "narrow actions": ModelShape(state_size=4, hidden_dim=16, action_hidden_dim=5),
}


class Planes(torch.nn.Module):
    """A state encoder of one's own: two planes of 2 x 3 through a convolution."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 2, padding=1)
        self.last = torch.nn.Linear(4 * 12, hidden_dim)

    def forward(self, state):
        planes = state.float().view(-1, 2, 2, 3)
        return torch.tanh(self.last(torch.relu(self.conv(planes)).flatten(1)))


def trained(shape, **parts):
    """A network whose scores differ as after training."""
    torch.manual_seed(0)
    net = PolicyValueNet(shape, **parts)
    with torch.no_grad():
        net.pair_weight.mul_(30)
    return net


def info_of(net, version=3):
    return describe(net.shape, version="0.1.0", game="x", policy_version=version)


def turns_of(net, num_steps, seed=0):
    state_BS, action_id_A, segments = random_lists(net, num_steps, np.random.default_rng(seed))
    count_B = np.diff(segments.offsets.numpy())
    return Turns(state_BS, count_B, action_id_A, np.arange(num_steps) * 7919, np.arange(num_steps))


@every_profile
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_file_plays_as_the_network_does(profile, shape, tmp_path):
    net = trained(shape)
    path = tmp_path / f"policy 名{profile_named(profile).suffix}"
    report = export_net(net, info_of(net), path, profile)
    assert report.num_lists == 200 and report.max_logit_error <= 1e-5
    assert report.num_bytes == path.stat().st_size
    assert "equal to torch on 200 lists" in str(report)
    assert json.loads(json.dumps(report.to_json()))["info"]["game"] == "x"
    turns = turns_of(net, 20)
    for greedy in (True, False):
        player = load_exported(path, greedy=greedy)
        index_B, log_prob_B = player.choose(turns)
        expected_B, expected_log_prob_B = NetPolicy(net, greedy=greedy).choose(turns)
        np.testing.assert_array_equal(index_B, expected_B)
        np.testing.assert_allclose(log_prob_B, expected_log_prob_B, atol=1e-5)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@every_profile
def test_one_very_long_list_among_short_ones(profile, tmp_path, monkeypatch):
    net = trained(SHAPES["bits"])
    path = tmp_path / f"policy{profile_named(profile).suffix}"
    export_net(net, info_of(net), path, profile)
    generator = np.random.default_rng(2)
    count_B = np.array([10, 7, 20_000, 1, 9, 8])
    turns = Turns(
        generator.normal(size=(6, 11)).astype(np.float32),
        count_B,
        generator.integers(-(2**63), 2**63 - 1, count_B.sum()),
        np.arange(6),
        np.arange(6),
    )
    cells = []
    run = scorers.OnnxScorer._run
    monkeypatch.setattr(
        scorers.OnnxScorer,
        "_run",
        lambda self, inputs: cells.append(inputs["actions"].size // 64) or run(self, inputs),
    )
    np.testing.assert_allclose(load_exported(path).log_probs(turns), NetPolicy(net).log_probs(turns), atol=1e-4)
    assert sum(cells) <= 2 * count_B.sum()  # memory follows the actions, not the lists times the longest


@every_profile
def test_a_bad_state_stops_the_game(profile, tmp_path):
    net = trained(SHAPES["bits"])
    path = tmp_path / f"policy{profile_named(profile).suffix}"
    export_net(net, info_of(net), path, profile)
    turns = turns_of(net, 3)
    turns.state_BS[1, 4] = np.nan
    for greedy in (True, False):
        with pytest.raises(NonFiniteError, match=r"not a finite number: got nan \(game with seed 7919, turn 1\)"):
            load_exported(path, greedy=greedy).choose(turns)


@every_profile
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_a_network_of_half_precision_is_exported_as_its_weights_are(profile, kind, tmp_path):
    net = trained(SHAPES["narrow actions"]).to(kind)
    path = tmp_path / f"policy{profile_named(profile).suffix}"
    export_net(net, info_of(net), path, profile)
    assert net.pair_weight.dtype == kind
    expected = NetPolicy(net.float()).log_probs(turns_of(net, 20))
    np.testing.assert_allclose(load_exported(path).log_probs(turns_of(net, 20)), expected, atol=1e-5)


@needs_onnx
@pytest.mark.parametrize("profile", ["ort", "sentis15"])
def test_a_state_encoder_and_critic_of_your_own_are_exported(profile, tmp_path):
    critic = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
    net = trained(ModelShape(state_size=12, hidden_dim=16), state_encoder=Planes(16), critic=critic)
    export_net(net, info_of(net), tmp_path / "policy.onnx", profile, value=True)
    state_BS, action_id_A, segments = random_lists(net, 4, np.random.default_rng(0))
    found = load_exported(tmp_path / "policy.onnx").scorer.score(state_BS, action_id_A, segments)
    with torch.no_grad():
        expected_B = net.value(net.state_encoder(torch.from_numpy(state_BS)))
    np.testing.assert_allclose(found["value"], expected_B, atol=1e-6)
    with pytest.raises(CheckpointError, match="got Planes"):
        export_net(net, info_of(net), tmp_path / "policy.safetensors", "weights")


@needs_onnx
def test_padding_has_no_probability(tmp_path):
    net = trained(SHAPES["bits"])
    export_net(net, info_of(net), tmp_path / "policy.onnx", "sentis15")
    scorer = load_exported(tmp_path / "policy.onnx").scorer
    inputs = {
        "state": np.ones((2, 11), np.float32),
        "actions": np.ones((2, 3, 64), np.float32),
        "mask": np.float32([[1, 1, 0], [1, 0, 0]]),
    }
    probability = np.exp(dict(zip(scorer.outputs, scorer.session.run(None, inputs), strict=True))["log_prob"])
    np.testing.assert_allclose(probability, [[0.5, 0.5, 0], [1, 0, 0]], atol=1e-6)


@every_profile
def test_a_file_that_is_not_equal_is_not_written(profile, tmp_path, monkeypatch):
    net = trained(SHAPES["bits"])
    other = trained(SHAPES["bits"])
    with torch.no_grad():
        other.state_to_pair.bias[3] += 0.001
    for module, name in ((weights_file, "to_bytes"), (onnx_graph, "build")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda _, *rest, real=real, **more: real(other, *rest, **more))
    with pytest.raises(CheckpointError, match=r"not equal to torch: logit: got .* off, expected at most 1e-05"):
        export_net(net, info_of(net), tmp_path / f"policy{profile_named(profile).suffix}", profile)
    assert list(tmp_path.iterdir()) == []


def test_torch_compares_in_full_precision_whatever_the_training_computes_in(tmp_path, monkeypatch):
    # On a GPU the training multiplies in TF32, which is further off than the tolerance.
    seen = set()
    forward = PolicyValueNet.forward

    def noting(self, *inputs):
        seen.add((torch.get_float32_matmul_precision(), next(self.parameters()).device.type, self.training))
        return forward(self, *inputs)

    monkeypatch.setattr(PolicyValueNet, "forward", noting)
    net = trained(SHAPES["bits"]).train()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        export_net(net, info_of(net), tmp_path / "a.safetensors", "weights")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == {("highest", "cpu", False)}


def test_another_best_action_is_seen():
    lists = Segments.from_counts([2, 2])
    scores = torch.tensor([1.0, 2.0, 5.0, 3.0])
    export._check_best(torch.tensor([1.0, 2.1, 5.0, 3.0]), scores, lists)
    with pytest.raises(CheckpointError, match="prefers another action than torch"):
        export._check_best(torch.tensor([1.0, 2.0, 3.0, 3.1]), scores, lists)


def test_best_actions_may_change_places_within_the_tolerance_of_their_list():
    # 0.001 apart beside a score of -100: float32 says no more there than 100 x 1e-5. Beside -1 it does.
    found, expected = torch.tensor([0.0, 0.001, -100.0]), torch.tensor([0.001, 0.0, -100.0])
    export._check_best(found, expected, Segments.from_counts([3]))
    with pytest.raises(CheckpointError, match=r"got a score 1\.0e-03 lower"):
        export._check_best(found[:2], expected[:2], Segments.from_counts([2]))


def test_the_error_is_relative_to_the_list():
    lists = Segments.from_counts([1, 2])
    # Second list: 0.2 of 100. First: 0.001 of 1, since its largest is below 1.
    found, expected = torch.tensor([0.501, 100.2, 1.0]), torch.tensor([0.5, 100.0, 1.0])
    assert export._relative_error(found, expected, lists) == pytest.approx(0.002, rel=1e-3)
    with pytest.raises(CheckpointError, match="gives another size"):
        export._relative_error(found[:2], expected, lists)


def test_lists_to_compare_are_of_all_lengths_and_distinct():
    for name, longest in (("bits", 400), ("table", 400), ("small table", 2)):
        turns = turns_of(trained(SHAPES[name]), 64)
        assert turns.count_B.min() <= 20 and turns.count_B.max() > 0.9 * longest
        starts = np.cumsum(turns.count_B) - turns.count_B
        for start, count in zip(starts, turns.count_B, strict=True):
            assert name == "bits" or len(set(turns.action_id_A[start : start + count].tolist())) == count
    assert sum(export.CHECK_BATCHES) == 200
    assert {min(export.CHECK_BATCHES), max(export.CHECK_BATCHES)} == {1, 64}


def test_wrong_requests_are_named(tmp_path):
    net = trained(SHAPES["bits"])
    with pytest.raises(SettingsError, match=r"profile weights is named otherwise: got a.onnx, expected .*safetensors"):
        export_net(net, info_of(net), tmp_path / "a.onnx", "weights")
    with pytest.raises(
        SettingsError, match=r"expected a name ending in \.onnx\. Plain weights need --profile weights\."
    ):
        export_net(net, info_of(net), tmp_path / "a.safetensors")
    with pytest.raises(SettingsError, match="no such profile: got tflite, expected ort, sentis15 or weights"):
        export_net(net, info_of(net), tmp_path / "a.onnx", "tflite")
    with pytest.raises(SettingsError, match="a weights file holds no value"):
        export_net(net, info_of(net), tmp_path / "a.safetensors", "weights", value=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="the folder cannot be made: got File exists"):
        export_net(net, info_of(net), tmp_path / "file" / "a.safetensors", "weights")


def test_an_export_leaves_the_network_as_it_was(tmp_path):
    net = trained(SHAPES["bits"]).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    export_net(net, info_of(net), tmp_path / "a.safetensors", "weights")
    assert net.training
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@needs_onnx
def test_damaged_onnx_files_are_refused(tmp_path):
    net = trained(SHAPES["bits"])
    path = tmp_path / "policy.onnx"
    export_net(net, info_of(net), path, "ort")
    content = path.read_bytes()
    # The last bytes are text in the metadata: no engine has to know of them.
    assert onnx.load_model_from_string(content).metadata_props[-1].value.encode() == content[-8:]
    assert content[-8:] == b"%08x" % zlib.crc32(content[:-8])
    flipped = [bytearray(content) for _ in range(300)]
    name = len(content) - 8 - 2 - len("checksum")  # a file is only held to a checksum that it says it has
    for copy, place in zip(flipped, np.random.default_rng(0).integers(0, 8 * name, 300), strict=True):
        copy[place // 8] ^= 1 << (place % 8)
    for damaged in (content[:-1], content[:-8] + b"00000000", *flipped):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"its checksum differs \(.*, {len(damaged)} bytes\)"):
            load_exported(path)
    for damaged in (b"", content[: len(content) // 3], b"no model"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="an ONNX file cannot be read"):
            load_exported(path)


@needs_onnx
def test_a_file_that_another_tool_changed_plays_without_its_checksum(tmp_path):
    net = trained(SHAPES["bits"])
    path = tmp_path / "policy.onnx"
    export_net(net, info_of(net), path, "ort")
    model = onnx.load(path)
    model.doc_string = "changed"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match=r"another tool has changed it.*delete its metadata entry checksum"):
        load_exported(path)
    assert model.metadata_props.pop().key == "checksum"
    path.write_bytes(model.SerializeToString())
    assert load_exported(path).info == info_of(net)


@needs_onnx
def test_onnx_files_of_others_are_refused(tmp_path):
    path, net = tmp_path / "policy.onnx", trained(SHAPES["bits"])
    path.write_bytes(onnx_graph.to_bytes(onnx_graph.build(net, "ort", {"format": "movelist-ort/1"}, value=False)))
    with pytest.raises(CheckpointError, match="no proper movelist: got nothing"):
        load_exported(path)


def test_loading_refuses_what_it_was_not_meant_for(tmp_path):
    net = trained(SHAPES["small table"])
    path = tmp_path / "policy.safetensors"
    export_net(net, info_of(net), path, "weights")
    with pytest.raises(CheckpointError, match=r"of another state_layout: got float32\[3\], expected float32\[4\]"):
        load_exported(path, state_layout="float32[4]")
    with pytest.raises(DataError, match=r"no row in the table: got 2 .*, expected 0 to 1 \(game with seed 8, turn 3\)"):
        ids, seed, turn = np.array([1, 2]), np.array([8]), np.array([3])
        load_exported(path).choose(Turns(np.zeros((1, 3)), np.array([2]), ids, seed, turn))
    with pytest.raises(CheckpointError, match="a policy file cannot be read: got No such file"):
        load_exported(tmp_path / "none.safetensors")


def test_without_onnxruntime_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r'pip install "movelist\[onnx\]"'):
        load_exported(tmp_path / "a.onnx")


def test_publishing_names_the_newest_last_and_keeps_three(tmp_path):
    net = trained(SHAPES["bits"])
    for version in (8, 9, 10, 11):
        latest = publish(net, info_of(net, version), tmp_path)
        assert latest == {"policy_version": version, "weights": f"policy-{version}.safetensors"}
        assert json.loads((tmp_path / "latest.json").read_text(encoding="utf-8")) == latest
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"latest.json", "policy-9.safetensors", "policy-10.safetensors", "policy-11.safetensors"}
    assert "pair.weight" in load_tensors((tmp_path / latest["weights"]).read_bytes())


def test_only_the_first_publication_is_compared_in_full(tmp_path, monkeypatch):
    reports = []
    monkeypatch.setattr(export, "export_net", lambda *given, **more: reports.append(export_net(*given, **more)))
    net = trained(SHAPES["bits"])
    for version in (1, 2, 3):
        publish(net, info_of(net, version), tmp_path)
    assert [report.num_lists for report in reports] == [200, 22, 22]
    assert reports[1].num_actions > 22 * 100, "lists are as long as in the full comparison"


def test_an_earlier_policy_taken_up_again_is_published_beside_the_later_ones(tmp_path):
    net = trained(SHAPES["bits"])
    for version in (10, 11, 12, 5, 6):
        publish(net, info_of(net, version), tmp_path)
    latest = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert latest["weights"] == "policy-6.safetensors" and (tmp_path / latest["weights"]).exists()
    assert not (tmp_path / "policy-5.safetensors").exists()


@needs_onnx
def test_publishing_onnx_too(tmp_path):
    net = trained(SHAPES["bits"])
    latest = publish(net, info_of(net, 5), tmp_path, profile="sentis15")
    assert latest == {"policy_version": 5, "weights": "policy-5.safetensors", "onnx": "policy-5.onnx"}
    assert load_exported(tmp_path / "policy-5.onnx").scorer.padded


def test_a_failed_publication_leaves_the_version_before(tmp_path):
    net = trained(ModelShape(state_size=12, hidden_dim=16), state_encoder=Planes(16))
    standard = trained(SHAPES["bits"])
    publish(standard, info_of(standard, 1), tmp_path)
    with pytest.raises(CheckpointError, match="got Planes"):
        publish(net, info_of(net, 2), tmp_path)
    assert json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))["policy_version"] == 1
