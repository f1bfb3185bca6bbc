"""An update asks the device for its values and its metrics, and for nothing else, in whatever setting.

Allowed are the lines of `src/movelist` that say `# WAIT`; everything else fails by its line.
"""

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import movelist
from movelist.core.settings import UpdateSettings
from movelist.data.episode import POLICY, Episodes, offsets_of
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.measure.waits import Wait, count_waits

PACKAGE = Path(movelist.__file__).parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VALUES, METRICS, TARGET_KL = "learn/learner.py values", "core/metrics.py metrics", "learn/learner.py target_kl"


@dataclass(frozen=True)
class Case:
    """One setting of an update, and the reads that the design allows it."""

    update: UpdateSettings
    reads: dict[str, int]
    encoder: str = "bits"
    truncated: bool = False
    recorded: bool = True


SMALL = UpdateSettings(batch_size=16, epochs_per_update=3)
TWO = {VALUES: 1, METRICS: 1}
CASES = {
    "plain": Case(SMALL, TWO),
    "table": Case(SMALL, TWO, encoder="table"),
    "accumulated": Case(replace(SMALL, gradient_accumulation_steps=3, clip_range_vf=0.2), TWO),
    "truncated": Case(SMALL, TWO, truncated=True),
    "foreign": Case(SMALL, TWO, recorded=False),
    "everything": Case(
        replace(SMALL, gradient_accumulation_steps=2, max_actions_per_minibatch=40, use_amp=True),
        TWO,
        encoder="table",
        truncated=True,
        recorded=False,
    ),
    "target_kl": Case(replace(SMALL, target_kl=1e9), {**TWO, TARGET_KL: 3}),
    "target_kl, stopped after the first epoch": Case(replace(SMALL, target_kl=1e-9, lr=0.1), {**TWO, TARGET_KL: 1}),
}


def episodes(case: Case) -> Episodes:
    """Ten episodes of seven steps of two players, lists of 1 to 9 actions."""
    rng = np.random.default_rng(0)
    num_episodes, num_steps = 10, 70
    count_N = rng.integers(1, 10, num_steps)
    ids = [np.sort(rng.choice(40, count, replace=False)) for count in count_N]
    return Episodes(
        state_NS=rng.normal(size=(num_steps, 5)).astype(np.float32),
        player_N=np.arange(num_steps) % 2,
        action_offsets=offsets_of(count_N),
        action_id_A=np.concatenate(ids).astype(np.int64),
        chosen_N=rng.integers(0, count_N),
        log_prob_N=np.where(case.recorded, -np.log(count_N), np.nan).astype(np.float32),
        reward_N=rng.normal(size=num_steps),
        episode_offsets=np.arange(num_episodes + 1) * 7,
        return_EP=rng.normal(size=(num_episodes, 2)),
        truncated_E=np.arange(num_episodes) % 3 == 0 if case.truncated else np.zeros(num_episodes, bool),
        final_state_EPS=rng.normal(size=(num_episodes, 2, 5)).astype(np.float32) if case.truncated else None,
        controller_EP=np.full((num_episodes, 2), POLICY, np.int8),
        num_turns=num_steps,
    ).check()


def learner(case: Case) -> Learner:
    """A small network on the device, with one update behind it, as all but the first have."""
    torch.manual_seed(0)
    shape = ModelShape(
        state_size=5, hidden_dim=8, action_encoder=case.encoder, num_actions=40 if case.encoder == "table" else 0
    )
    made = Learner(PolicyValueNet(shape).to(DEVICE), case.update, World(DEVICE))
    made.update(made.prepare(episodes(case)))
    return made


@functools.cache
def statements(path: str) -> list[tuple[int, int, str | None]]:
    """First line, last line and reason (`# WAIT: reason`, None without) of each simple statement of a file."""
    source = Path(path).read_text(encoding="utf-8")
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            end = node.end_lineno or node.lineno
            reason = re.search(r"# WAIT: (.*)", "\n".join(lines[node.lineno - 1 : end]))
            found.append((node.lineno, end, reason[1] if reason else None))
    return found


def reason(wait: Wait) -> str:
    """What the statement's `# WAIT` says, by a keyword; or the place itself, where nothing allows it."""
    if Path(wait.file).is_relative_to(PACKAGE):
        for first, last, text in statements(wait.file):
            if first <= wait.line <= last and text:
                word = next((w for w in ("values", "metrics", "target_kl") if w in text), text)
                return f"{Path(wait.file).relative_to(PACKAGE).as_posix()} {word}"
    return f"not allowed: {wait}"


def reads(found: list[Wait]) -> dict[str, int]:
    """How often each allowed read was made; what is not allowed stands there with its line."""
    count: Counter[str] = Counter()
    for wait in found:
        count[reason(wait)] += wait.count
    return dict(count)


@pytest.mark.parametrize("name", CASES)
def test_an_update_reads_what_the_design_allows_and_no_more(name: str) -> None:
    case = CASES[name]
    trained, data = learner(case), episodes(case)
    # On a GPU, CUDA itself raises at each wait that this misses.
    with count_waits(refuse_others=True) as waits:
        metrics = trained.update(trained.prepare(data))
    assert reads(waits.found) == case.reads
    assert np.isfinite(list(metrics.values())).all()


def test_the_first_update_reads_no_more() -> None:
    case = CASES["plain"]
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=8)).to(DEVICE)
    with count_waits(refuse_others=True) as waits:
        first = Learner(net, case.update, World(DEVICE))
        first.update(first.prepare(episodes(case)))
    assert reads(waits.found) == TWO


PROBE = """
import sys
sys.path[:0] = [{source!r}, {tests!r}]
import movelist
from test_no_waits import CASES, count_waits, episodes, learner, reads

assert movelist.__file__.startswith({source!r}), movelist.__file__
case = CASES["plain"]
trained, data = learner(case), episodes(case)
with count_waits() as waits:
    trained.update(trained.prepare(data))
print(reads(waits.found))
"""


@pytest.mark.parametrize(
    ("file", "line", "planted"),
    [
        ("learn/loss.py", "    ratio_B = log_ratio_B.exp()\n", "    log_ratio_B.max().item()\n"),
        ("learn/pair.py", "        (grad_A,) = grads\n", "        grads[0].tolist()\n"),
        ("core/ragged.py", "    _check(segments, log_prob_A)\n", "    assert bool(log_prob_A.isfinite().all())\n"),
    ],
)
def test_a_planted_read_is_found_by_its_line(tmp_path: Path, file: str, line: str, planted: str) -> None:
    copy = tmp_path / "src" / "movelist"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text(encoding="utf-8")
    assert text.count(line) >= 1
    (copy / file).write_text(text.replace(line, planted + line, 1), encoding="utf-8")
    number = text[: text.index(line)].count("\n") + 1
    probe = PROBE.format(source=str(tmp_path / "src"), tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, encoding="utf-8", cwd=tmp_path, check=False
    )
    found: dict[str, Any] = ast.literal_eval(done.stdout) if done.returncode == 0 else pytest.fail(done.stderr)
    # 70 steps in batches of 16 are 5 minibatches, in 3 epochs 15.
    (name,) = found.keys() - TWO.keys()
    assert name.startswith(f"not allowed: {copy / file}:{number}: "), name
    assert found == {**TWO, name: 15}
