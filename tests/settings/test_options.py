"""Settings that rules fill, and settings that have had another name."""

import inspect
from dataclasses import dataclass
from typing import Literal

import pytest

from fuzz.flags import spellings_of
from paucal.cli.arguments import CommandParser, add_settings, parse_arguments
from paucal.cli.main import COMMAND_SUMMARIES
from paucal.data.splits.split import make_split
from paucal.runner.resuming import typed_settings
from paucal.settings.options import (
    EarlierName,
    default_of,
    flag_words,
    option,
    rule_chosen_names,
    setting_fields,
    with_current_names,
)
from paucal.settings.shared import DEFAULT_TEST_FRACTION, DEFAULT_VAL_FRACTION
from paucal.settings.values import settings_from_keywords
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError


@dataclass(frozen=True)
class Tuning:
    size: int = option("pixels")
    limit: int | None = option("images; by default all")
    views: list[str] = option("views to draw", ["front", "side"])
    others: list[str] = option("other models", [])
    length: str | None = option("time", chosen=True)
    rate: float = option("learning rate", 0.1)
    freeze: Literal["none"] | int = option("stages", earlier=EarlierName("freeze_stages", int, {0: "none"}))
    eval_mode: bool = option("still", earlier=EarlierName("norms", Literal["learn", "still"], {"still": True}))


@dataclass(frozen=True)
class Report:
    mirror: bool = option("average the predictions for an image and its mirror image", False)


def test_fractions__are_those_of_the_help_by_default():
    defaults = {name: item.default for name, item in inspect.signature(make_split).parameters.items()}
    assert (defaults["val_fraction"], defaults["test_fraction"]) == (DEFAULT_VAL_FRACTION, DEFAULT_TEST_FRACTION)


def test_chosen_settings__are_those_that_a_rule_fills():
    assert rule_chosen_names(Tuning) == {"size", "length", "freeze", "eval_mode"}


def test_lists__are_new_defaults_for_each_object_and_shown_unless_empty():
    first, second = Tuning(), settings_from_keywords(Tuning, {"views": None}, "tune", "tune")
    assert first.views == second.views == ["front", "side"]
    assert first.views is not second.views
    assert [default_of(item) for item in setting_fields(Tuning).values()][1:4] == [None, ["front", "side"], []]
    parser = CommandParser("tune", "")
    add_settings(parser, Tuning)
    help_lines = parser.format_help().splitlines()
    assert [line.split(maxsplit=4)[-1] for line in help_lines if "VIEWS" in line] == [
        "views to draw (default: front side)"
    ]
    assert [line.split(maxsplit=4)[-1] for line in help_lines if "OTHERS" in line] == ["other models"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"freeze_stages": 0}, {"freeze": "none"}),
        ({"freeze_stages": 2, "rate": 1.0}, {"freeze": 2, "rate": 1.0}),
        ({"norms": "still"}, {"eval_mode": True}),
        ({"freeze": 3}, {"freeze": 3}),
    ],
)
def test_earlier_names__stand_for_todays(given, expected):
    assert with_current_names(given, Tuning) == expected
    for settings in (settings_from_keywords(Tuning, given, "tune", "tune"), typed_settings(given, Tuning)):
        assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize("names", [("freeze", "freeze_stages"), ("freeze_stages", "freeze")])
def test_earlier_name__beside_todays_is_refused(names):
    with pytest.raises(UserError, match="--freeze-stages is an earlier name of --freeze: remove one of the two flags"):
        with_current_names(dict.fromkeys(names, 1), Tuning)


def test_earlier_name__is_checked_by_its_own_type():
    with pytest.raises(UserError, match="--norms: expected one of 'learn', 'still', got 'on'"):
        settings_from_keywords(Tuning, {"norms": "on"}, "tune", "tune")
    with pytest.raises(TypeError, match="freeze_stages cannot be 'many'"):
        typed_settings({"freeze_stages": "many"}, Tuning)


@pytest.mark.parametrize("words", [["--freeze-stages", "0", "--norms", "still"], ["--freeze", "none", "--eval-mode"]])
def test_flags__of_earlier_names_are_those_of_todays(words):
    parser = CommandParser("tune", "")
    add_settings(parser, Tuning)
    values, given = parse_arguments(parser, words)
    assert (values.freeze, values.eval_mode) == ("none", True)
    assert given == {"freeze": "flag", "eval_mode": "flag"}
    assert not {"freeze_stages", "norms"} & vars(values).keys()
    assert parse_arguments(parser, ["--no-eval-mode"])[0].eval_mode is False
    assert "freeze-stages" not in parser.format_help()


def test_flags__say_false_of_every_setting_that_can_be_true():
    parser = CommandParser("report", "")
    add_settings(parser, Report)
    for words, expected in (([], False), (["--mirror"], True), (["--mirror", "--no-mirror"], False)):
        assert parse_arguments(parser, words)[0].mirror is expected
    assert parse_arguments(parser, ["--no-mirror"])[1] == {"mirror": "flag"}
    assert "--no-mirror" not in parser.format_help()
    for value in (True, False):
        assert parse_arguments(parser, flag_words("mirror", value))[0].mirror is value


def test_image_size__has_both_spellings_in_every_command_that_has_one():
    verbs = [verb for verb in COMMAND_SUMMARIES if "--img-size" in spellings_of(verb)]
    assert {"train", "pretrain", "detect", "segment", "eval", "check", "label", "compare"} <= set(verbs)
    assert all({"--image-size", "--imgsz"} <= spellings_of(verb) for verb in verbs)
    assert not any("--image-size" in spellings_of(verb) for verb in COMMAND_SUMMARIES.keys() - set(verbs))


@pytest.mark.parametrize("spelling", ["--img-size", "--image-size", "--image_size", "--imgsz"])
@pytest.mark.parametrize("settings", [SegmentSettings, DetectSettings])
def test_image_size__is_read_from_each_spelling(settings, spelling):
    parser = CommandParser("task", "")
    add_settings(parser, settings, skip=["data"])
    values, given = parse_arguments(parser, [spelling, "32", "48"])
    assert (values.img_size, given["img_size"]) == ([32, 48], "flag")
