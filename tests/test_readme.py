"""The README's own game, run as it stands: it trains, and plays perfectly afterwards."""

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_own_game_of_the_readme_learns_to_play_perfectly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    script = tmp_path / "nim.py"
    script.write_text(blocks[0], encoding="utf-8")
    names = runpy.run_path(str(script), run_name="__main__")

    policy, state = names["result"].policy, names["Nim"]()
    for sticks in range(1, 22):
        state.sticks = sticks
        legal = state.legal_actions()
        left = sticks - legal[policy.act(state.observe(0), legal)[0]]
        # Whoever leaves a multiple of 4 wins; from a multiple of 4 nobody can.
        assert sticks % 4 == 0 or left % 4 == 0, f"{sticks} sticks: leaves {left}"
    printed = capsys.readouterr().out
    assert "Nim keeps its promises" in printed
    assert "with 21 sticks it takes 1" in printed
    assert "Files: runs/nim" in printed.replace("\\", "/")


def test_readme_names_files_that_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    for name in re.findall(r"\]\((docs/[^)]+)\)", text):
        assert (README.parent / name).is_file(), name
    for name in re.findall(r"`((?:data|run|play|learn)/\w+\.py)`", text):
        assert (README.parent / "src" / "movelist" / name).is_file(), name
