"""`paucal.predict` keeps freed memory where several batches can use it."""

from contextlib import contextmanager

import pytest
import torch
from PIL import Image

import paucal
from paucal.backbones import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.verbs.predict import launch


@pytest.mark.parametrize(("batch_size", "entered"), [(2, 1), (3, 0)])
def test_predict__keeps_memory_for_several_batches(batch_size, entered, monkeypatch):
    calls = []

    @contextmanager
    def kept():
        calls.append(True)
        yield

    monkeypatch.setattr(launch, "keep_freed_memory", kept)
    spec = BackboneSpec("vit_mini", 2, image_size=(16, 16), arguments={"depth": 1})
    fed = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    model = TrainedModel(spec.build().model.eval(), ModelCard(spec, ("cat", "dog"), fed), torch.device("cpu"))
    images = [Image.new("RGB", (20, 20), colour) for colour in ("red", "green", "blue")]
    assert len(paucal.predict(model, images, batch_size=batch_size)) == 3
    assert len(calls) == entered
