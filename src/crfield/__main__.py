"""`python -m crfield` is the command `crfield`."""

import sys

from crfield.cli import main

if __name__ == "__main__":
    sys.exit(main())
