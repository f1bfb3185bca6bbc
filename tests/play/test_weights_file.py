"""The weights file: what is in it, and that nothing damaged is ever read."""

import zlib

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from movelist.core.errors import CheckpointError
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play import weights_file
from movelist.play.policy_info import PolicyInfo, describe, settings_hash


def made(**shape):
    torch.manual_seed(3)
    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=8, **shape))
    info = describe(net.shape, version="0.1.0", game="斗地主", policy_version=12, layout="hand-v2", return_scale=2.5)
    return net, info


@pytest.mark.parametrize("shape", [{}, {"action_encoder": "table", "num_actions": 7}, {"action_hidden_dim": 3}])
def test_a_file_reads_back_as_it_was_written(shape):
    net, info = made(**shape)
    found, weights = weights_file.from_bytes(weights_file.to_bytes(net, info), "here")
    assert found == info
    assert found.action_hidden_dim == (3 if "action_hidden_dim" in shape else 8)
    expected = weights_file.weights_of(net)
    assert weights.keys() == expected.keys()
    for name, array in expected.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(weights[name], array, err_msg=name)


def test_a_library_reads_it_too(tmp_path):
    net, info = made()
    path = tmp_path / "policy-12.safetensors"
    path.write_bytes(weights_file.to_bytes(net, info))
    with safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == "movelist-weights/1"
        assert file.metadata()["game"] == "斗地主"
        assert file.metadata()["policy_version"] == "12"
        assert file.metadata()["return_scale"] == "2.5"
        np.testing.assert_array_equal(file.get_tensor("pair.weight"), net.pair_weight.detach().numpy())


def test_the_same_policy_gives_the_same_bytes():
    contents = {weights_file.to_bytes(*made()) for _ in range(3)}
    assert len(contents) == 1


def test_the_last_bytes_are_the_checksum_of_all_others():
    content = weights_file.to_bytes(*made())
    assert content[-4:] == zlib.crc32(content[:-4]).to_bytes(4, "little")


def test_every_cut_and_every_flipped_bit_is_refused():
    content = weights_file.to_bytes(*made())
    for size in (0, 3, 8, 11, 12, 100, len(content) // 2, len(content) - 1):
        with pytest.raises(CheckpointError, match=rf"its checksum differs \(cut, {size} bytes\)"):
            weights_file.from_bytes(content[:size], "cut")
    for place in np.random.default_rng(0).integers(0, 8 * len(content), 300):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << (place % 8)
        with pytest.raises(CheckpointError, match="checksum differs"):
            weights_file.from_bytes(bytes(flipped), "flipped")


def with_checksum(content):
    return content + zlib.crc32(content).to_bytes(4, "little")


def test_files_of_others_are_refused():
    with pytest.raises(CheckpointError, match="a policy file cannot be read"):
        weights_file.from_bytes(with_checksum(b"something else"), "here")
    other = weights_file.to_bytes(*made())[:-4].replace(b"movelist-weights/1", b"movelist-weights/9")
    with pytest.raises(CheckpointError, match="no weights file of movelist: got movelist-weights/9"):
        weights_file.from_bytes(with_checksum(other), "here")
    other = weights_file.to_bytes(*made())[:-4].replace(b'"state_size":"5"', b'"state_size":"x"')
    with pytest.raises(CheckpointError, match="no proper state_size: got x"):
        weights_file.from_bytes(with_checksum(other), "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair.weight": None}, r"pair\.weight: got no such tensor, expected float32 \[8\] \(here\)"),
        ({"action1.bias": None}, r"action1\.bias: got no such tensor, expected float32 \[8\]"),
        ({"state1.weight": torch.zeros(5, 8)}, r"state1.weight: got float32 \[5, 8\], expected float32 \[8, 5\]"),
        ({"state1.bias": torch.zeros(8, dtype=torch.float64)}, r"state1.bias: got float64 \[8\], expected float32"),
        ({"critic": torch.zeros(1)}, r"critic: got float32 \[1\], expected no such tensor \(here\)"),
        ({"state2.bias": torch.full((8,), torch.nan)}, r"holds NaN or infinity in state2.bias \(here\)"),
        ({"state2.bias": torch.zeros(8, dtype=torch.bfloat16)}, "a policy file cannot be read: got 'BF16'"),
    ],
)
def test_files_made_by_hand_are_refused_by_the_tensor(change, message):
    net, info = made()
    metadata = {"format": weights_file.FORMAT, **info.to_metadata()}
    tensors = {name: torch.from_numpy(array) for name, array in weights_file.weights_of(net).items()} | change
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    content = save({**tensors, weights_file.CHECKSUM: torch.zeros(4, dtype=torch.uint8)}, metadata)
    with pytest.raises(CheckpointError, match=message):
        weights_file.from_bytes(with_checksum(content[:-4]), "here")


def test_an_unknown_action_encoder_is_refused():
    other = weights_file.to_bytes(*made())[:-4].replace(b'"action_encoder":"bits"', b'"action_encoder":"text"')
    with pytest.raises(CheckpointError, match="no proper action_encoder: got text, expected bits, table or features"):
        weights_file.from_bytes(with_checksum(other), "here")


def test_a_state_encoder_of_your_own_is_refused_by_name():
    class Planes(torch.nn.Linear):
        pass

    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=8), state_encoder=Planes(5, 8))
    with pytest.raises(CheckpointError, match=r"standard state encoder only: got Planes\. Export with --profile ort"):
        weights_file.to_bytes(net, made()[1])


def test_other_layouts_and_games_are_refused():
    info = made()[1]
    info.check("here", game="斗地主", state_layout="hand-v2")
    with pytest.raises(CheckpointError, match="of another state_layout: got hand-v2, expected hand-v3"):
        info.check("here", state_layout="hand-v3")
    with pytest.raises(CheckpointError, match="of another game: got 斗地主, expected chess"):
        info.check("here", game="chess")
    with pytest.raises(CheckpointError, match="no proper game: got nothing"):
        PolicyInfo.from_metadata({"movelist": "1"}, "here")


def test_the_settings_hash_follows_what_is_learned_not_where():
    first = settings_hash({"lr": 1e-3, "game": "x", "out": "runs/a"})
    assert first == settings_hash({"game": "x", "lr": 1e-3, "out": "runs/b"})
    assert first != settings_hash({"game": "x", "lr": 2e-3, "out": "runs/a"})
    assert len(first) == 16
