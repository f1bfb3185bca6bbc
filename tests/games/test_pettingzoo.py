"""PettingZoo's environments, and ones with its interface that do all that it allows."""

import contextlib
import pickle
import sys

import numpy as np
import pytest

from movelist.core.errors import GameError, MissingExtraError
from movelist.games.catalog import make_game
from movelist.games.check import check_game
from movelist.games.pettingzoo import PettingZooGame

HERE = __file__


@pytest.fixture
def pettingzoo():
    return pytest.importorskip("pettingzoo", reason="an optional extra")


with contextlib.suppress(ImportError):
    from gymnasium.spaces import Box, Dict, Discrete
    from pettingzoo import AECEnv, ParallelEnv

    class Out(AECEnv):
        """Three agents pick 0, 1 or 2, the last pick is not legal; who picks a drawn number is out and pays each other.

        The agents' observations have three widths; a's mask is in its observation, b's in its info, c has none. Each
        pick earns 0.5 at once.
        """

        metadata = {"name": "out_v0", "is_parallelizable": False}  # noqa: RUF012
        possible_agents = ["a", "b", "c"]  # noqa: RUF012
        seeds = []  # noqa: RUF012

        def observation_space(self, agent):
            seen = Box(-9, 9, (1 + "abc".index(agent),))
            return Dict({"observation": seen, "action_mask": Box(0, 1, (3,), np.int8)}) if agent == "a" else seen

        def action_space(self, agent):
            return Discrete(3)

        def reset(self, seed=None, options=None):
            self.seeds.append(seed)
            self.chance = np.random.RandomState(seed)
            self.agents = list(self.possible_agents)
            self.last = dict.fromkeys(self.agents, -1)
            for name in ("rewards", "_cumulative_rewards"):
                setattr(self, name, dict.fromkeys(self.agents, 0.0))
            for name in ("terminations", "truncations"):
                setattr(self, name, dict.fromkeys(self.agents, False))
            self.infos = {agent: {"action_mask": self.mask(agent)} if agent == "b" else {} for agent in self.agents}
            self.agent_selection, self.turns = "a", 0
            self.drawn = self.chance.randint(3)

        def mask(self, agent):
            return np.int8([self.last[agent] != pick for pick in range(3)])

        def observe(self, agent):
            assert agent in self.agents
            seen = np.full(1 + "abc".index(agent), self.last[agent], np.float32)
            return {"observation": seen, "action_mask": self.mask(agent)} if agent == "a" else seen

        def step(self, action):
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                self._was_dead_step(action)
                return
            following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
            self._cumulative_rewards[agent] = 0
            self._clear_rewards()
            self.last[agent], self.turns = action, self.turns + 1
            self.rewards[agent] = 0.5
            if action == self.drawn and len(self.agents) > 1:
                self.terminations[agent] = True
                for other in self.agents:
                    self.rewards[other] += 1 if other != agent else 1 - len(self.agents)
                if len(self.agents) == 2:
                    self.terminations = dict.fromkeys(self.agents, True)
            if self.turns == 12:
                self.truncations = dict.fromkeys(self.agents, True)
            self.infos["b"] = {"action_mask": self.mask("b")} if "b" in self.agents else {}
            self.drawn = self.chance.randint(3)
            self.agent_selection = following
            self._accumulate_rewards()
            self._deads_step_first()

    class Unseeded(Out):
        """Draws from the generator that all of NumPy shares."""

        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.chance = np.random

    class Pennies(ParallelEnv):
        """Two at the same time; the first wins if both show the same, thrice."""

        render_mode = None
        metadata = {"name": "pennies_v0"}  # noqa: RUF012
        possible_agents = ["even", "odd"]  # noqa: RUF012

        def observation_space(self, agent):
            return Discrete(4)

        def action_space(self, agent):
            return Discrete(2)

        def reset(self, seed=None, options=None):
            self.agents, self.round = list(self.possible_agents), 0
            return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

        def step(self, actions):
            self.round += 1
            gain = 1.0 if actions["even"] == actions["odd"] else -1.0
            over, agents = self.round == 3, list(self.agents)
            self.agents = [] if over else agents
            seen = dict.fromkeys(agents, self.round)
            rewards = {"even": gain, "odd": -gain}
            return (
                seen,
                rewards,
                dict.fromkeys(agents, over),
                dict.fromkeys(agents, False),
                {each: {} for each in agents},
            )

    class Continuous(Pennies):
        def action_space(self, agent):
            return Box(0, 1, (2,))


@pytest.mark.usefixtures("pettingzoo")
@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3", "rps_v2", "go_v5(board_size=5)"])
def test_promises(name):
    game = make_game(f"pettingzoo:classic/{name}")
    assert check_game(game, num_games=2).name == f"pettingzoo:classic/{name}"
    travelled = pickle.loads(pickle.dumps(game))
    assert check_game(travelled, num_games=1) == check_game(game, num_games=1)


@pytest.mark.usefixtures("pettingzoo")
def test_a_game_of_tictactoe():
    """PettingZoo's board runs down the columns: 0, 1, 2 are one line."""
    game = PettingZooGame("classic/tictactoe_v3")
    state = game.new_state(0)
    assert (game.seats, game.num_actions, game.state_size) == (("player_1", "player_2"), 9, 18)
    for action in (0, 3, 1, 4):
        assert state.returns() == [0.0, 0.0]
        state.apply(list(state.legal_actions()).index(action))
    assert state.current_player() == 0
    assert state.legal_actions() == [2, 5, 6, 7, 8]
    assert [np.flatnonzero(state.observe(seat)).tolist() for seat in (0, 1)] == [[0, 2, 7, 9], [1, 3, 6, 8]]
    assert state.describe(0) == "player_1"
    assert state.action_name(1) == "action 5"
    state.apply(0)
    assert (state.current_player(), state.returns()) == (None, [1.0, -1.0])
    with pytest.raises(GameError, match="no such legal action: got index 0"):
        state.apply(0)


@pytest.mark.usefixtures("pettingzoo")
def test_agents_that_leave_dead_steps_and_seats_of_different_widths():
    game = PettingZooGame(f"{HERE}:Out")
    assert (game.name, game.seats, game.state_size) == ("pettingzoo:out_v0", ("a", "b", "c"), 6)
    report = check_game(game, num_games=20)
    assert report.max_legal_actions == 3
    left = 0
    for seed in range(20):
        state, gone = game.new_state(seed), set()
        env = state._env
        bare = {agent: 0.0 for agent in game.seats}
        while (seat := state.current_player()) is not None:
            gone |= set(game.seats) - set(env.agents)
            assert game.seats[seat] not in gone
            for agent in gone:
                assert state.observe(game.seats.index(agent))[:3].tolist() == [0, 0, 0]
            agent, last, number = game.seats[seat], env.last[game.seats[seat]], len(env.agents)
            assert state.legal_actions() == ([0, 1, 2] if agent == "c" else [k for k in range(3) if k != last])
            row = state.observe(seat)
            assert row[3:].tolist() == [float(seat == each) for each in range(3)]
            assert row[: seat + 1].tolist() == [last] * (seat + 1)
            drawn, others = env.drawn, list(env.agents)
            state.apply(0)
            bare[agent] += 0.5
            if env.last[agent] == drawn and number > 1:
                for other in others:
                    bare[other] += 1 if other != agent else 1 - number
        assert state.returns() == list(bare.values())
        left += bool(gone)
    assert left > 5


@pytest.mark.usefixtures("pettingzoo")
def test_the_seed_goes_in_by_its_last_31_bits():
    game = PettingZooGame(f"{HERE}:Out")
    game.new_state(2**63 - 1)
    assert type(game.new_state(5)._env).seeds[-2:] == [2**31 - 1, 5]


@pytest.mark.usefixtures("pettingzoo")
def test_chance_that_no_seed_reaches_is_found():
    with pytest.raises(GameError, match="the same seed and choices do not give the same game"):
        check_game(PettingZooGame(f"{HERE}:Unseeded"))


@pytest.mark.usefixtures("pettingzoo")
def test_a_parallel_environment_is_played_in_turns():
    game = PettingZooGame(f"{HERE}:Pennies")
    check_game(game)
    state = game.new_state(0)
    for turn, index in enumerate([1, 1, 0, 1, 0, 0]):
        assert state.current_player() == turn % 2
        assert state.observe(turn % 2).tolist() == [float(turn // 2 == each) for each in range(4)]
        state.apply(index)
    assert state.current_player() is None
    assert state.returns() == [1.0, -1.0]


@pytest.mark.usefixtures("pettingzoo")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("classic/tictactoe_v1", "PettingZoo has no such environment: got 'classic/tictactoe_v1'"),
        ("classic/foo", "PettingZoo has no such environment: got 'classic/foo'"),
        ("tictactoe", "this names no environment: got 'tictactoe', expected as in \"classic/connect_four_v3\""),
        ("classic/../x", "this names no environment: got 'classic/../x'"),
        ("classic/go_v5(9)", "this names no code: got 'classic/go_v5(9)', expected keywords as in"),
        (f"{HERE}:Continuous", "this game cannot be played here, because its actions are not numbered from 0: got Box"),
        (f"{HERE}:test_promises", "the game's own code failed: TypeError"),
        ("fractions:Fraction", "this makes no PettingZoo environment: got Fraction"),
    ],
)
def test_refusals_are_one_line(name, message):
    with pytest.raises(GameError) as caught:
        make_game(f"pettingzoo:{name}")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_without_pettingzoo(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtraError) as caught:
        make_game("pettingzoo:classic/tictactoe_v3")
    assert str(caught.value).startswith("PettingZoo's environments need an extra that is not installed: got ")
    assert str(caught.value).endswith('Install it with: pip install "movelist[pettingzoo]".')
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("pettingzoo")
def test_without_a_package_that_an_environment_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "chess", None)
    for name in [name for name in sys.modules if name.startswith("pettingzoo.classic.chess")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"chess.*movelist\[pettingzoo\]"):
        make_game("pettingzoo:classic/chess_v6")


@pytest.mark.usefixtures("pettingzoo")
def test_a_training_in_workers_its_recording_and_its_export(tmp_path, monkeypatch, capsys):
    import movelist
    from movelist.cli import main

    monkeypatch.chdir(tmp_path)
    small = {"hidden_dim": 16, "batch_size": 64, "update_frequency": 32, "eval_games": 20, "tensorboard": False}
    name = "pettingzoo:classic/tictactoe_v3"
    played = movelist.train(name, out="run", total_steps=200, live=False, rollout_workers=1, **small)
    alone = movelist.train(name, out="alone", total_steps=200, live=False, **small)
    assert [score.mean_return for score in played.match.seats] == [score.mean_return for score in alone.match.seats]
    further = movelist.train(resume="run", total_steps=400, live=False)
    assert further.steps >= 400
    assert main(["match", "run", "--num_games", "10"]) == 0
    assert main(["record", "--game", name, "--policy", "run", "--episodes", "20", "--out", "games.jsonl"]) == 0
    assert main(["check", "games.jsonl"]) == 0
    assert main(["train", "--data", "games.jsonl", "--out", "recorded", "--no-live", "--eval_games", "10"]) == 0
    assert main(["export", "run", "--out", "policy.safetensors", "--profile", "weights"]) == 0
    assert main(["match", "policy.safetensors", "--num_games", "10"]) == 0
