"""Self-play gives the games asked for, whatever runs side by side, and every column agrees with the game replayed."""

import dataclasses

import numpy as np
import pytest
import torch

from movelist.core import action_ids
from movelist.core.errors import DataError, GameError
from movelist.core.settings import PlaySettings
from movelist.data.episode import OTHER, POLICY, REFUSED_TWICE, concatenate
from movelist.games.catalog import make_game
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy, RandomPolicy, Turns, derive_seeds
from movelist.play.selfplay import GAMES, SelfPlay, play_games
from play.toys import Odd, OddState, Picker, Scripted, ScriptedState


def play(game, policies, *, num_games=20, seed=0, seats=None, **settings):
    """`play_games` where all seats belong to the first policy, unless `seats` says otherwise."""
    seats_GP = np.zeros((num_games, game.num_players), np.int64) if seats is None else np.asarray(seats)
    seeds = derive_seeds(seed, GAMES, 0, num_games)
    return play_games(game, policies, seats_GP, seeds, PlaySettings(**settings))


def assert_same(one, other, *, log_prob_tolerance=0.0):
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "log_prob_N":
            np.testing.assert_allclose(left, right, rtol=0, atol=log_prob_tolerance)
        elif left is None or right is None:
            assert left is right, field.name
        else:
            np.testing.assert_array_equal(left, right, err_msg=field.name)


def one_by_one(game, policy, seed, *, keep_forced=False):
    """The slow, obvious way: one game, one turn after another. Its steps, its returns and its number of turns.

    A step is (what was seen, player, ids, index, score before it).
    """
    state, turn, steps = game.new_state(seed), 0, []
    while (player := state.current_player()) is not None:
        ids = action_ids.parse_list(state.legal_actions())
        if len(ids) > 1 or keep_forced:
            seen = np.asarray([state.observe(player)], np.float32)
            asked = Turns(seen, np.array([len(ids)]), ids, np.array([seed]), np.array([turn]))
            index = int(policy.choose(asked)[0][0])
            steps.append((seen[0], player, ids, index, state.returns()[player]))
        else:
            index = 0
        state.apply(index)
        turn += 1
    return steps, list(state.returns()), turn


def reward_of(steps, number, returns):
    """What the mover of a step gains until their next one, from the definition."""
    player, before = steps[number][1], steps[number][4]
    after = [step[4] for step in steps[number + 1 :] if step[1] == player]
    return (after[0] if after else returns[player]) - before


@pytest.mark.parametrize("keep_forced", [False, True])
@pytest.mark.parametrize("num_players", [1, 2, 3])
def test_every_column_agrees_with_the_games_replayed_one_by_one(num_players, keep_forced):
    game = Odd(num_players)
    episodes = play(game, [RandomPolicy()], keep_forced=keep_forced).check()
    turns = 0
    for episode, seed in zip(episodes, derive_seeds(0, GAMES, 0, 20), strict=True):
        steps, returns, num_turns = one_by_one(game, RandomPolicy(), int(seed), keep_forced=keep_forced)
        turns += num_turns
        assert len(steps) == len(episode.steps)
        assert episode.returns.tolist() == returns
        for number, step in enumerate(episode.steps):
            seen, player, ids, index, _ = steps[number]
            np.testing.assert_array_equal(episodes.state_NS[step], seen)
            np.testing.assert_array_equal(episode.actions(step), ids)
            assert (episodes.player_N[step], episodes.chosen_N[step]) == (player, index)
            assert episodes.log_prob_N[step] == np.float32(-np.log(len(ids)))
            assert episodes.reward_N[step] == reward_of(steps, number, returns)
    assert episodes.num_turns == turns
    assert (np.diff(episodes.action_offsets) == 1).any() == keep_forced
    assert not episodes.truncated_E.any()
    assert (episodes.controller_EP == POLICY).all()


@pytest.mark.parametrize("name", ["kuhn_poker", "tic_tac_toe"])
def test_openspiel_games_agree_with_the_games_replayed_one_by_one(name):
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    game = make_game(name)
    episodes = play(game, [RandomPolicy()]).check()
    for episode, seed in zip(episodes, derive_seeds(0, GAMES, 0, 20), strict=True):
        steps, returns, _ = one_by_one(game, RandomPolicy(), int(seed))
        assert [(episodes.player_N[n], episodes.chosen_N[n]) for n in episode.steps] == [
            (step[1], step[3]) for step in steps
        ]
        assert [episodes.reward_N[n] for n in episode.steps] == [
            reward_of(steps, number, returns) for number in range(len(steps))
        ]


# --- Which games, in which order


@pytest.mark.parametrize("num_games", [1, 3, 64])
def test_games_do_not_depend_on_how_many_run_at_once(num_games):
    alone = play(Odd(), [RandomPolicy()], num_games=20)
    settings = PlaySettings(num_games=num_games)
    together = SelfPlay(Odd(), settings).collect(RandomPolicy(), 20)
    assert len(together) == 20
    assert_same(together, alone)


@pytest.mark.parametrize("num_games", [1, 3, 64])
def test_a_network_plays_the_same_games_however_many_run_at_once(num_games):
    torch.manual_seed(0)
    policy = NetPolicy(PolicyValueNet(ModelShape(state_size=4, hidden_dim=16)))
    alone = SelfPlay(Odd(), PlaySettings(num_games=20)).collect(policy, 20)
    together = SelfPlay(Odd(), PlaySettings(num_games=num_games)).collect(policy, 20)
    assert len(np.unique(alone.chosen_N)) > 2
    # Sums of 16 products in another order: a few units of float32's 1.2e-7.
    assert_same(together, alone, log_prob_tolerance=1e-6)


def test_exactly_the_games_asked_for_are_started_and_all_are_finished():
    """If the first n games to finish were taken, short games would come too often."""
    game = Odd(most_turns=60)
    episodes = SelfPlay(game, PlaySettings(num_games=4), seed=3).collect(RandomPolicy(), 50)
    assert len(episodes) == 50
    # One more state is made to look at its width.
    assert game.seeds[1:] == derive_seeds(3, GAMES, 0, 50).tolist()
    lengths = [one_by_one(game, RandomPolicy(), seed)[2] for seed in game.seeds[1:51]]
    assert episodes.num_turns == sum(lengths)
    assert min(lengths) < 10 < 100 < max(lengths)


def test_games_differ_only_by_their_seed():
    first = play(Odd(), [RandomPolicy()], seed=1)
    assert_same(play(Odd(), [RandomPolicy()], seed=1), first)
    other = play(Odd(), [RandomPolicy()], seed=2)
    assert other.action_id_A.tolist() != first.action_id_A.tolist()
    # Within one collect as well: no game is a copy of another.
    games = {tuple(first.action_id_A[episode.steps.start : episode.steps.stop]) for episode in first}
    assert len(games) == 20


def test_a_resumed_source_goes_on_with_the_same_games():
    source = SelfPlay(Odd(), PlaySettings(), seed=5)
    source.collect(RandomPolicy(), 7)
    state = source.state_dict()
    assert state == {"num_started": 7}
    expected = source.collect(RandomPolicy(), 7)
    resumed = SelfPlay(Odd(), PlaySettings(), seed=5)
    resumed.load_state_dict(state)
    assert_same(resumed.collect(RandomPolicy(), 7), expected)
    source.close()
    both = SelfPlay(Odd(), PlaySettings(), seed=5).collect(RandomPolicy(), 14)
    assert both.return_EP[7:].tolist() == expected.return_EP.tolist()


@pytest.mark.parametrize(("num_games", "size"), [(20, 2), (7, 3), (2, 3)])
def test_several_processes_play_the_games_of_one(num_games, size):
    game = Odd()
    alone = SelfPlay(game, PlaySettings(), seed=4)
    several = [
        SelfPlay(game, PlaySettings(), seed=4, share=World(torch.device("cpu"), rank, size).share)
        for rank in range(size)
    ]
    for _ in range(2):
        parts = [source.collect(RandomPolicy(), num_games) for source in several]
        assert_same(concatenate(parts), alone.collect(RandomPolicy(), num_games))
    assert all(source.state_dict() == alone.state_dict() == {"num_started": 2 * num_games} for source in several)


def test_no_games():
    episodes = play(Odd(), [RandomPolicy()], num_games=0)
    assert (len(episodes), episodes.num_steps, episodes.num_turns) == (0, 0, 0)


# --- Rewards and forced turns

# Two players. Player 1 is paid during player 0's turns, during forced turns and before their first decision.
SCRIPT = [
    (1, [9], [0.0, 5.0]),  # forced: 5 before player 1's first decision
    (0, [1, 2], [1.0, -1.0]),
    (1, [3, 4, 5], [0.0, 2.0]),
    (0, [6], [10.0, 20.0]),  # forced
    (1, [7], [0.0, 100.0]),  # forced
    (0, [8, 9], [0.5, 0.25]),
    (0, [1, 3], [-3.0, 0.0]),
    (1, [2], [40.0, 80.0]),  # forced, at the end
]


def test_forced_turns_are_dropped_and_their_rewards_kept():
    policy = Picker(parity=0)
    episodes = play(Scripted(2, SCRIPT), [policy], num_games=1).check()
    assert episodes.player_N.tolist() == [0, 1, 0, 0]
    assert episodes.state_NS.tolist() == [[0, 1], [1, 2], [0, 5], [0, 6]]
    assert episodes.action_offsets.tolist() == [0, 2, 5, 7, 9]
    assert episodes.action_id_A.tolist() == [1, 2, 3, 4, 5, 8, 9, 1, 3]
    assert episodes.chosen_N.tolist() == [1, 1, 0, 0]
    # Player 0: 1 + 0 + 10 + 0 to the next own decision, then 0.5, then -3 + 40.
    # Player 1: 2 + 20 + 100 + 0.25 + 0 + 80 from the only decision; the 5 and -1 before it count in the return only.
    assert episodes.reward_N.tolist() == [11.0, 202.25, 0.5, 37.0]
    assert episodes.return_EP.tolist() == [[48.5, 206.25]]
    assert episodes.episode_offsets.tolist() == [0, 4]
    assert episodes.num_turns == 8
    assert [turns.turn_B.tolist() for turns in policy.asked] == [[1], [2], [5], [6]]


def test_forced_turns_are_recorded_on_demand():
    episodes = play(Scripted(2, SCRIPT), [Picker(parity=0)], num_games=1, keep_forced=True).check()
    assert episodes.player_N.tolist() == [1, 0, 1, 0, 1, 0, 0, 1]
    assert np.diff(episodes.action_offsets).tolist() == [1, 2, 3, 1, 1, 2, 2, 1]
    # The sum of a player's rewards is the return, now that the first turn is a step.
    assert episodes.reward_N.tolist() == [4.0, 1.0, 22.0, 10.0, 100.25, 0.5, 37.0, 80.0]
    assert episodes.return_EP.tolist() == [[48.5, 206.25]]


@pytest.mark.parametrize("num_players", [1, 2, 3])
def test_dropping_forced_turns_later_gives_the_same_columns(num_players):
    kept = play(Odd(num_players), [RandomPolicy()], num_games=50, keep_forced=True)
    assert_same(kept.without_forced(), play(Odd(num_players), [RandomPolicy()], num_games=50))


def test_a_game_with_nothing_to_decide_has_no_steps():
    game = Scripted(2, [(0, [4], [1.0, 0.0]), (1, [5], [0.0, 2.0])])
    episodes = play(game, [RandomPolicy()], num_games=3).check()
    assert (len(episodes), episodes.num_steps, episodes.num_turns) == (3, 0, 6)
    assert episodes.return_EP.tolist() == [[1.0, 2.0]] * 3
    assert episodes.episode_offsets.tolist() == [0, 0, 0, 0]


def test_a_game_that_is_over_before_its_first_turn():
    episodes = play(Scripted(3, []), [RandomPolicy()], num_games=2).check()
    assert (len(episodes), episodes.num_steps, episodes.num_turns) == (2, 0, 0)
    assert episodes.return_EP.tolist() == [[0.0] * 3] * 2


# --- Games that do not end


@pytest.mark.parametrize("keep_forced", [False, True])
def test_a_game_that_is_too_long_is_cut_off_with_its_final_states(keep_forced):
    episodes = play(Scripted(2, SCRIPT), [Picker(parity=0)], num_games=2, max_turns=4, keep_forced=keep_forced).check()
    assert episodes.truncated_E.tolist() == [True, True]
    assert episodes.num_turns == 8
    assert episodes.return_EP.tolist() == [[11.0, 26.0]] * 2
    # Each seat's view of turn 4, where the game stands still.
    assert episodes.final_state_EPS.tolist() == [[[0, 4], [1, 4]]] * 2
    assert episodes.final_state_EPS.dtype == np.float32
    assert episodes.num_steps == (8 if keep_forced else 4)
    if not keep_forced:
        assert episodes.reward_N.tolist() == [11.0, 22.0] * 2


def test_a_game_of_exactly_max_turns_is_whole():
    episodes = play(Scripted(2, SCRIPT), [Picker(parity=0)], num_games=1, max_turns=8)
    assert episodes.truncated_E.tolist() == [False]
    assert episodes.final_state_EPS is None


def test_only_the_long_games_are_cut_off():
    whole = play(Odd(), [RandomPolicy()])
    cut = play(Odd(), [RandomPolicy()], max_turns=6).check()
    lengths = [one_by_one(Odd(), RandomPolicy(), int(seed))[2] for seed in derive_seeds(0, GAMES, 0, 20)]
    assert cut.truncated_E.tolist() == [length > 6 for length in lengths]
    assert cut.truncated_E.any()
    assert not cut.truncated_E.all()
    np.testing.assert_array_equal(cut.return_EP[~cut.truncated_E], whole.return_EP[~cut.truncated_E])
    assert not cut.final_state_EPS[~cut.truncated_E].any()
    assert (cut.final_state_EPS[cut.truncated_E, :, 1] > 0).all()


# --- Whose turn it is


def test_each_policy_is_asked_for_its_own_seats_only():
    """Seat 0 of even games and seat 1 of odd games belong to the first policy."""
    seats = [[game % 2, 1 - game % 2] for game in range(20)]
    odd, even = Picker(parity=1), Picker(parity=0)
    episodes = play(Odd(), [odd, even], seats=seats).check()
    seeds = derive_seeds(0, GAMES, 0, 20).tolist()
    for number, policy in enumerate([odd, even]):
        asked = [
            (seeds.index(seed), int(player))
            for turns in policy.asked
            for seed, player in zip(turns.seed_B, turns.state_BS[:, 0], strict=True)
        ]
        assert asked
        assert all(seats[game][seat] == number for game, seat in asked)
    assert len(odd.asked) + len(even.asked) < episodes.num_steps  # several games share a call
    np.testing.assert_array_equal(episodes.controller_EP, np.where(np.array(seats) == 0, POLICY, OTHER))
    # The odd picker gains whenever it can: its choices are odd wherever its list has an odd id.
    for episode in episodes:
        for step in episode.steps:
            ids = episode.actions(step)
            wanted = 1 - seats[episode.index][episodes.player_N[step]]
            assert ids[episodes.chosen_N[step]] % 2 == wanted or not (ids % 2 == wanted).any()


def test_a_policy_without_a_turn_is_not_asked():
    idle = Picker(parity=0)
    play(Odd(), [RandomPolicy(), idle])
    assert idle.asked == []


# --- Games of one's own that are a little different, and games that are wrong


class ArrayState(ScriptedState):
    """Hands out arrays of numpy where lists would do."""

    def legal_actions(self):
        return np.array(super().legal_actions(), np.uint64)

    def observe(self, player):
        return np.array(super().observe(player), np.float64)

    def returns(self):
        return np.array(super().returns())

    def current_player(self):
        player = super().current_player()
        return None if player is None else np.int64(player)


def test_a_game_may_hand_out_arrays():
    """`check_game` accepts them, so self-play must."""
    game = Scripted(2, [(0, [1, 2**64 - 1], [1.0, 0.0]), (1, [5], [0.0, 2.0]), (1, [2**63, 7], [0.0, 0.5])])
    expected = play(game, [RandomPolicy()])
    game.new_state = lambda seed: ArrayState(game)
    assert_same(play(game, [RandomPolicy()]).check(), expected)
    assert expected.action_id_A[:4].tolist() == [1, -1, -(2**63), 7]


def test_an_empty_list_is_named_by_seed_and_turn():
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (1, [], [0.0, 0.0])])
    seed = derive_seeds(0, GAMES, 0, 1)[0]
    for settings in ({}, {"keep_forced": True}):
        with pytest.raises(GameError) as caught:
            play(game, [RandomPolicy()], num_games=1, **settings)
        assert str(caught.value) == f"a turn offers no legal action (game with seed {seed}, turn 1)"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.0, 2.0], "an action id is not an integer: got 1.0 (float)"),
        ([2**64, 1], "an action id does not fit 64 bits: got 18446744073709551616"),
        (
            [3, 3],
            "the action id 0x0000000000000003 stands twice in one list (scripted, episode 0, step 1, field action",
        ),
    ],
)
def test_bad_ids_are_refused(ids, message):
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (0, ids, [0.0, 0.0])])
    with pytest.raises(DataError) as caught:
        SelfPlay(game, PlaySettings()).collect(RandomPolicy(), 2)
    assert str(caught.value).startswith(message)
    where = f"game with seed {derive_seeds(0, GAMES, 0, 1)[0]}, turn 1"
    assert ids == [3, 3] or f"({where})" in str(caught.value)


def test_bad_numbers_are_refused_with_seed_and_turn():
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (0, [1, 2], [np.nan, 0.0])])
    with pytest.raises(GameError) as caught:
        SelfPlay(game, PlaySettings()).collect(RandomPolicy(), 2)
    assert str(caught.value) == (
        "returns is not one finite number for each seat: got [nan, 0.0], expected 2 finite numbers "
        f"(game with seed {derive_seeds(0, GAMES, 0, 1)[0]}, turn 2)"
    )


@pytest.mark.parametrize("player", [-1, 2])
def test_a_player_that_there_is_not_is_named(player):
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (player, [1, 2], [0.0, 0.0])])
    with pytest.raises(GameError) as caught:
        play(game, [RandomPolicy()], num_games=1)
    where = f"game with seed {derive_seeds(0, GAMES, 0, 1)[0]}, turn 1"
    assert str(caught.value) == (
        f"current_player is no seat: got {player}, expected 0 to 1, or None when the game is over ({where}). "
        "Play chance turns inside new_state and apply."
    )


@pytest.mark.parametrize("view", [[7.0], [1.0, 2.0, 3.0]])
def test_a_state_of_another_width_is_named(view):
    class Narrow(ScriptedState):
        def observe(self, player):
            return view if self.turn else super().observe(player)

    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (1, [1, 2], [0.0, 0.0])])
    game.new_state = lambda seed: Narrow(game)
    with pytest.raises(
        GameError, match=rf"observe changes its width: got \[{len(view)}\], expected \[2\] as .*, turn 1\)"
    ):
        play(game, [RandomPolicy()], num_games=1)


@pytest.mark.parametrize("max_turns", [1, 2])
def test_returns_of_too_few_seats_are_named(max_turns):
    class Short(ScriptedState):
        def returns(self):
            return super().returns()[:1]

    game = Scripted(2, [(0, [1, 2], [0.0, 0.0])] * 2)
    game.new_state = lambda seed: Short(game)
    with pytest.raises(GameError, match=r"^returns is not .*: got \[0.0\], expected 2 finite numbers \(game with seed"):
        play(game, [RandomPolicy()], num_games=1, max_turns=max_turns)


# --- Games that use their memory again, and games whose own code fails


class Reusing(OddState):
    """Every state of the game fills the same list and the same array."""

    def legal_actions(self):
        self.game.ids[:] = super().legal_actions()
        return self.game.ids

    def observe(self, player):
        self.game.row[:] = super().observe(player)
        return self.game.row


@pytest.mark.parametrize("settings", [{}, {"max_turns": 3}, {"keep_forced": True}])
def test_a_game_may_fill_the_same_list_and_array_again(settings):
    game = Odd(3)
    game.ids, game.row = [], np.zeros(4, np.float32)
    game.new_state = lambda seed: Reusing(game, seed)
    assert_same(play(game, [RandomPolicy()], **settings), play(Odd(3), [RandomPolicy()], **settings))


@pytest.mark.parametrize("method", ["current_player", "legal_actions", "observe", "apply", "returns"])
def test_an_exception_in_the_games_own_code_is_named_with_seed_and_turn(method):
    class Failing(ScriptedState):
        pass

    def fail(self, *arguments):
        if self.turn == 1:
            raise ZeroDivisionError("no piece\nleft")
        return getattr(ScriptedState, method)(self, *arguments)

    setattr(Failing, method, fail)
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0])] * 3)
    game.new_state = lambda seed: Failing(game)
    with pytest.raises(GameError) as caught:
        play(game, [RandomPolicy()], num_games=1)
    seed = derive_seeds(0, GAMES, 0, 1)[0]
    message = str(caught.value)
    assert message.startswith(f"the game's own code failed: ZeroDivisionError: no piece left at {__file__}, line ")
    assert f"(game with seed {seed}, turn 1). Called from Python" in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_game_that_does_not_start_is_named_with_its_seed():
    game = Odd()
    game.new_state = lambda seed: OddState(game, seed) if seed < 2**32 else np.random.RandomState(seed)
    with pytest.raises(GameError, match=r"^the game's own code failed: ValueError: Seed must be .* seed % 2\*\*32"):
        play(game, [RandomPolicy()], num_games=1)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("returns", None, "returns is not one finite number for each seat: got None"),
        ("current_player", True, "current_player is no seat: got True"),
        ("legal_actions", iter([1, 2]), "legal_actions is not a row of ids: got list_iterator"),
        ("legal_actions", {1, 2}, "legal_actions is not a row of ids: got set"),
        ("observe", [0, 2**60 + 1], "an observation is an integer that float32 would round: got 1152921504606846977"),
        ("observe", [0.0, -1e38], "an observation is too large to learn from: got -1e+38 at 1"),
        ("observe", [0.0, np.nan], "an observation is not finite: got nan at 1"),
        ("observe", [0.0, "x"], "observe does not return numbers: got could not convert string to float"),
    ],
)
def test_what_the_check_refuses_is_refused_in_self_play(method, answer, message):
    class Wrong(ScriptedState):
        pass

    def wrong(self, *arguments):
        return answer if self.turn == 1 else getattr(ScriptedState, method)(self, *arguments)

    setattr(Wrong, method, wrong)
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0])] * 3)
    game.new_state = lambda seed: Wrong(game)
    with pytest.raises(GameError) as caught:
        play(game, [RandomPolicy()], num_games=1)
    assert str(caught.value).startswith(message)
    assert f"game with seed {derive_seeds(0, GAMES, 0, 1)[0]}, turn 1" in str(caught.value)


def test_num_players_that_changes_is_named():
    game = Odd()

    def new_state(seed):
        game.num_players = 3
        return OddState(game, seed)

    seats = np.zeros((1, 2), np.int64)
    game.new_state = new_state
    with pytest.raises(GameError, match=r"^num_players changes with the seed: got 3, expected 2 as before"):
        play_games(game, [RandomPolicy()], seats, derive_seeds(0, GAMES, 0, 1), PlaySettings())


def test_an_action_named_twice_is_told_the_cure():
    game = Scripted(2, [(0, [3, 3], [0.0, 0.0])])
    with pytest.raises(DataError) as caught:
        SelfPlay(game, PlaySettings()).collect(RandomPolicy(), 2)
    assert str(caught.value).endswith(REFUSED_TWICE)
