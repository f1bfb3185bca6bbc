"""Tournaments: what is missing is played and nothing twice, results outlive a kill, the table says what happened."""

import json

import pytest

from movelist.core.errors import DataError, SaveError, SettingsError
from movelist.core.settings import PlaySettings
from movelist.play.arena import match
from movelist.play.policy import RandomPolicy
from movelist.play.tournament import Entrant, Results, tournament
from play.deal_games import Bidding, Count, Fails, Perfect, Takes
from play.toys import Odd, Picker

HEAD = {"game": "odd"}


def quiet(text):
    pass


def entrants(*names):
    players = {
        "odd": Picker(parity=1),
        "even": Picker(parity=0),
        "random": RandomPolicy(),
        "odd again": Picker(parity=1),
    }
    return [Entrant(name, name if name == "random" else f"key of {name}", players[name]) for name in names]


class Counting(Odd):
    """Counts the games that were started."""

    name = "odd"

    def __init__(self, num_players=2):
        super().__init__(num_players)
        self.started = 0

    def new_state(self, seed):
        self.started += 1
        return super().new_state(seed)


def played(names, game=None, path=None, **options):
    game = game or Odd()
    return tournament(entrants(*names), game, Results(path, HEAD), say=quiet, **{"num_games": 60} | options)


def test_everyone_meets_everyone_and_the_strongest_stands_first():
    result = played(["even", "random", "odd"])
    assert [standing.player for standing in result.standings] == ["odd", "random", "even"]
    assert (result.zero, result.standings[1].rating, result.games) == ("random", 0.0, 3 * 60)
    assert result.standings[0].interval[0] > 0 > result.standings[2].interval[1]
    assert [[cell is None for cell in row] for row in result.cells] == [[x == y for y in range(3)] for x in range(3)]
    for x in range(3):
        for y in range(x):
            assert result.cells[x][y].score == pytest.approx(1 - result.cells[y][x].score)
            assert result.cells[x][y].interval == pytest.approx([1 - end for end in result.cells[y][x].interval[::-1]])


def test_a_cell_is_the_match_of_these_two():
    for game in (Odd(), Odd(3), Bidding()):
        result = played(["odd", "random"], game)
        score = match(Picker(parity=1), RandomPolicy(), game, num_games=60)
        assert result.cells[0][1].score == pytest.approx(score.win_rate)
        assert result.cells[0][1].interval == pytest.approx(score.win_rate_interval)


def test_against_one_player_only():
    result = played(["odd", "even", "odd again"], against=entrants("random")[0])
    assert result.games == 3 * 60
    by_name = {standing.player: standing for standing in result.standings}
    assert by_name["odd"].rating == by_name["odd again"].rating > 0 == by_name["random"].rating
    assert sum(cell is not None for row in result.cells for cell in row) == 6


def test_only_what_is_missing_is_played(tmp_path):
    path, game = tmp_path / "results.jsonl", Counting()
    first = played(["odd", "even"], game, path)
    assert (first.games, game.started) == (60, 61)  # one to see how wide a state is
    assert played(["odd", "even"], game, path).standings == first.standings
    assert game.started == 61
    more = played(["odd", "even", "random"], game, path)
    assert (more.games, game.started) == (180, 182)
    assert played(["random", "even", "odd"], game, path, num_games=80).games == 240
    assert game.started == 182 + 60 + 1
    assert more == played(["odd", "even", "random"])  # as if it had been played at once
    assert played(["odd", "even"], game, path) == first  # fewer deals than there are


def test_a_player_is_known_by_its_key(tmp_path):
    path, game = tmp_path / "results.jsonl", Counting()
    played(["odd", "even"], game, path)
    renamed = [Entrant("new name", "key of odd", Picker(parity=1)), entrants("even")[0]]
    started = game.started
    result = tournament(renamed, game, Results(path, HEAD), say=quiet, num_games=60)
    assert game.started == started
    assert result.standings[0].player == "new name"


def test_a_tournament_that_was_killed_goes_on(tmp_path):
    path = tmp_path / "results.jsonl"
    whole = played(["odd", "even", "random"], path=path)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (len(lines[-1]) // 2, len(lines[-1]) + 5, 1):
        content = b"".join(lines)[:-cut]
        path.write_bytes(content)
        assert played(["odd", "even", "random"], path=path) == whole
        assert path.read_bytes().splitlines(keepends=True)[0] == lines[0]
    first = json.loads(lines[0])
    assert first == {"format": "movelist-arena/1", "game": "odd"}


def test_results_are_kept_as_they_come(tmp_path):
    path = tmp_path / "results.jsonl"

    class Fails2(Picker):
        calls = 0

        def choose(self, turns):
            self.calls += 1
            if self.calls > 120:
                raise KeyboardInterrupt
            return super().choose(turns)

    two = [Entrant("a", "a", Fails2(parity=1)), entrants("even")[0]]
    with pytest.raises(KeyboardInterrupt):
        tournament(two, Odd(), Results(path, HEAD), say=quiet, num_games=100_000)
    kept = sum(len(json.loads(line).get("scores", [])) for line in path.read_text(encoding="utf-8").splitlines())
    assert kept >= 300


def test_other_results_are_not_mixed_in(tmp_path):
    path = tmp_path / "results.jsonl"
    played(["odd", "even"], path=path)
    with pytest.raises(
        SettingsError, match=r"^the folder holds results that were played otherwise: got seed 3 instead"
    ):
        Results(path, HEAD | {"seed": 3})
    content = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*content[:2], "{nonsense\n", *content[2:]]), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"^a line of results cannot be read: got JSONDecodeError.* \(.*, line 3\)\. Del"
    ):
        Results(path, HEAD)
    path.write_text("".join(content + content[-1:]), encoding="utf-8")  # two programs at once played the same
    assert len(Results(path, HEAD).of("key of odd", "key of even").scores) == 30
    path.write_text("".join([*content, content[-1].replace('"first": 0', '"first": 40')]), encoding="utf-8")
    with pytest.raises(DataError, match=r"got ValueError: deal 40 where 30 is next"):
        Results(path, HEAD)


def test_results_that_cannot_be_kept(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SaveError, match=r"^results cannot be kept: got .*results.jsonl\)\. The same command goes on"):
        played(["odd", "even"], path=tmp_path / "file" / "results.jsonl")


def test_two_are_needed():
    with pytest.raises(SettingsError, match=r"^an arena needs two players at least: got odd"):
        played(["odd"])


def test_openings_repeated_deals_and_forfeits_are_counted():
    players = [Entrant("perfect", "p", Perfect()), Entrant("fails", "f", Fails()), Entrant("takes", "t", Takes())]
    options = {"num_games": 100, "openings": 4, "forfeit": True, "say": quiet}
    result = tournament(players, Count(), Results(None, HEAD), **options)
    assert all(cell.deals == 5 for row in result.cells for cell in row if cell)
    assert result.cells[0][1].repeated == 45
    by_name = {standing.player: standing for standing in result.standings}
    assert by_name["fails"].forfeits > 0 == by_name["takes"].forfeits
    assert result.standings[0].player == "perfect"
    assert (result.zero, result.facts()[0]) == ("", ("mean", {}))
    assert {name for name, _ in result.facts()} >= {"mean", "games", "openings", "repeated", "forfeits"}
    crew = tournament(players, Count(), Results(None, HEAD), play=PlaySettings(rollout_workers=2), **options)
    assert crew == result


def test_cut_off_games_are_counted():
    result = played(["odd", "random"], Odd(most_turns=50), play=PlaySettings(max_turns=20))
    assert 0 < result.truncated <= result.games
    assert "truncated" in dict(result.facts())


def test_the_table_reads_well():
    result = played(["even", "random", "odd"])
    lines = str(result).splitlines()
    assert lines[0].split() == ["player", "rating", "95", "%", "score", "1", "2", "3"]
    assert lines[1].split()[:2] == ["1", "odd"]
    assert len({len(line) for line in lines}) == 1
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["standings"][0]["player"] == "odd"
