"""The benchmark of small updates: seconds, stretches and table by hand; its chart is well-formed; a tiny one runs."""

import importlib.metadata
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def stability(monkeypatch):
    """The module benchmarks/stability.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import stability

    return stability


def test_seconds_are_added_up_from_steps_and_speed(stability, tmp_path):
    rows = [
        {"step": 100, "charts/SPS": 50.0, "charts/episodes": 5, "losses/approx_kl": 0.1},
        {"step": 160, "charts/SPS": 20.0, "charts/episodes": 10, "losses/approx_kl": 0.3},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert stability.read_metrics(path) == ([(2.0, 0.1), (5.0, 0.3)], 10)  # 100 / 50, then 60 / 20 more


def run(stability, setting, *, rates=((2.0, 0.5), (4.0, 0.75))):
    kls = [(1.0, 0.01), (2.0, 0.03), (3.0, 0.5)]
    return stability.Run(setting, 0, steps=1000, episodes=50, win_rates=list(rates), kls=kls)


def test_stretches_have_the_mean_of_their_updates(stability):
    assert stability.slices(run(stability, "defaults")) == [(2.0, pytest.approx(0.02)), (4.0, 0.5)]


def test_the_table_has_a_row_for_each_setting(stability):
    lines = stability.table([run(stability, "a"), run(stability, "b"), run(stability, "a")])
    assert lines[2:] == [
        "| a | 0.750, 0.750 | 100 | 2,000 | 6 | 0.03 | 0.5 | 0.5 |",
        "| b | 0.750 | 50 | 1,000 | 3 | 0.03 | 0.5 | 0.5 |",
    ]


def test_the_chart_is_well_formed_and_its_lines_are_where_they_belong(stability):
    root = ET.fromstring(stability.svg("a < b", [run(stability, "a"), run(stability, "b")]))
    lines = [line.get("points") for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 8  # two panels, two settings, a thin and a thick line each
    # Half of the width at half of the height; the end at three quarters.
    middle = f"{stability.LEFT + stability.WIDTH / 2:.1f},{stability.TOP + stability.HEIGHT / 2:.1f}"
    end = f"{stability.LEFT + stability.WIDTH:.1f},{stability.TOP + stability.HEIGHT / 4:.1f}"
    assert lines[0] == f"{middle} {end}"


@pytest.mark.skipif(
    not importlib.metadata.packages_distributions().get("pyspiel"), reason="trains on OpenSpiel's games"
)
def test_a_tiny_one_runs(tmp_path):
    chart = tmp_path / "chart.svg"
    command = "--game tic_tac_toe --seconds 0.2 --points 2 --num_games 10 --hidden_dim 8 --json --chart"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "stability.py"), *command.split(), str(chart)],
        capture_output=True, encoding="utf-8", timeout=120, check=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    runs = json.loads(done.stdout)["runs"]
    assert [entry["setting"] for entry in runs] == ["--batch_size 128 --update_frequency 5", "defaults"]
    for entry in runs:
        assert len(entry["win_rates"]) == 2 and entry["episodes"] > 0
        assert entry["kls"][-1][0] == pytest.approx(entry["win_rates"][-1][0], rel=0.02)  # both count training alone
    assert ET.parse(chart).getroot().tag.endswith("svg")
