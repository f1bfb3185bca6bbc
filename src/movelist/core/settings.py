"""Every setting, as frozen dataclasses that check themselves when they are made. Free of torch: --help is quick.

The docstring under each field is its help text on the command line: what it does, which way it pushes, the usual range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

from movelist.core.by_name import HANDED_IN, check_name
from movelist.core.checks import above_zero, at_least, check_kinds, plain, require
from movelist.core.errors import SettingsError, nearest

Repeated = Literal["refuse", "merge"]
SELF_PLAY_STEPS = 500_000  # what total_steps "auto" means without --data


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The network."""

    hidden_dim: int = 512
    """Width of all layers. Wider plays better after long training and costs its square in time. Usual: 128 to 1024."""

    action_hidden_dim: int | None = None
    """Width of the layer that reads an action. None takes hidden_dim. Narrower saves time and memory where ids seldom
    repeat, so that a batch has nearly as many different actions as legal ones."""

    action_encoder: Literal["auto", "bits", "table", "features"] = "auto"
    """How an action id enters the network: its 64 "bits", where they mean something (cards, squares), or a "table" of
    learned vectors, for ids that are small dense numbers. "auto" asks the game. "features" leaves the id out, so that
    it is the action's name only: the network goes by the game's action_features alone."""

    action_features: Literal["use", "ignore"] = "use"
    """Whether the network looks at the action_features that a game's states or its recordings have beside the ids."""

    state_encoder: str | None = None
    """What reads a state in place of two layers: "module:Class" or "file.py:Class", with keywords if it has any:
    "sets.py:Entities(heads=4)". Called with the width of a state and hidden_dim, it makes a torch module [B, S] ->
    [B, hidden_dim]. The run remembers it: see docs/extending.md."""

    network: str | None = None
    """What is the whole network, named likewise: a movelist.Network, called with a movelist.ModelShape."""

    def __post_init__(self) -> None:
        check_kinds(self)
        for name in filter(None, (self.state_encoder, self.network)):
            if not name.startswith(HANDED_IN):
                check_name(name)
        require(self, not (self.state_encoder and self.network), "state_encoder", "None beside --network")
        at_least(self, 1, "hidden_dim", "action_hidden_dim")
        for name in ("hidden_dim", "action_hidden_dim"):
            require(self, (getattr(self, name) or 0) <= 1 << 16, name, "at most 65,536")


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The PPO update."""

    batch_size: int = 1024
    """Steps in one forward and backward pass of one process. Larger is calmer, and faster until the device is full.
    Usual: 128 to 4096."""

    update_frequency: int = 256
    """Episodes played for each update, over all processes. More make each update better informed, fewer make updates
    come sooner. Usual: 128 to 2048; below 32 the gradient is mostly noise."""

    epochs_per_update: int = 4
    """Passes over each update's episodes. More take more from the same games, and drift further. Usual: 1 to 10."""

    gradient_accumulation_steps: int = 1
    """Batches summed for one optimiser step, which then sees batch_size times this many steps. For less memory and the
    same learning, halve batch_size and double this."""

    max_actions_per_minibatch: int = 131_072
    """Legal actions in one forward and backward pass, at most: a batch with more is cut into smaller ones. That changes
    its memory and not its result. Bounds the unique ids, too. A single longer list is a batch of its own."""

    empty_cache_every: int = 0
    """Updates between hand-backs of cached GPU memory; 0 never does. It waits for the device and takes what the next
    update asks for again: worth it only where the profile shows fragmentation."""

    use_amp: bool = False
    """Compute matrix products in bfloat16 where the device is faster at it: GPUs with tensor cores, processors with
    AVX512-BF16 or AMX (there for hidden_dim 256 and wider). Softmax and loss stay in float32."""

    compile: Literal["off", "on"] = "off"
    """Let torch.compile make one graph of a batch's forward pass, loss and gradient. The first update takes half a
    minute longer; on a CPU later ones gain a tenth with narrow layers (64), nothing with wide ones, and with several
    threads the same seed no longer gives the same bytes. Without a C++ compiler it says so and goes on without."""

    kernels: Literal["torch", "triton"] = "torch"
    """What scores the legal actions on a GPU: "torch", or the "triton" kernel, whose sums follow a planned order, so
    that they do not vary from run to run. Not measured on a GPU yet."""

    lr: float = 5e-4
    """Adam's learning rate. Too high is unstable, too low slow. Usual: 1e-4 to 1e-3."""

    lr_schedule: Literal["constant", "linear"] = "constant"
    """"linear" falls from lr to 0 over total_steps (or max_seconds, whichever is nearer), for a calmer end."""

    gamma: float = 1.0
    """Discount for each own decision, 0 to 1. Below 1 the near reward counts more. 1 suits games that end."""

    gae_lambda: float = 0.95
    """Advantage estimation: 1 trusts the game's outcome (noisy), 0 the value network (biased). Usual: 0.9 to 1."""

    clip_range: float = 0.2
    """How far one update may move an action's probability, as a ratio. Usual: 0.1 to 0.3."""

    clip_range_vf: float | None = None
    """The same for values, in units of the scaled return; None does not clip them."""

    ent_coef: float = 0.01
    """Reward for undecidedness. More explores more and plays less sharply. Usual: 0 to 0.1."""

    vf_coef: float = 0.5
    """Weight of the value loss beside the policy loss. Usual: 0.25 to 1."""

    max_grad_norm: float = 0.5
    """Longest gradient of one optimiser step; longer ones are shortened to it. Usual: 0.5 to 10."""

    normalize_advantage: bool = True
    """Shift and scale the advantages of a rollout to mean 0 and deviation 1."""

    scale_returns: bool = True
    """Divide returns by their running standard deviation, so that one setting fits games that pay 1 and 49,152."""

    target_kl: float | None = None
    """Stop an update's epochs once the policy moved this far (mean approximate KL). None never stops. Usual: 0.01 to
    0.05."""

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least(self, 1, "batch_size", "update_frequency", "epochs_per_update", "gradient_accumulation_steps")
        at_least(self, 1, "max_actions_per_minibatch")
        at_least(self, 0, "empty_cache_every", "lr", "ent_coef", "vf_coef")
        above_zero(self, "clip_range", "clip_range_vf", "max_grad_norm", "target_kl")
        for name in ("gamma", "gae_lambda"):
            require(self, 0 <= getattr(self, name) <= 1, name, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class PlaySettings:
    """Self-play."""

    num_games: int = 256
    """Games played at once; a network call serves one step of each. More is faster until the device is full."""

    keep_forced: bool = False
    """Train also on turns with a single legal action. They are no decisions; their rewards count either way."""

    max_turns: int = 10_000
    """A game still running after this many turns is cut off there and counts as truncated."""

    repeated_actions: Repeated = "refuse"
    """A list that names an action twice, of the game or of --data: "refuse" it, or "merge" the copies into one entry.
    Recorded log-probs follow: docs/episode_format.md. A game of your own may say it itself."""

    critic_sees: Literal["state", "all"] = "state"
    """What the values behind the advantages are computed from while training: the mover's "state", or "all" that the
    game's states tell a critic (observe_all; in OpenSpiel's games all players' hands; critic_state in recordings). The
    policy, and the value that is shown and exported, know the state alone either way."""

    rollout_workers: int = 0
    """Processes that play the games while this one runs the network; 0 plays them in this process. More help where the
    game is slow, as perf/rollout_share shows, and cores are free. The games are the same for any number. Usual: 0, or 1
    to the number of cores."""

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least(self, 1, "num_games", "max_turns")
        at_least(self, 0, "rollout_workers")
        require(self, self.rollout_workers <= 60, "rollout_workers", "at most 60")  # Windows waits for 63 at once


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The run."""

    out: Path | None = None
    """Folder of the run. None makes a new one, runs/GAME-DATE-TIME. If it holds the run that these settings describe,
    that run goes on."""

    resume: Path | None = None
    """Folder of a run to continue, with that run's own settings. total_steps and max_seconds may be given anew."""

    total_steps: int | Literal["auto"] | None = "auto"
    """Stop after this many steps (decisions trained on), at the end of an update. "auto" is 500,000 in self-play and no
    limit with --data, where the data end the training. None never stops for steps."""

    max_seconds: float | None = None
    """Stop after this many seconds of training, at the end of an update; in self-play an update has no more games than
    fit into half of them. None never stops for time."""

    seed: int = 0
    """Of everything random. The same seed, machine and thread count give the same bytes on a CPU."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. "auto" takes the GPU if there is one."""

    num_threads: int | None = None
    """CPU threads for computing. None leaves torch's choice, usually the number of cores."""

    save_every: int | None = None
    """Updates between checkpoints; the last update is always saved. None saves as often as 1 % of the time allows: when
    the time since the last save is 100 times what that one took."""

    save_minutes: float = 10.0
    """The most minutes between checkpoints, whatever --save_every says."""

    keep_checkpoints: int = 3
    """How many of the newest checkpoints to keep. The best one, by the quick matches, is kept besides."""

    eval_games: int = 1_000
    """Games against random players at the end, to show the strength reached. 0 plays none."""

    eval_every: int = 10
    """Updates between quick matches of up to 200 games, for the display and to find the best checkpoint, the newest
    that did no worse than the best before: checkpoints/best.json names it. They are against random players until these
    are beaten 90 %, then against the run's own earlier checkpoints. None are played if eval_games is 0."""

    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""

    live: bool = True
    """Show and log where the time goes while training: the waits, the use of processor and GPU, the memory. Costs less
    than 1 % (benchmarks/live.py); off it costs nothing."""

    preset: str | None = None
    """Settings to start from, under the flags that are given: "fast" (the fastest that was measured on this kind of
    device), "guide" (small and frequent updates), or a file: of movelist profile --tune, or a run's settings.json."""

    state_layout: str | None = None
    """A name for what the numbers of a state mean, written into each policy that --watch publishes or export writes;
    readers that expect another one refuse the file. None names the width only."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require(self, self.step_goal is None or self.step_goal >= 1, "total_steps", "at least 1")
        at_least(self, 1, "num_threads", "save_every", "keep_checkpoints", "eval_every")
        at_least(self, 0, "eval_games", "seed")
        require(self, self.seed < 1 << 63, "seed", "at most 2^63 - 1")
        require(self, (self.num_threads or 0) <= 1024, "num_threads", "at most 1024")  # OpenMP crashes far above
        above_zero(self, "max_seconds", "save_minutes")

    @property
    def step_goal(self) -> int | None:
        """total_steps as a number, or None for no end."""
        return SELF_PLAY_STEPS if self.total_steps == "auto" else self.total_steps


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Training from recorded episodes in place of self-play."""

    data: tuple[Path, ...] = ()
    """Recordings (.jsonl, .jsonl.gz, .arrows), folders of them, or one store made by movelist convert. They decide when
    training ends, unless total_steps is given."""

    data_passes: int = 1
    """How often each recorded episode is used. More passes learn from data that the policy has left behind. Usual: 1 to
    3; more with --imitate."""

    learn_from: Literal["policy", "human", "other", "all"] | None = None
    """Whose steps are trained on. None takes those of policies, and with --imitate those of people."""

    max_policy_lag: int | None = None
    """Steps of policies older than this many updates are not trained on. None means 32 with --watch and no limit
    without, since a recording's versions may count another training's updates."""

    imitate: bool = False
    """Learn to choose as the recorded players did, from games of people for example, in place of PPO. The checkpoint
    can start PPO: --init_from."""

    init_from: Path | None = None
    """Run folder or checkpoint whose network to start from; the optimiser starts afresh."""

    watch: bool = False
    """Wait for new episodes in the one folder of --data, and publish the policy after each update: see --publish."""

    publish: str = "weights"
    """What --watch writes to the run's folder "policies" for the engine: always policy-VERSION.safetensors; with "ort"
    or "sentis15" policy-VERSION.onnx, too; then latest.json, which names them."""

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least(self, 1, "data_passes")
        at_least(self, 0, "max_policy_lag")
        for name in ("watch", "imitate"):
            require(self, bool(self.data) or not getattr(self, name), name, "to be given together with --data")
        require(self, len(self.data) == 1 or not self.watch, "watch", "one folder as --data")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Train a policy by self-play, or from recorded episodes (--data)."""

    game: str | None = None
    """An OpenSpiel game, with parameters if it has any: "leduc_poker(players=3)"; pettingzoo:classic/connect_four_v3;
    rlcard:doudizhu; or your own, file.py:Class or module:Class, which is imported. None is dou_dizhu, or with --data
    the game that the recordings name, which then need not be installed."""

    model: ModelSettings = field(default_factory=ModelSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    play: PlaySettings = field(default_factory=PlaySettings)
    run: RunSettings = field(default_factory=RunSettings)
    recorded: DataSettings = field(default_factory=DataSettings)

    def __post_init__(self) -> None:
        require(self, self.game is None or isinstance(self.game, str), "game", "text")
        object.__setattr__(self, "game", plain(self.game))

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Build from plain names, as in `from_flat({"lr": 1e-3, "hidden_dim": 128})`.

        Raises:
            SettingsError: A name is unknown (the nearest is offered) or a value is out of range.
        """
        group_of = {f.name: group for group, kind in _groups().items() for f in fields(kind)}
        grouped: dict[str, dict[str, Any]] = {group: {} for group in _groups()}
        top: dict[str, Any] = {}
        for name, value in values.items():
            if name == "game":
                top[name] = value
            elif name in group_of:
                is_path = name in ("out", "resume", "init_from") and isinstance(value, str)
                if name == "data":
                    value = tuple(map(Path, [value] if isinstance(value, str | Path) else value))
                grouped[group_of[name]][name] = Path(value) if is_path else value
            else:
                close = nearest(name, group_of)
                raise SettingsError(f"unknown setting {name!r}", do=f"Did you mean {close!r}?" if close else None)
        return cls(**top, **{group: kind(**grouped[group]) for group, kind in _groups().items()})

    def to_flat(self) -> dict[str, Any]:
        """All settings by plain name, of types that JSON knows; `from_flat` reads them back."""
        flat: dict[str, Any] = {"game": self.game}
        for group in _groups():
            flat |= asdict(getattr(self, group))
        flat["data"] = [str(path) for path in self.recorded.data]
        return {name: str(value) if isinstance(value, Path) else value for name, value in flat.items()}


def _groups() -> dict[str, type]:
    hints = get_type_hints(TrainSettings)
    return {name: kind for name, kind in hints.items() if name != "game"}


@dataclass(frozen=True, kw_only=True)
class MatchSettings:
    """How a match is played."""

    command: ClassVar[str] = "match"
    """The command that has these flags."""

    num_games: int = 1_000
    """Games to play; rounded up to whole deals, in which every seating is played on the same cards."""

    seed: int = 0
    """Of the games' chance and of players that draw lots."""

    greedy: bool = True
    """Trained policies play their likeliest action; otherwise they draw by probability."""

    openings: int | None = None
    """Decisions by lot at the start of each deal, both sides of each opening. None takes up to 4 where the game has no
    chance and no player draws lots, since all games would be the same one."""

    forfeit: bool = False
    """A player that raises an exception or answers no legal action loses that game; otherwise it ends the match."""

    max_turns: int = 10_000
    """Longer games are cut off; the result says how many."""

    rollout_workers: int = 0
    """Processes that play the games, for slow ones; 0 plays them in this one. The result is the same."""

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least(self, 1, "num_games", "max_turns")
        at_least(self, 0, "seed", "rollout_workers")
        if self.openings is not None:
            at_least(self, 0, "openings")


@dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """What is recorded."""

    command: ClassVar[str] = "record"
    """The command that has these flags."""

    out: Path
    """File to write: .jsonl, .jsonl.gz or .arrows."""

    game: str = "dou_dizhu"
    """The game, named as in train."""

    policy: str = "random"
    """A run folder, RUN@best, a checkpoint or an exported file, which draw by probability; "random", file.py:Bot or
    openspiel:NAME."""

    against: str | None = None
    """Who moves the other seats: another of these. None lets the policy move all seats."""

    episodes: int = 1_000
    """Episodes to play."""

    critic_sees: Literal["state", "all"] = "state"
    """"all" also records what the game's states tell a critic (observe_all; in OpenSpiel's games all players' hands) as
    critic_state, for a training with --critic_sees all."""

    seed: int = 0
    """Of the games' chance and of the players' draws."""

    repeated_actions: Repeated = "refuse"
    """A list of the game that names an action twice: "refuse" it, or "merge" the copies into one entry."""

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least(self, 1, "episodes")
        at_least(self, 0, "seed")
