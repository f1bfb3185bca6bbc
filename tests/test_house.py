"""The house rules: who may import whom, how long a file may be, what no file may contain.

The order of HOUSE is the design's: a folder imports only folders printed above it, and a module only what is printed
above it in its folder, also inside functions. A name may be listed before its file exists.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "movelist"

HOUSE: dict[str, list[str]] = {
    "core": [
        "errors",
        "by_name",
        "checks",
        "settings",
        "benchmark_settings",
        "profile_settings",
        "command",
        "action_ids",
        "ragged",
        "returns",
        "metrics",
        "patience",
        "shell",
    ],
    "data": [
        "column",
        "episode",
        "record_format",
        "record_rules",
        "repeated",
        "record_lines",
        "record_json",
        "whole_file",
        "same_file",
        "jsonl",
        "arrow_columns",
        "arrow_frames",
        "arrows",
        "arrow_writer",
        "recordings",
        "shard_fields",
        "store",
        "loader",
        "watch",
    ],
    "games": [
        "game",
        "columns",
        "openings",
        "repeated",
        "check",
        "bot",
        "dou_dizhu",
        "openspiel",
        "openspiel_bots",
        "game_tree",
        "spaces",
        "pettingzoo",
        "rlcard",
        "rlcard_bots",
        "catalog",
    ],
    "learn": [
        "device",
        "parallel",
        "batch",
        "pair",
        "pair_triton",
        "model",
        "make_net",
        "loss",
        "compile",
        "guard",
        "critic",
        "learner",
    ],
    "play": [
        *(
            "policy",
            "running",
            "recorder",
            "worker_process",
            "worker",
            "workers",
            "watchdog",
            "selfplay",
            "cluster",
            "deals",
            "arena",
            "rating",
            "tournament",
            "exploitability",
            "survey",
        ),
        *(
            "policy_info",
            "weights_file",
            "onnx_graph",
            "scorers",
            "profiles",
            "exported",
            "export",
            "terminal",
            "server",
        ),
    ],
    "measure": [
        "wait_kinds",
        "waits",
        "clock",
        "rungs",
        "minibatches",
        "ladder",
        "chart",
        "benchmark",
        *("hardware", "live", "findings", "shapes", "device_trace", "profiler"),
        *("verdict", "advice", "compare", "texts_en", "texts_zh", "sentences", "texts", "report", "arena_page"),
    ],
    "run": [
        *(
            "growing_file",
            "events",
            "log",
            "seal",
            "lock",
            "folder",
            "ladder",
            "exactness",
            "checkpoint",
            "bad_minibatch",
        ),
        *(
            "carry_over",
            "start",
            "players",
            "parts",
            "supply",
            "recorded",
            "watched",
            "totals",
            "signals",
            "best",
            "training",
            "greeting",
            "train",
            "presets",
            "profile",
            "tune",
            "api",
        ),
    ],
    "": [
        "train_commands",
        "data_commands",
        "policy_commands",
        "measure_commands",
        "cli",
        "__init__",
        "__main__",
    ],  # the package's own files come last
}
# A room's __init__ comes before its modules: what it imported, each of them would import. So it imports nothing of
# its own room.
ORDER = [
    ".".join(["movelist", *filter(None, [room]), name])
    for room, names in HOUSE.items()
    for name in (["__init__", *names] if room else names)
]
RANK = {module: rank for rank, module in enumerate(ORDER)}
OPTIONAL = {
    "pyspiel",
    "open_spiel",
    "pettingzoo",
    "gymnasium",
    "rlcard",
    "ray",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "aiohttp",
    "websockets",
}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 600, 80


# --- The checks: each takes a module's name and source and yields what is wrong with it, one sentence for each fault.


def imported(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of all that a module imports, wherever the import stands."""
    folder = module.split(".")[:-1]  # for an __init__ too, since its name ends in __init__ here
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            names = [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in names)


def called(node: ast.Call) -> str:
    """The last part of the name that is called: `open` for `open(...)` and for `path.open(...)`."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def house_module(name: str) -> str:
    """The file of the house that `import name` runs, e.g. movelist.core.ragged for movelist.core.ragged.Segments."""
    for candidate in (name, name.rpartition(".")[0]):
        for module in (candidate, f"{candidate}.__init__"):
            if module in RANK:
                return module
    return name


def import_faults(module: str, source: str) -> Iterator[str]:
    """The order of the house."""
    for line, name in imported(ast.parse(source), module):
        if name.split(".")[0] != "movelist":
            continue
        target = house_module(name)
        if target not in RANK:
            yield f"{module}:{line} imports {name}, which is not in tests/test_house.py's HOUSE"
        elif RANK[target] >= RANK[module]:
            yield f"{module}:{line} imports {target}, which is not printed above it in the design's house"


def optional_faults(module: str, source: str) -> Iterator[str]:
    """Packages of the extras are imported where they are used, so that all the rest works without them."""
    tree = ast.parse(source)
    top_level = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for statement in top_level:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        inside = {n for f in ast.walk(statement) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        for node in set(ast.walk(statement)) - inside:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for line, name in imported(ast.Module([node], []), module):
                    if name.split(".")[0] in OPTIONAL:
                        yield f"{module}:{line} imports {name} at the top; import it in the function that uses it"


def encoding_faults(module: str, source: str) -> Iterator[str]:
    """Text is read and written as UTF-8 by name: on Windows the default is the system's code page."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or called(node) not in {"open", "fdopen", "read_text", "write_text"}:
            continue
        is_method = isinstance(node.func, ast.Attribute)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and (owner.id, called(node)) in {("os", "open"), ("webbrowser", "open")}:
            continue
        place = 0 if is_method and called(node) == "open" and getattr(owner, "id", "") not in {"io", "gzip"} else 1
        mode: ast.AST | None = next((word.value for word in node.keywords if word.arg == "mode"), None)
        if mode is None and called(node) in {"open", "fdopen"} and len(node.args) > place:
            mode = node.args[place]
        modes = [part.value for part in ast.walk(mode) if isinstance(part, ast.Constant)] if mode else []
        binary = bool(modes) and all("b" in str(value) for value in modes)
        if not binary and not any(word.arg == "encoding" for word in node.keywords):
            yield f'{module}:{node.lineno} calls {called(node)} without encoding="utf-8"'


def size_faults(module: str, source: str) -> Iterator[str]:
    """Modules and functions that can be read in one go."""
    if (lines := source.count("\n")) > MAX_MODULE_LINES:
        yield f"{module} has {lines} lines; {MAX_MODULE_LINES} is the limit: split it"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{module}:{node.lineno} {node.name} has {lines} lines; {MAX_FUNCTION_LINES} is the limit"


def leftover_faults(module: str, source: str) -> Iterator[str]:
    """Nothing is left for later in the code: what is missing is an issue."""
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"\b(TO" + r"DO|FIX" + r"ME)\b", line):
            yield f"{module}:{number} leaves something for later: {line.strip()}"


def name_faults(name: str, text: str) -> Iterator[str]:
    """No package registry's host, no path of the machine it was written on; put together here, to not find itself."""
    hosts = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "npm" + "js.org",
        "download.py" + "torch.org",
        "deb.deb" + "ian.org",
    ]
    paths = r"(?<![\w.])/(" + "|".join(["wo" + "rk", "fa" + "rm", "ro" + "ot", "tmp/" + "ml", "opt/" + "wheels"]) + ")/"
    forbidden = re.compile("|".join([*map(re.escape, hosts), paths]))
    for number, line in enumerate(text.splitlines(), 1):
        if match := forbidden.search(line):
            yield f"{name}:{number} names {match.group()}"


# --- The rules, held against the files.


def modules() -> dict[str, str]:
    """Name and source of each file of the package; an __init__ keeps that name."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def tracked_files() -> list[Path]:
    """All that git has, or would take at `git add .`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # safe.directory: a CI may run as another user than the owner of the checkout.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode("utf-8").split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def test_every_module_has_its_place_in_the_house() -> None:
    unknown = [name for name in modules() if name not in RANK]
    assert not unknown, f"no place in the house for {unknown}: add them to HOUSE in tests/test_house.py, in order"


@pytest.mark.parametrize(
    "check",
    [import_faults, optional_faults, encoding_faults, size_faults, leftover_faults],
    ids=lambda check: check.__name__,
)
def test_the_package_keeps(check: Callable[[str, str], Iterator[str]]) -> None:
    faults = [fault for name, source in modules().items() if name in RANK for fault in check(name, source)]
    assert not faults, "\n".join(faults)


def test_no_file_names_a_registry_or_a_workplace() -> None:
    faults = []
    for path in tracked_files():
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        faults += name_faults(path.relative_to(ROOT).as_posix(), text)
    assert not faults, "\n".join(faults)


def test_batch_files_are_ascii_with_crlf() -> None:
    batch_files = sorted(ROOT.glob("*.bat"))
    assert batch_files
    for path in batch_files:
        content = path.read_bytes()
        assert content.isascii(), f"{path.name}: cmd.exe reads it in the system's code page"
        lone = [n for n, line in enumerate(content.split(b"\n")[:-1], 1) if not line.endswith(b"\r")]
        assert not lone and content.endswith(b"\r\n"), f"{path.name}: lines {lone or 'at the end'} lack CRLF"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no executable bit")
@pytest.mark.parametrize("name", [".ci/run", "train_fast.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK), f"{name}: chmod +x, then git add"


# --- The checks themselves, shown to see a planted fault and to leave the right thing alone.


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("movelist.core.ragged", "from movelist.core.returns import gae", "movelist.core.returns"),
        ("movelist.core.ragged", "from movelist.core import returns", "movelist.core.returns"),
        ("movelist.core.ragged", "from . import returns", "movelist.core.returns"),
        ("movelist.core.ragged", "from .returns import gae", "movelist.core.returns"),
        ("movelist.core.ragged", "from ..data import episode", "movelist.data.episode"),
        ("movelist.core.ragged", "import movelist.run.train as train", "movelist.run.train"),
        ("movelist.core.ragged", "def f():\n    from movelist.data.episode import Episodes", "movelist.data.episode"),
        ("movelist.core.ragged", "from movelist import cli", "movelist.cli"),
        ("movelist.core.ragged", "from movelist import Episodes", "movelist.__init__"),
        ("movelist.core.ragged", "import movelist", "movelist.__init__"),
        ("movelist.core.ragged", "import_module('movelist.play.arena')", "movelist.play.arena"),
        ("movelist.core.__init__", "from .errors import MovelistError", "movelist.core.errors"),
        ("movelist.games.catalog", "from movelist.learn.model import PolicyValueNet", "movelist.learn.model"),
        ("movelist.cli", "from movelist import __version__", "movelist.__init__"),
        ("movelist.run.train", "from movelist.run.train import train", "movelist.run.train"),
    ],
)
def test_imports_from_below_are_seen(module: str, source: str, target: str) -> None:
    (fault,) = import_faults(module, source)
    assert f" imports {target}, which is not printed above it" in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("movelist.core.returns", "from movelist.core.ragged import Segments\nfrom . import ragged\nimport torch"),
        ("movelist.learn.batch", "from movelist.core import ragged\nfrom ..data.episode import Episodes"),
        ("movelist.cli", "def train():\n    from movelist.run.train import train\n    import movelist.core.settings"),
        ("movelist.__main__", "from movelist.cli import main\nfrom movelist import __version__"),
        ("movelist.__init__", "from .core.errors import MovelistError"),
    ],
)
def test_imports_from_above_are_allowed(module: str, source: str) -> None:
    assert not list(import_faults(module, source))


def test_an_import_of_an_unknown_module_is_seen() -> None:
    (fault,) = import_faults("movelist.cli", "from movelist.attic.old import thing")
    assert "not in tests/test_house.py's HOUSE" in fault


@pytest.mark.parametrize(
    ("check", "bad", "good"),
    [
        (optional_faults, "import pyspiel", "def f():\n    import pyspiel"),
        (optional_faults, "try:\n    from ray import get\nexcept ImportError:\n    pass", "import torch"),
        (optional_faults, "class A:\n    import onnx", "class A:\n    def f(self):\n        import onnx"),
        (optional_faults, "import onnx", "if TYPE_CHECKING:\n    import onnx"),
        (encoding_faults, "open(p)", "open(p, encoding='utf-8')"),
        (encoding_faults, "open(p, 'w')", "open(p, 'wb')"),
        (encoding_faults, "open(p, mode='w')", "open(p, mode='rb')"),
        (encoding_faults, "p.open('a')", "p.open('ab')"),
        (encoding_faults, "p.open('a' if x else 'wb')", "p.open('ab' if x else 'wb')"),
        (encoding_faults, "os.fdopen(f, 'w')", "os.fdopen(f, 'wb')"),
        (encoding_faults, "gzip.open('b', 'wt')", "os.open(p, os.O_RDONLY)"),
        (encoding_faults, "p.read_text()", "p.read_text(encoding='utf-8')"),
        (encoding_faults, "p.write_text('b')", "p.write_text('b', encoding='utf-8')"),
        (size_faults, "x = 1\n" * 601, "x = 1\n" * 600),
        (size_faults, "def f():\n" + "    x = 1\n" * 80, "def f():\n" + "    x = 1\n" * 79),
        (leftover_faults, "x = 1  # TO" + "DO later", "x = 'mastodon'"),
        (leftover_faults, "# FIX" + "ME", "# fixed"),
        (name_faults, "see https://py" + "pi.org/simple", "see https://pytorch.org/get-started/locally/"),
        (name_faults, "cd /wo" + "rk/main", "cd src/wo" + "rk/main"),
    ],
)
def test_a_planted_fault_is_seen(check: Callable[[str, str], Iterator[str]], bad: str, good: str) -> None:
    assert len(list(check("movelist.cli", bad))) == 1
    assert not list(check("movelist.cli", good))
