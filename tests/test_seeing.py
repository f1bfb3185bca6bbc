"""Action features and a critic that knows more: from games over files and the learner to policies and exports."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import movelist
from movelist.core.errors import CheckpointError, DataError, GameError, SettingsError
from movelist.core.settings import PlaySettings, TrainSettings, UpdateSettings
from movelist.data import recordings
from movelist.data.episode import concatenate
from movelist.data.loader import RecordedSource, RecordingStream, StoreStream
from movelist.data.record_rules import columns_of
from movelist.data.store import Store, StoreWriter
from movelist.games.catalog import make_game
from movelist.games.check import check_game
from movelist.games.columns import game_columns
from movelist.learn.critic import Critic
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.play.export import export_net
from movelist.play.exported import load_exported
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.policy_info import describe
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from recorded import assert_equal, read_all, record, with_step, write_lines
from seeing import Market

CPU = torch.device("cpu")
SMALL = {"hidden_dim": 16, "update_frequency": 16, "batch_size": 32, "eval_games": 0, "device": "cpu",
         "tensorboard": False, "live": False}  # fmt: skip


def play(num_games=12, *, policy=None, game=None, **settings):
    """Games of random players, of which a critic knows all."""
    source = SelfPlay(game or Market(), PlaySettings(**{"critic_sees": "all"} | settings))
    try:
        return source.collect(policy or RandomPolicy(), num_games)
    finally:
        source.close()


def made(encoder="bits", *, critic=True, seed=0, **settings):
    """A learner of the market, with a critic that knows the secret."""
    torch.manual_seed(seed)
    net = PolicyValueNet(ModelShape(state_size=3, hidden_dim=16, action_encoder=encoder, feature_size=2))
    own = Critic(3, 2, 16) if critic else None
    return Learner(net, UpdateSettings(**{"batch_size": 64, "epochs_per_update": 1} | settings), World(CPU), critic=own)


# ---------------------------------------------------------------------- games and workers


@pytest.mark.parametrize("settings", [{}, {"keep_forced": True}, {"max_turns": 3}, {"num_games": 3}], ids=str)
def test_episodes_hold_what_the_states_told(settings):
    episodes = play(**settings)
    assert episodes.feature_AF.shape == (episodes.num_actions, 2)
    turn_N = np.round(episodes.state_NS[:, 1] * 6)
    np.testing.assert_allclose(episodes.critic_state_NC[:, 1] * 6, turn_N, atol=1e-5)
    secret_E = episodes.critic_state_NC[episodes.episode_offsets[:-1], 0]
    assert set(secret_E.tolist()) == {-3.0, 3.0}
    np.testing.assert_array_equal(episodes.critic_state_NC[:, 0], secret_E[episodes.episode_N])
    if "max_turns" in settings:
        assert episodes.truncated_E.all()
        np.testing.assert_array_equal(episodes.final_critic_EC, np.stack([secret_E, np.full(12, 0.5)], 1).astype("f4"))
    else:
        assert episodes.final_critic_EC is None


@pytest.mark.parametrize("settings", [{}, {"max_turns": 3}], ids=str)
def test_workers_tell_the_same(settings):
    assert_equal(play(keep_forced=True, **settings), play(keep_forced=True, rollout_workers=2, **settings))


def test_a_critic_is_told_only_where_it_is_asked_for():
    episodes = play(critic_sees="state")
    assert episodes.critic_state_NC is None and episodes.feature_AF is not None


def test_openspiel_tells_a_critic_what_all_players_see():
    pytest.importorskip("pyspiel")
    game = make_game("leduc_poker")
    state = game.new_state(5)
    seen = [state.observe(player)[: -game.num_players] for player in range(2)]
    np.testing.assert_array_equal(state.observe_all(), np.concatenate(seen))
    assert not np.array_equal(*seen)
    assert game_columns(game) == () and game_columns(game, critic=True)[0].width == 2 * len(seen[0])


def test_a_game_that_tells_a_critic_nothing_is_refused():
    class Plain:
        num_players, name = 1, "plain"

        def new_state(self, seed):
            return object()

    with pytest.raises(GameError, match=r"a critic is to see all, and this game does not tell it \(plain\)"):
        game_columns(Plain(), critic=True)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"features": [1.0, 2.0]},
            "action_features returns something else: got float64 \\[2\\], expected a row of numbers",
        ),
        ({"features": [["a"]]}, "action_features returns something else: got <U1"),
        ({"all": [[1.0]]}, "observe_all returns something else: got float64 \\[1, 1\\]"),
        ({"features": [[1.0, 2.0]] * 9}, "a column has another form"),
        ({"all": [float("nan"), 1.0]}, "a column holds NaN or infinity"),
    ],
)
def test_check_game_holds_a_state_to_what_it_tells(told, message):
    check_game(Market(), num_games=3)
    with pytest.raises(GameError, match=message):
        check_game(Market(**told), num_games=3)


class Forgetful(Market):
    """Tells a critic something else each time it is asked."""

    def new_state(self, seed):
        state = super().new_state(seed)
        count = iter(range(10**6))
        state.observe_all = lambda: [next(count), 0.0]
        return state


def test_check_game_sees_that_asking_a_critic_changes_nothing():
    with pytest.raises(GameError, match="another column critic_state"):
        check_game(Forgetful(), num_games=1)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "arrows"])
def test_recordings_and_stores_hold_them(tmp_path, ending):
    ended, cut = (columns_of(play(keep_forced=True, **more), "market") for more in ({}, {"max_turns": 3}))
    columns = columns_of(concatenate([ended.raw, cut.raw]), "market")
    columns = replace(
        columns, raw=replace(columns.raw, reward_N=np.concatenate([ended.raw.reward_N, cut.raw.reward_N]))
    )
    writer = recordings.writer(tmp_path / f"a.{ending}")
    writer.write(columns)
    writer.close()
    (again,), problems = read_all(tmp_path / f"a.{ending}")
    assert not problems
    assert_equal(again, columns)
    known_E = ~np.isnan(again.raw.final_critic_EC).any(axis=1)
    np.testing.assert_array_equal(known_E, again.raw.truncated_E)
    store = StoreWriter(tmp_path / "store", keep_forced=True)
    store.add(again)
    store.commit()
    (back,) = Store(tmp_path / "store").recorded()
    assert_equal(back.raw, columns.raw)
    for stream in (
        RecordingStream([tmp_path / f"a.{ending}"], passes=1, seed=0, keep_forced=True),
        StoreStream(Store(tmp_path / "store"), passes=1, seed=0),
    ):
        source = RecordedSource(stream)
        taken = source.collect(None, 100)
        source.close()
        assert not np.isnan(taken.final_critic_EC[taken.truncated_E]).any() and taken.feature_AF is not None


def cut_off(**changes):
    """A record that was cut off, with what a critic may know."""
    made = record(end="truncated", final_states=[[1, 2], [3, 4]], **changes)
    for step in made["steps"]:
        step["critic_state"] = [7, 8, 9]
    return made


def test_a_recording_may_leave_out_what_a_critic_knows_at_the_end(tmp_path):
    lines = [cut_off(), cut_off(final_critic_state=[1, 2, 0.5])]
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", *lines))
    assert not problems
    np.testing.assert_array_equal(columns.raw.final_critic_EC, np.float32([[np.nan] * 3, [1, 2, 0.5]]))
    columns.raw.check()


@pytest.mark.parametrize(
    ("end", "message"),
    [([1, 2], "final_critic_state has another width: got 2, expected 3"),
     ([1, 2, 1e39], "final_critic_state holds NaN or infinity")],
)  # fmt: skip
def test_a_bad_final_critic_state_costs_its_episode(tmp_path, end, message):
    lines = [cut_off(), cut_off(final_critic_state=end)]
    (columns,), (problem,) = read_all(write_lines(tmp_path / "a.jsonl", *lines))
    assert len(columns) == 1 and message in str(problem)


def test_one_id_with_two_kinds_of_features_is_refused(tmp_path):
    twice = with_step(0, actions=[7, 7], action_features=[[1.0], [2.0]])
    for step in twice["steps"][1:]:
        step["action_features"] = [[0.0]] * len(step["actions"])
    parts, (problem,) = read_all(write_lines(tmp_path / "a.jsonl", twice))
    assert not parts and "an action id stands twice in one list" in str(problem)
    assert "two different actions need two ids" in str(problem)


# ---------------------------------------------------------------------- the learner


@pytest.mark.parametrize("encoder", ["bits", "features"])
def test_what_is_learned_from_is_what_was_played_by(encoder):
    learner = made(encoder, batch_size=4096)
    episodes = play(40, policy=NetPolicy(learner.net))
    metrics = learner.update(learner.prepare(episodes))
    assert abs(metrics["losses/approx_kl"]) < 1e-9
    unknown = replace(episodes, log_prob_N=np.full_like(episodes.log_prob_N, np.nan))
    other = made(encoder, batch_size=4096)
    np.testing.assert_allclose(
        other.prepare(unknown).targets["old_log_prob"], episodes.log_prob_N, atol=1e-5
    )  # float32 in two orders


def test_the_values_behind_the_advantages_are_the_critics():
    learner = made(normalize_advantage=False, scale_returns=False, gae_lambda=0.0)
    with torch.no_grad():
        learner.critic.value.weight.zero_()
        learner.critic.value.bias.fill_(7.0)
    episodes = play()
    last_N = np.zeros(episodes.num_steps, bool)
    for start, stop in zip(episodes.episode_offsets[:-1], episodes.episode_offsets[1:], strict=True):
        for player in (0, 1):
            mine = [n for n in range(start, stop) if episodes.player_N[n] == player]
            last_N[mine[-1:]] = True
    targets = learner.prepare(episodes).targets
    # One step ahead: reward - 7 at a player's last step, reward + 7 - 7 before.
    expected_N = episodes.reward_N - np.where(last_N, 7.0, 0.0)
    np.testing.assert_allclose(targets["advantage"], expected_N, atol=1e-5)
    np.testing.assert_allclose(targets["old_critic_value"], 7.0)
    own_N = learner.net.values(torch.from_numpy(episodes.state_NS)).detach().numpy()
    np.testing.assert_allclose(targets["old_value"], own_N, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_a_game_that_was_cut_off_goes_on_from_what_the_critic_knows_of_its_end(known):
    learner = made(normalize_advantage=False, scale_returns=False, gae_lambda=0.0)
    episodes = play(max_turns=3)
    if not known:  # as in recordings without it: the value of the state alone
        episodes = replace(episodes, final_critic_EC=None)
    with torch.no_grad():
        for parameter in learner.critic.parameters():
            parameter.zero_()
        learner.critic.value.bias.fill_(5.0)
    last_N = np.append(episodes.episode_N[1:] != episodes.episode_N[:-1], True)
    seat_N = (episodes.episode_N, episodes.player_N)
    ends = torch.from_numpy(episodes.final_state_EPS[seat_N])
    end_N = np.full(episodes.num_steps, 5.0) if known else learner.net.values(ends).detach().numpy()
    advantage_N = learner.prepare(episodes).targets["advantage"]
    np.testing.assert_allclose(advantage_N[last_N], (episodes.reward_N + end_N - 5.0)[last_N], atol=1e-5)


def test_batches_of_a_minibatch_add_up():
    weights = []
    for size, parts in ((64, 1), (16, 4)):
        learner = made(batch_size=size, gradient_accumulation_steps=parts)
        learner.update(learner.prepare(play(40)))
        weights.append(learner.trained.state_dict())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], msg=name, rtol=1e-4, atol=1e-6)


def test_a_critic_takes_nothing_from_the_policys_steps():
    """The same targets: the network learns the same beside a critic whose gradient is enormous and beside none."""
    episodes, nets = play(40), []
    for critic in (True, False):
        learner = made(critic=critic)
        prepared = learner.prepare(episodes)
        targets = prepared.targets | {"advantage": np.sin(np.arange(episodes.num_steps)).astype("f4")}
        targets["return"] = np.cos(np.arange(episodes.num_steps)).astype("f4")
        if critic:
            with torch.no_grad():
                learner.critic.value.bias.fill_(1000.0)
        metrics = learner.update(replace(prepared, targets=targets))
        nets.append(learner.net.state_dict())
        assert ("losses/critic_loss" in metrics) == critic
    for name, tensor in nets[0].items():
        assert torch.equal(tensor, nets[1][name]), name


def test_the_state_alone_stays_trained_and_the_critic_knows_more():
    learner = made(epochs_per_update=4, lr=3e-3)
    for _ in range(25):
        metrics = learner.update(learner.prepare(play(64, policy=NetPolicy(learner.net))))
    assert metrics["losses/explained_variance"] > 0.8  # the secret is nearly all of a return
    assert metrics["losses/state_explained_variance"] < 0.5
    assert metrics["losses/critic_loss"] < 0.5 * metrics["losses/value_loss"]


@pytest.mark.parametrize("change", [lambda critic_NC: None, lambda critic_NC: critic_NC[:, :1]])
def test_episodes_that_tell_the_critic_something_else_are_refused(change):
    episodes = play()
    episodes = replace(episodes, critic_state_NC=change(episodes.critic_state_NC), final_critic_EC=None)
    with pytest.raises(DataError, match=r"the critic is to see all, and the episodes do not tell that: got .* width 2"):
        made().prepare(episodes)


def test_another_critic_is_not_gone_on_with():
    with pytest.raises(CheckpointError, match="another critic: got one that reads 5 numbers, 16 wide, expected values"):
        made(critic=False).load_state_dict(made().state_dict())
    with pytest.raises(CheckpointError, match="another critic: got values from the state alone, expected one that"):
        made().load_state_dict(made(critic=False).state_dict())


def test_a_bad_number_of_the_critic_is_named_and_touches_no_weight():
    learner = made()
    prepared = learner.prepare(play())
    before = {name: tensor.clone() for name, tensor in learner.trained.state_dict().items()}
    prepared.targets["old_critic_value"][:] = 0.0
    with torch.no_grad():
        learner.critic.encoder.layers[0].weight[0, 0] = float("inf")
    before["1.encoder.layers.0.weight"][0, 0] = float("inf")
    with pytest.raises(movelist.MovelistError, match="the gradient of the critic's"):
        learner.update(prepared)
    for name, tensor in learner.trained.state_dict().items():
        assert torch.equal(tensor, before[name]), name


# ---------------------------------------------------------------------- policies and exports


def test_policy_value_and_exports_are_functions_of_the_state_alone(tmp_path):
    learner = made()
    learner.update(learner.prepare(play(40)))
    episodes = play(20)
    source = SelfPlay(Market(), PlaySettings(critic_sees="all"))
    asked = []

    class Noting(RandomPolicy):
        def choose(self, turns):
            asked.append(turns)
            return super().choose(turns)

    source.collect(Noting(), 20)
    turns = asked[0]
    told = next(column for column in turns.columns if column.name == "critic_state")
    info = describe(learner.net.shape, version="0.1.0", game="market", policy_version=1)
    state_NS, seen = torch.from_numpy(episodes.state_NS), []
    for number in range(2):
        policy = NetPolicy(learner.net)
        paths = {"weights": tmp_path / f"{number}.safetensors"}
        try:
            import onnx  # noqa: F401

            paths |= {"ort": tmp_path / f"{number}.onnx"}
        except ImportError:
            pass
        for profile, path in paths.items():
            export_net(learner.net, info, path, profile, value=profile == "ort")
        log_probs = [load_exported(path).log_probs(turns) for path in paths.values()]
        values = learner.net.values(state_NS).detach().numpy()
        seen.append([policy.log_probs(turns), *log_probs, values, *(path.read_bytes() for path in paths.values())])
        with torch.no_grad():  # another critic, and other secrets
            for parameter in learner.critic.parameters():
                parameter.add_(1.0)
        turns.columns[told][:] += 5.0
    for one, other in zip(*seen, strict=True):
        assert one == other if isinstance(one, bytes) else np.array_equal(one, other)


def test_without_ids_only_features_tell_actions_apart():
    net = made("features").net
    policy = NetPolicy(net)
    state, features = [0.0, 0.5, 1.0], [[1.0, 0.5], [0.0, 1.5], [1.0, 0.5]]
    one, other = policy.probabilities(state, [1, 2, 3], features), policy.probabilities(state, [9, 8, 2**63], features)
    np.testing.assert_array_equal(one, other)
    assert one[0] == one[2] != one[1]
    turned = policy.probabilities(state, [2, 1, 3], [features[1], features[0], features[2]])
    np.testing.assert_allclose(turned, one[[1, 0, 2]], atol=1e-6)


@pytest.mark.parametrize(
    ("features", "message"),
    [(None, r"the policy looks at action features: got none, expected \[2, 2\]"),
     ([[1.0], [2.0]], r"the policy looks at action features: got \[2, 1\], expected \[2, 2\]"),
     ([[1.0, 2.0]], r"got \[1, 2\], expected \[2, 2\]"),
     ([[1.0, 2.0], [1.0, float("nan")]], "action features hold NaN or infinity")],
)  # fmt: skip
def test_an_engine_that_leaves_out_features_is_told(features, message):
    with pytest.raises(DataError, match=message):
        NetPolicy(made().net).act([0.0, 0.0, 0.0], [1, 2], features)


def test_a_trainer_of_ones_own_evaluates_with_features():
    net = made().net
    lists = movelist.core.ragged.Segments.from_counts([2, 1])
    arguments = torch.zeros(2, 3), torch.tensor([7, 9, 5]), lists, torch.tensor([1, 0])
    log_prob_B, _, _ = net.evaluate(*arguments, action_features=torch.ones(3, 2))
    assert log_prob_B.shape == (2,)
    with pytest.raises(DataError, match=r"the network looks at action features, and there are none: expected \[A, 2\]"):
        net.evaluate(*arguments)


# ---------------------------------------------------------------------- whole trainings


@pytest.mark.parametrize("more", [{}, {"action_encoder": "features", "critic_sees": "all", "max_turns": 5}], ids=str)
def test_a_training_goes_on_as_if_it_had_not_stopped(tmp_path, more):
    weights = []
    for name, workers in (("whole", 0), ("resumed", 0), ("workers", 2)):
        goal = 300 if name == "whole" else 100
        movelist.train(Market(), out=tmp_path / name, total_steps=goal, rollout_workers=workers, **SMALL, **more)
        if name != "whole":
            movelist.train(Market(), resume=tmp_path / name, total_steps=300)
        state = checkpoint.load(tmp_path / name)["learner"]
        weights.append({**state["net"], **state.get("critic", {})})
    assert len(weights[0]) == len(made(more.get("action_encoder", "bits")).net.state_dict()) + 6 * bool(more)
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
        torch.testing.assert_close(tensor, weights[2][name], msg=name)
    policy = movelist.load(tmp_path / "whole")
    assert len(policy.probabilities([0, 0, 0], [1, 2], [[0.0, 1.0], [1.0, 0.0]])) == 2
    assert policy.net.shape.feature_size == 2


def recorded(tmp_path, **settings):
    writer = recordings.writer(tmp_path / "a.jsonl")
    writer.write(columns_of(play(60, keep_forced=True, **settings), "market"))
    writer.close()
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize("imitate", [False, True])
def test_recordings_are_trained_on_with_both(tmp_path, imitate, capsys):
    data = recorded(tmp_path)
    settings = {"critic_sees": "all", "action_encoder": "features", "learn_from": "all", "imitate": imitate}
    result = movelist.train(data=data, out=tmp_path / "run", **SMALL, **settings)
    assert result.policy.net.shape.feature_size == 2
    assert "by networks that name them only" not in capsys.readouterr().out
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert any("losses/critic_loss" in line for line in metrics)


def test_recordings_without_them_are_refused_or_trained_on_without(tmp_path):
    episodes = play(60, keep_forced=True, critic_sees="state")
    writer = recordings.writer(tmp_path / "a.jsonl")
    writer.write(columns_of(replace(episodes, feature_AF=None), "market"))
    writer.close()
    shared = SMALL | {"data": tmp_path / "a.jsonl", "learn_from": "all"}
    with pytest.raises(SettingsError, match="the critic is to see all, and the recordings have no critic_state"):
        movelist.train(out=tmp_path / "run", critic_sees="all", **shared)
    with pytest.raises(SettingsError, match="the network is to go by action_features, and the recordings have none"):
        movelist.train(out=tmp_path / "run", action_encoder="features", **shared)
    assert not (tmp_path / "run").exists()
    assert movelist.train(out=tmp_path / "run", **shared).policy.net.shape.feature_size == 0


def test_features_can_be_ignored_as_versions_before_did(tmp_path):
    movelist.train(Market(), out=tmp_path / "run", total_steps=50, action_features="ignore", **SMALL)
    path = tmp_path / "run" / "settings.json"
    settings = json.loads(path.read_text("utf-8"))
    assert settings.pop("action_features") == "ignore" and settings.pop("critic_sees") == "state"
    path.write_text(json.dumps(settings), encoding="utf-8")  # as such a version wrote it
    movelist.train(Market(), resume=tmp_path / "run", total_steps=100)
    assert movelist.load(tmp_path / "run").net.shape.feature_size == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"compile": "on"}, "compile is for networks without further columns: got action_features"),
     ({"action_features": "ignore", "action_encoder": "features"}, "action_encoder features needs action features")],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        movelist.train(Market(), out=tmp_path / "run", total_steps=50, **SMALL, **settings)


def test_settings_know_both():
    settings = TrainSettings.from_flat({"critic_sees": "all", "action_encoder": "features"})
    assert TrainSettings.from_flat(settings.to_flat()) == settings


def test_the_critic_begins_at_the_mean_of_far_off_returns_too():
    learner, episodes = made(lr=0.0), play(40)
    reward_N = episodes.reward_N.copy()
    last = {}
    for n, key in enumerate(zip(episodes.episode_N.tolist(), episodes.player_N.tolist(), strict=True)):
        last[key] = n
    reward_N[list(last.values())] += 1000.0
    learner.update(learner.prepare(replace(episodes, reward_N=reward_N, return_EP=episodes.return_EP + 1000.0)))
    assert float(learner.net.value_bias.detach()) > 10
    torch.testing.assert_close(learner.critic.value.bias, learner.net.value_bias)
