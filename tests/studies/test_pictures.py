"""Figures that are made by hand: the commands that studies name for them are sound."""

import re
import shlex

import pytest

from paucal.cli.arguments import CommandParser, add_settings, build_settings, parse_arguments
from paucal.explain.attribution.methods import METHODS
from paucal.studies.reading import studies
from paucal.verbs.explain.settings import VIEWS, ExplainSettings, require_used_settings

DRAWN = {name: study.see for name, study in studies().items() if study.see.startswith("paucal explain ")}


def asked(see: str) -> ExplainSettings:
    parser = CommandParser("explain", "")
    parser.add_argument("model", type=str)
    parser.add_argument("images", nargs="+", type=str)
    add_settings(parser, ExplainSettings)
    words = shlex.split(re.split(r"[,;] ", see)[0])
    return build_settings(parse_arguments(parser, words[2:])[0], ExplainSettings)


@pytest.mark.parametrize("name", DRAWN)
def test_commands__are_sound(name):
    settings = asked(DRAWN[name])
    assert settings.show
    assert set(settings.show) <= set(VIEWS)
    assert settings.method in {"auto", *METHODS}
    require_used_settings(settings.show, settings)


def test_commands__draw_what_the_papers_show():
    # DHVT's supplement: figures 3 to 5 show layers 2, 5, 8 and 11, figure 7 all twelve.
    assert [asked(DRAWN[f"dhvt-figure-{n}"]).layer for n in (3, 4, 5, 7)] == [[2, 5, 8, 11]] * 3 + [["all"]]
    # LV-ViT's supplement, section 3: the method of Chefer et al.; one class, then the two likeliest.
    found = [asked(DRAWN[f"lvvit-figure-{n}"]) for n in (1, 2)]
    assert [(one.method, one.top) for one in found] == [("relevance", 1), ("relevance", 2)]
