"""Players by one notation, wherever a command or a function takes one.

runs/mine                  a run's newest checkpoint; runs/mine@best is its best one, runs/mine@all each one it keeps
update-000071.pt           a checkpoint
policy.onnx                an exported file, .onnx or .safetensors
random                     every legal action is equally likely
bots.py:Greedy             code of one's own: a bot that sees the State, or a policy; or package.module:Greedy
openspiel:mcts             a bot that OpenSpiel has for the game; with parameters, openspiel:mcts(simulations=200)
rlcard:doudizhu-rule-v1    an agent that RLCard has for the game
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from movelist.core.by_name import check_name
from movelist.core.errors import CheckpointError, GameError, SettingsError
from movelist.games.bot import Bot, NamedPlayer, is_bot, made_by_name
from movelist.games.catalog import make_game, make_known
from movelist.games.game import Game, game_name, state_size
from movelist.games.openspiel_bots import OpenSpielBot
from movelist.games.repeated import merging
from movelist.games.rlcard_bots import RLCardBot
from movelist.learn.device import choose_device
from movelist.learn.model import Network
from movelist.play.exported import ExportedPolicy, load_exported
from movelist.play.policy import NetPolicy, Policy, RandomPolicy
from movelist.play.profiles import is_exported
from movelist.run import checkpoint
from movelist.run.folder import checkpoint_files, number_of, numbered

BEST, ALL = "@best", "@all"
LIBRARIES: dict[str, Callable[[str, Game], Bot]] = {"openspiel:": OpenSpielBot, "rlcard:": RLCardBot}


@dataclass(frozen=True)
class Found:
    """A player that was found by its notation.

    Attributes:
        player: Who plays.
        version: The number of a checkpoint's updates; -1 for what has none.
        label: What to call it: what was written, and a checkpoint's updates where that does not say them.
        key: Equal only for equal players: by the weights, what is in the file, or what was written and the code's text.
    """

    player: Policy | Bot
    version: int
    label: str
    key: str


def every_player(texts: Iterable[str]) -> list[str]:
    """The players that these name: RUN@all is each checkpoint that the run keeps, its ladder's too, the oldest first.

    Raises:
        CheckpointError: A run has none.
    """
    found: list[str] = []
    for text in texts:
        if not text.endswith(ALL):
            found.append(text)
            continue
        run = Path(text.removesuffix(ALL))
        kept = {number_of(file): file for file in (*numbered(run / "ladder"), *checkpoint_files(run))}
        found += [str(kept[number]) for number in sorted(kept)]
    return found


def find_entrant(text: str, game: Game, *, greedy: bool) -> Found:
    """As `find_player`, with what tells players apart."""
    if text == "random" or _of_a_library(text):
        return Found(find_player(text, game, greedy=greedy)[0], -1, text, text)
    if names_code(text):
        player, _ = find_player(text, game, greedy=greedy)
        made = player.player if isinstance(player, NamedPlayer) else player
        return Found(player, -1, text, f"{text} {_digest(inspect.getsourcefile(type(made)))}")
    loaded, _, version, file = _load(text, game, greedy)
    if isinstance(loaded, NetPolicy):
        whole_run = file.parent.parent if file.parent.name in ("checkpoints", "ladder") else file
        return Found(loaded, version, f"{whole_run} (update {version:,})", _digest_of(loaded.net))
    return Found(loaded, version, text, _digest(file))


def _digest_of(net: Network) -> str:
    """A short text for a network's weights, wherever they are kept."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest(file: Path | str | None) -> str:
    """A short text for what is in a file; "" for code that has none."""
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def find_player(text: str, game: Game, *, greedy: bool) -> tuple[Policy | Bot, int]:
    """A player by its notation, and its version: the number of a checkpoint's updates, -1 for what has none.

    Args:
        text: See the top of this module.
        game: What it is to play.
        greedy: Trained policies play their likeliest action; otherwise they draw by probability.

    Raises:
        CheckpointError: It cannot be read, or is of another game.
        SettingsError: The code that it names cannot be found or is no player, or a library has no such bot.
    """
    if text == "random":
        return RandomPolicy(), -1
    if prefix := _of_a_library(text):
        return LIBRARIES[prefix](text.removeprefix(prefix), game), -1
    if names_code(text):
        player = made_by_name(text)
        return (NamedPlayer(text) if is_bot(player) else player), -1
    loaded, _, version, _ = _load(text, game, greedy)
    return loaded, version


def game_of(texts: list[str]) -> Game | None:
    """The game that the first trained one of these players was trained on; None if there is none among them."""
    for text in texts:
        if text != "random" and not _of_a_library(text) and not names_code(text):
            return _load(text, None, True)[1]
    return None


def _of_a_library(text: str) -> str:
    """The prefix of a library of games whose bot this is; "" for none."""
    return next((prefix for prefix in LIBRARIES if text.startswith(prefix)), "")


def names_code(text: str) -> bool:
    """Whether a player is code of one's own, and no file or folder."""
    if Path(text).exists():
        return False
    try:
        check_name(text)
    except SettingsError:
        return False
    return True


def load_player(path: Path, game: Game | None, *, greedy: bool) -> tuple[NetPolicy | ExportedPolicy, Game]:
    """The policy of a run, a checkpoint or an exported file, and the game that it plays.

    Raises:
        CheckpointError: It cannot be read, or is not for `game`.
    """
    return _load(str(path), game, greedy)[:2]


def _load(text: str, game: Game | None, greedy: bool) -> tuple[NetPolicy | ExportedPolicy, Game, int, Path]:
    """The player, its game, its version, and the file that was read."""
    path = _file_of(text)
    if is_exported(path):
        exported = load_exported(path, greedy=greedy)
        game = game or _game_by_name(exported.info.game, make_known)
        exported.info.check(str(path), game=game_name(game), state_size=state_size(game))
        return exported, game, -1, path
    file, state = checkpoint.load_newest(path, say=checkpoint.warn)
    settings = state["settings"]
    game = merging(game or _game_by_name(settings["game"], make_game), settings.get("repeated_actions", "refuse"))
    net = checkpoint.load_net(state, choose_device("cpu"))
    checkpoint.check_fits(state, path, game=game_name(game), state_size=state_size(game))
    return NetPolicy(net, greedy=greedy), game, int(state["learner"]["num_updates"]), file


def _file_of(text: str) -> Path:
    """What to read; of RUN@best the file that names the run's best checkpoint."""
    if Path(text).exists() or not text.endswith(BEST):
        return Path(text)
    run = Path(text.removesuffix(BEST))
    best = run / "checkpoints" / "best.json"
    if not best.exists():
        raise CheckpointError(
            "the run has no best checkpoint" if run.exists() else f"{run} does not exist",
            got=text,
            expected=str(best),
            do=f"Its newest one: {run}." if run.exists() else None,
        )
    return best


def _game_by_name(name: str, make: Callable[[str], Game]) -> Game:
    """The game that a policy was trained on, by its name."""
    try:
        return make(name)
    except (GameError, SettingsError) as error:
        own = "A game of your own has to be given: --game file.py:MyGame, or in Python game=MyGame()."
        do = f"{error.do or ''} {own}".strip()
        raise GameError(error.what, got=error.got, expected=error.expected, where=error.where, do=do) from None
