"""Exported files read back: each kind computes the scores of flat lists of actions."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.action_ids import to_bits
from movelist.core.errors import CheckpointError, MissingExtraError
from movelist.core.ragged import Segments
from movelist.play import onnx_graph, weights_file
from movelist.play.policy_info import PolicyInfo

Array = NDArray[Any]
PAIRS_AT_ONCE = 4096  # 8 MB at a width of 512


class Scorer(Protocol):
    """Logits of flat lists."""

    info: PolicyInfo

    def score(self, state_BS: Array, action_id_A: Array, segments: Segments) -> dict[str, Array]:
        """`logit` and `log_prob`, float32 [A] each, and `value` [B] where the file has it."""


class WeightsScorer:
    """A weights file, computed with numpy."""

    def __init__(self, content: bytes, where: str) -> None:
        self.info, self.weights = weights_file.from_bytes(content, where)

    def score(self, state_BS: Array, action_id_A: Array, segments: Segments) -> dict[str, Array]:
        """See `Scorer`."""
        weights, step_A = self.weights, segments.step_A.numpy()
        hidden_BH = np.asarray(state_BS, np.float32)
        for name in ("state1", "state2"):
            hidden_BH = np.maximum(hidden_BH @ weights[f"{name}.weight"].T + weights[f"{name}.bias"], 0)
        state_BH = hidden_BH @ weights["state_to_pair.weight"].T + weights["state_to_pair.bias"]
        id_U, unique_A = np.unique(action_id_A, return_inverse=True)
        action_UH = np.maximum(self._encode(id_U), 0) @ weights["action_to_pair.weight"].T
        logit_A = np.empty(len(action_id_A), np.float32)
        for start in range(0, len(logit_A), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            pairs = np.maximum(state_BH[step_A[part]] + action_UH[unique_A[part]], 0)
            logit_A[part] = pairs @ weights["pair.weight"]
        return {"logit": logit_A, "log_prob": ragged.log_softmax(torch.from_numpy(logit_A), segments).numpy()}

    def _encode(self, id_U: Array) -> Array:
        if self.info.action_encoder == "table":
            return self.weights["action_table"][id_U]
        bits_U64 = to_bits(torch.from_numpy(id_U)).numpy()
        encoded: Array = bits_U64 @ self.weights["action1.weight"].T + self.weights["action1.bias"]
        return encoded


class OnnxScorer:
    """An ONNX file of either profile, computed by onnxruntime on one CPU thread.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        CheckpointError: The file is damaged or was not written by movelist.
    """

    def __init__(self, content: bytes, where: str) -> None:
        runtime = _import_runtime()
        if not onnx_graph.is_sound(content):
            raise CheckpointError(
                "an ONNX file is damaged, or another tool has changed it: its checksum differs",
                where=f"{where}, {len(content)} bytes",
                do="Copy or export it again. If the change was meant, delete its metadata entry checksum.",
            )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises several types of its own, as for a version it does not know
            reason = str(error).split("\n")[0]
            raise CheckpointError("an ONNX file cannot be read", got=reason, where=where) from None
        self.info = PolicyInfo.from_metadata(self.session.get_modelmeta().custom_metadata_map, where)
        self.padded = any(entry.name == "mask" for entry in self.session.get_inputs())
        self.outputs = [entry.name for entry in self.session.get_outputs()]

    def score(self, state_BS: Array, action_id_A: Array, segments: Segments) -> dict[str, Array]:
        """See `Scorer`."""
        state_BS = np.asarray(state_BS, np.float32)
        encoded_A = self._encode(action_id_A)
        step_A = segments.step_A.numpy()
        if not self.padded:
            return self._run({"state": state_BS, "actions": encoded_A, "segment": step_A})
        place_A = np.arange(len(step_A)) - segments.offsets.numpy()[step_A]
        sizes = {name: len(state_BS if name == "value" else step_A) for name in self.outputs}
        result = {name: np.empty(size, np.float32) for name, size in sizes.items()}
        # Lists of similar lengths share a call, so that padding at most doubles the work.
        power_B = np.ceil(np.log2(np.diff(segments.offsets.numpy())))
        for power in np.unique(power_B):
            inside_B = power_B == power
            inside_A = inside_B[step_A]
            row_A, column_A = (np.cumsum(inside_B) - 1)[step_A[inside_A]], place_A[inside_A]
            found = self._run_padded(state_BS[inside_B], encoded_A[inside_A], row_A, column_A)
            for name, array in found.items():
                result[name][inside_B if name == "value" else inside_A] = array
        return result

    def _run_padded(self, state_BS: Array, encoded_A: Array, row_A: Array, column_A: Array) -> dict[str, Array]:
        shape = len(state_BS), int(column_A.max()) + 1
        actions, mask = np.zeros((*shape, *encoded_A.shape[1:]), encoded_A.dtype), np.zeros(shape, np.float32)
        actions[row_A, column_A], mask[row_A, column_A] = encoded_A, 1.0
        found = self._run({"state": state_BS, "actions": actions, "mask": mask})
        return {name: array if name == "value" else array[row_A, column_A] for name, array in found.items()}

    def _encode(self, action_id_A: Array) -> Array:
        if self.info.action_encoder == "table":
            return action_id_A.astype(np.int32 if self.padded else np.int64)
        encoded: Array = to_bits(torch.from_numpy(np.ascontiguousarray(action_id_A))).numpy()
        return encoded

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(self.outputs, self.session.run(self.outputs, inputs), strict=True))


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError.of("playing from an ONNX file needs", "onnx", error) from None
    return onnxruntime
