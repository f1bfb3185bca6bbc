"""Small recordings for the tests."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from movelist.core.settings import PlaySettings
from movelist.data import recordings
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, Columns, Problem, columns_of

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "recordings" / "dou_dizhu.jsonl.gz"


def record(**changes):
    """Two players move A, B, A with the returns 1 and -1."""
    steps = [
        {"player": 0, "state": [0.5, 0], "actions": [7, 9], "chosen": 1, "reward": 0, "log_prob": -0.5},
        {"player": 1, "state": [1, 0.25], "actions": [5, 6, 8], "chosen": 0, "reward": 0},
        {"player": 0, "state": [2, 0], "actions": [3], "chosen": 0, "reward": 2},
    ]
    players = [{"controller": "policy", "policy_version": 4}, {"controller": "human"}]
    whole = {"format": "movelist/1", "game": "toy", "players": players, "steps": steps}
    return whole | {"returns": [1, -1], "end": "terminated"} | changes


def with_step(number, **changes):
    """`record` with one step changed; a field that is None is left out."""
    made = record()
    step = made["steps"][number] | changes
    made["steps"][number] = {name: value for name, value in step.items() if value is not None}
    return made


def write_lines(path, *records):
    """Write records, or ready lines, one a line."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_all(path, **arguments) -> tuple[list[Columns], list[Problem]]:
    """All pieces of a recording, and all problems."""
    problems: list[Problem] = []
    return list(recordings.read(path, report=problems.append, **arguments)), problems


def play(num_games, *, seed=0, game="leduc_poker"):
    """Random games of a real game, forced turns and all."""
    from movelist.games.catalog import make_game
    from movelist.play.policy import RandomPolicy, derive_seeds
    from movelist.play.selfplay import play_games

    made = make_game(game)
    seats = np.zeros((num_games, made.num_players), np.int64)
    return play_games(
        made, [RandomPolicy()], seats, derive_seeds(seed, 9, 0, num_games), PlaySettings(keep_forced=True)
    )


def with_all_fields(form, num_games=40):
    """Played games with every field that the format has, one episode in four truncated, one log-prob in three missing.

    Args:
        form: NO_REWARD, LOOKING_BACK or LOOKING_ON.
        num_games: How many.
    """
    columns = columns_of(play(num_games), "leduc_poker", np.arange(2 * num_games).reshape(-1, 2) - 1)
    steps, size = columns.raw.num_steps, columns.widths.state_size
    log_prob = np.where(np.arange(steps) % 3 == 0, np.nan, columns.raw.log_prob_N).astype(np.float32)
    final = np.random.default_rng(0).random((num_games, 2, size)).astype(np.float32)
    truncated = np.arange(num_games) % 4 == 0
    raw = replace(columns.raw, log_prob_N=log_prob, truncated_E=truncated,
                  final_state_EPS=np.where(truncated[:, None, None], final, 0).astype(np.float32),
                  critic_state_NC=np.random.default_rng(1).random((steps, 3)).astype(np.float32),
                  feature_AF=np.random.default_rng(2).random((columns.raw.num_actions, 2)).astype("f4"))  # fmt: skip
    reward_NP = None
    if form != LOOKING_BACK:
        raw = replace(raw, reward_N=np.full(steps, np.nan))
    if form == LOOKING_ON:
        reward_NP = np.zeros((steps, 2))
        reward_NP[raw.episode_offsets[1:] - 1] = raw.return_EP
    return replace(
        columns,
        raw=raw,
        reward_NP=reward_NP,
        has_final_E=truncated,
        reward_form_E=np.full(num_games, form, np.int8),
        widths=replace(columns.widths, critic_size=3, feature_size=2),
    )


def assert_equal(one, other):
    """Two dataclasses of arrays agree, field by field, dtypes too; places in files may differ."""
    for name in one.__slots__:
        a, b = getattr(one, name), getattr(other, name)
        if name in ("line_E", "next_E4", "num_turns", "origin_E"):
            continue
        if hasattr(a, "__slots__") and not isinstance(a, np.ndarray) and hasattr(a, "truncated_E"):
            assert_equal(a, b)
        elif name == "extra":
            assert a.keys() == b.keys()
            for column in a:
                assert a[column].dtype == b[column].dtype, column
                np.testing.assert_array_equal(a[column], b[column], err_msg=column.name)
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            assert a == b, name
