"""What training learns from recorded dou dizhu: random players' games, and a trained policy's against random players.

    python benchmarks/recorded_learning.py [--episodes 20000] [--hidden_dim 128] [--games 2001] [--out FOLDER]

Records, trains and plays by the commands that docs/recordings.md shows, and prints its table. `--out` keeps the runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def movelist(*words: object) -> str:
    """Run a command; what it printed."""
    command = [sys.executable, "-m", "movelist", *map(str, words)]
    print("movelist " + " ".join(command[3:]), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def main() -> None:
    """Record, train, play, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--hidden_dim", type=int, default=128)
    parser.add_argument("--games", type=int, default=2001)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        train = ("--hidden_dim", arguments.hidden_dim, "--eval_games", 0, "--no-tensorboard", "--out")
        started = time.monotonic()
        rows: list[tuple[str, str, str]] = []

        def learn(data: Path, name: str, *flags: str) -> str:
            movelist("train", "--data", data, *flags, *train, folder / name)
            played = movelist("match", folder / name, "--num_games", arguments.games, "--json")
            score = json.loads(played)
            low, high = score["win_rate_interval"]
            return f"{score['win_rate']:.3f} ({low:.3f} to {high:.3f})"

        first, second = folder / "random.arrows", folder / "policy.arrows"
        movelist("record", "--episodes", arguments.episodes, "--out", first)
        rows.append(("random players", "PPO, `--learn_from all`", learn(first, "ppo-random", "--learn_from", "all")))
        movelist("record", "--policy", folder / "ppo-random", "--against", "random", "--episodes", arguments.episodes,
                 "--seed", 1, "--out", second)  # fmt: skip
        scores = json.loads(movelist("check", second, "--json"))["scores"]
        own = next(score["win_rate"] for score in scores if score["player"].startswith("policy"))
        data = f"that policy, drawing, against random players (it won {own:.3f} of these)"
        imitate = ("--imitate", "--learn_from", "policy")
        rows.append((data, "`--imitate --learn_from policy`", learn(second, "imitated", *imitate)))
        rows.append(("the same", "PPO from a fresh network", learn(second, "ppo-policy")))
        size = f"{arguments.episodes:,} episodes each, --hidden_dim {arguments.hidden_dim}"
        print(f"{size}, {arguments.games:,} greedy games against random players; {time.monotonic() - started:,.0f} s")
        print("\n| data | training | win rate |\n|---|---|---|")
        for row in rows:
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
