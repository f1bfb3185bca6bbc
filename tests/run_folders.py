"""Checkpoints and run folders for the tests."""

import pytest
import torch

from movelist.core.errors import CheckpointError, SaveError
from movelist.core.settings import TrainSettings
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.run import checkpoint
from movelist.run.folder import RunFolder

SHAPE = ModelShape(state_size=4, hidden_dim=16)
COUNTERS = {"steps": 10, "episodes": 2, "seconds": 0.5}


def some_state(seed=0):
    torch.manual_seed(seed)
    settings = TrainSettings.from_flat({"game": "odd", "hidden_dim": 16})
    learner = Learner(PolicyValueNet(SHAPE), settings.update, World(torch.device("cpu")))
    return checkpoint.pack(
        settings=settings.to_flat(),
        shape=SHAPE,
        learner=learner.state_dict(),
        source={"num_started": 7},
        recorded=None,
        handed_in={},
        counters=COUNTERS,
        device=torch.device("cpu"),
    )


def run_with_one_checkpoint(tmp_path):
    """A run folder with checkpoint number 1."""
    folder = RunFolder(tmp_path / "run")
    folder.write_json("settings.json", {"game": "odd", "hidden_dim": 16})
    folder.save(1, some_state(), keep=3)
    return folder


def weights(state):
    return {name: tensor.numpy().tobytes() for name, tensor in state["learner"]["net"].items()}


def refusal(call, *arguments, **options):
    """The message of the error that a call ends with; it is one line. A full disk is no wrong use."""
    with pytest.raises((CheckpointError, SaveError)) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == (2 if isinstance(caught.value, CheckpointError) else 1)
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir())
