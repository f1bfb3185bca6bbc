"""Parts that are handed in: which are taken, what checkpoints say of them, and what is refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import movelist
from movelist.core.errors import CheckpointError, SettingsError
from movelist.core.settings import PlaySettings, TrainSettings
from movelist.learn.learner import Learner
from movelist.learn.loss import ppo_loss
from movelist.learn.make_net import try_out
from movelist.play.selfplay import Opponents, SelfPlay
from movelist.run import checkpoint
from movelist.run.folder import RunFolder
from movelist.run.parts import handed_in
from movelist.run.start import model_shape
from movelist.run.training import Training
from play.toys import Odd

SMALL = {
    "hidden_dim": 8,
    "update_frequency": 8,
    "batch_size": 32,
    "epochs_per_update": 1,
    "eval_games": 0,
    "tensorboard": False,
    "live": False,
    "device": "cpu",
}


class Encoder(nn.Sequential):
    def __init__(self, state_size, hidden_dim, *, scale=1.0):
        super().__init__(nn.Linear(state_size, hidden_dim), nn.Tanh())
        self.scale = scale


class Wide(nn.Linear):
    def __init__(self, state_size, hidden_dim):
        super().__init__(state_size, hidden_dim + 1)


def loss_of_my_own(*arguments):
    return ppo_loss(*arguments)


def train(folder, **given):
    return movelist.train(Odd(), out=folder, **{**SMALL, "total_steps": 60, **given})


def test_a_run_goes_on_with_the_encoder_that_its_checkpoint_names(tmp_path):
    train(tmp_path / "run", state_encoder=Encoder)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text(encoding="utf-8"))
    assert settings["state_encoder"].endswith(":Encoder")
    assert type(movelist.load(tmp_path / "run").net.state_encoder) is Encoder
    result = movelist.train(Odd(), resume=tmp_path / "run", total_steps=120)
    assert result.steps >= 120


def test_keywords_of_a_named_encoder_are_kept(tmp_path):
    name = f"{__file__}:Encoder(scale=0.5)"
    train(tmp_path / "run", state_encoder=name)
    assert movelist.load(tmp_path / "run").net.state_encoder.scale == 0.5


def test_an_encoder_that_was_handed_in_as_an_object_has_to_be_given_again(tmp_path):
    encoder = Encoder(4, 8)
    result = train(tmp_path / "run", state_encoder=encoder)
    assert torch.equal(result.policy.net.state_encoder[0].weight, encoder[0].weight)
    with pytest.raises(SettingsError, match=r"only its own program can make: got .*Encoder.* state_encoder=\.\.\."):
        movelist.load(tmp_path / "run")
    again = movelist.load(tmp_path / "run", state_encoder=Encoder(4, 8))
    assert torch.equal(again.net.state_encoder[0].weight, encoder[0].weight)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (Wide, r"the state encoder gives another size: got \[2, 9\], expected \[2, 8\] \(Wide\)"),
        (lambda *sizes: Encoder(*sizes), "this state_encoder cannot be found again by name"),
        (f"{__file__}:Encoder(heads=3)", "the state encoder cannot be made: got .*heads"),
        (f"{__file__}:train", "the state encoder cannot be made"),
        ("nothing_of_this_name:Encoder", "there is no module nothing_of_this_name"),
        ("Encoder", "this names no code"),
        (Encoder(5, 8), r"the state encoder fails on two states of zeros: got RuntimeError.*states \[2, 4\]"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_before_a_folder_is_made(encoder, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        train(tmp_path / "run", state_encoder=encoder)
    assert not (tmp_path / "run").exists()


class Scores(movelist.Network):
    """One that may do one thing wrong."""

    def __init__(self, shape, *, wrong="", wide=0):
        super().__init__(shape)
        self.wrong, self.layer = wrong, nn.Linear(shape.state_size + wide, 1)
        self.drop = nn.Dropout(0.5)

    def values(self, state_BS):
        value_B1 = self.layer(self.drop(state_BS))
        return value_B1 if self.wrong == "values" else value_B1.squeeze(-1)

    def forward(self, state_BS, encoded_U, step_A, unique_A, order=None):
        score_A = encoded_U.float().mean(-1)[unique_A] * self.layer.bias
        value_B = self.layer(state_BS).squeeze(-1)
        return {"scores": (score_A[:-1], value_B), "raise": 1 / 0 if self.wrong == "raise" else None}.get(
            self.wrong, (score_A, value_B)
        )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"wide": 1}, r"the network's values fails on two states of zeros: got RuntimeError: mat1 .*states \[2, 4\]"),
        ({"wrong": "values"}, r"the network's values gives other sizes: got \[\[2, 1\]\], expected \[\[2\]\] \(Scores"),
        (
            {"wrong": "scores"},
            r"the network's forward gives other sizes: got \[\[4\], \[2\]\], expected \[\[5\], \[2\]\]",
        ),
        ({"wrong": "raise"}, r"the network's forward fails .*: got ZeroDivisionError: division by zero \(Scores"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_a_folder_is_made(keywords, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        train(tmp_path / "run", net=Scores(shape_of_odd(), **keywords), action_encoder="bits")
    assert not (tmp_path / "run").exists()


def shape_of_odd():
    return model_shape(TrainSettings.from_flat({"hidden_dim": 8, "action_encoder": "bits"}), Odd())


def test_trying_a_network_draws_no_random_number_and_leaves_it_in_training(tmp_path):
    net = Scores(shape_of_odd())
    before = torch.random.get_rng_state()
    try_out(net, {})
    assert net.training and torch.equal(torch.random.get_rng_state(), before)
    assert train(tmp_path / "run", net=net, action_encoder="bits").updates


def test_weights_of_another_encoder_are_refused_in_one_line(tmp_path):
    train(tmp_path / "run", state_encoder=Encoder(4, 8))
    with pytest.raises(CheckpointError, match="the checkpoint's weights are of another network"):
        movelist.load(tmp_path / "run", state_encoder=nn.Linear(4, 8))


def test_what_a_run_was_trained_with_has_to_be_given_again(tmp_path):
    train(tmp_path / "run", loss=loss_of_my_own)
    with pytest.raises(CheckpointError, match=r"parts of its own.*expected loss .*loss_of_my_own.*loss=\.\.\."):
        movelist.train(Odd(), resume=tmp_path / "run", total_steps=120)
    assert movelist.train(Odd(), resume=tmp_path / "run", total_steps=120, loss=loss_of_my_own).steps >= 120


def test_a_resumed_run_may_get_another_loss_and_says_so(tmp_path, capsys):
    train(tmp_path / "run")
    movelist.train(Odd(), resume=tmp_path / "run", total_steps=120, loss=loss_of_my_own)
    said = " ".join(capsys.readouterr().out.split())
    assert "From here on with loss" in said


def test_each_part_is_built_once_and_the_one_that_was_handed_in_is_used(tmp_path, monkeypatch):
    class Counting(Learner):
        made = 0

        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            Counting.made += 1

    asked = []

    def policy(net):
        asked.append(net)
        return movelist.RandomPolicy()

    with monkeypatch.context() as patched:
        patched.setattr("movelist.run.training.Learner", None)  # the standard one is not even looked at
        result = train(tmp_path / "run", learner=Counting, policy=policy)
    assert Counting.made == 1
    assert len(asked) == result.updates
    assert len(set(asked)) == 1


def test_a_source_of_ones_own_is_asked_saved_and_closed(tmp_path):
    class Source(SelfPlay):
        closed = False

        def close(self):
            self.closed = True

    source = Source(Odd(), PlaySettings(), seed=7)
    result = train(tmp_path / "run", source=source)
    assert source.closed
    state = checkpoint.load(tmp_path / "run")
    assert state["source"] == {"num_started": 8 * result.updates}
    again = Source(Odd(), PlaySettings(), seed=7)
    movelist.train(Odd(), resume=tmp_path / "run", total_steps=120, source=again)
    assert again.num_started > source.num_started


def test_a_source_that_ends_ends_the_training(tmp_path):
    class Short(SelfPlay):
        def collect(self, policy, num_episodes):
            return super().collect(policy, num_episodes if self.num_started < 16 else 0)

    assert train(tmp_path / "run", source=Short(Odd(), PlaySettings()), total_steps=10_000).updates == 2


def test_the_callback_hears_of_each_update_and_its_error_loses_nothing(tmp_path):
    heard = []

    def hear(update):
        heard.append(update)
        if update.number == 3:
            raise RuntimeError("my logger broke")

    with pytest.raises(RuntimeError, match="my logger broke"):
        train(tmp_path / "run", after_update=hear, total_steps=1000)
    assert [update.number for update in heard] == [1, 2, 3]
    assert heard[0].steps == heard[0].episodes.num_steps
    assert heard[2].metrics["losses/entropy"] > 0
    assert checkpoint.load(tmp_path / "run")["learner"]["num_updates"] == 3


def test_opponents_take_turns_by_the_number_of_the_game():
    opponents = Opponents([movelist.RandomPolicy(), movelist.RandomPolicy()], share=0.5)
    assert opponents.seats(np.arange(8), 2).tolist() == [
        [0, 0], [0, 1], [0, 0], [1, 0], [0, 0], [0, 2], [0, 0], [2, 0],
    ]  # fmt: skip
    assert Opponents([movelist.RandomPolicy()], share=1.0).seats(np.arange(3), 3).tolist() == [
        [0, 1, 1], [1, 0, 1], [1, 1, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.05, 0.3, 0.77])
def test_opponents_get_their_share_of_the_games_however_they_are_cut_into_updates(share):
    opponents = Opponents([movelist.RandomPolicy()], share=share)
    whole = opponents.seats(np.arange(10_000), 2)
    assert abs((whole > 0).any(axis=1).mean() - share) < 1e-3
    assert np.array_equal(np.concatenate([opponents.seats(part, 2) for part in np.split(np.arange(10_000), 10)]), whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_only_the_learners_seats_are_learned_from(workers, tmp_path):
    class First:
        asked = 0

        def choose(self, turns):
            self.asked += len(turns.count_B)
            return np.zeros(len(turns.count_B), np.int64), np.zeros(len(turns.count_B), np.float32)

    first = First()
    settings, parts = handed_in(
        TrainSettings.from_flat({**SMALL, "rollout_workers": workers, "game": "odd"}), opponents=[first]
    )
    training = Training(settings, Odd(), RunFolder(tmp_path), parts=parts)
    episodes = training.collect()
    training.source.close()
    assert first.asked > 0
    assert episodes.num_steps - episodes.learnable().num_steps == first.asked
    training.update(training.prepare(episodes))


class WithoutValues(movelist.Network):
    def forward(self, *arguments):
        raise AssertionError("it cannot be made")


class WithoutForward(movelist.Network):
    def values(self, state_BS):
        raise AssertionError("it is refused before")


class Nothing:
    def collect(self, policy, num_episodes):
        raise AssertionError("nobody should ask")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": 3}, "this is not a movelist.Source: got int, expected an object with collect"),
        ({"opponents": [3]}, "this is not a policy: got int, expected an object with choose"),
        ({"opponents": []}, "opponents need a policy at least"),
        ({"loss": "ppo"}, "loss has to be callable: got str"),
        ({"opponents": [movelist.RandomPolicy()], "data": ["games.jsonl"]}, "opponents play in self-play only"),
        ({"opponents": [movelist.RandomPolicy()], "source": Nothing()}, "opponents play in self-play only"),
        ({"source": Nothing(), "data": ["games.jsonl"]}, "episodes can come from one place only"),
        ({"net": Encoder(4, 8)}, "this net cannot be found again by name"),
        ({"net": f"{__file__}:WithoutValues"}, "the network cannot be made: got .*abstract.*values"),
        ({"net": f"{__file__}:WithoutForward"}, "a network has no forward: got WithoutForward"),
        (
            {"net": f"{__file__}:Encoder", "state_encoder": Encoder},
            "has its state encoder inside",
        ),
    ],
)
def test_what_is_no_such_part_is_refused(given, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        train(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(SettingsError, match="the opponents' share of games"):
        Opponents([movelist.RandomPolicy()], share=share)
