"""Runs that train the last stages on kept activations of the frozen ones."""

import pytest
import torch

from paucal.backbones.frozen_stages import FrozenStages
from paucal.data.dataset import SampleKey, collate
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.classification import frozen_views
from paucal.tasks.classification.assembly import assemble
from paucal.tasks.classification.frozen_views import compute_view_activations, max_activation_bytes
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.classification.trainer_inputs import make_view_dataset
from paucal.types import Progress, UserError
from runner.test_time_budget import StopAt
from tasks.classification.auto_tune.test_auto_tune import photos

SETTINGS = {
    **{"epochs": 3, "init": "none", "model": "test_resnet", "device": "cpu", "method": "supervised"},
    **{"batch_size": 24, "img_size": [32], "workers": 0, "seed": 3, "freeze": 2, "frozen_views": 2},
    **{"mixup": 0.0, "cutmix": 0.0, "lr": 1e-3, "crop": "random-resized", "crop_scale": 0.5},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Settings of a run: two steps in each epoch."""
    return {**SETTINGS, "data": str(photos(tmp_path_factory.mktemp("views") / "photos", each=24, side=32))}


def started(given, output, callbacks=(), **changes):
    given = {**given, **changes, "output": str(output)}
    return begin(TrainingJob(), TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole(), callbacks)


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory):
    """A run of three epochs that shows two views."""
    return started(given, tmp_path_factory.mktemp("views") / "whole")


def weights_of(result):
    return read_weights(RunFolder(result.folder).weights)


def test_views__have_the_losses_and_gradients_of_images_computed_anew(given, tmp_path):
    settings, origins = TrainingJob().check(TrainSettings(**given), dict.fromkeys(given, "flag"))
    setup = assemble(settings, origins, SilentConsole().progress)
    objective, train = setup.objective, setup.data.split_indices("train")
    keys = [SampleKey(epoch, int(image)) for epoch, image in zip((0, 1, 1, 0, 1, 0), train, strict=False)]
    later = [key._replace(epoch=key.epoch + 2) for key in keys]  # views are shown again in turn
    fed, steps = setup.card.preprocessing, Progress(0, 9, 3)
    images = collate(make_view_dataset(setup.data, fed, setup.settings, objective.data_request).__getitems__(keys))
    statistics = {name: value.clone() for name, value in objective.named_buffers()}
    with compute_view_activations(tmp_path, setup.data, train, fed, setup.settings, objective) as views:
        assert not list(tmp_path.glob("*"))  # the file has no name, so nothing can be left behind
        assert views.activations.shape[0] == 2 * len(train)
        dataset = views.loader(setup.data, setup.settings, setup.plan, 0).dataset
        held = {name: value.clone() for name, value in objective.named_buffers()}
        anew = objective(images, steps)
        anew.total.backward()
        wanted = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
        objective.zero_grad(set_to_none=True)
        objective.load_state_dict(statistics, strict=False)
        with views.feed_to(objective):
            found = objective(collate(dataset.__getitems__(later)), steps)
            found.total.backward()
    torch.testing.assert_close(found.total, anew.total)
    for name, parameter in objective.named_parameters():
        if name in wanted:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-3, atol=1e-5)
        else:
            assert parameter.grad is None
    assert all(torch.equal(value, statistics[name]) for name, value in held.items())  # none learned while filling
    still = [name for name, _ in objective.named_buffers() if "layer1" in name or "layer2" in name]
    assert still
    assert all(torch.equal(objective.get_buffer(name), statistics[name]) for name in still)


def test_run__of_as_many_views_as_epochs_equals_one_that_computes_them_anew(whole, given, tmp_path):
    kept, anew = started(given, tmp_path / "kept", frozen_views=3), started(given, tmp_path / "anew", frozen_views=0)
    losses = [[row["train_loss"] for row in result.history] for result in (kept, anew)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    other = [row["train_loss"] for row in whole.history]
    assert other[:2] == pytest.approx(losses[0][:2], rel=1e-6)
    assert other[2] != pytest.approx(losses[0][2], rel=1e-4)  # the third epoch shows the first view again


def test_run__that_is_resumed_ends_as_one_that_was_not_stopped(whole, given, tmp_path):
    stopped = started(given, tmp_path / "run", [StopAt(5)])
    assert isinstance(stopped, Stopped)
    assert not list((tmp_path / "run").glob("activations-*"))
    resumed = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    assert all(torch.equal(value, weights_of(resumed)[name]) for name, value in weights_of(whole).items())
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in whole.history]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mixup": 0.8}, "mixup and cutmix change the images"),
        ({"freeze": None}, "give the number of frozen stages"),
        ({"freeze": "backbone"}, "give the number of frozen stages"),
        ({"add": ["drloc"]}, "use --method supervised without extra losses"),
    ],
)
def test_run__whose_settings_allow_no_kept_activations_is_refused(given, tmp_path, changes, why):
    with pytest.raises(UserError, match=f"--frozen-views is not supported here: {why}"):
        started(given, tmp_path / "run", **changes)


def test_most_views__fit_in_a_quarter_of_the_free_memory_and_half_of_the_free_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_views, "read_available_memory", lambda: 4000)
    monkeypatch.setattr(frozen_views, "usable_disk_bytes", lambda folder: 700)
    assert max_activation_bytes(tmp_path) == 700
    monkeypatch.setattr(frozen_views, "usable_disk_bytes", lambda folder: 10**9)
    assert max_activation_bytes(tmp_path) == 1000


def test_run__whose_activations_need_too_much_space_is_refused(given, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_views, "read_available_memory", lambda: 4000)
    with pytest.raises(UserError, match="may use at most a quarter of the free memory"):
        started(given, tmp_path / "run")


def test_views__of_a_network_with_tiny_logits_are_checked_too(given, tmp_path, monkeypatch):
    settings, origins = TrainingJob().check(TrainSettings(**given), dict.fromkeys(given, "flag"))
    setup = assemble(settings, origins, SilentConsole().progress)
    objective, train, fed = setup.objective, setup.data.split_indices("train"), setup.card.preprocessing
    for parameter in objective.deployable().get_classifier().parameters():
        parameter.data.mul_(1e-4)
    with compute_view_activations(tmp_path, setup.data, train, fed, setup.settings, objective) as views:
        assert views.n_views == 2
    real = FrozenStages.resume_from
    monkeypatch.setattr(FrozenStages, "resume_from", lambda self, kept: real(self, kept.flip(0)))  # another image's
    with (
        pytest.raises(UserError, match="output more than one tensor"),
        compute_view_activations(tmp_path, setup.data, train, fed, setup.settings, objective),
    ):
        pass
