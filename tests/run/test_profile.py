"""`movelist profile` from the command to its file, and that it leaves everything as it was."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from movelist import cli
from movelist.core import metrics
from movelist.core.errors import DataError, GameError, MissingExtraError, NonFiniteError, SettingsError
from movelist.core.profile_settings import ProfileSettings
from movelist.core.settings import TrainSettings
from movelist.learn import learner
from movelist.learn.learner import Learner
from movelist.measure import texts_zh
from movelist.measure.findings import Profile, read_profile, write_profile
from movelist.run import profile as module
from movelist.run import tune
from movelist.run.profile import measurable, open_measurable, profile
from play.toys import Odd
from profiles import cpu_profile
from recorded import EXAMPLE

SMALL = {"hidden_dim": 8, "batch_size": 16, "update_frequency": 8, "epochs_per_update": 2, "device": "cpu"}
WORDS = ["--hidden_dim=8", "--batch_size=16", "--update_frequency=8", "--epochs_per_update=2", "--device=cpu"]
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")


def run(folder: Path, **flat: Any) -> Profile:
    settings = ProfileSettings(train=TrainSettings.from_flat(SMALL | {"game": "odd"} | flat), updates=2)
    return profile(settings, folder, command="movelist profile", say=lambda text: None, game=Odd())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return run(tmp_path_factory.mktemp("profile"))


def test_spans_are_all_of_the_time(found: Profile) -> None:
    assert sum(one.share for one in found.spans) == pytest.approx(1.0, abs=0.01)
    shares = {one.name: one.share for one in found.spans}
    assert all(
        shares[name] > 0 for name in ("game", "plan", "copy", "forward", "loss", "backward", "optimiser", "logging")
    )
    assert shares["load"] == 0
    (spans,) = [look for look in found.looks if look.name == "spans"]
    total = sum(one.host_seconds for one in found.spans)
    assert total == pytest.approx(spans.seconds, rel=0.01), "no second is lost between the look and its spans"


def test_counts_are_those_of_the_plain_look(found: Profile) -> None:
    timing = found.timing
    assert (timing.updates, timing.episodes, len(timing.seconds_of_update)) == (2, 16, 2)
    assert timing.seconds == pytest.approx(sum(timing.seconds_of_update))
    assert timing.rollout_seconds + timing.update_seconds <= timing.seconds
    assert timing.steps > 16
    assert [(look.name, look.updates) for look in found.looks] == [
        ("plain", 2),
        ("spans", 2),
        ("trace", 1),
        ("waits", 1),
    ]
    assert found.looks[0].ratio == 1.0


@ON_CPU
def test_an_update_waits_for_the_two_answers_of_the_design(found: Profile) -> None:
    waits = found.waits
    assert {(Path(place.file).name, place.kind, place.count, place.known) for place in waits.places} == {
        ("metrics.py", ".tolist()", 1.0, True),
        ("learner.py", ".cpu()", 1.0, True),
    }
    assert (waits.per_update, waits.rehearsal) == (2.0, True)
    (read,) = waits.rollout
    assert Path(read.file).name == "policy.py" and "# WAIT: the games need the choices" in read.source
    assert read.known
    # One read for each network call, and 8 games that run side by side.
    assert 0 < found.shapes.states_in_call <= 8


def test_waits_of_the_users_own_game_are_told_by_their_line(tmp_path: Path) -> None:
    weights = torch.ones(4)

    class Slow(Odd):
        def new_state(self, seed: int) -> Any:
            weights.sum().item()  # asks the device for each game
            return super().new_state(seed)

    settings = ProfileSettings(train=TrainSettings.from_flat(SMALL | {"game": "odd"}), updates=1, trace=False)
    found = profile(settings, tmp_path / "new", command="", say=lambda text: None, game=Slow())
    # For 8 games, and for one more to see how wide its state is.
    (mine,) = [place for place in found.waits.rollout if Path(place.file).name == "test_profile.py"]
    assert (mine.source, mine.count) == ("weights.sum().item()  # asks the device for each game", 9.0)
    assert not list((tmp_path / "new").iterdir()), "no trace was asked for"


@ON_CPU
def test_without_a_gpu_it_is_complete(found: Profile) -> None:
    assert (found.copies, found.compute.share, found.hardware.gpu_use, found.hardware.gpu_busy) == (None,) * 4
    assert found.memory.process_peak > 1 << 20 and found.memory.allocated is None
    assert found.machine.device == "cpu"
    assert found.compute.flops > 0 and found.compute.efficiency > 0
    assert found.per_sample is not None and found.per_sample.steps_per_second > 0
    assert found.shapes.recompiles is None


def test_the_settings_are_the_users(found: Profile) -> None:
    assert TrainSettings.from_flat(found.settings) == TrainSettings.from_flat(SMALL | {"game": "odd"})
    assert (found.advice, found.trials, found.tuned) == ([], [], None)


def test_a_profile_is_read_as_it_was_written(found: Profile, tmp_path: Path) -> None:
    for one in (found, cpu_profile()):
        write_profile(one, tmp_path / "剖析.json")
        assert read_profile(tmp_path / "剖析.json") == one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"a profile cannot be read: got .*No such file.* \(\S*p\.json\)\. movelist profile makes one"),
        ("{", r"a profile cannot be read: got Input data was truncated"),
        ('{"created": 3}', r"a profile cannot be read: got Expected `str`, got `int` - at `\$\.created`"),
        (
            "other",
            r"this is another format of profile: got movelist-profile/0, expected movelist-profile/1 \(\S*p\.json\)",
        ),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "p.json"
    if content == "other":
        write_profile(replace(cpu_profile(), format="movelist-profile/0"), file)
    elif content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="^" + message):
        read_profile(file)


# --- Nothing is left behind


@pytest.fixture
def two_threads() -> Iterator[None]:
    """More than the settings ask for."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def everything() -> tuple[Any, ...]:
    files = sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("movelist-"))
    return metrics._span_hook, torch.get_num_threads(), torch._C._len_torch_function_stack(), files


@pytest.mark.usefixtures("two_threads")
def test_the_process_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    before = everything()
    run(tmp_path / "out", num_threads=1)
    assert everything() == before
    assert list((tmp_path / "here").iterdir()) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trace.json.gz"]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("number", [1, 4, 6, 8])
def test_and_after_an_error_in_whichever_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Of 2 updates of warm-up, 4 of the plain look and the spans by turns, 1 traced, 1 for the waits."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    original, count = Learner.update, iter(range(1, 100))

    def update(self: Learner, *arguments: Any, **options: Any) -> Any:
        if next(count) == number:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    monkeypatch.setattr(Learner, "update", update)
    before = everything()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", num_threads=1)
    assert everything() == before
    assert (tmp_path / "out").exists() == (number == 8), "only what holds a trace already stays"


# --- What is measured


def test_a_run_to_resume_gives_its_network_and_stays() -> None:
    settings = TrainSettings.from_flat(
        {"resume": "runs/a", "out": "b", "max_seconds": 3.0, "eval_games": 7, "data": ["x"], "lr": 0.1}
    )
    got = measurable(settings)
    assert (got.run.resume, got.run.out, got.recorded.init_from) == (None, None, Path("runs/a"))
    assert (got.run.total_steps, got.run.max_seconds, got.run.eval_games) == (None, None, 0)
    assert (got.run.tensorboard, got.run.live) == (False, False)
    assert got.recorded.data_passes > 1_000_000
    assert (got.update, got.model, got.play) == (settings.update, settings.model, settings.play)


def test_recordings_are_read_again_and_again(tmp_path: Path) -> None:
    """251 episodes of the example, about 50 for each of 8 updates."""
    settings = ProfileSettings(
        train=TrainSettings.from_flat(
            SMALL | {"data": [str(EXAMPLE)], "learn_from": "all", "update_frequency": 50, "batch_size": 4096}
        ),
        updates=1,
    )
    found = profile(settings, tmp_path, command="", say=lambda text: None)
    assert found.source == f"dou_dizhu from {EXAMPLE}"
    assert found.shapes.states_in_call == 0
    assert next(one.share for one in found.spans if one.name == "load") > 0
    assert next(one.share for one in found.spans if one.name == "game") == 0
    assert found.waits.rollout == []


def test_without_openspiel_the_shipped_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    said: list[str] = []
    settings, _, data = open_measurable(TrainSettings(), None, said.append)
    assert data is not None and settings.game == "dou_dizhu"
    assert said == [f"OpenSpiel is not installed: the recorded games of {EXAMPLE} take its place."]
    with pytest.raises(MissingExtraError, match="OpenSpiel's games need an extra"):
        open_measurable(TrainSettings(game="dou_dizhu"), None, said.append)
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    with pytest.raises(MissingExtraError) as error:
        open_measurable(TrainSettings(), None, said.append)
    assert str(error.value) == (
        "there is nothing to train on: OpenSpiel is not installed, and the recording that ships with the repository is "
        'not here. Install it with: pip install "movelist[games]". Or name recordings: --data FOLDER.'
    )


def test_watching_cannot_be_profiled() -> None:
    with pytest.raises(SettingsError, match=r"^--watch cannot be profiled. Profile the recorded episodes"):
        ProfileSettings(train=TrainSettings.from_flat({"data": ["x"], "watch": True}))


def test_a_game_that_shows_a_bad_number(tmp_path: Path) -> None:
    class Sick(Odd):
        def new_state(self, seed: int) -> Any:
            state = super().new_state(seed)
            if seed:
                state.observe = lambda player: np.full(4, np.nan)
            return state

    settings = ProfileSettings(train=TrainSettings.from_flat(SMALL | {"game": "odd"}))
    with pytest.raises(GameError, match="an observation is not finite"):
        profile(settings, tmp_path, command="", say=lambda text: None, game=Sick())


def test_a_number_that_goes_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner.returns, "normalized", lambda advantage_N, whole: advantage_N * np.nan)
    settings = ProfileSettings(train=TrainSettings.from_flat(SMALL | {"game": "odd"}))
    with pytest.raises(NonFiniteError):
        profile(settings, tmp_path, command="", say=lambda text: None, game=Odd())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(DataError, match=r"^the folder cannot be made: got .* \(\S*taken.deeper\)\. Choose another"):
        run(tmp_path / "taken" / "deeper")


# --- The command


@pytest.fixture
def tic_tac_toe() -> list[str]:
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    return ["profile", "--game", "tic_tac_toe", *WORDS, "--updates", "1"]


@ON_CPU
def test_the_command(
    tic_tac_toe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*tic_tac_toe, "--out", "一 个", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((tmp_path / "一 个" / "profile.json").read_bytes())
    assert read_profile(tmp_path / "一 个" / "profile.json").command == (
        "movelist profile --game tic_tac_toe --hidden_dim=8 --batch_size=16 --update_frequency=8 --epochs_per_update=2 "
        '--device=cpu --updates 1 --out "一 个" --json'
    )
    assert 'Files: "一 个" (profile.json, report.html, trace.json.gz).' in err
    assert "\nWaits: 2 in an update on a GPU, 2 of which it needs" in err
    assert cli.main([*tic_tac_toe, "--out", "一 个"]) == 1
    assert capsys.readouterr().err == (
        "movelist: the folder already holds a profile: got 一 个. Choose another with --out.\n"
    )
    assert cli.main([*tic_tac_toe, "--no-trace", "--no-report", "--lang", "zh", "--compare", "一 个/profile.json"]) == 0
    said = capsys.readouterr().out
    assert "等待：在 GPU 上每次更新会有 2 次" in said
    assert texts_zh.FIGURES["steps_per_second"] in said, "held against the one before"
    (made,) = (tmp_path / "profiles").iterdir()
    assert made.name.startswith("tic-tac-toe-")
    assert [path.name for path in made.iterdir()] == ["profile.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profiles", "一 个"]


def test_two_profiles_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second took half the time; nothing is measured anew."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    profile_ = cpu_profile()
    write_profile(profile_, old)
    halves = [seconds / 2 for seconds in profile_.timing.seconds_of_update]
    write_profile(replace(profile_, timing=replace(profile_.timing, seconds=5.0, seconds_of_update=halves)), new)
    assert cli.main(["profile", "--compare", str(old), str(new)]) == 0
    assert capsys.readouterr().out.startswith("2.00 times as fast as before")
    assert cli.main(["profile", "--compare", str(old), str(new), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["speed"], said["verdict"]) == (pytest.approx(2.0), "faster")
    rows = {row["name"]: row["ratio"] for row in said["rows"]}
    assert rows["steps_per_second"] == pytest.approx(2.0)
    assert cli.main(["profile", "--compare", str(old), str(new), str(new)]) == 2
    assert capsys.readouterr().err.startswith("movelist: --compare takes one profile or two: got 3. movelist profile")
    assert cli.main(["profile", "--compare", str(old), str(tmp_path / "nowhere.json")]) == 1
    assert capsys.readouterr().err.startswith("movelist: a profile cannot be read: got ")


def test_a_mistake_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["--updates", "0"], ["--game", "tictactoe"], ["--resume", "nowhere"], ["--preset", "nowhere"]):
        assert cli.main(["profile", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_tuning_ends_with_a_preset_that_train_reads(
    tic_tac_toe: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [{"num_games": 64, "update_frequency": 64}, {"batch_size": 1024}]
    monkeypatch.setattr(tune, "candidates", lambda *arguments: few)
    slow = ["--batch_size=16", "--update_frequency=1", "--num_games=1", "--save_every=1", "--no-trace"]
    words = [*tic_tac_toe, *slow, "--tune", "--tune_seconds", "1", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    found = read_profile(tmp_path / "out" / "profile.json")
    assert found.tuned is not None and found.tuned["update_frequency"] == 64
    assert found.trials[-1].changes == found.tuned and found.trials[-1].helped
    (command,) = [line.removeprefix("Or as flags: ") for line in lines if line.startswith("Or as flags: ")]
    assert command.startswith("movelist train --game tic_tac_toe --hidden_dim 8 ")
    from_flags = cli._parse(command.split()[1:])
    from_file = cli._parse(["train", "--preset", str(tmp_path / "out" / "preset.json")])
    assert isinstance(from_flags, TrainSettings) and isinstance(from_file, TrainSettings)
    assert from_flags.update == from_file.update
    assert from_flags.play == from_file.play


def test_the_ratio_to_a_preset(tic_tac_toe: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"update_frequency": 64, "game": "tic_tac_toe"}', encoding="utf-8")
    assert cli.main([*tic_tac_toe, "--ratio", str(file), "--tune_seconds", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["changes"], result["against"]) == ({"update_frequency": 8}, {"update_frequency": 64})
    assert result["runs"] == 3
    assert err.splitlines()[-1].startswith("With these settings this machine learns from ")


def test_any_console_and_a_pipe(tic_tac_toe: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "movelist", *tic_tac_toe, "--out", "结果 é"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "gbk"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "Files: ".encode("gbk") in done.stdout
