"""Evaluations of a finished run beside its own: frozen features, and segmentation at several scales."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.evaluation.protocols.comparison import Row
from paucal.evaluation.protocols.judge import PROTOCOLS, Protocol
from paucal.rules.facts import best_device
from paucal.runner.console import Console
from paucal.runs import RunFolder
from paucal.verbs.compare.cells.cell import JUDGED, JUDGING, SUBJECT, Cell
from paucal.verbs.compare.cells.grid import EVAL
from paucal.verbs.compare.cells.start import start_of, start_settings
from paucal.verbs.eval.frozen import judge_frozen
from paucal.verbs.eval.frozen_data import find_judged
from paucal.verbs.eval.segmentation import evaluate_segmenter
from paucal.verbs.eval.settings import EvalSettings, OpeningSettings

MULTI_SCALE = "mean_iou_scales"
MACHINE = ("data_root", "device", "workers", "download")  # settings that do not change the scores
TEST_FRACTION = 0.2  # for data sets without a test part


def evaluate_cell(cell: Cell, console: Console) -> None:
    """Evaluate a cell's finished run, or its subject, and store the scores in the cell's folder.

    The cell has settings of `paucal eval`, and for a pre-trained backbone "on", the DATA of the evaluation.

    Raises:
        UserError: The images cannot be used, or the model is missing.
    """
    if cell.verb == EVAL:
        subject = start_settings(start_of(cell)).get("init") or str(cell.settings[SUBJECT])
        own = {name: value for name, value in cell.given.items() if name not in ("data", *MACHINE)}
        scores = _features(cell, subject, own, console)
    elif cell.verb == "segment":
        scores = _rescored_segmentation(cell, dict(cell.settings[JUDGING]), console)
    else:
        asked = {"protocol": ["knn", "linear"], **cell.settings[JUDGING]}
        scores = _features(cell, str(cell.run.path), asked, console)
    RunFolder(cell.folder).write_json(JUDGED, {"scores": scores})


def _machine(cell: Cell) -> dict[str, Any]:
    """Return the device and workers of an evaluation; by default the best device of the machine."""
    workers = {"workers": cell.settings["workers"]} if "workers" in cell.settings else {}
    return {"device": cell.settings.get("device") or best_device()[0], **workers}


def _rescored_segmentation(cell: Cell, asked: Mapping[str, Any], console: Console) -> dict[str, dict[str, float]]:
    """Return the score of a segmentation model with other evaluation settings than its run's."""
    settings = EvalSettings(**{**_machine(cell), **asked, "output": str(cell.folder / "judged")})
    (found,) = evaluate_segmenter(str(cell.run.path), [], settings, console)
    return {MULTI_SCALE: {"trained": found.metrics["mean_iou"]}}


def _features(cell: Cell, subject: str, asked: dict[str, Any], console: Console) -> dict[str, dict[str, float]]:
    """Return the scores of frozen features, beside those of random weights."""
    data = asked.pop("on", None) or cell.settings.get("data", "digits")
    sets = {name: cell.settings[name] for name in ("data_root", "download") if name in cell.settings}
    places = {**_machine(cell), **sets}
    settings = EvalSettings(**{**places, **_cut(data, places), **asked, "seed": cell.seed})
    protocols: list[Protocol] = [name for name in PROTOCOLS if name in settings.protocols]
    table = judge_frozen(subject, [data], protocols, settings, cell.folder / "judged", console)
    return _scores(table.rows)


def _cut(data: str, places: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of test images for a set without any; the backbone has not seen their labels."""
    images = find_judged(data, OpeningSettings(data=data, data_root=places.get("data_root")))
    return {"test_fraction": TEST_FRACTION} if set(images.declared) <= {"", "train"} else {}


def _scores(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the main score of every protocol, and its distance in pixels."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        name = f"{row.line.protocol}_distance" if row.line.unit == "px" else row.line.protocol
        if row.line.headline and name not in found:
            values = [score.value for score in row.scores.values()]
            found[name] = dict(zip(("trained", "random"), values, strict=False))
    return found
