"""Which flags of DrLoc go together, and that their words are those of the options."""

import typing

import pytest

from methods.drloc_runs import settings_of
from paucal.losses.drloc import Mode, Pool
from paucal.losses.drloc_targets import ClassSet, Scale
from paucal.methods.training_settings import DrLocSettings
from paucal.objectives.drloc import DrLocOptions, Schedule
from paucal.types import Level, UserError


def test_words__are_those_of_the_options():
    hints, wanted = typing.get_type_hints(DrLocSettings), {}
    wanted |= {"mode": Mode, "scale": Scale, "classes": ClassSet, "levels": Level, "schedule": Schedule, "pool": Pool}
    options = typing.get_type_hints(DrLocOptions)
    wanted |= {name: options[name] for name in ("coordinates", "log_of")}
    for name, words in wanted.items():
        own = typing.get_args(hints[f"drloc_{name}"])
        assert typing.get_args(own[0]) == typing.get_args(words), name


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--drloc-alpha 0.1", "--drloc-alpha has no effect with --drloc-mode l1, since only reg has a variance term"),
        ("--drloc-mode ce --drloc-log-of sigma", "--drloc-log-of has no effect with --drloc-mode ce"),
        ("--drloc-mode ce --drloc-scale none", "or give --drloc-mode l1 or signed."),
        ("--drloc-mode reg --drloc-coordinates sum", "--drloc-coordinates has no effect with --drloc-mode reg"),
        ("--drloc-shift side_minus_1", "--drloc-shift has no effect with --drloc-mode l1, since only signed offsets"),
        ("--drloc-mode signed --drloc-classes paper", "signed predict offsets as numbers: remove --drloc-classes"),
        ("--drloc-extra-layer none", "--drloc-extra-layer has no effect with --drloc-mode l1"),
        ("--drloc-warmup-epochs 4", "has no effect with --drloc-schedule constant, since the weight is constant"),
        (
            "--drloc-preset reference --drloc-schedule constant --drloc-horizon-epochs 9",
            "--drloc-horizon-epochs has no effect with --drloc-schedule constant",
        ),
        ("--drloc-schedule ramp --drloc-horizon-epochs 20", "is 20, where the weight is 0 again, and --drloc-warmup-"),
        ("--drloc-preset reference --drloc-warmup-epochs 300", "give more epochs for the horizon than for the warm-up"),
        ("--drloc-sampling permutation --drloc-pairs 5", "--drloc-pairs has no effect with --drloc-sampling permutat"),
        ("--drloc-levels blocks --drloc-pool reference", "--drloc-pool reference is a rule for the last grid"),
        ("--method supervised --drloc-norm before", "--drloc-norm has no effect with --method supervised"),
        ("--method supervised --drloc-sampling permutation", "--drloc-sampling has no effect with --method superv"),
        ("--drloc-mode reg --drloc-alpha -1", "--drloc-alpha is -1.0, expected a number at least 0"),
        ("--drloc-shift side", "--drloc-shift: expected one of 'side_minus_1', 'none', got 'side'"),
    ],
)
def test_flags__that_have_no_effect_are_refused(words, sentence):
    with pytest.raises(UserError) as problem:
        settings_of(words)
    assert sentence in str(problem.value)


@pytest.mark.parametrize(
    "words",
    [
        "--drloc-mode reg --drloc-alpha 0.1 --drloc-log-of variance --drloc-classes paper --drloc-extra-layer linear",
        "--drloc-mode signed --drloc-shift side_minus_1 --drloc-scale none --drloc-coordinates sum",
        "--drloc-preset reference --drloc-warmup-epochs 3",  # whose schedule is a ramp
        "--drloc-levels blocks --drloc-pool 3",
        "--method token-labeling --labels maps --add drloc --drloc-mode reg --drloc-alpha 2",
    ],
)
def test_flags__that_go_together_are_taken(words):
    assert settings_of(words).method in ("drloc", "token-labeling")
