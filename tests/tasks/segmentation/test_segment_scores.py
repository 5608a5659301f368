"""Scores of predicted masks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from paucal.metrics.measures import PixelScores
from paucal.tasks.segmentation.scores import PixelCounts, count_image_pixels, segmentation_report


def shares(found: torch.Tensor, classes: int) -> torch.Tensor:
    """Probabilities that are 0.7 for the answer, the rest spread evenly."""
    one = torch.nn.functional.one_hot(found, classes).permute(2, 0, 1).float()
    return 0.7 * one + 0.3 * (1 - one) / (classes - 1)


def made(count: int = 5, classes: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    masks = [torch.randint(0, classes, (6, 7), generator=generator) for _ in range(count)]
    found = [torch.randint(0, classes, (6, 7), generator=generator) for _ in range(count)]
    for mask in masks:
        mask[0, :3] = 255
    return masks, found


def test_tally__counts_labelled_pixels_by_label_and_answer():
    masks, found = made(1)
    one = count_image_pixels(4, shares(found[0], 3), masks[0].to(torch.uint8))
    expected = np.zeros((3, 3), int)
    for label, answer in zip(masks[0].flatten().tolist(), found[0].flatten().tolist(), strict=True):
        if label != 255:
            expected[label, answer] += 1
    assert one.confusion.tolist() == expected.tolist()
    assert (one.index, one.pixels, one.confusion.dtype) == (4, 39, np.int64)
    right = int(np.trace(expected))
    assert one.loss == pytest.approx(-right * math.log(0.7) - (39 - right) * math.log(0.15), rel=1e-5)


def test_report__is_of_the_whole_set_not_a_mean_over_images():
    masks, found = made()
    tallies = [count_image_pixels(n, shares(f, 3), m) for n, (m, f) in enumerate(zip(masks, found, strict=True))]
    report = segmentation_report(tallies, "abc")
    labels, answers = torch.cat(masks).flatten(), torch.cat(found).flatten()
    known = labels != 255
    labels, answers = labels[known], answers[known]
    per_class = [
        int(((labels == k) & (answers == k)).sum()) / int(((labels == k) | (answers == k)).sum()) for k in range(3)
    ]
    assert [score.value for score in report.per_class] == pytest.approx(per_class)
    assert report.mean_iou.value == pytest.approx(sum(per_class) / 3)
    assert report.accuracy.value == pytest.approx(float((labels == answers).float().mean()))
    assert report.mean_iou.value != pytest.approx(np.mean([one.mean_iou for one in tallies]), abs=1e-4)
    for score in (report.mean_iou, report.accuracy, *report.per_class):
        assert score.low < score.value < score.high


def test_report__does_not_depend_on_the_order_of_images():
    masks, found = made()
    tallies = [count_image_pixels(n, shares(f, 3), m) for n, (m, f) in enumerate(zip(masks, found, strict=True))]
    one, two = (segmentation_report(rows, "abc").to_dict() for rows in (tallies, tallies[::-1]))
    assert one == two


def test_report__resamples_whole_groups():
    masks, found = made()
    tallies = [count_image_pixels(n, shares(f, 3), m) for n, (m, f) in enumerate(zip(masks, found, strict=True))]
    twice = [replace(row, index=row.index + offset) for row in tallies for offset in (0, 50)]
    once, grouped = segmentation_report(tallies, "abc"), segmentation_report(twice, "abc", groups=np.arange(100) % 50)
    assert (grouped.images, grouped.groups, once.groups) == (2 * len(tallies), len(tallies), None)
    assert grouped.mean_iou.ends == pytest.approx(once.mean_iou.ends)
    assert [score.ends for score in grouped.per_class] == [pytest.approx(score.ends) for score in once.per_class]
    assert grouped.to_dict()["groups"] == len(tallies)


def test_classes_that_occur_nowhere__are_no_number_and_left_out_of_the_mean():
    confusion = np.asarray([[6, 2, 0], [0, 2, 0], [0, 0, 0]])
    report = segmentation_report([PixelCounts(0, confusion), PixelCounts(1, confusion)], ("a", "b", "c"))
    assert [score.value for score in report.per_class[:2]] == [0.75, 0.5]
    assert math.isnan(report.per_class[2].value)
    assert report.mean_iou.value == 0.625
    assert report.unseen == ("c",)
    assert report.to_dict()["classes"][2]["value"] is None


def test_a_class_that_is_only_answered__counts_as_missed():
    confusion = np.asarray([[6, 2], [0, 0]])
    assert PixelScores([confusion]).iou(np.ones((1, 1))).tolist() == [[0.75, 0.0]]
    assert segmentation_report([PixelCounts(0, confusion)], "ab").unseen == ("b",)


def test_nothing_labelled__gives_no_number_and_no_crash():
    report = segmentation_report([PixelCounts(0, np.zeros((2, 2), np.int64))], "ab")
    assert math.isnan(report.mean_iou.value)
    assert report.to_dict()["mean_iou"]["value"] is None
    with pytest.raises(ValueError, match="no image"):
        segmentation_report([], "ab")


def test_intervals__are_of_images_and_shrink_with_their_number():
    generator = np.random.default_rng(0)
    rows = [
        PixelCounts(n, np.asarray([[50, b], [c, 50]])) for n, (b, c) in enumerate(generator.integers(0, 60, (400, 2)))
    ]
    few, many = segmentation_report(rows[:10], "ab").mean_iou, segmentation_report(rows, "ab").mean_iou
    assert few.high - few.low > 3 * (many.high - many.low)
    alike = segmentation_report([PixelCounts(n, np.asarray([[5, 1], [1, 5]])) for n in range(4)], "ab").mean_iou
    assert (alike.low, alike.high) == (None, None)  # all resampled sets are the same
