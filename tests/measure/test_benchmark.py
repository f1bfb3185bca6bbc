"""`movelist benchmark` from the command to its table, its JSON and its chart."""

import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from movelist.cli import main
from movelist.core.benchmark_settings import BenchmarkSettings
from movelist.core.errors import DataError, GameError, SettingsError
from movelist.measure import benchmark as module
from movelist.measure import clock
from movelist.measure.benchmark import BEST, Report, benchmark, chart, described, print_tables, recorded_steps
from movelist.measure.ladder import Result, Row

MACHINE = {
    "processor": "Abacus", "cores": 4, "threads": 2, "gpu": None, "torch": "9.9", "python": "3.99", "system": "Linux",
}  # fmt: skip


def report(difference: float = 1e-7) -> Report:
    """Two sizes of three ways; the slow one takes 10 s, the chunked one 0.5 s, the update 1 s for 100 steps."""
    rows = []
    for size in (100, 200):
        for lengths, factor in (("mixed", 1.0), ("equal", 0.9)):
            for name, seconds in (("slow", 10.0), ("flat + unique + chunked pair", 0.5), (BEST, 1.0)):
                times = [seconds * factor * size / 100 * part for part in (0.5, 1.0, 2.0)]
                row = Row(name, lengths, size, 500, 40, 64, difference if name == BEST else 0.0, True, 4_000, 1_000)
                row.update_seconds, row.evaluate_seconds = times, [part / 2 for part in times]
                rows.append(row)
    result = Result(rows, [9_000.0, 10_000.0, 20_000.0], {100: 0.02, 200: 0.08}, {100: 0.01, 200: 0.02})
    return Report({"game": "chess & cards", "hidden_dim": 8}, MACHINE, result)


def test_ratios_by_hand() -> None:
    ratios = report().ratios(100)
    assert ratios == pytest.approx(
        {
            "update against slow": 10.0,
            "evaluation against slow": 20.0,
            "cost of mixed lengths": 1 / 0.9,
            "share of the matrix product rate": 0.4,
            "share of planning on the host": 0.02,
        }
    )


def test_tables_say_the_numbers() -> None:
    stream = io.StringIO()
    print_tables(report(), Console(file=stream, width=80))
    text = stream.getvalue()
    assert "Abacus, 4 cores, 2 threads, torch 9.9, Python 3.99, Linux" in text
    assert "0.0 Gflop/s" in text
    assert re.search(r"slow \*\s+│\s+10 ±150%\s+│\s+11 ±150%\s+│\s+20 ±150%\s+│\s+22 ±150%\s+│\s+1\.0 ", text)
    assert re.search(r"movelist's update \*.*│\s+10\.0\s+│\s+40\.0%\s+│\s+1e-07", text)
    assert "* timed on 64 of the steps, padded as the whole, and scaled." in text
    assert "Mixed lengths cost 1.11 times equal ones. The update reaches 40% of the matrix product rate." in text
    assert "The host plans a minibatch in 20.00 ms, 2.0% of its update; gathering it takes 10.00 ms." in text
    assert "of float32 (TF32 on NVIDIA cards). Mixed precision multiplies shorter numbers and can pass it." in text
    assert "WRONG" not in text


def test_a_wrong_way_is_named() -> None:
    stream = io.StringIO()
    wrong = report(difference=2e-3)
    print_tables(wrong, Console(file=stream))
    assert not wrong.good and wrong.to_json()["good"] is False
    assert f"WRONG: {BEST}, 100 steps, mixed lists: log-probs differ by 2.0e-03, more than 1e-04." in stream.getvalue()


def test_json_and_chart_are_well_formed() -> None:
    made = report()
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert data["matmul_gflops"] == pytest.approx(1e-5)
    assert data["rows"][0]["update_steps_per_second"] == 10.0
    assert data["rows"][2]["update_matmul_share"] == pytest.approx(0.4)
    assert data["ratios"]["200"]["update against slow"] == 10.0
    words = [word.text for word in ET.fromstring(chart(made)).iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "chess & cards: 200 steps, 500 legal actions, hidden 8"
    assert {"slow", BEST, "lists of mixed length"} <= set(words)


def test_a_gpu_is_named_first() -> None:
    assert described({**MACHINE, "gpu": "Card 9000"}).startswith("Card 9000, Abacus, ")


@pytest.mark.parametrize(
    "wrong", [{"batch_sizes": ()}, {"batch_sizes": (1, 8)}, {"repetitions": 0}, {"hidden_dim": 0}, {"cpu_time": True}]
)
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=f"--{next(iter(wrong))} cannot be used.*movelist benchmark --help"):
        BenchmarkSettings(**wrong)


@pytest.mark.parametrize("given", [{"num_threads": 2, "device": "cpu"}, {"num_threads": 1}])
def test_cpu_time_is_for_one_thread_of_a_cpu(given: dict[str, Any]) -> None:
    assert BenchmarkSettings(cpu_time=True, num_threads=1, device="cpu").cpu_time
    with pytest.raises(SettingsError) as caught:
        BenchmarkSettings(cpu_time=True, **given)
    assert "--cpu_time cannot be used: got True, expected --num_threads 1 and --device cpu with it" in str(caught.value)


SMALL = ["--game", "tic_tac_toe", "--hidden_dim", "8", "--num_episodes", "20", "--batch_sizes", "4", "16"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time each way once: what comes out is looked at, not how steady it is."""
    monkeypatch.setattr(clock, "REPETITION_SECONDS", 0.0)


@pytest.mark.usefixtures("hasty")
def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pyspiel")
    threads = torch.get_num_threads()
    picture = tmp_path / "图 1.svg"
    assert (
        main(["benchmark", *SMALL, "--repetitions", "1", "--num_threads", "1", "--chart", str(picture), "--json"]) == 0
    )
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["good"] is True and len(data["rows"]) == 2 * 2 * 9
    assert data["settings"]["game"] == "tic_tac_toe" and data["machine"]["threads"] == 1
    assert data["transfer_seconds"] == {} and data["machine"]["gpu"] is None
    assert "Measuring 4 steps, " in err and "movelist's update" in err
    assert ET.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("place", "reason"), [("file/a.svg", "got File exists"), ("", "got a folder, expected a file")]
)
def test_a_chart_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError) as caught:
        benchmark(BenchmarkSettings(chart=tmp_path / place, game="no such game: this would be next"))
    assert str(caught.value) == f"no chart can be drawn there: {reason} ({tmp_path / place})"


def test_the_folder_of_a_chart_is_made(tmp_path: Path) -> None:
    with pytest.raises(GameError):
        benchmark(BenchmarkSettings(chart=tmp_path / "图 表" / "a.svg", game="no such game"))
    assert (tmp_path / "图 表").is_dir()


def test_command_fails_where_a_way_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "benchmark", lambda settings: report(difference=1.0))
    assert main(["benchmark"]) == 1
    assert "WRONG: movelist's update" in capsys.readouterr().out


def test_too_few_steps_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel")
    assert main(["benchmark", *SMALL[:-1], "4000"]) == 1
    assert "too few steps with a choice to measure on" in capsys.readouterr().err


@pytest.mark.usefixtures("hasty")
def test_episodes_of_ones_own() -> None:
    pytest.importorskip("pyspiel")
    from movelist.core.settings import PlaySettings
    from movelist.games.catalog import make_game
    from movelist.play.policy import RandomPolicy
    from movelist.play.selfplay import SelfPlay

    episodes = SelfPlay(make_game("tic_tac_toe"), PlaySettings(), seed=3).collect(RandomPolicy(), 9)
    settings = BenchmarkSettings(game="tic_tac_toe", hidden_dim=8, batch_sizes=(8,), repetitions=1)
    made = benchmark(settings, episodes)
    assert made.good and made.sizes == [8]


RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "recordings"


@pytest.mark.usefixtures("hasty")
def test_steps_of_recordings_need_no_game(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> None:
        raise GameError("there is no such game", got=name)

    monkeypatch.setattr(module, "make_game", missing)
    words = ["--data", str(RECORDINGS), *SMALL[2:], "--repetitions", "1", "--json"]
    assert main(["benchmark", *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["settings"]["game"] == "dou_dizhu" and data["settings"]["data"] == [str(RECORDINGS)]
    assert data["good"] is True and [row["num_steps"] for row in data["rows"][:: 2 * 11]] == [4, 16]


def test_recordings_are_read_as_far_as_they_are_needed() -> None:
    few = recorded_steps(BenchmarkSettings(data=(RECORDINGS,), num_episodes=1))
    every = recorded_steps(BenchmarkSettings(data=(RECORDINGS,), num_episodes=10**6))
    assert 0 < few.episodes.num_steps <= every.episodes.num_steps
    assert (few.game, few.action_encoder) == ("dou_dizhu", "bits")


def test_recordings_without_an_episode_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="nothing in the recordings can be used"):
        recorded_steps(BenchmarkSettings(data=(tmp_path,)))
