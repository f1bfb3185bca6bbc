"""The settings of `movelist benchmark`; free of torch, like the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from movelist.core.checks import at_least, check_kinds, require


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """Ways to score lists of legal actions, from one network call a step to movelist's, timed on this machine."""

    command: ClassVar[str] = "benchmark"
    """The command that has these flags."""

    game: str = "dou_dizhu"
    """The game whose steps are measured, named as in train, played by random players."""

    data: tuple[Path, ...] = ()
    """Recordings, or folders of them, to take the steps from instead; --game does not count then."""

    num_episodes: int = 200
    """Games to play, or at most to read: enough for the largest batch size."""

    hidden_dim: int = 512
    """Width of the network."""

    batch_sizes: tuple[int, ...] = (256, 2048)
    """Steps in a minibatch; each is measured."""

    repetitions: int = 5
    """Times that each way is timed, in turns with the others; the table shows medians."""

    compile: bool = False
    """Measure torch.compile too; it needs a C++ compiler and takes a minute to start."""

    chart: Path | None = None
    """Draw the result there, as an SVG picture."""

    seed: int = 0
    """Of the games, the steps drawn and the weights."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. "auto" takes the GPU if there is one."""

    num_threads: int | None = None
    """CPU threads for computing. 1 is steadier on a machine that others use too."""

    cpu_time: bool = False
    """Count the seconds of the processor instead of the clock's, with --num_threads 1 on a CPU: for a machine so busy
    that a clock would mostly measure the others."""

    def __post_init__(self) -> None:
        check_kinds(self)
        alone = self.num_threads == 1 and self.device == "cpu"
        require(self, alone or not self.cpu_time, "cpu_time", "--num_threads 1 and --device cpu with it")
        at_least(self, 1, "num_episodes", "hidden_dim", "repetitions", "num_threads")
        at_least(self, 0, "seed")
        require(self, bool(self.batch_sizes) and min(self.batch_sizes) >= 2, "batch_sizes", "each at least 2")
