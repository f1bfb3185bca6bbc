"""`python -m movelist`."""

import sys

from movelist.cli import main

if __name__ == "__main__":
    sys.exit(main())
