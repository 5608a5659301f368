"""`--optimizer`: what it needs, and that a stopped run goes on exactly, with the region task joining in between."""

import pytest
import torch
import yaml

from paucal.methods.pretraining import check_used, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.types import UserError
from tasks.pretraining.short_runs import StopAfter, same, start, state


@pytest.mark.parametrize("kind", [pytest.param("sgd", marks=pytest.mark.slow), "lars"])
def test_resumed_run__is_the_uninterrupted_one(kind, pictures, tmp_path):
    changes = {"optimizer": kind, "lr": 0.05, "epochs": 2, "region_after": 1}
    whole = start(pictures, tmp_path / "whole", **changes)
    stopped = start(pictures, tmp_path / "parts", [StopAfter(2)], **changes)
    assert isinstance(stopped, Stopped)
    assert yaml.safe_load((stopped.run / "config.yaml").read_text())["settings"]["optimizer"] == kind
    again = resume(PretrainingJob(), stopped.run, SilentConsole())
    one, two = state(whole.run), state(again.run)
    assert one["global_step"] == two["global_step"] == 6
    assert same(one["state_dict"], two["state_dict"])
    first, second = one["optimizer_states"][0], two["optimizer_states"][0]
    assert first["state"].keys() == second["state"].keys()
    for number, moments in first["state"].items():
        assert torch.equal(moments["momentum_buffer"], second["state"][number]["momentum_buffer"])
    names = [name for group in first["param_groups"] for name in group["names"]]
    assert any("region" in name for name in names)
    assert [{group["label"], group["decayed"], group["momentum"]} for group in first["param_groups"]] == [
        {group["label"], group["decayed"], group["momentum"]} for group in second["param_groups"]
    ]
    if kind == "lars":
        assert all(group["always_adapt"] == group["decayed"] for group in second["param_groups"])


@pytest.mark.parametrize("given", [{}, {"recipe": "esvit-resnet50"}, {"method": "lejepa"}])
@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_rate__has_to_be_given_where_it_is_not_adamws(kind, given):
    def check(**settings):
        filled, origin = with_recipe(PretrainSettings(**settings), dict.fromkeys(settings, "flag"))
        check_used(filled, origin)

    with pytest.raises(UserError, match=rf"--optimizer {kind} has no published learning rate.*give --lr"):
        check(optimizer=kind, **given)
    check(optimizer=kind, lr=0.1, **given)
    check(optimizer="adamw", **given)
