"""The page of a tournament: both languages, nothing loaded, every number of the table, and names are only text."""

import re

import pytest

from movelist.core.errors import SettingsError
from movelist.measure.arena_page import notes, page, write_page
from movelist.play.policy import RandomPolicy
from movelist.play.tournament import Entrant, Results, tournament
from play.toys import Odd, Picker


@pytest.fixture(scope="module")
def result():
    players = [
        Entrant("runs/<b>odd</b>", "o", Picker(parity=1)),
        Entrant("玩家", "e", Picker(parity=0)),
        Entrant("random", "random", RandomPolicy()),
    ]
    return tournament(players, Odd(), Results(None, {"game": "odd"}), num_games=40, say=lambda text: None)


@pytest.mark.parametrize(("lang", "words"), [("en", ["Ratings", "is the strongest"]), ("zh", ["等级分", "最强"])])
def test_the_page_has_every_number_and_loads_nothing(result, lang, words):
    text = page(result, lang=lang)
    for word in words:
        assert word in text
    values = [float(value) for value in re.findall(r'<data value="([^"]+)"', text)]
    for standing in result.standings:
        assert {standing.rating, standing.score, float(standing.deals)} <= set(values)
    for row in result.cells:
        assert {cell.score for cell in row if cell} <= set(values)
    assert "<b>odd" not in text
    assert "runs/&lt;b&gt;odd&lt;/b&gt;" in text
    assert not re.search(r"<script|src=|href=|@import|url\(", text)
    assert 'name="viewport"' in text


def test_the_ratings_are_drawn_on_one_axis(result):
    text = page(result)
    middles = [float(x) for x in re.findall(r'class="middle" x1="([\d.]+)"', text)]
    assert middles == sorted(middles, reverse=True)
    zeros = set(re.findall(r'class="one" x1="([\d.]+)"', text))
    assert len(zeros) == 1
    assert float(zeros.pop()) == middles[[standing.player for standing in result.standings].index("random")]
    assert all(0 <= float(x) <= 1000 for x in re.findall(r' x[12]="([\d.]+)"', text))


def test_both_languages_say_every_fact(result):
    assert len(notes(result, "en")) == len(notes(result, "zh")) == len(result.facts())
    assert notes(result, "en")[0] == "0 is random."
    with pytest.raises(SettingsError, match="--lang cannot be used: got fr"):
        notes(result, "fr")


def test_the_page_is_written_as_a_whole(result, tmp_path):
    write_page(result, tmp_path / "arena.html", lang="zh")
    assert (tmp_path / "arena.html").read_text(encoding="utf-8") == page(result, lang="zh")
