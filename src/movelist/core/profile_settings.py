"""The settings of `movelist profile`; free of torch, like the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from movelist.core.errors import SettingsError
from movelist.core.settings import TrainSettings, _above_zero, _at_least


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Where the time of a training goes: a short training with the same flags, looked at from several sides.

    It writes profile.json and a trace to --out, or to a new folder profiles/GAME-DATE-TIME, and no run.
    """

    train: TrainSettings = field(default_factory=TrainSettings)

    updates: int = 5
    """Updates in the plain look, and as many in the look at the spans. More make the numbers steadier."""

    trace: bool = True
    """Write a trace of one update, trace.json.gz, which https://ui.perfetto.dev opens."""

    tune: bool = False
    """Try other settings, in turns with the ones given, and write what is faster as a preset."""

    tune_seconds: float = 60.0
    """About how long --tune may take, at least three updates of each way. torch.compile is tried from 240 on: it
    takes half a minute to start."""

    ratio: str | None = None
    """Instead of a profile: how fast the settings given are against those of a preset ("fast", or a file), in turns."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "updates")
        _above_zero(self, "tune_seconds")
        if self.train.recorded.watch:
            raise SettingsError("--watch cannot be profiled", do="Profile the recorded episodes: --data without it.")
