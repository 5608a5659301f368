"""`python -m paucal` runs the command line, for environments where the `paucal` program is not on the PATH."""

import sys

from paucal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
