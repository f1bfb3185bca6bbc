"""Records of JSON to columns, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from movelist.core.action_ids import parse
from movelist.core.errors import DataError
from movelist.data.episode import Episodes, offsets_of
from movelist.data.record_format import CONTROLLER_NAMES, CONTROLLERS, DTYPES, FORMAT, Player, Record, Step, Widths
from movelist.data.record_lines import Bad
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, NO_REWARD, NO_VERSION, Columns

Array = NDArray[Any]


def arrays(record: Record, widths: Widths) -> dict[str, Any]:
    """One record as arrays, [T] and so on."""
    steps = record.steps
    counts = [len(step.actions) for step in steps]
    form, reward_T, reward_TP = _rewards(steps, widths.num_players)
    lists: dict[str, Any] = {
        "state": _block([step.state for step in steps], widths.state_size, DTYPES[widths.state_dtype], "state"),
        "player": _integers([step.player for step in steps], "player"),
        "count": np.array(counts, np.int64),
        "action_id": _ids(steps),
        "chosen": _integers([step.chosen for step in steps], "chosen"),
        "log_prob": np.array([np.nan if s.log_prob is UNSET else s.log_prob for s in steps], np.float64),
        "reward": reward_T,
        "reward_P": reward_TP,
        "form": form,
        "version": _integers([NO_VERSION if p.policy_version is UNSET else p.policy_version for p in record.players],
                             "policy_version"),
        "controller": np.array([CONTROLLERS[player.controller] for player in record.players], np.int8),
        "truncated": record.end == "truncated",
        "returns": np.full(widths.num_players, np.nan),
        "final": None,
    }  # fmt: skip
    if record.returns is not UNSET:
        lists["returns"] = _block([record.returns], widths.num_players, np.float64, "returns", step=-1)[0]
    if record.final_states is not UNSET:
        if len(record.final_states) != widths.num_players:
            raise Bad("width", "there is not one final state for each seat", field="final_states",
                       got=len(record.final_states), expected=widths.num_players)  # fmt: skip
        dtype = DTYPES[widths.state_dtype]
        lists["final"] = _block(record.final_states, widths.state_size, dtype, "final_states", step=-1)
    return lists | _extras(steps, widths)


def _extras(steps: Sequence[Step], widths: Widths) -> dict[str, Array | None]:
    """Critic states and action features, in all steps or in none."""
    critic: list[list[float]] = [[] if step.critic_state is UNSET else step.critic_state for step in steps]
    features: list[list[float]] = []
    for number, step in enumerate(steps):
        rows = [] if step.action_features is UNSET else step.action_features
        if len(rows) != (len(step.actions) if widths.feature_size else 0):
            raise Bad("width", "there is not one row of features for each legal action", step=number,
                       field="action_features", got=len(rows), expected=len(step.actions))  # fmt: skip
        features += rows
    critic_TC = _block(critic, widths.critic_size, np.float32, "critic_state")
    feature_AF = _block(features, widths.feature_size, np.float32, "action_features", step=-1)
    return {
        "critic": critic_TC if widths.critic_size else None,
        "feature": feature_AF if widths.feature_size else None,
    }


def _block(rows: Sequence[list[float]], width: int, dtype: type, field: str, step: int | None = None) -> Array:
    """Lists of one width as a matrix; `step` is named in place of the row's number if given."""
    for number, row in enumerate(rows):
        if len(row) != width:
            raise Bad("width", f"{field} has another width", step=number if step is None else step, field=field,
                       got=len(row), expected=width, do="Widths are the same in a whole file.")  # fmt: skip
    with np.errstate(over="ignore"):  # becomes infinity, which the rules refuse
        if dtype is not np.uint8:
            return np.array(rows, dtype).reshape(len(rows), width)
    whole = np.array(rows, np.float64).reshape(len(rows), width)
    bad = np.argwhere((whole < 0) | (whole > 255) | (whole != np.floor(whole)))
    if len(bad):
        row, column = bad[0]
        raise Bad("state", "a uint8 state holds another number", step=int(row) if step is None else step, field=field,
                   got=whole[row, column], expected="a whole number, 0 to 255")  # fmt: skip
    return whole.astype(np.uint8)


def _narrow(numbers: Array) -> Array:
    """As float32; what is too large becomes infinity, which the rules refuse."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _integers(values: list[int], field: str) -> Array:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise Bad("number", f"{field} is too large", field=field, got=max(values, key=abs)) from None


def _ids(steps: Sequence[Step]) -> Array:
    """All legal actions, int64 [A]."""
    flat: list[int | str] = []
    for step in steps:
        flat += step.actions
    if set(map(type, flat)) <= {int}:
        try:
            return np.array(flat, np.int64)
        except OverflowError:
            if min(flat) >= -(1 << 63) and max(flat) < 1 << 64:  # type: ignore[operator]
                return np.array([value & 0xFFFFFFFFFFFFFFFF for value in flat], np.uint64).view(np.int64)  # type: ignore[operator]
    for number, step in enumerate(steps):
        for value in step.actions:
            try:
                parse(value)
            except DataError as error:
                raise Bad("action id", error.what, step=number, field="actions", got=error.got,
                           expected=error.expected, do=error.do) from None  # fmt: skip
    return np.array([parse(value) for value in flat], np.int64)


def _rewards(steps: Sequence[Step], num_players: int) -> tuple[int, Array, Array | None]:
    """The form, and rewards as numbers [T] or lists [T, P]."""
    nothing = np.full(len(steps), np.nan)
    kinds = {type(step.reward) for step in steps}
    if kinds <= {type(UNSET)}:
        return NO_REWARD, nothing, None
    if kinds == {float}:
        return LOOKING_BACK, np.array([step.reward for step in steps], np.float64), None
    if kinds == {list}:
        rows: list[list[float]] = [step.reward for step in steps]  # type: ignore[misc]
        return LOOKING_ON, nothing, _block(rows, num_players, np.float64, "reward")
    first = type(steps[0].reward)
    step = next(number for number, step in enumerate(steps) if type(step.reward) is not first)
    raise Bad("reward", "rewards of one episode differ in kind", step=step, field="reward",
               expected="a number in each step, or a list in each, or none at all")  # fmt: skip


def stack(parts: Sequence[tuple[dict[str, Any], dict[str, Any]]], widths: Widths) -> Columns:
    """The records of one piece, one after another."""
    pieces = [part for part, _ in parts]

    def joined(name: str) -> Array:
        return np.concatenate([part[name] for part in pieces])

    final = None
    if any(part["final"] is not None for part in pieces):
        none = np.zeros((widths.num_players, widths.state_size), DTYPES[widths.state_dtype])
        final = np.stack([none if part["final"] is None else part["final"] for part in pieces])
    nothing = [np.full((len(part["player"]), widths.num_players), np.nan) for part in pieces]
    lists = any(part["form"] == LOOKING_ON for part in pieces)
    raw = Episodes(
        state_NS=joined("state"),
        player_N=joined("player"),
        action_offsets=offsets_of(joined("count")),
        action_id_A=joined("action_id"),
        chosen_N=joined("chosen"),
        log_prob_N=_narrow(joined("log_prob")),
        reward_N=joined("reward"),
        episode_offsets=offsets_of(np.array([len(part["player"]) for part in pieces])),
        return_EP=np.stack([part["returns"] for part in pieces]),
        truncated_E=np.array([part["truncated"] for part in pieces]),
        controller_EP=np.stack([part["controller"] for part in pieces]),
        final_state_EPS=final,
        num_turns=sum(len(part["player"]) for part in pieces),
    )
    pairs = zip(pieces, nothing, strict=True)
    return Columns(
        widths=widths,
        raw=raw,
        reward_NP=np.concatenate([n if p["reward_P"] is None else p["reward_P"] for p, n in pairs]) if lists else None,
        reward_form_E=np.array([part["form"] for part in pieces], np.int8),
        has_final_E=np.array([part["final"] is not None for part in pieces]),
        version_EP=np.stack([part["version"] for part in pieces]),
        ordinal_E=np.array([place["ordinal"] for _, place in parts]),
        line_E=np.array([place["line"] for _, place in parts]),
        next_E4=np.array([(place["end"], place["next"], 0, 0) for _, place in parts]),
        critic_state_NC=joined("critic") if widths.critic_size else None,
        feature_AF=joined("feature") if widths.feature_size else None,
    )


def record_of(columns: Columns, episode: int) -> Record:
    """One episode of the columns as a record."""
    raw = columns.raw
    seats = zip(raw.controller_EP[episode].tolist(), columns.version_EP[episode].tolist(), strict=True)
    has_returns = not np.isnan(raw.return_EP[episode]).all()
    final = raw.final_state_EPS[episode] if raw.final_state_EPS is not None and columns.has_final_E[episode] else None
    return Record(
        format=FORMAT,
        game=columns.widths.game,
        episode=int(columns.ordinal_E[episode]),
        players=[Player(CONTROLLER_NAMES[c], UNSET if v == NO_VERSION else v) for c, v in seats],  # type: ignore[arg-type]
        steps=[_step_of(columns, n, int(columns.reward_form_E[episode])) for n in raw[episode].steps],
        returns=raw.return_EP[episode].tolist() if has_returns else UNSET,
        end="truncated" if raw.truncated_E[episode] else "terminated",
        final_states=UNSET if final is None else [_short(row) for row in final],
    )


def _step_of(columns: Columns, n: int, form: int) -> Step:
    raw = columns.raw
    actions = slice(*raw.action_offsets[n : n + 2].tolist())
    step = Step(
        player=int(raw.player_N[n]),
        state=_short(raw.state_NS[n]),
        actions=raw.action_id_A[actions].view(np.uint64).tolist(),
        chosen=int(raw.chosen_N[n]),
    )
    if form == LOOKING_BACK:
        step.reward = float(raw.reward_N[n])
    elif columns.reward_NP is not None and form == LOOKING_ON:
        step.reward = columns.reward_NP[n].tolist()
    if not np.isnan(raw.log_prob_N[n]):
        step.log_prob = float(raw.log_prob_N[n])
    if columns.critic_state_NC is not None:
        step.critic_state = columns.critic_state_NC[n].tolist()
    if columns.feature_AF is not None:
        step.action_features = columns.feature_AF[actions].tolist()
    return step


def _short(row: Array) -> list[float]:
    """Numbers as short as they go: 1 in place of 1.0."""
    # The limit has a dtype of its own: as float16 it would be infinite, with a warning.
    small = np.isfinite(row).all() and (np.abs(row) < np.float32(1 << 30)).all()
    whole: Array = row.astype(np.int32) if small else row
    numbers: list[float] = (whole if (whole == row).all() else row).tolist()
    return numbers
