"""How long an epoch of each arm of `small_data.py` takes, for comparisons in equal time."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paucal
from paucal.runs import RunFolder

EPOCHS, TURNS = 3, 2


def epoch_seconds(data: Path, work: Path, arms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of an epoch of each arm, its validation included.

    Arms take turns. The shortest of four epochs counts, since other work on the machine can only lengthen one; the
    first epoch of a run, which reads the images, is left out.

    Args:
        data: Images as `paucal.train` takes them.
        work: Folder for the runs, which are overwritten.
        arms: Settings by name, without length, rate and seed.
    """
    found: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(TURNS):
        for name, settings in arms.items():
            output = work / f"timing-{name}"
            length = {"epochs": EPOCHS, "lr": 1e-3, "seed": turn}
            paucal.train(data, output=str(output), overwrite=True, **{"init": "none", **settings, **length})
            ends = [row["seconds"] for row in RunFolder(output).read_rows()]
            found[name] += [after - before for before, after in itertools.pairwise(ends)]
    return {name: round(min(times), 3) for name, times in found.items()}
