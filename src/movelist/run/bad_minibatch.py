"""Keeps the steps in which a number went bad, with the weights that they met, for whoever wants to know why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from movelist.core.errors import MovelistError, NonFiniteError
from movelist.data.whole_file import write_whole
from movelist.learn.model import Network


def keep_bad_minibatch(error: NonFiniteError, net: Network, path: Path) -> NonFiniteError:
    """Write the minibatch of an error beside the run's files; docs/reliability.md shows how to look at it.

    Args:
        error: From an update.
        net: Its weights did not meet the optimiser since.
        path: The file, ".safetensors".

    Returns:
        The same error, naming the file; as it was if there is no minibatch or no space for it.
    """
    if error.minibatch is None:
        return error
    columns = {name: np.ascontiguousarray(column) for name, column in error.minibatch.items()}
    columns |= {f"net.{name}": tensor.detach().cpu().numpy() for name, tensor in net.state_dict().items()}
    content = save(columns, metadata={"error": str(error)})
    try:
        write_whole(path, lambda file: file.write(content))
    except MovelistError:
        return error
    kept = f"Its steps are in {path.name}. {error.do or ''}".strip()
    return NonFiniteError(error.what, got=error.got, expected=error.expected, where=error.where, do=kept)
