"""The store: recordings turned once into shards of ready tensors, checked, memory-mapped, added to at will.

    STORE/manifest.json             what is in it: settings, and each shard's size and checksum
    STORE/shard-000000.safetensors  the columns of Episodes for some thousand episodes

Shards are written whole and never changed, and the manifest, also written whole, comes last: whoever stops in between
leaves the store as it was. Rewards are credited and forced turns dropped already, so reading is a copy.

Version 1 had no critic_state, action_features and rewards as recorded; it is read, and added to, as before.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.data.column import spoken
from movelist.data.episode import Episodes, concatenate, offsets_of
from movelist.data.record_format import DTYPES, Widths, declared_columns
from movelist.data.record_rules import Columns
from movelist.data.same_file import digest
from movelist.data.shard_fields import episodes_of, join_fields, recorded_again, shard_fields, tensors_of
from movelist.data.whole_file import json_bytes, write_whole

Array = NDArray[Any]
# Version 3 has further columns; a store without any is of version 2, which earlier programs read.
FORMAT, FURTHER_FORMAT = "movelist-store/2", "movelist-store/3"
READABLE = ("movelist-store/1", FORMAT, FURTHER_FORMAT)
_STATES = ("state_NS", "final_state_EPS")
MANIFEST = "manifest.json"
SHARD_BYTES = 64 << 20
TOUCHED_BYTES = 256 << 20  # of mapped pages, after which they are given back: they count as this process's memory
_DTYPES = {
    "I64": np.int64,
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "U8": np.uint8,
    "I8": np.int8,
    "BOOL": np.bool_,
}


@dataclass(frozen=True)
class Stored:
    """Episodes ready for training, with what training needs to know beside them.

    Attributes:
        episodes: Credited.
        version_EP: int64 [E, P], policy versions; NO_VERSION without.
        turns_E: int64 [E], turns played, forced ones too.
    """

    episodes: Episodes
    version_EP: Array
    turns_E: Array

    def take(self, index_E: Array) -> Stored:
        """Some of the episodes."""
        turns_E = self.turns_E[index_E]
        episodes = replace(self.episodes.take(index_E), num_turns=int(turns_E.sum()))
        return Stored(episodes, self.version_EP[index_E], turns_E)

    def __len__(self) -> int:
        return len(self.episodes)


def stored(columns: Columns, *, keep_forced: bool) -> Stored:
    """Recorded episodes, made ready."""
    turns_E = np.diff(columns.raw.episode_offsets)
    return Stored(columns.episodes(keep_forced=keep_forced), columns.version_EP, turns_E)


def join_stored(parts: Sequence[Stored]) -> Stored:
    """Several as one, in order."""
    if len(parts) == 1:
        return parts[0]
    episodes = concatenate([part.episodes for part in parts])
    versions = np.concatenate([part.version_EP for part in parts])
    return Stored(episodes, versions, np.concatenate([part.turns_E for part in parts]))


@dataclass(frozen=True)
class Shard:
    """What the manifest says of a shard."""

    file: str
    num_bytes: int
    crc32: str
    episodes: int
    steps: int
    actions: int


def outside_table(episodes: Episodes, num_actions: int) -> Array:
    """bool [E]: which episodes list an id that is no row of a table of so many actions."""
    bad_A = (episodes.action_id_A < 0) | (episodes.action_id_A >= num_actions)
    place_A = np.flatnonzero(bad_A)
    step_A = np.searchsorted(episodes.action_offsets, place_A, side="right") - 1
    bad_E = np.zeros(len(episodes), bool)
    bad_E[np.searchsorted(episodes.episode_offsets, step_A, side="right") - 1] = True
    return bad_E


def is_store(path: Path) -> bool:
    """Whether a folder is a store."""
    return (path / MANIFEST).is_file()


class Store:
    """A store to read from.

    Args:
        path: Its folder.

    Raises:
        DataError: It is no store, or a shard is missing or has another size; names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = _read_manifest(path)
        self.keep_forced: bool = manifest["settings"]["keep_forced"]
        declared = _widths(manifest["settings"])
        self.widths = replace(declared, columns=tuple(column for column in declared.columns if column.stored))
        self.shards = [Shard(**shard) for shard in manifest["shards"]]
        self.shard_offsets = offsets_of(np.array([shard.episodes for shard in self.shards], np.int64))
        self._mapped: dict[int, tuple[Stored, dict[str, Array], mmap.mmap]] = {}
        self._touched = 0
        for shard in self.shards:
            file = path / shard.file
            size = file.stat().st_size if file.is_file() else -1
            if size != shard.num_bytes:
                got = "no such file" if size < 0 else f"{size} bytes"
                _damaged(file, got, f"{shard.num_bytes} bytes")

    def __len__(self) -> int:
        return int(self.shard_offsets[-1])

    @property
    def num_steps(self) -> int:
        """Steps of all episodes."""
        return sum(shard.steps for shard in self.shards)

    def take(self, index_E: Array) -> Stored:
        """Some episodes by their numbers in the store; shard by shard, so their order may change.

        Raises:
            DataError: A shard is damaged; names it.
        """
        shard_E = np.searchsorted(self.shard_offsets, index_E, side="right") - 1
        parts = [
            self._part(int(shard), index_E[shard_E == shard])
            for shard in (np.unique(shard_E) if len(index_E) else range(len(self.shards))[:1])
        ]
        if len({part.episodes.state_NS.dtype for part in parts}) > 1:
            parts = [_widened(part, DTYPES[self.widths.state_dtype]) for part in parts]
        taken = join_stored(parts)
        self._give_back(taken.episodes.state_NS.nbytes)
        return taken

    def _part(self, shard: int, index_E: Array) -> Stored:
        """Episodes of one shard; each knows its number in the store."""
        part = self.shard(shard).take(index_E - self.shard_offsets[shard])
        origins = [f"{self.path}, episode {number}" for number in index_E.tolist()]
        return replace(part, episodes=replace(part.episodes, origin_E=np.array(origins, object)))

    def places(self, index_E: Array) -> Array:
        """The numbers of these episodes in the order in which `take` hands them out."""
        return index_E[np.argsort(np.searchsorted(self.shard_offsets, index_E, side="right"), kind="stable")]

    def shard(self, number: int) -> Stored:
        """A shard, memory-mapped; its checksum is held the first time."""
        if number not in self._mapped:
            self._mapped[number] = self._map(self.shards[number])
        return self._mapped[number][0]

    def recorded(self) -> Iterator[Columns]:
        """All episodes as a recording holds them, a shard at a time; see shard_fields.py.

        Raises:
            DataError: A shard is damaged; names it.
        """
        for number in range(len(self.shards)):
            episodes = self.shard(number).episodes
            yield recorded_again(episodes, self._mapped[number][1], self.widths, first=int(self.shard_offsets[number]))
            self._give_back(self.shards[number].num_bytes)

    def close(self) -> None:
        """Give back the mapped files."""
        self._mapped.clear()

    def _map(self, shard: Shard) -> tuple[Stored, dict[str, Array], mmap.mmap]:
        file = self.path / shard.file
        crc = 0
        with file.open("rb") as opened:
            while piece := opened.read(1 << 20):
                crc = zlib.crc32(piece, crc)
            if f"{crc:08x}" != shard.crc32:
                _damaged(file, f"checksum {crc:08x}", shard.crc32)
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        tensors = _views(mapped)
        return (
            Stored(episodes_of(tensors, self.widths.columns), tensors["version_EP"], tensors["turns_E"]),
            tensors,
            mapped,
        )

    def _give_back(self, num_bytes: int) -> None:
        self._touched += num_bytes
        if self._touched > TOUCHED_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for *_, mapped in self._mapped.values():
                mapped.madvise(mmap.MADV_DONTNEED)
            self._touched = 0


def _views(mapped: mmap.mmap) -> dict[str, Array]:
    """The tensors of a safetensors file as views: 8 bytes of length, a JSON header, then the bytes."""
    length = int.from_bytes(mapped[:8], "little")
    header: dict[str, Any] = json.loads(mapped[8 : 8 + length])
    views = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype, (start, _) = np.dtype(_DTYPES[entry["dtype"]]), entry["data_offsets"]
            count = int(np.prod(entry["shape"]))
            views[name] = np.frombuffer(mapped, dtype, count, 8 + length + start).reshape(entry["shape"])
    return views


def _widened(part: Stored, dtype: Any) -> Stored:
    """The states in the dtype that they were recorded in."""
    episodes, final = part.episodes, part.episodes.final_state_EPS
    final = None if final is None else final.astype(dtype)
    return replace(part, episodes=replace(episodes, state_NS=episodes.state_NS.astype(dtype), final_state_EPS=final))


class StoreWriter:
    """Makes a store, or adds to one; nothing of it shows before `commit`.

    Args:
        path: Its folder.
        keep_forced: Keep turns with one legal action.

    Raises:
        DataError: The folder holds something else, or a store with another setting.
    """

    def __init__(self, path: Path, *, keep_forced: bool = False) -> None:
        self.path, self.keep_forced = path, keep_forced
        self.widths: Widths | None = None
        self.shards: list[Shard] = []
        self.sources: list[dict[str, Any]] = []
        if is_store(path):
            manifest = _read_manifest(path)
            self.widths = _widths(manifest["settings"])
            self.shards = [Shard(**shard) for shard in manifest["shards"]]
            self.sources = manifest["sources"]
            if manifest["settings"]["keep_forced"] != keep_forced:
                raise DataError("the store was made with another setting", where=str(path),
                                got=f"keep_forced {keep_forced}",
                                expected=manifest["settings"]["keep_forced"], do="Make another store.")  # fmt: skip
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DataError("this is no store, and not empty", got=str(path),
                            do="Choose another, or delete it if a conversion that was killed left it.")  # fmt: skip
        self._source: dict[str, Any] = {"episodes": 0}  # whose episodes are being added
        self._made = not path.exists()
        self._parts: list[Stored] = []
        self._fields: list[dict[str, Array]] = []
        self._bytes = 0

    def begin(self, file: Path) -> None:
        """Note that a recording's episodes follow.

        Raises:
            DataError: They are in the store already.
        """
        size = file.stat().st_size
        for known in self.sources:
            if known["num_bytes"] > size or not known.get("episodes", 1) or not _begins_with(file, known):
                continue
            called = "" if known["file"] == file.name else f" as {known['file']}"
            if known["num_bytes"] == size:
                raise DataError(f"the recording is in the store already{called}", got=str(file), where=str(self.path),
                                do="Give only new ones.")  # fmt: skip
            raise DataError(f"the recording is in the store already{called}, and has grown since", got=str(file),
                            where=str(self.path), do="Record into new files, or make another store.")  # fmt: skip
        self._source = {"file": file.name, "num_bytes": size, "episodes": 0, "digest": digest(file, size)}
        self._source["head"] = _head(file, self._source)
        self.sources.append(self._source)

    def add(self, columns: Columns) -> None:
        """Add checked episodes."""
        self.widths = self.widths or columns.widths
        part = stored(columns, keep_forced=self.keep_forced)
        fields = shard_fields(columns, keep_forced=self.keep_forced)
        self._source["episodes"] += len(part)
        self._parts.append(part)
        self._fields.append(fields)
        self._bytes += part.episodes.state_NS.nbytes + part.episodes.action_id_A.nbytes
        self._bytes += sum(field.nbytes for field in fields.values())
        if self._bytes >= SHARD_BYTES:
            self._flush()

    def commit(self) -> int:
        """Let what was added appear; returns the number of episodes in the store.

        Raises:
            DataError: There is nothing to keep.
        """
        if self._parts:
            self._flush()
        if self.widths is None:
            raise DataError("no episode can be used, so there is no store to make", where=str(self.path))
        columns = spoken(self.widths.columns)
        settings = asdict(self.widths) | {"columns": columns, "keep_forced": self.keep_forced}
        if not columns:
            del settings["columns"]
        manifest = {"format": FURTHER_FORMAT if columns else FORMAT, "settings": settings, "sources": self.sources}
        manifest["shards"] = [asdict(shard) for shard in self.shards]
        manifest["crc32"] = _manifest_crc(manifest)
        write_whole(self.path / MANIFEST, lambda file: file.write(json_bytes(manifest, indent=1)))
        return sum(shard.episodes for shard in self.shards)

    def discard(self) -> None:
        """Delete the shards that no manifest names, and the folder if it was made for them."""
        named = [shard["file"] for shard in _read_manifest(self.path)["shards"]] if is_store(self.path) else []
        with contextlib.suppress(OSError):  # held by a virus scanner: it does no harm, and is written over
            for shard in self.shards:
                if shard.file not in named:
                    (self.path / shard.file).unlink()
            if self._made and not named:
                self.path.rmdir()

    def _flush(self) -> None:
        from safetensors.numpy import save

        self.path.mkdir(parents=True, exist_ok=True)  # only now: without an episode there is no folder
        part = join_stored(self._parts)
        episodes = part.episodes
        tensors = tensors_of(episodes)
        if _fits_uint8(episodes.state_NS) and _fits_uint8(episodes.final_state_EPS):
            # A quarter of the bytes to keep, read and send to a device, which casts them back: the same numbers.
            tensors |= {name: tensors[name].astype(np.uint8) for name in _STATES if name in tensors}
        tensors |= {"version_EP": part.version_EP, "turns_E": part.turns_E} | join_fields(self._fields)
        kept = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        content = save(kept)
        name = f"shard-{len(self.shards):06d}.safetensors"  # one that a killed append left is written over
        write_whole(self.path / name, lambda file: file.write(content))
        crc = f"{zlib.crc32(content):08x}"
        self.shards.append(Shard(name, len(content), crc, len(episodes), episodes.num_steps, episodes.num_actions))
        self._parts, self._fields, self._bytes = [], [], 0


def _begins_with(file: Path, source: dict[str, Any]) -> bool:
    """Whether a recording is one that was converted, or one that grew from it, under whatever name.

    A store of version 0.1 knows the name and the first bytes only.
    """
    if "head" not in source:
        return bool(source["file"] == file.name and source["num_bytes"] == file.stat().st_size)
    if source["head"] != _head(file, source):
        return False
    if "digest" not in source:
        return bool(source["file"] == file.name)
    return bool(source["digest"] == digest(file, source["num_bytes"]))


def _head(file: Path, source: dict[str, Any]) -> str:
    """The checksum of the first bytes that a recording had when it was converted: one that grew is known by them."""
    with file.open("rb") as opened:
        return f"{zlib.crc32(opened.read(min(4096, source['num_bytes']))):08x}"


def _fits_uint8(states: Array | None) -> bool:
    """Whether the numbers are whole and 0 to 255, as cards and boards are."""
    if states is None:
        return True
    with np.errstate(invalid="ignore"):
        return bool((states.astype(np.uint8) == states).all())


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise DataError("this is no store", got=str(path), expected=f"a folder with {MANIFEST}")
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] not in READABLE:
            raise DataError("the store has another format", got=manifest["format"], expected=FORMAT, where=str(file),
                            do="Convert the recordings anew.")  # fmt: skip
        if manifest["format"] != READABLE[0] and manifest.pop("crc32") != (crc := _manifest_crc(manifest)):
            raise ValueError(f"checksum {crc}")
        _ = [Shard(**shard) for shard in manifest["shards"]], _widths(manifest["settings"]), manifest["sources"]
        return manifest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError("the manifest of a store cannot be read", got=error, where=str(file),
                        do="Convert the recordings anew, or copy it from a backup.") from None  # fmt: skip


def _manifest_crc(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest without its own."""
    return f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode('ascii')):08x}"


def _widths(settings: dict[str, Any]) -> Widths:
    plain = {name: value for name, value in settings.items() if name != "keep_forced"}
    if plain["state_dtype"] not in DTYPES:
        raise ValueError(plain["state_dtype"])
    columns = declared_columns(plain.get("columns", []), MANIFEST)
    return Widths(**plain | {"state_shape": tuple(plain["state_shape"]), "columns": columns})


def _damaged(file: Path, got: str, expected: str) -> None:
    raise DataError("a shard of the store is damaged", got=got, expected=expected, where=str(file),
                    do="Convert the recordings anew, or copy the shard from a backup.")  # fmt: skip
