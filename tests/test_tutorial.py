"""docs/tutorial.md is followed from the built package to the engine, with a shorter training than the page's."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "follow_tutorial.py"


@pytest.fixture(scope="module")
def tutorial():
    spec = importlib.util.spec_from_file_location("follow_tutorial", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(os.name == "nt" or not shutil.which("g++"), reason="needs bash and g++")
def test_the_page_leads_to_a_policy_in_an_engine(tutorial, tmp_path, capfd):
    pytest.importorskip("hatchling", reason="a tool for developers")
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    tutorial.build(folder)
    assert tutorial.follow(folder, lent=True, steps=1_500) == 0, capfd.readouterr().err
    assert "games against random moves" in capfd.readouterr().out
    assert (folder / "runs" / "nim" / "settings.json").is_file()


PAGE = """
Write `a.txt`:

```python
first
```

```sh
cat a.txt; echo "12 of 30 games"
```

```text
first
17 of 1,000 games
```
"""


@pytest.mark.skipif(os.name == "nt", reason="needs bash")
@pytest.mark.parametrize(
    ("page", "code", "said"),
    [
        (PAGE, 0, ""),
        (PAGE.replace("17 of", "17 in"), 1, "the page shows what was not printed: 17 in 1,000 games"),
        (PAGE.replace("cat a.txt", "cat b.txt"), 1, "the page ends in an error"),
    ],
)
def test_what_is_not_true_is_told(tutorial, tmp_path, monkeypatch, capfd, page, code, said):
    file = tmp_path / "page.md"
    file.write_text(page, encoding="utf-8")
    monkeypatch.setattr(tutorial, "TUTORIAL", file)
    folder = tmp_path / "folder"
    folder.mkdir()
    result = tutorial.follow(folder, lent=True, steps=None)
    assert result == code
    assert said in capfd.readouterr().err


def test_a_training_can_be_shortened_and_packages_lent(tutorial):
    page = tutorial.blocks(tutorial.TUTORIAL.read_text(encoding="utf-8"))
    assert [block.file for block in page if block.file] == ["nim.py", "engine.cpp"]
    text = tutorial.script(page, lent=True, steps=7)
    assert "--total_steps 7 --eval_games 20\n" in text and "lent.pth" in text
    plain = tutorial.script(page, lent=False, steps=None)
    assert "--total_steps 60000\n" in plain and "lent.pth" not in plain
