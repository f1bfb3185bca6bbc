"""Presets: what they set, that a flag wins, and files of them."""

import json
from pathlib import Path

import pytest

from movelist import cli
from movelist.core.errors import SettingsError
from movelist.core.settings import TrainSettings
from movelist.run import api, presets


def test_a_flag_wins_also_where_it_says_the_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"batch_size": 77, "hidden_dim": 32}', encoding="utf-8")
    settings = cli._parse(["train", "--preset", str(file), "--batch_size", "1024", "--lr=0.1"])
    assert isinstance(settings, TrainSettings)
    assert (settings.update.batch_size, settings.model.hidden_dim, settings.update.lr) == (1024, 32, 0.1)
    assert settings.run.preset == str(file)


def test_the_guide_is_the_guides() -> None:
    settings = cli._parse(["train", "--batch_size", "64", "--preset=guide"])
    assert isinstance(settings, TrainSettings)
    update = settings.update
    assert (update.batch_size, update.update_frequency, update.epochs_per_update, update.use_amp) == (64, 5, 4, True)
    assert presets.describe("guide", settings) == (
        "--preset guide set update_frequency=5, epochs_per_update=4, use_amp=True. --batch_size 64 was given."
    )


def test_fast_uses_the_bfloat16_of_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("movelist.learn.device.multiplies_bfloat16", lambda: True)
    settings = TrainSettings.from_flat({"device": "cpu", **presets.preset("fast", "cpu")})
    assert (settings.update.use_amp, settings.update.batch_size) == (True, 2048)
    assert ", the fastest measured on a cpu with bfloat16; " in presets.describe("fast", settings)


def test_fast_says_what_it_set_and_on_what_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainSettings.from_flat({"device": "cpu", **presets.preset("fast", "cpu")})
    assert presets.describe("fast", settings) == (
        "--preset fast set batch_size=1024, update_frequency=256, num_games=256, the fastest measured on a cpu; "
        "movelist profile --tune measures yours."
    )
    monkeypatch.delitem(presets.FAST, "cpu")
    assert presets.describe("fast", settings) == (
        "--preset fast set nothing: nothing was measured on a cpu yet; movelist profile --tune finds what is fast on "
        "yours."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no such preset: got \S+p\.json, expected fast or guide, or a file\. movelist profile --tune"),
        ("[]", r"a preset cannot be read: got list instead of an object \(\S+p\.json\)"),
        ("{", r"a preset cannot be read: got Expecting property name"),
        ('{"batchsize": 3}', r"a preset cannot be used, unknown setting 'batchsize'. Did you mean 'batch_size'\?"),
        ('{"batch_size": 0}', r"a preset cannot be used, --batch_size cannot be used: got 0, expected at least 1"),
        ('{"data": 3}', r"a preset cannot be read: got 'int' object is not iterable"),
    ],
)
def test_a_file_that_is_no_preset(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "p.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="^" + message):
        presets.preset(str(file))


def test_a_written_preset_reads_back_without_what_belongs_to_one_run(tmp_path: Path) -> None:
    settings = TrainSettings.from_flat({"game": "kuhn_poker", "lr": 0.1, "out": "here", "seed": 7, "data": ["a b"]})
    presets.write_preset(settings, tmp_path / "预设.json")
    read = presets.preset(str(tmp_path / "预设.json"))
    assert not set(read) & set(presets.OF_A_RUN)
    assert TrainSettings.from_flat(read) == TrainSettings.from_flat({"game": "kuhn_poker", "lr": 0.1})
    assert json.loads((tmp_path / "预设.json").read_text(encoding="utf-8"))["lr"] == 0.1


def test_the_command_line_names_what_is_not_the_default_and_is_read_back() -> None:
    settings = TrainSettings.from_flat(
        {"game": "leduc_poker(players=3)", "data": ["a b", "c"], "tensorboard": False, "batch_size": 16}
    )
    line = presets.command_line(settings.to_flat(), {"batch_size": 1024, "use_amp": True})
    assert line == (
        'movelist train --game "leduc_poker(players=3)" --batch_size 1024'
        + ' --no-tensorboard --data "a b" c --use_amp'
    )


def test_python_takes_presets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TrainSettings] = []
    monkeypatch.setattr(api, "train_settings", lambda settings, game, parts: seen.append(settings))
    api.train("kuhn_poker", preset="guide", batch_size=99)
    assert (seen[0].update.batch_size, seen[0].update.update_frequency) == (99, 5)


def test_train_says_what_the_preset_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    words = "train --game tic_tac_toe --preset guide --hidden_dim 8 --total_steps 1 --eval_games 0 --no-tensorboard"
    assert cli.main([*words.split(), "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("--preset guide set batch_size=128, update_frequency=5, ")


def test_a_runs_settings_are_a_preset_for_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    words = "train --game tic_tac_toe --hidden_dim 8 --total_steps 1 --eval_games 0 --no-tensorboard --device cpu"
    assert cli.main([*words.split(), "--out", str(tmp_path / "first")]) == 0
    capsys.readouterr()
    file = str(tmp_path / "first" / "settings.json")
    assert cli.main(["train", "--preset", file, "--eval_games", "2", "--out", str(tmp_path / "second")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        f"--preset {file} set game=tic_tac_toe, hidden_dim=8, total_steps=1, device=cpu, tensorboard=False. "
        "--eval_games 2 was given."
    )
    one, other = (json.loads((tmp_path / name / "settings.json").read_text("utf-8")) for name in ("first", "second"))
    assert {key for key in one if one[key] != other[key]} == {"out", "preset", "eval_games"}
