"""The peers' set-up: each return goes to its own seat, by hand and through the peers' own code.

The tests of the peers' code are skipped where the peer is not installed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benchmarks/peer_training.py, with all of benchmarks/peer_tables.py that it uses."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("peer_training")


class ThreeTurns:
    """Seats A, B, A move; then A has won 1 and B has lost 1, whatever they did."""

    num_players = 2

    def new_state(self, seed: int) -> "ThreeTurnsState":
        return ThreeTurnsState()


class ThreeTurnsState:
    turn = 0

    def current_player(self) -> int | None:
        return self.turn % 2 if self.turn < 3 else None

    def legal_actions(self) -> list[int]:
        return [7, 9] if self.turn < 3 else []

    def observe(self, player: int) -> list[float]:
        return [float(player), float(self.turn)]

    def apply(self, index: int) -> None:
        self.turn += 1

    def returns(self) -> list[float]:
        return [0.0, 0.0] if self.turn < 3 else [1.0, -1.0]


def credited(training: Any, seats: str, rewards: dict[int, list[float]], ends: set[int], **given: Any) -> list[Any]:
    """(place, reward, over) of one table's turns; `seats` as in "ABA", rewards by turn."""
    seat_TN = np.array([["ABC".index(seat)] for seat in seats])
    reward_TNP = np.zeros((len(seats), 1, 3))
    for turn, reward in rewards.items():
        reward_TNP[turn, 0] = reward
    over_TN = np.array([[turn in ends] for turn in range(len(seats))])
    value_TN = given.get("values", np.zeros((len(seats), 1)))
    streams = training.own_streams(seat_TN, reward_TNP, over_TN, value_TN, given.get("gamma", 1.0))
    return list(zip(streams.place_R, streams.reward_R, streams.over_R, strict=True))


def test_the_end_pays_every_seat_at_its_own_last_step(training: Any) -> None:
    steps = credited(training, "ABCAB", {4: [2, -1, -1]}, {4})
    assert steps == [(0, 0, False), (3, 2, True), (1, 0, False), (4, -1, True), (2, -1, True)]


def test_what_others_turns_pay_belongs_to_the_step_before(training: Any) -> None:
    steps = credited(training, "ABA", {0: [1, 0, 0], 1: [10, 5, 0], 2: [100, 50, 0]}, {2})
    # A's first step: its own turn's 1 and B's turn's 10. B's only step: all that came to B from then on.
    assert steps == [(0, 11, False), (2, 100, True), (1, 55, True)]


def test_a_cut_stream_is_bootstrapped_from_the_seats_own_next_value(training: Any) -> None:
    values = np.array([[0.1], [0.2], [0.4], [0.8]])
    steps = credited(training, "ABAB", {}, set(), values=values, gamma=0.5)
    # The last step of each seat is not trained on: 0.5 times its value goes to the step before.
    assert steps == [(0, 0.5 * 0.4, True), (1, 0.5 * 0.8, True)]


def test_a_new_game_starts_new_streams(training: Any) -> None:
    steps = credited(training, "ABAA", {1: [1, -1, 0]}, {1}, values=np.array([[1.0], [1.0], [3.0], [4.0]]))
    # Turn 2 begins the second game: A's step 0 ends with the first, and step 3 only serves step 2.
    assert steps == [(0, 1, True), (2, 4, True), (1, -1, True)]


def test_a_seat_that_never_moves_gets_nothing(training: Any) -> None:
    assert credited(training, "AA", {1: [1, -1, 0]}, {1}) == [(0, 0, False), (1, 1, True)]


def test_tables_of_different_length_keep_apart(training: Any) -> None:
    seat_TN = np.array([[0, 1], [1, 0]])
    reward_TNP = np.array([[[0, 0], [0, 0]], [[3, -3], [-5, 5]]], float)
    over_TN = np.array([[False, False], [True, True]])
    streams = training.own_streams(seat_TN, reward_TNP, over_TN, np.zeros((2, 2)), 1.0)
    assert dict(zip(streams.place_R, streams.reward_R, strict=True)) == {0: 3, 2: -3, 3: -5, 1: 5}


def make_tables(training: Any) -> Any:
    return training.Tables(ThreeTurns(), {7: 0, 9: 1}, 2, 0)


def test_tables_show_the_mover_and_count(training: Any) -> None:
    tables = make_tables(training)
    assert tables.observe().tolist() == [[0, 0], [0, 0]]
    assert tables.masks().tolist() == [[True, True]] * 2
    for _ in range(4):
        tables.play([1, 0])
    assert tables.observe().tolist() == [[1, 1], [1, 1]]
    assert (tables.num_finished, tables.num_turns, tables.num_games) == (2, 8, 3.0)
    seat_TN, reward_TNP, over_TN = tables.take_log()
    assert seat_TN[:, 0].tolist() == [0, 1, 0, 0]
    assert reward_TNP[:, 1].tolist() == [[0, 0], [0, 0], [1, -1], [0, 0]]
    assert over_TN[:, 0].tolist() == [False, False, True, False]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_maskable_ppo_learns_each_seats_own_return(training: Any) -> None:
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed (dependency group baselines)")
    given = {"n_steps": 7, "n_epochs": 1, "batch_size": 4, "gamma": 1.0, "gae_lambda": 1.0, "seed": 0}
    model = training.maskable_ppo(make_tables(training), hidden_dim=8, **given)
    for _ in range(2):  # the second rollout starts with the second turn of a game, and has the full size again
        model.learn(14, reset_num_timesteps=False)
        buffer = model.rollout_buffer
        seat_R, return_R = buffer.observations[:, 0], buffer.returns[:, 0]
        finished = np.isclose(abs(return_R), 1.0, atol=1e-6)  # lambda 1: a finished game's return is the target
        assert finished.sum() >= 2 * 5  # float32 sums of values and advantages: a few 1e-7
        assert return_R[finished] == pytest.approx(np.where(seat_R[finished] == 0, 1.0, -1.0), abs=1e-6)
        assert len(return_R) == buffer.buffer_size


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_openspiel_ppo_learns_each_seats_own_return(training: Any) -> None:
    pytest.importorskip("open_spiel.python.pytorch.ppo", reason="OpenSpiel is not installed (extra games)")
    tables = make_tables(training)
    agent = training.openspiel_ppo(tables, hidden_dim=8, steps_per_batch=6, num_minibatches=2, update_epochs=1)
    before = [parameter.detach().clone() for parameter in agent.network.parameters()]
    last = training.openspiel_rollout(agent, tables, 6)
    training.credit_openspiel(agent, tables)
    seat_R = agent.obs[:, 0, 0].numpy()
    assert seat_R.tolist() == [0, 0, 0, 0, 1, 1] * 2
    assert agent.rewards[:, 0].tolist() == [0, 1, 0, 1, -1, -1] * 2
    assert agent.dones[:, 0].tolist() == [0, 1, 0, 1, 1, 1] * 2
    agent.learn(last[:1])
    assert any((old != new).any() for old, new in zip(before, agent.network.parameters(), strict=True))


def test_a_missing_peer_is_named(training: Any, tmp_path: Path) -> None:
    # An empty package hides the real one.
    (tmp_path / "sb3_contrib.py").write_text("raise ImportError('no sb3_contrib here')", encoding="utf-8")
    (tmp_path / "out").mkdir()
    order = json.dumps({"folder": str(tmp_path / "out"), "game": "tic_tac_toe"})
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, str(BENCHMARKS / "peer_training.py"), "maskable_ppo", order]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True, timeout=300)
    figures = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert "sb3" in figures["missing"]


def test_a_training_that_breaks_off_is_left_out(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    peers = pytest.importorskip("peers")
    options = peers.Options(trainers=("maskable_ppo", "openspiel_ppo"))
    assert "KeyError: 'nobody'" in peers.train("nobody", options, tmp_path / "nobody")["failed"]

    whole = {"seconds": 2.0, "cores": 0.5, "turns": 10, "games": 1, "decisions": 6, "updates": 1, "load_before": 0.0}
    outcomes = {"openspiel_ppo": {"failed": "ValueError: NaN"}, "movelist": dict(whole), "maskable_ppo": dict(whole)}
    monkeypatch.setattr(peers, "train", lambda name, options, folder: dict(outcomes[name]))
    assert list(peers.measure(options, tmp_path)) == ["movelist", "maskable_ppo"]
    assert (
        "openspiel_ppo is left out, since its training failed. Its last words:\nValueError: NaN"
        in capsys.readouterr().out
    )
    outcomes["movelist"] = {"failed": "no memory"}
    with pytest.raises(SystemExit):
        peers.measure(options, tmp_path)
