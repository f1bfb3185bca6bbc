"""What a profile found: numbers only, as they stand in profile.json. Texts are made from them where they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from movelist.core.errors import DataError
from movelist.data.whole_file import write_whole

FORMAT = "movelist-profile/1"
# Where the time of an update can go, in the order that it is shown; together they are all of it.
SPANS = ("game", "plan", "load", "copy", "forward", "loss", "backward", "optimiser", "logging", "idle")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it was measured. Memory in bytes."""

    cpu: str
    cores: int
    threads: int
    memory: int
    device: str
    device_memory: int | None
    platform: str
    python: str
    torch: str
    movelist: str
    amp: str | None = None
    """What mixed precision computes in on this device; None where it does nothing."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The plain look: whole updates by the clock, nothing else installed."""

    seconds: float
    rollout_seconds: float
    """Collecting episodes: playing or loading them."""

    update_seconds: float
    """Preparing and updating."""

    episodes: int
    steps: int
    legal_actions: int
    updates: int
    seconds_of_update: list[float]
    """One number for each update, rollout included: their spread is the noise."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One kind of work."""

    name: str
    host_seconds: float
    share: float
    """Of all host time; the shares of all spans sum to 1."""

    device_seconds: float | None
    """Between events on the device, read after the run, gaps included; None without a GPU."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One of the looks, and whether looking changed what was seen."""

    name: str
    seconds: float
    updates: int
    ratio: float
    """Its seconds for a step over those of the plain look; updates differ in their steps."""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Between host and device, for one update; None as a whole without a GPU."""

    share: float
    """Of the device's busy time."""

    to_device_bytes: int
    to_host_bytes: int
    count: int
    pageable: int
    """How many were from or to memory that is not pinned, which makes the host wait."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How much of the time is spent on the formula's own operations."""

    share: float | None
    """Device time in compute kernels over all device time; None without a GPU."""

    flops: float
    """Operations of the formula in one update's epochs; preparing is not counted."""

    rate: float
    """Those over the seconds of preparing and updating, per second."""

    matmul_rate: float
    """The device's own for a matrix product of this width, measured beside it."""

    @property
    def efficiency(self) -> float:
        """Share of the matrix product rate."""
        return self.rate / self.matmul_rate


@dataclass(frozen=True, kw_only=True)
class WaitPlace:
    """A line where the host waits for the device."""

    file: str
    line: int
    source: str
    """The text of that line."""

    kind: str
    count: float
    """In one update."""

    known: bool
    """One of the two that an update needs, or the one that each network call needs while playing."""


@dataclass(frozen=True, kw_only=True)
class WaitFindings:
    """All of them, and what the detector cannot see."""

    places: list[WaitPlace]
    per_update: float
    rehearsal: bool
    """No GPU: counted is what would wait on one."""

    unseen: list[str]

    rollout: list[WaitPlace] = field(default_factory=list)
    """Beside them, the reads of one update's collecting: a policy's choice is read once for each network call."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """In bytes. On a CPU only the process."""

    process_peak: int
    allocated: int | None = None
    peak_allocated: int | None = None
    reserved: int | None = None
    device_total: int | None = None
    retries: int | None = None
    """How often the allocator had to give back its cache and ask again."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Sampled beside the loop, not in it."""

    gpu_use: float | None
    """NVML: share of time in which at least one kernel ran, however small; None without it."""

    gpu_busy: float | None
    """Share of the traced update in which the device did anything, by its kernels and copies: the honest one."""

    cpu_use: float
    """Of all cores, 0 to 1, by this process."""

    samples: int


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The lists of legal actions."""

    histogram: list[tuple[int, int, int]]
    """Shortest and longest length of a class, both included, and the steps in it."""

    mean: float
    longest: int
    unique_share: float
    """Different ids among the legal actions of a minibatch."""

    padding: float
    """Entries of a table padded to the longest list of each minibatch, over the legal actions."""

    steps_in_batch: float
    """Average micro-batch."""

    states_in_call: float
    """Average number of turns that one network call answered while playing; 0 where nothing was played."""

    recompiles: int | None = None


@dataclass(frozen=True, kw_only=True)
class PerSample:
    """The guide's "before", run briefly on the same steps: one network call a step, bits one by one."""

    steps_per_second: float
    ours: float
    """Steps a second of the update, same network, same steps."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate of --tune, in turns with the settings as they were. Ratios of steps a second, candidate over
    before."""

    changes: dict[str, Any]
    steps_per_second: float
    """With them."""

    ratio: float
    ratio_low: float
    ratio_high: float
    """The 95 % interval of the mean of the paired ratios."""

    runs: int
    """Pairs."""

    against: dict[str, Any] = field(default_factory=dict)
    """Changes that were kept already: both sides had them. Empty: against the settings as they were."""

    @property
    def helped(self) -> bool:
        """Faster beyond the spread."""
        return self.ratio_low > 1.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A setting to change, and why."""

    kind: str
    """Which finding it answers; the texts in each language are under this name."""

    flag: str
    value: Any
    numbers: dict[str, float | str] = field(default_factory=dict)
    """What the text quotes."""

    ratio: float | None = None
    """What it did when it was tried; None: not tried."""

    more: dict[str, Any] = field(default_factory=dict)
    """Settings that are changed along with it: more games at once need an update that asks for them."""

    @property
    def changes(self) -> dict[str, Any]:
        """All of it."""
        return {self.flag: self.value, **self.more}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All that one profile found."""

    created: str
    machine: Machine
    command: str
    settings: dict[str, Any]
    source: str
    """What was trained on: a game, or files."""

    timing: Timing
    spans: list[Span]
    looks: list[Look]
    copies: Copies | None
    compute: Compute
    waits: WaitFindings
    memory: Memory
    hardware: Hardware
    shapes: Shapes
    per_sample: PerSample | None
    advice: list[Advice]
    trials: list[Trial]
    tuned: dict[str, Any] | None = None
    """The settings that --tune ended with, where they differ; with their trial last in `trials`."""

    format: str = FORMAT


def write_profile(profile: Profile, path: Path) -> None:
    """Write profile.json as a whole."""
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"
    write_whole(path, lambda file: file.write(text))


def read_profile(path: Path) -> Profile:
    """Read what `write_profile` wrote.

    Raises:
        DataError: The file is not there, or is no profile; names it and the field.
    """
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(
            "a profile cannot be read", got=error, where=str(path), do="movelist profile makes one: profile.json."
        ) from None
    if profile.format != FORMAT:
        raise DataError("this is another format of profile", got=profile.format, expected=FORMAT, where=str(path))
    return profile
