"""What holds for every test: one thread of arithmetic, and property tests that do not depend on the clock."""

import os
import signal

import pytest
from hypothesis import settings

# Same seed, same bytes holds at a fixed thread count, and tensors this small gain nothing from a second thread. Set
# before torch is imported; child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: the first call of a torch operation may take a second. In CI the same examples each time.
settings.register_profile("movelist", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("movelist")

# A job that a shell started in the background ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def processor_without_bfloat16(monkeypatch):
    """Let the tests mean the same on every processor; those of mixed precision give it what it needs."""
    monkeypatch.setattr("movelist.learn.device.multiplies_bfloat16", lambda: False)
