"""What is printed to be typed can be typed."""

import shlex
import types
from pathlib import Path

import pytest

from movelist.cli import COMMANDS
from movelist.core import shell
from movelist.core.shell import quoted, typed

LINE = "Next: movelist train --resume runs/a"
NAMES = [command.name for command in COMMANDS]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "训练",
        "训练 一",
        "a&b",
        "it's",
        "(1)",
        "a;b",
        "a$HOME",
        "`id`",
        'a"b',
        "a!b",
        "50%",
        "*",
        "~",
    ],
)
def test_a_word_can_be_typed_as_it_is_shown(name):
    """As a POSIX shell reads it."""
    assert shlex.split(quoted(name)) == [name] == shlex.split(quoted(Path(name)))


def test_a_word_is_quoted_only_where_it_must_be():
    assert quoted(Path("runs/a-1")) == "runs/a-1"
    assert quoted("with space") == '"with space"'  # which cmd reads, too
    assert quoted("") == '""'


@pytest.mark.parametrize("name", ["a b", "a&b", "a^b", "a;b", "a,b", "a=b"])
def test_cmd_gets_double_quotes_where_a_letter_parts_words(name, monkeypatch):
    monkeypatch.setattr(shell, "os", types.SimpleNamespace(name="nt"))
    assert quoted(name) == f'"{name}"'
    assert quoted("C:\\runs\\a$1") == "C:\\runs\\a$1"


@pytest.mark.parametrize(("on_path", "program"), [(None, "a venv/Scripts/movelist.exe"), ("movelist.exe", "movelist")])
def test_on_windows_a_line_can_be_typed_without_an_activated_environment(on_path, program, monkeypatch):
    assert typed(LINE, NAMES) == LINE
    monkeypatch.setattr(shell.shutil, "which", lambda name: on_path)
    monkeypatch.setattr(shell, "os", types.SimpleNamespace(name="nt"))
    monkeypatch.setattr(shell.sys, "prefix", "a venv")
    program = f'"{program}"' if " " in program else program
    assert typed(LINE, NAMES) == f"Next: {program} train --resume runs/a"
    assert typed("See movelist check a.jsonl", NAMES) == f"See {program} check a.jsonl"
    assert typed("The first movelist run", NAMES) == "The first movelist run"  # no command
