"""Engine and training together: the engine plays with the newest policy and records, the training learns and publishes.

    python examples/engines/close_the_circle.py [--updates 12] [--folder runs/circle]

It compiles toy_engine.cpp with g++ (or what CXX names), starts `movelist train --data ... --watch` beside it, and stops
the training when the engine has seen enough policies. With an engine of your own, the training's line is the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GAMES = 128  # for each update


def main() -> int:
    """Run both until the engine is done; the engine's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=12, help="policies to wait for")
    parser.add_argument("--folder", type=Path, help="where recordings, run and log go; must not be there yet")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="movelist-circle-"))
    recordings, run = folder / "recordings", folder / "run"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        parser.error(f"there is no C++ compiler {compiler} here; name yours in the environment variable CXX")
    if recordings.exists():
        parser.error(f"{folder} has been used already; give another --folder")
    recordings.mkdir(parents=True)
    engine = folder / ("toy_engine.exe" if os.name == "nt" else "toy_engine")
    subprocess.run([compiler, "-std=c++17", "-O3", "-pthread", "-o", engine, HERE / "toy_engine.cpp"], check=True)
    with (folder / "training.log").open("wb") as log:
        training = subprocess.Popen([*training_command(recordings, run)], stdout=log, stderr=subprocess.STDOUT)
        try:
            return play(engine, recordings, run / "policies", arguments.updates, training, folder / "training.log")
        finally:
            stop(training)


def training_command(recordings: Path, run: Path) -> list[str]:
    """What to type beside an engine of your own."""
    return [
        *(sys.executable, "-m", "movelist", "train", "--data", str(recordings), "--watch", "--out", str(run)),
        *("--update_frequency", str(GAMES), "--batch_size", "256", "--hidden_dim", "32", "--lr", "0.003"),
        *("--eval_games", "0", "--no-tensorboard", "--device", "cpu"),
    ]


def play(
    engine: Path, recordings: Path, policies: Path, updates: int, training: subprocess.Popen[bytes], log: Path
) -> int:
    """Let the engine play, and see that the training is alive as long as it does."""
    playing = subprocess.Popen([engine, recordings, policies, str(updates), str(GAMES)])
    try:
        while True:
            try:
                return playing.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                if training.poll() is not None:
                    print(f"the training ended early; the end of {log}:", file=sys.stderr)
                    print(log.read_text(encoding="utf-8", errors="replace")[-2000:], file=sys.stderr)
                    return 1
    finally:
        playing.kill()


def stop(training: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does: the training saves and leaves. Windows has no such signal for one process alone."""
    if training.poll() is None:
        training.terminate() if os.name == "nt" else training.send_signal(signal.SIGINT)
    try:
        training.wait(timeout=60)
    except subprocess.TimeoutExpired:
        training.kill()


if __name__ == "__main__":
    sys.exit(main())
