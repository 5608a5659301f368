"""Features once per weights, transform and images; found again, and never mistaken for others."""

import tracemalloc
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.autograd.profiler import profile

from paucal.backbones import BackboneSpec
from paucal.data.decoded.cache_folder import features_folder
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.stores import ArrayStore
from paucal.evaluation.protocols import classifier
from paucal.evaluation.protocols import features as module
from paucal.evaluation.protocols.features import (
    POOLED,
    Extraction,
    FeatureKind,
    extract,
    images_fingerprint,
)
from paucal.evaluation.protocols.linear_probe import ProbeSettings, augmented_batches
from paucal.models.named import FrozenBackbone, random_backbone, random_baseline
from paucal.models.preprocessing import Preprocessing
from paucal.types import UserError

SPEC = BackboneSpec("vit_mini", 0, image_size=(16, 16), arguments={"depth": 2, "embed_dim": 32})
PREPROCESSING = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
BLOCKS = FeatureKind("blocks", 2)


def subject(seed=0):
    return FrozenBackbone("toy", "random", SPEC, random_backbone(SPEC, seed), PREPROCESSING)


def pictures(count=7, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (count, 20, 24, 3), dtype=np.uint8)
    keys, labels = [f"{i}" for i in range(count)], np.arange(count) % 2
    return ImageSet("toy", "toy", ("a", "b"), keys, labels, [""] * count, ArrayStore(pixels))


def settings(folder, dtype=torch.float32):
    return Extraction(batch_size=3, dtype=dtype, cache=folder)


def forbid(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr(module, "FeatureReader", refuse)


def test_extract__equals_plain_inference_row_by_row():
    images, one = pictures(), subject()
    indices = np.array([5, 0, 3, 6])
    found = extract(one, images, indices, [POOLED, BLOCKS], settings(None))
    transform = PREPROCESSING.transform()
    views = torch.stack([transform(images.store.read(int(index)))[0] for index in indices])
    with torch.no_grad():
        torch.testing.assert_close(found[POOLED], one.backbone(views).pooled)
    assert found[BLOCKS].shape == (4, 64)
    assert not found[POOLED].is_inference()


def test_cache__is_used_the_second_time_and_holds_the_same(tmp_path, monkeypatch):
    images, indices = pictures(), np.arange(7)
    for dtype in (torch.float32, torch.float16):
        with monkeypatch.context() as patch:
            first = extract(subject(), images, indices, [POOLED], settings(tmp_path, dtype))
            forbid(patch)
            again = extract(subject(), images, indices, [POOLED], settings(tmp_path, dtype))
        assert first[POOLED].dtype == dtype
        assert torch.equal(first[POOLED], again[POOLED])
    assert len(list(tmp_path.iterdir())) == 2


def test_cache__a_kind_that_is_missing_is_added(tmp_path):
    images, indices = pictures(), np.arange(7)
    extract(subject(), images, indices, [POOLED], settings(tmp_path))
    found = extract(subject(), images, indices, [POOLED, BLOCKS], settings(tmp_path))
    assert set(found) == {POOLED, BLOCKS}
    assert len(list(tmp_path.iterdir())) == 2


class WideReader:
    """Stands for a backbone whose features take much memory."""

    def __init__(self, backbone, kinds):
        self.kinds = kinds

    def __call__(self, images):
        return [images.new_ones(len(images), WIDTH) for _ in self.kinds]

    def close(self):
        pass


WIDTH, WIDE = 1 << 12, 500  # 8 MB


def most_held(events):
    """Most bytes that tensors held at once while a profiler recorded."""
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return max(accumulate(change for _, change in sorted(changes)))


@pytest.mark.parametrize("cached", [False, True])
def test_extract__holds_every_feature_once(cached, tmp_path, monkeypatch):
    """Counted by allocations of torch and numpy: the memory of the process depends on the machine."""
    monkeypatch.setattr(module, "FeatureReader", WideReader)
    monkeypatch.setattr(classifier, "VALUES_PER_CHUNK", 1 << 16)  # as small beside the features as in large sets
    kept = Extraction(10, cache=tmp_path if cached else None)
    images, indices, one = pictures(WIDE), np.random.default_rng(0).permutation(WIDE), subject()
    tracemalloc.start()
    try:
        with profile(profile_memory=True) as profiler:
            features = extract(one, images, indices, [POOLED], kept)[POOLED]
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    copies = (most_held(profiler.kineto_results.events()) + arrays) / features.nbytes
    assert 1 <= copies < 1.6, f"{copies:.2f} copies of the features at once"


def test_cache__gives_the_images_in_any_order(tmp_path, monkeypatch):
    images, indices = pictures(), np.array([4, 0, 6, 2, 1])
    first = extract(subject(), images, indices, [POOLED], settings(tmp_path))[POOLED]
    forbid(monkeypatch)
    other = np.array([2, 6, 1, 4, 0])
    again = extract(subject(), images, other, [POOLED], settings(tmp_path))[POOLED]
    assert torch.equal(again, first[[3, 2, 4, 0, 1]])
    assert len(list(tmp_path.iterdir())) == 1


def test_cache__tells_other_weights_transforms_and_images_apart(tmp_path):
    images, indices = pictures(), np.arange(7)
    extract(subject(), images, indices, [POOLED], settings(tmp_path))
    changed = replace(subject(), preprocessing=replace(PREPROCESSING, crop_ratio=0.8))
    nudged = subject()
    with torch.no_grad():
        next(nudged.backbone.parameters())[0] += 1e-3
    for number, (one, of, rows) in enumerate(
        [
            (subject(1), images, indices),
            (changed, images, indices),
            (nudged, images, indices),
            (subject(), pictures(seed=1), indices),
            (subject(), images, indices[:6]),
        ]
    ):
        found = extract(one, of, rows, [POOLED], settings(tmp_path))[POOLED]
        assert torch.equal(found, extract(one, of, rows, [POOLED], settings(None))[POOLED])
        assert len(list(tmp_path.iterdir())) == number + 2


def test_cache__a_damaged_file_is_made_anew_and_anothers_is_refused(tmp_path):
    images, indices = pictures(), np.arange(7)
    found = extract(subject(), images, indices, [POOLED], settings(tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert torch.equal(extract(subject(), images, indices, [POOLED], settings(tmp_path))[POOLED], found[POOLED])
    assert file.read_bytes() == whole
    metadata = {"key": file.stem}
    file.write_bytes(safetensors.torch.save({"features": torch.full_like(found[POOLED], torch.nan)}, metadata))
    assert torch.equal(extract(subject(), images, indices, [POOLED], settings(tmp_path))[POOLED], found[POOLED])
    extract(subject(1), images, indices, [POOLED], settings(tmp_path))
    (other,) = (path for path in tmp_path.iterdir() if path != file)
    file.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="contains features of a different model or of different images"):
        extract(subject(), images, indices, [POOLED], settings(tmp_path))


def test_fingerprint__of_files_follows_their_content(tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        Image.new("RGB", (9, 9), (3, 4, 5)).save(tmp_path / label / "1.png")
    images = open_images(tmp_path)
    before = images_fingerprint(images, np.arange(2))
    assert before == images_fingerprint(images, np.arange(2))
    Image.new("RGB", (9, 9), (200, 4, 5)).save(tmp_path / "b" / "1.png")
    assert before != images_fingerprint(images, np.arange(2))


def test_features_folder__is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert features_folder() == tmp_path / "paucal" / "features"


def test_extract__refuses_features_that_are_no_numbers():
    one = subject()
    with torch.no_grad():
        one.backbone.model.get_submodule("norm").weight[0] = torch.nan
    with pytest.raises(UserError, match="the features of 7 of 7 images are not finite numbers"):
        extract(one, pictures(), np.arange(7), [POOLED], settings(None))
    with torch.no_grad():
        one.backbone.model.get_submodule("norm").weight.fill_(1e30)
    with pytest.raises(UserError, match="give --feature-dtype float32"):
        extract(one, pictures(), np.arange(7), [POOLED], settings(None, torch.float16))


def test_floor__is_the_same_architecture_with_weights_of_a_seed():
    one = subject(7)
    floor, again, other = random_baseline(one, 0), random_baseline(one, 0), random_baseline(one, 1)
    assert floor.random
    assert floor.fingerprint == again.fingerprint
    assert len({one.fingerprint, floor.fingerprint, other.fingerprint}) == 3
    assert floor.parameters == one.parameters
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    random_baseline(one, 0)
    assert torch.equal(torch.rand(3), expected)


def test_augmented_batches__are_new_in_every_epoch_and_the_same_again():
    images, one = pictures(), subject()
    rows = np.array([1, 2, 4, 5, 6]), torch.tensor([1, 0, 0, 1, 0])
    batches = augmented_batches(one, images, rows, BLOCKS, ProbeSettings(batch=2, seed=4), settings(None))
    first, again, second = (list(batches(epoch)) for epoch in (0, 0, 1))
    assert [len(labels) for _, labels in first] == [2, 2, 1]
    assert sorted(torch.cat([labels for _, labels in first]).tolist()) == [0, 0, 0, 1, 1]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], second[0][0])
    assert first[0][0].shape == (2, 64)
    assert not first[0][0].is_inference()
