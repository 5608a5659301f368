"""Every run of every study, at every scale: its settings are sound, and its model is built (on the meta device)."""

from dataclasses import replace
from typing import Any

import pytest

from paucal.backbones.sizing import fit_to_image_size
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.rules.backbone import model_arguments
from paucal.studies.plan import by_hand, plan
from paucal.studies.registry import data_sets, studies
from paucal.studies.study import Row
from paucal.verbs.detecting.job import DetectionJob
from paucal.verbs.detecting.settings import DetectSettings
from paucal.verbs.pretraining.job import PretrainingJob
from paucal.verbs.segmenting.job import SegmentationJob
from paucal.verbs.segmenting.settings import SegmentSettings
from paucal.verbs.studying.counting import count_model
from paucal.verbs.studying.words import VERBS, hand_command
from paucal.verbs.training.job import TrainingJob

TRAINED = [name for name, study in studies().items() if study.trains]
CASES = [(name, scale) for name in TRAINED for scale in (*studies()[name].scales, "full")]
FAMILIES = [  # one model of each, at both sizes
    ("drloc", ("swin_t", "cvt_13", "t2t_14", "vit_b", "resnet50"), "drloc-table-2a"),
    ("dhvt", ("dhvt_t", "vit_t", "dhvt_t_domain"), "dhvt-table-2"),
    ("lvvit", ("lvvit_s", "stem"), "lvvit-table-2"),
    ("esvit", ("swin_t_w14", "vil_t", "cvt_t", "deit_s"), "esvit-table-2"),
]


def checked(name: str, scale: str) -> list[tuple[str, Any]]:
    """Return the settings of all runs as the verb that makes them has checked them."""
    study = studies()[name]
    found = []
    for run in plan(study, scale, data_sets()):
        values = dict(run.settings)
        if run.row.maps:
            values["labels"] = "maps"
        if scale == "full" and study.start and "drloc" not in study.recipe:
            values["init"] = "run"
        job, kind = (TrainingJob(), TrainSettings) if study.kind == "train" else (PretrainingJob(), PretrainSettings)
        settings, _ = job.check(kind(**values), dict.fromkeys(values, "given"))  # type: ignore[arg-type]
        found.append((run.name, settings))
    return found


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_settings__are_sound(name, scale):
    for run, settings in checked(name, scale):
        assert settings.model is not None, run
        assert settings.epochs, run


def test_settings__at_full_scale_are_the_paper_s():
    settings = dict(checked("drloc-table-2b", "full"))["CvT-13, λ=0.5"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.img_size) == (1024, 100, [224])
    assert (settings.method, settings.drloc_weight, settings.mixup, settings.val_fraction) == ("drloc", 0.5, 0.8, 0.0)
    settings = dict(checked("dhvt-table-4", "full"))["DHVT-S, 6 heads"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.img_size) == (512, 300, [32])
    assert settings.model_args == ["num_heads=6"]
    settings = dict(checked("esvit-table-3", "full"))["CvT, 100 epochs"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.tasks) == (1024, 100, "view")
    settings = dict(checked("lvvit-table-4", "full"))["X + F(X)/3"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.schedule_epochs) == (1024, 310, 300)


HAND = [(name, row) for name, study in studies().items() if study.kind in VERBS for row, _ in by_hand(study)]


def checked_by_hand(name: str, wanted: Row) -> Any:
    """Return the settings of a row of detection or segmentation as the verb that makes it has checked them."""
    study = studies()[name]
    values = {"data": "images", "init": "run", **dict((row.name, found) for row, found in by_hand(study))[wanted.name]}
    job, kind = (DetectionJob(), DetectSettings) if study.kind == "detection" else (SegmentationJob(), SegmentSettings)
    return job.check(kind(**values), dict.fromkeys(values, "given"))[0]  # type: ignore[arg-type]


def test_by_hand__every_row_of_detection_and_segmentation_has_settings():
    found = {name for name, _ in HAND}
    assert found == {*(f"drloc-table-{n}" for n in (10, 11, 12, 13)), "esvit-table-4", "lvvit-segmentation"}
    assert len(HAND) == sum(len(studies()[name].rows) for name in found) == 17


@pytest.mark.parametrize(("name", "row"), HAND, ids=lambda one: one if isinstance(one, str) else one.name)
def test_by_hand__settings_are_sound(name, row):
    settings = checked_by_hand(name, row)
    assert settings.batch_size * settings.devices == 16
    assert row.note.startswith("It begins with")
    assert (settings.init == "timm") == ("timm" in row.note)
    if name == "esvit-table-4":
        assert settings.epochs == 36
    elif name.startswith("drloc-table-1") and settings.lr == 1e-4:
        assert (settings.epochs, settings.cascade) == (12, row.name.startswith("Cascade"))
    else:
        assert round(settings.epochs * 20_210 / 16, -3) == 160_000
        assert (settings.img_size, settings.lr, settings.schedule) == ([512], 6e-5, "linear")


def test_by_hand__commands_can_be_typed():
    study = studies()["lvvit-segmentation"]
    row, settings = by_hand(study)[2]
    said = hand_command(study, row, settings)
    assert said == "paucal segment ADE20K --init RUN --recipe upernet-ade20k-lvvit --model lvvit_l --width 512"
    study = studies()["drloc-table-10"]
    row, settings = by_hand(study)[2]
    said = hand_command(study, row, settings)
    assert said == "paucal detect COCO --recipe detector-coco-1x --masks on --cascade --init timm"


def build(name: str, side: int, words: list[str]) -> None:
    sizing = fit_to_image_size(name, (side, side), model_arguments(words))
    assert min(sizing.grid) >= 4, (name, sizing.grid)  # cells that a loss on the grid can learn from


@pytest.mark.parametrize(("paper", "models", "study"), FAMILIES, ids=[one[0] for one in FAMILIES])
def test_models__of_each_family_are_built(paper, models, study):
    for key in models:
        model = studies()[study].models[key]
        assert model.standin is not None
        build(model.standin.name, 32, list(model.standin.args))
    first = studies()[study].models[models[0]]
    count = count_model(first.full.name, first.side, first.full.args, 1000)
    assert count.gmacs_all == pytest.approx(first.gmacs, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), CASES)
def test_models__of_every_run_are_built(name, scale):
    for _, settings in checked(name, scale):
        side = (settings.img_size or [224])[0]
        build(str(settings.model), side, settings.model_args or [])


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["drloc", "lvvit", "dhvt", "esvit"])
def test_models__take_the_multiply_adds_of_the_estimate(paper):
    models = next(study.models for name, study in studies().items() if name.startswith(paper))
    for key, model in models.items():
        if key in ("stem", "convit_ti", "convit_s"):  # its stem is a row's; positional scores are not counted as ours
            continue
        count = count_model(model.full.name, model.side, model.full.args, 1000)
        assert count.gmacs_all == pytest.approx(model.gmacs, rel=0.02), key


def test_settings__with_images_of_their_own_are_left_to_the_user():
    study = studies()["drloc-table-3"]
    assert {run.settings["classes"] for run in plan(study, "full", data_sets())} == {"imagenet100"}
    assert "classes" not in plan(replace(study), "tiny", data_sets())[0].settings
