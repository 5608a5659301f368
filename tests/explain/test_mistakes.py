"""The most confident mistakes are drawn with the attribution of the answer and of the label."""

from pathlib import Path

import pytest
import torch

from paucal.backbones.spec import BackboneSpec
from paucal.data.sources.opening import open_images
from paucal.evaluation.deployed import Card, Deployed, Preprocessing
from paucal.evaluation.predictions import Predictions
from paucal.verbs.explaining import mistakes


def test_mistakes__are_explained_for_both_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_images("digits")
    spec = BackboneSpec("vit_mini", 10, image_size=(16, 16), arguments={"depth": 1})
    fed = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = Deployed(spec.build().model.eval(), Card(spec, tuple(images.classes), fed), torch.device("cpu"))
    labels = torch.from_numpy(images.labels[:3]).long()
    shares = torch.full((3, 10), 0.01)
    answers = (labels + torch.tensor([1, 0, 2])) % 10  # the second is right
    shares[torch.arange(3), answers] = torch.tensor([0.7, 0.9, 0.8])
    drawn = []
    monkeypatch.setattr(mistakes, "mistakes_attribution_figure", lambda found, method: drawn.extend(found))
    monkeypatch.setattr(mistakes, "save_figure", lambda path, figure: None)
    mistakes.draw_mistakes(tmp_path, Predictions(torch.arange(3), shares.log(), labels), images, model)
    assert [one.shares[0] for one in drawn] == pytest.approx([0.8 / 0.89, 0.7 / 0.79])
    classes = images.classes
    assert drawn[0].classes == (classes[int(answers[2])], classes[int(labels[2])])
    assert all(one.maps.shape[0] == 2 and not torch.equal(one.maps[0], one.maps[1]) for one in drawn)
