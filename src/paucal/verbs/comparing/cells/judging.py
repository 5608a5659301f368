"""What is found of a finished run beside its own scores: frozen features, and pixels looked at at several scales."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.evaluation.protocols.comparison import Row
from paucal.evaluation.protocols.judge import PROTOCOLS, Protocol
from paucal.rules.circumstances import best_device
from paucal.runs import RunFolder
from paucal.verbs.comparing.cells.beginning import begun_with, start_of
from paucal.verbs.comparing.cells.cell import JUDGED, JUDGING, SUBJECT, Cell
from paucal.verbs.comparing.cells.grid import EVAL
from paucal.verbs.judging.frozen import judge_frozen
from paucal.verbs.judging.frozen_data import find_judged
from paucal.verbs.judging.segmentation import judge_segmenter
from paucal.verbs.judging.settings import EvalSettings, OpeningSettings
from paucal.verbs.run.voice import Voice

MULTI_SCALE = "mean_iou_scales"
MACHINE = ("data_root", "device", "workers", "download")  # where a cell is judged, not how
CUT = 0.2  # of the images of a set that has no test part


def judge_cell(cell: Cell, voice: Voice) -> None:
    """Judge a cell's finished run, or its subject, as its settings ask for, and store the scores in the cell's folder.

    What they ask for are settings of `paucal eval`, and for a pre-trained backbone "on", the DATA of its judge.

    Raises:
        UserError: the images do not do, or what is judged is not there.
    """
    if cell.verb == EVAL:
        subject = begun_with(start_of(cell)).get("init") or str(cell.settings[SUBJECT])
        own = {name: value for name, value in cell.given.items() if name not in ("data", *MACHINE)}
        scores = _features(cell, subject, own, voice)
    elif cell.verb == "segment":
        scores = _looked_again(cell, dict(cell.settings[JUDGING]), voice)
    else:
        asked = {"protocol": ["knn", "linear"], **cell.settings[JUDGING]}
        scores = _features(cell, str(cell.run.path), asked, voice)
    RunFolder(cell.folder).write_json(JUDGED, {"scores": scores})


def _machine(cell: Cell) -> dict[str, Any]:
    """Return where a cell is judged: where its run was made by itself, the best device of the machine."""
    workers = {"workers": cell.settings["workers"]} if "workers" in cell.settings else {}
    return {"device": cell.settings.get("device") or best_device()[0], **workers}


def _looked_again(cell: Cell, asked: Mapping[str, Any], voice: Voice) -> dict[str, dict[str, float]]:
    """Return the score of a network that gives pixels a class, looked at otherwise than its run did."""
    settings = EvalSettings(**{**_machine(cell), **asked, "output": str(cell.folder / "judged")})
    (found,) = judge_segmenter(str(cell.run.path), [], settings, voice)
    return {MULTI_SCALE: {"trained": found.metrics["mean_iou"]}}


def _features(cell: Cell, subject: str, asked: dict[str, Any], voice: Voice) -> dict[str, dict[str, float]]:
    """Return what the frozen features of a backbone are worth beside random weights."""
    data = asked.pop("on", None) or cell.settings.get("data", "digits")
    sets = {name: cell.settings[name] for name in ("data_root", "download") if name in cell.settings}
    places = {**_machine(cell), **sets}
    settings = EvalSettings(**{**places, **_cut(data, places), **asked, "seed": cell.seed})
    protocols: list[Protocol] = [name for name in PROTOCOLS if name in settings.protocols]
    table = judge_frozen(subject, [data], protocols, settings, cell.folder / "judged", voice)
    return _scores(table.rows)


def _cut(data: str, places: Mapping[str, Any]) -> dict[str, float]:
    """Have test images cut from a set without any; the backbone has seen them, but none of their labels."""
    images = find_judged(data, OpeningSettings(data=data, data_root=places.get("data_root")))
    return {"test_fraction": CUT} if set(images.declared) <= {"", "train"} else {}


def _scores(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the first score of every protocol, and the first distance in pixels."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        name = f"{row.line.protocol}_distance" if row.line.unit == "px" else row.line.protocol
        if row.line.headline and name not in found:
            values = [score.value for score in row.scores.values()]
            found[name] = dict(zip(("trained", "random"), values, strict=False))
    return found
