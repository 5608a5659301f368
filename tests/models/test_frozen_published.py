"""Published weights of a frozen backbone are those that timm itself loads into the same network, at any image size."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from paucal.backbones import names
from paucal.models import published
from paucal.models.frozen import open_frozen

SIZES = [
    ("vit_tiny_patch16_224", 96),
    ("deit_tiny_patch16_224", 96),
    ("swin_tiny_patch4_window7_224", 112),
    ("eva02_tiny_patch14_224", 112),
    ("resnet18", 96),
]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let timm find the "published" weights of a model in a file, without a network."""
    create = timm.create_model

    def store(name: str) -> Path:
        file = tmp_path / f"{name}.safetensors"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            save_file(create(name).state_dict(), file)
        for module in (names, published):
            monkeypatch.setattr(module, "require_reachable", lambda config: None)
        monkeypatch.setattr(published, "packaged", lambda name: None)

        def from_file(name: str, pretrained: bool = False, **options: object):
            overlay = {"pretrained_cfg_overlay": {"file": str(file)}} if pretrained else {}
            return create(name, pretrained=pretrained, **overlay, **options)

        monkeypatch.setattr(timm, "create_model", from_file)
        return file

    return store


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # in how timm resizes the tables of a Swin
@pytest.mark.parametrize(("name", "side"), SIZES)
def test_published_weights__are_those_that_timm_loads(stored, name: str, side: int):
    stored(name)
    found = open_frozen(name, pretrained=True, image_size=[side])
    expected = found.spec.build().model.state_dict()  # timm adapts the weights to the image size
    assert found.spec.pretrained
    assert found.backbone.model.state_dict().keys() == expected.keys()
    for entry, value in found.backbone.model.state_dict().items():
        torch.testing.assert_close(value, expected[entry], atol=1e-6, rtol=0, msg=entry)
