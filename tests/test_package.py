"""The package: what is built from the sources installs and runs far from the repository.

The network is not asked. A fresh environment gets the wheel alone; what it depends on is lent by the present one.
"""

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "movelist"
EXTRAS = {"games", "onnx", "pettingzoo", "rlcard", "all"}


def run(*words, cwd, env=None):
    """Run a command to its good end; what it said on standard output."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist, and the wheel that was built from what is in it and from nothing else."""
    pytest.importorskip("hatchling", reason="a tool for developers")
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=unpacked)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """(folder of programs, environment variables) of a fresh environment with the wheel in it."""
    home = tmp_path_factory.mktemp("elsewhere") / "fresh"
    venv.create(home, with_pip=False)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    python = programs / ("python.exe" if os.name == "nt" else "python")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run(*pip, "install", "-q", "--no-deps", "--no-index", str(wheel), cwd=home)
    own = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # A line with a folder, whose own .pth files are not read: so no editable install of the present one comes along.
    lent = "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (own / "lent.pth").write_text(lent + "\n", encoding="utf-8")
    return programs, {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_wheel_holds_all_files_of_the_package_and_no_other(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("movelist/")}
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        said = email.message_from_bytes(archive.read(metadata))
    ours = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert inside == {name for name in ours if "__pycache__" not in name}
    assert {"movelist/py.typed", "movelist/measure/templates/report.html.j2"} <= inside
    assert set(said.get_all("Provides-Extra")) == EXTRAS
    needed = said.get_all("Requires-Dist")
    packages = {extra: {line.partition(";")[0] for line in needed if f"extra == '{extra}'" in line} for extra in EXTRAS}
    everything = packages.pop("all")
    assert all(packages.values())
    assert set.union(*packages.values()) == everything


def test_the_sdist_holds_what_tests_and_readers_need(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "pyproject.toml", "constraints.txt"}
    assert expected <= names
    assert {"tests/test_package.py", "docs/games.md", "benchmarks/games_table.py"} <= names


def test_it_runs_from_another_folder(installed, tmp_path):
    """A training, a match and an export with the installed program; --help leaves torch alone."""
    programs, env = installed
    python, movelist = str(programs / "python"), str(programs / "movelist")
    asked = "import movelist; print(movelist.__file__)"
    assert Path(run(python, "-c", asked, cwd=tmp_path, env=env).strip()).is_relative_to(programs.parent)
    help_alone = (
        "import sys\nfrom movelist.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)"
    )
    said = run(python, "-c", help_alone, cwd=tmp_path, env=env)
    assert "--game" in said
    assert said.splitlines()[-1] == "False"
    assert run(movelist, "--version", cwd=tmp_path, env=env).startswith("movelist 0.")
    pytest.importorskip("pyspiel", reason="the game comes with OpenSpiel")
    small = ["--hidden_dim", "16", "--batch_size", "64", "--total_steps", "200", "--update_frequency", "64"]
    words = [*small, "--eval_games", "20", "--no-live", "--out", "run"]
    run(movelist, "train", "--game", "kuhn_poker", *words, cwd=tmp_path, env=env)
    result = json.loads(run(movelist, "match", "run", "--num_games", "20", "--json", cwd=tmp_path, env=env))
    assert result["num_games"] == 20
    words = ["--out", "policy.safetensors", "--profile", "weights"]
    run(movelist, "export", "run", *words, cwd=tmp_path, env=env)
    assert (tmp_path / "policy.safetensors").stat().st_size > 1_000
