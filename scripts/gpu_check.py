"""Check and measure movelist on a machine with an NVIDIA GPU: one command, under ten minutes, one JSON file.

    python scripts/gpu_check.py [--out gpu_check.json]
    python scripts/gpu_check.py --dry_run          the same in small on a CPU, to see that it runs; it measures no GPU

Each part runs in a process of its own with a time limit, so that one that crashes or hangs leaves the others. A part
that cannot run here says why: nothing but torch and movelist's own dependencies is taken for granted, no network, no
compiler, no OpenSpiel, no pytest, no Triton.

    machine     versions, GPU, driver, memory; which optional things are there
    waits       an update under torch.cuda.set_sync_debug_mode("error"): where does the host wait?
    tests       the tests of the wait detector and of the update's waits, on the GPU
    kernels     the tests of the Triton kernels, on the GPU; of the pair score and of compile, on the processor
    precision   how far log-probs and gradients of float32, of the Triton kernels, of TF32 and of mixed precision are
                from float64, on scores as large as after training
    ladder      movelist benchmark, hidden 512, 256 and 2,048 steps
    training    updates as in training: seconds of each part, and torch's profile of the kernels
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "examples" / "recordings"
SECONDS = {"machine": 40, "waits": 60, "tests": 120, "kernels": 100, "precision": 40, "ladder": 140, "training": 60}
SPARE_SECONDS = 10  # less than a part's own, to end what it started
so_far: Path | None = None  # where a part that runs alone keeps what it has measured, should its time run out
OPTIONAL = ("triton", "pyspiel", "pytest", "hypothesis", "pyarrow", "msgspec")


class Skipped(Exception):
    """This part cannot run here; says why."""


def main(argv: list[str] | None = None) -> int:
    """Run the parts; returns 0 if none failed, 1 if one did, 2 if there is no GPU to check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where to write the results")
    parser.add_argument("--dry_run", action="store_true", help="in small, on a CPU if there is no GPU")
    parser.add_argument("--parts", nargs="+", default=list(SECONDS), choices=list(SECONDS), help="only these")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # one part, in this process
    options = parser.parse_args(argv)
    if options.alone:
        global so_far
        so_far = options.alone
        report = run_part(options.parts[0], small=options.dry_run)
        options.alone.write_text(json.dumps(report), encoding="utf-8")
        return 0
    return check(options.out, options.parts, dry_run=options.dry_run)


def check(out: Path, parts: list[str], *, dry_run: bool) -> int:
    """Run each part in its own process and write one file, anew after each part, so that nothing is lost."""
    started = time.time()
    measured = has_gpu() and not dry_run
    statement = "measured on this machine's GPU" if measured else "no GPU was measured: this only shows that it runs"
    report: dict[str, Any] = {"gpu_measured": measured, "statement": statement, "parts": {}}
    if not measured and not dry_run:
        reason = "torch sees no NVIDIA GPU here; --dry_run shows on a CPU that the check runs"
        report |= {"statement": "no GPU was measured", "reason": reason}
        write(out, report)
        print(f"gpu_check: {reason}. Wrote {out}.", file=sys.stderr)
        return 2
    for name in parts:
        report["parts"][name] = part = in_own_process(name, small=dry_run)
        report["seconds"] = round(time.time() - started, 1)
        write(out, report)
        print(f"{name:10} {part['status']:8} {part['seconds']:6.1f} s  {part.get('reason') or ''}", flush=True)
    failed = [name for name, part in report["parts"].items() if part["status"] == "failed"]
    print(f"{statement}. {'Failed: ' + ', '.join(failed) if failed else 'Nothing failed'}. Wrote {out}.")
    return 1 if failed else 0


def write(out: Path, report: dict[str, Any]) -> None:
    """Write the file."""
    out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def in_own_process(name: str, *, small: bool) -> dict[str, Any]:
    """One part's report, whatever becomes of its process."""
    started = time.time()
    limit = SECONDS[name] * (10 if small else 1)  # a busy CPU may be slow; a GPU that needs longer is a finding
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "part.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--parts", name, "--alone", str(result)]
        try:
            done = subprocess.run(
                [*command, *(["--dry_run"] if small else [])],
                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
                timeout=limit, check=False, cwd=folder,
            )  # fmt: skip
            tail = (done.stdout + done.stderr)[-1500:]
            if result.is_file():
                part: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            else:
                part = {"status": "failed", "reason": f"its process ended with {done.returncode}", "output": tail}
        except subprocess.TimeoutExpired:
            part = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
            part |= {"status": "failed", "reason": f"took more than {limit} s"}
    return {**part, "seconds": round(time.time() - started, 1)}


def keep(result: dict[str, Any]) -> None:
    """Keep what a part has measured so far; the file is whole at any moment."""
    if so_far is not None:
        unfinished = so_far.with_suffix(".unfinished")
        report = {"status": "failed", "reason": "its process ended before it was done", "result": result}
        unfinished.write_text(json.dumps(report), encoding="utf-8")
        unfinished.replace(so_far)


def run_part(name: str, *, small: bool) -> dict[str, Any]:
    """One part in this process; its status, and the reason where it is not "passed"."""
    sys.path[:0] = [str(ROOT / "src")]
    try:
        result = PARTS[name](small)
    except Skipped as why:
        return {"status": "skipped", "reason": str(why)}
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-12:]
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}".split("\n")[0], "output": lines}
    finally:
        sys.path.remove(str(ROOT / "src"))
    wrong = result.pop("wrong", None)
    return {"status": "failed", "reason": wrong, "result": result} if wrong else {"status": "passed", "result": result}


# --- What the parts share.


def has_gpu() -> bool:
    """Whether torch can use an NVIDIA GPU."""
    import torch

    return torch.cuda.is_available()


def device() -> Any:
    """Where to compute, set up as a training sets it up."""
    from movelist.learn.device import choose_device, set_up

    chosen = choose_device("auto")
    set_up(chosen)
    return chosen


def some_episodes(num_steps: int) -> tuple[Any, str]:
    """Steps with choices, and where they are from: dou dizhu's recording that is shipped, else made up."""
    import numpy as np

    from movelist.core.benchmark_settings import BenchmarkSettings
    from movelist.measure.benchmark import recorded_steps

    if not RECORDINGS.is_dir():
        return made_up(num_steps), f"made up in dou_dizhu's likeness: there is no folder {RECORDINGS.name}"
    num_episodes = max(1, num_steps // 30)
    episodes = recorded_steps(BenchmarkSettings(data=(RECORDINGS,), num_episodes=num_episodes)).episodes
    return episodes.take(np.arange(min(num_episodes, len(episodes)))), "dou_dizhu, recorded"


def made_up(num_steps: int) -> Any:
    """Steps like dou dizhu's under random play: short lists, a few long ones, and few ids in many lists."""
    import numpy as np

    from movelist.data.episode import Episodes, offsets_of

    rng = np.random.default_rng(0)
    num_episodes, state_size, num_ids = max(1, num_steps // 24), 162, 26_057
    # Fitted by eye to dou_dizhu: median 4, mean 7.9, 785 unique ids among 16,384.
    long_N = (1.4 * rng.pareto(1.2, num_steps)).astype(np.int64)
    count_N = np.minimum(1 + rng.geometric(0.4, num_steps) + long_N, 350)
    ids = np.unique(rng.integers(-(2**63), 2**63, 2 * num_ids, dtype=np.int64))[:num_ids]
    # A list is a run of neighbours in the table of ids: the runs overlap, so that few ids are in many lists.
    start_N = (600 * rng.random(num_steps) ** 2).astype(np.int64)
    offsets = offsets_of(count_N)
    row_A = np.arange(offsets[-1]) + np.repeat(start_N - offsets[:-1], count_N)
    edges = np.linspace(0, num_steps, num_episodes + 1).astype(np.int64)
    return Episodes(
        state_NS=(rng.random((num_steps, state_size)) < 0.1).astype(np.float32),
        player_N=np.arange(num_steps) % 3,
        action_offsets=offsets,
        action_id_A=ids[row_A],
        chosen_N=rng.integers(0, count_N),
        log_prob_N=-np.log(count_N).astype(np.float32),
        reward_N=rng.normal(size=num_steps),
        episode_offsets=edges,
        return_EP=rng.normal(size=(num_episodes, 3)),
        truncated_E=np.zeros(num_episodes, bool),
        controller_EP=np.zeros((num_episodes, 3), np.int8),
        num_turns=num_steps,
    ).check("made-up steps")


def network(episodes: Any, hidden_dim: int, where: Any) -> Any:
    """A network with scores as far apart as after training."""
    import torch

    from movelist.learn.model import ModelShape, PolicyValueNet

    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=episodes.state_NS.shape[1], hidden_dim=hidden_dim)).to(where)
    with torch.no_grad():
        net.pair_weight.mul_(30)
    return net


# --- The parts: each takes whether to do it in small, and returns what it found; "wrong" says what is.


def machine(small: bool) -> dict[str, Any]:
    """What the figures are of."""
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(), "system": platform.platform(), "torch": str(torch.__version__),
        "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
        "optional": {name: importlib.util.find_spec(name) is not None for name in OPTIONAL},
        "compiler": shutil.which("cl") or shutil.which("g++") or shutil.which("clang++"),
    }  # fmt: skip
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": card.name, "capability": f"{card.major}.{card.minor}", "memory_gib": card.total_memory / 2**30,
            "multiprocessors": card.multi_processor_count,
        }  # fmt: skip
    return facts


def waits(small: bool) -> dict[str, Any]:
    """An update in four settings; on a GPU, CUDA raises at a wait that is not counted."""
    from dataclasses import replace

    from movelist.core.settings import UpdateSettings
    from movelist.learn.learner import Learner
    from movelist.learn.parallel import World
    from movelist.measure.waits import count_waits

    where, (episodes, source) = device(), some_episodes(60 if small else 3_000)
    plain = UpdateSettings(batch_size=32 if small else 512, epochs_per_update=2)
    settings = {
        "plain": (plain, 2),
        "accumulated": (replace(plain, gradient_accumulation_steps=3), 2),
        "target_kl": (replace(plain, target_kl=1e9), 4),
        "mixed precision": (replace(plain, use_amp=True), 2),
    }
    found: dict[str, Any] = {"data": source}
    for name, (chosen, expected) in settings.items():
        learner = Learner(network(episodes, 16 if small else 128, where), chosen, World(where))
        learner.update(learner.prepare(episodes))
        with count_waits(refuse_others=True) as seen:
            learner.update(learner.prepare(episodes))
        found[name] = {"waits": [str(wait) for wait in seen.found], "expected": expected, "unseen": seen.unseen}
        if seen.total != expected:
            found["wrong"] = f"{name}: {seen.total} waits, expected {expected}"
    return found


def tests(small: bool) -> dict[str, Any]:
    """The wait detector's and the update's own tests, which choose the GPU by themselves."""
    paths = ["tests/measure/test_waits.py", "tests/learn/test_no_waits.py"]
    return run_pytest([paths[0], "-k", "lines_and_counts"] if small else paths, SECONDS["tests"] - SPARE_SECONDS)


def kernels(small: bool) -> dict[str, Any]:
    """The tests of everything that has a GPU form; of the pair, those of its kernels run on the GPU."""
    found = sorted((ROOT / "tests" / "learn").glob("test_pair*.py")) + sorted(ROOT.glob("tests/learn/test_compile*.py"))
    if not found:
        raise Skipped("this clone has no tests/learn/test_pair*.py")
    paths = [path.relative_to(ROOT).as_posix() for path in found]
    return run_pytest([*paths, "--collect-only"] if small else paths, SECONDS["kernels"] - SPARE_SECONDS)


def run_pytest(arguments: list[str], seconds: float) -> dict[str, Any]:
    """pytest's last lines, with the reasons of what it skipped."""
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        raise Skipped(f"{' and '.join(missing)} not installed")
    # A limit of its own: when this process is ended, pytest would run on and disturb the parts that are timed.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=seconds,
    )  # fmt: skip
    found: dict[str, Any] = {"command": arguments, "lines": done.stdout.splitlines()[-40:]}
    if done.returncode:
        found |= {"wrong": f"pytest ended with {done.returncode}", "stderr": done.stderr[-1000:]}
    return found


def precision(small: bool) -> dict[str, Any]:
    """Largest differences from float64 on a CPU, in each way that the device has: of a log-prob, and of a tensor's
    gradient, relative in length."""
    import copy

    import torch

    from movelist.learn.device import amp_dtype, triton_missing

    where, (episodes, source) = device(), some_episodes(60 if small else 2_000)
    net = network(episodes, 16 if small else 512, where)
    log_probs, gradients = answer(copy.deepcopy(net).double(), episodes, torch.device("cpu"))
    missing = {"float32": False, "Triton": triton_missing(where), "TF32": where.type != "cuda",
               "mixed": amp_dtype(where) is None}  # fmt: skip
    found: dict[str, Any] = {"data": source, "largest_log_prob": float(log_probs.abs().max())}
    found |= {"differences": dict.fromkeys(missing), "gradient_differences": dict.fromkeys(missing)}
    before = torch.get_float32_matmul_precision()
    for name in [name for name, reason in missing.items() if not reason]:
        torch.set_float32_matmul_precision("high" if name in ("TF32", "mixed") else "highest")
        said, slopes = answer(net, episodes, where, amp=name == "mixed", ordered=name == "Triton")
        found["differences"][name] = float((said - log_probs).abs().max())
        found["gradient_differences"][name] = max(
            float((slope - exact).norm() / exact.norm()) for slope, exact in zip(slopes, gradients, strict=True)
        )
    torch.set_float32_matmul_precision(before)
    # Gradients are a mean of many that cancel, and jump where a relu's input is within rounding of 0: 7e-4 on a CPU.
    wrong = [
        f"{name} differs from float64 by {difference:.1e} in {kind}, more than {bound:.0e}"
        for kind, bound in (("differences", 1e-4), ("gradient_differences", 1e-2))
        for name, difference in found[kind].items()
        if name in ("float32", "Triton") and difference is not None and not difference <= bound
    ]
    return found | ({"wrong": "; ".join(wrong)} if wrong else {})


def answer(net: Any, episodes: Any, where: Any, *, amp: bool = False, ordered: bool = False) -> tuple[Any, list[Any]]:
    """Log-probs of all legal actions, and the policy's gradients of the mean log-prob of the chosen ones, in float64.
    `ordered` computes the pair with the Triton kernels."""
    import numpy as np

    from movelist.core import ragged
    from movelist.learn.batch import Rollout, plan_batches
    from movelist.learn.device import autocast

    net = net.to(where)
    rollout = Rollout(episodes, net.encode_ids, where)
    batch = plan_batches(rollout, [np.arange(rollout.num_steps)], {}, ordered=ordered)[0][0]
    state, encoded = rollout.state_NS.index_select(0, batch.step_B), rollout.encoded_R.index_select(0, batch.row_U)
    net.zero_grad(set_to_none=True)
    with autocast(where, amp):
        score, _ = net(state, encoded, batch.segments.step_A, batch.unique_A, batch.order)
    log_prob = ragged.log_softmax(score, batch.segments)
    log_prob.index_select(0, batch.chosen_B).mean().backward()
    gradients = [weight.grad for weight in net.parameters() if weight.grad is not None]
    return log_prob.detach().double().cpu(), [gradient.double().cpu() for gradient in gradients]


def ladder(small: bool) -> dict[str, Any]:
    """The benchmark, on whatever steps there are."""
    from movelist.measure.benchmark import Report
    from movelist.measure.benchmark import machine as facts
    from movelist.measure.ladder import Result, climb

    where, (episodes, source) = device(), some_episodes(100 if small else 6_000)
    hidden_dim, sizes = (16, (8,)) if small else (512, (256, 2_048))
    net = network(episodes, hidden_dim, where)
    result = Result()
    for size in sizes:
        more = climb(
            net, episodes, batch_sizes=(size,), repetitions=1 if small else 3, num_actions=300 if small else 26_057
        )
        result.rows += more.rows
        result.matmul_rates += more.matmul_rates
        result.plan_seconds |= more.plan_seconds
        result.gather_seconds |= more.gather_seconds
        result.transfer = more.transfer
        report = Report({"game": source, "hidden_dim": hidden_dim}, facts(where), result)
        found: dict[str, Any] = {"data": source, **report.to_json()}
        keep(found)
    if not report.good:
        found["wrong"] = "some ways disagree: " + ", ".join(row.name for row in result.rows if not row.good)
    return found


def training(small: bool) -> dict[str, Any]:
    """Updates as in training, timed, and one more of them under torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from movelist.core.settings import UpdateSettings
    from movelist.learn.learner import Learner
    from movelist.learn.parallel import World
    from movelist.measure.clock import clock

    where, (episodes, source) = device(), some_episodes(60 if small else 12_000)
    settings = UpdateSettings(batch_size=16 if small else 1024, epochs_per_update=1 if small else 4)
    learner = Learner(network(episodes, 16 if small else 512, where), settings, World(where))
    learner.update(learner.prepare(episodes))  # warm up
    prepared = learner.prepare(episodes)
    seconds = {
        "prepare": [clock(lambda: learner.prepare(episodes), where) for _ in range(3)],
        "update": [clock(lambda: learner.update(prepared), where) for _ in range(3)],
    }
    on_gpu = where.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
        profiled_seconds = clock(lambda: learner.update(prepared), where)
    events = recorded.key_averages()
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    costs = sorted(((getattr(event, name), event.key, event.count) for event in events), reverse=True)
    busy = sum(cost for cost, *_ in costs) / 1e6
    found: dict[str, Any] = {
        "data": source,
        "steps": episodes.num_steps,
        "legal_actions": episodes.num_actions,
        "seconds": seconds,
        "update_steps_per_second_and_epoch": (
            episodes.num_steps * settings.epochs_per_update / sorted(seconds["update"])[1]
        ),
        "profiled_update": {"seconds": profiled_seconds, "busy_seconds": busy, "busy_share": busy / profiled_seconds},
        "costs": [{"what": key, "seconds": cost / 1e6, "count": count} for cost, key, count in costs[:25]],
    }
    if on_gpu:
        found["peak_memory_gib"] = torch.cuda.max_memory_allocated(where) / 2**30
    return found


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "machine": machine,
    "waits": waits,
    "tests": tests,
    "kernels": kernels,
    "precision": precision,
    "ladder": ladder,
    "training": training,
}

if __name__ == "__main__":
    sys.exit(main())
