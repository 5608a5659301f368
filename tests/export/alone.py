"""Asks an exported file with its runtime alone, in a process that cannot import torch, timm or paucal.

With PAUCAL_RUNTIME_PYTHON, the process is the Python of an environment that has the runtimes and nothing else.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).with_name("runtime_alone.py")


def run_alone(path, given, folder):
    """Return the answer of a file for an array; `folder` is for the array."""
    np.save(folder / "given.npy", given)
    python = os.environ.get("PAUCAL_RUNTIME_PYTHON", sys.executable)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [python, str(PROGRAM), str(path), str(folder / "given.npy")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=clean)
    return np.asarray(json.loads(done.stdout))
