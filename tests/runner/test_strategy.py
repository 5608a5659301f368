"""What several devices keep of a model: all of it by default, pieces when asked."""

from dataclasses import replace

import pytest

from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.rules.resolve import DataAndMachine
from paucal.runner import trainer_plan
from paucal.runner.console import SilentConsole
from paucal.runner.trainer_plan import hardware
from paucal.settings.options import list_origins
from paucal.tasks.classification import assembly as training
from paucal.tasks.classification.trainer_inputs import reduce_batch_to_memory
from paucal.tasks.pretraining import assembly as pretraining
from paucal.types import UserError

FACTS = DataAndMachine(n_train=1000, n_classes=10, median_side=8, cores=2)


@pytest.mark.parametrize(
    ("devices", "given", "stored", "origin"),
    [
        (1, None, None, "default"),
        (1, "auto", "auto", "flag"),
        (2, None, "ddp", "auto: each device has a full copy of the model"),
        (2, "auto", "ddp", "auto: each device has a full copy of the model"),
        (2, "ddp", "ddp", "flag"),
        (2, "fsdp", "fsdp", "flag"),
    ],
)
def test_strategy__is_stored_with_its_origin_and_reaches_the_trainer(devices, given, stored, origin):
    settings, reasons = resolve(TrainSettings(device="cpu", devices=devices, strategy=given), FACTS)
    assert settings.strategy == stored
    assert hardware(settings).strategy == (stored or "auto")  # Lightning's word for one process
    assert hardware(settings).processes == devices
    assert list_origins(settings, {"strategy": "flag"} if given else {}, reasons)["strategy"] == origin


def test_batch_size_auto__is_refused_where_devices_keep_pieces():
    settings = TrainSettings(device="cuda", devices=2, strategy="fsdp", batch_size=64)
    nothing: tuple = (None, None, None)
    with pytest.raises(UserError, match="give --batch-size as a number"):
        reduce_batch_to_memory(settings, *nothing)
    assert reduce_batch_to_memory(replace(settings, device="cpu"), *nothing)[0].batch_size == 64


@pytest.mark.parametrize(("module", "settings_type"), [(training, TrainSettings), (pretraining, PretrainSettings)])
def test_device__that_is_missing_is_refused_before_images_are_decoded(module, settings_type, monkeypatch):
    monkeypatch.setattr(trainer_plan, "best_device", lambda: ("cpu", False))
    monkeypatch.setattr(module, "decode_images", None)
    with pytest.raises(UserError, match="--device is 'cuda', but torch finds no such device"):
        module.assemble(settings_type("digits", device="cuda", init=None), {"init": "flag"}, SilentConsole().progress)
