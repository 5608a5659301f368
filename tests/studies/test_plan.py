"""Which runs a study is made of, with which settings, and what they cost."""

from dataclasses import replace

import pytest

from paucal.studies.descriptions import describe_hours, format_hours, gpu_hours
from paucal.studies.plan import plan_runs, with_given_start
from paucal.studies.reading import studies
from paucal.types import UserError


def planned(name: str, scale: str, **wanted):
    return plan_runs(studies()[name], scale, **wanted)


def test_plan__each_cell_of_a_row_and_a_setting_is_a_run():
    runs = planned("drloc-table-2b", "full", rows=["Swin-T"])
    assert [run.name for run in runs] == [f"Swin-T, λ={weight}" for weight in ("0.0", "0.1", "0.5", "1.0")]
    assert [run.settings["method"] for run in runs] == ["supervised", "drloc", "drloc", "drloc"]
    assert [run.settings.get("drloc_weight") for run in runs] == [None, 0.1, 0.5, 1.0]
    assert [run.against for run in runs] == ["", *["Swin-T, λ=0.0"] * 3]
    assert {(run.data, run.settings["recipe"], run.settings["accumulate"]) for run in runs} == {
        ("cifar100", "drloc-scratch", 8)
    }


def test_plan__two_scores_of_the_same_features_are_one_run():
    runs = planned("esvit-table-2", "full", rows=["Swin-T, W=14"])
    assert [(run.name, [column.name for column in run.columns]) for run in runs] == [
        ("Swin-T, W=14, L_V", ["L_V linear", "L_V k-NN"]),
        ("Swin-T, W=14, L_V+L_R", ["L_V+L_R linear", "L_V+L_R k-NN"]),
    ]
    assert "region_after" not in runs[0].settings  # the region task never joins
    assert runs[1].settings["region_after"] == 200
    assert runs[1].against == runs[0].name


def test_plan__what_counts_epochs_shrinks_with_them():
    study = studies()["esvit-table-2"]
    small = study.scales["small"]
    runs = planned("esvit-table-2", "small", rows=["Swin-T, W=14"])
    assert runs[1].epochs == small.epochs == runs[1].settings["epochs"]
    assert runs[1].settings["region_after"] == round(200 * small.epochs / 300)
    lengths = [run.epochs for run in planned("drloc-table-3", "tiny", rows=["Swin-T"])]
    assert lengths == [studies()["drloc-table-3"].scales["tiny"].epochs * factor for factor in (1, 3)]


def test_plan__one_set_of_images_stands_for_all():
    runs = planned("drloc-table-4", "tiny")
    assert len(runs) == 8
    assert {run.data for run in runs} == {"digits"}
    assert {column.name for run in runs for column in run.columns} == {"CIFAR-10"}
    assert len(planned("drloc-table-4", "full")) == 80
    assert {run.data for run in planned("drloc-table-4", "full", columns=["SVHN", "Real"])} == {"svhn", "real"}


def test_plan__a_row_says_more_than_its_model():
    (run,) = planned("dhvt-figure-1", "full", rows=["SOPE, without positions"])
    assert run.settings["model_args"] == ["sope=True", "daff=False", "head_tokens=False", "abs_pos=False"]
    (run,) = planned("dhvt-table-5", "tiny", rows=["BN-LN"], columns=["512"])
    assert run.settings["batch_size"] == 64  # of the stand-in
    (run,) = planned("dhvt-table-5", "full", rows=["BN-LN"], columns=["512"])
    assert run.settings["batch_size"] == 512


def test_plan__only_the_first_data_of_pretraining_is_stood_in_for():
    assert [run.data for run in planned("esvit-table-5", "full")] == [
        *("imagenet-1k", "webvision", "openimages", "imagenet-22k"),
    ]
    assert [run.row.name for run in planned("esvit-table-5", "tiny")] == ["ImageNet-1K"]


@pytest.mark.parametrize(
    ("name", "scale", "wanted", "words"),
    [
        ("drloc-table-9", "medium", {}, "--scale is 'medium'"),
        ("drloc-table-1", "tiny", {}, "drloc-table-1 has no runs"),
        ("drloc-table-9", "tiny", {"rows": ["ViT-B"]}, "--rows: drloc-table-9 has no 'ViT-B' (did you mean"),
        ("drloc-table-9", "tiny", {"columns": ["SVHN"]}, "--columns: drloc-table-9 has no 'SVHN'"),
        ("dhvt-table-9", "tiny", {"rows": ["DeiT-T"]}, "--rows: dhvt-table-9 does not run DeiT-T at"),
        ("dhvt-table-9", "full", {"columns": ["GFLOPs"]}, "--columns: dhvt-table-9 does not run GFLOPs at"),
        ("esvit-table-5", "full", {"rows": ["Supervised"]}, "does not run Supervised at"),
    ],
)
def test_plan__refuses_what_is_not_there(name, scale, wanted, words):
    with pytest.raises(UserError) as problem:
        planned(name, scale, **wanted)
    assert words in str(problem.value)


def test_plan__says_why_there_is_no_smaller_scale():
    study = replace(studies()["drloc-table-9"], scales={}, without="of its pictures")
    with pytest.raises(UserError, match=r"has no scale 'tiny' \(of its pictures\): use full"):
        plan_runs(study, "tiny")


def test_plan__a_tuned_row_begins_with_the_start_of_its_model():
    """At full scale with the weights that its start has by itself; at the smaller ones, with what is trained first."""
    found = {run.row.name: run for run in planned("drloc-table-5", "full", columns=["SVHN"])}
    assert found["ResNet-50 + L_drloc"].settings["init"] == "timm"
    assert found["ResNet-50 + L_drloc"].settings["model"] == "resnet50.tv_in1k"
    assert "init" not in found["T2T-ViT-14"].settings  # it has to be given
    assert found["T2T-ViT-14"].settings["model"] == "t2t_vit_14"
    own = with_given_start(studies()["drloc-table-5"], found["ResNet-50"], "runs/1")
    assert (own.settings["init"], own.settings["model"]) == ("runs/1", "resnet50")
    assert {run.settings["init"] for run in planned("drloc-table-4", "full")} == {"none"}
    assert {run.settings["init"] for run in planned("drloc-table-4", "tiny")} == {"none"}
    for scale in ("tiny", "small"):
        runs = planned("drloc-table-5", scale)
        assert len(runs) == 6
        assert all("init" not in run.settings for run in runs)


def test_cost__is_the_formula():
    def full_hours(study, **changes):
        study = replace(study, **changes)
        return gpu_hours(study, plan_runs(study, "full"), len(study.seeds))

    hours = full_hours(studies()["drloc-table-2a"])
    assert hours == pytest.approx(5 * 100 * 50_000 * 3 * 2 * 4.491e9 / 50e12 / 3600)
    study = studies()["esvit-table-5"]
    forwards = 3 * (2 + 8 * (96 / 224) ** 2) + 2
    images = 1_281_167 * 300 + 2_400_000 * 150 + 7_500_000 * 50 + 14_200_000 * 30
    assert full_hours(study) == pytest.approx(images * forwards * 2 * 4.49e9 / 50e12 / 3600)
    assert full_hours(study, seeds=(0, 1)) == pytest.approx(2 * full_hours(study))
    assert describe_hours(replace(study, seeds=(0, 1))) == format_hours(2 * full_hours(study))
    assert describe_hours(studies()["dhvt-table-11"]) == "-"
