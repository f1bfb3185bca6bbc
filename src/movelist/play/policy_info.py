"""What an exported file says about itself: enough for a loader to refuse a file that is not meant for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from movelist.core.errors import CheckpointError
from movelist.learn.model import ModelShape

_PATHS = ("out", "resume", "data")  # where a run lies does not change what it learns


@dataclass(frozen=True, kw_only=True)
class PolicyInfo:
    """The metadata of an exported policy; each field is a text in the file.

    Attributes:
        movelist: Version that wrote the file.
        game: The game that it plays.
        policy_version: Updates that the policy had been through.
        action_encoder: "bits", "table", or "features" where ids do not enter the network.
        num_actions: Rows of the table; 0 for "bits".
        state_size: S.
        hidden_dim: H.
        action_hidden_dim: Width of the action tower.
        state_layout: What the numbers of a state mean, such as "float32[97]"; change it whenever the meaning changes.
        settings_hash: Of the training's settings, 16 hexadecimal digits; "" where they are not known.
        return_scale: By this the network's values were divided: value times scale is in the game's own units.
        feature_size: F, numbers that it looks at of each legal action beside its id; 0, and not in the file, for none.
    """

    movelist: str
    game: str
    policy_version: int
    action_encoder: str
    num_actions: int
    state_size: int
    hidden_dim: int
    action_hidden_dim: int
    state_layout: str
    settings_hash: str = ""
    return_scale: float = 1.0
    feature_size: int = 0

    def to_metadata(self) -> dict[str, str]:
        """All fields as text; numbers with a point, whatever the system's language."""
        texts = {name: repr(value) if isinstance(value, float) else str(value) for name, value in asdict(self).items()}
        if not self.feature_size:
            del texts["feature_size"]
        return texts

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], where: str) -> PolicyInfo:
        """Read what `to_metadata` wrote; further entries are passed over.

        Raises:
            CheckpointError: A field is missing, no number, or no name of an action encoder.
        """
        kinds = {"int": int, "float": float, "str": str}
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name == "feature_size" and field.name not in metadata:
                continue
            try:
                values[field.name] = kinds[str(field.type)](metadata[field.name])
            except (KeyError, ValueError):
                raise CheckpointError(
                    f"the file has no proper {field.name}",
                    got=metadata.get(field.name, "nothing"),
                    where=where,
                    do=_EXPORT_ANEW,
                ) from None
        if values["action_encoder"] not in ("bits", "table", "features"):
            raise CheckpointError(
                "the file has no proper action_encoder",
                got=values["action_encoder"],
                expected="bits, table or features",
                where=where,
                do=_EXPORT_ANEW,
            )
        return cls(**values)

    def check(self, where: str, **expected: object) -> None:
        """Refuse a file that is of another game, state layout or size, as in `check(path, game="my_game")`.

        Raises:
            CheckpointError: Names what differs.
        """
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise CheckpointError(
                    f"the file is of another {name}", got=getattr(self, name), expected=value, where=where
                )


_EXPORT_ANEW = "Export it anew: movelist export RUN --out FILE."


def plain_layout(state_size: int) -> str:
    """The layout's name where nobody gave it one: all that is known is the width."""
    return f"float32[{state_size}]"


def settings_hash(settings: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that differ when the settings do; folders do not count."""
    kept = {name: value for name, value in settings.items() if name not in _PATHS}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]  # names may hold half a surrogate


def describe(shape: ModelShape, *, version: str, game: str, layout: str | None = None, **more: Any) -> PolicyInfo:
    """The metadata of a network of this shape; `more` are fields of PolicyInfo that have defaults or are counts."""
    return PolicyInfo(
        movelist=version,
        game=game,
        action_encoder=shape.action_encoder,
        num_actions=shape.num_actions,
        state_size=shape.state_size,
        feature_size=shape.feature_size,
        hidden_dim=shape.hidden_dim,
        action_hidden_dim=shape.action_hidden_dim or shape.hidden_dim,
        state_layout=layout or plain_layout(shape.state_size),
        **more,
    )
