"""The page: well-formed, escaped, alone, and its numbers are those of profile.json, also as a browser shows them."""

import html.parser
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from movelist.core.errors import SettingsError
from movelist.measure import advice, verdict
from movelist.measure.findings import SPANS, Trial, read_profile, write_profile
from movelist.measure.report import report, write_report
from profiles import cpu_profile, gpu_profile, wait

EVIL = '<script>alert("行")</script>'
TRIALS = [
    Trial(changes={"batch_size": 2048}, steps_per_second=11_469.0, ratio=1.4, ratio_low=1.3, ratio_high=1.5, runs=3),
    Trial(changes={"num_threads": 1}, steps_per_second=4_096.0, ratio=0.5, ratio_low=0.4, ratio_high=0.6, runs=3),
]
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def full_profile():
    profile = gpu_profile(
        hardware={"gpu_busy": 0.234_567},
        timing={"seconds": 12.345_678},
        waits={"places": [wait(f"D:\\{EVIL} dir\\train.py", 12, ".item()", count=64.0)], "unseen": ["not seen: all"]},
        trials=TRIALS,
        tuned={"batch_size": 2048},
        command=f"movelist profile --data {EVIL}",
        source=EVIL,
    )
    return replace(profile, advice=advice.advise(profile))


class Page(html.parser.HTMLParser):
    """Tags that are not closed, what is loaded, and the numbers with what is shown for them."""

    VOID = ("meta", "link", "img", "input", "br", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.tags, self.loaded = [], [], [], []
        self.numbers, self.ids = [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if "id" in found:
            self.ids[found["id"]] = ""
        if tag == "data":
            self.numbers.append([found, ""])
        if tag not in self.VOID:
            self.open.append((tag, found.get("id")))

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "data":
            self.numbers[-1][1] += data
        for _, identity in self.open:
            if identity:
                self.ids[identity] += data


def at(plain, key):
    """The value of profile.json that a key like spans.3.share leads to."""
    for part in key.split("."):
        plain = plain[int(part)] if isinstance(plain, list) else plain[part]
    return plain


def by_hand(plain):
    """The numbers that the page computes from two others, computed here once more."""
    timing, memory = plain["timing"], plain["memory"]
    return {
        "episodes_per_second": timing["episodes"] / timing["seconds"],
        "steps_per_second": timing["steps"] / timing["seconds"],
        "actions_per_second": timing["legal_actions"] / timing["seconds"],
        "goal.gpu_use": plain["hardware"]["gpu_busy"],
        "goal.memory": memory["peak_allocated"] / memory["reserved"] if memory["reserved"] else None,
        "goal.copies": plain["copies"]["share"] if plain["copies"] else None,
        "goal.compute": plain["compute"]["share"],
        "goal.speed_up": plain["per_sample"]["ours"] / plain["per_sample"]["steps_per_second"],
    }


def check_numbers(page, plain):
    """Each number is the one of profile.json, exactly in its attribute and rounded to three digits in what is read."""
    derived = by_hand(plain)
    seen = set()
    for attributes, shown in page.numbers:
        name = attributes.get("data-key") or attributes["data-derived"]
        right = at(plain, name) if "data-key" in attributes else derived[name]
        seen.add(name)
        assert float(attributes["value"]) == right, name
        read = re.fullmatch(r"([\d,.e-]+)(%?)( times| 倍)?", shown.strip())
        assert read, (name, shown)
        number = float(read[1].replace(",", "")) / (100 if read[2] else 1)
        # Three digits, a tenth of a per cent, or a whole number.
        assert number == pytest.approx(right, rel=0.006, abs=0.000_51 if read[2] else 0.006), (name, shown)
    wanted = {f"spans.{number}.{field}" for number in range(len(SPANS)) for field in ("share", "host_seconds")}
    wanted |= {"timing.seconds", "waits.places.0.count", "shapes.histogram.0.2", "steps_per_second"}
    wanted |= {name for name, value in derived.items() if value is not None}
    assert wanted <= seen, wanted - seen


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("make", [cpu_profile, gpu_profile, full_profile])
def test_the_page_is_well_formed_and_its_numbers_are_the_profiles(make, lang, tmp_path):
    write_profile(make(), tmp_path / "profile.json")
    plain = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    text = report(read_profile(tmp_path / "profile.json"), lang=lang, before=cpu_profile())
    page = Page(text)
    assert (page.faults, page.open) == ([], [])
    assert "{{" not in text and "{%" not in text
    check_numbers(page, plain)


def test_nothing_is_loaded_and_no_script_runs():
    text = report(full_profile(), before=gpu_profile())
    page = Page(text)
    assert page.loaded == []
    assert "script" not in page.tags
    assert not re.search(r"https?://|@import|url\(", text)


def test_what_users_wrote_is_escaped():
    text = report(full_profile())
    assert EVIL not in text
    assert text.count("&lt;script&gt;alert(&#34;行&#34;)&lt;/script&gt;") >= 4  # title, head, command, place
    page = Page(text)
    assert f"{EVIL} dir\\train.py:12" in page.ids["waits"]


def test_a_number_is_escaped_too():
    profile = cpu_profile(advice=[])
    profile.settings["data"] = [EVIL]
    assert EVIL not in report(profile)


def test_the_verdict_stands_first():
    text = report(cpu_profile(timing={"rollout_seconds": 7.0}))
    body = text.partition("<body>")[2]
    assert re.search(r"<h1[^>]*>(.*?)</h1>", body)[1].startswith("Collecting is the limit: 70% of the time")
    assert "<h2" not in body.partition("<h1")[0]


def test_goals_say_met_missed_or_not_applicable_and_what_to_do():
    goals = Page(report(full_profile())).ids["goals"].split()
    assert goals.count("missed") == 1 and goals.count("met") == 4
    assert "Raise --batch_size and --num_games" in Page(report(full_profile())).ids["goals"]
    assert Page(report(cpu_profile())).ids["goals"].count("not applicable here") == 4


def test_the_span_bar_is_as_long_as_the_shares_and_ends_at_the_end():
    bar = re.search(r'<svg class="bar.*?</svg>', report(cpu_profile()), re.DOTALL)[0]
    parts = [part for part in ET.fromstring(bar).iter("rect") if part.get("class") != "track"]
    shares = [span.share for span in cpu_profile().spans]
    assert [part.get("class") for part in parts] == [f"fill-{name}" for name in SPANS]
    assert [float(part.get("width")) for part in parts] == pytest.approx([1000 * share for share in shares], abs=0.006)
    assert float(parts[-1].get("x")) + float(parts[-1].get("width")) == pytest.approx(1000, abs=0.02)


def test_a_device_bar_stands_below_where_there_is_a_device():
    assert report(cpu_profile()).count('<svg class="bar') == 1
    assert report(gpu_profile()).count('<svg class="bar') == 2


def test_trials_are_drawn_on_one_axis():
    text = report(full_profile())
    lines = re.findall(r'<line class="(\w+)" x1="([\d.]+)" x2="([\d.]+)"', text)
    # From the lowest end, 0.4, to the highest, 1.5, each with a twentieth to spare; logarithms.
    first, last = math.log(0.4 / 1.05), math.log(1.5 * 1.05)
    expected = [("one", 1, 1), ("spread", 1.3, 1.5), ("middle", 1.4, 1.4)]
    expected += [("one", 1, 1), ("spread", 0.4, 0.6), ("middle", 0.5, 0.5)]
    assert [name for name, _, _ in lines] == [name for name, _, _ in expected]
    for (_, x1, x2), (_, low, high) in zip(lines, expected, strict=True):
        right = [1000 * (math.log(end) - first) / (last - first) for end in (low, high)]
        assert [float(x1), float(x2)] == pytest.approx(right, abs=0.06)


def test_an_interval_without_end_stays_in_its_picture():
    endless = Trial(changes={"lr": 1.0}, steps_per_second=1.0, ratio=2.0, ratio_low=0.0, ratio_high=1e300, runs=2)
    text = report(gpu_profile(trials=[endless]))
    assert re.search(r'class="spread" x1="([\d.]+)" x2="([\d.]+)"', text).groups() == ("0.0", "1000.0")
    assert "0.00 - ..." in text


def test_before_and_after_stand_in_the_page_only_if_there_are_two():
    before = cpu_profile(timing={"seconds": 20.0, "seconds_of_update": [2.0] * 10})
    compared = Page(report(cpu_profile(), before=before)).ids["compare"]
    assert "2.00 times as fast as before, beyond the noise (1.01)." in compared
    assert "4,096" in compared and "8,192" in compared
    assert "compare" not in Page(report(cpu_profile())).ids
    assert "之前" in Page(report(cpu_profile(), lang="zh", before=before)).ids["compare"]


def test_without_a_gpu_the_page_says_so_once():
    words = " ".join(Page(report(cpu_profile())).ids.values())
    text = re.sub(r"<[^>]*>", " ", report(cpu_profile()).partition("<body>")[2])
    assert text.lower().count("no gpu") == 1, words


def test_a_profile_with_nothing_in_it_makes_a_page():
    bare = cpu_profile(
        shapes={"histogram": [], "states_in_call": 0.0}, waits={"places": [], "unseen": []}, per_sample=None, looks=[],
        timing={"seconds_of_update": [10.0], "updates": 1},
    )  # fmt: skip
    page = Page(report(bare))
    assert page.faults == []
    assert "None was seen." in page.ids["waits"]


def test_the_file_is_written_whole_in_utf_8(tmp_path):
    path = tmp_path / "报告 1.html"
    write_report(cpu_profile(), path, lang="zh", before=gpu_profile())
    assert path.read_bytes().decode("utf-8") == report(cpu_profile(), lang="zh", before=gpu_profile())
    assert '<html lang="zh-CN">' in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_another_language_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="--lang cannot be used"):
        write_report(cpu_profile(), tmp_path / "x.html", lang="fr")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, the browser; on Debian: apt-get install chromium")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_browser_shows_the_numbers_of_the_json(tmp_path, lang):
    profile = full_profile()
    write_profile(profile, tmp_path / "profile.json")
    write_report(profile, tmp_path / "report.html", lang=lang, before=cpu_profile())
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "report.html").as_uri()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True)
    page = Page(done.stdout)
    assert "script" not in page.tags
    check_numbers(page, json.loads((tmp_path / "profile.json").read_text(encoding="utf-8")))
    assert page.ids["verdict"] in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [row.outcome for row in verdict.criteria(profile)].count("missed") == 1


def test_the_templates_are_part_of_the_wheel():
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling, which builds the wheel")
    files = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"movelist/measure/templates/report.html.j2", "movelist/measure/templates/report.css"} <= files
