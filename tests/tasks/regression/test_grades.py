"""Grades: the cumulative logit model, its intervals and scores, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

import paucal
from paucal.backbones.spec import BackboneSpec
from paucal.metrics.regression import quadratic_kappa, regression_report
from paucal.models.preprocessing import Preprocessing
from paucal.models.regression import CumulativeLogitModel, RegressionCard
from paucal.tasks.regression.fitting import fit_grades
from paucal.tasks.regression.images import require_grades
from paucal.types import UserError
from tasks.regression.test_regression import bright_table


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of a network, and grades 2 to 5 that follow a cumulative logit model of them."""
    generator = np.random.default_rng(seed)
    outputs = generator.uniform(0, 6, count)
    cuts = np.array([1.5, 3.0, 4.0])
    return outputs, 2.0 + (outputs + generator.logistic(0, 0.5, count) > cuts[:, None]).sum(0)


def test_shares__are_those_of_the_cumulative_logits():
    grades = CumulativeLogitModel(1, (0.5, 2.0), 3.0)
    outputs = np.array([-1.0, 1.0, 4.0])
    up_to = 1 / (1 + np.exp(-3 * (np.array([0.5, 2.0]) - outputs[:, None])))
    assert grades.values == (1, 2, 3)
    assert grades.probabilities(outputs)[:, 0] == pytest.approx(up_to[:, 0])
    assert grades.probabilities(outputs)[:, 1] == pytest.approx(up_to[:, 1] - up_to[:, 0])
    assert grades.probabilities(outputs).sum(1) == pytest.approx(1)
    assert grades.read(outputs, 0.0).predicted.tolist() == [1, 2, 3]
    wide = grades.read(outputs, math.inf)
    assert (wide.low.tolist(), wide.high.tolist()) == ([1] * 3, [3] * 3)
    near = CumulativeLogitModel(1, (0.5, 2.0), 0.1).read(np.array([0.4]), 0.1)  # shares 0.50, 0.04, 0.46
    assert (near.low[0], near.predicted[0], near.high[0]) == (1, 1, 3)


def test_fit__finds_the_cuts_and_leaves_grades_without_an_image_a_small_share():
    outputs, truth = drawn(4000, 0)
    grades, _ = fit_grades(outputs, truth, 2, 5)
    assert grades.lowest == 2
    assert grades.cuts == pytest.approx((1.5, 3.0, 4.0), abs=0.15)
    assert grades.slope == pytest.approx(2, rel=0.1)
    gap, _ = fit_grades(outputs, np.where(truth == 3, 4, truth), 2, 6)
    assert gap.probabilities(outputs)[:, [1, 4]].max() < 0.03


def test_intervals__hold_as_many_grades_as_they_say_or_more():
    """Over 30 draws of 80 images to fit and 200 others; whole grades hold at least their share."""
    held, widths = [], []
    for seed in range(30):
        outputs, truth = drawn(280, seed)
        grades, margin = fit_grades(outputs[:80], truth[:80], 2, 5)
        found = grades.read(outputs[80:], margin)
        held.append(((found.low <= truth[80:]) & (truth[80:] <= found.high)).mean())
        widths.append((found.high - found.low).mean())
        assert ((found.low <= found.predicted) & (found.predicted <= found.high)).all()
    assert 0.88 <= np.mean(held) <= 0.95
    assert np.mean(widths) < 1.5


def test_kappa__is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(1, 6, (2, 50)).astype(float)
    predicted = np.where(generator.random(50) < 0.5, truth, predicted)
    expected = cohen_kappa_score(truth, predicted, weights="quadratic")
    weights = generator.integers(1, 4, (1, 50))
    repeated = [np.repeat(values, weights[0]) for values in (truth, predicted)]
    kappa = quadratic_kappa(truth, predicted)
    assert kappa(np.ones((1, 50)))[0] == pytest.approx(expected)
    assert kappa(weights.astype(float))[0] == pytest.approx(cohen_kappa_score(*repeated, weights="quadratic"))
    assert math.isnan(quadratic_kappa(np.ones(3), np.ones(3))(np.ones((1, 3)))[0])
    report = regression_report(truth, predicted, (predicted, predicted), 3.0, 0.9, 0, graded=True)
    assert list(report.scores)[:2] == ["exact", "kappa"]
    assert report.values["exact"] == report.values["coverage"] == (truth == predicted).mean()


def test_cards__come_back_and_damaged_grades_are_refused():
    spec = BackboneSpec("test_vit", 1, image_size=(32, 32))
    fed = Preprocessing((32, 32), 1.0, "bicubic", (0.5,) * 3, (0.5,) * 3)
    card = RegressionCard(
        spec, ("grade",), fed, half_width=0.3, mean=2.0, grades=CumulativeLogitModel(1, (1.5, 2.5), 2.0)
    )
    assert RegressionCard.from_dict(card.to_dict()) == card
    older = {name: value for name, value in card.to_dict().items() if name != "deviation"}
    assert RegressionCard.from_dict({**older, "half_width": 329.0}).deviation == pytest.approx(200)
    for name, value in (("deviation", 0), ("deviation", -1.0), ("half_width", -3), ("mean", 10**400)):
        with pytest.raises(UserError, match=r"restore model\.json"):
            RegressionCard.from_dict({**card.to_dict(), name: value})
    with pytest.raises(UserError, match=r"restore model\.json"):
        RegressionCard.from_dict({**card.to_dict(), "grades": {"lowest": 10**400, "cuts": [1.0], "slope": 1.0}})
    assert card.describe(1.6) == "grade 2 (1 to 2)"
    assert replace(card, grades=None, half_width=math.inf).describe(1.6) == "grade 1.6"
    for name, value in (("cuts", [2.5, 1.5]), ("slope", 0), ("slope", math.nan), ("lowest", "1"), ("cuts", [])):
        stored = card.to_dict()
        stored["grades"][name] = value
        with pytest.raises(UserError, match="ascending cuts and a positive slope"):
            RegressionCard.from_dict(stored)
    stored = card.to_dict()
    del stored["grades"]["slope"]
    with pytest.raises(UserError, match="is not a model card"):
        RegressionCard.from_dict(stored)


@pytest.mark.parametrize("values", [[1.0, 2.5], [0.0, 12.0], [3.0, 3.0]])
def test_numbers_that_are_no_grades__are_refused(values: list[float]):
    with pytest.raises(UserError, match=r"--ordinal: 'age' has .* expected two to 12 consecutive whole numbers"):
        require_grades(np.array(values), "age")


def test_ordinal__needs_a_target(tmp_path):
    with pytest.raises(UserError, match="--ordinal says that the values of --target are grades: give --target"):
        paucal.train(bright_table(tmp_path / "images"), ordinal=True, output=tmp_path / "run")
