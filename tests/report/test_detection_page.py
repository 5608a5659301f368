"""The report of a detector."""

import json
from pathlib import Path

import pytest

from paucal.report.detection import write_detection_report
from paucal.types import UserError

SCORE = {"value": 0.5, "low": 0.42, "high": 0.61}
CONTENT = {
    "images": 7,
    "intervals": {"ap": SCORE, "ap50": {"value": 0.8, "low": None, "high": None}},
    "per_class": {"red": 0.9, "<b>blue</b>": 0.1, "never": None},
}


def made(tmp_path: Path, **changes: object) -> Path:
    folder = tmp_path / "evaluation" / "detection"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({**CONTENT, **changes}))
    (tmp_path / "summary.json").write_text(json.dumps({"title": "t", "parts": {"test": 7}}))
    return tmp_path


def test_page__says_the_scores_and_lists_the_weakest_class_first(tmp_path: Path):
    page = write_detection_report(made(tmp_path)).read_text()
    assert "most likely lies between 42.0 and 61.0 %" in page
    assert page.index("&lt;b&gt;blue") < page.index(">red<")
    assert "<b>blue" not in page
    assert "No test image shows never" in page
    assert "With only 7 test images" in page


def test_page__shows_the_masks_scores_beside_those_of_boxes(tmp_path: Path):
    masks = {
        "mask_ap": {"value": 0.3, "low": 0.21, "high": 0.44},
        "mask_ap50": {"value": 0.7, "low": 0.6, "high": 0.75},
    }
    per_class = {"red": 0.625, "<b>blue</b>": None, "never": None}
    changed = made(tmp_path, intervals={**CONTENT["intervals"], **masks}, mask_per_class=per_class)
    page = write_detection_report(changed).read_text()
    words = "AP50 is 70.0 % and AP 30.0 %, most likely between 21.0 and 44.0 % on further images."
    assert words in page
    assert page.count(">mask AP<") == 2
    assert ">62.5 %<" in page
    assert "--format json" in page


def test_page__of_a_detector_of_boxes_says_nothing_of_masks(tmp_path: Path):
    page = write_detection_report(made(tmp_path)).read_text()
    assert "mask" not in page[page.index("<main>") :]


def test_page__of_a_run_without_a_test_says_so(tmp_path: Path):
    assert "has not been evaluated" in write_detection_report(tmp_path).read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"images": "many"},
        {"per_class": 3},
        {"per_class": {"a": "x"}},
        {"intervals": {}},
        {"intervals": {"ap": None}},
        {"mask_per_class": {"red": 0.5}},
        {"mask_per_class": 3},
    ],
)
def test_damaged_scores__are_refused(tmp_path: Path, changes: dict):
    with pytest.raises(UserError, match=r"metrics\.json' is damaged"):
        write_detection_report(made(tmp_path, **changes))
