"""What a run does otherwise with images that are read as they come."""

from dataclasses import replace

import numpy as np
import pytest

from data.shards.made_sets import Numbered, numbered
from paucal.data.shards.stream import Stream, StreamOrder
from paucal.data.splits.split import make_split
from paucal.methods.training_settings import TrainSettings
from paucal.objectives.supervised import Supervised
from paucal.runner import images as run_images
from paucal.runner.images import SplitImages, step_loader, with_absolute_data_paths
from paucal.runner.initial_weights import WeightsChoice
from paucal.tasks.classification.assembly import _open_tune_record
from paucal.tasks.classification.checks import set_class_weights
from paucal.tasks.classification.images import quick_check
from paucal.training import Plan
from paucal.types import UserError


@pytest.fixture
def data() -> SplitImages:
    images = numbered(90)
    images = replace(images, stream=Stream.from_shards([90], 64))
    return SplitImages(images, make_split(images))


def test_balanced_sampling__is_refused_with_what_to_use_instead(data):
    with pytest.raises(UserError, match=r"--sampling balanced would read from all shards.*--class-weights auto"):
        set_class_weights(TrainSettings(sampling="balanced"), data, None)  # type: ignore[arg-type]
    set_class_weights(TrainSettings(), data, None)  # type: ignore[arg-type]


def test_quick_check__reads_no_image_and_takes_no_shard_for_a_group(data, monkeypatch):
    monkeypatch.setattr(Numbered, "source", lambda *_: pytest.fail("an image was read"))
    keys = [f"train-00000{n // 30}.tar/frame12_{n:04d}.png" for n in range(90)]
    found = quick_check(replace(data, images=replace(data.images, keys=keys)))
    assert [one.name for one in found] == ["not-compared"]


def test_rungs__leave_out_the_probe_whose_features_would_not_fit(monkeypatch):
    settings, found = TrainSettings(time="1h"), WeightsChoice(("weights",), "")  # type: ignore[arg-type]
    tuned, at_once = (_open_tune_record(settings, found, None, in_memory=whole) for whole in (True, False))
    assert tuned is not None
    assert at_once is not None
    assert tuned.candidates == ("weights",)
    assert at_once.candidates == ()


@pytest.mark.parametrize(("location", "is_there"), [("/shards", False), ("s3://bucket/set", True)])
def test_step_loader__fetches_ahead_only_what_is_not_on_this_machine(data, monkeypatch, location, is_there):
    monkeypatch.setattr(run_images, "make_train_loader", lambda dataset, sampler, *_, **__: sampler)
    there = replace(data, images=replace(data.images, location=location))
    settings = TrainSettings(batch_size=8, accumulate=1, devices=1, nodes=1)
    sampler = step_loader([], there, settings, Plan(2, 1, 1, seed=3, n_classes=3), 0)  # type: ignore[arg-type]
    assert (sampler.on_pass is not None) == is_there  # type: ignore[attr-defined]


def test_pin_data__leaves_a_url_as_it_is():
    assert with_absolute_data_paths(TrainSettings(data="s3://bucket/set")).data == "s3://bucket/set"


def test_epochs_0__which_is_the_probe_alone_is_refused_with_the_reason():
    settings, found = TrainSettings(time="1h", epochs=0), WeightsChoice(("weights",), "")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--epochs 0 keeps the linear probe.*shards are streamed: give --epochs 1"):
        _open_tune_record(settings, found, None, in_memory=False)


def test_class_weights__of_streamed_images_are_those_of_any_others(data):
    uneven = replace(data, images=replace(data.images, labels=np.repeat([0, 1, 2], [60, 20, 10])))
    objective = Supervised.__new__(Supervised)
    found = []
    objective.set_class_weights = found.append  # type: ignore[method-assign]
    set_class_weights(TrainSettings(class_weights="auto"), uneven, objective)
    train = uneven.images.labels[uneven.split_indices("train")]
    counts = np.bincount(train)
    assert found[0].tolist() == pytest.approx((len(train) / (3 * counts)).tolist())


def test_folds__of_streamed_images_test_each_once_and_train_in_runs(data):
    tested = np.zeros(90, dtype=int)
    for number in range(1, 4):
        split = make_split(data.images, fold=f"{number}/3")
        tested += split.parts == "test"
        train = split.indices("train")
        assert data.images.stream is not None
        order = train[StreamOrder(data.images.stream.take(train), 0)[np.arange(len(train))]]
        assert sorted(order.tolist()) == train.tolist()
        assert set(data.images.labels[split.indices("test")]) == {0, 1, 2}
    assert (tested == 1).all()


def test_group_by__copies_is_refused_where_nobody_has_looked_at_the_images(data):
    with pytest.raises(UserError, match=r"--group-by duplicates compares all images.*paucal check"):
        make_split(data.images, group_by="duplicates")
    assert make_split(data.images, group_by=r"/(\d+)").counts()["train"] > 0
