"""What is found of a finished run beside its own scores: frozen features, and pixels looked at at several scales."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.evaluation.protocols.comparison import Row
from paucal.rules.circumstances import best_device
from paucal.runs import RunFolder
from paucal.verbs.comparing.cells.cell import JUDGED, JUDGING, Cell
from paucal.verbs.judging.frozen import judge_frozen
from paucal.verbs.judging.segmentation import judge_segmenter
from paucal.verbs.judging.settings import EvalSettings, OpeningSettings
from paucal.verbs.run.images import find_images
from paucal.verbs.run.voice import Voice

MULTI_SCALE = "mean_iou_scales"
CUT = 0.2  # of the images of a set that has no test part


def judge_cell(cell: Cell, voice: Voice) -> None:
    """Judge a cell's finished run as its settings ask for, and store the scores in the cell's folder.

    What they ask for are settings of `paucal eval`, and for a pre-trained backbone "on", the DATA of its judge.

    Raises:
        UserError: the images do not do.
    """
    asked = dict(cell.settings[JUDGING])
    scores = _looked_again(cell, asked, voice) if cell.verb == "segment" else _features(cell, asked, voice)
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


def _features(cell: Cell, asked: dict[str, Any], voice: Voice) -> dict[str, dict[str, float]]:
    """Return what a pre-trained backbone is worth beside random weights."""
    data = asked.pop("on", None) or cell.settings.get("data", "digits")
    places = {**_machine(cell), **({"data_root": root} if (root := cell.settings.get("data_root")) else {})}
    settings = EvalSettings(**{**places, **_cut(data, places), **asked, "seed": cell.seed})
    table = judge_frozen(str(cell.run.path), [data], ["knn", "linear"], settings, cell.folder / "judged", voice)
    return _scores(table.rows)


def _cut(data: str, places: Mapping[str, Any]) -> dict[str, float]:
    """Have test images cut from a set without any; the backbone has seen them, but none of their labels."""
    images = find_images(OpeningSettings(data=data, data_root=places.get("data_root")))
    return {"test_fraction": CUT} if set(images.declared) <= {"", "train"} else {}


def _scores(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.line.headline and row.line.protocol not in found:
            values = [score.value for score in row.scores.values()]
            found[row.line.protocol] = dict(zip(("trained", "random"), values, strict=False))
    return found
