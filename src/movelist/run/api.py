"""What Python users call: train, load, match, exploitability, export."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from movelist.core.errors import CheckpointError, SettingsError
from movelist.core.patience import say_on_standard_error
from movelist.core.settings import MatchSettings, PlaySettings, TrainSettings
from movelist.data.episode import Source
from movelist.games.bot import Bot
from movelist.games.catalog import is_own, make_game, own_name
from movelist.games.check import check_game
from movelist.games.game import Game, game_name
from movelist.games.game_tree import MOST_NODES
from movelist.games.openings import opening_length
from movelist.games.repeated import merging
from movelist.learn.device import choose_device
from movelist.learn.learner import Learner
from movelist.learn.loss import Loss
from movelist.learn.model import EncoderMaker, Network, NetworkMaker
from movelist.play import arena as matches
from movelist.play import exploitability as exact
from movelist.play import terminal
from movelist.play.export import ExportReport, export_net
from movelist.play.exported import ExportedPolicy
from movelist.play.policy import NetPolicy, Policy, RandomPolicy
from movelist.play.policy_info import describe
from movelist.play.selfplay import Opponents
from movelist.play.tournament import ArenaResult, Entrant, Results, tournament
from movelist.run import checkpoint
from movelist.run.checkpoint import load_policy as load
from movelist.run.exactness import movelist_version
from movelist.run.folder import read_settings
from movelist.run.parts import handed_in
from movelist.run.players import every_player, find_entrant, find_player, game_of, load_player
from movelist.run.presets import preset
from movelist.run.start import Update
from movelist.run.train import TrainResult
from movelist.run.train import train as train_settings

__all__ = ["arena", "exploitability", "export", "load", "match", "play_game", "train"]


def train(
    game: str | Game | Callable[[], Game] | None = None,
    *,
    net: Network | NetworkMaker | str | None = None,
    state_encoder: nn.Module | EncoderMaker | str | None = None,
    loss: Loss | None = None,
    source: Source | None = None,
    opponents: Opponents | Sequence[Policy] | None = None,
    policy: Callable[[Network], Policy] | None = None,
    learner: Callable[..., Learner] | None = None,
    after_update: Callable[[Update], None] | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a policy by self-play or from recordings; see `movelist train --help` for the settings.

    Each part can be handed in ready made; docs/extending.md has a small working program for each.

    Args:
        game: A name (docs/games.md), or a game of your own (see `movelist.Game`; `movelist.check_game` tests it): its
            class, which every command finds again if it stands at the top of a module, or a game. None is dou_dizhu, or
            with `data=` the game that the recordings name.
        net: A network in place of the standard one: a `movelist.Network`, its class (called with a
            `movelist.ModelShape`), or the class's name, "module:Class". Checkpoints name the class, so that every
            command finds it; of an object only this program can give another.
        state_encoder: What reads a state [B, S] -> [B, hidden_dim] in the standard network: a torch module, what makes
            one of (state_size, hidden_dim), or its name.
        loss: What a batch minimises, in place of PPO's; see `movelist.learn.loss.Loss`.
        source: Where episodes come from, in place of self-play; see `movelist.Source`.
        opponents: Policies that move the other seats in half of the games of self-play, or `movelist.Opponents` with
            another share. Only the learner's own seats are learned from.
        policy: Makes of the network who plays the learner's seats, before each update; None is `movelist.NetPolicy`.
            The log-probs that it gives are taken as those of the choices.
        learner: A class to use in place of `movelist.learn.learner.Learner`, called in the same way.
        after_update: Called after each update with a `movelist.Update`, as loggers need it; in the first process.
        **settings: By their plain names, as in `train(lr=1e-3, hidden_dim=128, out="runs/mine")`.

    Returns:
        Folder, last checkpoint, the trained policy, and its match against random players.

    Raises:
        MovelistError: A setting, the game or the folder cannot be used, or a number went bad in training.
    """
    if resumed := settings.get("resume"):
        settings = read_settings(Path(resumed)) | {"out": None, "preset": None} | settings
    if name := settings.get("preset"):
        settings = preset(name, settings.get("device", "auto")) | settings
    own, named = _own_and_named(game, settings if resumed else {})
    chosen = TrainSettings.from_flat(settings | named)
    if own is not None:
        own = merging(own, chosen.play.repeated_actions)
        check_game(own, num_games=1, max_turns=chosen.play.max_turns, cut_off=True)
    resolved, parts = handed_in(
        chosen,
        net=net,
        state_encoder=state_encoder,
        opponents=opponents,
        loss=loss,
        source=source,
        policy=policy,
        learner=learner,
        after_update=after_update,
    )
    return train_settings(resolved, own, parts=parts)


def _own_and_named(
    game: str | Game | Callable[[], Game] | None, before: dict[str, Any]
) -> tuple[Game | None, dict[str, Any]]:
    """The game that was handed in, and how the settings name it; a class that can be found again is a name."""
    if game is None or isinstance(game, str):
        return None, {} if game is None else {"game": game}
    if (name := own_name(game)) is not None:
        return None, {"game": name}
    own = make_game(game)
    if is_own(str(before.get("game"))):  # the run knows where its class stands
        return own, {"game": before["game"]}
    return own, {"game": game_name(own)}


def match(
    policy: Policy | Bot | Path | str,
    opponent: Policy | Bot | Path | str = "random",
    *,
    game: str | Game | Callable[[], Game] | None = None,
    num_games: int = 1_000,
    seed: int = 0,
    greedy: bool = True,
    openings: int | None = None,
    forfeit: bool = False,
    max_turns: int = 10_000,
    rollout_workers: int = 0,
) -> matches.MatchResult:
    """Play a policy against another one, on equal deals: every seating is played on the same cards, and reversed.

    Args:
        policy: A policy, a bot, or one's name: a run folder, RUN@best, a checkpoint, an exported file, "random",
            "file.py:Bot", "module:Bot", or "openspiel:NAME"; see docs/strength.md.
        opponent: The same.
        game: A name or a game; None takes the one that a policy was trained on.
        num_games: Rounded up to whole deals.
        seed: Of the games' chance and of players that draw lots.
        greedy: Loaded policies play their likeliest action; otherwise they draw by probability.
        openings: Decisions by lot at the start of each deal. None takes up to 4 where the game has no chance and
            neither player draws lots.
        forfeit: A player that raises an exception or answers no legal action loses that game; else it is an error.
        max_turns: Longer games are cut off.
        rollout_workers: Processes that play the games; the result is the same.

    Returns:
        The score of `policy`: all games, and each seat.

    Raises:
        MovelistError: A setting, a player or the game cannot be used, or they do not belong together.
    """
    chosen = MatchSettings(
        num_games=num_games,
        seed=seed,
        greedy=greedy,
        openings=openings,
        forfeit=forfeit,
        max_turns=max_turns,
        rollout_workers=rollout_workers,
    )
    texts = [str(player) for player in (policy, opponent) if isinstance(player, str | Path)]
    played = game_of(texts) if game is None else make_game(game)
    if played is None:
        raise CheckpointError("a match needs to know its game", do="Give game=... .")
    players = [
        find_player(str(player), played, greedy=chosen.greedy)[0] if isinstance(player, str | Path) else player
        for player in (policy, opponent)
    ]
    play = PlaySettings(max_turns=chosen.max_turns, rollout_workers=chosen.rollout_workers)
    return matches.match(
        players[0],
        players[1],
        played,
        num_games=chosen.num_games,
        seed=chosen.seed,
        play=play,
        openings=chosen.openings,
        forfeit=chosen.forfeit,
    )


def arena(
    players: Sequence[str | Path],
    *,
    against: str | Path | None = None,
    game: str | Game | Callable[[], Game] | None = None,
    out: Path | str | None = None,
    num_games: int = 400,
    seed: int = 0,
    greedy: bool = True,
    openings: int | None = None,
    forfeit: bool = False,
    max_turns: int = 10_000,
    rollout_workers: int = 0,
    say: Callable[[str], None] = say_on_standard_error,
) -> ArenaResult:
    """Everyone against everyone, on equal deals: a table, and a rating with an interval for each.

    Args:
        players: By their notation; see docs/strength.md. RUN@all is each checkpoint that a run keeps.
        against: Another player, whom all of them meet; then they do not meet each other.
        game: A name or a game; None takes the one that a policy was trained on.
        out: A folder that keeps the results: what stands there is not played again. None keeps nothing.
        num_games: Of each pairing, rounded up to whole deals.
        seed: Of the games' chance and of players that draw lots.
        greedy: Trained policies play their likeliest action; otherwise they draw by probability.
        openings: Decisions by lot at the start of each deal. None takes up to 4 where the game has no chance.
        forfeit: A player that raises an exception or answers no legal action loses that game; else it is an error.
        max_turns: Longer games are cut off.
        rollout_workers: Processes that play the games; the result is the same.
        say: Told how far it came.

    Raises:
        MovelistError: A setting, a player or the game cannot be used, or the folder holds other results.

    Example:
        result = movelist.arena(["runs/mine@all", "runs/other", "random"], out="arenas/mine")
        print("\\n".join(result.lines()))
    """
    chosen = MatchSettings(
        num_games=num_games,
        seed=seed,
        greedy=greedy,
        openings=openings,
        forfeit=forfeit,
        max_turns=max_turns,
        rollout_workers=rollout_workers,
    )
    texts = every_player(map(str, players))
    played = _game_of_arena([*texts, *([str(against)] if against else [])], game)
    entrants = _entrants(texts, played, greedy, say)
    opponent = _entrants([str(against)], played, greedy, say)[0] if against else None
    if opponent:
        entrants = [entrant for entrant in entrants if entrant.key != opponent.key]
    length = opening_length(played) if openings is None else openings
    head = {"game": game_name(played), "seed": seed, "greedy": greedy, "openings": length, "max_turns": max_turns,
            "forfeit": forfeit}  # fmt: skip
    return tournament(
        entrants,
        played,
        Results(None if out is None else Path(out) / "results.jsonl", head),
        against=opponent,
        num_games=chosen.num_games,
        seed=seed,
        play=PlaySettings(max_turns=max_turns, rollout_workers=rollout_workers),
        openings=length,
        forfeit=forfeit,
        say=say,
    )


def arena_folder(players: Sequence[str], game: str | None) -> Path:
    """Where an arena keeps its results unless it is told: arenas/GAME.

    Raises:
        MovelistError: As `arena`.
    """
    name = game_name(_game_of_arena(every_player(players), game))
    return Path("arenas") / "".join(letter if letter.isalnum() or letter == "_" else "-" for letter in name).strip("-")


def _game_of_arena(texts: list[str], game: str | Game | Callable[[], Game] | None) -> Game:
    played = game_of(texts) if game is None else make_game(game)
    if played is None:
        raise CheckpointError("an arena needs to know its game", do="Give game=... in Python, --game as a command.")
    return played


def _entrants(texts: Sequence[str], game: Game, greedy: bool, say: Callable[[str], None]) -> list[Entrant]:
    """Players by their notation, each once."""
    entrants: dict[str, Entrant] = {}
    for text in texts:
        found = find_entrant(text, game, greedy=greedy)
        if found.key in entrants:
            say(f"{text} is the same player as {entrants[found.key].label}: it plays once.")
            continue
        entrants[found.key] = Entrant(found.label, found.key, found.player)
    return list(entrants.values())


def exploitability(
    policy: exact.GivesLogProbs | Path | str, game: str | Game | None = None, *, most_nodes: int = MOST_NODES
) -> exact.Exploitability:
    """How much a best response gains on a policy that draws by its probabilities; exact, for small OpenSpiel games.

    Args:
        policy: A policy with `log_probs`, a run folder, a checkpoint, an exported file, or "random".
        game: A name or a game; None takes the one that the policy was trained on.
        most_nodes: Of the game's tree; a larger game is refused.

    Returns:
        NashConv, and each seat's value and best response.

    Raises:
        MovelistError: The game is too large or none of OpenSpiel's, or the policy cannot be used.

    Example:
        >>> import movelist
        >>> round(movelist.exploitability("random", "kuhn_poker").nash_conv, 4)
        0.9167
    """
    played = None if game is None else make_game(game)
    if isinstance(policy, str) and policy == "random":
        policy = RandomPolicy()
    elif isinstance(policy, str | Path):
        policy, played = load_player(Path(policy), played, greedy=False)
    if played is None:
        raise CheckpointError("exploitability needs to know its game", do="Give game=... .")
    return exact.exploitability(policy, played, most_nodes=most_nodes)


def play_game(
    policy: Policy | Path | str,
    game: str | Game | Callable[[], Game] | None = None,
    *,
    seat: int = 0,
    seed: int | None = None,
    greedy: bool = True,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> None:
    """Play one game against a policy, in the terminal or a notebook.

    Args:
        policy: A run folder, a checkpoint, an exported file, or a policy of your own.
        game: A name, a game or its class; None takes the one that the policy was trained on.
        seat: Yours; the policy has all others.
        seed: Of the game's chance and the policy's draws; None takes another one each time.
        greedy: A loaded policy plays its likeliest action; otherwise it draws by probability.
        ask: Called for your move, with a prompt.
        say: Called with what is to be read.

    Raises:
        MovelistError: The policy or the game cannot be used, or they do not belong together.
    """
    played = None if game is None else make_game(game)
    bot: Any = policy
    if isinstance(policy, str | Path):
        bot, played = load_player(Path(policy), played, greedy=greedy)
    if played is None:
        raise CheckpointError("a game is needed", do="Give game=... .")
    if not 0 <= seat < played.num_players:
        raise SettingsError("there is no such seat", got=f"--seat {seat}", expected=f"0 to {played.num_players - 1}")
    if seed is not None and not 0 <= seed < 1 << 63:
        raise SettingsError("--seed cannot be used", got=seed, expected="0 to 2^63 - 1")
    terminal.play_game(bot, played, seat=seat, seed=secrets.randbits(31) if seed is None else seed, ask=ask, say=say)


def export(
    policy: NetPolicy | Network | Path | str,
    out: Path | str,
    profile: str = "ort",
    *,
    value: bool = False,
    state_layout: str | None = None,
    game: str | Game | None = None,
) -> ExportReport:
    """Write a policy as a file that an engine can run; see docs/export.md.

    Args:
        policy: A run folder (its latest checkpoint), a checkpoint file, or a network or policy of your own.
        out: The file, ".onnx", or ".safetensors" for the profile "weights".
        profile: "ort" for onnxruntime, "sentis15" for Unity's Inference Engine, "weights" for readers without a
            runtime.
        value: Also export the value, in units of the return divided by the metadata's return_scale.
        state_layout: A name for what the numbers of a state mean; loaders that expect another one refuse the file.
            None takes the one that the training was given; without any it names the width, as in "float32[97]".
        game: The game's name, needed with a network of your own only.

    Returns:
        What was written, and how close it comes to torch.

    Raises:
        MovelistError: Something cannot be exported, or the file is not equal to torch: then nothing is written.
    """
    if isinstance(policy, str | Path):
        state = checkpoint.load(policy)
        net = checkpoint.load_net(state, choose_device("cpu"))
        if game is not None:
            checkpoint.check_fits(state, policy, game=game if isinstance(game, str) else game_name(game))
        return export_net(net, checkpoint.policy_info(state, state_layout), Path(out), profile, value=value)
    if isinstance(policy, ExportedPolicy):
        raise checkpoint.not_trainable("an ExportedPolicy")
    if game is None:
        raise SettingsError("an export needs to know its game", do='Give game="...": the file names it.')
    net = policy.net if isinstance(policy, NetPolicy) else policy
    if not isinstance(net, Network):
        raise SettingsError(
            "this cannot be exported", got=type(net).__name__, expected="a run, a checkpoint, a network or its policy"
        )
    name = game if isinstance(game, str) else game_name(game)
    info = describe(net.shape, version=movelist_version(), game=name, layout=state_layout, policy_version=0)
    return export_net(net, info, Path(out), profile, value=value)
