"""Which way each way to train is compared with."""

import pytest

from paucal.verbs.compare.settings import Arm, GridSettings, baseline_of, make_arms

SWIN, VIT = {"model": "swin", "model_args": ["depths=[1,3]"]}, {"model": "vit", "model_args": ["depth=6"]}


def baselines(arms: list[Arm] | tuple[Arm, ...]) -> dict[str, str | None]:
    found = {arm: baseline_of(arm, arms) for arm in arms}
    return {arm.name: None if one is None else one.name for arm, one in found.items()}


def test_baseline__of_a_way_is_the_first_on_its_model_and_of_a_model_the_first_model():
    asked = GridSettings(methods=["supervised", "drloc"], models=["swin", "vit"])
    assert baselines(make_arms(asked, {})) == {
        "supervised, swin": None,
        "drloc, swin": "supervised, swin",
        "supervised, vit": "supervised, swin",
        "drloc, vit": "supervised, vit",
    }


@pytest.mark.parametrize("share", [None, "10%"])
def test_baseline__knows_a_model_that_an_arm_names_itself(share):
    named = {"Swin": SWIN, "Swin + DrLoc": SWIN | {"method": "drloc"}}
    named |= {"ViT": VIT, "deeper ViT": VIT | {"model_args": ["depth=9"]}, "ViT + DrLoc": VIT | {"method": "drloc"}}
    arms = make_arms(GridSettings(labels=None if share is None else [share]), named)
    of = dict(zip((arm.way for arm in arms), baselines(arms).values(), strict=True))
    ends = "" if share is None else ", 10% of the images"
    assert of == {
        "Swin": None,
        "Swin + DrLoc": f"Swin{ends}",
        "ViT": f"Swin{ends}",
        "deeper ViT": f"Swin{ends}",
        "ViT + DrLoc": f"ViT{ends}",
    }
