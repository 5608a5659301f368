"""What a run does otherwise with images that are read as they come."""

from dataclasses import replace

import numpy as np
import pytest

from data.shards.made_sets import Numbered, numbered
from paucal.data.shards.stream import Stream, blocks_of
from paucal.data.splits.split import make_split
from paucal.methods.training_settings import TrainSettings
from paucal.types import UserError
from paucal.verbs.checking.quick import quick_check
from paucal.verbs.run.images import Prepared, pin_data
from paucal.verbs.training.assembly import _rungs
from paucal.verbs.training.balance import balance
from paucal.verbs.training.ladder.start import Choice


@pytest.fixture
def prepared() -> Prepared:
    images = numbered(90)
    images = replace(images, stream=Stream(np.zeros(90, np.int32), blocks_of([90]), 64))
    return Prepared(images, make_split(images))


def test_balanced_sampling__is_refused_with_what_to_use_instead(prepared):
    with pytest.raises(UserError, match=r"--sampling balanced jumps between all shards.*--class-weights auto"):
        balance(TrainSettings(sampling="balanced"), prepared, None)  # type: ignore[arg-type]
    balance(TrainSettings(), prepared, None)  # type: ignore[arg-type]


def test_quick_check__reads_no_image_and_takes_no_shard_for_a_group(prepared, monkeypatch):
    monkeypatch.setattr(Numbered, "source", lambda *_: pytest.fail("an image was read"))
    keys = [f"train-00000{n // 30}.tar/frame12_{n:04d}.png" for n in range(90)]
    found = quick_check(replace(prepared, images=replace(prepared.images, keys=keys)))
    assert [one.name for one in found] == ["not-compared"]


def test_rungs__leave_out_the_probe_whose_features_would_not_fit(monkeypatch):
    settings, found = TrainSettings(time="1h"), Choice(("weights",), "")  # type: ignore[arg-type]
    climbed, at_once = (_rungs(settings, found, None, whole=whole) for whole in (True, False))
    assert climbed is not None
    assert at_once is not None
    assert climbed.candidates == ("weights",)
    assert at_once.candidates == ()


def test_pin_data__leaves_a_url_as_it_is():
    assert pin_data(TrainSettings(data="s3://bucket/set")).data == "s3://bucket/set"
