"""What the frozen features of a pre-trained backbone are worth: nearest neighbours and a linear probe."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.evaluation.protocols.comparison import Row
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import JUDGED, Cell
from paucal.verbs.judging.frozen import judge_frozen
from paucal.verbs.judging.settings import EvalSettings, OpeningSettings
from paucal.verbs.run.images import find_images
from paucal.verbs.run.voice import Voice

# The entry of a cell's settings that is for its judge: settings of `paucal eval`, and "on" for its DATA.
JUDGING = "judging"
CUT = 0.2  # of the images of a set that has no test part


def judge_cell(cell: Cell, voice: Voice) -> None:
    """Judge the backbone of a cell's finished run beside random weights, and store the scores in the cell's folder.

    Raises:
        UserError: the images do not do.
    """
    asked = dict(cell.settings.get(JUDGING, {}))
    data = asked.pop("on", None) or cell.settings.get("data", "digits")
    places = {name: cell.settings[name] for name in ("data_root", "device", "workers") if name in cell.settings}
    settings = EvalSettings(**{**places, **_cut(data, places), **asked, "seed": cell.seed})
    table = judge_frozen(str(cell.run.path), [data], ["knn", "linear"], settings, cell.folder / "judged", voice)
    RunFolder(cell.folder).write_json(JUDGED, {"scores": _scores(table.rows)})


def _cut(data: str, places: Mapping[str, Any]) -> dict[str, float]:
    """Have test images cut from a set without any; the backbone has seen them, but none of their labels."""
    images = find_images(OpeningSettings(data=data, data_root=places.get("data_root")))
    return {"test_fraction": CUT} if set(images.declared) <= {"", "train"} else {}


def judged_scores(cell: Cell) -> Mapping[str, Mapping[str, float]]:
    """Return shares of right answers by protocol ("knn", "linear"), of the backbone ("trained") and a random one.

    Raises:
        UserError: they are missing or damaged.
    """
    stored = RunFolder(cell.folder).read_json(JUDGED)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in by_name.items()}
            for protocol, by_name in stored["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(cell.folder / JUDGED)!r} is damaged ({problem}): remove it and go on.") from problem


def _scores(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.line.headline and row.line.protocol not in found:
            values = [score.value for score in row.scores.values()]
            found[row.line.protocol] = dict(zip(("trained", "random"), values, strict=False))
    return found
