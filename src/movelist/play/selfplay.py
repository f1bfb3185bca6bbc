"""Many games at once: every network call serves one turn of each running game.

Exactly the games asked for are started and all of them are finished, so short games are not favoured. Forced turns are
played without asking anyone. The columns come out in the order of the games' numbers, however many ran side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import PlayerError, SettingsError
from movelist.core.metrics import span
from movelist.core.patience import say_on_standard_error
from movelist.core.settings import PlaySettings
from movelist.data.episode import Episodes, Share, everything
from movelist.games.bot import Bot, is_bot
from movelist.games.columns import game_columns
from movelist.games.game import Game, check_players, game_name, start_game, state_size
from movelist.play.policy import Forfeits, Policy, Turns, choices_or_forfeits, derive_seeds, refuse
from movelist.play.recorder import Recorder, Round
from movelist.play.running import Finished, Running, advance, choose, look, play, start
from movelist.play.watchdog import telling_what_hangs
from movelist.play.workers import Workers

Array = NDArray[Any]
GAMES = 1  # the purpose of the seed stream that training games come from
RECORDINGS = 3  # and that of games which are only recorded


class Opponents:
    """Who else plays in some of the games of self-play: the learner has one seat there, an opponent all the others.

    Learner's seats and opponents take turns by the game's number, so that a resumed run goes on with the same ones.

    Args:
        policies: One opponent moves all other seats of a game.
        share: Of the games, above 0 and at most 1; in the others the learner has every seat.

    Raises:
        SettingsError: There is no opponent, or the share is out of range.
    """

    def __init__(self, policies: Sequence[Policy | Bot], share: float = 0.5) -> None:
        if not policies:
            raise SettingsError("opponents need a policy at least", got="none")
        if not 0 < share <= 1:
            raise SettingsError(
                "the opponents' share of games cannot be used", got=share, expected="above 0, at most 1"
            )
        self.policies, self.share = list(policies), share

    def seats(self, number_G: Array, num_players: int) -> Array:
        """Who moves each seat of games by their number in the run: 0 is the learner, k the k-th opponent.

        Example: with a share of 0.5 games 0, 2, 4 are the learner's alone, in game 1 it has seat 0, in game 3 seat 1.

        Args:
            number_G: int64 [G].
            num_players: P.

        Returns:
            int64 [G, P].
        """
        before_G, after_G = (np.floor(number * self.share).astype(np.int64) for number in (number_G, number_G + 1))
        seat_G, opponent_G = before_G % num_players, before_G // num_players % len(self.policies)
        versus_GP = (after_G > before_G)[:, None] & (np.arange(num_players) != seat_G[:, None])
        seats_GP: Array = np.where(versus_GP, opponent_G[:, None] + 1, 0)
        return seats_GP


class SelfPlay:
    """A Source: the policy plays every seat of a game.

    Args:
        game: What to play.
        settings: Of self-play.
        seed: Of the games; game number n of a run is the same whatever was played before it.
        share: Which of the games of an update are played here; together, several processes play those of one.
        opponents: Who moves some seats of some games; None lets the policy move all seats.
        say: Told when a worker failed and its games are played again, and which game does not answer.

    Raises:
        GameError: The game cannot be sent to worker processes, and there are to be some.
    """

    def __init__(
        self,
        game: Game,
        settings: PlaySettings,
        *,
        seed: int = 0,
        share: Share = everything,
        opponents: Opponents | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.game, self.settings, self.seed, self.share = game, settings, seed, share
        self.opponents = opponents
        self.say = say
        self.num_started = 0
        self.workers = Workers(game, settings, say=say) if settings.rollout_workers else None

    def collect(self, policy: Policy, num_episodes: int) -> Episodes:
        """Play this process's share of `num_episodes` games. See `data.episode.Source`."""
        mine = self.share(num_episodes)
        seeds = derive_seeds(self.seed, GAMES, self.num_started, num_episodes)[mine]
        policies: list[Policy | Bot] = [policy]
        seats = np.zeros((len(seeds), self.game.num_players), np.int64)
        if self.opponents:
            policies += self.opponents.policies
            seats = self.opponents.seats(self.num_started + np.arange(num_episodes)[mine], self.game.num_players)
        episodes = play_games(self.game, policies, seats, seeds, self.settings, self.workers, self.say)
        self.num_started += num_episodes
        with span("game"):
            return episodes.check(game_name(self.game))

    def state_dict(self) -> dict[str, Any]:
        """The number of games started, in all processes."""
        return {"num_started": self.num_started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after that many games."""
        self.num_started = int(state["num_started"])

    def close(self) -> None:
        """End the workers, if there are any."""
        if self.workers:
            self.workers.close()


def play_games(
    game: Game,
    policies: Sequence[Policy | Bot],
    seats_GP: Array,
    seed_G: Array,
    settings: PlaySettings,
    workers: Workers | None = None,
    say: Callable[[str], None] = say_on_standard_error,
    forfeits: Forfeits | None = None,
) -> Episodes:
    """Play one game for each seed, at most `settings.num_games` at once.

    Args:
        game: What to play.
        policies: Who plays; seats that share a policy are asked together, a bot for each of its turns.
        seats_GP: int64 [G, P], which policy moves each seat of each game.
        seed_G: int64 [G], each game's seed.
        settings: num_games, keep_forced and max_turns are read.
        workers: Who play them, with settings of their own; None plays them in this process.
        say: Told which game does not answer, in this process; workers have their own.
        forfeits: Told who failed in which game, which goes on with the first legal action; None raises the error.

    Returns:
        G episodes in the order of the seeds, unchecked; `controller_EP` is 0 for the seats of the first policy.

    Raises:
        GameError: The game offers an empty list, names a mover that there is not, or changes its width.
        PlayerError: A player raised an exception, or answered something that is no choice.
        WorkerError: See `Workers.play`.
    """
    if workers:
        return workers.play(policies, seats_GP, seed_G, forfeits)
    with telling_what_hangs(say):
        return _play_here(game, policies, seats_GP, seed_G, settings, forfeits)


def _play_here(
    game: Game,
    policies: Sequence[Policy | Bot],
    seats_GP: Array,
    seed_G: Array,
    settings: PlaySettings,
    forfeits: Forfeits | None,
) -> Episodes:
    """As `play_games`, in this process."""
    fresh = start_game(game, 0, check_players(game))
    columns = game_columns(game, fresh, critic=settings.critic_sees == "all")
    recorder = Recorder(state_size(game, fresh), columns)
    finished: dict[int, Finished] = {}
    running: list[Running] = []
    num_started = 0
    while num_started < len(seed_G) or running:
        with span("game"):
            while len(running) < settings.num_games and num_started < len(seed_G):
                seed = int(seed_G[num_started])
                slot = start(game, num_started, seed, seats_GP.shape[1], columns)
                num_started += 1
                if advance(slot, settings, finished):
                    running.append(slot)
        for policy_number, policy in enumerate(policies):
            mine = [slot for slot in running if seats_GP[slot.number, slot.player] == policy_number]
            if mine:
                _play_turn(mine, policy, policy_number, recorder, forfeits)
        with span("game"):
            running = [slot for slot in running if advance(slot, settings, finished)]
    with span("game"):
        return recorder.episodes([finished[number] for number in range(len(seed_G))], seats_GP)


def _play_turn(
    slots: list[Running], policy: Policy | Bot, policy_number: int, recorder: Recorder, forfeits: Forfeits | None
) -> None:
    """One decision of each game: ask the policy once, play, record."""
    with span("game"):
        state_BS = np.empty((len(slots), recorder.state_size), np.float32)
        seen = look(slots, state_BS)
        seed_B, turn_B = (np.array([getattr(slot, name) for slot in slots]) for name in ("seed", "turn"))
        turns = Turns(state_BS, seen.count_B, seen.action_id_A, seed_B, turn_B, seen.columns)
        number_B = np.array([slot.number for slot in slots])
    if is_bot(policy):
        with span("game"):
            index_B = np.array([_bot_index(policy, slot, policy_number, forfeits) for slot in slots], np.int64)
        log_prob_B = np.zeros(len(slots), np.float32)
    else:
        index_B, log_prob_B = choices_or_forfeits(policy, turns, number_B, policy_number, forfeits)
    with span("game"):
        play(slots, index_B.tolist())
        recorder.add(Round(number_B, turns, seen.player_B, seen.score_B, index_B, log_prob_B))


def _bot_index(bot: Bot, slot: Running, number: int, forfeits: Forfeits | None) -> int:
    """A bot's choice; the first legal action where it fails and forfeits are wanted."""
    try:
        return choose(bot, slot)
    except PlayerError as error:
        refuse(forfeits, slot.number, number, error)
        return 0
