"""Verdicts on made-up and on recorded courses of self-distillation."""

import math

import pytest

from evaluation.courses import (
    CHANCE,
    EQUAL_FEATURES,
    LEARNING,
    LEARNING_REGIONS,
    LINE,
    ONE_PROTOTYPE,
    SAME_MIXTURE,
    SAME_SPREAD_OUT,
    STUCK,
    UNIFORM,
    B,
    D,
    K,
    course,
)
from paucal.evaluation.collapse import COLUMNS, causes, find_collapse, grace_period


def kind(rows, out_dim: int = K, dim: int = D, batch: int | None = B, **options) -> str | None:
    verdict = find_collapse(rows, out_dim, dim, batch=batch, **options)
    return None if verdict is None else verdict.kind


def test_judge__a_healthy_course_has_no_verdict_at_any_time():
    rows = course(20)
    assert [kind(rows[:n]) for n in range(21)] == [None] * 21
    assert kind(rows, batch=None) is None


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (ONE_PROTOTYPE, "constant output"),
        (SAME_MIXTURE, "constant output"),
        (EQUAL_FEATURES, "constant output"),
        (UNIFORM, "uniform output"),
        (SAME_SPREAD_OUT, "uniform output"),
        ({**UNIFORM, **EQUAL_FEATURES}, "uniform output"),
        (LINE, "dimensional collapse"),
        ({"effective_rank": lambda e: 40.0 if e < 5 else 2.0}, "dimensional collapse"),
        ({"train_loss": CHANCE + 2}, "divergence"),
        ({"feature_norm": lambda e: 1.0 if e < 4 else 200.0}, "divergence"),
    ],
)
def test_judge__names_what_lasts(columns, expected):
    assert kind(course(**columns)) == expected
    assert kind(course(**columns), batch=None) == expected


def test_judge__needs_the_sign_in_every_epoch_of_its_patience():
    rows = course(8)
    for sick in (ONE_PROTOTYPE, UNIFORM, LINE):
        late = [{**row, **sick} if number >= 6 else row for number, row in enumerate(rows)]
        assert kind(late) is None
        assert kind(late, patience=2) is not None
        recovered = [{**row, **sick} if number < 7 else row for number, row in enumerate(rows)]
        assert kind(recovered) is None


def test_judge__spares_the_beginning():
    rows = course(4, **UNIFORM)
    assert kind(rows) is None  # steps 600 and 800 are two epochs
    assert kind(rows, grace_steps=300) == "uniform output"
    assert kind(course(5, **UNIFORM)) == "uniform output"


def test_judge__a_recorded_run_that_stays_at_ln_k_on_digits():
    assert kind(STUCK, 256, 64, 64) is None
    assert kind(STUCK, 256, 64, 64, grace_steps=60) == "uniform output"
    verdict = find_collapse(STUCK, 256, 64, batch=64, grace_steps=60)
    assert verdict is not None
    assert verdict.sentence == (
        "uniform output: the teacher's view head spreads every image over about 255 of its 256 prototypes (entropy "
        "5.541; ln 256 = 5.545 if uniform)."
    )


def test_judge__a_recorded_run_whose_answers_tell_of_their_images_is_left_alone():
    for grace in (0, 500):
        assert [kind(LEARNING[:n], 2048, 128, 64, grace_steps=grace, patience=1) for n in range(5)] == [None] * 5
    both = [{**a, **b} for a, b in zip(LEARNING, LEARNING_REGIONS, strict=False)]
    assert kind(both, 2048, 128, 64, grace_steps=0, patience=1) is None
    assert causes(LEARNING[0]) == []


def test_judge__a_run_that_is_leaving_the_uniform_state_is_left_alone():
    leaving = course(8, teacher_entropy=lambda e: CHANCE - 0.001 * 1.7**e, batch_entropy=CHANCE)
    assert kind(leaving) is None
    creeping = course(8, teacher_entropy=lambda e: CHANCE - 0.01 * 1.05**e, batch_entropy=CHANCE)
    assert kind(creeping) == "uniform output"


@pytest.mark.parametrize(
    "columns",
    [
        {"train_loss": math.nan},
        {"train_loss": math.inf},
        {"train_view": math.nan},
        {"skipped_steps": 150.0},
    ],
)
def test_judge__what_is_not_finite_counts_at_once(columns):
    assert kind(course(1, **columns)) == "divergence"
    recovered = [*course(1, **columns), *course(2)[1:]]
    assert kind(recovered) is None


def test_judge__some_skipped_steps_are_no_divergence():
    assert kind(course(6, skipped_steps=20.0)) is None


def test_judge__says_which_head():
    both = [{**a, **b} for a, b in zip(course(8), course(8, head="region_", **ONE_PROTOTYPE), strict=True)]
    verdict = find_collapse(both, K, D, batch=B)
    assert verdict is not None
    assert verdict.kind == "constant output"
    assert "region head" in verdict.sentence
    diverged = course(8, train_view=5.0, train_region=CHANCE + 3, train_loss=CHANCE + 5)
    verdict = find_collapse(diverged, K, D, batch=B)
    assert verdict is not None
    assert "region loss" in verdict.sentence


def test_judge__missing_columns_are_taken_for_healthy():
    assert kind([{"step": 300.0 * n, "lr": 0.1} for n in range(1, 9)]) is None
    assert kind([{"step": 300.0 * n, "train_loss": CHANCE} for n in range(1, 9)]) == "uniform output"
    assert kind([{"step": 300.0 * n, "train_loss": CHANCE - 0.1} for n in range(1, 9)]) is None
    assert kind(course(8, **dict.fromkeys(COLUMNS, math.nan), train_loss=3.0)) is None


def test_judge__tiny_batches_are_measured_against_what_they_can_show():
    # Four images with four prototypes of their own, and the largest rank that four images have.
    four = course(8, teacher_entropy=0.05, batch_entropy=1.3, effective_rank=1.1)
    assert kind(four, batch=4) is None
    assert kind(four, batch=64) == "dimensional collapse"
    assert kind(course(8, teacher_entropy=0.0, batch_entropy=0.1, effective_rank=1.1), batch=4) == "constant output"


def test_judge__few_prototypes():
    chance = math.log(8)
    healthy = {"train_loss": 1.4, "teacher_entropy": 0.9, "batch_entropy": 1.9}
    assert kind(course(8, **healthy), out_dim=8) is None
    assert (
        kind(course(8, **{**healthy, "teacher_entropy": chance - 0.1, "batch_entropy": chance}), 8) == "uniform output"
    )
    assert kind(course(8, **{**healthy, "train_loss": chance + 0.8}), out_dim=8) is None
    assert kind(course(8, **{**healthy, "train_loss": chance + 1.1}), out_dim=8) == "divergence"


def test_judge__opposite_collapses_get_opposite_advice():
    constant, uniform = (find_collapse(course(**columns), K, D, batch=B) for columns in (ONE_PROTOTYPE, UNIFORM))
    assert constant is not None
    assert uniform is not None
    assert constant.advice.startswith("Raise the teacher temperature")
    assert uniform.advice.startswith("Lower the teacher temperature")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"centre_norm": 0.0}, "centring on"),
        ({"teacher_temperature": 1.0}, "temperature is 1;"),
        ({"teacher_distance": 0.0}, "momentum of 0.99"),
    ],
)
def test_judge__names_the_likely_cause_first(columns, words):
    verdict = find_collapse(course(**UNIFORM, **columns), K, D, batch=B)
    assert verdict is not None
    assert words in verdict.advice.split(". ")[0]
    assert causes(course(1)[0]) == []


def test_judge__refuses_a_single_prototype():
    with pytest.raises(ValueError, match="at least 2 prototypes"):
        find_collapse([], 1, D)


@pytest.mark.parametrize(
    ("total", "warmup", "expected"), [(100_000, 0, 500), (100_000, 3_000, 3_000), (400, 40, 100), (10, 0, 2)]
)
def test_grace_period__is_the_warm_up_or_a_part_of_the_run(total, warmup, expected):
    assert grace_period(total, warmup) == expected
