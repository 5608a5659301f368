"""What a way to tune costs."""

import pytest

from paucal.verbs.training.ladder.rungs import Rung
from paucal.verbs.training.ladder.trials import WORST, best_of
from paucal.verbs.training.ladder.tuning import Prospect


def test_observed__plans_passes_by_the_time_that_the_steps_of_a_trial_took():
    planned = Prospect(side=[160], epoch=84.0, steps=40, shrink=0.5)
    seen = planned.observed(seconds=46.0, judging=6.0, per_epoch=90)
    assert seen.epoch == pytest.approx(90 * 1.0 + 6.0)
    assert (seen.side, seen.steps, seen.shrink) == ([160], 40, 0.5)


def test_observed__keeps_the_plan_where_a_trial_says_nothing():
    planned = Prospect(side=[160], epoch=84.0, steps=40)
    assert planned.observed(seconds=0.0, judging=6.0, per_epoch=90) == planned


def trial(score: float, loss: float = 1.0) -> Rung:
    return Rung("a way", score, 20.0, {"loss": loss})


def test_best_of__takes_another_way_than_the_first_where_it_leads_by_more_than_chance_would():
    # The standard error of the difference of 0.79 and 0.84 is 0.061 on 81 images and 0.031 on 307.
    trials = [trial(0.79), trial(0.70), trial(0.84)]
    assert best_of(trials, 81) == 0
    assert best_of(trials, 307) == 2
    assert best_of([trial(0.93), trial(0.99)], 120) == 1


def test_best_of__prefers_the_lower_loss_among_equals_and_any_way_to_one_that_failed():
    assert best_of([trial(0.5), trial(0.9, 0.4), trial(0.9, 0.3)], 100) == 2
    assert best_of([trial(0.0, WORST), trial(0.3)], 100) == 1
    assert best_of([trial(0.0, WORST), trial(0.0, WORST)], 100) == 0
