"""Run a worker in this process: `python -m paucal.verbs.compare FOLDER` computes cells of the grid in FOLDER."""

import sys

from paucal.types import UserError
from paucal.verbs.compare._work import work_silently

if __name__ == "__main__":
    try:
        sys.exit(0 if work_silently(sys.argv[1], end_with_parent=True) else 130)
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as problem:
        sys.exit(f"error: {problem}")
