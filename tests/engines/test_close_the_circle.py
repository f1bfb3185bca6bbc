"""The toy engine and the training close the circle: the policy that the engine plays grows stronger."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENGINES = Path(__file__).resolve().parents[2] / "examples" / "engines"


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.skipif(not (ENGINES / "movelist_writer.hpp").is_file(), reason="needs the recorder for C++")
def test_the_win_rate_rises_while_the_engine_plays(tmp_path):
    folder = tmp_path / "circle 圈"
    command = [sys.executable, ENGINES / "close_the_circle.py", "--updates", "8", "--folder", folder]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=280)
    log = (folder / "training.log").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr + log
    rates = [float(rate) for rate in re.findall(r"wins ([0-9.]+) against", done.stdout)]
    # Without a policy half are won; perfect play as second wins all, as first all but those that random play loses.
    assert 0.4 < rates[0] < 0.6
    assert rates[-1] > 0.85 and rates[-1] > rates[1] + 0.1, rates
    latest = json.loads((folder / "run" / "policies" / "latest.json").read_text(encoding="utf-8"))
    assert latest["policy_version"] >= 8
    assert (folder / "run" / "policies" / latest["weights"]).is_file()
    assert "Go on: movelist train --resume" in log


def test_what_hinders_it_is_said_in_a_line(tmp_path):
    (tmp_path / "recordings").mkdir()
    for compiler, reason in (("no-such-g++", "there is no C++ compiler no-such-g++"), (sys.executable, "used already")):
        done = subprocess.run(
            [sys.executable, ENGINES / "close_the_circle.py", "--folder", tmp_path],
            capture_output=True, encoding="utf-8", env={**os.environ, "CXX": compiler},
        )  # fmt: skip
        assert done.returncode == 2 and reason in done.stderr.splitlines()[-1]
