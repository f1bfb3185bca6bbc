"""Further columns that a program of one's own declares: from games over workers, files and the store to a network."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import movelist
from hinting import ALL, HINT, RANK, RARE, WEIGHT, WORTH, Hinting
from movelist.core.errors import DataError, GameError, SettingsError
from movelist.core.settings import PlaySettings, TrainSettings
from movelist.data import recordings
from movelist.data.arrow_columns import episode_crcs
from movelist.data.column import Column
from movelist.data.episode import concatenate
from movelist.data.loader import RecordedSource, RecordingStream, StoreStream
from movelist.data.record_rules import columns_of
from movelist.data.store import Store, StoreWriter
from movelist.games.columns import game_columns
from movelist.learn.batch import Rollout, plan_batches
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, Network, PolicyValueNet
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from recorded import assert_equal, read_all, record, with_step, write_lines

CPU = torch.device("cpu")
HEADER = {"format": "movelist/1", "state_shape": [2], "state_dtype": "float32"}


def play(num_games=12, *, game=None, **settings):
    """Games of random players."""
    source = SelfPlay(game or Hinting(), PlaySettings(**settings))
    try:
        return source.collect(RandomPolicy(), num_games)
    finally:
        source.close()


def assert_told(episodes, *, without=()):
    """Each further column says what the state and the ids beside it say."""
    turn_N, card_N = episodes.state_NS[:, 1].astype(int), episodes.state_NS[:, 2]
    card_E = card_N[episodes.episode_offsets[:-1]]
    expected = {
        HINT: np.stack([turn_N, card_N, np.full(len(turn_N), 0.5)], axis=1),
        WORTH: np.stack([episodes.action_id_A, 2 * episodes.action_id_A], axis=1),
        WEIGHT: card_E[:, None] + 0.25,
        RANK: np.stack([np.broadcast_to([0, 1], (len(card_E), 2)), np.stack([card_E, card_E], 1)], axis=2),
        RARE: np.where(turn_N % 2, turn_N, -1)[:, None],
    }
    assert set(episodes.extra) == set(expected) - set(without)
    for column, values in episodes.extra.items():
        assert values.dtype == column.dtype, column
        np.testing.assert_array_equal(values, expected[column], err_msg=column.name)
    np.testing.assert_array_equal(episodes.critic_state_NC, np.stack([card_N, turn_N], axis=1))
    np.testing.assert_array_equal(episodes.feature_AF, episodes.action_id_A[:, None] / 2)


@pytest.mark.parametrize("settings", [{}, {"keep_forced": True}, {"max_turns": 2}, {"num_games": 3}], ids=str)
def test_a_state_tells_its_columns(settings):
    assert_told(play(**settings))


def test_workers_send_them():
    whole, sent = play(keep_forced=True), play(keep_forced=True, rollout_workers=2)
    assert_told(sent)
    assert_equal(whole, sent)


def test_picking_and_joining_carry_them():
    episodes = play(keep_forced=True)
    assert_told(episodes.without_forced())
    assert_told(episodes.take(np.array([7, 0, 3])))
    assert_told(concatenate([episodes, play(3)]))


def test_what_some_episodes_lack_is_filled_or_refused():
    episodes = play()
    plain = {column: values for column, values in episodes.extra.items() if column is not RARE}
    joined = concatenate([replace(episodes, extra=plain), episodes])
    rare = joined.extra[RARE]
    assert (rare[: episodes.num_steps] == -1).all() and (rare[episodes.num_steps :] == episodes.extra[RARE]).all()
    with pytest.raises(DataError, match="some episodes have a column that others lack: got hint"):
        concatenate([replace(episodes, extra={}), episodes])
    wide = replace(episodes, critic_state_NC=np.zeros((episodes.num_steps, 5), np.float32))
    with pytest.raises(DataError, match=r"differ in the width of a column: got .*\(critic_state_NC\)"):
        concatenate([episodes, wide])


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        (HINT, lambda values: values[1:], "columns differ in length"),
        (HINT, lambda values: values[:, :2], "a column has another width"),
        (HINT, lambda values: values.astype(str), "a column has the wrong dtype"),
        (WORTH, lambda values: values * 1.0, "a column has the wrong dtype"),
        (RANK, lambda values: values[:, :1], "columns differ in shape"),
        (HINT, lambda values: np.where(np.arange(len(values))[:, None] == 4, np.nan, values),
         "hint holds NaN or infinity (episodes, episode 1, step 1, field hint)"),
        (WEIGHT, lambda values: np.where(np.arange(len(values))[:, None] == 4, np.inf, values),
         "weight holds NaN or infinity (episodes, episode 4, field weight)"),
    ],
)  # fmt: skip
def test_a_column_that_breaks_its_declaration_is_refused(column, change, message):
    episodes = play()
    with pytest.raises(DataError) as caught:
        replace(episodes, extra={**episodes.extra, column: change(episodes.extra[column])}).check()
    assert str(caught.value).startswith(message) and column.name in str(caught.value)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "arrows"])
def test_recordings_hold_them(tmp_path, ending):
    columns = columns_of(play(keep_forced=True), "hinting")
    writer = recordings.writer(tmp_path / f"a.{ending}")
    writer.write(columns)
    writer.close()
    (again,), problems = read_all(tmp_path / f"a.{ending}")
    assert not problems and again.widths == columns.widths and again.widths.columns == tuple(columns.raw.extra)
    assert_equal(again, columns)
    source = RecordedSource(RecordingStream([tmp_path / f"a.{ending}"], passes=1, seed=0, keep_forced=False))
    assert_told(source.collect(None, 5))
    source.close()


@pytest.mark.parametrize("keep_forced", [False, True])
def test_a_store_holds_those_that_it_is_to_keep(tmp_path, keep_forced):
    columns = columns_of(play(keep_forced=True), "hinting")
    for _ in range(2):
        writer = StoreWriter(tmp_path / "store", keep_forced=keep_forced)
        writer.add(columns)
        writer.commit()
    store = Store(tmp_path / "store")
    assert RARE not in store.widths.columns and HINT in store.widths.columns
    shard = (tmp_path / "store" / store.shards[0].file).read_bytes()
    assert b'"extra.hint"' in shard and b'"extra.rare"' not in shard
    source = RecordedSource(StoreStream(store, passes=1, seed=0))
    assert_told(source.collect(None, 100), without={RARE})
    source.close()
    for back in store.recorded():
        assert_told(back.raw, without={RARE})
        assert back.widths == store.widths
    assert (
        json.loads((tmp_path / "store" / "manifest.json").read_text(encoding="utf-8"))["format"] == "movelist-store/3"
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_has_its_rows_on_the_device(ordered):
    episodes = play()
    rollout = Rollout(episodes, lambda ids: ids, CPU)
    batches, _ = plan_batches(rollout, [np.array([5, 0, 8]), np.array([1, 2])], {}, ordered=ordered)
    for batch in batches:
        state_BS, ids_U = rollout.gather(batch)
        got = rollout.gather_columns(batch, ["hint", "worth", "critic_state", "action_features"])
        id_A = ids_U[batch.unique_A]
        assert torch.equal(got["hint"][:, 0], state_BS[:, 1]) and torch.equal(got["critic_state"][:, 0], state_BS[:, 2])
        assert torch.equal(got["worth"], torch.stack([id_A, 2 * id_A], 1))
        assert torch.equal(got["action_features"][:, 0], id_A / 2)
    with pytest.raises(DataError, match=r"lack a column that the network looks at: .*expected hunt"):
        rollout.gather_columns(batches[0], ["hunt"])


class HintedNet(PolicyValueNet):
    """Adds to a step's value what its hint says."""

    column_names = ("hint", "worth")

    def __init__(self, shape):
        super().__init__(shape)
        self.from_hint = torch.nn.Linear(3, 1)

    def forward(self, *arguments, hint, worth):
        score_A, value_B = super().forward(*arguments)
        assert len(worth) == len(score_A)
        return score_A, value_B + self.from_hint(hint).squeeze(-1)


def test_a_network_of_ones_own_learns_from_them():
    settings = TrainSettings.from_flat({"batch_size": 8, "epochs_per_update": 1}).update
    net = HintedNet(ModelShape(state_size=3, hidden_dim=8))
    before = net.from_hint.weight.detach().clone()
    learner = Learner(net, settings, World(CPU))
    learner.update(learner.prepare(play()))
    assert not torch.equal(net.from_hint.weight, before)
    with pytest.raises(SettingsError, match="compile is for networks without further columns: got hint, worth"):
        Learner(net, replace(settings, compile="on"), World(CPU))


class OwnNet(Network):
    """Scores an action by its worth and the step's hint alone."""

    column_names = ("hint", "worth")

    def __init__(self, shape):
        super().__init__(shape)
        self.score, self.value = torch.nn.Linear(2, 1), torch.nn.Linear(shape.state_size, 1)

    def values(self, state_BS):
        return self.value(state_BS).squeeze(-1)

    def forward(self, state_BS, encoded_U, step_A, unique_A, order=None, *, hint, worth):
        return self.score(worth / 1000).squeeze(-1) * hint[step_A, 1], self.values(state_BS)


def test_a_network_of_ones_own_plays_by_them():
    torch.manual_seed(0)
    net = OwnNet(ModelShape(state_size=3, hidden_dim=8))
    source = SelfPlay(Hinting(), PlaySettings())
    episodes = source.collect(NetPolicy(net), 20)
    learner = Learner(net, TrainSettings.from_flat({"batch_size": 512, "epochs_per_update": 1}).update, World(CPU))
    metrics = learner.update(learner.prepare(episodes))
    assert abs(metrics["losses/approx_kl"]) < 1e-9  # what it learns from is what it played by
    state, actions = np.zeros(3, np.float32), [1, 2]
    with pytest.raises(DataError, match=r"the turns lack a column that the network looks at: .*expected hint"):
        NetPolicy(net).probabilities(state, actions)


def test_training_goes_on_with_them(tmp_path):
    shared = {"hidden_dim": 8, "update_frequency": 16, "batch_size": 16, "eval_games": 0, "device": "cpu",
              "tensorboard": False, "live": False}  # fmt: skip
    weights = []
    for name, workers in (("alone", 0), ("workers", 2)):
        movelist.train(Hinting(), out=tmp_path / name, total_steps=64, rollout_workers=workers, **shared)
        movelist.train(Hinting(), resume=tmp_path / name, total_steps=128)
        weights.append(checkpoint.load(tmp_path / name)["learner"]["net"])
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], msg=name)


def test_a_step_in_json_may_leave_out_an_optional_one(tmp_path):
    rare = {"name": "rare", "per": "step", "dtype": "int8", "optional": True, "fill": -1}
    header = HEADER | {"columns": [{"name": "hint", "per": "step", "width": 2}, rare]}
    made = record()
    for step in made["steps"]:
        step["extra"] = {"hint": [1, 2.5]}
    made["steps"][1]["extra"]["rare"] = [7]
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", json.dumps(header).encode(), made))
    hint, rare = columns.raw.extra.values()
    assert not problems and hint.tolist() == [[1, 2.5]] * 3 and rare.tolist() == [[-1], [7], [-1]]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "a field is wrong: Expected `array`, got `null`"),
        ({"hint": 3}, "a field is wrong: Expected `array`, got `int`"),
        ({"hint": ["a", 1]}, "a field is wrong: Expected `float`, got `str`"),
        ({"hint": [1]}, "hint has another width: got 1, expected 2"),
        ({"hint": [1, 2], "hnit": [1]}, "the header declares no such column: got hnit, expected hint"),
        ({"hint": [1, 1e39]}, "hint holds NaN or infinity"),
    ],
)
def test_a_bad_value_in_json_costs_its_episode(tmp_path, extra, message):
    header = HEADER | {"columns": [{"name": "hint", "per": "step", "width": 2}]}
    good = record()
    for step in good["steps"]:
        step["extra"] = {"hint": [1, 2]}
    bad = record(steps=[*good["steps"][:2], good["steps"][2] | {"extra": extra or {}}])
    (columns,), (problem,) = read_all(write_lines(tmp_path / "a.jsonl", json.dumps(header).encode(), good, bad))
    assert len(columns) == 1 and message in str(problem) and "step 2" in str(problem)


def test_rows_for_each_action_are_counted(tmp_path):
    header = HEADER | {"columns": [{"name": "worth", "per": "action", "dtype": "int8", "width": 1}]}
    bad = with_step(0, extra={"worth": [[1]]})
    parts, (problem,) = read_all(write_lines(tmp_path / "a.jsonl", json.dumps(header).encode(), bad))
    assert not parts and "there is not one row for each action: got 1, expected 2" in str(problem)
    fraction = with_step(0, extra={"worth": [[1], [0.5]]})
    fraction["steps"] = fraction["steps"][:1]
    parts, (problem,) = read_all(write_lines(tmp_path / "b.jsonl", json.dumps(header).encode(), fraction))
    assert not parts and "a column of int8 holds another number: got 0.5, expected a whole number" in str(problem)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([{"per": "step"}], "this declares no column"),
        ([Column("a b", per="step")], "a column cannot have this name: got 'a b'"),
        ([Column("player_N", per="step")], "a column cannot have this name: got 'player_N'"),
        ([HINT, HINT], "a column cannot have this name: got 'hint'"),
        ([Column("hint", per="game")], "a column has rows for something else: got 'game'"),
        ([Column("hint", per="step", dtype="complex64")], "a column cannot have this dtype: got 'complex64'"),
        ([Column("hint", per="step", width=0)], "a column needs a width: got 0"),
        ([Column("critic_state", per="action")], "a column of Episodes is declared in another way: got per action"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(columns, message):
    with pytest.raises((DataError, GameError)) as caught:
        game_columns(Hinting(columns))
    assert str(caught.value).startswith(message) and "hinting" in str(caught.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"hint": None}, "a state does not tell a column: got ['action_features',"),
        ({"hint": [1, 2]}, "a column has another form: got shape [2], expected [3]"),
        ({"rank": [[1, 2]]}, "a column has another form: got shape [1, 2], expected [2, 2]"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_state_that_tells_something_else_is_named(told, message):
    with pytest.raises(GameError) as caught:
        play(game=Hinting(ALL, **told))
    assert str(caught.value).startswith(message) and "game with seed" in str(caught.value)


def test_the_checksum_of_an_episode_in_arrow_covers_them():
    columns = columns_of(play(keep_forced=True), "hinting")
    before = episode_crcs(columns)
    for column, values in columns.raw.extra.items():
        changed = values.copy()
        changed[-1] += 1
        raw = replace(columns.raw, extra={**columns.raw.extra, column: changed})
        differ = [one != other for one, other in zip(episode_crcs(replace(columns, raw=raw)), before, strict=True)]
        assert differ == [False] * (len(differ) - 1) + [True], column.name


def test_a_stream_in_arrow_that_lacks_a_declared_column_is_refused(tmp_path):
    import pyarrow as pa

    writer = recordings.writer(tmp_path / "a.arrows")
    writer.write(columns_of(play(keep_forced=True), "hinting"))
    writer.close()
    with pa.ipc.open_stream(tmp_path / "a.arrows") as reader:
        table = reader.read_all()
    for name, columns in (("extra.hint", None), ("columns", b"{")):
        changed = table if columns else table.drop_columns([name])
        changed = changed.replace_schema_metadata(table.schema.metadata | ({b"columns": columns} if columns else {}))
        with pa.ipc.new_stream(tmp_path / "b.arrows", changed.schema) as stream:
            stream.write_table(changed)
        parts, (problem,) = read_all(tmp_path / "b.arrows")
        assert not parts and name in str(problem)
