"""The report of a segmentation run."""

import json

import numpy as np
import pytest

from paucal.report.segmentation import METRICS_FILE, parse_scores, write_segmentation_report
from paucal.tasks.segmentation.scores import PixelCounts, segmentation_report
from paucal.types import UserError


def made(tmp_path, **changes):
    generator = np.random.default_rng(0)
    tallies = []
    for number in range(6):
        confusion = np.zeros((4, 4), np.int64)
        confusion[:3, :3] = generator.integers(5, 90, (3, 3)) + 400 * np.eye(3, dtype=np.int64)
        tallies.append(PixelCounts(number, confusion))
    names = ("ground", "<b>road</b>", "sky", "never")
    content = {**segmentation_report(tallies, names).to_dict(), **changes}
    (tmp_path / "evaluation/test").mkdir(parents=True)
    (tmp_path / "evaluation/test/segmentation.json").write_text(json.dumps(content))
    (tmp_path / "summary.json").write_text(json.dumps({"title": "t", "selected": False, "parts": {"test": 6}}))
    return tmp_path


def test_page__has_every_class_the_weakest_first_and_what_nobody_knows(tmp_path):
    run = made(tmp_path)
    scores = parse_scores(json.loads((run / METRICS_FILE).read_text()))
    assert [row["class"] for row in scores.classes][-1] == "never"
    values = [float(row["IoU"].split()[0]) for row in scores.classes[:-1]]
    assert values == sorted(values)
    assert scores.classes[-1]["IoU"] == "none"
    page = write_segmentation_report(run).read_text()
    assert "&lt;b&gt;road&lt;/b&gt;" in page
    assert "<b>road</b>" not in page
    assert "No test mask shows never" in page
    assert "With only 6 test images" in page
    assert "the model of the last epoch" in page
    assert f"{scores.mean_iou[0]} of their union" in page


def test_page__of_a_run_without_a_test_says_so(tmp_path):
    assert "has not been evaluated" in write_segmentation_report(tmp_path).read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"images": "many"},
        {"classes": 3},
        {"classes": [{"class": "a"}]},
        {"mean_iou": None},
        {"mean_iou": {"value": "x", "low": None, "high": None}},
        {"unseen": 4},
    ],
)
def test_damaged_scores__are_refused(tmp_path, changes):
    with pytest.raises(UserError, match=r"segmentation\.json' is damaged"):
        write_segmentation_report(made(tmp_path, **changes))
