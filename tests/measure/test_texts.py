"""What is said in both languages: complete, alike in their numbers, in gbk, and in the right order."""

import re
import string
from dataclasses import replace

import pytest

from movelist.core.errors import SettingsError
from movelist.measure import advice, sentences, texts_en, texts_zh, verdict, waits
from movelist.measure.compare import compare
from movelist.measure.findings import SPANS, Advice, Trial
from movelist.measure.texts import comparison_lines, lines
from movelist.measure.wait_kinds import ASKS, READS, SYNCHRONISE
from profiles import cpu_profile, gpu_profile, wait

DICTS = [name for name in vars(texts_en) if name.isupper() and name != "DETECTOR"]
LANGUAGES = ("en", "zh")
# What the detector says that is no Python, from its modules.
SPOKEN = [
    *READS.values(), *ASKS.values(), *(kind for _, _, kind in SYNCHRONISE), *waits.LIMITS,
    "not seen: 2 other threads ran or were started inside the block",
    "a blocking copy to the device", "a blocking copy to the host", "a blocking copy inside another function",
    "an index that the host holds", "a boolean index", "repeat_interleave without output_size",
    "segment_reduce without unsafe=True",
    "Adam without fused=True: it cannot skip a step without asking the device",
]  # fmt: skip
PLAIN = re.compile(r"[\w.]+(\(.*\))?|x in tensor")  # a name, or a call: the same in every language


def test_both_languages_have_the_same_texts():
    assert [name for name in vars(texts_zh) if name.isupper() and name != "DETECTOR"] == DICTS
    for name in DICTS:
        assert set(getattr(texts_en, name)) == set(getattr(texts_zh, name)), name


def test_both_languages_quote_the_same_numbers_in_the_same_form():
    def numbers(text):
        return sorted((field, form) for _, field, form, _ in string.Formatter().parse(text) if field)

    for name in DICTS:
        for key, text in getattr(texts_en, name).items():
            assert numbers(text) == numbers(getattr(texts_zh, name)[key]), f"{name}[{key!r}]"


def test_every_span_goal_and_figure_has_its_words():
    for texts in (texts_en, texts_zh):
        assert set(texts.SPANS) == set(SPANS)
        goals = {row.kind for row in verdict.criteria(cpu_profile())}
        assert goals == set(texts.CRITERIA) == set(texts.GOALS) == set(texts.TO_DO) == set(texts.ABSENT)
        figures = {row.name for row in compare(gpu_profile(), gpu_profile()).rows}
        assert figures == set(texts.FIGURES)


@pytest.mark.parametrize("text", SPOKEN)
def test_all_that_the_detector_says_is_said_in_chinese(text):
    said = sentences.detector_text(text, "zh")
    assert re.search("[\u4e00-\u9fff]", said) or PLAIN.fullmatch(text), said
    assert "not seen" not in said
    assert sentences.detector_text(text, "en") == text.removeprefix("not seen: ")


def test_numbers_of_the_detector_are_kept():
    assert sentences.detector_text("not seen: 12 other threads ran or were started inside the block", "zh") == (
        "期间运行或启动的另外 12 个线程"
    )
    assert sentences.detector_text("something new", "zh") == "something new"


def test_every_text_can_be_written_in_gbk():
    for texts in (texts_en, texts_zh):
        for name in [*DICTS, "DETECTOR"]:
            for key, text in getattr(texts, name).items():
                assert text.encode("gbk").decode("gbk") == text, (name, key)


# Profiles that bring as many of the texts as can be to the screen.
TRIALS = [
    Trial(changes={"batch_size": 2048}, steps_per_second=11_469.0, ratio=1.4, ratio_low=1.3, ratio_high=1.5, runs=3),
    Trial(changes={"compile": "on"}, steps_per_second=8_192.0, ratio=1.0, ratio_low=0.9, ratio_high=1.1, runs=3),
    Trial(changes={"use_amp": False}, steps_per_second=4_096.0, ratio=0.5, ratio_low=0.4, ratio_high=0.6, runs=3),
]


def full_profile():
    profile = gpu_profile(
        settings={"update_frequency": 5},
        timing={"episodes": 50},
        hardware={"gpu_use": 1.0, "gpu_busy": 0.1},
        copies={"share": 0.2, "pageable": 3},
        waits={"places": [wait("D:\\游戏\\train [bold].py", 12, ".item()", count=64.0)], "unseen": list(waits.LIMITS)},
        shapes={"recompiles": 7},
        memory={"retries": 1},
        trials=TRIALS,
        tuned={"batch_size": 2048},
    )
    return replace(profile, advice=advice.advise(profile))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("make", [cpu_profile, gpu_profile, full_profile])
def test_the_whole_report_can_be_written_in_gbk(make, lang):
    said = lines(make(), lang)
    assert "\n".join(said).encode("gbk")
    assert not [line for line in said if "{" in line or line != line.rstrip() or "\n" in line]


def test_it_opens_with_the_block_in_its_order():
    said = lines(full_profile(), "en")
    assert said[0] == "Total: 10 s, 5 episodes/s"
    assert said[1] == "GPU memory: 6.00 of 24.00 GB allocated (25%)"
    assert said[2] == "Warnings:"
    places = [said.index("Suggestions:"), said.index("")]
    assert said[3].startswith("  ! The driver says that the GPU is 100% used, but it computes for 10% of the time")
    assert all(line.startswith("  ! ") for line in said[3 : places[0]])
    numbered = said[places[0] + 1 : places[1]]
    assert numbered[0].startswith("  1. --batch_size 2048: ")
    assert numbered[0].endswith(" (tried: 1.40 times as fast)")
    assert numbered[1].startswith("  2. --update_frequency 256: so few episodes for an update (5) make a noisy")
    assert numbered[-1] == "  Together: --batch_size 2048"  # its trial was not the last one
    assert [line[:4] for line in numbered[:-1]] == [f"  {number}." for number in range(1, len(numbered))]


def test_suggestions_have_flag_value_reason_and_what_a_trial_said():
    profile = gpu_profile(
        advice=[
            Advice(kind="tried", flag="batch_size", value=2048, ratio=1.4),
            Advice(kind="no_amp", flag="use_amp", value=True, numbers={"dtype": "bfloat16", "share": 0.5}),
            Advice(
                kind="few_games",
                flag="num_games",
                value=256,
                numbers={"states": 3.2, "share": 0.5},
                more={"update_frequency": 256},
            ),
            Advice(kind="tried", flag="tensorboard", value=False, numbers={"on_top": "--use_amp"}, ratio=1.07),
        ],
    )
    said = lines(profile, "en")
    start = said.index("Suggestions:")
    assert said[start + 1] == "  1. --batch_size 2048: found by trying (tried: 1.40 times as fast)"
    assert said[start + 2] == (
        "  2. --use_amp: 50% of the device's time is in the network's towers, which this device computes faster in "
        "bfloat16 (not tried; movelist profile --tune tries it)"
    )
    assert said[start + 3].startswith("  3. --num_games 256 --update_frequency 256: a network call answers 3 states")
    assert said[start + 4] == (
        "  4. --no-tensorboard: found by trying (tried: 1.07 times as fast, on top of --use_amp)"
    )


def test_a_store_is_advised_as_the_commands_that_make_it():
    profile = cpu_profile(settings={"data": ["my games", "b.jsonl"]}, shares={"load": 0.4})
    profile = replace(profile, advice=advice.advise(profile))
    line = next(line for line in lines(profile, "en") if line.startswith("  1. "))
    assert line.startswith('  1. movelist convert "my games" b.jsonl --out store, then --data store: ')
    assert line.endswith(" (not tried)")  # --tune converts nothing
    assert "训练在等数据：40% 的时间花在读取对局上" in "\n".join(lines(profile, "zh"))


@pytest.mark.parametrize(("lang", "words"), [("en", "no gpu"), ("zh", "没有 gpu")])
def test_that_there_is_no_gpu_is_said_once(lang, words):
    said = "\n".join(lines(cpu_profile(), lang)).lower()
    assert said.count(words) == 1
    assert "no gpu" not in "\n".join(lines(gpu_profile(), lang)).lower()


def test_spans_are_shown_with_share_seconds_and_bar():
    said = lines(cpu_profile(), "en")
    assert "  the game's own code    10.0%        1 s  ##" in said
    assert "  游戏自身的代码  10.0%        1 秒  ##" in lines(cpu_profile(), "zh")
    assert "  the game's own code    10.0%        1 s     0.90 s  ##" in lines(gpu_profile(), "en")


def test_waits_are_shown_with_their_line_and_what_cannot_be_seen():
    said = lines(full_profile(), "en")
    assert "  D:\\游戏\\train [bold].py:12  .item()  64  not needed  | total = loss.tolist()" in said
    assert "  waits inside C++ extensions, compiled graphs, CUDA libraries and the memory allocator" in said


def test_what_both_sides_of_a_trial_had_is_said():
    trials = [replace(TRIALS[0], against={"use_amp": True})]
    said = lines(gpu_profile(trials=trials), "en")
    assert "  --batch_size 2048 on top of --use_amp: 1.40 times (1.30 to 1.50), 11,469 steps/s, helped" in said


def test_reads_while_collecting_are_said_beside_the_waits():
    rollout = [wait("src/movelist/play/policy.py", 90, ".tolist()", count=37.0)]
    said = lines(cpu_profile(waits={"rollout": rollout}), "en")
    assert "Beside them, 37 reads while collecting: each network call is asked for its choices" in said
    assert "  src/movelist/play/policy.py:90  37" in said
    assert not [line for line in lines(cpu_profile(), "en") if line.startswith("Beside them")]


def test_trials_say_whether_they_helped():
    said = lines(full_profile(), "en")
    assert "  --batch_size 2048: 1.40 times (1.30 to 1.50), 11,469 steps/s, helped" in said
    assert "  --compile on: 1.00 times (0.90 to 1.10), 8,192 steps/s, no difference beyond the spread" in said
    assert "  --no-use-amp: 0.50 times (0.40 to 0.60), 4,096 steps/s, slower" in said


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_comparison_can_be_written_in_gbk(lang):
    said = comparison_lines(compare(cpu_profile(), full_profile()), lang)
    assert "\n".join(said).encode("gbk")
    assert not [line for line in said if "{" in line or line != line.rstrip()]


def test_a_comparison_says_what_differs_and_by_how_much():
    slower = cpu_profile(settings={"batch_size": 16}, timing={"seconds": 20.0, "seconds_of_update": [2.0] * 10})
    said = comparison_lines(compare(cpu_profile(), slower), "en")
    assert said[0] == "0.50 times as fast as before, so slower, beyond the noise (1.01)."
    assert said[1] == "  ! Another setting: batch_size was 1024, is 16."
    assert said[2] == "  steps/s, by median updates: 8,192 -> 4,096  0.50 times  beyond the noise"
    assert "  memory of the process at most, GB: 1.00 -> 1.00  1.00 times" in said


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.0123456, "0.0123"), (0.5, "0.50"), (1, "1"), (9.876, "9.88"), (12.34, "12.3"), (81_920.4, "81,920")],
)
def test_amounts(number, text):
    assert sentences.amount(number) == text


def test_another_language_is_refused():
    with pytest.raises(SettingsError, match="--lang cannot be used: got fr, expected en or zh"):
        sentences.words("fr")
