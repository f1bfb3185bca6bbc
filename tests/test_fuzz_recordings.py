"""scripts/fuzz_recordings.py in short, and that it sees a broken promise."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from movelist.data import arrows

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "fuzz_recordings.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_recordings", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damage_at_random_keeps_every_promise(script: ModuleType, tmp_path: Path) -> None:
    counts = script.fuzz(tmp_path, rounds=100, seed=5, episodes=12)
    assert set(counts) == {"a.jsonl", "a.jsonl.gz", "a.arrows", "bare.jsonl", "bare.arrows", "store"}
    assert sum(counts[name]["problems named"] for name in counts) > 20 and counts["a.arrows"]["episodes read"]


def test_ids_changed_in_spite_of_checksums_are_seen(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrows._Reader, "_sound", lambda self, columns, rows: iter([columns]))
    with pytest.raises(script.Broken, match=r"round \d+ of seed 0, .* of a.arrows: .*changed in spite of"):
        script.fuzz(tmp_path, rounds=300, seed=0, episodes=12)
