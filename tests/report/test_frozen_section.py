"""The section on frozen features, in the reports of both kinds of runs."""

import json

import numpy as np
import pytest
from PIL import Image

from paucal.evaluation.protocols.evaluate import Outcome, ScoreKey
from paucal.evaluation.protocols.table import FOLDER, compare, store_table
from paucal.metrics.intervals import Bootstrap
from paucal.metrics.measures import Mean
from paucal.report.page import write_report
from paucal.report.pretraining import write_pretraining_report
from paucal.runs import RunFolder
from paucal.types import UserError

EVIL = "<script>alert('x')</script>"
WRITERS = (write_report, write_pretraining_report)


def store(run: RunFolder) -> None:
    lines = [ScoreKey("knn", "k = 20", "top-1"), ScoreKey("correspondence", "crop", "distance error", "px")]
    lines += [ScoreKey("knn", "k = 10", "top-1", headline=False)]

    def outcomes(hits: int, distance: float) -> list[Outcome]:
        measures = [Mean(np.arange(40) < hits), Mean(np.full(40, distance)), Mean(np.arange(40) < hits)]
        return [Outcome(line, measure, 40, EVIL) for line, measure in zip(lines, measures, strict=True)]

    rows = compare("photos", {EVIL: outcomes(30, 2.5), "random weights": outcomes(20, 9.0)}, Bootstrap(draws=100))
    facts = {"name": "photos", "train": 1200, "val": 0, "test": 40, "how": f"as declared {EVIL}"}
    seen = {EVIL: ["2 of the test images were seen without labels."]}
    store_table(run.evaluation(FOLDER), rows, {"level": 0.95, "data": [{**facts, "seen_unlabelled": seen}]})
    Image.new("RGB", (4, 3), (10, 200, 30)).save(run.evaluation(FOLDER) / "correspondence.png")


@pytest.mark.parametrize("write", WRITERS)
def test_section__shows_scores_gains_pictures_and_images_seen_before(tmp_path, write):
    run = RunFolder(tmp_path)
    store(run)
    page = write(run.path).read_text()
    for words in (
        '<a href="#frozen">Frozen features</a>',
        "photos: 1,200 train, 0 val, 40 test; as declared",
        "knn k = 20 top-1, %",
        "75.0 [",
        "+25.0 [+",
        "correspondence crop distance error, px",
        '<td class="number">2.50</td>',
        '<td class="number">-6.50</td>',
        "2 of the test images were seen without labels.",
        "gain over random weights",
        "1 win, 0 ties, 0 losses",
        "Matched feature-map positions of two views",
    ):
        assert words.replace("1 win", "2 wins") in page, words
    assert "k = 10" not in page
    assert "<script" not in page
    assert page.count("data:image/png") == 1
    assert "More pictures" not in page


@pytest.mark.parametrize("write", WRITERS)
def test_section__has_a_column_and_a_gain_for_each_of_several_models(tmp_path, write):
    run, line = RunFolder(tmp_path), ScoreKey("linear", "", "accuracy")
    hits = {"mine": 30, **{f"other{number}": 20 + number for number in range(6)}, "random weights": 4}
    made = {name: [Outcome(line, Mean(np.arange(40) < count), 40)] for name, count in hits.items()}
    facts = {"name": "photos", "train": 120, "val": 0, "test": 40, "how": "as declared"}
    rows = compare("photos", made, Bootstrap(draws=100))
    store_table(run.evaluation(FOLDER), rows, {"level": 0.95, "data": [facts]})
    page = write(run.path).read_text()
    names = list(hits)
    assert [page.count(f'<th class="number">{name}</th>') for name in names] == [1] * 8
    assert [page.count(f'<th class="number">gain over {name}</th>') for name in names[1:]] == [1] * 7
    assert all(f"{2.5 * count:.1f} [" in page for count in hits.values())
    assert all(f"+{75 - 2.5 * count:.1f} [" in page for count in list(hits.values())[1:])
    assert all(f"mine against {name}: 1 win" in page for name in names[1:])


@pytest.mark.parametrize("write", WRITERS)
def test_section__is_not_there_where_nothing_was_judged(tmp_path, write):
    assert "Frozen features" not in write(tmp_path).read_text()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    "damage",
    [
        {"rows": 3},
        {"rows": [{"data": "photos"}]},
        {"level": float("nan")},
        {"level": None},
        {"data": [{"name": "photos"}]},
        {"data": [3]},
    ],
)
def test_section__says_which_file_is_damaged(tmp_path, write, damage):
    run = RunFolder(tmp_path)
    store(run)
    path = run.evaluation(FOLDER) / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(UserError, match=r"results\.json' is damaged"):
        write(run.path)
