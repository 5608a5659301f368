"""The pictures and sentences of a comparison show what lies in its runs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paucal.evaluation.comparison import difference
from paucal.verbs.compare._figures import curves_figure, differences_figure
from paucal.verbs.compare.findings import compute_gain
from paucal.verbs.compare.report import (
    EPOCHS_BY_VALIDATION,
    LAST_EPOCHS,
    SOME_EPOCHS_BY_VALIDATION,
    describe_selection,
    fairness_sentences,
    significance_sentences,
)

pytestmark = pytest.mark.usefixtures("drawn_pictures")


def findings(*curves: list[float]) -> Any:
    runs = {seed: SimpleNamespace(rows=[{"epoch": place, "val_top1": y} for place, y in enumerate(curve, start=1)])
            for seed, curve in enumerate(curves)}  # fmt: skip
    return SimpleNamespace(arms=[SimpleNamespace(name="way", outcomes=runs)])


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([0.5, 0.6], EPOCHS_BY_VALIDATION),
        ([None, None], LAST_EPOCHS),
        ([0.5, None], SOME_EPOCHS_BY_VALIDATION),
        ([], EPOCHS_BY_VALIDATION),
    ],
)
def test_page__says_by_what_epochs_were_chosen(scores, said):
    outcomes = {seed: SimpleNamespace(validation=score) for seed, score in enumerate(scores)}
    found: Any = SimpleNamespace(arms=[SimpleNamespace(outcomes=outcomes)])
    assert describe_selection(found) == said


@pytest.mark.parametrize(("curves", "mark"), [(([0.2], [0.4]), "o"), (([0.2, 0.3], [0.4, 0.5]), "")])
def test_curves__of_a_single_epoch_are_dots_since_a_line_of_one_place_shows_nothing(curves, mark):
    figure = curves_figure(findings(*curves))
    assert figure is not None
    *runs, mean = figure.axes[0].lines
    assert [line.get_marker() for line in (*runs, mean)] == [mark] * 3
    assert [list(line.get_ydata()) for line in runs] == [[100 * y for y in curve] for curve in curves]
    assert next(iter(mean.get_ydata())) == pytest.approx(30)


def test_differences__have_a_legend_of_all_bars_though_the_first_has_a_single_seed():
    hits = np.random.default_rng(0).integers(0, 2, (4, 50)).astype(float)
    gains = difference(hits[:1], hits[1:2]), difference(hits[:2], hits[2:])
    arms = [SimpleNamespace(name="a", baseline="b", gain=gain) for gain in gains]
    found: Any = SimpleNamespace(arms=arms)
    figure = differences_figure(found)
    assert figure is not None
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        *("other seeds", "other images", "both", "a seed")
    }
    assert len(figure.legends[0].get_texts()) == 4


def test_verdict__of_the_same_hits_names_no_number_of_seeds():
    hits = np.random.default_rng(0).integers(0, 2, (3, 50)).astype(float)
    arm = SimpleNamespace(name="a", baseline="b", gain=difference(hits, hits))
    found: Any = SimpleNamespace(arms=[arm])
    assert significance_sentences(found)[0].endswith(
        ": with each seed, both are correct on the same number of test images."
    )


def test_verdict__of_one_difference_on_every_image_asks_for_more_images():
    arm = SimpleNamespace(name="a", baseline="b", gain=difference(np.ones((2, 1)), np.zeros((2, 1))))
    found: Any = SimpleNamespace(arms=[arm])
    assert significance_sentences(found)[0].endswith("gives no interval for other test images: use more test images.")


def test_gain__resamples_groups_that_all_runs_know():
    def run(hits: list[bool], groups: str | None) -> Any:
        return SimpleNamespace(
            hits=dict(zip("abcd", hits, strict=True)), groups=groups and dict(zip("abcd", groups, strict=True))
        )

    base = {0: run([True, False, False, True], "1122")}
    for groups, count in (("1122", 2), ("1222", None), (None, None)):
        gain = compute_gain({0: run([True, True, False, True], groups)}, base)
        assert gain is not None
        assert gain.groups == count


def test_verdict__of_seeds_that_agree_exactly_claims_nothing_about_other_seeds():
    hits = np.random.default_rng(0).integers(0, 2, (1, 50)).astype(float).repeat(3, axis=0)
    arm = SimpleNamespace(name="a", baseline="b", gain=difference(np.ones((3, 50)), hits))
    found: Any = SimpleNamespace(arms=[arm])
    assert not arm.gain.clear
    assert "cannot show how much training varies. Use more seeds." in significance_sentences(found)[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, "All runs had the same time, 10m"), ({"time": "20m"}, "The runs trained for 2 to 5 epochs")],
)
def test_fairness__says_the_same_time_only_if_no_way_has_its_own(settings, expected):
    outcomes = {seed: SimpleNamespace(epochs=epochs) for seed, epochs in enumerate((2, 5))}
    ways = [SimpleNamespace(settings={}), SimpleNamespace(settings=settings)]
    arms = [SimpleNamespace(name="a", baseline="", outcomes=outcomes)]
    grid = SimpleNamespace(shared={"time": "10m"}, arms=ways, rates=(), seeds=(0,))
    found: Any = SimpleNamespace(arms=arms, grid=grid, differences=())
    assert fairness_sentences(found)[0].startswith(expected)


@pytest.mark.parametrize(("shared", "own"), [({"group_by": "patient"}, {}), ({}, {"group_by": "patient"}), ({}, {})])
def test_fairness__says_that_images_of_one_group_are_not_independent(shared, own):
    gains = difference(*np.eye(4)[:2, None]), difference(*np.eye(4)[:2, None], groups=[0, 0, 1, 1])
    arms = [SimpleNamespace(name="a", baseline="", outcomes={}, gain=gain) for gain in gains]
    grid = SimpleNamespace(shared=shared, arms=[SimpleNamespace(settings=own)], rates=(), seeds=(0,))
    for arm in arms:
        found: Any = SimpleNamespace(arms=[arm], grid=grid, differences=[arm])
        said = any("the intervals are too narrow" in line for line in fairness_sentences(found))
        assert said == (bool(shared or own) and arm.gain.groups is None)
