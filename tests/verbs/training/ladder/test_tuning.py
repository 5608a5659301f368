"""What a way to tune costs."""

import pytest

from paucal.verbs.training.ladder.tuning import Prospect


def test_observed__plans_passes_by_the_time_that_the_steps_of_a_trial_took():
    planned = Prospect(side=[160], epoch=84.0, steps=40, shrink=0.5)
    seen = planned.observed(seconds=46.0, judging=6.0, per_epoch=90)
    assert seen.epoch == pytest.approx(90 * 1.0 + 6.0)
    assert (seen.side, seen.steps, seen.shrink) == ([160], 40, 0.5)


def test_observed__keeps_the_plan_where_a_trial_says_nothing():
    planned = Prospect(side=[160], epoch=84.0, steps=40)
    assert planned.observed(seconds=0.0, judging=6.0, per_epoch=90) == planned
