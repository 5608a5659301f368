"""`python -m paucal`: the command line, for environments whose programs are not on the PATH."""

import sys

from paucal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
