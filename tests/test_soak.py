"""scripts/soak.py: what its table says of a promise that held, that broke, and that was not tried to the end.

The rows themselves are run by `make soak`; tests/run/test_crashes.py is their short form.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "soak.py"


@pytest.fixture
def soak(monkeypatch):
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", module)  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


def steps(*outcomes):
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome


def test_a_row_says_how_far_it_came(soak):
    def row(*outcomes):
        made = soak.row("kills", steps(*outcomes), lambda: None)
        return made.done, made.result, made.good

    assert row("1 of 2", "2 of 2") == ("2 of 2", "held", True)
    assert row("1 of 2", KeyboardInterrupt()) == ("1 of 2", "held as far as it came; ended by Ctrl-C", True)
    assert row("1 of 2", soak.Broken("a line is missing")) == ("1 of 2", "FAILED: Broken: a line is missing", False)
    assert row(soak.Skipped("no right to mount a tmpfs")) == ("not run", "no right to mount a tmpfs", True)


def test_the_table_is_markdown(soak):
    text = soak.table([soak.Row("kills", "9 kills", "held", True)], 90.0)
    assert text.splitlines()[:3] == ["| what | how far | result |", "|---|---|---|", "| kills | 9 kills | held |"]


@pytest.mark.parametrize(("leak", "good"), [(0.0, True), (0.5, False)])
def test_memory_that_grows_is_seen(soak, monkeypatch, leak, good):
    """400 MB, and `leak` MB a minute more, over 20 minutes: the second half grows by 10 x leak MB."""
    memory = object.__new__(soak.Memory)
    memory.started, memory.folder = time.monotonic(), Path("run")
    memory.megabytes = [(memory.started + 60 * minute / 10, 400 + leak * minute / 10) for minute in range(200)]
    monkeypatch.setattr(soak, "check", lambda folder: 77)
    row = memory._row(20.0, "done", 0)
    assert row.good is good
    assert ("+1.2" in row.result) is not good
    assert not memory._row(20.0, "done", 1).good


def test_steps_that_are_missing_or_stand_twice_are_seen(soak, tmp_path, monkeypatch):
    state = {"learner": {"num_updates": 3}, "counters": {"steps": 30}}
    monkeypatch.setattr(soak, "numbered", lambda folder: [folder / "update-000003.pt"])
    monkeypatch.setattr(soak.checkpoint, "load_newest", lambda path, say: (path, state))
    for updates, good in [((1, 2, 3), True), ((1, 2, 3, 4), True), ((1, 3), False), ((1, 2, 2, 3), False)]:
        rows = [json.dumps({"step": 10 * update, "charts/updates": update}) + "\n" for update in updates]
        (tmp_path / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
        if good:
            assert soak.check(tmp_path) == 3
        else:
            with pytest.raises(soak.Broken, match=f"the metrics up to update 3 have {len(updates)} lines"):
                soak.check(tmp_path)
