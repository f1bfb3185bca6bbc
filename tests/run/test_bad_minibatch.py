"""A number that goes bad in an update leaves its steps and the weights that they met in the run folder."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from movelist.core.errors import NonFiniteError
from movelist.core.ragged import Segments
from movelist.learn.batch import Rollout
from movelist.learn.guard import columns_of
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.run import checkpoint
from movelist.run.bad_minibatch import keep_bad_minibatch
from run.test_train import run
from small_updates import random_episodes


def poisoned(monkeypatch, after):
    """From update `after` + 1 on, one step's target is a number that overflows in the loss."""
    prepare = Learner.prepare

    def bad(learner, episodes):
        prepared = prepare(learner, episodes)
        if learner.num_updates == after:
            prepared.targets["advantage"][7] = np.inf
        return prepared

    monkeypatch.setattr(Learner, "prepare", bad)


def test_the_minibatch_is_written_and_named(tmp_path, monkeypatch):
    poisoned(monkeypatch, after=2)
    with pytest.raises(NonFiniteError) as caught:
        run(tmp_path, save_every=1, total_steps=10**6)
    message = str(caught.value)
    assert "\n" not in message
    assert "(update 3, minibatch " in message
    assert "Its steps are in bad-minibatch-000003.safetensors. The weights were not changed by it; " in message
    content = load_file(tmp_path / "bad-minibatch-000003.safetensors")
    assert np.isinf(content["advantage"]).sum() == 1
    steps = len(content["chosen"])
    assert content["state"].shape == (steps, 4)
    for name in ("player", "episode", "step", "old_log_prob", "advantage", "return", "old_value"):
        assert content[name].shape == (steps,)
    assert content["action_offsets"][-1] == len(content["action_id"])
    assert content["action_id"].dtype == np.int64
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == 2


def test_steps_with_a_bad_value_are_written_before_the_first_minibatch(tmp_path, monkeypatch):
    values = Learner._values
    monkeypatch.setattr(
        Learner, "_values", lambda learner, state: values(learner, state).where(state[:, 1] != 2, -np.inf)
    )
    with pytest.raises(NonFiniteError) as caught:
        run(tmp_path)
    message = str(caught.value)
    assert re.match(r"the value is not a finite number: got -inf \(before update 1, episode \d+, step \d+", message)
    assert "Its steps are in bad-minibatch-000001.safetensors. The weights were not changed; " in message
    content = load_file(tmp_path / "bad-minibatch-000001.safetensors")
    assert len(content["chosen"]) > 0
    assert (content["state"][:, 1] == 2).all()
    assert content["action_offsets"][-1] == len(content["action_id"])


def test_the_file_is_enough_to_compute_the_minibatch_again(tmp_path, monkeypatch):
    """Weights, states and lists give the old log-probs back: the policy that played is the one of the file."""
    poisoned(monkeypatch, after=0)
    with pytest.raises(NonFiniteError):
        run(tmp_path, total_steps=10**6, batch_size=10**4)  # one minibatch: the first, before any step
    content = load_file(tmp_path / "bad-minibatch-000001.safetensors")
    net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=16))
    weights = {name.removeprefix("net."): part for name, part in content.items() if name.startswith("net.")}
    net.load_state_dict({name: torch.from_numpy(part) for name, part in weights.items()})
    segments = Segments.from_counts(np.diff(content["action_offsets"]))
    log_prob_B, _, value_B = net.evaluate(
        torch.from_numpy(content["state"]), torch.from_numpy(content["action_id"]), segments,
        torch.from_numpy(content["chosen"]),
    )  # fmt: skip
    np.testing.assert_allclose(log_prob_B.detach().numpy(), content["old_log_prob"], atol=1e-5)  # float32, other sums
    np.testing.assert_allclose(value_B.detach().numpy(), content["old_value"], atol=1e-5)


def test_the_documented_way_to_look_at_it(tmp_path, monkeypatch, capsys):
    poisoned(monkeypatch, after=0)
    with pytest.raises(NonFiniteError):
        run(tmp_path, total_steps=10**6, batch_size=10**4)  # no step comes before it
    text = (Path(__file__).resolve().parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    block = block.replace("RUN/", f"{tmp_path.as_posix()}/").replace("000121", "000001").replace("=512", "=16")
    names = {}
    exec(block, names)
    assert capsys.readouterr().out.startswith("advantage [[")
    np.testing.assert_allclose(names["log_prob"].detach().numpy(), names["kept"]["old_log_prob"], atol=1e-5)


def test_the_files_that_the_docs_name_are_there():
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "reliability.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(tests/[^`]+|benchmarks/[^` ]+)`", text):
        assert (root / name).exists(), name
    for name in re.findall(r"`(test_[^`]+)`", text):
        assert (root / "tests" / "run" / name).exists(), name


def test_columns_of_some_steps():
    """By a slow walk over the steps."""
    episodes = random_episodes([2, 4, 1, 3, 5])
    rollout = Rollout(episodes, lambda ids: ids, torch.device("cpu"))
    target = np.arange(5) / 4
    found = columns_of(rollout, np.array([3, 0, 4]), {"return": target})
    lists = [episodes.action_id_A[a:b] for a, b in pairwise(episodes.action_offsets)]
    np.testing.assert_array_equal(found["action_id"], np.concatenate([lists[3], lists[0], lists[4]]))
    assert found["action_offsets"].tolist() == [0, 3, 5, 10]
    assert found["chosen"].tolist() == episodes.chosen_N[[3, 0, 4]].tolist()
    assert found["episode"].tolist() == [3, 0, 4]
    assert found["step"].tolist() == [0, 0, 0]
    assert found["return"].tolist() == [0.75, 0.0, 1.0]
    np.testing.assert_array_equal(found["state"], episodes.state_NS[[3, 0, 4]])


def test_without_space_or_minibatch_the_error_stays_as_it_is(tmp_path):
    net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=16))
    error = NonFiniteError("the value is not a finite number", do="Try.")
    assert keep_bad_minibatch(error, net, tmp_path / "a.safetensors") is error
    error.minibatch = {"chosen": np.zeros(2, np.int64)}
    assert keep_bad_minibatch(error, net, tmp_path / "gone" / "a.safetensors") is error
    kept = keep_bad_minibatch(error, net, tmp_path / "a.safetensors")
    assert str(kept) == "the value is not a finite number. Its steps are in a.safetensors. Try."
    header = (tmp_path / "a.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert json.loads(header[8 : 8 + size])["__metadata__"] == {"error": "the value is not a finite number. Try."}
