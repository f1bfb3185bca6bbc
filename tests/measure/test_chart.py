"""The bar chart: well-formed, and its bars as long as the numbers say."""

import xml.etree.ElementTree as ET

from movelist.measure.chart import PANEL, Panel, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_the_logarithms() -> None:
    text = svg("a < b", "so & so", ["x", "y"], ["one"], [Panel("p", [[10.0], [1_000.0]])])
    root = ET.fromstring(text)
    bars = [float(r.get("width", "0")) for r in root.iter(f"{SVG}rect") if r.get("fill") == "#1f5fa8"][:2]
    # The axis runs from 10 to 10,000: three powers over the panel.
    assert bars == [1.0, round(PANEL * 2 / 3, 1)]
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert words[:4] == ["a < b", "so & so", "x", "y"]
    assert {"p", "10", "100", "1,000", "10,000", "one"} <= set(words)


def test_a_missing_value_leaves_its_bar_out() -> None:
    root = ET.fromstring(svg("t", "s", ["x"], ["one", "two"], [Panel("p", [[5.0, None]]), Panel("q", [[0.5, 0.7]])]))
    assert sum(r.get("fill") == "#9cc3ea" for r in root.iter(f"{SVG}rect")) == 2  # one bar, one legend
    assert "0.1" in [t.text for t in root.iter(f"{SVG}text")]
