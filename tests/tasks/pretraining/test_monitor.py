"""Nearest neighbours during pre-training: the number, what is read how often, and what is refused."""

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image

from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.data.stores import FileStore
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.pretraining import monitor
from paucal.tasks.pretraining.monitor import Monitor, open_monitor
from paucal.types import UserError

PREPROCESS = Preprocessing((32, 32), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
CPU = torch.device("cpu")


def small_model():
    return timm.create_model("vit_mini", num_classes=0, embed_dim=32, depth=1, num_heads=2)


def opened(location, **changes) -> Monitor:
    settings = PretrainSettings(monitor=str(location), **{"seed": 0, "workers": 0, "device": "cpu", **changes})
    monitor = open_monitor(settings, PREPROCESS)
    assert monitor is not None
    return monitor


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_model().train()


def write(folder, classes: int = 3, each: int = 12, noise: float = 90.0, seed: int = 0):
    """Noisy pictures whose mean colour depends on the class."""
    rng = np.random.default_rng(seed)
    colours = rng.uniform(80, 170, (classes, 3))
    for label in range(classes):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = colours[label] + rng.normal(0, noise, (32, 32, 3)) + rng.normal(0, 60, 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:02}.png")
    return folder


def expected_share(location, model, seed: int) -> float:
    """The share, from timm's own pooling, a full matrix and a loop over the images asked about."""
    images = open_images(location)
    split = make_split(images, seed, val_fraction=0.0)
    pixels = torch.stack([PREPROCESS.transform()(images.store.read(i))[0] for i in range(len(images))])
    model.eval()
    with torch.no_grad():
        features = F.normalize(model.forward_head(model.forward_features(pixels), pre_logits=True), dim=1)
    model.train()
    bank, asked, right = split.indices("train"), split.indices("test"), []
    for row in asked:
        cosine, nearest = (features[bank] @ features[row]).topk(min(20, len(bank)))
        votes = torch.zeros(len(images.classes), dtype=torch.float64)
        for value, place in zip(cosine, nearest, strict=True):
            votes[images.labels[bank[place]]] += math.exp(value / 0.07)
        right.append(int(votes.argmax()) == images.labels[row])
    return float(np.mean(right))


def test_knn_monitor__equals_a_naive_loop_and_leaves_the_model_alone(tmp_path, model):
    write(tmp_path / "labelled")
    for seed in (0, 5):
        score = opened(tmp_path / "labelled", seed=seed)
        found = score(model, CPU)
        assert found == {"val_knn": pytest.approx(expected_share(tmp_path / "labelled", model, seed))}
        assert 1 / 3 < found["val_knn"] < 1
        assert model.training
        assert score(model, CPU) == found


def test_knn_monitor__reads_each_image_once_and_follows_the_weights(tmp_path, monkeypatch):
    write(tmp_path / "labelled", each=6)
    torch.manual_seed(1)
    model = small_model()
    score = opened(tmp_path / "labelled")
    first = score(model, CPU)
    monkeypatch.setattr(FileStore, "read", lambda self, index: pytest.fail("read again"))
    assert score(model, CPU) == first
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())
    score(model, CPU)
    assert sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()) == hooks
    with torch.no_grad():
        model.norm.weight.zero_()  # all features alike: ties between all images
        model.norm.bias.fill_(1.0)
    assert score(model, CPU)["val_knn"] == pytest.approx(1 / 3)
    with torch.no_grad():
        model.norm.bias.fill_(torch.nan)
    assert math.isnan(score(model, CPU)["val_knn"])


def test_knn_monitor__uses_at_most_so_many_images_chosen_by_the_seed(tmp_path, model, monkeypatch):
    write(tmp_path / "labelled", each=20)
    seen: list[tuple] = []

    def recorded(found, bank, asked, n_classes):
        seen.append((bank.tolist(), asked.tolist()))
        return 0.5

    monkeypatch.setattr(monitor, "_accuracy", recorded)
    for seed in (0, 0, 1):
        opened(tmp_path / "labelled", monitor_images=24, seed=seed)(model, CPU)
    (bank, asked), again, other = seen
    assert (len(bank), len(asked)) == (18, 6)
    assert not set(bank) & set(asked)
    labels = open_images(tmp_path / "labelled").labels
    assert np.bincount(labels[bank]).tolist() == [6, 6, 6]
    assert np.bincount(labels[asked]).tolist() == [2, 2, 2]
    assert again == (bank, asked) != other


def test_knn_monitor__uses_the_parts_that_the_data_has(tmp_path, model, monkeypatch):
    write(tmp_path / "set" / "train", each=5)
    write(tmp_path / "set" / "test", each=2, seed=1)
    seen: list[tuple] = []
    monkeypatch.setattr(monitor, "_accuracy", lambda found, *parts: seen.append(parts) or 0.5)
    opened(tmp_path / "set")(model, CPU)
    declared = np.asarray(open_images(tmp_path / "set").declared_splits)
    assert (declared[seen[0][0]] == "train").all()
    assert (declared[seen[0][1]] == "test").all()
    assert (len(seen[0][0]), len(seen[0][1])) == (15, 6)


def test_knn_monitor__names_an_unreadable_image_or_leaves_it_out(tmp_path, model):
    (write(tmp_path / "set") / "class1" / "03.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"^--monitor: 1 of 36 images cannot be read \(class1/03.png\)"):
        opened(tmp_path / "set")
    score = opened(tmp_path / "set", on_bad_image="skip")
    assert 0 <= score(model, CPU)["val_knn"] <= 1


def test_knn_monitor__refuses_what_cannot_be_judged(tmp_path):
    write(tmp_path / "one", classes=1)
    write(tmp_path / "few", each=1)
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "flat" / "a.png")
    for folder, message in (
        ("one", "only one class"),
        ("few", "has 1 image to"),
        ("flat", ""),
        ("missing", "does not exist"),
    ):
        with pytest.raises(UserError, match="--monitor needs labelled images of two classes or more: .*" + message):
            opened(tmp_path / folder)
    with pytest.raises(UserError, match="--monitor-images is 2; expected at least 4"):
        opened(tmp_path / "few", monitor_images=2)
