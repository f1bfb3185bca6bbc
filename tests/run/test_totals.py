"""What all processes collected together."""

import numpy as np
import torch

from movelist.core.settings import PlaySettings
from movelist.data.loader import nothing
from movelist.data.record_format import Widths
from movelist.learn.parallel import World
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run.totals import Totals
from play.toys import Odd

ALONE = World(torch.device("cpu"))


def test_the_totals_of_one_process_are_its_own():
    episodes = SelfPlay(Odd(), PlaySettings()).collect(RandomPolicy(), 20)
    totals = Totals.of(episodes, ALONE)
    assert (totals.processes, totals.episodes, totals.steps) == (1, 20, episodes.num_steps)
    assert (totals.actions, totals.turns) == (episodes.num_actions, episodes.num_turns)
    assert totals.return_P.tolist() == episodes.return_EP.mean(axis=0).tolist()


def test_nothing_has_no_returns():
    totals = Totals.of(nothing(Widths("toy", 2, (3,), "float32")), ALONE)
    assert (totals.episodes, totals.steps) == (0, 0)
    assert np.array_equal(totals.return_P, [0.0, 0.0])
