"""Profile from a clone: `python profile_performance.py --flags` is `movelist profile --flags`."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("movelist") is None:  # a clone that was not installed; also seen by spawned workers
    sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))


def main() -> int:
    """Hand over to the command line of the package; returns its exit code."""
    try:
        from movelist.cli import main as command_line
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "movelist":
            raise
        set_up = "setup.bat" if sys.platform == "win32" else "make install"
        print(f"{error}: run {set_up} and then the Python in .venv, or install {error.name}.", file=sys.stderr)
        return 2
    return command_line(["profile", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
