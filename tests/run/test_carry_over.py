"""--init_from after a patch: weights by the names of columns, and the same policy where nothing new is present."""

import numpy as np
import pytest
import torch

import movelist
from movelist.core.errors import CheckpointError, GameError
from movelist.run import checkpoint
from seeing import Market, MarketState

SMALL = {"hidden_dim": 16, "update_frequency": 16, "batch_size": 32, "eval_games": 0, "device": "cpu",
         "tensorboard": False, "live": False}  # fmt: skip


class Named(Market):
    """The market with names, and with what a patch adds, removes and puts elsewhere."""

    state_names = ("seat", "turn", "score")
    feature_names = ("price", "worth")

    def __init__(self, state=None, features=None):
        super().__init__()
        self.state_names, self.feature_names = state or self.state_names, features or self.feature_names

    def new_state(self, seed):
        return NamedState(self, seed)


class NamedState(MarketState):
    def observe(self, player):
        told = dict(zip(("seat", "turn", "score"), super().observe(player), strict=True))
        return [told.get(name, 0.0) for name in self.market.state_names]

    def action_features(self):
        told = [dict(zip(("price", "worth"), row, strict=True)) for row in super().action_features()]
        return [[row.get(name, 0.0) for name in self.market.feature_names] for row in told]


class Table(Named):
    action_encoder, num_actions, feature_names = "table", 40, ()

    def __init__(self, num_actions=40):
        super().__init__()
        self.num_actions = num_actions

    def new_state(self, seed):
        return TableState(self, seed)


class TableState(NamedState):
    """Its states tell no features."""

    def __getattribute__(self, name):
        if name == "action_features":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def legal_actions(self):
        return [number for number, _ in enumerate(self.ids)]


@pytest.fixture
def before(tmp_path):
    movelist.train(Named(), out=tmp_path / "before", total_steps=200, critic_sees="all", **SMALL)
    return tmp_path / "before"


def begun(game, run, out, **more):
    """The policy of a new run before its first update: it ends at once, with its weights as they began."""
    settings = {"init_from": run, "out": out, "total_steps": 1, "lr": 0.0, **SMALL, **more}
    movelist.train(game, **settings)
    return movelist.load(out)


STATE, IDS, OFFERS = [0.0, 0.5, -1.5], [5, 2**50, 9], [[0.5, 1.0], [1.5, 0.0], [0.0, 0.5]]


@pytest.mark.parametrize("critic_sees", ["state", "all"])
def test_the_policy_is_the_same_function_where_nothing_new_is_present(before, tmp_path, capsys, critic_sees):
    old = movelist.load(before).probabilities(STATE, IDS, OFFERS)
    game = Named(("armour", "score", "seat", "turn"), ("worth", "reach", "price"))
    capsys.readouterr()
    policy = begun(game, before, tmp_path / "after", critic_sees=critic_sees)
    said = capsys.readouterr().out.replace("\n", " ")
    assert "3 columns of the state by name, new: armour; 2 action features by name, new: reach" in said
    state = [0.0, STATE[2], STATE[0], STATE[1]]
    now = policy.probabilities(state, IDS, [[worth, 0.0, price] for price, worth in OFFERS])
    np.testing.assert_allclose(now, old, atol=1e-6)  # sums in another order
    assert not np.allclose(old, 1 / 3, atol=1e-3)
    learner = [checkpoint.load(run)["learner"] for run in (before, tmp_path / "after")]
    weight = learner[1]["net"]["state_encoder.layers.0.weight"]
    assert not weight[:, 0].any() and learner[1]["num_updates"] > learner[0]["num_updates"]
    if critic_sees == "all":
        critics = [each["critic"]["encoder.layers.0.weight"] for each in learner]
        torch.testing.assert_close(critics[1][:, [2, 3, 1, 4, 5]], critics[0])


def test_removed_columns_are_dropped(before, tmp_path, capsys):
    policy = begun(Named(("turn", "seat"), ("worth",)), before, tmp_path / "after")
    said = capsys.readouterr().out.replace("\n", " ")
    assert "2 columns of the state by name, dropped: score; 1 action features by name, dropped: price" in said
    old = movelist.load(before).probabilities([0.0, 0.5, 0.0], IDS, [[0.0, worth] for _, worth in OFFERS])
    now = policy.probabilities([0.5, 0.0], IDS, [[worth] for _, worth in OFFERS])
    np.testing.assert_allclose(now, old, atol=1e-6)


def test_features_that_come_to_a_game_start_at_zero(tmp_path, capsys):
    movelist.train(Named(), out=tmp_path / "before", total_steps=200, action_features="ignore", **SMALL)
    policy = begun(Named(), tmp_path / "before", tmp_path / "after")
    assert "all 2 action features are new" in capsys.readouterr().out.replace("\n", " ")
    old = movelist.load(tmp_path / "before").probabilities(STATE, IDS)
    np.testing.assert_array_equal(policy.probabilities(STATE, IDS, OFFERS), old)


def test_a_table_grows_by_rows_that_start_at_zero(tmp_path, capsys):
    movelist.train(Table(), out=tmp_path / "before", total_steps=200, **SMALL)
    policy = begun(Table(50), tmp_path / "before", tmp_path / "after")
    said = capsys.readouterr().out.replace("\n", " ")
    assert "40 rows of the table of actions, which had 40 and has 50" in said
    old = movelist.load(tmp_path / "before").probabilities(STATE, [0, 3, 39])
    np.testing.assert_array_equal(policy.probabilities(STATE, [0, 3, 39]), old)
    assert np.isfinite(policy.probabilities(STATE, [0, 49])).all()


def test_columns_without_names_have_to_be_as_many(before, tmp_path):
    game = Named()
    game.new_state = lambda seed: NamedState(Named(("seat", "turn")), seed)
    game.state_names = ()
    with pytest.raises(
        CheckpointError, match=r"another state_size: got 3, expected 2 .*names its columns, before and now"
    ):
        begun(game, before, tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_nothing_is_said_where_nothing_changed(before, tmp_path, capsys):
    begun(Named(), before, tmp_path / "after")
    assert "Carried over" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [("seat", "turn"), ("seat", "turn", "turn")])
def test_names_that_do_not_fit_are_refused(names, tmp_path):
    game = Named()
    game.new_state = lambda seed: NamedState(Named(), seed)
    game.state_names = names
    with pytest.raises(
        GameError, match=r"state_names does not name each column once: got .*expected 3 different names"
    ):
        movelist.train(game, out=tmp_path / "run", total_steps=1, **SMALL)
    assert not (tmp_path / "run").exists()
