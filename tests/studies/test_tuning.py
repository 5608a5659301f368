"""Rows that are tuned: what each begins with, and how a grid of `paucal train` keeps that from the verb."""

from pathlib import Path

import pytest

from paucal.runner.console import SilentConsole
from paucal.runs.folder import is_grid_folder
from paucal.studies.call import Call, DataLocations, with_given_images, with_starts
from paucal.studies.grids import with_start_images
from paucal.studies.plan import plan_runs
from paucal.studies.reading import studies
from paucal.studies.settings import StudySettings
from paucal.types import UserError
from paucal.verbs.compare.grid import START, Grid, make_cell, read_grid, verb_settings
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.report import command_of
from paucal.verbs.compare.settings import Arm, GridSettings

QUICK = {"model": "vit_mini", "model_args": ["depth=1"], "img_size": [16], "epochs": 1, "method": "supervised"}
NEEDY = {**QUICK, START: ["train", "small"]}


def begun(words: list[str], **wanted) -> dict[str, tuple[str, str]]:
    study = studies()["drloc-table-5"]
    runs, asked = plan_runs(study, "full", columns=["SVHN"], **wanted), StudySettings(scale="full", init=words)
    call = with_starts(Call(study, runs, None, asked, DataLocations({}, {}), Path("folder"), "", SilentConsole()))
    return {run.row.name: (run.settings["model"], run.settings["init"]) for run in call.runs}


def test_starts__come_by_themselves_or_are_given_by_name():
    assert begun([], rows=["Swin-T + L_drloc", "ResNet-50"]) == {  # nobody asks for T2T-ViT's weights
        "Swin-T + L_drloc": ("swin_tiny_patch4_window7_224.ms_in1k", "timm"),
        "ResNet-50": ("resnet50.tv_in1k", "timm"),
    }
    found = begun(["t2t-vit-14=a=b.pth", "resnet-50=runs/1"])
    assert found["T2T-ViT-14"] == found["T2T-ViT-14 + L_drloc"] == ("t2t_vit_14", "a=b.pth")
    assert found["ResNet-50"] == found["ResNet-50 + L_drloc"] == ("resnet50", "runs/1")  # whose tag is not meant now
    assert found["Swin-T"] == ("swin_tiny_patch4_window7_224.ms_in1k", "timm")
    with pytest.raises(
        UserError, match=r"T2T-ViT-14 of drloc-table-5 needs the initial weights t2t-vit-14 .*=RUN_OR_F"
    ):
        begun(["swin-t=runs/1"], rows=["T2T-ViT-14"])


def test_workers__of_starts_and_teachers_try_again_what_has_failed_when_asked():
    study = studies()["lvvit-table-5"]
    for retry in (False, True):
        asked = StudySettings(retry=retry, jobs=2)
        call = Call(study, [], study.scales["tiny"], asked, DataLocations({}, {}), Path("folder"), "", SilentConsole())
        who = call.grid_settings(Path("folder/teacher"), [0])
        assert (who.retry, who.jobs, who.seeds) == (retry, 2, [0])


def test_images__that_are_given_are_used_whole():
    runs = plan_runs(studies()["dhvt-table-8"], "tiny")
    assert {run.settings["classes"] for run in with_given_images(runs, StudySettings())} == {"digits-5-to-9"}
    given = with_given_images(runs, StudySettings(data=["photos"]))
    assert [(run.data, run.evaluated, run.settings["epochs"]) for run in given] == 2 * [("photos", "photos", 30)]
    assert all("classes" not in run.settings for run in given)


def test_start_images__are_not_those_that_are_given(tmp_path):
    for scale, data in (("tiny", "digits"), ("small", "cifar10")):
        small = studies()["dhvt-table-8"].scales[scale]
        assert (
            with_start_images(DataLocations({}, {}), small, StudySettings(scale=scale), tmp_path).start_images == data
        )
        asked = StudySettings(scale=scale, data=["photos"])
        assert with_start_images(DataLocations({}, {}), small, asked, tmp_path).start_images == data
        with pytest.raises(UserError, match=f"--data: the initial weights are trained on {data} at --scale {scale}"):
            with_start_images(DataLocations({}, {}), small, StudySettings(scale=scale, data=[data]), tmp_path)


def test_cells__of_train_keep_their_start_from_the_verb(tmp_path):
    starts = Grid(tmp_path / "starts" / "train", "images", {}, (Arm("small", None, None, QUICK),), (0, 1))
    starts.folder.mkdir(parents=True)
    starts.write()
    shared = {"data": "digits", "drloc_weight": 0.5}  # which the method of the arm does not use
    grid = Grid(tmp_path / "digits", "images", shared, (Arm("row", None, None, NEEDY),), (0, 1))
    grid.folder.mkdir()
    grid.write()
    cells = [make_cell(read_grid(grid.folder), arm, 1) for arm in read_grid(grid.folder).arms]
    assert cells[0].settings == {"data": "digits", **NEEDY, "seed": 1}
    assert verb_settings(cells[0].settings) == {"data": "digits", **QUICK, "seed": 1}
    start = make_cell(starts, starts.arms[0], 1)
    assert f"--seed 1 --init {start.run.path} --output" in command_of(cells[0])
    assert "--init" not in command_of(start)
    other = make_cell(grid, Arm("row", None, None, {**QUICK, START: ["train", "other"]}), 1)
    assert other.folder != cells[0].folder  # begun with something else, it is another run


def test_grid__is_stored_once_what_its_rows_begin_with_is(tmp_path):
    """A worker that sees a row must find its start; what random weights stand for in the measuring is not kept."""
    asked, seen = GridSettings(seeds=[3], output=str(tmp_path / "grid")), []

    def refuse(grid: Grid) -> None:
        raise UserError("the starts do not do")

    def look(grid: Grid) -> None:
        seen.append((is_grid_folder(grid.folder), grid.seeds, [arm.settings[START] for arm in grid.arms]))

    shared = {"data": "digits", "workers": 0, "device": "cpu"}
    words = ([Arm("row", None, None, NEEDY)], shared, "paucal study", SilentConsole())
    with pytest.raises(UserError, match="the starts do not do"):
        prepare_grid(asked, *words, before=refuse)
    assert not is_grid_folder(Path(asked.output or ""))
    grid = prepare_grid(asked, *words, before=look)
    assert seen == [(False, (3,), [["train", "small"]])]
    assert read_grid(grid.folder).arms[0].settings == NEEDY
    assert grid.forecast["row"] > 0
    prepare_grid(GridSettings(seeds=[4], output=asked.output), *words, before=look)
    assert seen[1] == (True, (3, 4), [["train", "small"]])  # all seeds that workers will see
