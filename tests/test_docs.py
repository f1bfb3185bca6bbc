"""The guides and READMEs, in English and Chinese: the same blocks, flags and files that exist, and equal numbers."""

import contextlib
import functools
import importlib
import io
import re
from pathlib import Path

import pytest

from movelist import cli

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ("docs/optimization_guide.md", "docs/optimization_guide.zh-CN.md")
READMES = ("README.md", "README.zh-CN.md")

OTHERS = {"torchrun": {"--nproc-per-node", "--standalone"}, "tensorboard": {"--logdir"}}


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def plain(flag):
    """A flag without the two ways to write it and without its no-."""
    return flag.removeprefix("--").replace("-", "_").removeprefix("no_")


@functools.cache
def flags_of_commands():
    """All that the commands know, by asking each for its help."""
    flags: set[str] = set()
    for command in cli.COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
            cli.main([command.name, "--help"])
        flags = flags | {plain(flag) for flag in re.findall(r"--[a-z][\w-]*", said.getvalue())}
    return flags


def flags_of_benchmarks():
    """The fields of the benchmarks' options, and flags that are written out."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")]
    return {
        name or flag for text in texts for name, flag in re.findall(r"^    (\w+): |\"--(\w+)\"", text, re.MULTILINE)
    }


@pytest.mark.parametrize("name", [*GUIDES, *READMES])
def test_only_flags_that_exist_are_mentioned(name):
    known = flags_of_commands()
    for line in text_of(name).splitlines():
        allowed = known | {plain(flag) for tool, flags in OTHERS.items() if tool in line for flag in flags}
        if "benchmarks/" in line:
            allowed = allowed | flags_of_benchmarks()
        unknown = {flag for flag in re.findall(r"--[a-z][\w-]*", line) if plain(flag) not in allowed}
        assert not unknown, f"{name}: {line}"


@pytest.mark.parametrize("name", [*GUIDES, *READMES])
def test_only_files_that_exist_are_named(name):
    text = text_of(name)
    folder = (ROOT / name).parent
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (folder / target).is_file(), target
    for target in re.findall(r"`((?:core|data|run|play|learn|measure)/\w+\.py)`", text):
        assert (ROOT / "src" / "movelist" / target).is_file(), target
    for target in re.findall(r"python ((?:benchmarks|scripts)/\w+\.py)", text):
        assert (ROOT / target).is_file(), target


@pytest.mark.parametrize(("english", "chinese"), [GUIDES, READMES])
def test_each_language_links_to_the_other(english, chinese):
    assert f"]({Path(chinese).name})" in text_of(english)
    assert f"]({Path(english).name})" in text_of(chinese)


def figures(text):
    """All numbers in order of size, without list numbers, code blocks, and the space before a per cent sign."""
    text = re.sub(r"^(\d+\.|#+ \d+\.) ", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M)
    return sorted(re.findall(r"\d[\d,.]*\d|\d", text))


def test_the_guides_quote_the_same_numbers():
    english, chinese = map(text_of, GUIDES)
    assert figures(english) == figures(chinese)
    assert len(re.findall(r"^\|", english, re.M)) == len(re.findall(r"^\|", chinese, re.M))
    assert re.findall(r"^#+ (\d)", english, re.M) == re.findall(r"^#+ (\d)", chinese, re.M) == list("123456")


def test_the_chinese_readme_has_the_blocks_of_the_english_one():
    def code(name):
        """The blocks without their comments."""
        blocks = re.findall(r"^```.*?^```", text_of(name), re.S | re.M)
        return [re.sub(r" *#.*", "", block) for block in blocks]

    english, chinese = code("README.md"), code("README.zh-CN.md")
    assert english[:-1] == chinese[:-1]
    assert re.findall(r"[\w/]+/|\w+\.py", english[-1]) == re.findall(r"[\w/]+/|\w+\.py", chinese[-1], re.ASCII)


@pytest.mark.parametrize("name", ["docs/optimization_guide.zh-CN.md", "README.zh-CN.md"])
def test_the_chinese_texts_open_on_an_old_console(name):
    assert text_of(name).encode("gbk")


def measured():
    """What may be quoted: the texts that say how it was measured."""
    return "".join(text_of(f"docs/{name}.md") for name in ("performance", "recordings", "LOG", "architecture"))


def test_the_guide_quotes_only_what_was_measured():
    """Long numbers and decimals of the guide's table of optimisations stand in the texts that say how they were made.

    Left out are quotients of two numbers in the same row ("so 2.4 / 4.8 times"), which are computed here once more.
    """
    section = text_of(GUIDES[0]).partition("## 4.")[2].partition("## 5.")[0]
    known = measured()
    for row in [line for line in section.splitlines() if line.startswith("| ")][2:]:
        result = row.rstrip(" |").rpartition(" | ")[2]
        shown, _, quotients = result.partition("so ")
        for number in re.findall(r"\d[\d,.]*\d", shown):
            assert number in known, (number, row)
        pairs = re.findall(r"([\d,]+) -> ([\d,]+)", shown)
        ratios = [int(new.replace(",", "")) / int(old.replace(",", "")) for old, new in pairs]
        said = [float(number) for number in re.findall(r"\d+\.\d", quotients)]
        assert said == pytest.approx(ratios, abs=0.05) if pairs else not said, row


DOCUMENTS = [*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md")]
INSIDE = re.compile(r"`(movelist(?:\.[a-z]\w*)+\.[A-Za-z]\w*)")  # as movelist.play.exported.load_exported


@pytest.mark.parametrize(
    "name", sorted({name for path in DOCUMENTS for name in INSIDE.findall(path.read_text(encoding="utf-8"))})
)
def test_names_from_inside_that_the_documentation_gives_are_there(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
