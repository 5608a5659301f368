"""Trained weights inside packages: known by their checksum, named by their order, never imported."""

import hashlib
import sys
from dataclasses import replace

import pytest
import timm
import torch
from PIL import Image

from paucal.backbones.empty_models import meta_device
from paucal.backbones.weights.checkpoints import timm_preprocessing
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import read_timm
from paucal.models.weights import table
from paucal.models.weights.local import find_packaged_weights, location_of, match_by_order
from paucal.models.weights.table import CANDIDATES, Package, PretrainedWeights
from paucal.types import UserError

MODEL = "resnet10t"


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """Install a package that carries a small model's weights under other names."""
    torch.manual_seed(3)
    model = timm.create_model(MODEL)
    folder = tmp_path / "site" / "small_weights_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('a package of weights is never imported')")
    file = folder / "small.pth"
    torch.save({f"other.{number}": value for number, value in enumerate(model.state_dict().values())}, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    package = Package("small-weights", "small_weights_package", "small.pth", digest, file.stat().st_size)
    name = f"{MODEL}.{timm.get_pretrained_cfg(MODEL).tag}"
    monkeypatch.setattr(table, "CANDIDATES", (PretrainedWeights(name, "MIT", 1, "a test", "cpu", package),))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return model, package, file


def test_package__gives_its_weights_in_the_order_of_the_model(carried):
    model, _, _ = carried
    weights = read_timm(MODEL)
    assert "package small-weights" in weights.source
    assert "small_weights_package" not in sys.modules
    state = model.state_dict()
    assert list(weights.tree) == list(state)
    assert all(torch.equal(weights.tree[name], value) for name, value in state.items())
    assert weights.classes is not None
    assert len(weights.classes) == 1000
    assert find_packaged_weights("resnet18") is None
    assert location_of(table.CANDIDATES[0]) == "package"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_package__that_is_not_what_was_published_is_refused(carried, damage):
    _, _, file = carried
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content[:-5] if damage == "cut" else content)
    with pytest.raises(UserError, match=r"package small-weights are damaged.*--force-reinstall small-weights"):
        read_timm(MODEL)


def test_package__of_another_model_is_refused(carried, monkeypatch):
    _, package, _ = carried
    other = PretrainedWeights(f"resnet18.{timm.get_pretrained_cfg('resnet18').tag}", "MIT", 1, "a test", "cpu", package)
    monkeypatch.setattr(table, "CANDIDATES", (other,))
    with pytest.raises(UserError, match="do not fit resnet18"):
        read_timm("resnet18")


def test_package__that_is_not_installed_is_none(carried):
    _, package, _ = carried
    assert replace(package, module="no_such_module_at_all").path() is None


def test_named_in_order__refuses_other_shapes():
    model = torch.nn.Linear(2, 3)
    found = match_by_order({"a": torch.ones(3, 2), "b": torch.zeros(3)}, model)
    assert list(found) == ["weight", "bias"]
    with pytest.raises(ValueError, match="number, order or shape"):
        match_by_order({"b": torch.zeros(3), "a": torch.ones(3, 2)}, model)
    with pytest.raises(ValueError, match="number, order or shape"):
        match_by_order({"a": torch.ones(3, 2)}, model)


@pytest.mark.parametrize("one", CANDIDATES, ids=lambda one: one.name)
def test_table__says_what_timm_says(one):
    config = timm.get_pretrained_cfg(one.name, allow_unregistered=False)
    assert config.license.lower() == one.licence.lower()
    with meta_device():
        parameters = sum(p.numel() for p in timm.create_model(one.name, pretrained=False).parameters())
    assert one.megabytes == pytest.approx(4 * parameters / 1e6, rel=0.03)


@pytest.mark.parametrize("one", [one for one in CANDIDATES if one.package], ids=lambda one: one.name)
def test_packages__know_a_palace(one):
    from sklearn.datasets import load_sample_image

    if one.package.path() is None:
        pytest.skip(f"the extra weights is not installed ({one.package.distribution})")
    weights = read_timm(one.name)
    model = timm.create_model(one.name).eval()
    model.load_state_dict(weights.tree)
    size = timm.get_pretrained_cfg(one.name).input_size[1:]
    fed = timm_preprocessing(one.name)
    transform = Preprocessing(size, fed.crop_ratio, fed.interpolation, fed.mean, fed.std).transform()
    photo = Image.fromarray(load_sample_image("china.jpg"))
    with torch.inference_mode():
        best = model(transform(photo)[0][None])[0].topk(3).indices.tolist()
    assert "n03877845" in [weights.classes[number] for number in best]  # palace
