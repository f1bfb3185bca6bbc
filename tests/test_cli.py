"""The command line: quick help, one line for each mistake, exit codes, JSON for programs, and any console."""

import dataclasses
import errno
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from movelist import cli
from movelist.core.errors import SettingsError
from movelist.core.profile_settings import ProfileSettings
from movelist.core.settings import MatchSettings, TrainSettings
from movelist.core.shell import quoted
from movelist.run import checkpoint, recorded
from movelist.run.folder import read_settings
from movelist.run.log import Log
from play.toys import Odd

ROOT = Path(__file__).resolve().parents[1]
SMALL = [
    "--hidden_dim=16",
    "--batch_size=32",
    "--update_frequency=20",
    "--epochs_per_update=2",
    "--total_steps=40",
    "--no-tensorboard",
    "--device=cpu",
    "--eval_games=0",
]
KUHN = ["train", "--game", "kuhn_poker", *SMALL]
needs_openspiel = pytest.mark.skipif(
    not importlib.metadata.packages_distributions().get("pyspiel"), reason="plays OpenSpiel's games"
)


def run(*words):
    """A command in this process: its exit code."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:  # --help
        return stop.code or 0


def spawn(*words, cwd=None, script=None, encoding="utf-8", **environment):
    """A command in a process of its own: exit code, standard output and standard error."""
    command = [sys.executable, *(["-m", "movelist"] if script is None else ["-c", script]), *words]
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "200"} | environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode, *(text.decode(encoding).replace("\r\n", "\n") for text in (done.stdout, done.stderr))


@pytest.fixture(scope="module")
def kuhn(tmp_path_factory):
    """The folder of a tiny run of kuhn_poker."""
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    folder = tmp_path_factory.mktemp("kuhn") / "run"
    assert run(*KUHN, "--out", folder) == 0
    return folder


@pytest.fixture
def odd_game(monkeypatch):
    """`--game` gets a game in plain Python, whatever its name."""
    monkeypatch.setattr(recorded, "make_game", lambda name: Odd())
    return [word for word in KUHN if word not in ("--game", "kuhn_poker")]


# --- Help


def test_help_never_imports_torch():
    script = (
        "import sys\nfrom movelist.cli import main\n"
        "for words in (['--help'], ['train', '--help'], ['match', '--help'], ['profile', '--help'],\n"
        "              ['train', '--lrr', '3']):\n"
        "    try:\n        print('code', main(words))\n"
        "    except SystemExit as stop:\n        print('code', stop.code)\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    code, out, err = spawn(script=script)
    assert code == 0
    assert re.findall(r"^code (.*)$", out, re.MULTILINE) == ["0", "0", "0", "0", "2"]
    assert out.splitlines()[-1] == "False False"
    assert err.count("\n") == 1


def test_help_names_every_flag_and_says_something_of_it(capsys):
    assert run("train", "--help") == 0
    text = capsys.readouterr().out
    names = [name for name in TrainSettings().to_flat()]
    assert len(names) > 25
    for name in names:
        assert f"--{name.replace('_', '-')}" in text, name
    assert run("profile", "--help") == 0
    text = capsys.readouterr().out
    for name in [
        *names,
        *[field.name for field in dataclasses.fields(ProfileSettings) if field.name != "train"],
        "json",
    ]:
        assert f"--{name.replace('_', '-')}" in text, name
    assert run("match", "--help") == 0
    text = capsys.readouterr().out
    for name in [*[field.name for field in dataclasses.fields(MatchSettings)], "against", "game", "json"]:
        assert f"--{name.replace('_', '-')}" in text, name


def test_every_flag_that_the_documentation_names_is_there(capsys):
    for command in cli.COMMANDS:
        assert run(command.name, "--help") == 0
    known = {"--data", "--logdir", "--help", "--version", "--nproc-per-node", "--strip-components"}
    known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    documents = [path for path in sorted((ROOT / "docs").glob("*.md")) if "optimization_guide" not in path.name]
    for document in (ROOT / "README.md", *documents):  # the guide, with flags of other tools: tests/test_docs.py
        for line in document.read_text(encoding="utf-8").splitlines():
            if "movelist" in line or "train.py" in line or line.startswith("| `--"):
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z_-]+", line):
                    assert flag.replace("_", "-") in known, f"{document.name}: {flag}"


def test_help_of_the_whole_names_the_commands(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    version = importlib.metadata.version("movelist")
    assert f"movelist {version}: PPO for games whose legal actions change every turn." in text
    assert "train" in text
    assert "match" in text


def test_a_clone_that_was_not_installed_has_help_too(capsys, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert run("--help") == 0
    assert "movelist from a clone: PPO for games" in capsys.readouterr().out
    # and nothing of it is asked for when the module is imported
    script = (
        "import importlib.metadata as m\n"
        "def version(name): raise m.PackageNotFoundError(name)\n"
        "m.version = version\nimport movelist.cli"
    )
    assert spawn(script=script) == (0, "", "")


@pytest.mark.parametrize("words", [["--hidden_dim", "16"], ["--hidden-dim", "16"], ["--hidden_dim=16"]])
def test_hyphens_and_underscores_are_alike(words):
    settings = cli._parse(["train", *words])
    assert settings.model.hidden_dim == 16


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], False),
        (["--use_amp"], True),
        (["--use-amp"], True),
        (["--no-use_amp"], False),
        (["--no-use-amp"], False),
        (["--use_amp", "--no_use_amp"], False),
    ],
)
def test_switches_can_be_turned_on_and_off(words, value):
    assert cli._parse(["train", *words]).update.use_amp is value


def test_switches_that_are_on_can_be_named_as_well():
    settings = cli._parse(["train", "--tensorboard", "--normalize_advantage", "--no-scale_returns"])
    assert (settings.run.tensorboard, settings.update.normalize_advantage, settings.update.scale_returns) == (
        True,
        True,
        False,
    )
    assert cli._parse(["match", "runs/x", "--no-greedy", "--json"]).json
    assert cli._parse(["match", "runs/x", "--greedy"]).greedy


# --- Each mistake: one line on standard error, exit code 2, nothing half written


def mistake(capsys, *words):
    """The one line that a command ends with."""
    code = run(*words)
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("movelist: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.removeprefix("movelist: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], f"Expected one of {{{', '.join(command.name for command in cli.COMMANDS)}}}. See movelist --help"),
        (["trian"], "Unrecognized options: trian. Did you mean movelist train?"),
        (["Match"], "Unrecognized options: Match. Did you mean movelist match?"),
        (["zzz"], "Unrecognized options: zzz. See movelist --help"),
        (["train", "--lrr", "3"], "Unrecognized options: --lrr, 3; perhaps --lr. See movelist train --help"),
        (
            ["train", "--batchsize", "3"],
            "Unrecognized options: --batchsize, 3; perhaps --batch-size. See movelist train --help",
        ),
        (
            ["train", "--lr", "x"],
            "Error parsing --lr: could not convert string to float: 'x'. See movelist train --help",
        ),
        (["train", "--batch_size", "9.5"], "Error parsing --batch-size: invalid literal for int() with base 10: '9.5'"),
        (["train", "--lr"], "Missing value for argument '--lr'. Expected 1 values. See movelist train --help"),
        (["train", "--use_amp", "yes"], "Unrecognized options: yes. See movelist train --help"),
        (["train", "extra"], "Unrecognized options: extra. See movelist train --help"),
        (["train", "--lr_schedule", "cosine"], "invalid choice 'cosine' for argument '--lr-schedule'. Expected"),
        (["train", "--lr", "-1"], "--lr cannot be used: got -1.0, expected at least 0."),
        (["train", "--lr", "nan"], "--lr cannot be used: got nan, expected a finite number."),
        (["train", "--gamma", "1.5"], "--gamma cannot be used: got 1.5, expected 0 to 1."),
        (["train", "--total_steps", "0"], "--total_steps cannot be used: got 0, expected at least 1."),
        (["train", "--clip_range", "0"], "--clip_range cannot be used: got 0.0, expected above 0."),
        (["train", "--seed", "-1"], "--seed cannot be used: got -1, expected at least 0."),
        (
            ["match"],
            "Missing from movelist match: STR A run folder, a checkpoint, or an exported file (.onnx, .safetensors).",
        ),
        (["match", "x", "--lr", "3"], "Unrecognized or misplaced options: --lr"),
        (["match", "x", "--num_games", "0"], "--num_games cannot be used: got 0, expected at least 1."),
        (["match", "nowhere"], "nowhere does not exist: expected a run folder or a checkpoint file"),
        (["train", "--resume"], "Missing value for argument '--resume'."),
        (["train", "--resume", "nowhere"], "this is no run folder: got nowhere, expected a folder with settings.json"),
        (["train", "--resume=nowhere"], "this is no run folder: got nowhere, expected a folder with settings.json"),
        (["train", "--resume="], "this is no run folder: got ., expected a folder with settings.json"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert mistake(capsys, *words).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_match_and_a_benchmark_do_not_speak_of_trains_help(capsys):
    assert "movelist match --help" in mistake(capsys, "match", "x", "--num_games", "0")
    assert "movelist benchmark --help" in mistake(capsys, "benchmark", "--repetitions", "0")


@needs_openspiel
@pytest.mark.parametrize(
    ("game", "message"),
    [
        (
            "tictactoe",
            "there is no such game: got 'tictactoe', expected one of OpenSpiel's. Did you mean tic_tac_toe?",
        ),
        ("dou_dizhuu", "there is no such game: got 'dou_dizhuu', expected one of OpenSpiel's. Did you mean dou_dizhu?"),
        ("leduc_poker(player=3)", "OpenSpiel cannot make this game: got 'leduc_poker(player=3)', expected parameters"),
        ("coin_game", "this game cannot be played here, because OpenSpiel does not write its states as numbers"),
        (
            "petingzoo:classic/x",
            "this names no game: got 'petingzoo:classic/x', expected as in tic_tac_toe, openspiel:",
        ),
        ("no_file.py:Game", "there is no such file: got no_file.py:Game ("),
        ("rlcrad:doudizhu", "there is no module rlcrad: got rlcrad:doudizhu. Did you mean rlcard:doudizhu?"),
        ("", "there is no such game: got '', expected one of OpenSpiel's."),
    ],
)
def test_an_unknown_game_is_one_line(capsys, tmp_path, monkeypatch, game, message):
    monkeypatch.chdir(tmp_path)
    assert mistake(capsys, "train", "--game", game).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_without_openspiel(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    message = mistake(capsys, "train", "--out", "run")
    assert message.startswith("OpenSpiel's games need an extra that is not installed")
    assert message.endswith('Install it with: pip install "movelist[games]".')
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there(capsys, tmp_path, monkeypatch, odd_game):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert mistake(capsys, *odd_game, "--device", "cuda").startswith("--device cuda cannot be used. ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(capsys, tmp_path, odd_game):
    (tmp_path / "taken").write_bytes(b"")
    for out in ("taken", "taken/deeper"):
        message = mistake(capsys, *odd_game, "--out", tmp_path / out)
        assert message.startswith("the run folder cannot be written: got ")
        assert message.endswith(f"({tmp_path / out}). Choose another with --out.")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"lr": "fast"}', b'{"lrr": 1}', b'{"game": 3}'])
def test_a_run_whose_settings_are_damaged(capsys, tmp_path, content):
    file = tmp_path / "settings.json"
    file.write_bytes(content)
    mistake(capsys, "train", "--resume", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
    assert file.read_bytes() == content


def test_a_seed_that_is_too_large(capsys, tmp_path, odd_game):
    message = mistake(capsys, *odd_game, "--seed", 2**70, "--out", tmp_path / "run")
    assert message.startswith("--seed cannot be used: got 1180591620717411303424")
    assert list(tmp_path.iterdir()) == []


def test_more_threads_than_any_machine_has():
    """A hundred thousand of them end in a segmentation fault; so the words are read here and not run."""
    with pytest.raises(SettingsError, match=r"^--num_threads cannot be used: got 100000, expected "):
        cli._parse(["train", "--num_threads", "100000"])


def test_settings_of_a_run_are_not_changed_by_a_resume_that_is_refused(capsys, tmp_path, odd_game):
    assert run(*odd_game, "--game=odd", "--out", tmp_path) == 0
    before = (tmp_path / "settings.json").read_bytes()
    capsys.readouterr()
    message = mistake(capsys, "train", "--resume", tmp_path, "--hidden_dim", "32")
    assert message == f"the checkpoint is of another hidden_dim: got 16, expected 32 ({tmp_path})"
    assert (tmp_path / "settings.json").read_bytes() == before


def test_out_beside_resume_is_not_swallowed(capsys, tmp_path, odd_game):
    """The run goes on in its own folder; somebody who names another one must hear of it."""
    assert run(*odd_game, "--game=odd", "--out", tmp_path / "a") == 0
    capsys.readouterr()
    code = run("train", "--resume", tmp_path / "a", "--out", tmp_path / "b", "--total_steps=200")
    out, err = capsys.readouterr()
    assert not (tmp_path / "b").exists()
    assert code == 2 or [line for line in out.splitlines() if line.startswith("--out ")]
    assert err.count("\n") == (code == 2)


# --- Failures in the middle: exit code 1


def failure(capsys, *words, code=1):
    found = run(*words)
    _, err = capsys.readouterr()
    assert found == code
    assert err.startswith("movelist: ")
    assert err.count("\n") == 1
    return err


def test_a_number_that_goes_bad_is_one_line(capsys, tmp_path, monkeypatch, odd_game):
    class Sick(Odd):
        def new_state(self, seed):
            state = super().new_state(seed)
            if seed:  # the state of seed 0 is looked at for its width
                state.observe = lambda player: [float("nan")] * 4
            return state

    monkeypatch.setattr(recorded, "make_game", lambda name: Sick())
    assert "an observation is not finite: got nan" in failure(capsys, *odd_game, "--out", tmp_path / "run", code=2)


def test_a_full_disk_is_one_line(capsys, tmp_path, monkeypatch, odd_game):
    def update(self, *arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Log, "update", update)
    assert "No space left on device" in failure(capsys, *odd_game, "--out", tmp_path / "run")


def test_ctrl_c_while_torch_is_imported_is_no_traceback():
    script = (
        "import signal, sys\n"
        "class Bell:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Bell())\n"
        "from movelist.cli import main\n"
        "sys.exit(main(['train']))"
    )
    assert spawn(script=script) == (130, "", "movelist: stopped.\n")


# --- Train, then go on


@needs_openspiel
def test_train_says_where_it_is_and_what_to_type_next(capsys, tmp_path, kuhn):
    assert run("train", "--resume", kuhn, "--total_steps=60") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"Next: movelist match {quoted(kuhn)} --against random --num_games 10000" in out
    assert run("match", kuhn, "--against", "random", "--num_games", 10) == 0


def test_the_same_command_with_resume_goes_on(tmp_path, odd_game):
    """train_fast.sh --resume RUN: its own flags are those that the run has already."""
    words = [*odd_game, "--use_amp"]
    assert run(*words, "--game=odd", "--out", tmp_path) == 0
    assert run(*words, "--resume", tmp_path, "--total_steps=90") == 0
    assert checkpoint.load(tmp_path)["counters"]["steps"] >= 90
    assert read_settings(tmp_path)["use_amp"] is True


def test_resume_takes_the_runs_own_settings(tmp_path, odd_game):
    assert run(*odd_game, "--game=odd", "--lr=0.002", "--out", tmp_path) == 0
    for words in (["--resume", tmp_path], [f"--resume={tmp_path}"]):
        settings = cli._parse(["train", *map(str, words), "--total_steps", "1000"])
        assert (settings.game, settings.update.lr, settings.model.hidden_dim) == ("odd", 0.002, 16)
        assert (settings.run.resume, settings.run.total_steps) == (tmp_path, 1000)


# --- Match


def test_match_for_people(capsys, kuhn):
    assert run("match", kuhn, "--num_games", 51) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, *seats = out.splitlines()
    assert re.fullmatch(
        rf"{re.escape(str(kuhn))} against random: win rate 0\.\d{{3}} \(0\.\d{{3}} to [01]\.\d{{3}}\), draws 0\.0%, "
        r"mean return [+-]\d\.\d\d, 52 games of 26 deals",
        first,
    )
    assert [line[:8] for line in seats] == ["  seat 0", "  seat 1"]


def test_match_for_programs(capsys, kuhn):
    assert run("match", kuhn, "--against", kuhn, "--num_games", 20, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    read = json.loads(out)
    whole = {"num_games", "wins", "draws", "losses", "win_rate", "draw_rate", "mean_return"}
    whole |= {"win_rate_interval", "draw_rate_interval", "mean_return_interval", "truncated", "truncated_share"}
    whole |= {"equal_rate"}
    of_match = {
        "seats",
        "alone",
        "roles",
        "deals",
        "worth",
        "repeated",
        "openings",
        "forfeits",
        "forfeits_against",
        "teams",
    }
    assert set(read) == whole | of_match
    assert read["num_games"] == 20
    assert len(read["win_rate_interval"]) == 2
    assert [set(seat) for seat in read["seats"]] == [whole, whole]


def test_match_of_one_game_for_each_seat_is_json_too(capsys, kuhn):
    assert run("match", kuhn, "--num_games", 1, "--json") == 0
    read = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert read["num_games"] == 2


def test_match_repeats_itself(capsys, kuhn):
    texts = []
    for words in ([], [], ["--seed", "1"], ["--no-greedy"]):
        assert run("match", kuhn, "--num_games", 100, "--json", *words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_match_refuses_what_does_not_fit(capsys, kuhn, tmp_path):
    assert mistake(capsys, "match", kuhn, "--game", "tic_tac_toe") == (
        f"the checkpoint is of another game: got kuhn_poker, expected tic_tac_toe ({kuhn})"
    )
    assert mistake(capsys, "match", kuhn, "--against", tmp_path / "no").endswith(
        "no does not exist: expected a run folder or a checkpoint file"
    )
    (tmp_path / "text.pt").write_text("hello", encoding="utf-8")
    assert mistake(capsys, "match", kuhn, "--against", tmp_path / "text.pt").startswith("a checkpoint cannot be read: ")


# --- Any console


@needs_openspiel
def test_a_console_in_gbk_and_a_chinese_folder_with_a_space(tmp_path):
    """Everything a user does, from inside the folder, through pipes, with relative paths."""
    here = tmp_path / "训练 一"
    here.mkdir()

    def gbk(*words):
        return spawn(*words, cwd=here, encoding="gbk")

    code, out, err = gbk(*KUHN, "--eval_games=4", "--out", "结果 一")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert 'Next: movelist match "结果 一" --against random' in out
    assert sorted(path.name for path in here.iterdir()) == ["结果 一"]

    code, out, err = gbk("match", "结果 一", "--num_games=4", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["num_games"] == 4

    code, out, err = gbk("match", "结果 二")
    assert (code, out) == (2, "")
    assert err == "movelist: 结果 二 does not exist: expected a run folder or a checkpoint file\n"

    code, out, err = gbk(*KUHN, "--out", "结果 一")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'Go on with that one: movelist train --resume "结果 一"' in err


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux")
def test_bytes_of_a_name_that_are_no_utf_8_are_shown_by_their_numbers():
    code, _, err = spawn("check", os.fsdecode(b"\xd3.jsonl"))
    assert code == 1 and "got \\udcd3.jsonl" in err


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "cp437"])
def test_letters_that_a_console_lacks_become_question_marks(monkeypatch, encoding):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    assert run("match", "훈련 😀") == 2
    streams[1].flush()
    assert streams[1].buffer.getvalue().decode(encoding) == (
        "movelist: ?? ? does not exist: expected a run folder or a checkpoint file" + os.linesep
    )
    assert run("train", "--help") == 0
    streams[0].flush()
    assert "--hidden-dim INT" in streams[0].buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "Unrecognized options: trian. Did you mean movelist train?"),
        (["train", "--lrr", "3"], "Unrecognized options: --lrr, 3; perhaps --lr. See movelist train --help"),
    ],
)
def test_mistakes_are_named_in_every_encoding(monkeypatch, encoding, words, message):
    """tyro draws its boxes with hyphens where the console has no lines."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    assert run(*words) == 2
    streams[1].flush()
    assert streams[1].buffer.getvalue().decode(encoding) == f"movelist: {message}{os.linesep}"


def test_no_color_is_respected():
    for words in (["train", "--help"], ["match", "--help"]):
        code, out, _ = spawn(*words, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")
        assert code == 0
        assert not re.search(r"\x1b\[[0-9;]*3[0-8]", out)
    code, out, _ = spawn("train", "--help")
    assert "\x1b" not in out  # a pipe has no colours either


def test_module_and_mistakes_from_outside(tmp_path):
    assert spawn("train", "--lrr", "3", cwd=tmp_path) == (
        2,
        "",
        "movelist: Unrecognized options: --lrr, 3; perhaps --lr. See movelist train --help\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_enough_is_no_error_to_speak_of():
    """As with `movelist check ... | head -1`; the pipe is closed before anything is written."""
    recording = ROOT / "examples" / "recordings" / "dou_dizhu.jsonl.gz"
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "movelist", "check", str(recording)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=300)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_flag_of_another_command_is_not_proposed_for_itself(capsys):
    assert cli.main(["record", "--out", "a.jsonl", "--num_games", "300"]) == 2
    assert capsys.readouterr().err == "movelist: Unrecognized options: --num_games, 300. See movelist record --help\n"
