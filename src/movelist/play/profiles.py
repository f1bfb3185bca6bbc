"""Export profiles: each kind of exported file in one place, how it is written, proven and read back.

`ort` and `sentis15` are ONNX (see onnx_graph.py), `weights` is plain weights (see weights_file.py). Another one is an
ExportProfile listed in PROFILES: then `movelist export --profile`, `train --publish` and all that plays files know it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from movelist.core.errors import SettingsError
from movelist.learn.model import PolicyValueNet
from movelist.play import onnx_graph, weights_file
from movelist.play.policy_info import PolicyInfo
from movelist.play.scorers import OnnxScorer, Scorer, WeightsScorer


@dataclass(frozen=True, kw_only=True)
class ExportProfile:
    """A kind of exported file.

    Args:
        name: As in `--profile NAME`.
        suffix: Of its files. Profiles that share a suffix share a reader.
        to_bytes: The file of a network in float32 on the CPU. The information has to read back as it is; whether the
            value is wanted is the third argument.
        reader: Makes, of a file's content and of its name for errors, what computes its scores.
        check: Refuses content that its engine would refuse, with a CheckpointError.
        holds_value: Whether a file can hold the value.
    """

    name: str
    suffix: str
    to_bytes: Callable[[PolicyValueNet, PolicyInfo, bool], bytes]
    reader: Callable[[bytes, str], Scorer]
    check: Callable[[bytes], None] = lambda content: None
    holds_value: bool = True


def _onnx(name: str) -> ExportProfile:
    def to_bytes(net: PolicyValueNet, info: PolicyInfo, value: bool) -> bytes:
        metadata = {"format": f"movelist-{name}/1", **info.to_metadata()}
        return onnx_graph.to_bytes(onnx_graph.build(net, name, metadata, value=value))

    def check(content: bytes) -> None:
        onnx_graph.check_model(onnx_graph.import_onnx().load_model_from_string(content), name)

    return ExportProfile(name=name, suffix=".onnx", to_bytes=to_bytes, check=check, reader=OnnxScorer)


WEIGHTS = ExportProfile(
    name="weights",
    suffix=".safetensors",
    to_bytes=lambda net, info, value: weights_file.to_bytes(net, info),
    reader=WeightsScorer,
    holds_value=False,
)
PROFILES = [_onnx("ort"), _onnx("sentis15"), WEIGHTS]


def profile_named(name: str) -> ExportProfile:
    """The profile of a name.

    Raises:
        SettingsError: There is none.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    *names, last = [profile.name for profile in PROFILES]
    raise SettingsError("there is no such profile", got=name, expected=f"{', '.join(names)} or {last}")


def is_exported(path: Path) -> bool:
    """Whether a path is named as an exported file."""
    return any(path.suffix.lower() == profile.suffix for profile in PROFILES)


def scorer_of(content: bytes, where: str) -> Scorer:
    """The scorer for a file's content, by the suffix of its name.

    Raises:
        CheckpointError: The file is damaged or was not written by movelist.
        MissingExtraError: It is ONNX and onnxruntime is not installed.
    """
    suffix = Path(where).suffix.lower()
    return next((profile for profile in PROFILES if profile.suffix == suffix), WEIGHTS).reader(content, where)
