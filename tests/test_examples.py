"""The examples in the docstrings do what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import movelist

ROOT = Path(movelist.__file__).parent
SHOWN = sorted(
    ".".join(["movelist", *path.relative_to(ROOT).with_suffix("").parts])
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_do_what_they_show(name):
    if name.startswith("movelist.games."):
        pytest.importorskip("pyspiel", reason="the examples of games are played with OpenSpiel's")
    for library in ("pettingzoo", "rlcard"):
        if name == f"movelist.games.{library}":
            pytest.importorskip(library, reason="its example plays one of its games")
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
    assert results.attempted > 0


def test_the_core_shows_examples():
    core = {f"movelist.core.{name}" for name in ("action_ids", "errors", "metrics", "returns")}
    assert core <= set(SHOWN)
