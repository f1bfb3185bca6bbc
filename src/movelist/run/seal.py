"""A checkpoint file with a checksum of its own, so that one flipped bit anywhere in it is seen.

torch.save writes a zip file. Its check sums cover its members, not its headers, its directory or the padding, and
torch.load looks at none of them. The seal is the SHA-256 of the whole file. It stands at the end of that file, as the
comment that a zip file may have: no crash can part the two, and readers of zip files, torch.load among them, skip it.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

MARK = b"movelist sha256 "
SEAL_BYTES = len(MARK) + 64
NO_COMMENT = b"\0\0"  # how a zip file ends that has no comment: its length


def write_sealed(state: dict[str, Any], file: IO[bytes]) -> None:
    """Write what torch.save makes of `state`, and the seal.

    Raises:
        OSError: The disk is full.
    """
    saved = io.BytesIO()
    torch.save({**state, "sealed": True}, saved)  # so that a file that lost its seal is known
    content = saved.getbuffer()
    if content[-2:] != NO_COMMENT:
        raise AssertionError("torch.save writes another kind of file")
    head, tail = content[:-2], struct.pack("<H", SEAL_BYTES) + MARK
    digest = hashlib.sha256(head)
    digest.update(tail)
    for part in (head, tail, digest.hexdigest().encode("ascii")):
        file.write(part)


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, its tensors on the CPU; or a checkpoint of torch.save alone, as older versions made.

    Raises:
        OSError: The file cannot be opened.
        Exception: It is damaged, or holds more than tensors and numbers. zipfile, pickle and torch raise a dozen types.
    """
    content = path.read_bytes()
    if content[-SEAL_BYTES:-64] == MARK:
        if hashlib.sha256(memoryview(content)[:-64]).hexdigest().encode("ascii") != content[-64:]:
            raise zipfile.BadZipFile("its checksum is wrong")
        sealed = True
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"a wrong check sum of {damaged}")
        sealed = False
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if isinstance(state, dict) and state.pop("sealed", False) and not sealed:
        raise zipfile.BadZipFile("its checksum is missing")
    return state  # type: ignore[no-any-return]
