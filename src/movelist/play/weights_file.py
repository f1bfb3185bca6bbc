"""`policy-<version>.safetensors`: a policy's weights as plain float32, for readers without a runtime.

The file is a safetensors file whose last tensor is a checksum, so its last four bytes are the CRC-32 of all bytes
before them (little-endian): a reader finds every cut and every flipped bit before it reads anything else.
docs/export.md has the format for those who write a reader; examples/engines/ has two.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from movelist.core.errors import CheckpointError
from movelist.learn.model import PolicyValueNet, StateEncoder
from movelist.play.policy_info import PolicyInfo

# Version 2 has action features, which readers of version 1 would leave out of the score.
FORMAT, FEATURE_FORMAT = "movelist-weights/1", "movelist-weights/2"
CHECKSUM = "zz_checksum"  # safetensors lays out tensors by element size and then by name: bytes come last
CHECKSUM_BYTES = 4

Floats = NDArray[np.float32]


def weights_of(net: PolicyValueNet) -> dict[str, Floats]:
    """The policy's weights by the names in the file, matrices as [out, in].

    Raises:
        CheckpointError: The network has a state encoder of its own, which plain weights cannot carry.
    """
    first, second = _layers(net.state_encoder)
    parts: dict[str, Any] = {"state1": first, "state2": second, "state_to_pair": net.state_to_pair}
    action = None if net.action_encoder is None else net.action_encoder.first
    if action is not None:
        parts["action_to_pair"] = net.action_to_pair
    if net.shape.action_encoder == "bits":
        parts["action1"] = action
    if net.feature_to_pair is not None:
        parts["feature_to_pair"] = net.feature_to_pair
    weights: dict[str, Any] = {f"{name}.weight": layer.weight for name, layer in parts.items()}
    weights |= {f"{name}.bias": layer.bias for name, layer in parts.items() if layer.bias is not None}
    if action is not None and net.shape.action_encoder == "table":
        weights["action_table"] = action.weight
    weights["pair.weight"] = net.pair_weight
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in weights.items()}


def _layers(encoder: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The two linear layers of the standard state encoder."""
    if type(encoder) is not StateEncoder:
        raise CheckpointError(
            "a weights file holds the standard state encoder only",
            got=type(encoder).__name__,
            do="Export with --profile ort: ONNX carries any encoder.",
        )
    first, second = encoder.layers[0], encoder.layers[2]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    return first, second


def to_bytes(net: PolicyValueNet, info: PolicyInfo) -> bytes:
    """The whole file.

    Raises:
        CheckpointError: As `weights_of`.
    """
    tensors: dict[str, NDArray[Any]] = {**weights_of(net), CHECKSUM: np.zeros(CHECKSUM_BYTES, np.uint8)}
    kind = FEATURE_FORMAT if info.feature_size else FORMAT
    content = _serialize(tensors, {"format": kind, **info.to_metadata()})[:-CHECKSUM_BYTES]
    return content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")


def _serialize(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    """A safetensors file with its header sorted: the library's own order of metadata changes from run to run."""
    from safetensors.numpy import save

    content = save(dict(tensors))
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    text = json.dumps({"__metadata__": metadata, **entries}, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def from_bytes(content: bytes, where: str) -> tuple[PolicyInfo, dict[str, Floats]]:
    """Read a file back.

    Args:
        content: The whole file.
        where: Its name, for messages.

    Returns:
        What it says about itself, and its weights.

    Raises:
        CheckpointError: It is cut, changed, or no weights file of movelist, or a tensor is missing or of another shape.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    body, end = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(content) < 8 + CHECKSUM_BYTES or zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little") != end:
        raise CheckpointError(
            "a policy file is damaged, or no weights file of movelist: its checksum differs",
            where=f"{where}, {len(content)} bytes",
            do="Copy or export it again.",
        )
    try:
        tensors = load(content)  # KeyError: a type of numbers that numpy does not know
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError("a policy file cannot be read", got=error, where=where) from None
    if metadata.get("format") not in (FORMAT, FEATURE_FORMAT):
        raise CheckpointError(
            "this is no weights file of movelist", got=metadata.get("format"), expected=FORMAT, where=where
        )
    tensors.pop(CHECKSUM, None)
    info = PolicyInfo.from_metadata(metadata, where)
    _check_tensors(tensors, info, where)
    return info, tensors


def _check_tensors(tensors: Mapping[str, NDArray[Any]], info: PolicyInfo, where: str) -> None:
    """Every tensor that a policy of these sizes has, and no other."""
    size, width, action_width = info.state_size, info.hidden_dim, info.action_hidden_dim
    expected: dict[str, tuple[int, ...]] = {
        "state1.weight": (width, size),
        "state1.bias": (width,),
        "state2.weight": (width, width),
        "state2.bias": (width,),
        "state_to_pair.weight": (width, width),
        "state_to_pair.bias": (width,),
        "pair.weight": (width,),
    }
    if info.feature_size:
        expected["feature_to_pair.weight"] = width, info.feature_size
    if info.action_encoder != "features":
        expected["action_to_pair.weight"] = width, action_width
    if info.action_encoder == "table":
        expected["action_table"] = info.num_actions, action_width
    elif info.action_encoder == "bits":
        expected |= {"action1.weight": (action_width, 64), "action1.bias": (action_width,)}
    found = {name: array.shape for name, array in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name) or tensors[name].dtype != np.float32:
            raise CheckpointError(
                f"a tensor of a policy file is not as its metadata says: {name}",
                got=f"{tensors[name].dtype} {list(found[name])}" if name in found else "no such tensor",
                expected=f"float32 {list(expected[name])}" if name in expected else "no such tensor",
                where=where,
            )
        if not np.isfinite(tensors[name]).all():
            raise CheckpointError(f"a policy file holds NaN or infinity in {name}", where=where)
