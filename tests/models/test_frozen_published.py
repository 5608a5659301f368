"""Published weights of a frozen backbone are those that timm itself loads into the same network, at any image size."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from paucal.backbones import BackboneSpec, names
from paucal.backbones.families.common.positions import resample_positions
from paucal.backbones.weights.checkpoints import WeightsPreprocessing
from paucal.models import published
from paucal.models.card import ModelCard
from paucal.models.named import open_frozen
from paucal.models.preprocessing import Preprocessing
from paucal.runs import RunFolder
from paucal.types import UserError

# Fewer blocks than those of the name: what is adapted to the image size is in each.
SIZES = [
    ("vit_tiny_patch16_224", 96, {"depth": 1}),
    ("deit_tiny_patch16_224", 96, {"depth": 1}),
    ("swin_tiny_patch4_window7_224", 112, {"depths": (1, 1, 2, 1), "embed_dim": 24, "num_heads": (1, 1, 2, 4)}),
    ("eva02_tiny_patch14_224", 112, {"depth": 1}),
    ("resnet18", 96, {"layers": (1, 1, 1, 1), "channels": (16, 16, 32, 32)}),
]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let timm find the "published" weights of a model in a file, without a network."""
    create = timm.create_model

    def store(name: str, arguments: dict[str, object]) -> Path:
        file = tmp_path / f"{name}.safetensors"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            save_file(create(name, **arguments).state_dict(), file)
        for module in (names, published):
            monkeypatch.setattr(module, "require_reachable", lambda config: None)
        monkeypatch.setattr(published, "find_packaged_weights", lambda name: None)

        def from_file(name: str, pretrained: bool = False, **options: object):
            overlay = {"pretrained_cfg_overlay": {"file": str(file)}} if pretrained else {}
            return create(name, pretrained=pretrained, **overlay, **arguments, **options)

        monkeypatch.setattr(timm, "create_model", from_file)
        return file

    return store


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # in how timm resizes the tables of a Swin
@pytest.mark.parametrize(("name", "side", "arguments"), SIZES, ids=[name for name, *_ in SIZES])
def test_published_weights__are_those_that_timm_loads(stored, name: str, side: int, arguments: dict[str, object]):
    stored(name, arguments)
    found = open_frozen(name, pretrained=True, image_size=[side])
    expected = found.spec.build().model.state_dict()  # timm adapts the weights to the image size
    assert found.spec.pretrained
    assert found.backbone.model.state_dict().keys() == expected.keys()
    for entry, value in found.backbone.model.state_dict().items():
        torch.testing.assert_close(value, expected[entry], atol=1e-6, rtol=0, msg=entry)


def store_oblong(folder: Path) -> tuple[Path, ModelCard]:
    """Store a run whose model has 2 x 8 positions: as many as a square of 4 x 4."""
    spec = BackboneSpec("vit_tiny_patch16_224", 2, image_size=(32, 128), arguments={"depth": 1, "patch_size": 16})
    card = ModelCard(spec, ("ant", "bee"), Preprocessing.from_image_input((32, 128), WeightsPreprocessing()))
    run = RunFolder(folder)
    folder.mkdir()
    run.config.touch()
    run.write_json(run.card.name, card.to_dict())
    save_file({name: value.contiguous() for name, value in spec.build().model.state_dict().items()}, run.weights)
    return run.weights, card


def test_file_of_a_run__has_the_sides_and_arguments_of_the_run(tmp_path: Path):
    file, card = store_oblong(tmp_path / "run")
    state = load_file(file)
    found = open_frozen(str(file))
    assert (found.spec.image_size, found.spec.arguments) == ((32, 128), card.backbone.arguments)
    assert torch.equal(found.backbone.model.state_dict()["pos_embed"], state["pos_embed"])
    taller = open_frozen(str(file), image_size=[64, 128])
    expected = resample_positions(state["pos_embed"], (2, 8), (4, 8), 1, antialias=True)
    torch.testing.assert_close(taller.backbone.model.state_dict()["pos_embed"], expected)


@pytest.mark.parametrize("size", [None, [32, 64], [64, 128]])
def test_file__of_oblong_positions_that_cannot_be_resized_is_refused(tmp_path: Path, size):
    model = timm.create_model("vit_tiny_patch16_224", img_size=(32, 64), num_classes=0)
    save_file(model.state_dict(), tmp_path / "elsewhere.safetensors")
    with pytest.raises(UserError, match=r"position embeddings that cannot be resized to .* grid is not square"):
        open_frozen(str(tmp_path / "elsewhere.safetensors"), model="vit_tiny_patch16_224", image_size=size)


def test_file__of_oblong_positions_opens_at_its_own_size(tmp_path: Path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=(128, 256), num_classes=0)
    save_file(model.state_dict(), tmp_path / "elsewhere.safetensors")
    found = open_frozen(str(tmp_path / "elsewhere.safetensors"), model="vit_tiny_patch16_224", image_size=[128, 256])
    assert torch.equal(found.backbone.model.state_dict()["pos_embed"], model.pos_embed)
