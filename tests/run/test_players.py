"""Players by their notation: each kind is found and plays, also in worker processes, and what is wrong is named."""

import json
import textwrap

import numpy as np
import pytest

import movelist
from movelist import cli
from movelist.core.errors import CheckpointError, GameError, PlayerError, SettingsError
from movelist.core.settings import PlaySettings
from movelist.games.bot import is_bot
from movelist.games.catalog import make_game
from movelist.play import arena
from movelist.play.policy import RandomPolicy
from movelist.play.workers import Workers
from movelist.run.players import every_player, find_player
from play.toys import Odd, Picker

BOTS = """
class Odds:
    def choose(self, state, seat):
        ids = list(state.legal_actions())
        return next((index for index, action in enumerate(ids) if action % 2), 0)

class Raises(Odds):
    def choose(self, state, seat):
        if state.turn > 1:
            raise ZeroDivisionError("no plan")
        return 0

class Beyond(Odds):
    def choose(self, state, seat):
        return len(state.legal_actions())

class Vague(Odds):
    def choose(self, state, seat):
        return "the first"

class Broken:
    def __init__(self):
        raise OSError("no book of openings")

class Neither:
    pass

class Batched:
    def choose(self, turns):
        return turns.count_B * 0, turns.count_B * 0.0
"""


@pytest.fixture
def bots(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bots.py").write_text(textwrap.dedent(BOTS), encoding="utf-8")
    return "bots.py:"


def play(player, *, workers=0, num_games=40, opponent=None):
    settings = PlaySettings(rollout_workers=workers)
    crew = Workers(Odd(), settings) if workers else None
    try:
        return arena.match(player, opponent or RandomPolicy(), Odd(), num_games=num_games, play=settings, workers=crew)
    finally:
        if crew:
            crew.close()


def test_a_bot_sees_the_state_and_plays_as_the_same_policy_does(bots):
    bot, version = find_player(bots + "Odds", Odd(), greedy=True)
    assert is_bot(bot)
    assert version == -1
    assert play(bot) == play(Picker(parity=1))


def test_bots_in_worker_processes_play_the_same_games(bots):
    bot, _ = find_player(bots + "Odds", Odd(), greedy=True)
    assert play(bot, workers=2) == play(bot)
    assert play(bot, workers=2, opponent=bot) == play(bot, opponent=bot)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Raises",
            r"got ZeroDivisionError: no plan at .*bots.py, line 10 \(game with seed \d+, turn \d+, seat ",
        ),
        ("Beyond", r"got index (\d), where one from 0 to \d is expected \(game with seed \d+, turn \d+, seat [01]\)$"),
        ("Vague", r"got 'the first', where an index from 0 to \d is expected \(game with seed \d+, turn \d+, seat "),
    ],
)
def test_a_bot_that_makes_no_choice_is_named_with_its_game(bots, workers, name, message):
    bot, _ = find_player(bots + name, Odd(), greedy=True)
    with pytest.raises(PlayerError, match=f"^the player bots.py:{name} made no choice: {message}"):
        play(bot, workers=workers)


class Wrong:
    """A policy whose answer is made by a function."""

    def __init__(self, answer):
        self.answer = answer

    def choose(self, turns):
        return self.answer(len(turns.count_B))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: 1 / 0, r"got ZeroDivisionError: division by zero at .*test_players.py, line \d+ \(game with seed"),
        (lambda n: (np.full(n, -1), np.zeros(n)), r"got index -1, where one from 0 to \d is expected \(game with seed"),
        (lambda n: (np.full(n, 9), np.zeros(n)), r"got index 9, where one from 0 to \d is expected \(game with seed"),
        (lambda n: (np.zeros(n + 1, int), np.zeros(n)), r"where two rows of \d+, indices and log-probabilities, are"),
        (lambda n: (np.zeros(n), np.zeros(n)), r"where two rows of \d+, indices and log-probabilities, are"),
        (lambda n: None, r"got None, where two rows of"),
    ],
)
def test_a_policy_that_answers_no_choice_is_named_with_its_game(answer, message):
    with pytest.raises(PlayerError, match=message):
        play(Wrong(answer))


def test_a_bot_and_a_policy_are_told_apart(bots):
    assert not is_bot(find_player(bots + "Batched", Odd(), greedy=True)[0])
    assert not is_bot(RandomPolicy())
    for thing, got in ((RandomPolicy, "the class RandomPolicy"), (object(), "object")):
        with pytest.raises(SettingsError, match=f"^this is no player: got {got}, expected a bot with choose"):
            is_bot(thing)
    with pytest.raises(SettingsError, match=r"^this is no player: got Neither, expected a bot with choose\(state"):
        find_player(bots + "Neither", Odd(), greedy=True)
    with pytest.raises(
        SettingsError, match=r"^this player cannot be made: got OSError: no book of openings at .*bots.py"
    ):
        find_player(bots + "Broken", Odd(), greedy=True)


def test_a_bot_that_cannot_be_sent_to_workers():
    class Local:
        def choose(self, state, seat):
            return 0

    with pytest.raises(SettingsError, match=r"^a bot cannot be sent to a worker process: got .* --rollout_workers 0"):
        play(Local(), workers=1)
    assert play(Local()).num_games == 40


def test_bots_of_openspiel():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's bots")
    game = make_game("tic_tac_toe")
    search, _ = find_player("openspiel:mcts(simulations=60)", game, greedy=True)
    result = arena.match(search, RandomPolicy(), game, num_games=20)
    assert result.win_rate > 0.7
    assert arena.match(search, RandomPolicy(), game, num_games=20, play=PlaySettings(num_games=3)) == result
    uniform, _ = find_player("openspiel:uniform_random", game, greedy=True)
    assert 0.3 < arena.match(uniform, RandomPolicy(), game, num_games=200).win_rate < 0.7
    first, _ = find_player("openspiel:fixed_action_preference", game, greedy=True)
    assert arena.match(first, first, game, num_games=4).wins == 2
    hidden = make_game("leduc_poker")
    assert arena.match(find_player("openspiel:ismcts", hidden, greedy=True)[0], RandomPolicy(), hidden, num_games=4)
    crew = Workers(game, PlaySettings(rollout_workers=1))
    try:
        assert arena.match(search, RandomPolicy(), game, num_games=20, workers=crew) == result
    finally:
        crew.close()


def test_what_openspiel_has_not():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's bots")
    game = make_game("tic_tac_toe")
    with pytest.raises(SettingsError, match=r"^OpenSpiel has no such bot for tic_tac_toe: .*mtcs.*openspiel:mcts"):
        find_player("openspiel:mtcs", game, greedy=True)
    with pytest.raises(SettingsError, match=r"^OpenSpiel cannot make this bot: got .*depth.*openspiel:mcts"):
        find_player("openspiel:mcts(depth=3)", game, greedy=True)
    with pytest.raises(GameError, match=r"^OpenSpiel's bots play OpenSpiel's games only: got odd"):
        find_player("openspiel:mcts", Odd(), greedy=True)


def test_the_best_checkpoint_of_a_run(tmp_path):
    options = {"eval_games": 0, "tensorboard": False, "update_frequency": 4, "hidden_dim": 8, "device": "cpu"}
    movelist.train(game=Odd(), out=tmp_path / "run", total_steps=1, **options)
    run = tmp_path / "run"
    assert movelist.match(run, "random", game=Odd(), num_games=4).num_games == 4
    with pytest.raises(CheckpointError, match=r"^the run has no best checkpoint: got .*run@best, .* Its newest one: "):
        find_player(f"{run}@best", Odd(), greedy=True)
    newest = max((run / "checkpoints").glob("update-*.pt"))
    (run / "checkpoints" / "best.json").write_text(json.dumps({"file": newest.name}), encoding="utf-8")
    _, version = find_player(f"{run}@best", Odd(), greedy=True)
    assert version >= 1
    with pytest.raises(CheckpointError, match=r"nowhere does not exist: got nowhere@best"):
        find_player("nowhere@best", Odd(), greedy=True)


def test_bots_from_the_command_line(bots, capsys, tmp_path):
    pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
    words = ["match", bots + "Odds", "--game", "kuhn_poker", "--num_games", "20", "--json"]
    assert cli.main([*words, "--against", "openspiel:uniform_random"]) == 0
    assert json.loads(capsys.readouterr().out)["num_games"] == 20
    out = tmp_path / "a.jsonl"
    words = ["record", "--game", "kuhn_poker", "--policy", bots + "Odds", "--against", "random", "--episodes", "6"]
    assert cli.main([*words, "--out", str(out)]) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + 6  # a head
    assert cli.main(["check", str(out)]) == 0
    assert cli.main(["match", bots + "Beyond", "--game", "kuhn_poker"]) == 1
    assert "made no choice: got index 2, where one from 0 to 1 is expected" in capsys.readouterr().err


def test_an_arena_from_the_command_line(bots, capsys, tmp_path):
    pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
    words = ["arena", bots + "Odds", "random", "--game", "kuhn_poker", "--num_games", "40"]
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split()[0] == "player"
    assert "0 is random." in shown.out
    assert "40 of 40 games played." in shown.err
    assert {file.name for file in (tmp_path / "arenas" / "kuhn_poker").iterdir()} == {"results.jsonl", "arena.html"}
    assert cli.main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert {standing["player"] for standing in json.loads(shown.out)["standings"]} == {bots + "Odds", "random"}
    assert "games played" not in shown.err  # all are known already
    (tmp_path / "bots.py").write_text(textwrap.dedent(BOTS) + "\n# another\n", encoding="utf-8")
    assert cli.main(words) == 0
    assert "40 of 40 games played." in capsys.readouterr().err  # other code is another player
    assert cli.main([*words, "--lang", "zh", "--against", "openspiel:uniform_random"]) == 0
    assert "random 为 0 分。" in capsys.readouterr().out
    assert cli.main([*words, "--seed", "4"]) == 2
    assert "results that were played otherwise: got seed 4 instead of 0" in capsys.readouterr().err
    assert cli.main(["arena", "--game", "kuhn_poker"]) == 2
    assert cli.main(["arena", "random", bots + "Odds"]) == 2
    assert "an arena needs to know its game" in capsys.readouterr().err


def test_every_checkpoint_of_a_run_meets(tmp_path, monkeypatch):
    options = {"eval_games": 0, "tensorboard": False, "update_frequency": 4, "hidden_dim": 8, "device": "cpu"}
    movelist.train(game=Odd(), out=tmp_path / "run", total_steps=60, save_every=1, keep_checkpoints=3, **options)
    run, said = tmp_path / "run", []
    kept = [str(file) for file in sorted((run / "checkpoints").glob("update-*.pt"))]
    assert every_player([f"{run}@all", "random"]) == [*kept, "random"]
    result = movelist.arena([f"{run}@all", run, "random"], game=Odd(), num_games=20, say=said.append)
    assert len(result.standings) == len(kept) + 1
    last = f"{run} (update {int(kept[-1][-9:-3])})"
    assert said[0] == f"{run} is the same player as {last}: it plays once."
    assert last in {standing.player for standing in result.standings}
    alone = movelist.arena([run], against="random", game=Odd(), num_games=20, say=said.append)
    assert {standing.player for standing in alone.standings} == {last, "random"}
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        every_player(["nowhere@all"])
