"""EsViT's rows at full scale: settings, locations and judging are those of its fact sheet."""

from types import SimpleNamespace

import pytest

from paucal.data.named.table import NAMED
from paucal.methods.pretraining import resolve_pretraining
from paucal.recipes.esvit import RECIPES
from paucal.rules.resolve import DataAndMachine
from paucal.settings.options import check_ranges
from paucal.studies import grids
from paucal.studies.call import DataLocations, find_locations
from paucal.studies.descriptions import how_to_get
from paucal.studies.plan import plan_runs
from paucal.studies.reading import studies
from paucal.studies.settings import StudySettings
from paucal.verbs.compare.grid import EVALUATION
from paucal.verbs.eval.settings import EvalSettings
from studies.resolved import checked


def esvit_row(model: str, batch: int, region_after: int | None = None, tasks: str = "", epochs: int = 300) -> dict:
    """What EsViT's fact sheet says of a row: 1.1, 1.7, 2.1, 3.1 and the tables of 6."""
    larger = "_small_patch4" in model or "_base_" in model
    return {
        "model": model,
        "tasks": tasks or "view+region",
        "region_after": region_after,
        "drop_path": 0.0 if model == "resnet50" else 0.2 if larger else 0.1,
        # Known of the run with both tasks, which went on from the one with the view task.
        "learn_lengths": model != "esvit_swin_base_patch4_window14_224",
        "epochs": epochs,
        "effective_batch": batch,
        "lr": pytest.approx(5e-4 * batch / 256),
        **{"warmup_epochs": 10, "min_lr": 1e-6, "weight_decay": 0.04, "weight_decay_end": 0.4, "optimizer": "adamw"},
        **{"clip": 3.0, "momentum": 0.996, "freeze_last_layer": 1, "out_dim": 65536, "head_norm": "none"},
        **{"teacher_temperature": 0.07, "warmup_teacher_temperature": 0.04, "warmup_teacher_epochs": 30},
        **{"img_size": [224], "global_crops": 2, "global_scale": [0.4, 1.0], "pipeline": "dino"},
        **{"local_crops": [8], "local_size": [96], "local_scale": [0.05, 0.4]},
    }


SWIN, DEIT = "esvit_swin_{}_patch4_window{}_224", "esvit_deit_small_patch16_224"
STARTS = {
    ("tiny", 7): None,
    ("tiny", 14): 200,
    ("small", 7): None,
    ("small", 14): 180,
    ("base", 7): 200,
    ("base", 14): 200,
}
SPARSE = {"Swin": SWIN.format("tiny", 7), "ViL": "esvit_vil_tiny", "CvT": "esvit_cvt_tiny"}
ESVIT = {
    "esvit-table-1": {
        f"EsViT Swin-{size[0].upper()}{'/W14' * (window == 14)}": esvit_row(SWIN.format(size, window), 512, start)
        for (size, window), start in STARTS.items()
        if (size, window) != ("tiny", 14)
    },
    "esvit-table-2": {
        f"Swin-{size[0].upper()}, W={window}, {name}": esvit_row(SWIN.format(size, window), 512, *more)
        for (size, window), start in STARTS.items()
        for name, more in (("L_V", (None, "view")), ("L_V+L_R", (start,)))
    },
    "esvit-table-3": {
        f"{name}, {epochs} epochs": esvit_row(model, 1024, None, "view", epochs)
        for name, model in {"DeiT": DEIT, **SPARSE}.items()
        for epochs in (100, 300)
    },
    "esvit-table-5": {
        name: esvit_row(SPARSE["Swin"], 1024, None, "view", epochs) | {"warmup_epochs": warmup}
        for name, epochs, warmup in (
            *(("ImageNet-1K", 300, 10), ("WebVision-v1", 150, 5)),
            *(("OpenImages-v4", 50, 2), ("ImageNet-22K", 30, 1)),
        )
    },
    "esvit-table-8": {
        "DeiT, V": esvit_row(DEIT, 1024, None, "view"),
        **{
            f"{name}, {words}": esvit_row(model, 1024, *more)
            for name, model in {"ResNet-50": "resnet50", **SPARSE}.items()
            for words, more in (("V", (None, "view")), ("V+R", (200,)))
        },
    },
}


@pytest.mark.parametrize("name", ESVIT)
def test_settings__of_esvits_rows_at_full_scale_are_those_of_its_fact_sheet(name):
    found = {}
    for run, settings in checked(name, "full"):
        whole, _ = resolve_pretraining(settings, DataAndMachine(1_281_167, 0, 400, device="cuda", bf16=True))
        assert whole.recipe is not None
        assert RECIPES[whole.recipe].settings["model"] == whole.model, run  # each follows its own model's recipe
        found[run] = {key: getattr(whole, key) for key in esvit_row("", 512)}
    assert found == ESVIT[name]


def test_places__of_webvision_and_open_images_are_found_by_name():
    study = studies()["esvit-table-5"]
    asked = StudySettings(scale="full", data=["imagenet-1k=one", "imagenet-22k=all"], data_root="sets")
    locations = find_locations(asked, plan_runs(study, "full"))
    assert locations.by_name == {
        "imagenet-1k": "one",
        "webvision": "webvision",
        "openimages": "openimages",
        "imagenet-22k": "all",
    }
    assert locations.shared == {"data_root": "sets"}
    told = how_to_get(study)  # they do not come by themselves all the same
    assert [line.partition(": ")[0].rpartition("(")[2] for line in told] == [f"{name})" for name in locations.by_name]
    assert [NAMED[name].downloadable for name in ("webvision", "openimages")] == [False, False]


def test_judging__of_pre_training_at_full_scale_is_the_published_probe():
    """One linear layer on new views in every epoch; on the images of the column, where others were learned."""
    locations = DataLocations({"imagenet-1k": "/one", "webvision": "webvision"}, {})
    runs = {run.row.name: run for run in plan_runs(studies()["esvit-table-5"], "full")}
    call, images = SimpleNamespace(small=None, locations=locations), SimpleNamespace()
    asked = {name: grids._pretraining_settings(call, run, images)[EVALUATION] for name, run in runs.items()}
    assert asked["ImageNet-1K"] == {"augment": True}
    assert asked["WebVision-v1"] == {"augment": True, "on": "/one"}
    check_ranges(EvalSettings(protocol=["knn", "linear"], augment=True))
