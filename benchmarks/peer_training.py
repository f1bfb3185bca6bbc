"""One training of one trainer, in a process of its own: what benchmarks/peers.py starts, and not meant to be typed.

    python benchmarks/peer_training.py {maskable_ppo,openspiel_ppo,douzero,movelist} '{"seconds": 60, ...}'

Who gets which return: see benchmarks/peer_tables.py. Advantages, losses and updates are the libraries' own code.

Set-ups, in favour of the peers where there was a choice: the games and their tensors are movelist's OpenSpielGame
(fills a tensor in 0.3 us instead of 4.5), 8 tables at once, returns divided by their running root mean square (dou
dizhu pays up to 49,152, and the gradients of value and policy share one max_grad_norm), no annealing. All else is the
default of the library or its example, forced turns are steps.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from peer_tables import Tables, own_streams

Array = NDArray[Any]

NUM_TABLES = 8  # the number of environments in OpenSpiel's example
NEEDED = {
    "maskable_ppo": ("sb3-contrib", "torch"),
    "openspiel_ppo": ("open-spiel", "torch"),
    "douzero": ("douzero", "GitPython", "torch"),
    "movelist": ("open-spiel", "torch"),
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to train for, and where to leave the outcome."""

    folder: Path
    seconds: float = 60.0
    by_processor: bool = False
    game: str = "dou_dizhu"
    hidden_dim: int = 512
    epochs: int = 4
    batch_size: int = 64
    seed: int = 0


# --- sb3-contrib's MaskablePPO.


def maskable_ppo(tables: Tables, *, hidden_dim: int, **given: Any) -> Any:
    """A MaskablePPO on these tables, ready to `learn`.

    Its two documented doors are used: a VecEnv, and rollout_buffer_class. Both want subclasses.
    """
    from gymnasium import spaces
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
    from stable_baselines3.common.vec_env import VecEnv

    class TableEnv(VecEnv):
        """The tables; rewards go past it, since there is one for each seat."""

        def __init__(self) -> None:
            self.no_reward_N = np.zeros(tables.num_tables, np.float32)
            view = spaces.Box(-np.inf, np.inf, tables.observe().shape[1:], np.float32)
            super().__init__(tables.num_tables, view, spaces.Discrete(len(tables.number_of_id)))

        def reset(self) -> Array:
            return tables.observe()

        def step_async(self, actions: Array) -> None:
            tables.play(actions)

        def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
            return tables.observe(), self.no_reward_N.copy(), tables.over_N, [{} for _ in tables.over_N]

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return list(tables.masks()) if method_name == "action_masks" else []

        def has_attr(self, attr_name: str) -> bool:
            return attr_name == "action_masks"

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

        def close(self) -> None:
            pass

    class SeatBuffer(MaskableRolloutBuffer):
        """Puts the rollout in the order of `own_streams`, as one long lane, before advantages are computed."""

        def reset(self) -> None:
            shape = getattr(self, "filled_shape", (self.buffer_size, self.n_envs))
            self.filled_shape = self.buffer_size, self.n_envs = shape
            super().reset()

        def compute_returns_and_advantage(self, last_values: Any, dones: Array) -> None:
            streams = own_streams(*tables.take_log(), self.values, self.gamma)
            for name in ("observations", "actions", "values", "log_probs", "action_masks"):
                column = getattr(self, name)
                setattr(self, name, column.reshape(-1, 1, *column.shape[2:])[streams.place_R])
            self.rewards = np.array(streams.reward_R, np.float32)[:, None]
            self.episode_starts = np.array([True, *streams.over_R[:-1]], np.float32)[:, None]
            self.advantages = np.zeros_like(self.rewards)
            self.buffer_size, self.n_envs = self.rewards.shape
            super().compute_returns_and_advantage(last_values[:1] * 0, np.array([True]))  # the last stream is over

    given = {"device": "cpu", "rollout_buffer_class": SeatBuffer} | given
    return MaskablePPO("MlpPolicy", TableEnv(), policy_kwargs={"net_arch": [hidden_dim, hidden_dim]}, **given)


def train_maskable_ppo(order: Order) -> dict[str, Any]:
    """Rollouts of 2,048 steps, the library's default, from 8 tables."""
    tables = make_tables(order)
    n_steps = 2048 // NUM_TABLES
    given = {"n_steps": n_steps, "n_epochs": order.epochs, "batch_size": order.batch_size, "seed": order.seed}
    model = maskable_ppo(tables, hidden_dim=order.hidden_dim, **given)

    def update() -> None:
        model.learn(n_steps * NUM_TABLES, reset_num_timesteps=False)

    figures = repeat(update, order)
    layers = [*model.policy.mlp_extractor.policy_net, model.policy.action_net]
    return figures | played(tables) | {"actor": save_actor(layers, order.folder)}


# --- OpenSpiel's own PPO.


def openspiel_ppo(tables: Tables, *, hidden_dim: int, **given: Any) -> Any:
    """OpenSpiel's agent for these tables. Its layers are 64 wide without a flag: wider ones take their place."""
    from open_spiel.python.pytorch.ppo import PPO, PPOAgent, layer_init
    from torch import nn

    def wide_agent(num_actions: int, shape: tuple[int, ...], device: Any) -> Any:
        agent = PPOAgent(num_actions, shape, device)
        for name, num_outputs, std in (("critic", 1, 1.0), ("actor", num_actions, 0.01)):
            first, second = nn.Linear(shape[0], hidden_dim), nn.Linear(hidden_dim, hidden_dim)
            last = layer_init(nn.Linear(hidden_dim, num_outputs), std=std)
            setattr(agent, name, nn.Sequential(layer_init(first), nn.Tanh(), layer_init(second), nn.Tanh(), last))
        return agent

    sizes = {"input_shape": tables.observe().shape[1:], "num_actions": len(tables.number_of_id)}
    return PPO(**sizes, num_players=1, num_envs=tables.num_tables, agent_fn=wide_agent, **given)


def openspiel_rollout(agent: Any, tables: Tables, num_steps: int) -> list[Any]:
    """The loop of OpenSpiel's example: each time step shows the mover's view; returns the time steps at the end."""
    for _ in range(num_steps):
        actions = agent.step(_time_steps(tables))
        tables.play([output.action for output in actions])
        agent.post_step([0.0] * tables.num_tables, tables.over_N)  # rewards: see credit_openspiel
    return _time_steps(tables)


def _time_steps(tables: Tables) -> list[Any]:
    from open_spiel.python.rl_environment import TimeStep

    views = zip(tables.observe(), tables.legal_numbers(), strict=True)
    return [TimeStep({"info_state": [view], "legal_actions": [legal]}, None, None, None) for view, legal in views]


def credit_openspiel(agent: Any, tables: Tables) -> None:
    """Put the agent's rollout in the order of `own_streams`, as one long lane."""
    import torch

    streams = own_streams(*tables.take_log(), agent.values.numpy(), agent.gamma)
    for name in ("legal_actions_mask", "obs", "actions", "logprobs", "values"):
        column = getattr(agent, name)
        setattr(agent, name, column.reshape(-1, 1, *column.shape[2:])[streams.place_R])
    agent.rewards = torch.tensor(streams.reward_R, dtype=torch.float32)[:, None]
    agent.dones = torch.tensor(streams.over_R, dtype=torch.float32)[:, None]
    agent.steps_per_batch = agent.batch_size = len(streams.place_R)
    agent.minibatch_size = agent.batch_size // agent.num_minibatches


def train_openspiel_ppo(order: Order) -> dict[str, Any]:
    """Rollouts of 8 tables x 128 steps in 4 minibatches, as in OpenSpiel's example."""
    import torch

    torch.manual_seed(order.seed)
    tables = make_tables(order)
    agent = openspiel_ppo(tables, hidden_dim=order.hidden_dim, update_epochs=order.epochs)
    names = ("legal_actions_mask", "obs", "actions", "logprobs", "values", "rewards", "dones")
    empty = {name: getattr(agent, name) for name in names}
    num_steps = agent.steps_per_batch

    def update() -> None:
        for name, column in empty.items():
            setattr(agent, name, column)
        last = openspiel_rollout(agent, tables, num_steps)
        credit_openspiel(agent, tables)
        agent.learn(last[:1])  # the last stream is over, so this state's value is multiplied by 0

    figures = repeat(update, order)
    return figures | played(tables) | {"actor": save_actor(agent.network.actor, order.folder)}


# --- DouZero, and movelist.


def train_douzero(order: Order) -> dict[str, Any]:
    """DouZero's own trainer on its own game, two actors, all else its defaults.

    It counts frames when a batch of 3,200 was learned from, which is minutes apart here. So the actors' turns are
    counted instead, from the first one on, by a step function around the environment's.
    """
    from douzero.dmc import dmc, parser

    count_file = order.folder / "frames"
    count_file.write_bytes(bytes(8 * 2))
    os.environ["DOUZERO_FRAMES"] = str(count_file)  # the actors are spawned and inherit it
    dmc.act = counted_act
    flags = ["--actor_device_cpu", "--training_device=cpu", "--num_actors=2", "--disable_checkpoint"]
    settings = parser.parse_args([*flags, f"--savedir={order.folder}"])
    # It never returns by itself, and leaves threads and processes behind: this process ends by os._exit.
    threading.Thread(target=dmc.train, args=(settings,), daemon=True).start()
    counts = np.memmap(count_file, np.int64, "r")
    deadline = time.perf_counter() + 120
    while not counts.any():
        if time.perf_counter() > deadline:
            raise RuntimeError("DouZero's actors played nothing in 120 s")
        time.sleep(0.1)
    before, started, used = int(counts.sum()), time.perf_counter(), cpu_seconds()
    time.sleep(order.seconds)
    seconds = time.perf_counter() - started
    cores = (cpu_seconds() - used) / seconds
    turns = int(counts.sum()) - before
    for child in psutil.Process().children(recursive=True):
        child.kill()
    return {"seconds": seconds, "turns": turns, "cores": cores, "updates": learned_batches(order.folder)}


def learned_batches(folder: Path) -> int:
    """Batches that DouZero has learned from: it logs one line for each, below a heading."""
    logs = next(folder.glob("*/logs.csv"), None)
    lines = logs.read_text(encoding="utf-8").splitlines() if logs else []
    return sum(not line.startswith("#") for line in lines)


def counted_act(number: int, *args: Any) -> None:
    """DouZero's actor, whose turns are counted in the file that the environment names."""
    from douzero.dmc import utils

    counts = np.memmap(os.environ["DOUZERO_FRAMES"], np.int64, "r+")
    step = utils.Environment.step

    def counted_step(environment: Any, action: Any) -> Any:
        counts[number] += 1
        return step(environment, action)

    utils.Environment.step = counted_step
    utils.act(number, *args)


def train_movelist(order: Order, **settings: Any) -> dict[str, Any]:
    """movelist with its defaults, but for these settings."""
    from movelist.core.settings import TrainSettings
    from movelist.games.catalog import make_game
    from movelist.run.folder import RunFolder
    from movelist.run.training import Training

    given = {"game": order.game, "hidden_dim": order.hidden_dim, "epochs_per_update": order.epochs, "seed": order.seed}
    training = Training(TrainSettings.from_flat(given | settings), make_game(order.game), RunFolder(order.folder))
    figures = {"games": 0, "turns": 0, "decisions": 0}

    def update() -> None:
        episodes = training.collect()
        training.update(training.prepare(episodes))
        sizes = (len(episodes), episodes.num_turns, episodes.num_steps)
        for name, size in zip(figures, sizes, strict=True):
            figures[name] += size

    measured = repeat(update, order)
    return measured | figures | {"checkpoint": str(training.save())}


# --- What all of them share.


def make_tables(order: Order) -> Tables:
    """Tables of OpenSpiel's game."""
    from movelist.games.catalog import make_game

    return Tables(make_game(order.game), action_numbers(order.game), NUM_TABLES, order.seed)


def action_numbers(name: str) -> dict[int, int]:
    """OpenSpiel's number of each of movelist's action ids: dou dizhu's say which cards are played."""
    import pyspiel

    from movelist.games import dou_dizhu

    game = pyspiel.load_game(name)
    numbers = range(game.num_distinct_actions())
    if game.get_type().short_name != "dou_dizhu":
        return {number: number for number in numbers}
    state = game.new_initial_state()
    return {dou_dizhu.encode(state.action_to_string(0, number)): number for number in numbers}


def repeat(update: Any, order: Order) -> dict[str, Any]:
    """Update until the seconds, or processor seconds, are over; the last update is finished and counts."""
    num_updates, started, used = 0, time.perf_counter(), cpu_seconds()
    elapsed = core_seconds = 0.0
    while (core_seconds if order.by_processor else elapsed) < order.seconds:
        update()
        num_updates += 1
        elapsed, core_seconds = time.perf_counter() - started, cpu_seconds() - used
    return {"seconds": elapsed, "updates": num_updates, "cores": core_seconds / elapsed}


def cpu_seconds() -> float:
    """Processor time of this process and its children so far."""
    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def played(tables: Tables) -> dict[str, Any]:
    """What was played at the tables."""
    return {"games": tables.num_games, "turns": tables.num_turns}


def save_actor(layers: Any, folder: Path) -> str:
    """Weights and biases of the linear layers, for a match without the library; between them is a tanh."""
    linear = [layer for layer in layers if hasattr(layer, "weight")]
    arrays = {f"{kind}{n}": getattr(layer, kind).detach().numpy() for n, layer in enumerate(linear) for kind in KINDS}
    path = folder / "actor.npz"
    np.savez(path, **arrays)
    return str(path)


KINDS = ("weight", "bias")
TRAINERS = {
    "maskable_ppo": train_maskable_ppo,
    "openspiel_ppo": train_openspiel_ppo,
    "douzero": train_douzero,
    "movelist": train_movelist,
}


def versions(name: str) -> dict[str, str]:
    """Of what a trainer needs."""
    return {package: importlib.metadata.version(package) for package in NEEDED[name]}


def main() -> None:
    """Train, and leave the figures in figures.json in the folder."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    order = Order(**given | {"folder": Path(given["folder"])})
    try:
        found = versions(name)
        figures = TRAINERS[name](order)
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        figures = {"missing": f"{type(error).__name__}: {error}"}
    else:
        figures["versions"] = found
    temporary = Path(tempfile.mkstemp(dir=order.folder)[1])
    temporary.write_text(json.dumps(figures), encoding="utf-8")
    temporary.replace(order.folder / "figures.json")
    sys.stdout.flush()
    os._exit(0)  # DouZero's threads never end


if __name__ == "__main__":
    main()
