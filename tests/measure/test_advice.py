"""The rules one by one: a profile that calls for a rule, one that just does not, and what trials say about it."""

import re
from dataclasses import replace

import pytest

from movelist.measure import advice, sentences, texts_en
from movelist.measure.findings import Trial
from profiles import cpu_profile, gpu_profile, spans

PLAYING = {"timing": {"rollout_seconds": 4.0}, "shapes": {"states_in_call": 8.0}}


CASES = [
    ("loading", "data", "store",
     cpu_profile(settings={"data": ["games"]}, shares={"load": 0.1}),
     cpu_profile(settings={"data": ["games"]}, shares={"load": 0.09})),
    ("few_games", "num_games", 256,
     cpu_profile(settings={"num_games": 1}, **PLAYING),
     cpu_profile(settings={"num_games": 1}, timing={"rollout_seconds": 2.9}, shapes={"states_in_call": 8.0})),
    ("few_games", "num_games", 1024,
     gpu_profile(settings={"num_games": 128, "update_frequency": 1024}, **PLAYING),
     gpu_profile(settings={"num_games": 128, "update_frequency": 1024}, timing={"rollout_seconds": 4.0})),
    ("few_episodes", "update_frequency", 256,
     cpu_profile(settings={"update_frequency": 5}, timing={"episodes": 50}),
     cpu_profile(settings={"update_frequency": 32}, timing={"episodes": 320})),
    ("small_calls", "update_frequency", 256,
     cpu_profile(settings={"update_frequency": 64, "num_games": 256}, timing={"rollout_seconds": 4.0,
                 "episodes": 640}, shapes={"states_in_call": 30.0}),
     cpu_profile(settings={"update_frequency": 256, "num_games": 256}, **PLAYING)),
    ("few_minibatches", "update_frequency", 512,
     cpu_profile(timing={"steps": 20_480}),  # 2 minibatches of 1,024
     cpu_profile(timing={"steps": 30_730})),  # 3,073 steps are 4
    ("small_batch", "batch_size", 1024,
     cpu_profile(settings={"batch_size": 16}, compute={"rate": 2e10}),
     cpu_profile(settings={"batch_size": 16}, compute={"rate": 4e10})),
    ("small_batch", "batch_size", 2048,  # 8,192 steps, 4 minibatches
     gpu_profile(hardware={"gpu_busy": 0.3, "gpu_use": 0.4}, settings={"compile": "on"}),
     gpu_profile(hardware={"gpu_busy": 0.6}, settings={"compile": "on"})),
    ("cut_batches", "max_actions_per_minibatch", 16_384,
     cpu_profile(settings={"max_actions_per_minibatch": 2048}, shapes={"steps_in_batch": 200.0}),
     cpu_profile(settings={"max_actions_per_minibatch": 2048}, shapes={"steps_in_batch": 800.0})),
    ("no_amp", "use_amp", True,
     gpu_profile(settings={"use_amp": False}),
     gpu_profile(settings={"use_amp": False}, machine={"amp": None})),
    ("no_compile_cpu", "compile", "on",
     cpu_profile(settings={"hidden_dim": 64}, machine={"threads": 1}),
     cpu_profile(settings={"hidden_dim": 64}, machine={"threads": 2, "cores": 2})),
    ("no_compile_gpu", "compile", "on",
     gpu_profile(hardware={"gpu_busy": 0.3, "gpu_use": 0.4}, settings={"batch_size": 2048}),
     gpu_profile(settings={"batch_size": 2048})),
    ("too_many_threads", "num_threads", 1,
     cpu_profile(settings={"hidden_dim": 128}, compute={"rate": 9e9}),
     cpu_profile(settings={"hidden_dim": 128}, compute={"rate": 1.1e10})),
    ("too_few_threads", "num_threads", 8,
     cpu_profile(machine={"threads": 2}),
     cpu_profile(settings={"hidden_dim": 128}, machine={"threads": 2})),
    ("tight_memory", "max_actions_per_minibatch", 4096,  # half of 1,024 steps x 8 actions
     gpu_profile(memory={"retries": 1}),
     gpu_profile(memory={"retries": 0})),
    ("fragmented", "empty_cache_every", 10,
     gpu_profile(memory={"reserved": 20 << 30, "peak_allocated": 12 << 30}),
     gpu_profile(memory={"reserved": 10 << 30, "peak_allocated": 6 << 30})),
    ("often_saved", "save_every", 10,
     cpu_profile(shares={"logging": 0.05}, settings={"save_every": 1}),
     cpu_profile(shares={"logging": 0.05})),
]  # fmt: skip


def given(profile):
    return {item.flag: item for item in advice.advise(profile)}


def test_a_good_profile_needs_no_advice():
    assert advice.advise(cpu_profile()) == []
    assert advice.advise(gpu_profile()) == []


@pytest.mark.parametrize(("kind", "flag", "value", "profile", "not_quite"), CASES, ids=[case[0] for case in CASES])
def test_each_rule_speaks_where_it_should_and_only_there(kind, flag, value, profile, not_quite):
    found = given(profile)
    assert set(found) == {flag}
    assert (found[flag].kind, found[flag].value, found[flag].ratio) == (kind, value, None)
    assert given(not_quite) == {}
    for lang in ("en", "zh"):  # the sentence finds its numbers
        assert re.search(r"\d", sentences.advice_reason(found[flag], lang)) or kind == "no_compile_gpu"


def test_every_kind_of_advice_has_its_example():
    assert {case[0] for case in CASES} | {"slow_game", "tried"} == set(texts_en.ADVICE)


def test_a_slow_game_asks_for_workers():
    slow = cpu_profile(shares={"game": 0.5}, timing={"rollout_seconds": 6.0})
    found = given(slow)["rollout_workers"]
    assert (found.kind, found.value) == ("slow_game", 7)
    few = cpu_profile(shares={"game": 0.5}, timing={"rollout_seconds": 6.0}, settings={"num_games": 4})
    assert given(few)["rollout_workers"].value == 4  # each needs a game of its own
    slow.settings["rollout_workers"] = 4
    assert given(slow) == {}


@pytest.mark.parametrize(
    "limit", [{"shares": {"load": 0.4}, "settings": {"batch_size": 16, "data": ["x"]}},
              {"timing": {"rollout_seconds": 6.0}, "settings": {"batch_size": 16}}],
    ids=["loading", "playing"],
)  # fmt: skip
def test_batch_size_is_not_blamed_where_collecting_or_loading_is_the_limit(limit):
    assert "batch_size" not in given(cpu_profile(compute={"rate": 1e9}, **limit))
    assert "batch_size" in given(cpu_profile(compute={"rate": 1e9}, settings={"batch_size": 16}))


def test_the_deliberately_slow_setting_is_told_to_play_more_games_at_once():
    found = given(cpu_profile(settings={"batch_size": 16, "num_games": 1}, timing={"rollout_seconds": 6.0},
                              shapes={"states_in_call": 1.0}))  # fmt: skip
    assert found["num_games"].value == 256


def test_mixed_precision_is_advised_on_a_processor_that_multiplies_bfloat16_if_layers_are_wide():
    found = given(cpu_profile(machine={"amp": "bfloat16"}))["use_amp"]
    assert (found.kind, found.value, found.numbers["share"]) == ("no_amp", True, pytest.approx(0.75))
    assert given(cpu_profile(machine={"amp": "bfloat16"}, settings={"hidden_dim": 128})) == {}


def test_mixed_precision_is_no_advice_without_work_for_it():
    lazy = gpu_profile(settings={"use_amp": False, "batch_size": 2048, "compile": "on"}, hardware={"gpu_busy": 0.2,
                       "gpu_use": 0.2})  # fmt: skip
    assert given(lazy) == {}
    few_products = spans({"game": 0.0, "plan": 0.0, "load": 0.0, "copy": 0.0, "loss": 0.8, "backward": 0.1,
                          "optimiser": 0.0, "logging": 0.0, "idle": 0.0}, device=0.9)  # fmt: skip
    assert given(gpu_profile(settings={"use_amp": False}, spans=few_products)) == {}


def trial(changes, ratio, spread=0.05):
    return Trial(
        changes=changes, steps_per_second=1.0, ratio=ratio, ratio_low=ratio - spread, ratio_high=ratio + spread, runs=3
    )


def slow(*trials):
    return cpu_profile(settings={"batch_size": 16}, compute={"rate": 2e10}, trials=list(trials))


def test_advice_that_was_tried_and_helped_says_how_much():
    (found,) = advice.advise(slow(trial({"batch_size": 1024}, 3.0)))
    assert (found.kind, found.value, found.ratio) == ("small_batch", 1024, 3.0)


def test_advice_that_was_tried_and_did_not_help_is_not_given():
    assert advice.advise(slow(trial({"batch_size": 1024}, 1.04))) == []  # 0.99 to 1.09
    assert advice.advise(slow(trial({"batch_size": 1024}, 0.7))) == []


def test_the_last_trial_of_a_change_counts():
    assert advice.advise(slow(trial({"batch_size": 1024}, 3.0), trial({"batch_size": 1024}, 0.9))) == []
    assert advice.advise(slow(trial({"batch_size": 1024}, 0.9), trial({"batch_size": 1024}, 3.0)))[0].ratio == 3.0


def test_a_value_that_was_tried_and_helped_replaces_one_that_was_not():
    (found,) = advice.advise(slow(trial({"batch_size": 512}, 2.0)))
    assert (found.kind, found.flag, found.value, found.ratio) == ("tried", "batch_size", 512, 2.0)


def test_the_better_of_two_tried_values_stays():
    (found,) = advice.advise(slow(trial({"batch_size": 512}, 2.0), trial({"batch_size": 256}, 1.5)))
    assert (found.value, found.ratio) == (512, 2.0)


def test_a_change_of_several_settings_that_helped_is_one_piece_of_advice():
    (found,) = advice.advise(slow(trial({"batch_size": 1024, "num_games": 512}, 5.0)))
    assert (found.kind, found.changes, found.ratio) == ("tried", {"batch_size": 1024, "num_games": 512}, 5.0)
    (found,) = advice.advise(slow(trial({"batch_size": 1024, "num_games": 512}, 0.5)))
    assert (found.kind, found.changes, found.ratio) == ("small_batch", {"batch_size": 1024}, None)


def test_more_games_come_with_an_update_that_asks_for_them():
    playing = {"timing": {"rollout_seconds": 6.0, "episodes": 160}, "shapes": {"states_in_call": 1.0}}
    together = {"num_games": 256, "update_frequency": 256}
    (found,) = advice.advise(cpu_profile(settings={"num_games": 1, "update_frequency": 16}, **playing))
    assert (found.kind, found.changes, found.ratio) == ("few_games", together, None)
    tried = cpu_profile(settings={"num_games": 1, "update_frequency": 16}, trials=[trial(together, 7.0)], **playing)
    (found,) = advice.advise(tried)
    assert (found.kind, found.changes, found.ratio) == ("few_games", together, 7.0)


def on_top(changes, ratio, **against):
    return replace(trial(changes, ratio), against=against)


def test_what_helped_only_on_top_of_another_change_says_so():
    trials = [trial({"batch_size": 1024}, 1.0), on_top({"batch_size": 1024}, 1.6, num_games=256, use_amp=True)]
    (found,) = advice.advise(slow(*trials))
    assert (found.kind, found.value, found.ratio) == ("small_batch", 1024, 1.6)
    assert found.numbers["on_top"] == "--num_games 256 --use_amp"


def test_what_helped_alone_is_quoted_alone():
    trials = [trial({"batch_size": 1024}, 1.5), on_top({"batch_size": 1024}, 2.6, num_games=256)]
    (found,) = advice.advise(slow(*trials))
    assert (found.ratio, "on_top" in found.numbers) == (1.5, False)


def test_all_that_tune_kept_is_no_further_suggestion():
    kept = {"batch_size": 1024, "num_threads": 4}
    profile = slow(trial({"batch_size": 1024}, 2.0), trial({"num_threads": 4}, 1.2), trial(kept, 2.4))
    assert [item.changes for item in advice.advise(replace(profile, tuned=kept))] == [
        {"batch_size": 1024},
        {"num_threads": 4},
    ]


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [("batch_size", 64, "--batch_size 64"), ("use_amp", True, "--use_amp"), ("tensorboard", False, "--no-tensorboard"),
     ("normalize_advantage", False, "--no-normalize-advantage")],
)  # fmt: skip
def test_settings_are_written_as_they_are_typed(flag, value, text):
    assert advice.flag_text(flag, value) == text


def test_what_no_rule_thought_of_and_helped_is_advice():
    (found,) = advice.advise(cpu_profile(trials=[trial({"num_threads": 4}, 1.3), trial({"compile": "on"}, 1.0)]))
    assert (found.kind, found.flag, found.value, found.ratio) == ("tried", "num_threads", 4, 1.3)


def test_tried_advice_comes_first_the_best_of_it_on_top():
    profile = cpu_profile(
        settings={"batch_size": 16, "hidden_dim": 64}, compute={"rate": 2e10}, machine={"threads": 1},
        trials=[trial({"num_games": 512}, 1.2), trial({"compile": "on"}, 1.5)],
    )  # fmt: skip
    assert [item.flag for item in advice.advise(profile)] == ["compile", "num_games", "batch_size"]


def test_a_change_that_was_tried_only_with_others_is_not_called_untried():
    (found,) = advice.advise(slow(trial({"batch_size": 1024, "num_games": 512}, 0.5)))
    assert sentences.advice_tried(found, "en") == "tried only together with --num_games 512: 0.50 times as fast"
    assert "--num_games 512" in sentences.advice_tried(found, "zh")
    (found,) = advice.advise(slow())
    assert sentences.advice_tried(found, "en").startswith("not tried")
