"""Which games of PettingZoo, RLCard and OpenSpiel are played here, and does a few seconds' training help in each?

Each game is made, checked (a random game played twice), and matched against random players with the network as it
begins and again after a training of --seconds. That shows that a game runs, not how strong it gets: so little time and
so few games say no more. What does not run is listed with its reason. Each game has a process of its own with one
thread, which is ended after --limit seconds; games that --budget leaves no time for are counted at the end.

    python benchmarks/games_table.py                                       about eight minutes
    python benchmarks/games_table.py --seconds 30 --limit 120 --budget 7200 --only rlcard:
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import movelist
from movelist.core.errors import MissingExtraError, MovelistError
from movelist.core.settings import PlaySettings, TrainSettings
from movelist.games import openspiel, rlcard
from movelist.games.game import Game
from movelist.learn.parallel import World
from movelist.play import arena
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.run.parts import NOTHING
from movelist.run.training import first_net

PETTINGZOO = (
    *("chess_v6", "connect_four_v3", "go_v5", "go_v5(board_size=5)", "hanabi_v5", "leduc_holdem_v4", "rps_v2"),
    *("texas_holdem_no_limit_v6", "texas_holdem_v4", "tictactoe_v3"),
)
SMALL = {"hidden_dim": 64, "batch_size": 256, "update_frequency": 64, "max_turns": 500, "num_threads": 1}
QUIET = {"eval_games": 0, "tensorboard": False, "live": False, "device": "cpu"}
HEAD = "| game | seats | actions | state | legal | win rate before | after | return before | after | steps |"


def names() -> list[str]:
    """All that could be played: PettingZoo's classic ones, RLCard's, and OpenSpiel's with a tensor."""
    found = [f"pettingzoo:classic/{name}" for name in PETTINGZOO]
    for prefix, listed in (("rlcard:", rlcard.game_names), ("", openspiel.game_names)):
        try:
            found += [prefix + name for name in sorted(listed())]
        except MissingExtraError as error:
            print(f"Left out: {error}")
    return found


def row(name: str, seconds: float, num_games: int) -> str:
    """A game's line of the table.

    Raises:
        MovelistError: The game does not run; says why.
    """
    torch.set_num_threads(1)
    game = movelist.make_game(name)
    report = movelist.check_game(game, num_games=1, max_turns=SMALL["max_turns"], cut_off=True)
    settings = TrainSettings.from_flat({**SMALL, **QUIET, "game": name})
    before = match(
        NetPolicy(first_net(settings, game, World(torch.device("cpu")), NOTHING), greedy=True), game, num_games
    )
    with tempfile.TemporaryDirectory() as folder:
        trained = movelist.train(name, max_seconds=seconds, out=Path(folder, "run"), **SMALL, **QUIET)
    after = match(greedy(trained.policy), game, num_games)
    rates = ("-", "-") if game.num_players == 1 else (f"{before.win_rate:.2f}", f"{after.win_rate:.2f}")
    cells = [
        name,
        str(report.num_players),
        f"{getattr(game, 'num_actions', 0):,}",
        f"{report.state_size:,}",
        f"{report.mean_legal_actions:.1f}",
        *rates,
        f"{before.mean_return:+.2f}",
        f"{after.mean_return:+.2f}",
        f"{trained.steps:,}",
    ]
    return f"| {' | '.join(cells)} |"


def greedy(policy: NetPolicy) -> NetPolicy:
    """The same network, playing its likeliest action."""
    return NetPolicy(policy.net, greedy=True)


def match(policy: NetPolicy, game: Game, num_games: int) -> arena.MatchResult:
    """Against random players, each seat equally often."""
    play = replace(PlaySettings(), max_turns=SMALL["max_turns"])
    return arena.match(policy, RandomPolicy(), game, num_games=num_games, seed=0, play=play)


def work(answer: Connection, name: str, seconds: float, num_games: int) -> None:
    """Send the line, or the reason why there is none."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 2)
        try:
            answer.send(("row", row(name, seconds, num_games)))
        except MovelistError as error:
            answer.send(("reason", str(error)))
        except Exception as error:  # whatever a library raises
            answer.send(("reason", f"{type(error).__name__}: {' '.join(str(error).split())}"))


def ask(name: str, arguments: argparse.Namespace, context: multiprocessing.context.BaseContext) -> tuple[str, str]:
    """("row", line) or ("reason", text) of a game in a process of its own."""
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, name, arguments.seconds, arguments.games))
    process.start()
    theirs.close()
    try:
        if not ours.poll(arguments.limit):
            return "reason", f"not through within --limit {arguments.limit:g} seconds"
        return ours.recv()
    except EOFError:
        process.join()
        return "reason", f"its process ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Print the table, then what does not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of training for each game")
    parser.add_argument("--games", type=int, default=40, help="of each match")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds after which a game is given up")
    parser.add_argument("--budget", type=float, default=470.0, help="seconds for all")
    parser.add_argument("--only", default="", help="games whose names begin so")
    arguments = parser.parse_args()
    # Where it can be, a copy of this process: to import torch anew for each game would take half of the time.
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context, started = multiprocessing.get_context(kind), time.monotonic()
    reasons, left_out = [], []
    where = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{arguments.seconds:g} s of training, matches of {arguments.games} games, one thread; {where}.")
    print(f"Rates of {arguments.games} games are rough: a difference below 0.25 is none.\n")
    print(HEAD)
    print("|---" * 10 + "|")
    for name in (name for name in names() if name.startswith(arguments.only)):
        if time.monotonic() - started > arguments.budget:
            left_out.append(name)
            continue
        said, text = ask(name, arguments, context)
        if said == "row":
            print(text, flush=True)
        else:
            reasons.append(f"- {name}: {text}")
    print("\nNot in the table:\n")
    print("\n".join(reasons) or "- none")
    if left_out:
        print(f"\nNo time was left for {len(left_out)}: {', '.join(left_out)}.")
    print(f"\n{time.monotonic() - started:.0f} s in all.")


if __name__ == "__main__":
    main()
