"""A tournament as one HTML page, in English or Chinese: nothing is loaded from anywhere, and no script runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from movelist.data.whole_file import write_whole
from movelist.measure.report import WIDE, page_of
from movelist.measure.sentences import words
from movelist.play.tournament import ArenaResult, Cell

EDGE = 0.03  # of the picture's width, left free on both sides


def notes(result: ArenaResult, lang: str) -> list[str]:
    """What is to be known beside the table."""
    texts = words(lang).ARENA
    return [texts[name].format(**values) for name, values in result.facts()]


def write_page(result: ArenaResult, path: Path, *, lang: str = "en") -> None:
    """Write the page as a whole.

    Raises:
        SettingsError: There are no texts in this language.
        SaveError: It cannot be written.
    """
    content = page(result, lang=lang).encode("utf-8", "backslashreplace")
    write_whole(path, lambda file: file.write(content))


def page(result: ArenaResult, *, lang: str = "en") -> str:
    """The page as text."""
    texts, best = words(lang).ARENA, result.standings[0]
    low, high = best.interval
    return page_of("arena.html.j2").render(
        result=result,
        page=texts,
        spans=(),
        verdict=texts["verdict"].format(player=best.player, rating=best.rating, low=low, high=high),
        notes=notes(result, lang),
        rows=_rows(result),
        cells=[[_cell(cell) for cell in row] for row in result.cells],
        number=_number,
    )


def _number(value: float, text: str) -> Markup:
    """A number with its exact value."""
    return Markup('<data value="{}">{}</data>').format(value, text)


def _rows(result: ArenaResult) -> list[dict[str, Any]]:
    """Each player with its interval on one axis of ratings, on which 0 is marked."""
    ends = [0.0, *(end for standing in result.standings for end in (standing.rating, *standing.interval))]
    low, high = min(ends), max(ends)
    scale = WIDE * (1 - 2 * EDGE) / max(1.0, high - low)

    def x(rating: float) -> str:
        return f"{WIDE * EDGE + scale * (rating - low):.1f}"

    return [
        {
            "number": number,
            "standing": standing,
            "zero": x(0.0),
            "low": x(standing.interval[0]),
            "middle": x(standing.rating),
            "high": x(standing.interval[1]),
            "spread": f"{standing.interval[0]:+.0f} … {standing.interval[1]:+.0f}",
        }
        for number, standing in enumerate(result.standings, 1)
    ]


def _cell(cell: Cell | None) -> dict[str, Any] | None:
    """A cell: good or bad where the interval leaves out 0.5, and stronger the farther from it."""
    if cell is None:
        return None
    low, high = cell.interval
    kind = "good" if low > 0.5 else "bad" if high < 0.5 else ""
    return {
        "score": cell.score,
        "text": f"{cell.score:.3f}",
        "spread": f"{low:.2f} … {high:.2f}",
        "kind": kind,
        "strength": f"{min(1.0, 0.25 + 1.5 * abs(cell.score - 0.5)):.2f}",
    }
