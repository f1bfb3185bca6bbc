"""A bar chart of a ladder as SVG: readable in a browser, in a document, and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

ROW, BAR, TOP, LEFT, PANEL, GAP, BOTTOM = 34, 12, 84, 250, 330, 70, 64
COLOURS = ("#1f5fa8", "#9cc3ea")
INK, PALE = "#222222", "#dddddd"


@dataclass(frozen=True)
class Panel:
    """One of the charts side by side.

    Attributes:
        title: Above it.
        values: For each row its bars, one for each series; above 0. None leaves a bar out.
    """

    title: str
    values: Sequence[Sequence[float | None]]


def svg(title: str, subtitle: str, names: Sequence[str], series: Sequence[str], panels: Sequence[Panel]) -> str:
    """Horizontal bars on logarithmic axes, one panel beside the other, sharing the rows' names.

    Args:
        title: First line.
        subtitle: Second line: what was measured, on what.
        names: One for each row.
        series: What the bars of a row are, one or two.
        panels: The charts.

    Returns:
        A whole SVG document.
    """
    height = TOP + ROW * len(names) + BOTTOM
    width = LEFT + len(panels) * PANEL + (len(panels) - 1) * GAP + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(16, 26, title, size=17, weight="bold"),
        _text(16, 46, subtitle),
        *(_text(LEFT - 10, TOP + ROW * row + ROW / 2 + 4, name, anchor="end") for row, name in enumerate(names)),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + number * (PANEL + GAP), height - BOTTOM)
    parts += _legend(series, height - 16)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float, bottom: float) -> list[str]:
    values = [value for row in panel.values for value in row if value is not None]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)

    def x(value: float) -> float:
        return left + PANEL * (math.log10(value) - low) / (high - low)

    parts = [_text(left, TOP - 12, panel.title, weight="bold")]
    for power in range(low, high + 1):
        place = x(10.0**power)
        parts.append(f'<line x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{bottom}" stroke="{PALE}"/>')
        parts.append(_text(place, bottom + 16, f"{10**power:,}" if power >= 0 else f"{10.0**power:g}", anchor="middle"))
    for row, bars in enumerate(panel.values):
        start = TOP + ROW * row + (ROW - BAR * len(bars)) / 2
        for number, value in enumerate(bars):
            if value is not None:
                y = start + BAR * number
                bar_width = max(1.0, x(value) - left)
                parts.append(
                    f'<rect x="{left:.1f}" y="{y:.1f}" width="{bar_width:.1f}" height="{BAR - 1}" '
                    f'fill="{COLOURS[number]}"/>'
                )
                parts.append(_text(x(value) + 4, y + BAR - 2, f"{value:,.0f}", size=10.5))
    return parts


def _legend(series: Sequence[str], y: float) -> list[str]:
    parts, left = [], float(LEFT)
    for number, name in enumerate(series):
        parts.append(f'<rect x="{left:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{COLOURS[number]}"/>')
        parts.append(_text(left + 18, y, name))
        left += 18 + 7 * len(name) + 30
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: float = 12, weight: str = "normal") -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'
