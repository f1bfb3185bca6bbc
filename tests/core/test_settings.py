"""Settings check themselves, say what is wrong in one line, and turn into plain names and back."""

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from movelist.core import settings
from movelist.core.benchmark_settings import BenchmarkSettings
from movelist.core.errors import SettingsError
from movelist.core.settings import (
    DataSettings,
    MatchSettings,
    ModelSettings,
    PlaySettings,
    RecordSettings,
    RunSettings,
    TrainSettings,
    UpdateSettings,
)

GROUPS = [ModelSettings, UpdateSettings, PlaySettings, DataSettings, RunSettings, MatchSettings]


@pytest.mark.parametrize("kind", [*GROUPS, TrainSettings])
def test_the_defaults_are_good_and_cannot_be_changed(kind):
    made = kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, 1)


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        (ModelSettings, "hidden_dim", 0, "at least 1"),
        (ModelSettings, "action_hidden_dim", 0, "at least 1"),
        (UpdateSettings, "batch_size", 0, "at least 1"),
        (UpdateSettings, "update_frequency", -1, "at least 1"),
        (UpdateSettings, "epochs_per_update", 0, "at least 1"),
        (UpdateSettings, "gradient_accumulation_steps", 0, "at least 1"),
        (UpdateSettings, "max_actions_per_minibatch", 0, "at least 1"),
        (UpdateSettings, "empty_cache_every", -1, "at least 0"),
        (UpdateSettings, "lr", -1e-9, "at least 0"),
        (UpdateSettings, "lr", float("nan"), "a finite number"),
        (UpdateSettings, "lr", float("inf"), "a finite number"),
        (RunSettings, "seed", 10**400, "a finite number"),
        (UpdateSettings, "ent_coef", -0.1, "at least 0"),
        (UpdateSettings, "vf_coef", -0.1, "at least 0"),
        (UpdateSettings, "clip_range", 0.0, "above 0"),
        (UpdateSettings, "clip_range_vf", 0.0, "above 0"),
        (UpdateSettings, "max_grad_norm", 0.0, "above 0"),
        (UpdateSettings, "target_kl", 0.0, "above 0"),
        (UpdateSettings, "target_kl", float("inf"), "a finite number"),
        (UpdateSettings, "gamma", 1.1, "0 to 1"),
        (UpdateSettings, "gamma", float("nan"), "0 to 1"),
        (UpdateSettings, "gae_lambda", -0.1, "0 to 1"),
        (PlaySettings, "num_games", 0, "at least 1"),
        (PlaySettings, "max_turns", 0, "at least 1"),
        (PlaySettings, "rollout_workers", -1, "at least 0"),
        (PlaySettings, "rollout_workers", 61, "at most 60"),
        (RunSettings, "total_steps", 0, "at least 1"),
        (BenchmarkSettings, "num_episodes", 0, "at least 1"),
        (BenchmarkSettings, "cpu_time", True, "--num_threads 1 and --device cpu with it"),
        (RunSettings, "num_threads", 0, "at least 1"),
        (RunSettings, "save_every", 0, "at least 1"),
        (RunSettings, "save_minutes", 0.0, "above 0"),
        (RunSettings, "eval_every", 0, "at least 1"),
        (RunSettings, "keep_checkpoints", 0, "at least 1"),
        (RunSettings, "eval_games", -1, "at least 0"),
        (RunSettings, "seed", -1, "at least 0"),
        (RunSettings, "max_seconds", 0.0, "above 0"),
        (MatchSettings, "num_games", 0, "at least 1"),
        (MatchSettings, "seed", -1, "at least 0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(kind, name, value, expected):
    with pytest.raises(SettingsError) as caught:
        kind(**{name: value})
    assert str(caught.value).startswith(f"--{name} cannot be used: got {value}, expected {expected}. ")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ModelSettings, "action_encoder", "bit"),
        (ModelSettings, "hidden_dim", 64.5),
        (UpdateSettings, "batch_size", "64"),
        (UpdateSettings, "batch_size", 1.5),
        (UpdateSettings, "batch_size", True),
        (UpdateSettings, "batch_size", None),
        (UpdateSettings, "lr", "fast"),
        (UpdateSettings, "use_amp", "no"),
        (UpdateSettings, "lr_schedule", "cosine"),
        (UpdateSettings, "gamma", "1"),
        (RunSettings, "device", "gpu"),
        (RunSettings, "seed", 1.5),
        (RunSettings, "total_steps", "all"),
        (RunSettings, "total_steps", 10.0),
        (BenchmarkSettings, "num_episodes", "200"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(kind, name, value):
    with pytest.raises(SettingsError, match=f"^--{name} cannot be used: "):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "values", "command"),
    [
        (PlaySettings, {"num_games": 0}, "train"),
        (MatchSettings, {"num_games": 0}, "match"),
        (RecordSettings, {"out": Path("a.jsonl"), "episodes": 0}, "record"),
        (RecordSettings, {"out": "a.jsonl"}, "record"),
        (BenchmarkSettings, {"batch_sizes": (1,)}, "benchmark"),
    ],
)
def test_the_help_named_is_that_of_the_command(kind, values, command):
    with pytest.raises(SettingsError, match=f"movelist {command} --help explains each flag"):
        kind(**values)


def test_total_steps_that_nobody_gave_differ_from_the_same_number_given():
    assert RunSettings().step_goal == RunSettings(total_steps=500_000).step_goal == 500_000
    assert RunSettings() != RunSettings(total_steps=500_000)
    assert RunSettings(total_steps=None).step_goal is None
    with pytest.raises(SettingsError, match="got all, expected int or auto or None"):
        RunSettings(total_steps="all")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (UpdateSettings, {"lr": 0, "ent_coef": 0, "vf_coef": 0, "gamma": 0, "gae_lambda": 1}),
        (UpdateSettings, {"clip_range_vf": None, "target_kl": None, "batch_size": 1}),
        (RunSettings, {"total_steps": None, "max_seconds": None, "num_threads": None, "eval_games": 0}),
        (ModelSettings, {"action_hidden_dim": None, "hidden_dim": 1}),
    ],
)
def test_the_edges_and_none_are_allowed(kind, values):
    made = kind(**values)
    assert {name: getattr(made, name) for name in values} == values


def test_flat_names_find_their_groups_and_come_back_through_json():
    flat = {"game": "kuhn_poker", "lr": 1e-3, "hidden_dim": 128, "num_games": 7, "seed": 3, "out": "runs/麻将 1"}
    made = TrainSettings.from_flat(flat)
    assert (made.game, made.update.lr, made.model.hidden_dim, made.play.num_games) == ("kuhn_poker", 1e-3, 128, 7)
    assert made.run.out == Path("runs/麻将 1")
    stored = json.loads(json.dumps(made.to_flat()))
    assert TrainSettings.from_flat(stored) == made
    assert set(stored) == {"game", *(f.name for kind in GROUPS[:-1] for f in dataclasses.fields(kind))}


def test_no_name_stands_in_two_groups():
    names = [f.name for kind in GROUPS[:-1] for f in dataclasses.fields(kind)]
    assert len(names) == len(set(names))


def test_an_unknown_name_offers_the_nearest_or_nothing():
    with pytest.raises(SettingsError) as caught:
        TrainSettings.from_flat({"hiden_dim": 64})
    assert str(caught.value) == "unknown setting 'hiden_dim'. Did you mean 'hidden_dim'?"
    with pytest.raises(SettingsError) as caught:
        TrainSettings.from_flat({"qqqqqqqq": 1})
    assert str(caught.value) == "unknown setting 'qqqqqqqq'"


def test_every_setting_is_explained():
    """The text under a field is its help; a field without one is a flag that nobody understands."""
    classes = {c.name: c for c in ast.parse(inspect.getsource(settings)).body if isinstance(c, ast.ClassDef)}
    silent = [
        f"{kind.__name__}.{here.target.id}"
        for kind in GROUPS
        for here, below in zip(classes[kind.__name__].body, classes[kind.__name__].body[1:], strict=False)
        if isinstance(here, ast.AnnAssign)
        and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and len(below.value.value) > 20)
    ]
    assert not silent


def test_settings_do_not_load_torch():
    code = "import sys, movelist.core.settings; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
