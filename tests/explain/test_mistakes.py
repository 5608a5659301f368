"""The most confident mistakes are drawn with the attribution of the answer and of the label."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from backbones.reduced import RESNET
from contracts.reduced_models import ONE_EACH, reduced
from paucal.backbones.spec import BackboneSpec
from paucal.data.sources.opening import open_images
from paucal.evaluation.predictions import Predictions
from paucal.explain.attribution import methods
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.tasks.classification import mistakes
from paucal.types import UserError


def test_mistakes__are_explained_for_both_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_images("digits")
    spec = BackboneSpec("vit_mini", 10, image_size=(16, 16), arguments={"depth": 1})
    fed = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = TrainedModel(spec.build().model.eval(), ModelCard(spec, tuple(images.classes), fed), torch.device("cpu"))
    labels = torch.from_numpy(images.labels[:3]).long()
    shares = torch.full((3, 10), 0.01)
    answers = (labels + torch.tensor([1, 0, 2])) % 10  # the second is right
    shares[torch.arange(3), answers] = torch.tensor([0.7, 0.9, 0.8])
    drawn = []
    monkeypatch.setattr(mistakes, "mistakes_attribution_figure", lambda found, method: drawn.extend(found))
    monkeypatch.setattr(mistakes, "save_figure", lambda path, figure: None)
    mistakes.draw_mistakes(tmp_path, Predictions(torch.arange(3), shares.log(), labels), images, model, print)
    assert [one.probabilities[0] for one in drawn] == pytest.approx([0.8 / 0.89, 0.7 / 0.79])
    classes = images.classes
    assert drawn[0].classes == (classes[int(answers[2])], classes[int(labels[2])])
    assert all(one.maps.shape[0] == 2 and not torch.equal(one.maps[0], one.maps[1]) for one in drawn)


ODD = {
    "resnet18": RESNET,
    "test_efficientnet": {},
    "mixer_s32_224": {"img_size": 32, "mlp_ratio": (0.5, 0.5)},
    "xcit_nano_12_p16_224": {"depth": 1},
    "cait_xxs24_224": {"depth": 1, "img_size": 32},
    "mobilevitv2_050": {},
    "efficientvit_b0": {},
}


def deployed(name: str, size: tuple[int, int], classes: tuple[str, ...], **options: Any) -> TrainedModel:
    spec = BackboneSpec(name, len(classes), image_size=size)
    fed = Preprocessing(size, 1.0, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = timm.create_model(name, num_classes=len(classes), **options).eval()
    return TrainedModel(model, ModelCard(spec, classes, fed), torch.device("cpu"))


def predictions_of(labels: Tensor, wrong: int, classes: int = 10) -> Predictions:
    shares = torch.full((len(labels), classes), 0.01)
    answers = labels.clone()
    answers[:wrong] = (answers[:wrong] + 1) % classes
    shares[torch.arange(len(labels)), answers] = 0.8
    return Predictions(torch.arange(len(labels)), shares.log(), labels)


@pytest.mark.parametrize("name", [*ONE_EACH, *ODD])
def test_mistakes__are_drawn_for_every_family(tmp_path: Path, name: str) -> None:
    images = open_images("digits")
    labels = torch.from_numpy(images.labels[:3]).long()
    size = reduced(name).size if name in ONE_EACH else (32, 32)
    options = reduced(name).arguments if name in ONE_EACH else ODD[name]
    model = deployed(name, size, tuple(images.classes), **options)
    said: list[str] = []
    mistakes.draw_mistakes(tmp_path, predictions_of(labels, 1), images, model, said.append)
    assert said == []
    assert (tmp_path / mistakes.FILE_NAME).read_bytes().startswith(b"\x89PNG")


def test_mistakes__that_cannot_be_drawn_fail_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, path = open_images("digits"), tmp_path / mistakes.FILE_NAME
    labels = torch.from_numpy(images.labels[:3]).long()
    model = deployed("vit_mini", (16, 16), tuple(images.classes), depth=1, img_size=16)
    said: list[str] = []
    path.write_bytes(b"of another model")
    mistakes.draw_mistakes(tmp_path, predictions_of(labels, 0), images, model, said.append)
    assert (said, path.exists()) == ([], False)  # no mistakes

    def fails(*arguments: object) -> Tensor:
        raise RuntimeError("out of memory.\nand much more")

    path.write_bytes(b"of another model")
    monkeypatch.setattr(mistakes, "attribute", fails)
    mistakes.draw_mistakes(tmp_path, predictions_of(labels, 3), images, model, said.append)
    assert said == ["note: attribution maps of the mistakes are not drawn (out of memory)."]
    assert not path.exists()


def test_mistakes__take_the_next_method_where_the_best_has_no_grids(tmp_path: Path) -> None:
    model = deployed("vit_mini", (16, 16), ("a", "b"), depth=1, img_size=16)
    tried = []

    def only_the_second(module: object, batch: Tensor, classes: Tensor, method: str) -> Tensor:
        tried.append(method)
        if len(tried) == 1:
            raise UserError("no grids")
        return torch.ones(len(batch), 2, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mistakes, "attribute", only_the_second)
        images = open_images("digits")
        known = predictions_of(torch.tensor([0, 1]), 2, classes=2)
        mistakes.draw_mistakes(tmp_path, known, images, model, pytest.fail)
    ranked = [name for name in methods.ranked_methods(model.module) if name not in methods.CAPTUM_METHODS]
    assert tried == [ranked[0], ranked[1], ranked[1]]
