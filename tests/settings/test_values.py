"""Settings given in Python: what is taken as it is meant, and what is refused."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from paucal.methods.training_settings import TrainSettings
from paucal.rules.resolve import model_arguments
from paucal.settings.values import given_names, settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.compare.settings import GridSettings


def made(**values) -> TrainSettings:
    return settings_from_keywords(TrainSettings, values, "paucal.train", "train")


def test_values__are_taken_as_they_are_meant():
    settings = made(output=Path("runs") / "1", img_size=32, add="drloc", epochs=np.int64(3), lr=1, clip=np.float32(0.5))
    assert (settings.output, settings.img_size, settings.add) == (str(Path("runs/1")), [32], ["drloc"])
    assert type(settings.epochs) is int
    assert (settings.lr, type(settings.lr)) == (1.0, float)
    assert settings.clip == 0.5
    assert made(img_size=(32, 24)).img_size == [32, 24]
    assert made(batch_size="auto").batch_size == "auto"
    assert made(freeze=2).freeze == 2


def test_none__is_as_where_it_is_left_out():
    values = {"seed": None, "epochs": None, "lr": 0.1}
    assert made(**values) == made(lr=0.1)
    assert given_names(values) == ["lr"]


def test_mapping__stands_for_words_of_names_and_values():
    words = made(model_args={"depth": 2, "depths": [2, 2], "bias": False, "act": "gelu", "name": "on", "rate": None})
    assert words.model_args == ["depth=2", "depths=[2, 2]", "bias=false", "act=gelu", 'name="on"', "rate=null"]
    arguments = {"depth": 2, "depths": [2, 2], "bias": False, "act": "gelu", "name": "on", "rate": None}
    assert model_arguments(words.model_args or []) == arguments
    assert made(model_args=[{"depth": 2}, "bias=true"]).model_args == ["depth=2", "bias=true"]
    asked = settings_from_keywords(
        GridSettings, {"slurm": {"slurm_partition": "10", "timeout_min": 5}}, "paucal.compare", "compare"
    )
    assert asked.slurm == ["slurm_partition=10", "timeout_min=5"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": "many"}, "--epochs: expected a whole number, got 'many'; see 'paucal train --help'."),
        ({"epochs": 1.5}, "--epochs: expected a whole number, got '1.5'"),
        ({"epochs": True}, "--epochs: expected a whole number, got 'True'"),
        ({"lr": float("nan")}, "--lr: expected a number, got 'nan'"),
        ({"lr": "0.1"}, "--lr: expected a number, got '0.1'"),
        ({"batch_size": "best"}, "--batch-size: expected a whole number or 'auto', got 'best'"),
        ({"drloc_mode": "l2"}, "--drloc-mode: expected one of 'l1', 'signed', 'ce', 'reg', got 'l2'"),
        ({"img_size": [32, "x"]}, "--img-size: expected a whole number, got"),
        ({"img_size": []}, "--img-size: expected a whole number, got '[]'"),
        ({"download": "yes"}, "--download: expected true or false, got 'yes'"),
        ({"output": 3}, "--output: expected text, got '3'; see 'paucal train --help'."),
        ({"time": 10}, "--time: expected a time such as 10m, 600s, 8h, 1d12h or 1:30:00, got '10'"),
        ({"img_size": {"height": 32}}, "--img-size: expected a whole number, got \"{'height': 32}\""),
    ],
)
def test_value__of_another_kind_is_one_sentence(values, sentence):
    with pytest.raises(UserError) as error:
        made(**values)
    assert str(error.value).startswith(sentence)


def test_name__that_is_unknown_is_answered_with_the_nearest():
    with pytest.raises(TypeError) as error:
        made(epoch=3)
    assert (
        str(error.value) == "paucal.train has no setting 'epoch' (did you mean epochs?); "
        "help(paucal.train) lists all settings."
    )


def test_number__that_no_float_holds_is_left_to_the_ranges():
    assert made(lr=10**400).lr == 10**400


def test_signature__shows_each_setting_once():
    @with_settings_signature(TrainSettings)
    def act(data, /, *, seed=7, **settings): ...

    shown = inspect.signature(act).parameters
    assert list(shown)[:2] == ["data", "seed"]
    assert shown["seed"].default == 7
    assert shown["epochs"].annotation == int | None
    assert shown["clip"].default == 5.0
