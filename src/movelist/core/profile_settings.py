"""The settings of `movelist profile`; free of torch, like the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from movelist.core.checks import above_zero, at_least
from movelist.core.errors import SettingsError
from movelist.core.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Where the time of a training goes: a short training with the same flags, looked at from several sides.

    It writes its files to --out, or to a new folder profiles/GAME-DATE-TIME, and leaves no run behind.
    """

    command: ClassVar[str] = "profile"
    train: TrainSettings = field(default_factory=TrainSettings)

    updates: int = 5
    """Updates in the plain look, and as many in the look at the spans. More make the numbers steadier."""

    trace: bool = True
    """Write a trace of one update, trace.json.gz, which https://ui.perfetto.dev opens."""

    tune: bool = False
    """Try other settings, in turns with the ones given, and write what is faster as a preset."""

    tune_seconds: float = 60.0
    """About how long --tune may take, at least three updates of each way. torch.compile takes half a minute to start:
    it is tried where the findings advise it, and else from 240 on."""

    ratio: str | None = None
    """Instead of a profile: how fast the settings given are against those of a preset ("fast", or a file), in turns."""

    compare: tuple[Path, ...] = ()
    """OLD.json, to hold this profile against; or OLD.json NEW.json, to hold two against each other without measuring
    anew."""

    lang: Literal["en", "zh"] = "en"
    """The language of findings and advice."""

    report: bool = True
    """Write report.html, a page with all of it."""

    def __post_init__(self) -> None:
        at_least(self, 1, "updates")
        above_zero(self, "tune_seconds")
        if len(self.compare) > 2:
            raise SettingsError(
                "--compare takes one profile or two",
                got=len(self.compare),
                do="movelist profile --compare OLD.json NEW.json",
            )
        if self.train.recorded.watch:
            raise SettingsError("--watch cannot be profiled", do="Profile the recorded episodes: --data without it.")
