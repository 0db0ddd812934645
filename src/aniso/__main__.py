"""`python -m aniso` is the command `aniso`."""

import sys

from aniso.cli import main

if __name__ == "__main__":
    sys.exit(main())
