"""Every block of code in README and docs runs in a test, or is of a kind that is held here against what there is."""

import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import movelist
from movelist import cli
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.policy_info import describe
from movelist.play.profiles import profile_named

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
FENCED = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?P<text>(?: {4,}\S.*\n(?:\n(?= {4}\S))?)+)")

# Blocks that a test of their own runs or compiles: page, a word of the block's, the file of the test and a word of it.
RUN_ELSEWHERE = [
    ("README.md", "class Nim:", "tests/test_readme.py", "runpy.run_path"),
    ("README.zh-CN.md", "class Nim:", "tests/test_docs.py", "english[:-1] == chinese[:-1]"),  # equal to README's
    ("docs/reliability.md", "load_file", "tests/run/test_bad_minibatch.py", "reliability.md"),
    ("docs/export.md", "void encode_bits", "tests/test_export_docs.py", 'recipe("cpp")'),
    ("docs/export.md", "static void EncodeBits", "tests/test_export_docs.py", 'recipe("csharp")'),
    ("docs/export.md", "static func encode_bits", "tests/test_export_docs.py", 'recipe("gdscript")'),
    ("docs/episode_format.md", '"format":"movelist/1"', "tests/test_blocks.py", "test_the_recording_of_the_format"),
    ("docs/episode_format.md", "numbers   ", "tests/test_blocks.py", "test_the_rewards_of_the_format"),
    ("docs/export.md", "policy->choose", "tests/test_blocks.py", "test_the_reader_in_cpp_compiles"),
    ("docs/export.md", "h_state  =", "tests/test_blocks.py", "test_the_formulas_give_the_networks_logits"),
    ("docs/export.md", "InferenceSession", "tests/test_blocks.py", "test_the_recipes_for_onnxruntime"),
    ("docs/export.md", "Ort::Session", "tests/test_blocks.py", "test_the_recipes_for_onnxruntime"),
    ("docs/export.md", '"policy_version": 12', "tests/play/test_export.py", '"weights": "policy-'),
    ("docs/performance.md", "count_waits", "tests/test_blocks.py", "test_waits_are_counted_as_shown"),
    ("docs/tutorial.md", "", "tests/test_tutorial.py", "tutorial.follow"),
    ("docs/strength.md", "class Lowest:", "tests/test_blocks.py", "test_the_bot_of_the_page_plays"),
]
OUTPUT = [  # what a program printed once: page and the words that begin its lines, "..." for those left out
    ("README.md", "No --data, so self-play on"),
    ("README.zh-CN.md", "No --data, so self-play on"),
    ("docs/strength.md", "    $ movelist match runs/ddz1"),
    ("docs/strength.md", "        player                  rating"),
]
TREES = [("README.md", "src/movelist/"), ("README.zh-CN.md", "src/movelist/")]
FIRST_WORDS = {"movelist", "python", "make", "torchrun", "pip", "g++", "./toy_recorder"}


def blocks(page):
    text = page.read_text(encoding="utf-8")
    found = [match["text"] for match in FENCED.finditer(text)]
    return found + [match["text"] for match in INDENTED.finditer(FENCED.sub("", text))]


def named(page):
    return page.relative_to(ROOT).as_posix()


def commands(text):
    """The lines without what stands behind them for people."""
    return [line for line in (re.sub(r"\s+#.*|(?<=\S) {3,}.*", "", line).strip() for line in text.splitlines()) if line]


def is_commands(text):
    return all(line.split()[0] in FIRST_WORDS for line in commands(text))


ALL = [(named(page), text) for page in PAGES if page.name not in ("CHANGELOG.md", "LOG.md") for text in blocks(page)]


@pytest.mark.parametrize(("page", "text"), ALL, ids=[f"{page} {number}" for number, (page, _) in enumerate(ALL)])
def test_every_block_is_of_a_kind_that_is_held_against_something(page, text, monkeypatch):
    for where, word, test, called in RUN_ELSEWHERE:
        if where == page and word in text:
            assert called in (ROOT / test).read_text(encoding="utf-8")
            return
    if is_commands(text):
        for line in commands(text):
            check_command(line, monkeypatch)
        return
    for where, word in OUTPUT:
        if where == page and text.startswith(word):
            check_output(text)
            return
    for where, word in TREES:
        if where == page and text.startswith(word):
            check_tree(text)
            return
    pytest.fail(f"{page} has a block that no test knows: {text[:80]!r}")


def check_command(line, monkeypatch):
    """The command is there and takes these words; what it would read need not be."""
    first, *words = shlex.split(line)
    if first == "torchrun":
        words = words[words.index("-m") + 1 :]
        first, words = words[0], words[1:]
    if first == "python" and words[:2] == ["-m", "movelist"]:
        first, words = "movelist", words[2:]
    if first == "movelist" or (first == "python" and words[0] in ("train.py", "profile_performance.py")):
        if first == "python":
            words = [{"train.py": "train", "profile_performance.py": "profile"}[words[0]], *words[1:]]
        words = words[: words.index(">")] if ">" in words else words
        monkeypatch.setattr(cli, "_defaults", lambda arguments: cli.TrainSettings())  # of a run or preset that is not
        try:
            cli._parse(["WORD" if word == "..." else word for word in words if word != "..."])
        except SystemExit as stop:
            assert stop.code == 0, line  # --help
    elif first == "python":
        path = next(place / words[0] for place in (ROOT, ROOT / "examples" / "engines") if (place / words[0]).is_file())
        text = path.read_text(encoding="utf-8")
        for flag in [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]:
            assert re.search(rf'^    {flag}: |"--{flag}"', text, re.M), f"{line}: {path.name} has no --{flag}"
    elif first == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M), line
    elif first == "pip":
        extras = re.findall(r"movelist\[([\w,]+)\]", line)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(re.search(rf"^{extra} = \[", project, re.M) for some in extras for extra in some.split(",")), line
    else:  # the toy recorder, compiled and run in tests/test_engines.py
        assert "toy_recorder" in (ROOT / "tests" / "test_engines.py").read_text(encoding="utf-8")


def check_output(text):
    """Its lines are made of sentences that the program has: their words without numbers stand in the sources."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "movelist").rglob("*.py"))
    for line in text.splitlines():
        words = re.findall(r"[A-Z][a-z]+ [a-z]+ [a-z]+|[a-z]+ keeps about|beats random|win rate", line)
        assert line.strip() == "..." or not words or any(word in sources for word in words), line


def check_tree(text):
    """Each file and folder in it is there."""
    inside = ROOT
    for line in text.splitlines():
        for name in re.findall(r"(?<![\w/])([\w/]+/|[\w.]+\.(?:py|sh|bat))(?=\s|$|\))", re.sub(r"\(.*?\)", "", line)):
            place = ROOT / "src" / "movelist" / name if line.startswith("  ") else ROOT / name
            assert place.exists(), (line, inside)


def test_the_recording_of_the_format_is_good(tmp_path):
    from recorded import read_all

    (text,) = [text for page, text in ALL if page == "docs/episode_format.md" and '"format":"movelist/1"' in text]
    file = tmp_path / "a.jsonl"
    file.write_text(" ".join(text.split()) + "\n", encoding="utf-8")
    (columns,), problems = read_all(file)
    assert not problems and columns.raw.num_steps == 3


def test_the_rewards_of_the_format_say_the_same(tmp_path):
    from recorded import read_all, record, write_lines

    (text,) = [text for page, text in ALL if page == "docs/episode_format.md" and "numbers   " in text]
    credits = []
    for line in text.splitlines():
        rewards = [eval(value) for value in re.findall(r'"reward":(\[[^]]*\]|-?\d+)', line)]
        made = record(returns=[1, -1])
        for step, reward in zip(made["steps"], rewards, strict=True):
            step["reward"] = reward
        (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", made))
        assert not problems
        credits.append(columns.episodes(keep_forced=True).reward_N.tolist())
    assert credits == [[2, -1, -1]] * 2


def export_block(word):
    (text,) = [text for page, text in ALL if page == "docs/export.md" and word in text]
    return text


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_reader_in_cpp_compiles(tmp_path):
    source = tmp_path / "reader.cpp"
    variables = "std::vector<float> state; std::vector<std::int64_t> ids; std::uint64_t game_seed = 1, turn = 2;"
    body = export_block("policy->choose")
    source.write_text(
        f'#include "movelist_policy.hpp"\nint main() {{ {variables}\n{body}\nreturn choice.index; }}\n',
        encoding="utf-8",
    )
    engines = ROOT / "examples" / "engines"
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", f"-I{engines}", str(source)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_formulas_give_the_networks_logits():
    """Each line of the block, with its names as they are, computed in numpy."""
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=3, hidden_dim=8))
    from movelist.play.weights_file import weights_of

    weights = {name: np.asarray(value, np.float64) for name, value in weights_of(net).items()}
    names = {"relu": lambda value: np.maximum(value, 0), "state": np.array([0.5, -1.0, 2.0])}
    names["bits"] = np.array([float(0b101 >> bit & 1) for bit in range(64)])
    names["dot"] = np.dot
    for line in export_block("h_state  =").splitlines():
        left, right = line.split(" = ") if " = " in line else line.split("=", 1)
        right = re.sub(r"\s{3,}table:.*", "", right)
        while re.search(r"[\w.]+\.weight \. ", right):  # the last product first: a . b is a @ b
            right = re.sub(r"([\w.]+\.weight) \. ", r"\1 @ ", right)
        right = re.sub(r"([a-z_0-9]+\.(?:weight|bias))", r'weights["\1"]', right)
        names[left.strip()] = eval(right, {"weights": weights}, names)
    ids, one = torch.tensor([0b101]), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        state = torch.tensor([[0.5, -1.0, 2.0]])
        expected = net(state, net.encode_ids(ids), one, torch.arange(1))[0].item()
    assert float(names["logit"]) == pytest.approx(expected, abs=1e-5)


def test_the_recipes_for_onnxruntime_name_what_the_file_has():
    onnx = pytest.importorskip("onnx")
    net = PolicyValueNet(ModelShape(state_size=3, hidden_dim=8))
    info = describe(net.shape, version="1", game="x", policy_version=1)
    graph = onnx.load_from_string(profile_named("ort").to_bytes(net, info, False)).graph
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    csharp, cpp = export_block("InferenceSession"), export_block("Ort::Session")
    assert re.findall(r'CreateFromTensor\("(\w+)"', csharp) == inputs
    assert re.findall(r'session.Run\(inputs, new\[\] \{ "(\w+)" \}\)', csharp)[0] in outputs
    assert re.findall(r'"(\w+)"', re.search(r"input_names\[\] = \{(.*?)\}", cpp)[1]) == inputs
    assert re.findall(r'"(\w+)"', re.search(r"output_names\[\] = \{(.*?)\}", cpp)[1])[0] in outputs
    assert re.search(r'"(state_layout)"', csharp)[1] in info.to_metadata()


def test_waits_are_counted_as_shown(capsys):
    (text,) = [text for page, text in ALL if page == "docs/performance.md" and "count_waits" in text]
    there = torch.arange(6.0)
    exec(text, {"your_update": lambda: there.sum().item()})
    assert "1 waits" in capsys.readouterr().out


def test_the_bot_of_the_page_plays():
    pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
    (text,) = [text for page, text in ALL if page == "docs/strength.md" and "class Lowest:" in text]
    code: dict[str, type] = {}
    exec(textwrap.dedent(text), code)
    against_itself = movelist.match(code["Lowest"](), code["Lowest"](), game="tic_tac_toe", num_games=20)
    assert against_itself.win_rate == 0.5
    # Squares from the first to the last: better than by lot, and the same each time.
    against_random = movelist.match(code["Lowest"](), "random", game="tic_tac_toe", num_games=400)
    assert against_random.win_rate > 0.55
