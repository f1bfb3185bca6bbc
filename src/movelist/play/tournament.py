"""Everyone against everyone on equal deals: what is missing is played, results are kept as they come, ratings follow.

    arenas/leduc_poker/results.jsonl    the first line says what was played and how; one line for each player; one line
                                        for each piece of a pairing, with its deals' scores
    arenas/leduc_poker/arena.html       the table and the ratings, drawn

A player is known by its content: a run that was trained further is another player, and plays anew.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import DataError, SaveError, SettingsError
from movelist.core.patience import say_on_standard_error
from movelist.core.settings import PlaySettings
from movelist.data.whole_file import write_whole
from movelist.games.bot import Bot
from movelist.games.game import Game
from movelist.games.openings import Openings
from movelist.play.deals import Deals, Pairing, deal_interval, first_of_each, play_deals, seatings
from movelist.play.policy import Policy
from movelist.play.rating import Meeting, Ratings, rate
from movelist.play.workers import Workers

Array = NDArray[Any]
FORMAT = "movelist-arena/1"
GAMES_TOGETHER = 2_048  # of all pairings in one call; results are kept after each
DEALS_TOGETHER = 64  # of one pairing
RANDOM = "random"


@dataclass(frozen=True)
class Entrant:
    """A player of a tournament.

    Attributes:
        label: For people; no two have the same.
        key: What it is known by in the results: equal only for equal players.
        player: Who plays.
    """

    label: str
    key: str
    player: Policy | Bot


@dataclass
class Met:
    """What is known of one pairing, as X scored; deal number n is at place n."""

    scores: list[float] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # empty in games with chance
    truncated: int = 0
    forfeits: list[int] = field(default_factory=lambda: [0, 0])

    def turned(self) -> Met:
        """As Y scored."""
        return Met([1 - score for score in self.scores], self.digests, self.truncated, self.forfeits[::-1])


class Results:
    """The results of a tournament, in a file if there is one.

    Args:
        path: The file; it is made with the first result. None keeps them here only.
        head: What was played and how: results of anything else are not mixed in.

    Raises:
        SettingsError: The file holds results that were played otherwise; names what differs.
        DataError: A line in the middle of it cannot be read.
    """

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self.path, self.head = path, {"format": FORMAT, **head}
        self.met: dict[tuple[str, str], Met] = {}
        self.labels: dict[str, str] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        whole, lines = path.read_bytes().splitlines(keepends=True), []
        if whole and not whole[-1].endswith(b"\n"):  # of a tournament that was killed as it wrote
            write_whole(path, lambda file: file.write(b"".join(whole[:-1])))
            whole = whole[:-1]
        for number, line in enumerate(whole, 1):
            try:
                lines.append(json.loads(line))
                if number > 1:
                    self._note(lines[-1])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    "a line of results cannot be read", got=f"{type(error).__name__}: {error}",
                    where=f"{path}, line {number}", do="Delete that line, or play anew in another folder with --out.",
                ) from None  # fmt: skip
        if lines and lines[0] != self.head:
            now, before = self.head, lines[0] if isinstance(lines[0], dict) else {}
            names = [name for name in {**now, **before} if now.get(name) != before.get(name)]
            raise SettingsError(
                "the folder holds results that were played otherwise",
                got=", ".join(f"{name} {now.get(name)} instead of {before.get(name)}" for name in names),
                where=str(path),
                do="Choose another folder with --out.",
            )

    def _note(self, line: dict[str, Any]) -> None:
        if "label" in line:
            self.labels[line["player"]] = line["label"]
            return
        met = self.met.setdefault((line["x"], line["y"]), Met())
        if line["first"] + len(line["scores"]) <= len(met.scores):
            return  # of two programs that played the same deals, which end alike
        if line["first"] != len(met.scores):
            raise ValueError(f"deal {line['first']} where {len(met.scores)} is next")
        met.scores += [float(score) for score in line["scores"]]
        met.digests += line.get("digests", [])
        met.truncated += line["truncated"]
        met.forfeits = [sum(pair) for pair in zip(met.forfeits, line["forfeits"], strict=True)]

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        """Keep lines, written at once.

        Raises:
            SaveError: They cannot be written.
        """
        for line in lines:
            self._note(line)
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(b"".join(_line(line) for line in ([self.head] if new else []) + list(lines)))
        except OSError as error:
            raise SaveError(
                "results cannot be kept", got=error.strerror, where=str(self.path),
                do="The same command goes on behind those that are kept.",
            ) from error  # fmt: skip

    def of(self, x: str, y: str) -> Met:
        """What X scored against Y so far, by their keys."""
        first, second = sorted((x, y))
        met = self.met.get((first, second), Met())
        return met if first == x else met.turned()


def _line(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One player's score against another.

    Attributes:
        score: The mean of the deals, 0 to 1; 0.5 for equal players.
        interval: 95 %.
        deals: Counted, those that went differently.
        repeated: Left out, for their games went as in one before.
    """

    score: float
    interval: tuple[float, float]
    deals: int
    repeated: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A player in the table.

    Attributes:
        player: Its label.
        rating: In points; see play/rating.py.
        interval: 95 %.
        score: The mean over its pairings.
        deals: All that it played and that count.
        forfeits: Games that it lost because it failed.
    """

    player: str
    rating: float
    interval: tuple[float, float]
    score: float
    deals: int
    forfeits: int


@dataclass(frozen=True, kw_only=True)
class ArenaResult:
    """A tournament, the strongest player first.

    Attributes:
        game: Its name.
        zero: Whose rating is 0; "" for the mean of all.
        standings: The players.
        cells: What each, by row, scored against each, by column; None where they did not meet.
        worst: The pairing that fits the ratings least; None without any.
        openings: Decisions by lot at the start of each deal.
        games: Played, all of them.
        truncated: Games that were cut off.
    """

    game: str
    zero: str
    standings: list[Standing]
    cells: list[list[Cell | None]]
    worst: dict[str, Any] | None
    openings: int
    games: int
    truncated: int

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)

    def __str__(self) -> str:
        """The table."""
        width = max(len(standing.player) for standing in self.standings)
        numbers = "".join(f"{number:>7}" for number in range(1, len(self.standings) + 1))
        lines = [f"    {'player':<{width}}  rating  {'95 %':<14}  score{numbers}"]
        for number, (standing, row) in enumerate(zip(self.standings, self.cells, strict=True), 1):
            low, high = standing.interval
            cells = "".join("      -" if cell is None else f"{cell.score:7.3f}" for cell in row)
            spread = f"{low:+.0f} to {high:+.0f}"
            figures = f"{standing.rating:+6.0f}  {spread:<14}  {standing.score:.3f}"
            lines.append(f"{number:>3} {standing.player:<{width}}  {figures}{cells}")
        return "\n".join(lines)

    def facts(self) -> list[tuple[str, dict[str, Any]]]:
        """What is to be known beside the table: the names of sentences, and what stands in them."""
        facts: list[tuple[str, dict[str, Any]]] = [("zero", {"player": self.zero}) if self.zero else ("mean", {})]
        facts.append(("games", {"games": self.games}))
        if self.openings:
            facts.append(("openings", {"openings": self.openings}))
        if repeated := sum(cell.repeated for row in self.cells for cell in row if cell) // 2:
            facts.append(("repeated", {"repeated": repeated}))
        if self.truncated:
            facts.append(("truncated", {"truncated": self.truncated, "share": self.truncated / self.games}))
        if forfeits := sum(standing.forfeits for standing in self.standings):
            facts.append(("forfeits", {"forfeits": forfeits}))
        if self.worst:
            facts.append(("luck" if self.worst["is_luck"] else "no_order", self.worst))
        return facts


def tournament(
    entrants: Sequence[Entrant],
    game: Game,
    results: Results,
    *,
    against: Entrant | None = None,
    num_games: int = 400,
    seed: int = 0,
    play: PlaySettings | None = None,
    openings: int = 0,
    forfeit: bool = False,
    say: Callable[[str], None] = say_on_standard_error,
) -> ArenaResult:
    """Play what is missing, and rate everyone.

    Args:
        entrants: Who plays, two at least, with different labels and keys.
        game: What is played.
        results: What is known already; what is played is added to it.
        against: Plays against each of the entrants, who then do not meet each other.
        num_games: Of each pairing, rounded up to whole deals.
        seed: Of all deals.
        play: num_games (at once), max_turns and rollout_workers are read.
        openings: Decisions by lot at the start of each deal.
        forfeit: A player that fails loses that game; else it is an error.
        say: Told how far it came, and who forfeited.

    Raises:
        SettingsError: There are fewer than two players.
        MovelistError: A player or the game cannot be used.
    """
    everyone = [*entrants, *([against] if against else [])]
    if len(everyone) < 2:
        raise SettingsError("an arena needs two players at least", got=", ".join(e.label for e in everyone) or "none")
    last = len(everyone) - 1
    pairs = [(x, last) for x in range(last)] if against else list(itertools.combinations(range(len(everyone)), 2))
    settings, plan = play or PlaySettings(), seatings(game)
    num_deals = -(-num_games // plan.num_games)
    opened: Game = Openings(game, openings) if openings else game
    results.add([
        {"player": entrant.key, "label": entrant.label}
        for entrant in everyone
        if results.labels.get(entrant.key) != entrant.label
    ])  # fmt: skip
    workers = Workers(opened, settings, say=say) if settings.rollout_workers else None
    pieces = _missing(everyone, pairs, results, num_deals)
    done, total = 0, sum(piece.num_deals for piece in pieces)
    try:
        for together in _groups(pieces, GAMES_TOGETHER // plan.num_games):
            deals = play_deals(
                [entrant.player for entrant in everyone], together, opened, seed=seed, play=settings, workers=workers,
                say=say, forfeit=forfeit, digest=openings > 0,
            )  # fmt: skip
            results.add([_played(everyone, piece, found) for piece, found in zip(together, deals, strict=True)])
            done += sum(piece.num_deals for piece in together)
            say(f"{done * plan.num_games:,} of {total * plan.num_games:,} games played.")
    finally:
        if workers:
            workers.close()
    return standings(everyone, pairs, results, num_deals, game_name=results.head["game"], openings=openings,
                     games_of_a_deal=plan.num_games)  # fmt: skip


def _missing(
    everyone: Sequence[Entrant], pairs: Sequence[tuple[int, int]], results: Results, num_deals: int
) -> list[Pairing]:
    """What is to be played, in pieces; all pairings' first pieces come first."""
    pieces = []
    for pair in pairs:
        x, y = sorted(pair, key=lambda number: everyone[number].key)
        done = len(results.of(everyone[x].key, everyone[y].key).scores)
        for first in range(done, num_deals, DEALS_TOGETHER):
            pieces.append(Pairing(x, y, first, min(DEALS_TOGETHER, num_deals - first)))
    return sorted(pieces, key=lambda piece: piece.first)


def _groups(pieces: Sequence[Pairing], most_deals: int) -> list[list[Pairing]]:
    """Pieces that are played together, of about so many deals."""
    groups: list[list[Pairing]] = []
    deals = most_deals
    for piece in pieces:
        if deals + piece.num_deals > most_deals:
            groups.append([])
            deals = 0
        groups[-1].append(piece)
        deals += piece.num_deals
    return groups


def _played(everyone: Sequence[Entrant], piece: Pairing, deals: Deals) -> dict[str, Any]:
    """A line of results."""
    line = {
        "x": everyone[piece.x].key,
        "y": everyone[piece.y].key,
        "first": piece.first,
        "scores": [round(score, 9) for score in deals.score_D.tolist()],
        "truncated": int(deals.truncated_D.sum()),
        "forfeits": deals.forfeits_D2.sum(0).tolist(),
    }
    return line | ({} if deals.digests is None else {"digests": deals.digests})


def standings(
    everyone: Sequence[Entrant],
    pairs: Sequence[tuple[int, int]],
    results: Results,
    num_deals: int,
    *,
    game_name: str,
    openings: int = 0,
    games_of_a_deal: int = 2,
) -> ArenaResult:
    """The table of what was played, the first `num_deals` deals of each pairing."""
    met = {(x, y): results.of(everyone[x].key, everyone[y].key) for x, y in pairs}
    meetings = []
    for (x, y), one in met.items():
        scores, digests = one.scores[:num_deals], one.digests[:num_deals]
        number_D = first_of_each(digests) if digests else np.arange(len(scores))
        meetings.append(Meeting(x, y, number_D, np.array(scores)[number_D]))
    labels = [entrant.label for entrant in everyone]
    zero = next((number for number, entrant in enumerate(everyone) if entrant.key == RANDOM), None)
    ratings = rate(len(everyone), meetings, zero=zero)
    cells: dict[tuple[int, int], Cell] = {}
    forfeits = [0] * len(everyone)
    for meeting, one in zip(meetings, met.values(), strict=True):
        repeated = min(num_deals, len(one.scores)) - len(meeting.score_D)
        for x, y, score_D in ((meeting.x, meeting.y, meeting.score_D), (meeting.y, meeting.x, 1 - meeting.score_D)):
            cells[x, y] = Cell(
                score=float(score_D.mean()), interval=deal_interval(score_D), deals=len(score_D), repeated=repeated
            )
        forfeits[meeting.x] += one.forfeits[0]
        forfeits[meeting.y] += one.forfeits[1]
    order = np.argsort(-ratings.rating_K, kind="stable").tolist()
    return ArenaResult(
        game=game_name,
        zero="" if zero is None else labels[zero],
        standings=[_standing(number, labels, ratings, cells, forfeits) for number in order],
        cells=[[cells.get((x, y)) for y in order] for x in order],
        worst=_worst(ratings, labels),
        openings=openings,
        games=games_of_a_deal * sum(min(num_deals, len(one.scores)) for one in met.values()),
        truncated=sum(one.truncated for one in met.values()),
    )


def _standing(
    number: int, labels: Sequence[str], ratings: Ratings, cells: dict[tuple[int, int], Cell], forfeits: Sequence[int]
) -> Standing:
    mine = [cell for (x, _), cell in cells.items() if x == number]
    return Standing(
        player=labels[number],
        rating=float(ratings.rating_K[number]),
        interval=(float(ratings.low_K[number]), float(ratings.high_K[number])),
        score=sum(cell.score for cell in mine) / len(mine),
        deals=sum(cell.deals for cell in mine),
        forfeits=forfeits[number],
    )


def _worst(ratings: Ratings, labels: Sequence[str]) -> dict[str, Any] | None:
    worst = ratings.worst
    if worst is None:
        return None
    return asdict(worst) | {"player": labels[worst.x], "against": labels[worst.y]}
