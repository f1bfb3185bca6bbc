"""Equal deals: 0.5 for equal players in every game, partners are no enemies, and what fails or repeats is counted."""

import pickle
import random

import numpy as np
import pytest

from movelist.core.errors import GameError, PlayerError
from movelist.core.settings import PlaySettings
from movelist.games.catalog import make_game
from movelist.games.check import check_game
from movelist.games.openings import Openings, opening_length
from movelist.play.arena import match
from movelist.play.deals import Pairing, outcomes, play_deals, seatings
from movelist.play.policy import RandomPolicy
from play.deal_games import Bidding, BiddingState, Count, Fails, FailsInBatch, Partners, Perfect, Takes
from play.toys import Odd, Picker, Scripted

# --- Seatings


def test_a_deal_is_played_once_for_every_seat_and_reversed():
    assert seatings(Odd(2)).seats_KP.tolist() == [[0, 1], [1, 0]]
    three = [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert seatings(Odd(3)).seats_KP.tolist() == three
    assert seatings(Odd(1)).seats_KP.tolist() == [[0], [1]]
    assert seatings(Partners()).seats_KP.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    game = Odd(4)
    game.teams = ((0, 1, 2, 3),)  # all together: X and Y one after another
    assert seatings(game).seats_KP.tolist() == [[0] * 4, [1] * 4]


@pytest.mark.parametrize("teams", [((0, 1), (1, 2)), ((0, 1),), (0, 1, 2), ((0, 1), (2, 3)), ((0.5, 1), (2,))])
def test_teams_hold_every_seat_once(teams):
    game = Odd(3)
    game.teams = teams
    with pytest.raises(
        GameError, match=r"^teams do not hold every seat once: got .*, expected groups of the seats 0 to"
    ):
        match(RandomPolicy(), RandomPolicy(), game, num_games=2)


# --- What equal players get


@pytest.mark.parametrize("game", [Odd(1), Odd(2), Odd(3), Bidding(), Partners()], ids=str)
def test_equal_players_get_exactly_half(game):
    for player in (RandomPolicy(), Picker(parity=1)):
        result = match(player, player, game, num_games=120)
        assert result.win_rate == pytest.approx(0.5, abs=1e-12)
        for part in (*result.seats, *result.roles.values(), *([result.alone] if result.alone else [])):
            assert part.win_rate == pytest.approx(part.equal_rate, abs=1e-12)


def test_with_three_players_half_is_what_an_equal_player_gets_and_the_plain_rate_is_not():
    result = match(RandomPolicy(), RandomPolicy(), Bidding(), num_games=1200)
    assert result.alone.win_rate == result.alone.equal_rate != 0.5
    assert abs(result.alone.win_rate - 0.5) > 0.05
    assert result.roles["landlord"].equal_rate < 0.45 < 0.55 < result.roles["peasants"].equal_rate
    better = match(Picker(parity=1), Picker(parity=0), Bidding(), num_games=1200)
    assert better.win_rate_interval[0] > 0.5
    for part in (better.alone, *better.roles.values(), *better.seats):
        assert part.win_rate > part.equal_rate
    assert better.win_rate - 0.5 == pytest.approx(better.alone.win_rate - better.alone.equal_rate)
    assert set(better.roles) == {"landlord", "peasants"}  # not what has no role, for nobody bid
    assert 500 < sum(role.num_games for role in better.roles.values()) < better.alone.num_games == 600
    assert 2 * better.roles["landlord"].num_games == better.roles["peasants"].num_games
    text = "\n".join(better.lines())
    assert "alone against the others: win rate " in text
    assert "as landlord: win rate " in text


def test_sides_say_who_is_an_opponent():
    """Three against one: who is ahead of the mean of all others may be behind its opponents."""
    returns, sides = np.array([[2.0, 3.0, 0.0, 0.0]]), np.array([[0, 0, 1, 1]])
    assert outcomes(returns)[0, 0] == 1
    assert outcomes(np.array([[1.0, 5.0, 0.0, 0.0]]))[0, 0] == -1
    assert outcomes(np.array([[1.0, 5.0, 0.0, 0.0]]), sides)[0].tolist() == [1, 1, -1, -1]
    assert outcomes(returns, np.zeros((1, 4), int))[0].tolist() == [1, 1, 0, 0]  # nobody against them: above 0


def test_a_partner_is_no_enemy():
    """With whole teams the better one wins; seat by seat its partner would play for the other side."""
    result = match(Picker(parity=1), Picker(parity=0), Partners(), num_games=400)
    assert result.win_rate > 0.9
    assert result.num_games == 400
    assert [seat.num_games for seat in result.seats] == [200, 200]
    assert result.alone is None
    assert result.lines()[0].startswith("team 0: win rate ")


def test_alone_the_same_deal_is_compared():
    result = match(Picker(parity=1), RandomPolicy(), Odd(1), num_games=100)
    assert (result.num_games, result.deals) == (100, 100)
    assert result.wins > 60
    assert result.losses == 0
    assert match(RandomPolicy(), Picker(parity=1), Odd(1), num_games=100).win_rate == pytest.approx(1 - result.win_rate)


def test_several_pairings_at_once_are_the_same_as_one_by_one():
    players = [Picker(parity=1), Picker(parity=0), RandomPolicy()]
    together = play_deals(players, [Pairing(0, 1, 0, 5), Pairing(0, 2, 0, 7), Pairing(2, 1, 3, 4)], Odd(3))
    alone = play_deals(players, [Pairing(0, 2, 0, 7)], Odd(3))
    np.testing.assert_array_equal(together[1].score_D, alone[0].score_D)
    later = play_deals(players, [Pairing(2, 1, 0, 7)], Odd(3))
    np.testing.assert_array_equal(together[2].score_D, later[0].score_D[3:])


def test_equal_deals_need_fewer_games():
    """The same cards on both sides: the deals' means scatter less than games by themselves would."""
    result = match(Picker(parity=1), RandomPolicy(), Partners(), num_games=400)
    low, high = result.win_rate_interval
    by_itself = 1.96 * (result.win_rate * (1 - result.win_rate) / result.num_games) ** 0.5
    assert (high - low) / 2 < by_itself


# --- Openings


def test_how_games_without_chance_are_told():
    assert opening_length(Count()) == 4
    assert opening_length(Count(4)) == 1
    assert opening_length(Odd()) == 0
    assert opening_length(Bidding()) == 0


def test_how_openspiels_games_without_chance_are_told():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    lengths = {"connect_four": 4, "tic_tac_toe": 2, "kuhn_poker": 0, "leduc_poker": 0, "dou_dizhu": 0, "backgammon": 0}
    assert {name: opening_length(make_game(name)) for name in lengths} == lengths


def test_games_without_chance_start_from_openings_and_repeated_ones_do_not_count():
    result = match(Perfect(), Takes(), Count(), num_games=1000)
    assert result.openings == 4
    assert result.deals + result.repeated == 500
    assert result.deals == 5  # four decisions between two leave 12 to 16 of 20
    assert result.num_games == 2 * result.deals
    assert "behind 4 decisions by lot" in str(result)
    assert f"{result.repeated} more deals went as one of these" in str(result)
    from_start = match(Perfect(), Takes(), Count(), num_games=1000, openings=0)
    assert (from_start.num_games, from_start.deals, from_start.repeated) == (2, 1, 499)
    low, high = from_start.win_rate_interval
    assert high - low > 0.4  # one deal says little, however often it is played
    assert match(RandomPolicy(), Takes(), Count(), num_games=40).openings == 0  # who draws lots makes games differ


def test_a_game_whose_code_fails_is_named_when_it_is_played():
    class Broken(Count):
        def new_state(self, seed):
            raise ZeroDivisionError("no board")

    assert opening_length(Broken()) == 0
    with pytest.raises(GameError, match="the game's own code failed: ZeroDivisionError: no board"):
        match(Perfect(), Takes(), Broken(), num_games=4)


def test_an_opening_of_forced_turns_comes_to_an_end():
    class Forced:
        num_players = 2

        def new_state(self, seed):
            return ForcedState()

    class ForcedState:
        turns = 0

        def current_player(self):
            return 0

        def legal_actions(self):
            return [5]

        def apply(self, index):
            self.turns += 1

    assert Openings(Forced(), 2).new_state(0).turns == 200


def test_a_game_is_checked_for_its_teams_and_sides():
    assert check_game(Partners(), num_games=1)
    assert check_game(Bidding(), num_games=1)
    wrong = Partners()
    wrong.teams = ((0,), (1, 3))
    with pytest.raises(GameError, match=r"^teams do not hold every seat once"):
        check_game(wrong, num_games=1)
    told = Bidding()
    told.new_state = lambda seed: Untold(seed)
    with pytest.raises(GameError, match=r"^sides is not one small number for each seat: got 'all'"):
        check_game(told, num_games=1)


class Untold(BiddingState):
    def sides(self):
        return "all"


def test_both_sides_of_each_opening_and_the_same_one_for_the_same_seed():
    game = Openings(Count(), 3)
    states = [game.new_state(seed) for seed in range(40)]
    assert all(state.turn == 3 for state in states)
    assert len({state.heap for state in states}) > 2
    assert [game.new_state(seed).heap for seed in range(40)] == [state.heap for state in states]
    assert pickle.loads(pickle.dumps(game)).new_state(7).heap == game.new_state(7).heap
    assert (game.name, game.num_players) == ("count", 2)
    ends = Openings(Count(2), 9)  # every opening ends the game: it starts from its start
    assert ends.new_state(0).turn == 0


def test_connect_four_is_no_longer_two_games():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    result = match(Takes(), Picker(parity=0), make_game("connect_four"), num_games=200)
    assert result.deals > 80
    assert result.openings == 4


# --- Players that fail


@pytest.mark.parametrize("player", [Fails(), FailsInBatch()], ids=["bot", "policy"])
def test_who_fails_forfeits_and_the_others_go_on(player):
    with pytest.raises(PlayerError, match="made no choice"):
        match(player, Takes(), Count(), num_games=40)
    said = []
    result = match(player, Takes(), Count(), num_games=40, forfeit=True, say=said.append)
    assert 0 < result.forfeits <= result.num_games
    assert result.losses >= result.forfeits
    assert result.forfeits_against == 0
    assert f"{result.forfeits} forfeited by it" in str(result)
    assert said[0].startswith("Forfeit: the player ")
    assert "made no choice: got ZeroDivisionError" in "".join(said)
    mirrored = match(Takes(), player, Count(), num_games=40, forfeit=True, say=said.append)
    assert mirrored.forfeits_against == result.forfeits
    assert mirrored.win_rate == pytest.approx(1 - result.win_rate)
    assert match(player, Takes(), Count(), num_games=40, forfeit=True, play=PlaySettings(num_games=3)) == result


@pytest.mark.parametrize("player", [Fails(), FailsInBatch(), Perfect()], ids=["bot", "policy", "sound"])
def test_workers_change_nothing(player):
    results = [
        match(player, Takes(), Count(), num_games=40, forfeit=True, play=PlaySettings(rollout_workers=workers))
        for workers in (0, 2)
    ]
    assert results[0] == results[1]
    three = [
        match(Picker(parity=1), RandomPolicy(), Bidding(), num_games=36, play=PlaySettings(rollout_workers=workers))
        for workers in (0, 2)
    ]
    assert three[0] == three[1]


# --- What games tell


@pytest.mark.parametrize("sides", [[0, 1], [0, 1, "a"], [0, 1, -1], [0, 1, 200], 3])
def test_sides_that_are_none(sides):
    class Told(Bidding):
        def new_state(self, seed):
            state = BiddingState(seed)
            state.sides = lambda: sides
            return state

    message = "sides is not one small number for each seat" if sides != 3 else "the game's own code failed|sides is not"
    with pytest.raises(GameError, match=message):
        match(RandomPolicy(), RandomPolicy(), Told(), num_games=6)


def test_teams_and_sides_of_openspiel():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    assert make_game("bridge").teams == ((0, 2), (1, 3))
    assert make_game("leduc_poker").teams is None
    assert make_game("tiny_hanabi").teams == ((0, 1),)
    chance = random.Random(1)
    for name, sizes in (("dou_dizhu", [1, 2]), ("skat", [1, 2])):
        game = make_game(name)
        state = game.new_state(5)
        assert state.sides() is None
        while state.current_player() is not None:
            state.apply(chance.randrange(len(state.legal_actions())))
        sides, returns = state.sides(), state.returns()
        assert [sides.count(0), sides.count(1)] == sizes
        assert len({returns[seat] > 0 for seat in range(3) if sides[seat] == 1}) == 1
        assert game.side_names[0] in ("landlord", "solo player")
    result = match(RandomPolicy(), RandomPolicy(), make_game("dou_dizhu"), num_games=24)
    assert set(result.roles) == {"landlord", "peasants"}


def test_scripted_games_keep_their_draws():
    result = match(Picker(parity=1), Picker(parity=0), Scripted(2, [(0, [1, 2], [0, 0])]), num_games=8, openings=0)
    assert (result.draws, result.deals) == (result.num_games, 1)
