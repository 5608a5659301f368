"""How the processes that load images begin."""

import multiprocessing
import sys


def start_method() -> str:
    """Return the way that somebody has set, else "fork" on Linux and Python's own elsewhere.

    Python 3.14 no longer forks by itself on Linux; processes that begin anew load torch again, hold images of their
    own, and need a main module that is guarded.
    """
    if chosen := multiprocessing.get_start_method(allow_none=True):
        return chosen
    return "fork" if sys.platform == "linux" else multiprocessing.get_all_start_methods()[0]
