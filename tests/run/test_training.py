"""What a training says before it starts, and which network it builds."""

import json
import types

import numpy as np
import pytest
import torch

from movelist.core import patience
from movelist.core.errors import GameError, SaveError, SettingsError
from movelist.core.settings import TrainSettings
from movelist.data.loader import nothing
from movelist.data.record_format import Widths
from movelist.games.catalog import make_game
from movelist.learn import device
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run.folder import RunFolder
from movelist.run.greeting import describe_update, greeting, without_effect
from movelist.run.recorded import OpenData
from movelist.run.start import model_shape
from movelist.run.totals import Totals
from movelist.run.training import Training
from play.toys import Odd, OddState

CPU = torch.device("cpu")


def settings_of(**flat):
    return TrainSettings.from_flat({"game": "odd", "hidden_dim": 16, "batch_size": 32, "device": "cpu", **flat})


def training(folder, played=None, **flat):
    return Training(settings_of(**flat), played or Odd(), RunFolder(folder))


def totals(episodes):
    return Totals.of(episodes, World(CPU))


@pytest.fixture
def no_card(monkeypatch):
    """A machine without an NVIDIA card, whatever this one has."""
    monkeypatch.setattr(device, "nvidia_card", lambda: None)


# --- The greeting


def test_the_first_line_says_that_there_is_no_data_so_self_play(tmp_path, no_card):
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    lines = greeting(training(tmp_path, make_game("kuhn_poker"), game="kuhn_poker"))
    assert lines[0].startswith("No --data, so self-play on OpenSpiel's kuhn_poker.")
    assert all("\n" not in line for line in lines)


def test_a_game_of_ones_own_is_not_called_openspiels(tmp_path, no_card):
    """movelist.train(game=MyGame()) sets both the game and its name."""
    (line,) = [line for line in greeting(training(tmp_path)) if "odd" in line and not line.startswith("Settings")]
    assert line == "Self-play on odd."


def test_an_idle_nvidia_card_is_the_very_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "nvidia_card", lambda: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    lines = greeting(training(tmp_path, device="auto"))
    assert lines[0] == (
        f"This machine has an NVIDIA GeForce RTX 4090, but torch {torch.__version__} is built for the CPU only. "
        "Install the CUDA build into this environment: https://pytorch.org/get-started/locally/"
    )
    assert "odd" in lines[1]
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert greeting(training(tmp_path))[0].endswith("cannot use it: check the driver with nvidia-smi.")


@pytest.mark.parametrize(
    ("goals", "text"),
    [
        ({"total_steps": 20_000}, "Stops after 20,000 steps (--total_steps)."),
        ({"total_steps": None, "max_seconds": 90.0}, "Stops after 90 s (--max_seconds)."),
        ({"total_steps": 500, "max_seconds": 0.5}, "Stops after 500 steps (--total_steps) or 0.5 s (--max_seconds)."),
        ({"total_steps": None}, "Stops after Ctrl-C only."),
    ],
)
def test_where_it_runs_and_when_it_stops(tmp_path, no_card, goals, text):
    (line,) = [line for line in greeting(training(tmp_path, **goals)) if line.startswith("On ")]
    assert line.startswith("On cpu, ")
    assert f", torch {torch.__version__}. " in line
    assert line.endswith(text)


def test_the_settings_that_differ_are_shown_and_they_suffice_to_run_again(tmp_path, no_card):
    settings = settings_of(lr=0.001, max_seconds=5.0)
    lines = greeting(Training(settings, Odd(), RunFolder(tmp_path)))
    assert lines[-1].startswith("Settings: game=odd, hidden_dim=16, ")
    shown = dict(part.split("=", 1) for part in lines[-1].removeprefix("Settings: ").partition(" (all")[0].split(", "))
    usual = TrainSettings().to_flat()
    assert shown == {name: str(value) for name, value in settings.to_flat().items() if value != usual[name]}


def test_a_resumed_training_says_where_it_goes_on(tmp_path, no_card):
    resumed = training(tmp_path)
    resumed.counters.steps, resumed.learner.num_updates = 12_345, 1_678
    assert "Going on after update 1,678, 12,345 steps." in greeting(resumed)
    assert not [line for line in greeting(training(tmp_path)) if line.startswith("Going on")]


# --- Settings that do nothing here, and settings that are too small


def test_a_narrow_network_in_mixed_precision_is_warned_of_on_a_processor(monkeypatch):
    monkeypatch.setattr("movelist.learn.device.multiplies_bfloat16", lambda: True)
    assert without_effect(settings_of(use_amp=True, hidden_dim=256), CPU) == []
    (line,) = without_effect(settings_of(use_amp=True, hidden_dim=255), CPU)
    assert line == "--use_amp makes a network of --hidden_dim 255 slower on a CPU; it helps from 256 on."


def test_settings_without_effect_are_named_in_a_line_each():
    assert without_effect(settings_of(num_games=8, update_frequency=8), CPU) == []
    (line,) = without_effect(settings_of(num_games=8, update_frequency=8, use_amp=True), CPU)
    assert line.startswith("--use_amp does nothing on this cpu: ")
    (line,) = without_effect(settings_of(num_games=513, update_frequency=512), CPU)
    assert line == ("--num_games 513 counts as 512: no more games than --update_frequency are played for an update.")
    assert len(without_effect(settings_of(num_games=9, update_frequency=8, use_amp=True), CPU)) == 2
    assert without_effect(settings_of(rollout_workers=8, update_frequency=8), CPU) == []
    (line,) = without_effect(settings_of(rollout_workers=9, update_frequency=8), CPU)
    assert line == "--rollout_workers 9 counts as 8: each needs a game of its own."
    (line,) = without_effect(settings_of(rollout_workers=2, data=["recordings"]), CPU, plays=False)
    assert line == "--rollout_workers 2 does nothing with --data: no games are played."


def play(num_episodes):
    return SelfPlay(Odd(), settings_of().play).collect(RandomPolicy(), num_episodes)


@pytest.mark.parametrize(
    ("num_episodes", "batch_size", "accumulation", "warnings"),
    [
        (32, 16, 1, []),
        (31, 16, 1, ["Warning: 31 episodes for an update make a noisy gradient"]),
        (32, 10_000, 1, ["Warning: 1 minibatch"]),
        (32, 20, 1000, ["Warning: 1 minibatch"]),
        (5, 10_000, 1, ["Warning: 5 episodes", "Warning: 1 minibatch"]),
    ],
)
def test_small_updates_are_warned_of(num_episodes, batch_size, accumulation, warnings):
    flat = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation, "update_frequency": num_episodes}
    update, episodes = settings_of(**flat).update, play(num_episodes)
    first, *others = describe_update(update, episodes, totals(episodes))
    assert [line.startswith(start) for line, start in zip(others, warnings, strict=True)] == [True] * len(warnings)
    assert first.startswith(f"An update: {num_episodes} episodes = about {episodes.num_steps:,} steps with ")
    minibatches = -(-episodes.num_steps // (batch_size * accumulation))
    assert f" = {minibatches:,} minibatch" in first
    assert f" of up to {batch_size * accumulation:,} steps x 4 epochs." in first


def test_a_smaller_update_than_was_asked_for_is_not_to_be_asked_for_again():
    """Time or data bound it; a higher --update_frequency would change nothing."""
    episodes = play(5)
    _, warning = describe_update(settings_of(batch_size=10_000).update, episodes, totals(episodes))
    assert warning.endswith("for the games played. Lower --batch_size.")


def test_exactly_four_minibatches_are_enough():
    episodes = play(40)
    quarter = -(-episodes.num_steps // 4)
    assert len(describe_update(settings_of(batch_size=quarter).update, episodes, totals(episodes))) == 1
    third = -(-episodes.num_steps // 3)
    assert len(describe_update(settings_of(batch_size=third).update, episodes, totals(episodes))) == 2


# --- The network's sizes


def test_the_game_chooses_the_action_encoder():
    shape = model_shape(settings_of(), Odd())
    assert (shape.state_size, shape.hidden_dim, shape.action_encoder, shape.num_actions) == (4, 16, "bits", 0)
    small = types.SimpleNamespace(
        num_players=2, name="small", action_encoder="table", num_actions=20, new_state=Odd().new_state
    )
    shape = model_shape(settings_of(), small)
    assert (shape.action_encoder, shape.num_actions) == ("table", 20)
    shape = model_shape(settings_of(action_encoder="bits"), small)
    assert (shape.action_encoder, shape.num_actions) == ("bits", 0)


@pytest.mark.parametrize(("name", "encoder"), [("kuhn_poker", "table"), ("dou_dizhu", "bits")])
def test_openspiel_games_choose_too(name, encoder):
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    game = make_game(name)
    shape = model_shape(settings_of(), game)
    assert shape.action_encoder == encoder
    assert shape.num_actions == (game.num_actions if encoder == "table" else 0)


def test_a_table_without_a_number_of_actions_is_refused():
    with pytest.raises(SettingsError) as caught:
        model_shape(settings_of(action_encoder="table"), Odd())
    assert str(caught.value) == ("--action_encoder table needs a game that tells its num_actions: got odd. Use bits.")
    game = Odd()
    game.action_encoder = "table"
    with pytest.raises(GameError, match="a table needs to know how many actions there are"):
        model_shape(settings_of(), game)


# --- Progress


@pytest.mark.parametrize(
    ("goals", "progress"),
    [
        ({"total_steps": 400}, 0.25),
        ({"total_steps": 400, "max_seconds": 4.0}, 0.5),
        ({"total_steps": None, "max_seconds": 8.0}, 0.25),
        ({"total_steps": None}, 0.0),
        ({"total_steps": 50}, 1.0),
    ],
)
def test_progress_is_that_of_the_nearer_goal(tmp_path, goals, progress):
    halfway = training(tmp_path, **goals)
    halfway.counters.steps, halfway.counters.seconds = 100, 2.0
    assert halfway.progress == progress


def test_pace(tmp_path):
    running = training(tmp_path, total_steps=1000)
    episodes = play(20)
    running.count(totals(episodes), seconds=3.0)
    pace = running.pace(totals(episodes), collect_seconds=1.0, learn_seconds=3.0)
    assert pace["charts/SPS"] == episodes.num_steps / 4
    assert pace["legal/actions_per_second"] == episodes.num_actions / 4
    assert pace["legal/actions_per_step"] == episodes.num_actions / episodes.num_steps
    assert pace["legal/decision_share"] == episodes.num_steps / episodes.num_turns
    assert (pace["perf/rollout_share"], pace["perf/update_share"]) == (0.25, 0.75)
    assert pace["charts/episodes"] == 20
    assert pace["charts/episodic_length"] == episodes.num_turns / 20
    for seat in (0, 1):
        assert pace[f"charts/episodic_return_seat_{seat}"] == pytest.approx(episodes.return_EP[:, seat].mean())
    left = 1000 - episodes.num_steps
    assert pace["charts/seconds_left"] == pytest.approx(3.0 * left / episodes.num_steps)


# --- The match at the end


def test_only_the_first_process_plays_the_match_at_the_end(tmp_path):
    """The others may leave: they wait for each other half an hour at most, and a match may take longer."""
    first = training(tmp_path, eval_games=4)
    assert first.final_match().num_games == 4
    first.world = World(CPU, rank=1, size=2)  # a word to the others would find no group and raise
    assert first.final_match() is None


def test_the_final_match_is_kept_in_the_run_folder(tmp_path):
    """With what it takes to play it again."""
    finished = training(tmp_path, eval_games=4, max_turns=3)
    path = finished.save()
    result = finished.final_match()
    kept = json.loads((tmp_path / "final_match.json").read_text(encoding="utf-8"))
    assert {name: kept.pop(name) for name in ("opponent", "checkpoint", "steps", "seed", "greedy", "max_turns")} == {
        "opponent": "random", "checkpoint": path.name, "steps": 0, "seed": 0, "greedy": True, "max_turns": 3,
    }  # fmt: skip
    assert kept == json.loads(json.dumps(result.to_json()))


def test_a_final_match_that_does_not_fit_on_the_disk_is_still_handed_out(tmp_path, monkeypatch):
    finished, said = training(tmp_path, eval_games=4), []
    finished.say = said.append

    def no_space(name, content):
        raise SaveError("a file cannot be written", got="No space left on device", where=name)

    monkeypatch.setattr(finished.folder, "write_json", no_space)
    assert finished.final_match().num_games == 4
    assert said == ["Warning: a file cannot be written: got No space left on device (final_match.json)"]


# --- Games that are cut off


def test_games_that_are_cut_off_are_warned_of_once(tmp_path):
    cut, said = training(tmp_path, Odd(most_turns=10**9), max_turns=5, update_frequency=8, eval_games=4), []
    cut.say = said.append
    for _ in range(2):
        cut.collect()
        cut.quick_match()
    assert said == [
        "Warning: 8 of 8 games (100.0%) were cut off at --max_turns 5. Learning takes their end for what it is, but "
        "win rates and returns count them as they stood. Raise --max_turns until games come to their end."
    ]
    assert cut.pace(cut.totals, collect_seconds=1.0, learn_seconds=1.0)["charts/truncated_share"] == 1.0


def test_a_match_alone_can_be_what_is_warned_of(tmp_path):
    """Greedy games may never end where drawn ones do."""
    greedy, said = training(tmp_path, Odd(most_turns=10**9), max_turns=5, eval_games=4, eval_every=1), []
    greedy.say = said.append
    assert greedy.quick_match()["arena/truncated_share"] == 1.0
    assert [line.startswith("Warning: 4 of 4 games (100.0%) were cut off") for line in said] == [True]


@pytest.mark.parametrize(("truncated", "warns"), [(0, 0), (9, 0), (10, 1), (1000, 1)])
def test_less_than_a_hundredth_of_games_cut_off_is_not_worth_a_word(tmp_path, truncated, warns):
    some, said = training(tmp_path), []
    some.say = said.append
    some._warn_of_truncated(truncated, 1000)
    assert len(said) == warns


# --- Little time


class Slow(Odd):
    """Each game that is played takes `seconds` on the clock that is given; a look at a fresh state is free."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def new_state(self, seed):
        self.clock[0] += self.seconds * (seed != 0)
        return super().new_state(seed)


def slow_training(folder, monkeypatch, seconds, **flat):
    clock = [0.0]
    monkeypatch.setattr("movelist.run.training.time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    slow, said = training(folder, Slow(clock, seconds), update_frequency=64, **flat), []
    slow.say = said.append
    return slow, said


def test_an_update_much_longer_than_max_seconds_is_said_and_made_of_fewer_games(tmp_path, monkeypatch):
    """A game takes 1 s and its learning as much: 1, 1 and 2 games are 8 s; 4 more would be beyond half of the 20 s."""
    slow, said = slow_training(tmp_path, monkeypatch, 1.0, max_seconds=20.0)
    assert len(slow.collect()) == 4
    assert said == [
        "Warning: an update of 64 games would take about 128 s, and --max_seconds is 20: updates are of fewer games, "
        "for now of 4. Give it more time, and they are whole."
    ]
    slow.count(slow.totals, seconds=8.0)
    assert len(slow.collect()) == 5  # of 2 s each, in 10 s
    assert len(said) == 1
    assert slow.source.num_started == 9


@pytest.mark.parametrize("flat", [{"max_seconds": 1e6}, {"max_seconds": None}])
def test_with_time_enough_an_update_has_the_games_asked_for(tmp_path, monkeypatch, flat):
    slow, said = slow_training(tmp_path, monkeypatch, 1.0, **flat)
    first = slow.collect()
    assert (len(first), said) == (64, [])
    slow.count(slow.totals, seconds=128.0)
    assert len(slow.collect()) == 64
    plain = SelfPlay(Odd(), slow.settings.play).collect(NetPolicy(slow.net), 64)
    assert np.array_equal(first.chosen_N, plain.chosen_N)  # the same games, in parts
    assert np.array_equal(first.return_EP, plain.return_EP)


def test_games_too_slow_for_any_limit_are_played_two_at_least(tmp_path, monkeypatch):
    """The first one pays for the start; how long games take is known from the second one on."""
    slow, said = slow_training(tmp_path, monkeypatch, 100.0, max_seconds=3.0)
    assert len(slow.collect()) == 2
    assert said[0].startswith("Warning: an update of 64 games would take about 12,800 s, and --max_seconds is 3: ")
    slow.count(slow.totals, seconds=400.0)
    assert len(slow.collect()) == 1


def test_first_games_without_a_decision_are_not_all_of_an_update(tmp_path, monkeypatch):
    """Only from the ninth game on there is something to decide."""
    slow, _ = slow_training(tmp_path, monkeypatch, 100.0, max_seconds=3.0)
    deal = OddState._deal

    def forced(state):
        deal(state)
        if sum(seed != 0 for seed in slow.game.seeds) <= 8:
            state.hand = state.hand[:1]

    monkeypatch.setattr(OddState, "_deal", forced)
    episodes = slow.collect()
    assert (len(episodes), episodes.num_steps > 0) == (16, True)


# --- An engine that is silent


def test_a_watched_folder_that_stays_silent_is_spoken_of(tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.0)
    settings = settings_of(data=[tmp_path], watch=True, update_frequency=64)
    watched = OpenData(Widths("odd", 2, (4,), "float32"), watched=tmp_path)
    waiting, said = Training(settings, Odd(), RunFolder(tmp_path / "run"), data=watched), []
    waiting.say = said.append
    monkeypatch.setattr(waiting.source, "collect", lambda *asked: nothing(watched.widths))
    monkeypatch.setattr(waiting.supply, "_tired", lambda: len(said) == 3)
    waiting.collect()
    assert said == [f"Waiting for 0 s for 64 new episodes in {tmp_path}."] * 3
