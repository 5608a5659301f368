"""EsViT's recipes: the flags and scores that are said of each are the runs of the studies, and all of them."""

import re

import pytest

from paucal.cli.main import main
from paucal.cli.training import parse_run_arguments
from paucal.methods.pretraining import check_used, resolve_pretraining, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.recipes.esvit import RECIPES
from paucal.rules.resolve import DataAndMachine
from paucal.settings.options import check_ranges
from paucal.studies.plan import plan_runs
from paucal.studies.reading import studies

TABLES = [f"esvit-table-{number}" for number in (1, 2, 3, 5, 8)]
STEP = {"batch_size", "accumulate", "devices", "nodes", "strategy", "workers"}  # how a step's images come together
SAID = [
    (name, flags, text)
    for name, recipe in RECIPES.items()
    if name != "esvit-small-batch"
    for flags, text in {"": recipe.expected, **recipe.scores_by_flags}.items()
]


def whole(settings: PretrainSettings, given: dict[str, str], devices: int = 1) -> dict:
    filled, origin = with_recipe(settings, given)
    check_used(filled, origin)
    check_ranges(filled)
    found, _ = resolve_pretraining(filled, DataAndMachine(1_281_167, 0, 400, device="cuda", devices=devices, bf16=True))
    return {name: value for name, value in vars(found).items() if name not in STEP} | {"batch": found.effective_batch}


def published() -> list[tuple[tuple[float, float], str, dict]]:
    """(linear, k-NN) as printed, recipe and resolved settings of every trained row."""
    rows = []
    for name in TABLES:
        study = studies()[name]
        for run in plan_runs(study, "full"):
            values = dict(zip((column.name for column in study.columns), run.row.values, strict=True))
            scores = tuple(values[column.name] for column in run.columns)
            settings = whole(PretrainSettings(**run.settings), dict.fromkeys(run.settings, "given"))
            rows.append((scores, run.settings["recipe"], settings))
    return rows


def test_flags__beside_a_recipe_make_the_runs_that_have_these_scores():
    rows, met = published(), set()
    for name, flags, text in SAID:
        count = re.search(r"with (\d+) images per step: ((?:--\w+ \d+ ?)+)$", RECIPES[name].cost)
        assert count is not None
        words = ["--recipe", name, *flags.split(), *count[2].split()]
        _, given, given_settings = parse_run_arguments("pretrain", "", PretrainSettings, words)
        settings = whole(PretrainSettings(**given_settings), given, devices=16)
        assert settings["batch"] == int(count[1])
        scores = tuple(map(float, re.findall(r"(?:linear|k-NN) ([\d.]+)", text)))
        alike = [row for row in rows if row[:2] == (scores, name)]
        assert alike, (name, flags)
        for _, _, other in alike:
            assert {key: settings[key] for key in settings if settings[key] != other[key]} == {}, (name, flags)
        met |= {row[:2] for row in alike}
    assert met == {row[:2] for row in rows}  # every trained row of the tables is said of a recipe


def test_recipes__are_listed_with_their_flags(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if "esvit-swin-tiny-1024" in line)
    assert "    with --epochs 100: linear 75.3, k-NN 70.0" in lines[begin : begin + 6]
    assert "1024 images per step: --devices 16" in lines[begin + 2]


@pytest.mark.parametrize(("name", "flags", "text"), SAID)
def test_recipe__is_one_or_two_flags_away_from_a_row(name, flags, text):
    assert flags.count("--") <= 2
    assert len(re.findall(r"(?:linear|k-NN) [\d.]+", text)) == 2
