"""sb3-contrib's MaskablePPO through its usual wrapper, and movelist, on the same two games for the same time.

    python benchmarks/masked_ppo.py [--seconds 60] [--games pettingzoo:classic/connect_four_v3 rlcard:uno]

Install MaskablePPO with: pip install -c constraints.txt --group baselines (pip 25.1 or newer, in this repository), or
name another Python that has it, pettingzoo and rlcard: --maskable_python PATH.

Each trainer has its own defaults (MaskablePPO two layers of 64, movelist of 512; --same_sizes gives movelist the
other's), one process and one thread. The usual
wrapper is the one of PettingZoo's tutorial for connect four: one game at a time as an environment of one agent, which
sees the board of whose turn it is and gets what the last mover was paid by that move. So who loses by the other's last
move never hears of it. RLCard's game is wrapped in the same way. benchmarks/peers.py compares with a MaskablePPO whose
rewards go to their own seats.

Seconds are the processor's, since others may use the machine. As its speed may change meanwhile, movelist
trains before and after MaskablePPO, the rates are those of both trainings, and the first one plays the match. There
both draw by their probabilities: connect four has no chance, and two that always play their best know two games only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import tyro
from numpy.typing import NDArray
from peer_training import Order, repeat, save_actor, train_movelist

Array = NDArray[Any]
ROOT = Path(__file__).resolve().parents[1]
INSTALL = "pip install -c constraints.txt --group baselines"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train both for the same time, compare speed and strength."""

    games: tuple[str, ...] = ("pettingzoo:classic/connect_four_v3", "rlcard:uno")
    """PettingZoo's classic games with one observation for all seats, or RLCard's, named as in movelist train."""

    seconds: float = 60.0
    """Processor seconds of each training."""

    same_sizes: bool = False
    """Give movelist MaskablePPO's sizes in place of its own defaults: 64 wide, some 2,048 steps an update, batches of
    64, 10 epochs, a learning rate of 3e-4."""

    num_games: int = 1_000
    """Of each match."""

    seed: int = 0
    """Of everything random."""

    maskable_python: str = sys.executable
    """The Python that has sb3-contrib."""

    json: Path | None = None
    """Write the figures there too."""


# --- One training, in a process of its own.


class PettingZooTable:
    """A PettingZoo game as the wrapper wants it: whose turn it is, what they see, what a move paid its mover."""

    def __init__(self, name: str) -> None:
        with warnings.catch_warnings():  # PettingZoo 1.27 asks for its registry, which does not work
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(f"pettingzoo.{name.replace('/', '.')}")
        self.env = module.env()
        self.env.reset()
        agent = self.env.possible_agents[0]
        self.num_actions = int(self.env.action_space(agent).n)

    def reset(self, seed: int | None) -> None:
        """Begin a game."""
        self.env.reset(seed=seed)

    def view(self) -> tuple[Array, Array]:
        """The mover's view, flat, and which actions are legal."""
        seen = self.env.observe(self.env.agent_selection)
        return seen["observation"].astype(np.float32).ravel(), seen["action_mask"].astype(bool)

    def play(self, action: int) -> tuple[float, bool]:
        """Play; what the mover was paid, and whether the game is over."""
        mover = self.env.agent_selection
        self.env.step(action)
        over = self.env.terminations[mover] or self.env.truncations[mover]
        return float(self.env._cumulative_rewards[mover]), bool(over)


class RLCardTable:
    """The same of an RLCard game."""

    def __init__(self, name: str) -> None:
        import rlcard

        self.env = rlcard.make(name)
        self.num_actions = int(self.env.num_actions)
        self.reset(0)

    def reset(self, seed: int | None) -> None:
        """Begin a game."""
        if seed is not None:
            self.env.seed(seed)
        self.state, self.mover = self.env.reset()

    def view(self) -> tuple[Array, Array]:
        """As of PettingZoo's."""
        mask = np.zeros(self.num_actions, bool)
        mask[list(self.state["legal_actions"])] = True
        return np.asarray(self.state["obs"], np.float32).ravel(), mask

    def play(self, action: int) -> tuple[float, bool]:
        """As of PettingZoo's."""
        mover = self.mover
        self.state, self.mover = self.env.step(action)
        over = self.env.is_over()
        return float(self.env.get_payoffs()[mover]) if over else 0.0, bool(over)


def train_maskable(order: Order) -> dict[str, Any]:
    """MaskablePPO with its defaults."""
    import gymnasium
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.wrappers import ActionMasker

    library, _, name = order.game.partition(":")
    table: Any = PettingZooTable(name) if library == "pettingzoo" else RLCardTable(name)
    counts = {"games": 0, "turns": 0}

    class OneAgent(gymnasium.Env[Array, int]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, table.view()[0].shape, np.float32)
        action_space = gymnasium.spaces.Discrete(table.num_actions)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
            table.reset(seed)
            return table.view()[0], {}

        def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            reward, over = table.play(int(action))
            counts["games"] += over
            counts["turns"] += 1
            return table.view()[0], reward, over, False, {}

    env = ActionMasker(OneAgent(), lambda _: table.view()[1])
    model = MaskablePPO("MlpPolicy", env, seed=order.seed, device="cpu")
    figures = repeat(lambda: model.learn(model.n_steps, reset_num_timesteps=False), order)
    layers = [*model.policy.mlp_extractor.policy_net, model.policy.action_net]
    return figures | counts | {"actor": save_actor(layers, order.folder)}


def sizes(game: str) -> dict[str, Any]:
    """MaskablePPO's sizes as movelist's settings; an update there is counted in games."""
    turns = {"pettingzoo:classic/connect_four_v3": 21, "rlcard:uno": 44}.get(game, 20)  # a game's, about
    return {"hidden_dim": 64, "update_frequency": 2048 // turns, "batch_size": 64, "epochs_per_update": 10, "lr": 3e-4}


def child(name: str, given: str) -> None:
    """Train as the order says, and leave the figures in its folder."""
    torch.set_num_threads(1)
    values = json.loads(given)
    own = sizes(values["game"]) if values.pop("same_sizes") else {}
    order = Order(**values | {"folder": Path(values["folder"])})
    figures = train_maskable(order) if name == "maskable" else train_movelist(order, **own)
    packages = ("sb3-contrib", "torch") if name == "maskable" else ("torch",)
    figures["versions"] = {package: importlib.metadata.version(package) for package in packages}
    (order.folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


# --- Both trainings and the match.


def train(name: str, game: str, options: Options, folder: Path) -> dict[str, Any]:
    """One training in its own process.

    Raises:
        SystemExit: It failed; its last words are printed.
    """
    folder.mkdir()
    order = {
        "folder": str(folder),
        "game": game,
        "seconds": options.seconds,
        "seed": options.seed,
        "by_processor": True,
        "same_sizes": options.same_sizes,
    }
    python = options.maskable_python if name == "maskable" else sys.executable
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [python, __file__, "child", name, json.dumps(order)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        print(f"{name} failed on {game}: {done.stderr.strip()[-2000:]}")
        print(f"Is it installed? {INSTALL}" if "ModuleNotFoundError" in done.stderr else "", flush=True)
        raise SystemExit(1)
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    return figures


def compare(game: str, options: Options, folder: Path) -> dict[str, Any]:
    """Both on one game."""
    from peers import PeerPolicy, together

    import movelist

    names = ("movelist", "maskable", "movelist")
    own, peer, again = (train(name, game, options, folder / str(n)) for n, name in enumerate(names))
    rates = {}
    for name, one in (("movelist", together(own, again)), ("MaskablePPO", peer)):
        seconds = one["seconds"] * one["cores"]
        rates[name] = {"core_seconds": seconds} | {f"{k}_per_s": one[k] / seconds for k in ("games", "turns")}
    made = movelist.make_game(game)
    ours = movelist.load(own["checkpoint"], greedy=False)
    theirs = PeerPolicy(Path(peer["actor"]), {number: number for number in range(made.num_actions)}, greedy=False)  # type: ignore[attr-defined]
    common: dict[str, Any] = {"game": made, "num_games": options.num_games, "seed": options.seed}
    matches = {
        "movelist against MaskablePPO": movelist.match(ours, theirs, **common),
        "movelist against random": movelist.match(ours, **common),
        "MaskablePPO against random": movelist.match(theirs, **common),
    }
    versions = own["versions"] | peer["versions"]
    return {"rates": rates, "versions": versions, "matches": {name: str(match) for name, match in matches.items()}}


def main() -> None:
    """Read the options, train, compare, print."""
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
        return
    options = tyro.cli(Options)
    print(f"Python {platform.python_version()}, {psutil.cpu_count()} cores, one thread; {options.seconds:g} processor "
          "seconds each, movelist twice", flush=True)  # fmt: skip
    everything = {}
    for game in options.games:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            everything[game] = found = compare(game, options, Path(folder))
        print(f"\n{game}: {', '.join(f'{name} {version}' for name, version in found['versions'].items())}")
        for name, rates in found["rates"].items():
            print(f"  {name:12} {rates['games_per_s']:8.1f} games/s {rates['turns_per_s']:10,.0f} turns/s")
        for name, match in found["matches"].items():
            print(f"  {name}: {match}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
