"""A source of episodes: here random games, played by one's own code; it could be a data base, or other machines."""

import numpy as np

import movelist
from movelist.play.selfplay import play_games


class Games:
    def __init__(self, game):
        self.game, self.number = game, 0

    def collect(self, policy, num_episodes):
        seeds = np.arange(self.number, self.number + num_episodes)
        self.number += num_episodes
        seats = np.zeros((num_episodes, self.game.num_players), np.int64)
        return play_games(self.game, [policy], seats, seeds, movelist.TrainSettings().play).check("my games")

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]

    def close(self):
        pass


if __name__ == "__main__":
    game = movelist.make_game("kuhn_poker")
    movelist.train(game, source=Games(game), total_steps=3_000, eval_games=200, hidden_dim=64)
