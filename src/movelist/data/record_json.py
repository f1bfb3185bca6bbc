"""Records of JSON to columns, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from movelist.core.action_ids import parse
from movelist.core.errors import DataError
from movelist.data.column import Column
from movelist.data.episode import FURTHER, Episodes, arguments, offsets_of
from movelist.data.record_format import CONTROLLER_NAMES, CONTROLLERS, DTYPES, FORMAT, Player, Record, Step, Widths
from movelist.data.record_lines import Bad
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, NO_REWARD, NO_VERSION, Columns

Array = NDArray[Any]


def arrays(record: Record, widths: Widths) -> dict[str, Any]:
    """One record as arrays, [T] and so on."""
    steps = record.steps
    _refuse_undeclared(record, widths)
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
    sizes = dict.fromkeys(FURTHER, 0) | widths.further
    made = {column: _further(record, column, width, widths.num_players) for column, width in sizes.items()}
    return lists | {"further": {column: array for column, array in made.items() if array is not None}}


def _further(record: Record, column: Column, width: int, num_players: int) -> Array | None:
    """A further column of one record: [T, width], [A, width], [width] or [P, width]; None where nothing has any."""
    dtype = np.dtype(column.dtype).type
    if not column.by_turn:
        value = {} if record.extra is UNSET else record.extra
        rows = _rows(value.get(column.name), column, 1 if column.per == "episode" else num_players, width, -1)
        block = _block(rows, width, dtype, column.label, step=-1)
        return block[0] if column.per == "episode" else block
    given = [_given(step, column) for step in record.steps]
    if not width and all(value is None for value in given):
        return None
    rows = []
    for number, (step, value) in enumerate(zip(record.steps, given, strict=True)):
        count = 1 if column.per == "step" else len(step.actions) if width else 0
        rows += _rows(value, column, count, width, number)
    return _block(rows, width, dtype, column.label, step=None if column.per == "step" else -1)


def _given(step: Step, column: Column) -> Any:
    """What a step has of a further column; None without."""
    if column.field:
        value = getattr(step, column.field)
        return None if value is UNSET else value
    return None if step.extra is UNSET else step.extra.get(column.name)


def _rows(value: Any, column: Column, count: int, width: int, step: int) -> list[list[float]]:
    """So many rows of numbers."""
    if value is None and column.optional and not column.field:
        return [[column.fill] * width] * count
    single = column.per in ("step", "episode")
    if column.field:  # decoded already
        rows: list[list[float]] = ([[] if value is None else value]) if single else ([] if value is None else value)
    else:
        try:
            rows = [msgspec.convert(value, list[float])] if single else msgspec.convert(value, list[list[float]])
        except msgspec.ValidationError as error:
            raise Bad("field", f"a field is wrong: {error}", step=step, field=column.label,
                       expected="a list of numbers" if single else "a list of numbers for each") from None  # fmt: skip
    if len(rows) != count:
        one = "of features for each legal action" if column.field else f"for each {column.per}"
        raise Bad("width", f"there is not one row {one}", step=step, field=column.label, got=len(rows),
                   expected=count)  # fmt: skip
    return rows


def _refuse_undeclared(record: Record, widths: Widths) -> None:
    """So that a typing error is none."""
    places = [(step.extra, number) for number, step in enumerate(record.steps) if step.extra is not UNSET]
    for extra, step in [*places, *([] if record.extra is UNSET else [(record.extra, -1)])]:
        known = [column.name for column in widths.columns if column.by_turn == (step >= 0)]
        for name in extra:
            if name not in known:
                raise Bad("field", "the header declares no such column", step=step, field="extra", got=name,
                           expected=", ".join(sorted(known)) or "none", do='Say "columns" in the header.')  # fmt: skip


def _block(rows: Sequence[list[float]], width: int, dtype: type, field: str, step: int | None = None) -> Array:
    """Lists of one width as a matrix; `step` is named in place of the row's number if given."""
    for number, row in enumerate(rows):
        if len(row) != width:
            raise Bad("width", f"{field} has another width", step=number if step is None else step, field=field,
                       got=len(row), expected=width, do="Widths are the same in a whole file.")  # fmt: skip
    with np.errstate(over="ignore"):  # becomes infinity, which the rules refuse
        if np.issubdtype(dtype, np.floating):
            return np.array(rows, dtype).reshape(len(rows), width)
    whole = np.array(rows, np.float64).reshape(len(rows), width)
    low, high = max(np.iinfo(dtype).min, -(1 << 53)), min(np.iinfo(dtype).max, 1 << 53)  # beyond, a float has gaps
    bad = np.argwhere(~((whole >= low) & (whole <= high) & (whole == np.floor(whole))))
    if len(bad):
        row, column = bad[0]
        name = np.dtype(dtype).name
        what = f"a {name} state" if field in ("state", "final_states") else f"a column of {name}"
        raise Bad("state", f"{what} holds another number", step=int(row) if step is None else step, field=field,
                   got=whole[row, column], expected=f"a whole number, {low} to {high}")  # fmt: skip
    return whole.astype(dtype)


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
        **arguments({column: _joined(column, pieces) for column in widths.further}),
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
    )


def _joined(column: Column, pieces: Sequence[dict[str, Any]]) -> Array:
    arrays = [piece["further"][column] for piece in pieces]
    return np.concatenate(arrays) if column.by_turn else np.stack(arrays)


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
        extra={c.name: v[episode].tolist() for c, v in raw.extra.items() if not c.by_turn} or UNSET,
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
    for column, values in raw.further().items():
        if not column.by_turn:
            continue
        here = values[n if column.per == "step" else actions].tolist()
        if column.field:
            setattr(step, column.field, here)
        else:
            step.extra = ({} if step.extra is UNSET else step.extra) | {column.name: here}
    return step


def _short(row: Array) -> list[float]:
    """Numbers as short as they go: 1 in place of 1.0."""
    # The limit has a dtype of its own: as float16 it would be infinite, with a warning.
    small = np.isfinite(row).all() and (np.abs(row) < np.float32(1 << 30)).all()
    whole: Array = row.astype(np.int32) if small else row
    numbers: list[float] = (whole if (whole == row).all() else row).tolist()
    return numbers
