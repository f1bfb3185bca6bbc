"""Damages recordings and stores at random, and holds the reader to its promises.

    python scripts/fuzz_recordings.py [--rounds 2000] [--seed 0] [--seconds 120]

Real games in both formats, with checksums and without, and in a store, are cut, flipped, doubled and swapped. Then:

    no exception but a DataError, which names the file
    where there are checksums, each episode that comes back is one that was written, in every field
    a flipped bit that costs an episode is told
    what comes back keeps the rules of Episodes

Prints what happened, by kind of file, and the seed of a round that broke a promise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from movelist.core.errors import DataError
from movelist.data import arrow_writer, recordings
from movelist.data.record_rules import Columns, Problem, join
from movelist.data.store import Store, StoreWriter

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "recordings" / "dou_dizhu.jsonl.gz"
KINDS = ("cut", "flip", "double", "swap")
FIELDS = ("state_NS", "player_N", "action_id_A", "chosen_N", "log_prob_N", "reward_N", "return_EP", "truncated_E")


def damaged(content: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """Bytes cut out, one bit flipped, a part doubled, or two neighbouring parts swapped."""
    place, other = sorted(rng.integers(0, len(content), 2).tolist())
    if kind == "cut":
        return content[:place] + content[other:]
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :]
    if kind == "double":
        return content[:other] + content[place:]
    middle = (place + other) // 2
    return content[:place] + content[middle:other] + content[place:middle] + content[other:]


def fingerprints(columns: Columns) -> list[bytes]:
    """All that an episode says, for each episode; the place in the file aside."""
    found = []
    for e in range(len(columns)):
        one = columns.take(np.array([e]))
        parts = [getattr(one.raw, name).tobytes() for name in FIELDS] + [one.version_EP.tobytes()]
        found.append(b"|".join([np.diff(one.raw.action_offsets).tobytes(), *parts]))
    return found


def write_files(folder: Path, columns: Columns) -> dict[str, Path]:
    """The same games in each kind of file; those called "bare" lack checksums, as other writers may leave them out."""
    paths = {name: folder / name for name in ("a.jsonl", "a.jsonl.gz", "a.arrows", "bare.jsonl", "bare.arrows")}
    for name in ("a.jsonl", "a.jsonl.gz", "a.arrows"):
        writer = recordings.writer(paths[name])
        writer.write(columns)
        writer.close()
    lines = [json.loads(line) for line in paths["a.jsonl"].read_text(encoding="utf-8").splitlines()]
    bare = [json.dumps({key: value for key, value in line.items() if key != "crc32"}) for line in lines]
    paths["bare.jsonl"].write_text("\n".join(bare) + "\n", encoding="utf-8", newline="\n")
    table = pa.ipc.open_stream(paths["a.arrows"].read_bytes()).read_all().drop_columns("crc32")
    with pa.ipc.new_stream(str(paths["bare.arrows"]), table.schema) as stream:
        stream.write_table(table, max_chunksize=256)
    return paths


class Broken(AssertionError):
    """A promise was not kept."""


def read_damaged(path: Path, known: set[bytes], *, kind: str) -> Counter[str]:
    """Read a damaged recording; what happened."""
    problems: list[Problem] = []
    happened: Counter[str] = Counter()
    back: set[bytes] = set()
    for columns in recordings.read(path, report=problems.append):
        columns.episodes().check(str(path))
        found = fingerprints(columns)
        changed = [one for one in found if one not in known]
        if changed and not path.name.startswith("bare"):
            raise Broken(f"{len(changed)} episodes came back changed in spite of their checksums")
        happened["changed, no checksum"] += len(changed)
        happened["episodes read"] += len(found)
        back |= set(found)
    named = [str(problem) for problem in problems]
    if any(str(path) not in text for text in named):
        raise Broken(f"a problem does not name its file: {named}")
    lost = max(0, len(known - back) - happened["changed, no checksum"])
    happened["episodes lost"] += lost
    if lost and not named:
        if kind == "flip":
            raise Broken(f"{lost} episodes are lost without a word")
        happened["lost without a word, cut out whole"] += lost
    happened["problems named"] += len(named)
    return happened


def read_damaged_store(folder: Path, expected: bytes) -> Counter[str]:
    """Open a damaged store and read it all; refused by name, or equal."""
    try:
        store = Store(folder)
        found = store_content(store)
        store.close()
    except DataError as error:
        if str(folder) not in str(error):
            raise Broken(f"the error does not name the store: {error}") from None
        return Counter({"stores refused": 1})
    if found != expected:
        raise Broken("a store came back changed")
    return Counter({"stores unchanged": 1})


def store_content(store: Store) -> bytes:
    """All bytes that training gets from a store, and what it says of itself."""
    episodes = store.take(np.arange(len(store))).episodes
    said = f"{store.widths} {store.keep_forced} {len(store)} {store.num_steps}"
    return b"|".join([said.encode(), *(getattr(episodes, name).tobytes() for name in FIELDS)])


def fuzz(
    folder: Path, *, rounds: int, seed: int, seconds: float = np.inf, episodes: int = 30
) -> dict[str, Counter[str]]:
    """Damage and read, again and again.

    Raises:
        Broken: A promise was not kept; says in which round.
    """
    arrow_writer.BATCH_ROWS, before = 256, arrow_writer.BATCH_ROWS  # several batches in a small file
    columns = join(list(recordings.read(EXAMPLE))).take(np.arange(episodes))
    paths = write_files(folder, columns)
    arrow_writer.BATCH_ROWS = before
    known = set(fingerprints(columns))
    writer = StoreWriter(folder / "store")
    writer.add(columns)
    writer.commit()
    expected = store_content(Store(folder / "store"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    stop = time.monotonic() + seconds
    for number in range(rounds):
        if time.monotonic() > stop:
            break
        rng = np.random.default_rng([seed, number])
        kind, name = str(rng.choice(KINDS)), str(rng.choice([*paths, "store"]))
        work = folder / "work"
        work.mkdir()
        try:
            if name == "store":
                shutil.copytree(folder / "store", work / "store")
                target = sorted((work / "store").iterdir())[int(rng.integers(2))]
                target.write_bytes(damaged(target.read_bytes(), kind, rng))
                counts[name] += read_damaged_store(work / "store", expected)
            else:
                content = damaged(paths[name].read_bytes(), kind, rng)
                if name.endswith(".gz") and rng.random() < 0.5:  # damaged before it was packed
                    content = gzip.compress(damaged(paths["a.jsonl"].read_bytes(), kind, rng), 1)
                (work / name).write_bytes(content)
                counts[name] += read_damaged(work / name, known, kind=kind)
        except Exception as error:
            raise Broken(f"round {number} of seed {seed}, {kind} of {name}: {type(error).__name__}: {error}") from error
        counts[name][f"{kind}s"] += 1
        shutil.rmtree(work)
    return counts


def main() -> int:
    """Fuzz and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = fuzz(Path(folder), rounds=arguments.rounds, seed=arguments.seed, seconds=arguments.seconds)
    for name, happened in sorted(counts.items()):
        print(f"{name}: " + ", ".join(f"{key} {count:,}" for key, count in sorted(happened.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
