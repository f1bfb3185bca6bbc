"""The policy for the engine: write a file, open it again, prove it equal to torch, and only then leave it there.

The kinds of files are in profiles.py.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.errors import CheckpointError, SettingsError
from movelist.core.ragged import Segments
from movelist.data.whole_file import write_whole
from movelist.learn.device import exact_products
from movelist.learn.model import Network, PolicyValueNet
from movelist.play.policy_info import PolicyInfo
from movelist.play.profiles import PROFILES, WEIGHTS, ExportProfile, profile_named
from movelist.play.scorers import Scorer

Array = NDArray[Any]
CHECK_ACTIONS = 400  # in the longest list
CHECK_BATCHES = (1, 2, 3, 64, 7, 33, 1, 50, 16, 23)  # 200 lists in all
# Of a policy published again: the same operators were compared in full the first time, and a full comparison at a width
# of 512 takes as long as a small update.
REPEATED_BATCHES = (1, 2, 3, 16)
# Of the largest logit of a list, or of 1 where all are smaller: a float32 sum over a width of 512 in another order
# moves a logit of size 1 by about 1e-6.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written, and how close it came to torch.

    Attributes:
        path: The file.
        profile: Its kind.
        info: What it says about itself.
        num_bytes: Its size.
        num_lists: Lists of actions compared.
        num_actions: Actions in them.
        max_logit_error: Largest difference of a logit, relative as TOLERANCE is.
    """

    path: Path
    profile: str
    info: PolicyInfo
    num_bytes: int
    num_lists: int
    num_actions: int
    max_logit_error: float

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self) | {"path": str(self.path)}

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.profile}, {self.num_bytes:,} bytes, policy version {self.info.policy_version} of "
            f"{self.info.game}; equal to torch on {self.num_lists} lists of {self.num_actions:,} actions: same best "
            f"action, logits within {self.max_logit_error:.1e}"
        )


def export_net(
    net: Network,
    info: PolicyInfo,
    path: Path,
    profile: str = "ort",
    *,
    value: bool = False,
    batches: tuple[int, ...] = CHECK_BATCHES,
) -> ExportReport:
    """Write a network as a file that an engine can run.

    Args:
        net: The network.
        info: The file's metadata.
        path: The file; its suffix has to be ".onnx", for weights ".safetensors".
        profile: What is to run it.
        value: Also export the value; not with weights.
        batches: Lists of actions in each batch that is compared with torch.

    Returns:
        What was written. Nothing is, if the file is not equal to torch.

    Raises:
        SettingsError: The profile is unknown, the suffix does not fit, or weights are asked for the value.
        MissingExtraError: onnx or onnxruntime is not installed.
        CheckpointError: The network cannot be written so, or the file is not equal to it.
        SaveError: The file cannot be written.
    """
    kind = _requested(path, profile, value)
    if not isinstance(net, PolicyValueNet):
        raise CheckpointError(
            "a network of one's own cannot be exported",
            got=type(net).__name__,
            expected="a PolicyValueNet, with any state encoder and critic",
            do="Its policy plays in Python: movelist.load(run).",
        )
    # Compared on a CPU in full float32: on a GPU torch itself is as far off as TF32 rounds.
    net = copy.deepcopy(net).cpu().float().eval()
    content = kind.to_bytes(net, info, value)
    reports: list[tuple[int, float]] = []
    with exact_products():
        _write(path, content, lambda beside: reports.append(_prove(beside, net, info, path, kind, value, batches)))
    (num_actions, error) = reports[0]
    return ExportReport(
        path=path,
        profile=profile,
        info=info,
        num_bytes=len(content),
        num_lists=sum(batches),
        num_actions=num_actions,
        max_logit_error=error,
    )


def _requested(path: Path, profile: str, value: bool) -> ExportProfile:
    kind = profile_named(profile)
    if path.suffix.lower() != kind.suffix:
        raise SettingsError(
            f"a file of profile {profile} is named otherwise",
            got=path.name,
            expected=f"a name ending in {kind.suffix}",
            do="Plain weights need --profile weights." if path.suffix.lower() == WEIGHTS.suffix else None,
        )
    if value and not kind.holds_value:
        raise SettingsError(f"a {profile} file holds no value", do="Export with --profile ort, or without --value.")
    return kind


def _prove(
    beside: Path,
    net: PolicyValueNet,
    info: PolicyInfo,
    path: Path,
    kind: ExportProfile,
    value: bool,
    batches: tuple[int, ...],
) -> tuple[int, float]:
    """Open the written file and compare it with torch; the actions compared and the largest error."""
    content = beside.read_bytes()
    kind.check(content)
    scorer = kind.reader(content, path.name)
    if scorer.info != info:
        raise CheckpointError("the file's metadata reads back otherwise", got=scorer.info, expected=info)
    generator = np.random.default_rng(0)
    num_actions, worst = 0, 0.0
    for num_steps in batches:
        state_BS, action_id_A, segments = random_lists(net, num_steps, generator)
        worst = max(worst, _compare(scorer, net, state_BS, action_id_A, segments, value))
        num_actions += segments.num_actions
    return num_actions, worst


def random_lists(net: PolicyValueNet, num_steps: int, generator: np.random.Generator) -> tuple[Array, Array, Segments]:
    """States, and lists of 1 to 400 random ids (no more than a table has rows).

    Returns:
        state_BS, action_id_A, segments.
    """
    rows = net.shape.num_actions or CHECK_ACTIONS
    # Without a choice there is nothing to compare, so the longest list is among the first ones.
    count_B = generator.integers(1, min(CHECK_ACTIONS, rows), num_steps, endpoint=True)
    if net.shape.action_encoder == "table":
        ids = [generator.permutation(rows)[:count] for count in count_B]
    else:
        # All 64 bits, and few of them: cards.
        wide = generator.integers(-(2**63), 2**63 - 1, (int(count_B.sum()), 4), endpoint=True)
        sparse = wide[:, 0] & wide[:, 1] & wide[:, 2] & wide[:, 3]
        ids = [np.where(generator.random(len(wide)) < 0.5, wide[:, 0], sparse)]
    # Half of the numbers 0 or 1, as in most games; the others anything.
    shape = (num_steps, net.shape.state_size)
    state_BS = np.where(generator.random(shape) < 0.5, generator.integers(0, 2, shape), generator.normal(size=shape))
    return state_BS.astype(np.float32), np.concatenate(ids), Segments.from_counts(count_B)


@torch.no_grad()
def _compare(
    scorer: Scorer, net: PolicyValueNet, state_BS: Array, action_id_A: Array, segments: Segments, value: bool
) -> float:
    encoded_A = net.encode_ids(torch.from_numpy(action_id_A))
    every = torch.arange(segments.num_actions)
    score_A, value_B = net(torch.from_numpy(state_BS), encoded_A, segments.step_A, every)
    expected = {"logit": score_A, "log_prob": ragged.log_softmax(score_A, segments)} | (
        {"value": value_B} if value else {}
    )
    found = {name: torch.from_numpy(array) for name, array in scorer.score(state_BS, action_id_A, segments).items()}
    errors = {name: _relative_error(found[name], expected[name], segments) for name in expected}
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise CheckpointError(
                f"the exported file is not equal to torch: {name}",
                got=f"{error:.1e} off",
                expected=f"at most {TOLERANCE:.0e}",
                do="Nothing was written. Is the state encoder free of randomness?",
            )
    _check_best(found["logit"], expected["logit"], segments)
    return errors["logit"]


def _relative_error(found: torch.Tensor, expected: torch.Tensor, segments: Segments) -> float:
    """The largest difference, over the largest number of its list or 1."""
    if found.shape != expected.shape:
        raise CheckpointError(
            "the exported file gives another size", got=list(found.shape), expected=list(expected.shape)
        )
    if len(expected) != segments.num_actions:
        scale = expected.abs().clamp_min(1.0)
    else:
        scale = _largest(expected, segments)[segments.step_A]
    return float(((found - expected).abs() / scale).max())


def _largest(score_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    """The size of each list's largest score, or 1 where all are smaller, [B]."""
    return score_A.new_ones(segments.num_steps).scatter_reduce(0, segments.step_A, score_A.abs(), "amax")


def _check_best(found_A: torch.Tensor, expected_A: torch.Tensor, segments: Segments) -> None:
    """The same best action, unless torch's own scores of the two are nearer than the tolerance."""
    starts = segments.offsets[:-1]
    best = expected_A[starts + ragged.argmax(expected_A, segments)]
    other = expected_A[starts + ragged.argmax(found_A, segments)]
    gap = float(((best - other) / _largest(expected_A, segments)).max())
    if not gap <= 2 * TOLERANCE:
        raise CheckpointError("the exported file prefers another action than torch", got=f"a score {gap:.1e} lower")


def _write(path: Path, content: bytes, prove: Callable[[Path], object]) -> None:
    """Write beside the place, prove, and only then move it there."""

    def write(file: IO[bytes]) -> None:
        file.write(content)
        file.flush()
        prove(Path(file.name))

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError("the folder cannot be made", got=error.strerror, where=str(path.parent)) from None
    write_whole(path, write)


def publish(
    net: Network,
    info: PolicyInfo,
    folder: Path,
    *,
    profile: str = "weights",
    keep: int = 3,
) -> dict[str, Any]:
    """Write `policy-<version>` for engines that play while training goes on, then point `latest.json` at it.

    Args:
        net: The network as it is now.
        info: The files' metadata; `policy_version` names them.
        folder: Where engines look.
        profile: Of a file beside the weights, such as `policy-<version>.onnx`.
        keep: How many of the newest versions stay. An engine may still hold an older one open: it goes later.

    Returns:
        What latest.json says: {"policy_version": 12, "weights": "policy-12.safetensors", "onnx": "policy-12.onnx"}.

    Raises:
        MovelistError: As `export_net`; latest.json still names the version before.
    """
    latest: dict[str, Any] = {"policy_version": info.policy_version}
    kinds = {"weights": WEIGHTS}
    if profile != WEIGHTS.name:
        other = profile_named(profile)
        kinds[other.suffix.removeprefix(".")] = other
    batches = REPEATED_BATCHES if (folder / "latest.json").exists() else CHECK_BATCHES
    for name, kind in kinds.items():
        path = folder / f"policy-{info.policy_version}{kind.suffix}"
        export_net(net, info, path, kind.name, batches=batches)
        latest[name] = path.name
    text = json.dumps(latest, indent=2) + "\n"
    _write(folder / "latest.json", text.encode("utf-8"), lambda beside: None)
    for suffix in {kind.suffix for kind in PROFILES}:
        for old in _old_versions(folder, suffix)[:-keep]:
            # Versions start again from a lower number where an earlier checkpoint was taken up.
            if old.name not in latest.values():
                _delete(old)
    return latest


def _old_versions(folder: Path, suffix: str) -> list[Path]:
    """The published files of a kind, oldest first."""
    numbered = [(path.stem.removeprefix("policy-"), path) for path in folder.glob(f"policy-*{suffix}")]
    return [path for number, path in sorted((int(n), path) for n, path in numbered if n.isdigit())]


def _delete(path: Path) -> None:
    try:
        path.unlink()
    except OSError:  # held open by an engine on Windows: it is deleted after a later one
        return
