"""From findings to settings: rules that each look at one thing, and what trials said about their advice.

Each rule is a small function: a profile in, one piece of advice or None out. Its threshold is a named number with its
reason. A rule that was tried and did not help is not given; one that was not tried says so (`ratio` is None).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from movelist.measure import verdict
from movelist.measure.findings import Advice, Profile, Trial

# Loading that a thread should have hidden. Below a tenth nobody notices.
LOADING_TO_MEND = 0.1
# Playing this share of the time with so few states in a network call: the calls cost nearly the same with ten times as
# many.
PLAYING_TO_MEND, FEW_STATES = 0.3, 64
GAMES_AT_ONCE, GAMES_AT_ONCE_GPU = 256, 1024
GAME_ITSELF = 0.3  # of the time inside the game's own code: more games at once do not make that faster, processes do
MOST_WORKERS = 60  # as the setting allows: Windows waits for 63 things at once
ENOUGH_EPISODES = 256  # the default of --update_frequency
# The largest batch that is proposed. On a CPU 1,024 is the default: larger ones are somewhat faster and learn less from
# the same games. A GPU is not full before some thousand steps.
LARGEST_BATCH, LARGEST_BATCH_GPU = 1024, 4096
AMP_WORTH = 0.3  # of the device's time in the towers' products, which is what mixed precision makes faster
NARROW = 64  # on a CPU torch.compile gained a tenth at this width and nothing above, with one thread (docs/LOG.md)
WIDE = 256  # from here on a layer's product is large enough to be shared among cores
THREADS_WASTED = 0.1  # of the matrix product rate: several threads mostly wait for each other
CUT = 0.75  # of the batch asked for: below it --max_actions_per_minibatch cuts batches
LOGGING_TO_MEND, SAVE_EVERY = 0.05, 10  # the default
CACHE_EVERY = 10  # updates: giving back costs a wait and all that is then asked for again
PRODUCTS = ("forward", "backward")

Rule = Callable[[Profile], Advice | None]


def advise(profile: Profile) -> list[Advice]:
    """Settings to change, those that were tried first, the most useful of them on top.

    Args:
        profile: With its trials; its own `advice` is not read.

    Returns:
        At most one piece of advice for each flag.
    """
    found = [advice for rule in RULES if (advice := rule(profile)) and not _is_so(profile, advice)]
    judged = [said for advice in found if (said := _judged(advice, profile.trials))]
    known = [advice.changes for advice in found]
    judged += [_tried(trial) for trial in _further(profile) if trial.changes not in known]
    given: list[Advice] = []
    for advice in sorted(judged, key=lambda advice: -(advice.ratio or 0.0)):  # stable: the rest in the rules' order
        if not any(set(advice.changes) & set(other.changes) for other in given):
            given.append(advice)
    return given


def _is_so(profile: Profile, advice: Advice) -> bool:
    return all(profile.settings.get(flag) == value for flag, value in advice.changes.items())


def _judged(advice: Advice, trials: list[Trial]) -> Advice | None:
    """What trials of this very change said: the advice with its ratio, or None if it did not help.

    What was tried only together with others says so, if that did not help; if it did, it is advice by itself.
    """
    same = [trial for trial in trials if trial.changes == advice.changes]
    if not same:
        return _judged_together(advice, trials)
    best = _what_counts(same)
    if not best.helped:
        return None
    return replace(advice, ratio=best.ratio, numbers={**advice.numbers, **_on_top(best)})


def _judged_together(advice: Advice, trials: list[Trial]) -> Advice | None:
    """The same of a change that was tried only as a part of larger ones."""
    larger = [trial for trial in trials if advice.changes.items() < {**trial.against, **trial.changes}.items()]
    if not larger:
        return advice
    last = larger[-1]
    if last.helped:
        return None
    others = {name: value for name, value in {**last.against, **last.changes}.items() if name not in advice.changes}
    return replace(advice, numbers={**advice.numbers, "together": last.ratio, "others": " ".join(flag_texts(others))})


def _what_counts(same: list[Trial]) -> Trial:
    """Of several trials of one change: the last one alone, or the last one on top of others if only that helped."""
    alone = [trial for trial in same if not trial.against]
    on_top = [trial for trial in same if trial.against and trial.helped]
    if alone and (alone[-1].helped or not on_top):
        return alone[-1]
    return on_top[-1] if on_top else same[-1]


def _on_top(trial: Trial) -> dict[str, float | str]:
    return {"on_top": " ".join(flag_texts(trial.against))} if trial.against else {}


def _further(profile: Profile) -> list[Trial]:
    """For each change that was tried and helped, the trial that counts; all that --tune kept is shown by itself."""
    counting = []
    for number, trial in enumerate(profile.trials):
        same = [other for other in profile.trials if other.changes == trial.changes]
        is_first = all(other.changes != trial.changes for other in profile.trials[:number])
        is_proof = trial.changes == profile.tuned and len(trial.changes) > 1 and len(same) == 1
        if is_first and not is_proof and _what_counts(same).helped:
            counting.append(_what_counts(same))
    return counting


def _tried(trial: Trial) -> Advice:
    """A change that helped is advice, whether a rule thought of it or not."""
    (flag, value), *more = trial.changes.items()
    return Advice(kind="tried", flag=flag, value=value, numbers=_on_top(trial), ratio=trial.ratio, more=dict(more))


def flag_text(flag: str, value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag.replace('_', '-')}"
    return f"--{flag} {value}"


def flag_texts(changes: Mapping[str, Any]) -> list[str]:
    """Several of them."""
    return [flag_text(flag, value) for flag, value in changes.items()]


def _power_of_two(number: float) -> int:
    """The largest power of two that is not larger."""
    return 1 << max(0, int(number).bit_length() - 1)


# --- Collecting


def loading(profile: Profile) -> Advice | None:
    """Episodes are read, checked and credited anew each time: a store has that done once."""
    part = verdict.share(profile, "load")
    if not profile.settings.get("data") or part < LOADING_TO_MEND:
        return None
    return Advice(kind="loading", flag="data", value="store", numbers={"share": part})


def _is_slow_to_play(profile: Profile) -> bool:
    part = verdict.rollout_share(profile) - verdict.share(profile, "load")
    return part >= PLAYING_TO_MEND and 0 < profile.shapes.states_in_call < FEW_STATES


def _games_at_once(profile: Profile) -> int:
    return GAMES_AT_ONCE_GPU if verdict.has_gpu(profile) else GAMES_AT_ONCE


def few_games(profile: Profile) -> Advice | None:
    """More games at once put more states into each network call; an update has to ask for as many."""
    settings, goal = profile.settings, _games_at_once(profile)
    if not _is_slow_to_play(profile) or settings["num_games"] >= goal:
        return None
    more = {"update_frequency": goal} if settings["update_frequency"] < goal else {}
    return Advice(kind="few_games", flag="num_games", value=goal, numbers=_calls(profile), more=more)


def small_calls(profile: Profile) -> Advice | None:
    """No more games than --update_frequency run at once, so it bounds the network calls, too."""
    settings, goal = profile.settings, _games_at_once(profile)
    if not _is_slow_to_play(profile) or settings["update_frequency"] >= goal or settings["num_games"] < goal:
        return None
    return Advice(kind="small_calls", flag="update_frequency", value=goal, numbers=_calls(profile))


def _calls(profile: Profile) -> dict[str, float | str]:
    return {"states": profile.shapes.states_in_call, "share": verdict.rollout_share(profile)}


def slow_game(profile: Profile) -> Advice | None:
    """The game's own code on one core is the limit; other cores are free to play."""
    part, settings = verdict.share(profile, "game"), profile.settings
    if settings["rollout_workers"] > 1 or part < GAME_ITSELF:
        return None
    free = min(profile.machine.cores - 1, MOST_WORKERS, settings["num_games"], settings["update_frequency"])
    if free < 2:
        return None
    numbers: dict[str, float | str] = {"share": part, "cores": profile.machine.cores}
    return Advice(kind="slow_game", flag="rollout_workers", value=free, numbers=numbers)


# --- What an update is made of


def few_episodes(profile: Profile) -> Advice | None:
    """So few episodes make a noisy gradient, and small network calls."""
    episodes = verdict.episodes_per_update(profile)
    if episodes >= verdict.FEW_EPISODES or profile.settings["update_frequency"] >= ENOUGH_EPISODES:
        return None
    return Advice(
        kind="few_episodes", flag="update_frequency", value=ENOUGH_EPISODES, numbers={"episodes": episodes}
    )  # fmt: skip


def few_minibatches(profile: Profile) -> Advice | None:
    """Under four optimiser steps an epoch are few for the games played; more episodes make more of them."""
    count = verdict.minibatches(profile)
    if count >= verdict.FEW_MINIBATCHES:
        return None
    value = profile.settings["update_frequency"] * -(-verdict.FEW_MINIBATCHES // count)
    return Advice(kind="few_minibatches", flag="update_frequency", value=value, numbers={"count": count})


def small_batch(profile: Profile) -> Advice | None:
    """Operations too small for the device; only where the update is the limit, and four minibatches are left."""
    if verdict.limit(profile).kind not in ("small", "feeding"):
        return None
    largest = LARGEST_BATCH_GPU if verdict.has_gpu(profile) else LARGEST_BATCH
    fitting = _power_of_two(verdict.steps_per_update(profile) / verdict.FEW_MINIBATCHES)
    value, batch = min(largest, fitting), profile.settings["batch_size"]
    if value < 2 * batch:
        return None
    numbers: dict[str, float | str] = {"batch": batch, "efficiency": profile.compute.efficiency}
    return Advice(kind="small_batch", flag="batch_size", value=value, numbers=numbers)


def cut_batches(profile: Profile) -> Advice | None:
    """Long lists fill --max_actions_per_minibatch before the batch has its steps."""
    settings, shapes = profile.settings, profile.shapes
    wanted = min(settings["batch_size"], verdict.steps_per_update(profile))
    largest = settings["max_actions_per_minibatch"]
    is_full = shapes.steps_in_batch * shapes.mean >= largest / 2
    if not is_full or shapes.steps_in_batch >= CUT * wanted:
        return None
    value = 2 * _power_of_two(wanted * shapes.mean)
    numbers: dict[str, float | str] = {"steps": shapes.steps_in_batch, "wanted": wanted}
    return Advice(kind="cut_batches", flag="max_actions_per_minibatch", value=value, numbers=numbers)


# --- The device


def no_amp(profile: Profile) -> Advice | None:
    """Products in 16 bits where the device has units for them and is busy with products."""
    if profile.settings["use_amp"] or not verdict.amp_pays(profile) or verdict.gpu_is_idle(profile):
        return None
    part = _products(profile)
    if part < AMP_WORTH:
        return None
    numbers: dict[str, float | str] = {"dtype": profile.machine.amp or "", "share": part}
    return Advice(kind="no_amp", flag="use_amp", value=True, numbers=numbers)


def _products(profile: Profile) -> float:
    """Share of the device's time in the spans with the towers' products; without a GPU the host is the device."""
    if not verdict.has_gpu(profile):
        return verdict.share(profile, *PRODUCTS)
    device = sum(span.device_seconds or 0.0 for span in profile.spans)
    products = sum(span.device_seconds or 0.0 for span in profile.spans if span.name in PRODUCTS)
    return products / device if device else 0.0


def no_compile(profile: Profile) -> Advice | None:
    """One graph in place of many small operations: where the host cannot feed a GPU, or layers are narrow."""
    if profile.settings["compile"] == "on":
        return None
    if verdict.has_gpu(profile):
        worth = verdict.limit(profile).kind == "feeding"
    else:
        worth = profile.settings["hidden_dim"] <= NARROW and profile.machine.threads == 1
        worth = worth and verdict.limit(profile).kind in ("small", "computing")
    if not worth:
        return None
    kind = "no_compile_gpu" if verdict.has_gpu(profile) else "no_compile_cpu"
    return Advice(kind=kind, flag="compile", value="on", numbers={"hidden": profile.settings["hidden_dim"]})


def too_many_threads(profile: Profile) -> Advice | None:
    """Products too small to share: the threads wait for each other."""
    threads = profile.machine.threads
    if verdict.has_gpu(profile) or threads == 1 or profile.settings["hidden_dim"] >= WIDE:
        return None
    if verdict.limit(profile).kind != "small" or profile.compute.efficiency >= THREADS_WASTED:
        return None
    numbers: dict[str, float | str] = {"threads": threads, "efficiency": profile.compute.efficiency}
    return Advice(kind="too_many_threads", flag="num_threads", value=1, numbers=numbers)


def too_few_threads(profile: Profile) -> Advice | None:
    """Cores that lie idle while wide layers are computed."""
    threads, cores = profile.machine.threads, profile.machine.cores
    if verdict.has_gpu(profile) or threads >= cores or profile.settings["hidden_dim"] < WIDE:
        return None
    if verdict.limit(profile).kind not in ("small", "computing"):
        return None
    numbers: dict[str, float | str] = {"threads": threads, "cores": cores}
    return Advice(kind="too_few_threads", flag="num_threads", value=cores, numbers=numbers)


# --- Memory, and the rest


def tight_memory(profile: Profile) -> Advice | None:
    """The allocator had to give its cache back and ask again: smaller batches, with the same result."""
    if not profile.memory.retries:
        return None
    largest = profile.shapes.steps_in_batch * profile.shapes.mean
    value = _power_of_two(min(largest, profile.settings["max_actions_per_minibatch"]) / 2)
    numbers: dict[str, float | str] = {"count": profile.memory.retries}
    return Advice(kind="tight_memory", flag="max_actions_per_minibatch", value=value, numbers=numbers)


def fragmented(profile: Profile) -> Advice | None:
    """Memory that the allocator keeps in pieces, on a card that has little else left."""
    if not verdict.is_fragmented(profile) or profile.settings["empty_cache_every"]:
        return None
    numbers: dict[str, float | str] = {"share": verdict.fragmentation(profile)}
    return Advice(kind="fragmented", flag="empty_cache_every", value=CACHE_EVERY, numbers=numbers)


def often_saved(profile: Profile) -> Advice | None:
    """A checkpoint every few updates, where updates are short."""
    part, every = (
        verdict.share(profile, "logging"),
        profile.settings["save_every"] or SAVE_EVERY,
    )  # None bounds the cost by itself
    if every >= SAVE_EVERY or part < LOGGING_TO_MEND:
        return None
    return Advice(kind="often_saved", flag="save_every", value=SAVE_EVERY, numbers={"share": part, "every": every})


RULES: tuple[Rule, ...] = (
    loading,
    few_games,
    few_episodes,
    small_calls,
    slow_game,
    few_minibatches,
    tight_memory,
    small_batch,
    cut_batches,
    no_amp,
    no_compile,
    too_many_threads,
    too_few_threads,
    fragmented,
    often_saved,
)
