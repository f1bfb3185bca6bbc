"""scripts/gpu_check.py where there is no GPU: every part runs in small, and what cannot run says why."""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from movelist.measure import clock

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_up_steps_are_like_dou_dizhus(script: ModuleType) -> None:
    episodes = script.made_up(3_000)
    count_N = np.diff(episodes.action_offsets)
    # dou_dizhu under random play, turns with a choice: median 4, mean 7.9, largest 350.
    assert count_N.min() == 2 and np.median(count_N) == 4 and 6 <= count_N.mean() <= 10 and 60 < count_N.max() <= 350
    assert 500 < len(np.unique(episodes.action_id_A)) < 1_000, "785 of dou_dizhu's"


@on_cpu
@pytest.mark.parametrize("name", ["machine", "waits", "precision", "training"])
def test_a_part_runs_in_small(script: ModuleType, name: str) -> None:
    report = script.run_part(name, small=True)
    assert report["status"] == "passed", report
    result = report["result"]
    json.dumps(report, allow_nan=False)
    if name == "machine":
        assert result["torch"] == str(torch.__version__)
        assert "gpu" not in result
    else:
        assert result["data"] == "dou_dizhu, recorded"
    if name == "waits":
        assert [len(result[case]["waits"]) for case in ("plain", "accumulated", "target_kl")] == [2, 2, 3]
        assert any("no GPU here" in line for line in result["plain"]["unseen"])
    if name == "precision":
        assert result["largest_log_prob"] > 1 and 0 < result["differences"]["float32"] < 1e-5
        assert 0 < result["gradient_differences"]["float32"] < 1e-5
        assert result["differences"]["TF32"] is result["gradient_differences"]["Triton"] is None
    if name == "training":
        assert result["costs"][0]["seconds"] > 0 and len(result["seconds"]["update"]) == 3


def test_without_recordings_steps_are_made_up(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "RECORDINGS", tmp_path / "recordings")
    episodes, source = script.some_episodes(60)
    assert episodes.num_steps == 60
    assert source == "made up in dou_dizhu's likeness: there is no folder recordings"


@on_cpu
def test_the_ladder_runs_in_small(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "REPETITION_SECONDS", 0.0)
    report = script.run_part("ladder", small=True)
    assert report["status"] == "passed", report
    assert len(report["result"]["rows"]) == 22 and report["result"]["machine"]["gpu"] is None


@on_cpu
def test_a_wrong_gradient_is_found(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = script.answer

    def one_sign_wrong(net: Any, *given: Any, **more: Any) -> tuple[Any, list[Any]]:
        log_probs, gradients = real(net, *given, **more)
        return log_probs, gradients if net.pair_weight.dtype == torch.float64 else [*gradients[:-1], -gradients[-1]]

    monkeypatch.setattr(script, "answer", one_sign_wrong)
    report = script.run_part("precision", small=True)
    assert report["status"] == "failed"
    assert report["reason"] == "float32 differs from float64 by 2.0e+00 in gradient_differences, more than 1e-02"


def test_pytest_is_ended_before_its_part_is(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.subprocess, "run", hang)
    report = script.run_part("kernels", small=True)
    assert report["status"] == "failed" and report["reason"].endswith("timed out after 90 seconds")


def test_what_pytest_needs_is_named(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    assert script.run_part("tests", small=True) == {
        "status": "skipped",
        "reason": "pytest and hypothesis not installed",
    }


def test_kernel_tests_that_are_not_there_are_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    report = script.run_part("kernels", small=True)
    assert report == {"status": "skipped", "reason": "this clone has no tests/learn/test_pair*.py"}


def raising(small: bool) -> dict[str, Any]:
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("part", "status", "reason"),
    [
        (raising, "failed", "ValueError: first line"),
        (lambda small: {"a": 1, "wrong": "b"}, "failed", "b"),
        (lambda small: {"a": 1}, "passed", None),
    ],
)
def test_a_part_that_goes_wrong_is_kept(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    part: Callable[[bool], dict[str, Any]],
    status: str,
    reason: str | None,
) -> None:
    monkeypatch.setitem(script.PARTS, "machine", part)
    report = script.run_part("machine", small=True)
    assert (report["status"], report.get("reason")) == (status, reason)


def crash(*args: Any, **kwargs: Any) -> Any:
    return subprocess.CompletedProcess(args, -11, stdout="so far", stderr="gone")


def hang(*args: Any, **kwargs: Any) -> Any:
    raise subprocess.TimeoutExpired(args, kwargs["timeout"])


@pytest.mark.parametrize(("run", "reason"), [(crash, "its process ended with -11"), (hang, "took more than 140 s")])
def test_a_process_that_crashes_or_hangs_leaves_the_others(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Callable[..., Any], reason: str
) -> None:
    monkeypatch.setattr(script, "has_gpu", lambda: True)
    monkeypatch.setattr(script.subprocess, "run", run)
    out = tmp_path / "结果.json"
    assert script.main(["--out", str(out), "--parts", "ladder", "machine"]) == 1
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["parts"]["ladder"]["reason"] == reason
    assert list(report["parts"]) == ["ladder", "machine"]
    assert report["gpu_measured"] is True and report["statement"] == "measured on this machine's GPU"


def test_all_parts_fit_into_ten_minutes(script: ModuleType) -> None:
    assert sum(script.SECONDS.values()) < 600
    assert list(script.SECONDS) == list(script.PARTS)


@on_cpu
def test_without_a_gpu_it_measures_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert script.main(["--out", str(out)]) == 2
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["gpu_measured"] is False and report["parts"] == {}
    assert report["statement"] == "no GPU was measured"
    assert "torch sees no NVIDIA GPU here; --dry_run" in capsys.readouterr().err


def test_dry_run_in_own_processes(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert script.main(["--dry_run", "--out", str(out), "--parts", "machine", "tests"]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["gpu_measured"] is False
    assert report["statement"] == "no GPU was measured: this only shows that it runs"
    assert {name: part["status"] for name, part in report["parts"].items()} == {"machine": "passed", "tests": "passed"}
    assert any("1 passed" in line for line in report["parts"]["tests"]["result"]["lines"])
    assert "no GPU was measured: this only shows that it runs. Nothing failed." in capsys.readouterr().out


def test_what_was_measured_before_the_time_ran_out_is_kept(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_and_hang(command: list[str], **kwargs: Any) -> Any:
        script.so_far = Path(command[command.index("--alone") + 1])
        script.keep({"rows": [1, 2]})
        return hang(**kwargs)

    monkeypatch.setattr(script.subprocess, "run", measure_and_hang)
    part = script.in_own_process("ladder", small=False)
    assert (part["status"], part["reason"]) == ("failed", "took more than 140 s")
    assert part["result"] == {"rows": [1, 2]}


@on_cpu
def test_the_ladder_keeps_each_size_that_is_done(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clock, "REPETITION_SECONDS", 0.0)
    monkeypatch.setattr(script, "so_far", tmp_path / "part.json")
    script.ladder(small=True)
    kept = json.loads((tmp_path / "part.json").read_text(encoding="utf-8"))
    assert len(kept["result"]["rows"]) == 22
