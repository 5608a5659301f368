"""Average precision: known values, torchmetrics on random boxes, and intervals that mean something."""

import numpy as np
import pytest

from paucal.metrics.intervals import Bootstrap
from paucal.metrics.measures import value_of
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.evaluation import (
    average_precision,
    box_overlaps,
    coco_scores,
    match_detections,
    match_overlaps,
)
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.pictures import count_mistakes

SIZE = (300, 300)


def truth(*rows: tuple[int, float, float, float, float], crowd: tuple[int, ...] = ()) -> Boxes:
    corners = np.asarray([row[1:] for row in rows], np.float32).reshape(-1, 4)
    marked = np.asarray([place in crowd for place in range(len(rows))], np.bool_)
    return Boxes(corners, np.asarray([row[0] for row in rows], np.int64), marked, SIZE)


def found(*rows: tuple[int, float, float, float, float, float]) -> Detections:
    rows = tuple(sorted(rows, key=lambda row: -row[1]))
    corners = np.asarray([row[2:] for row in rows], np.float32).reshape(-1, 4)
    return Detections(
        corners, np.asarray([row[1] for row in rows], np.float32), np.asarray([row[0] for row in rows], np.int64)
    )


def random_sets(images: int = 40, seed: int = 0, crowds: float = 0.1) -> tuple[list[Detections], list[Boxes]]:
    generator = np.random.default_rng(seed)
    answers, objects = [], []
    for _ in range(images):
        count = int(generator.integers(0, 8))
        corner, sides = generator.uniform(0, 200, (count, 2)), generator.uniform(20, 60, (count, 2))
        corners = np.concatenate([corner, corner + sides], 1).astype(np.float32)
        labels = generator.integers(0, 3, count)
        objects.append(Boxes(corners, labels, generator.random(count) < crowds, SIZE))
        moved = (corners + generator.normal(0, 3, corners.shape)).astype(np.float32)
        place = generator.uniform(0, 200, (4, 2))
        others = np.concatenate([place, place + 30], 1).astype(np.float32)
        scores = generator.random(count + 4).astype(np.float32)
        named = np.where(generator.random(count) < 0.8, labels, 0)
        order = np.argsort(-scores)
        every = np.concatenate([named, generator.integers(0, 3, 4)])
        answers.append(Detections(np.concatenate([moved, others])[order], scores[order], every[order]))
    return answers, objects


@pytest.mark.parametrize(("seed", "crowds"), [(0, 0.0), (1, 0.2), (2, 0.5)])
def test_average_precision__is_that_of_torchmetrics(seed: int, crowds: float):
    answers, objects = random_sets(seed=seed, crowds=crowds)
    theirs, ours = coco_scores(answers, objects, 4), match_detections(answers, objects, 4)
    count = len(answers)
    assert 0.02 < theirs["ap"] < 0.9
    assert value_of(average_precision(ours), count) == pytest.approx(theirs["ap"], abs=1e-5)
    assert value_of(average_precision(ours, slice(0, 1)), count) == pytest.approx(theirs["ap50"], abs=1e-5)
    for label in range(3):
        curve = ours[label].precisions(np.ones(count))
        assert curve is not None
        assert curve.mean() == pytest.approx(theirs["per_class"][label], abs=1e-5)
    assert theirs["per_class"][3] is None
    assert ours[3].precisions(np.ones(count)) is None


def test_perfect_answers__have_1_and_none_have_0():
    objects = [truth((0, 10, 10, 50, 50), (1, 60, 60, 90, 90)), truth()]
    perfect = [found((0, 0.9, 10, 10, 50, 50), (1, 0.8, 60, 60, 90, 90)), found()]
    assert coco_scores(perfect, objects, 2)["ap"] == pytest.approx(1)
    assert value_of(average_precision(match_detections(perfect, objects, 2)), 2) == pytest.approx(1)
    nothing = coco_scores([found(), found()], objects, 2)
    assert (nothing["ap"], nothing["recall"], nothing["per_class"]) == (0, 0, [0, 0])


def test_a_surer_wrong_answer__halves_the_precision():
    objects = [truth((0, 10, 10, 50, 50))]
    answers = [found((0, 0.9, 200, 200, 240, 240), (0, 0.5, 10, 10, 50, 50))]
    assert value_of(average_precision(match_detections(answers, objects, 1)), 1) == pytest.approx(0.5)


def test_an_object__is_found_once_and_by_the_surest():
    boxes = np.asarray([[0, 0, 10, 10], [0, 0, 10, 10]], np.float32)
    hits, ignored = match_overlaps(box_overlaps(boxes, boxes[:1], np.zeros(1, bool)), np.zeros(1, bool))
    assert hits.tolist() == [[True, False]] * 10
    assert not ignored.any()
    hits, ignored = match_overlaps(box_overlaps(boxes, boxes[:1], np.ones(1, bool)), np.ones(1, bool))
    assert not hits.any()
    assert ignored.all()


def test_images_drawn_twice__count_twice():
    answers, objects = random_sets(12, crowds=0)
    drawn = [0, 0, 0, 3, 5, 5, 7, 8, 9, 11]
    weights = np.bincount(drawn, minlength=12).astype(float)
    again = coco_scores([answers[place] for place in drawn], [objects[place] for place in drawn], 3)["ap"]
    # Equal scores of copies of one image fall together in one draw, and come one by one in the other.
    assert average_precision(match_detections(answers, objects, 3))(weights[None])[0] == pytest.approx(again, abs=0.01)


def test_interval__holds_the_value_narrows_with_images_and_repeats():
    few, many = random_sets(20, seed=3), random_sets(160, seed=3)
    widths = []
    for answers, objects in (few, many):
        measure, bootstrap = average_precision(match_detections(answers, objects, 3)), Bootstrap(draws=300)
        value = value_of(measure, len(answers))
        score = bootstrap.interval(measure, len(answers))
        assert score.low is not None
        assert score.high is not None
        assert score.low <= value <= score.high
        assert score == bootstrap.interval(measure, len(answers))
        widths.append(score.high - score.low)
    assert widths[1] < 0.6 * widths[0]


def test_mistakes__count_what_is_missed_and_what_is_no_object():
    objects = truth((0, 10, 10, 50, 50), (1, 60, 60, 90, 90), (0, 100, 100, 150, 150), crowd=(2,))
    answers = found(
        (0, 0.9, 10, 10, 50, 50), (0, 0.8, 60, 60, 90, 90), (0, 0.7, 105, 105, 140, 140), (1, 0.4, 60, 60, 90, 90)
    )
    assert count_mistakes(answers, objects) == (1, 1)
