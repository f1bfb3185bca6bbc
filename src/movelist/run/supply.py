"""Where a training's episodes come from, with all that a training asks of it beside the episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from movelist.core.settings import TrainSettings
from movelist.data.episode import Episodes, Share, Source
from movelist.games.game import Game, game_name
from movelist.games.openspiel import OpenSpielGame
from movelist.play.policy import Policy
from movelist.play.selfplay import Opponents, SelfPlay
from movelist.play.workers import Workers


class Supply:
    """A source in a training; what is said here is right for one of which nothing more is known.

    Args:
        source: Where the episodes come from.
        lines: What is said of it before the first update.

    Attributes:
        done: Share of all that there is, 0 to 1; 0 where it does not end.
        each_update_counts: Whether somebody waits for each new policy.
        workers: Processes that play games, which may play matches too.
        from_recordings: Whether the episodes were played before.
        plays: Whether games are played for the asking, so that it does no harm to ask for fewer of them.
    """

    done = 0.0
    each_update_counts = False
    workers: Workers | None = None
    from_recordings = False
    plays = False

    def __init__(self, source: Source, lines: tuple[str, ...] = ()) -> None:
        self.source, self._lines = source, lines

    def lines(self) -> list[str]:
        """What is said before the first update."""
        return list(self._lines)

    def begin(self) -> None:
        """Before the first update."""

    def collect(self, policy: Policy, num_episodes: int) -> Episodes:
        """This process's share of the next episodes; none in any process once the source is exhausted."""
        return self.source.collect(policy, num_episodes)

    def look_at(self, episodes: Episodes, policy: Policy) -> None:
        """See the episodes before they are trained on."""

    def metrics(self) -> dict[str, float]:
        """Numbers of the last rollout, by their tags."""
        return {}

    def saved(self) -> None:
        """A checkpoint was written."""

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint holds beside the source's own state."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


class SelfPlaySupply(Supply):
    """The supply of games that are played here.

    Args:
        game: What to play.
        settings: Of the training.
        share: Which of an update's games are played in this process.
        opponents: Who else plays.
        say: Told when a worker failed.
    """

    source: SelfPlay
    plays = True

    def __init__(
        self,
        game: Game,
        settings: TrainSettings,
        *,
        share: Share,
        opponents: Opponents | None,
        say: Callable[[str], None],
    ) -> None:
        source = SelfPlay(game, settings.play, seed=settings.run.seed, share=share, opponents=opponents, say=say)
        super().__init__(source, (self._line(game, settings), *getattr(game, "notes", ())))
        self.workers = source.workers

    def _line(self, game: Game, settings: TrainSettings) -> str:
        if not isinstance(game, OpenSpielGame):
            return f"Self-play on {game_name(game)}."
        return (
            f"No --data, so self-play on OpenSpiel's {game.name}. Your own game: --data FOLDER with recordings of it "
            "(docs/episode_format.md), or --game file.py:MyGame (docs/games.md)."
        )
