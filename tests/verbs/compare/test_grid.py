"""Grids that were stored with the names that settings had before."""

import json
import shlex

from paucal.settings.options import with_current_names, with_earlier_names
from paucal.tasks.detection.settings import DetectSettings
from paucal.verbs.compare.grid import MODEL, START, Grid, make_cell, merge_grids, read_grid
from paucal.verbs.compare.report import command_of
from paucal.verbs.compare.settings import Arm

EARLIER = {
    "format": 1,
    "fingerprint": "images",
    "shared": {"data": "boxes", "norms": "learn", "epochs": 3},
    "seeds": [0, 1],
    "rates": [],
    "threads": 1,
    "forecast": {},
    "commands": [],
    "verb": "detect",
    "arms": [
        {"way": "detect", "model": None, "share": None, "settings": {"freeze_stages": 0, "backbone_rate": 0.5}},
        {"way": "late", "model": None, "share": None, "settings": {"norms": "still", "freeze_stages": 2}},
    ],
}
CELLS = ["detect-seed1-c5b6113a7d", "late-seed1-63bb7600aa"]  # folders that the first release named for this grid


def test_stored_grid__with_earlier_names_keeps_its_cells(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(EARLIER))
    grid = read_grid(tmp_path)
    assert grid.shared == {"data": "boxes", "eval_mode": False, "epochs": 3}
    assert grid.arms[0].settings == {"freeze": "none", "backbone_lr": 0.5}
    assert [make_cell(grid, arm, 1).folder.name for arm in grid.arms] == CELLS


def test_stored_grid__grows_by_a_command_in_todays_names(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(EARLIER))
    arms = (Arm("late", None, None, {"eval_mode": True, "freeze": 2}),)
    today = Grid(tmp_path, "images", {"data": "moved", "eval_mode": False, "epochs": 3}, arms, (2,), verb="detect")
    merged = merge_grids(read_grid(tmp_path), today)
    merged.write()
    again = read_grid(tmp_path)
    assert again.seeds == (0, 1, 2)
    assert [make_cell(again, arm, 1).folder.name for arm in again.arms] == CELLS


def test_earlier_names__are_those_that_current_names_are_made_from():
    given = {"freeze_stages": 0, "norms": "still", "backbone_rate": 0.1, "epochs": 3}
    assert with_earlier_names(with_current_names(given, DetectSettings), DetectSettings) == given


def test_command__names_the_verb_and_says_false(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(EARLIER))
    grid = read_grid(tmp_path)
    words = shlex.split(command_of(make_cell(grid, grid.arms[0], 1)))
    assert words[:3] == ["paucal", "detect", "boxes"]
    assert "--no-eval-mode" in words


def test_command__of_an_evaluation_names_the_model(tmp_path):
    starts = Grid(
        tmp_path / "starts" / "pretrain", "images", {}, (Arm("start", None, None, {}),), (0,), verb="pretrain"
    )
    starts.folder.mkdir(parents=True)
    starts.write()
    frozen, started = ({"protocol": ["knn"], MODEL: "resnet18"}, {"protocol": ["knn"], START: ["pretrain", "start"]})
    arms = (Arm("frozen", None, None, frozen), Arm("started", None, None, started))
    grid = Grid(tmp_path / "digits", "images", {"data": "digits"}, arms, (0,), verb="eval")
    commands = [command_of(make_cell(grid, arm, 0)) for arm in arms]
    assert commands[0].startswith("paucal eval resnet18 digits --protocol knn --seed 0 --output ")
    start = make_cell(starts, starts.arms[0], 0).run.path
    assert commands[1].startswith(f"paucal eval {start} digits --protocol knn --seed 0 --output ")
