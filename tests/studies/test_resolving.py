"""Every run of every study, at every scale: its settings are sound, and its model is built (on the meta device)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from paucal.backbones import BackboneSpec, fit_to_image_size
from paucal.backbones.empty_models import build_empty, meta_device
from paucal.data.classes import read_class_list
from paucal.data.sources.opening import open_digits
from paucal.methods.pretraining import resolve_pretraining
from paucal.methods.training import resolve_training
from paucal.rules.resolve import DataAndMachine, InitialWeightsInfo, backbone_spec, model_arguments
from paucal.studies.counting import count_model, count_network, counted_value
from paucal.studies.plan import initial_weights_settings, plan_runs
from paucal.studies.reading import studies
from paucal.tasks.detection.assembly import detector_backbone
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.settings import detector_options
from paucal.tasks.segmentation.network import build_segmentation_network
from paucal.tasks.table import job_of
from paucal.types import UserError, height_and_width
from studies.resolved import checked

TRAINED = [name for name, study in studies().items() if study.trains]
TRANSFERRED = [name for name in TRAINED if studies()[name].kind in ("detect", "segment")]
BEGUN = [name for name in TRAINED if studies()[name].kind == "train" and studies()[name].starts]
ENLARGED = ["lvvit-table-5", "lvvit-high-resolution"]  # tuned at more pixels, on what they have learned at fewer
TUNED = [name for name in BEGUN if name not in ENLARGED]
CASES = [(name, scale) for name in TRAINED for scale in (*studies()[name].scales, "full")]
PAPERS = ("drloc", "lvvit", "dhvt", "esvit")
LARGE = 8.0  # multiply-adds of an image in billions, from which a model is built by a slow test


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_settings__are_sound(name, scale):
    for run, settings in checked(name, scale):
        assert settings.model is not None, run
        assert settings.epochs, run


RESOLVE = {"train": resolve_training, "pretrain": resolve_pretraining}


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name, scale in CASES if studies()[name].kind in RESOLVE])
def test_settings__leave_nothing_to_be_chosen_that_a_rule_cannot(name, scale):
    """What a run is begun with has a length, a rate and a size, whichever come from the study and which from rules."""
    for run, settings in checked(name, scale):
        begun = InitialWeightsInfo("a start", settings.model, (224, 224)) if getattr(settings, "init", None) else None
        facts = DataAndMachine(
            n_train=9000, n_classes=10, median_side=64, device="cuda", bf16=True, initial_weights=begun
        )
        whole, reasons = RESOLVE[studies()[name].kind](settings, facts)
        for setting in ("epochs", "batch_size", "lr", "warmup_epochs", "img_size", "precision"):
            if hasattr(whole, setting):
                assert getattr(whole, setting) is not None, (run, setting)
        assert whole.warmup_epochs < whole.epochs or whole.epochs <= 1, run
        if scale == "full":
            # A rate that a rule chose is in proportion to the images of a step; a recipe's comes with its name.
            assert "lr" not in reasons or "recipe" in reasons["lr"] or studies()[name].kind == "pretrain", run


def test_settings__at_full_scale_are_the_paper_s():
    settings = dict(checked("drloc-table-2b", "full"))["CvT-13, λ=0.5"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.img_size) == (1024, 100, [224])
    assert (settings.method, settings.drloc_weight, settings.mixup, settings.val_fraction) == ("drloc", 0.5, 0.8, 0.0)
    settings = dict(checked("dhvt-table-4", "full"))["DHVT-S, 6 heads"]
    assert (settings.batch_size, settings.accumulate, settings.epochs, settings.img_size) == (512, 1, 300, [32])
    assert settings.model_args == ["num_heads=6"]
    assert (settings.rand_augment, settings.repeats, settings.schedule) == ("rand-m9-mstd0.5-inc1", 3, "step")
    # The supplement's tables 4 and 5 have one DHVT-T of 512 images per step in common, 80.98: two rows, one training.
    heads = dict(checked("dhvt-table-4", "full"))["DHVT-T, 4 heads"]
    norms = dict(checked("dhvt-table-5", "full"))["BN-BN, 512"]
    assert {name for name, value in vars(heads).items() if value != getattr(norms, name)} == {"model_args"}
    settings = dict(checked("esvit-table-3", "full"))["CvT, 100 epochs"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.tasks) == (1024, 100, "view")
    settings = dict(checked("lvvit-table-4", "full"))["X + F(X)/3"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.schedule_epochs) == (1024, 310, 300)
    settings = dict(checked("lvvit-starts", "full"))["CaiT"]
    assert (settings.batch_size * settings.accumulate, settings.epochs, settings.schedule_epochs) == (1024, 400, 400)
    assert (settings.method, settings.drop_path, settings.mixup, settings.cutmix) == ("supervised", 0.2, 0.8, 1.0)
    assert (settings.add, settings.teacher) == (["distillation"], "regnety_160.deit_in1k")


def test_settings__at_more_pixels_are_those_that_tune():
    tuned = dict(checked("lvvit-high-resolution", "full") + checked("lvvit-table-5", "full"))
    for run, settings in tuned.items():
        assert settings.batch_size * settings.accumulate == 512, run
        assert (settings.epochs, settings.lr, settings.weight_decay, settings.init) == (30, 5e-6, 1e-8, "run"), run
        assert settings.method == ("supervised" if run == "CaiT" else "token-labeling"), run
    found = {run: (one.model, one.img_size, one.drop_path) for run, one in tuned.items()}
    assert found == {
        "LV-ViT-S at 384": ("lvvit_s", [384], 0.1),
        "LV-ViT-M at 384": ("lvvit_m", [384], 0.2),
        "LV-ViT-M at 448": ("lvvit_m", [448], 0.2),
        "LV-ViT-L at 448": ("lvvit_l", [448], 0.3),
        "LV-ViT-L at 512": ("lvvit_l", [512], 0.3),
        "LV-ViT": ("lvvit_m", [384], 0.2),
        "CaiT": ("cait_s36_384", [384], 0.2),
    }


def test_settings__of_detectors_and_segmenters_at_full_scale_are_the_papers():
    for name in TRANSFERRED:
        for run, settings in checked(name, "full"):
            assert settings.batch_size * settings.accumulate * settings.devices == 16, run
            assert settings.masks == "on" if studies()[name].kind == "detect" else settings.img_size == [512]
    assert [settings.init for _, settings in checked("drloc-table-12", "full")] == ["timm", "run"]
    for name in ("drloc-table-10", "drloc-table-11"):
        found = dict(checked(name, "full"))
        assert len(found) == 4
        for run, one in found.items():
            cascade = run.startswith("Cascade")
            assert (one.model, one.epochs, one.lr) == ("padded_swin_tiny_patch4_window7_224", 12, 1e-4)
            assert (one.cascade, one.drop_path) == (cascade, 0.0 if cascade else 0.1)
            assert (one.head, one.box_loss) == (("4conv1fc", "giou") if cascade else ("2fc", "l1"))
            assert (one.proposals, one.matching) == ((2000, "anchors") if cascade else (1000, "regions"))
            assert (one.pooling, one.pyramid_norm, one.empty_images, one.least_box) == ("aligned", "none", "drop", 1.0)
    for name in ("drloc-table-12", "drloc-table-13", "lvvit-segmentation"):
        for run, one in checked(name, "full"):
            assert (one.ignore, one.resize_to, one.scale, one.colour) == (
                [0],
                [512, 2048],
                [0.5, 2.0],
                "photometric",
            ), run
            whole = ("whole", True, [0.5, 0.75, 1.0, 1.25, 1.5, 1.75])
            windows = ("windows", False, None)
            assert (one.test_mode, one.mirror, one.scales) == (windows if "lvvit" in name else whole)
            assert one.auxiliary_width == (512 if run == "LV-ViT-L" else 256)
    assert {settings.drop_path for _, settings in checked("esvit-table-4", "full")} == {0.2}
    assert {settings.epochs for _, settings in checked("esvit-table-4", "full")} == {36}
    large = dict(checked("lvvit-segmentation", "full"))["LV-ViT-L"]
    assert (large.model, large.width, large.lr, large.schedule) == ("lvvit_l", 512, 6e-5, "linear")
    assert round(large.epochs * 20_210 / 16, -3) == 160_000


def test_settings__of_tuned_models_at_full_scale_are_the_papers():
    assert TUNED == ["drloc-table-5", "dhvt-table-1", "dhvt-table-8"]
    found = dict(checked("drloc-table-5", "full"))
    begun = {run.partition(" +")[0]: (one.model, one.init) for run, one in found.items()}
    assert begun == {
        "Swin-T": ("swin_tiny_patch4_window7_224.ms_in1k", "timm"),
        "T2T-ViT-14": ("t2t_vit_14", "run"),
        "ResNet-50": ("resnet50.tv_in1k", "timm"),  # what torchvision had at the paper's time
    }
    for name, images in (("drloc-table-5", 1024), ("dhvt-table-1", 256), ("dhvt-table-8", 256)):
        for run, one in checked(name, "full"):
            assert (one.batch_size * one.accumulate, one.epochs, one.img_size) == (images, 100, [224]), run
            assert one.method == ("drloc" if "drloc" in run else "supervised"), run
    assert {one.warmup_epochs for one in found.values()} == {10}
    assert {one.warmup_epochs for _, one in checked("dhvt-table-8", "full")} == {2}


def test_settings__of_tuned_models_at_the_smaller_scales_are_of_other_classes_than_their_starts():
    """Neither an image nor a class that a row is tested on was seen by what the row begins with."""
    for name in TUNED:
        study = studies()[name]
        for scale, small in study.scales.items():
            training = small.start_training
            assert training is not None
            assert (training.data, training.side) == (small.data, small.side)
            before, after = ({*read_class_list(one["classes"])} for one in (training.set, small.set))
            assert len(before) == len(after) == 5
            assert not before & after
            runs = plan_runs(study, scale)
            assert all("init" not in run.settings for run in runs)  # the cell has it from its start
            rates = {run.settings["lr"] for run in runs}
            assert rates == {initial_weights_settings(study, study.starts[runs[0].row.start], small)["lr"] / 2}
    digits = open_digits()
    names = (read_class_list("digits-0-to-4"), read_class_list("digits-5-to-9"))
    assert sorted([*names[0], *names[1]]) == sorted(digits.classes)


def test_starts__at_the_smaller_scales_are_what_tells_the_rows_apart():
    found = {name: start_settings_of(name) for name in (*TRANSFERRED, *TUNED)}
    for name, starts in found.items():
        assert len({str(settings) for settings in starts.values()}) == len(starts), name
    assert found["drloc-table-10"]["plain"].method == "supervised"
    assert found["drloc-table-10"]["drloc"].method == "drloc"
    assert found["esvit-table-4"]["esvit"].tasks == "view+region"
    assert {one.model for one in found["lvvit-segmentation"].values()} == {"lvvit_s", "lvvit_m", "lvvit_l"}
    assert {one.method for name in TUNED for one in found[name].values()} == {"supervised"}  # the loss comes later
    for name in TUNED:
        for run in plan_runs(studies()[name], "tiny"):
            start = found[name][run.row.start]
            assert (run.settings["model"], run.settings["model_args"]) == (start.model, start.model_args)


def test_starts__of_larger_pixels_learn_the_images_of_their_rows_at_fewer():
    """The sides are published; a stand-in has them in about the same proportion, and the same cells of four pixels."""
    for name in ENLARGED:
        study, starts = studies()[name], start_settings_of(name)
        full = {run.name: run.settings for run in plan_runs(study, "full")}
        for scale, small in study.scales.items():
            assert small.start_training is not None
            assert not small.start_training.data  # those of the rows
            for run in plan_runs(study, scale):
                (side,), (published,) = run.settings["img_size"], full[run.name].get("img_size", [384])
                assert side / small.start_training.side == pytest.approx(published / 224, rel=0.03)
                start = starts[run.row.start]
                assert (run.settings["model"], run.settings["model_args"]) == (start.model, start.model_args)
                assert run.settings["method"] == start.method == ("token-labeling" if run.row.maps else "supervised")
                assert small.start_training.epochs == 10 * run.epochs == 10 * small.epochs


def start_settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a study's starts at the tiny scale, as the verb that makes them has checked them."""
    study, found = studies()[name], {}
    for key, start in study.starts.items():
        values = initial_weights_settings(study, start, study.scales["tiny"])
        values |= {"labels": "maps"} if values.get("method") == "token-labeling" else {}
        job = job_of(start.verb)
        found[key], _ = job.check(job.settings_type(**values), dict.fromkeys(values, "given"))
    return found


def build(kind: str, settings: Any) -> None:
    """Build what a run trains as it would, without values."""
    if kind in ("train", "pretrain"):
        size, given = height_and_width(settings.img_size or [224]), model_arguments(settings.model_args or [])
        sizing = fit_to_image_size(settings.model, size, given)
        assert min(sizing.grid) >= 4  # cells that a loss on the grid can learn from
        spec = BackboneSpec(settings.model, 3, image_size=size, arguments=given)
        if settings.drop_path:
            build_empty(spec.name, {**sizing.arguments, **given, "drop_path_rate": settings.drop_path})
        return
    with meta_device(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        if kind == "segment":
            spec, _ = backbone_spec(settings, 3)
            build_segmentation_network(spec, 3, settings.width, settings.dropout, settings.drop_path)
            return
        settings = replace(settings, masks="on")  # all images of these sets have outlines
        (spec, _), options = detector_backbone(settings), detector_options(settings)
        build_detector(spec, 3, options, settings.drop_path)


def trained(paper: str) -> list[tuple[str, str, Any, bool]]:
    """Return a paper's runs that train different models: the kind, the run in words, settings, and whether large."""
    found: dict[tuple[Any, ...], tuple[str, str, Any, bool]] = {}
    for name, scale in CASES:
        study = studies()[name]
        if not name.startswith(paper):
            continue
        gmacs = {run.name: study.models[run.row.model].gmacs for run in plan_runs(study, scale)}
        runs = [(run, settings, gmacs[run]) for run, settings in checked(name, scale)]
        parts = [(study.kind, f"{name}, {scale}: {run}", *rest) for run, *rest in runs]
        if scale == "tiny" and study.starts:
            starts = start_settings_of(name).items()
            parts += [(study.starts[key].verb, f"{name}, start {key}", settings, 0.0) for key, settings in starts]
        for kind, words, settings, cost in parts:
            size, args = tuple(settings.img_size or ()), tuple(settings.model_args or ())
            own = [getattr(settings, part, None) for part in ("width", "cascade", "pyramid_channels", "finest")]
            key = (kind, settings.model, size, args, settings.drop_path, *own)
            found.setdefault(key, (kind, words, settings, scale == "full" and cost >= LARGE))
    return list(found.values())


def build_all(paper: str, large: bool) -> int:
    """Build what a paper's runs train, each model once; returns how many."""
    runs = [one for one in trained(paper) if one[3] == large]
    for kind, words, settings, _ in runs:
        try:
            build(kind, settings)
        except (UserError, AssertionError) as problem:
            pytest.fail(f"{words}: {problem}")
    return len(runs)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.slow
def test_models__of_every_run_are_built(paper):
    assert build_all(paper, large=False) > 10


@pytest.mark.slow
@pytest.mark.parametrize("paper", [paper for paper in PAPERS if paper != "dhvt"])  # whose models are all small
def test_models__that_are_large_are_built(paper):
    assert build_all(paper, large=True) > 1


@pytest.mark.parametrize(
    ("paper", "key"), [("drloc", "swin_t"), ("dhvt", "dhvt_t"), ("lvvit", "lvvit_t"), ("esvit", "swin_t_w14")]
)
def test_models__of_each_family_take_the_multiply_adds_of_the_estimate(paper, key):
    models = next(study.models for name, study in studies().items() if name.startswith(paper))
    count = count_model(models[key].full.name, models[key].side, models[key].full.args, 1000)
    assert count.gmacs_all == pytest.approx(models[key].gmacs, rel=0.005)


def test_tnt_t__is_counted_as_the_sheet_of_backbones_has_it():
    """Sheet of backbones, 1.1: 6,069,784 parameters and 1.404 G multiply-adds; DHVT's table 9 prints 6.2 and 1.4."""
    study = studies()["dhvt-table-9"]
    row = next(row for row in study.rows if row.name == "TNT-T")
    params, gmacs = (counted_value(study, row, column) for column in study.columns[:2])
    assert (params, gmacs) == (6.069784, pytest.approx(1.404, abs=5e-4))


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_models__take_the_multiply_adds_of_the_estimate(paper):
    models = next(study.models for name, study in studies().items() if name.startswith(paper))
    for key, model in models.items():
        if key in ("stem", "convit_ti", "convit_s"):  # its stem is a row's; positional scores are not counted as ours
            continue
        if model.network:
            whole = count_network(model.full.name, model.full.args, model.network, model.shape, model.width, None)
            assert whole.gmacs == pytest.approx(model.gmacs, rel=0.005), key
            continue
        count = count_model(model.full.name, model.side, model.full.args, 1000)
        assert count.gmacs_all == pytest.approx(model.gmacs, rel=0.02), key


def test_settings__with_images_of_their_own_are_left_to_the_user():
    study = studies()["drloc-table-3"]
    assert {run.settings["classes"] for run in plan_runs(study, "full")} == {"imagenet100"}
    assert "classes" not in plan_runs(replace(study), "tiny")[0].settings
