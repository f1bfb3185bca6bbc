"""The games that MaskablePPO is given are those that movelist plays: the same views, lists, pay and ends."""

from pathlib import Path

import numpy as np
import pytest

import movelist

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("masked_ppo")


@pytest.mark.parametrize("name", ["pettingzoo:classic/connect_four_v3", "rlcard:limit-holdem"])
def test_a_table_shows_what_the_game_shows(benchmark, name):
    library, _, rest = name.partition(":")
    pytest.importorskip(library)
    table = benchmark.PettingZooTable(rest) if library == "pettingzoo" else benchmark.RLCardTable(rest)
    game, generator = movelist.make_game(name), np.random.default_rng(0)
    for seed in range(8):
        state = game.new_state(seed)
        table.reset(seed)
        if library == "rlcard":  # a table's generator goes on from the game before, so it gets the state's own cards
            table.env, table.mover = state._env, state._env.get_player_id()
            table.state = state._env.get_state(table.mover)
        over = False
        while not over:
            view, mask = table.view()
            assert np.flatnonzero(mask).tolist() == list(state.legal_actions())
            mover = state.current_player()
            np.testing.assert_array_equal(view, np.asarray(state.observe(mover))[: len(view)])
            index = int(generator.integers(mask.sum()))
            action = int(np.flatnonzero(mask)[index])
            paid, over = table.play(action)
            if library == "pettingzoo":
                state.apply(index)
            else:
                state._begin_turn()
            assert paid == (state.returns()[mover] if over else 0.0)
            assert over == (state.current_player() is None)
