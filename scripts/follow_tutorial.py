"""Do what docs/tutorial.md says, word by word, in a folder of its own, and hold what it shows against what comes.

    python scripts/follow_tutorial.py                  # builds the package, and installs it with all that it needs
    python scripts/follow_tutorial.py --lent           # borrows what it needs from this Python: no network, a minute

Blocks of sh are typed into one shell, one after another. A block behind "Write `NAME`:" becomes that file. A block of
text is what the commands before it print: each of its lines has to be there, with any numbers.

Needs hatchling, a POSIX shell and g++.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:^Write `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of the page: its kind, its text, and the file that it is to become."""

    kind: str
    text: str
    file: str | None


def blocks(page: str) -> list[Block]:
    """All blocks in order."""
    return [Block(match["kind"], match["text"], match["file"]) for match in BLOCK.finditer(page)]


def build(folder: Path) -> None:
    """The source archive, and the wheel made of what is in it and nothing else."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*command, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked, tarfile.open(archive) as opened:
        opened.extractall(unpacked, filter="data")
        source = Path(unpacked) / archive.name.removesuffix(".tar.gz")
        subprocess.run([*command, "-t", "wheel"], cwd=source, check=True, capture_output=True)


def script(page: list[Block], *, lent: bool, steps: int | None) -> str:
    """The page as one shell script; a line "### n" on standard output begins what block n prints."""
    lines = ["set -e"]
    for number, block in enumerate(page):
        if block.file is not None:
            lines.append(f"cat > '{block.file}' <<'END OF THE FILE'\n{block.text}END OF THE FILE")
        elif block.kind == "sh":
            text = block.text
            if steps is not None:
                text = re.sub(r"--total_steps \d+", f"--total_steps {steps} --eval_games 20", text)
            if lent:
                text = re.sub(
                    r"^(python3 -m venv env)$", rf"'{sys.executable}' -m venv env\n{_lend()}", text, flags=re.M
                )
            lines.append(f"echo '### {number}'\n{text}")
    return "\n".join(lines) + "\n"


def _lend() -> str:
    """A line that lets the new environment find this one's packages, but not an editable install of movelist."""
    folders = "\\n".join(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return f"for place in env/lib/python3.*/site-packages; do printf '{folders}\\n' > $place/lent.pth; done"


def shape(text: str) -> str:
    """A line without its numbers."""
    return NUMBER.sub("0", text).strip()


def differences(page: list[Block], printed: dict[int, str]) -> list[str]:
    """Lines of the page that nothing printed."""
    missing, before = [], ""
    for number, block in enumerate(page):
        if block.kind == "text":
            there = {shape(line) for line in before.splitlines()}
            missing += [line for line in block.text.splitlines() if shape(line) not in there]
        before = printed.get(number, before)
    return missing


def main() -> int:
    """Follow the page; 0 if all of it is true."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lent", action="store_true", help="borrow this Python's packages instead of installing them")
    parser.add_argument("--steps", type=int, help="train for so many steps only, and play few games")
    parser.add_argument("--dist", type=Path, help="a folder with the wheel and the source archive; else they are built")
    parser.add_argument("--folder", type=Path, help="where to work: an empty folder that stays; else one that goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="movelist-tutorial-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.dist:
            for file in (*arguments.dist.glob("*.whl"), *arguments.dist.glob("*.tar.gz")):
                shutil.copy(file, folder)
        else:
            build(folder)
        return follow(folder, lent=arguments.lent, steps=arguments.steps)


def follow(folder: Path, *, lent: bool, steps: int | None) -> int:
    """Run the page's script in a folder, and hold what it prints against the page."""
    page = blocks(TUTORIAL.read_text(encoding="utf-8"))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if lent:
        environment |= {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    started = time.monotonic()
    text = script(page, lent=lent, steps=steps)
    done = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    pieces = re.split(r"^### (\d+)\n", done.stdout, flags=re.M)
    printed = dict(zip(map(int, pieces[1::2]), pieces[2::2], strict=True))
    print(done.stdout, end="")
    if done.returncode:
        print(f"the page ends in an error, exit code {done.returncode}:\n{done.stderr}", file=sys.stderr)
        return 1
    missing = differences(page, printed)
    for line in missing:
        print(f"the page shows what was not printed: {line}", file=sys.stderr)
    print(f"followed {len(page)} blocks in {time.monotonic() - started:.0f} s", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
