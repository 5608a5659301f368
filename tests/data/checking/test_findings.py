"""What is said of a set: each finding where its cause is there, and not where it is not."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from paucal.data.checking.copies import exact_copy_findings
from paucal.data.checking.findings import (
    CheckedSet,
    class_counts_by_split,
    has_misleading,
    label_findings,
    small_image_findings,
    sort_findings,
)
from paucal.data.checking.pictures import image_findings
from paucal.data.checking.related import (
    CANDIDATE_SIDE,
    SimilarPair,
    find_similar_pairs,
    group_by_digest,
    merge_groups,
    suggest_groups,
)
from paucal.data.checking.survey import digest_of, survey_images
from paucal.data.images import ImageSet, reduce_images
from paucal.data.sources.folder import open_folder
from paucal.data.stores import ArrayStore
from paucal.settings.shared import DataSettings
from paucal.verbs.check.launch import with_pixel_format


def made(keys: list[str], labels: list[int], declared: list[str] | None = None, n_classes: int = 2) -> ImageSet:
    pixels = np.arange(len(keys) * 64, dtype=np.int64).reshape(-1, 8, 8).astype(np.uint8)
    return ImageSet(
        name="made",
        location="nowhere",
        classes=tuple("abcdef"[:n_classes]),
        keys=keys,
        labels=np.asarray(labels, dtype=np.int64),
        declared_splits=declared or [""] * len(keys),
        store=ArrayStore(pixels),
    )


def checked(labels: list[int], parts: list[str], declared: bool = True, n_classes: int = 2) -> CheckedSet:
    images = made([f"{number}.png" for number in range(len(labels))], labels, parts, n_classes)
    return CheckedSet(images, np.asarray(parts), declared)


def kinds(findings) -> dict[str, str]:
    return {one.name: one.level for one in findings}


def test_labels__that_train_lacks_mislead():
    found = label_findings(checked([0] * 12 + [1] * 3, ["train"] * 12 + ["test"] * 3))
    assert kinds(found)["untrained-classes"] == "misleads"
    assert "(b)" in next(one.text for one in found if one.name == "untrained-classes")


def test_labels__that_test_lacks_are_warned_of():
    labels, parts = [0] * 12 + [1] * 12 + [0], ["train"] * 24 + ["test"]
    assert kinds(label_findings(checked(labels, parts))) == {"unjudged-classes": "warning"}


@pytest.mark.parametrize(("large", "level"), [(20, None), (40, "note"), (300, "warning")])
def test_imbalance__is_told_by_its_size(large: int, level: str | None):
    found = label_findings(checked([0] * large + [1] * 12, ["train"] * (large + 12)))
    assert kinds(found).get("imbalance") == level


def test_rare_classes__are_counted():
    (rare,) = [one for one in label_findings(checked([0] * 12 + [1] * 9, ["train"] * 21)) if one.name == "rare-classes"]
    assert "(b: 9)" in rare.text


def test_sets__without_a_fault_have_no_finding():
    labels, parts = [0, 1] * 15, ["train"] * 24 + ["test"] * 6
    assert label_findings(checked(labels, parts)) == []


def video(count: int, frames: int, n_classes: int = 2) -> tuple[list[str], list[int]]:
    pairs = [(v, f) for v in range(count) for f in range(frames)]
    return [f"c{v % n_classes}/vid{v:02}_frame{f:03}.jpg" for v, f in pairs], [v % n_classes for v, _ in pairs]


def test_names__of_frames_suggest_groups():
    keys, labels = video(6, 5)
    found = suggest_groups(made(keys, labels))
    assert found is not None
    assert (found.count, found.largest) == (6, 5)
    assert found.names[:6] == ["vid00"] * 5 + ["vid01"]


@pytest.mark.parametrize(
    "keys",
    [
        [f"{'ab'[n % 2]}/{'cat' if n % 2 else 'dog'}_{n:04}.jpg" for n in range(40)],
        [f"{'ab'[n % 2]}/img_2024_{n:04}.jpg" for n in range(40)],
        [f"{'ab'[n % 2]}/{n * 7919:x}.jpg" for n in range(40)],
        [f"{'ab'[n % 2]}/{n}_{n * 31}.jpg" for n in range(40)],
    ],
    ids=["counted", "dated", "hashed", "all different"],
)
def test_names__that_only_count_suggest_nothing(keys: list[str]):
    assert suggest_groups(made(keys, [n % 2 for n in range(40)])) is None


@pytest.mark.parametrize(("declared", "level"), [(True, "misleads"), (False, "warning")])
def test_groups__in_two_parts_are_told(declared: bool, level: str):
    keys, labels = video(6, 5)
    parts = ["test" if number % 5 == 0 else "train" for number in range(30)]
    found = label_findings(CheckedSet(made(keys, labels, parts), np.asarray(parts), declared))
    assert kinds(found)["name-groups"] == level


def test_exact_groups__between_parts_and_labels_mislead_and_others_do_not():
    one = checked([0, 0, 0, 1, 1, 1], ["train", "test", "train", "train", "train", "train"])
    found = exact_copy_findings(one, [[0, 1], [2, 3], [4, 5]])
    assert kinds(found) == {
        "duplicates-across-parts": "misleads",
        "conflicting-labels": "misleads",
        "duplicates": "warning",
    }
    assert [finding.groups for finding in found] == [((0, 1),), ((2, 3),), ((4, 5),)]
    assert has_misleading(found)
    assert not has_misleading(found[2:])


def test_sizes__far_below_the_others_are_named():
    sizes = np.asarray([[224, 300]] * 9 + [[60, 80]])
    (found,) = small_image_findings(sizes, 224, np.arange(10))
    assert found.groups == ((9,),)
    assert small_image_findings(sizes[:9], 224, np.arange(9)) == []


def test_ranked__puts_the_gravest_first():
    found = label_findings(checked([0] * 40 + [1] * 12 + [2], ["train"] * 52 + ["test"], n_classes=3))
    assert [one.level for one in sort_findings(found)][:1] == ["misleads"]


def test_table__counts_classes_by_part():
    one = checked([0, 0, 1], ["train", "test", "train"])
    assert class_counts_by_split(one.images, one.parts) == {"train": {"a": 1, "b": 1}, "test": {"a": 1, "b": 0}}


def photo(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)


def saved(image: Image.Image, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photos, a copy, a near copy, a grey, a CMYK, a turned, a blank and a damaged one."""
    turned = Image.Exif()
    turned[0x0112] = 6
    content = {
        "a/1.png": saved(photo(1), "PNG"),
        "a/2.jpg": saved(photo(2), "JPEG"),
        "b/1copy.png": saved(photo(1), "PNG"),
        "b/2near.jpg": saved(photo(2).resize((120, 90)), "JPEG", quality=70),
        "b/cmyk.jpg": saved(photo(3).convert("CMYK"), "JPEG"),
        "b/deep.png": saved(Image.fromarray((np.arange(6400).reshape(80, 80) * 10).astype(np.uint16)), "PNG"),
        "b/turned.jpg": saved(photo(4), "JPEG", exif=turned),
        "b/blank.png": saved(Image.new("RGB", (50, 50), "white"), "PNG"),
        "b/cut.jpg": saved(photo(5), "JPEG")[:900],
    }
    for key, data in content.items():
        path = tmp_path / "set" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "set"


def test_survey__knows_every_file(folder: Path):
    images = open_folder(folder)
    survey = survey_images(images)
    place = {key: number for number, key in enumerate(images.keys)}
    assert [images.keys[position] for position in survey.unreadable] == ["b/cut.jpg"]
    assert survey.modes[place["b/cmyk.jpg"]] == "CMYK"
    assert survey.modes[place["b/deep.png"]].startswith("I")
    assert survey.sizes[place["b/turned.jpg"]].tolist() == [160, 120]  # upright: height, width
    assert survey.sizes[place["a/2.jpg"]].tolist() == [120, 160]
    assert survey.brightness[place["b/blank.png"]] == pytest.approx(1.0)
    grey = np.asarray(photo(2).convert("L"), dtype=float) / 255
    assert survey.brightness[place["a/2.jpg"]] == pytest.approx(grey.mean(), abs=0.01)
    assert group_by_digest(survey.digests) == [[place["a/1.png"], place["b/1copy.png"]]]
    pairs = find_similar_pairs(survey, images.store)
    assert [(images.keys[p.first], images.keys[p.second]) for p in pairs] == [("a/2.jpg", "b/2near.jpg")]
    parts = np.full(len(images), "train")
    found = kinds(image_findings(CheckedSet(images, parts, False), survey, pairs))
    assert found == {
        "unreadable": "misleads",
        "conflicting-labels": "misleads",
        "alike-with-other-labels": "warning",
        "blank": "warning",
        "modes": "note",
        "deep": "note",
    }


@pytest.mark.parametrize(("side", "found"), [(15, 0), (16, 1)])
def test_near_pairs__of_images_too_small_to_tell_apart_are_left_out(tmp_path: Path, side: int, found: int):
    (tmp_path / "a").mkdir()
    for number, quality in enumerate((95, 80)):
        photo(1).resize((side, side)).save(tmp_path / "a" / f"{number}.jpg", quality=quality)
    images = open_folder(tmp_path)
    assert len(find_similar_pairs(survey_images(images), images.store)) == found


def test_near_pairs__that_features_tell_apart_are_left_out(folder: Path):
    images = open_folder(folder)
    survey = survey_images(images)
    (pair,) = find_similar_pairs(survey, images.store)
    one = CheckedSet(images, np.full(len(images), "train"), False)
    for cosine, there in ((0.95, True), (0.5, False)):
        found = image_findings(one, survey, [SimilarPair(pair.first, pair.second, pair.correlation, cosine)])
        assert ("alike-with-other-labels" in kinds(found)) == there


def test_digest__of_arrays_tells_shapes_apart():
    store = ArrayStore(np.zeros((2, 4, 4), dtype=np.uint8))
    assert digest_of(store, 0) == digest_of(store, 1)
    assert digest_of(store, 0) != digest_of(ArrayStore(np.zeros((1, 2, 8), dtype=np.uint8)), 0)


def test_joined__is_transitive():
    assert merge_groups([[0, 1], [3, 4], [1, 3], [8, 9]]) == [[0, 1, 3, 4], [8, 9]]


def test_near_pairs__of_video_frames_are_those_of_a_plain_loop(tmp_path: Path):
    scenes = [photo(seed).resize((96, 64)) for seed in (1, 2)]
    (tmp_path / "a").mkdir()
    for number in range(24):
        frame = ImageEnhance.Brightness(scenes[number % 2]).enhance(0.8 + 0.02 * number)
        frame.save(tmp_path / "a" / f"{number:02}.jpg", quality=60 + number)
    images = open_folder(tmp_path)
    found = find_similar_pairs(survey_images(images), images.store)
    small = [np.asarray(images.store.read(n).resize((24, 24), Image.Resampling.BOX)).reshape(-1) for n in range(24)]
    for pair in found:
        assert pair.correlation == pytest.approx(np.corrcoef(small[pair.first], small[pair.second])[0, 1], abs=1e-4)
    scenes_of = [list(range(first, 24, 2)) for first in (0, 1)]  # of frames with one hash, the first stands for all
    assert merge_groups([pair.first, pair.second] for pair in found) == scenes_of
    reduced = find_similar_pairs(survey_images(images), reduce_images(images, CANDIDATE_SIDE).store)
    assert [(one.first, one.second) for one in reduced] == [(one.first, one.second) for one in found]


def test_survey__sees_deep_images_as_the_set_reads_them(tmp_path: Path):
    """12 bits of 16 are nearly black, and floats nothing at all, without the range of the set."""
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        (tmp_path / "floats" / name).mkdir(parents=True)
        values = generator.integers(0, 1200, (40, 40)) + 1000
        Image.fromarray(values.astype(np.uint16)).save(tmp_path / "deep" / name / "1.png")
        Image.fromarray(values.astype(np.float32) / 7).save(tmp_path / "floats" / name / "1.tif")
    for kind in ("deep", "floats"):
        images, problems = with_pixel_format(open_folder(tmp_path / kind), DataSettings())
        survey = survey_images(images)
        assert (problems, survey.unreadable) == ([], {})
        assert survey.brightness == pytest.approx([0.5, 0.5], abs=0.1)
        one = CheckedSet(images, np.full(2, "train"), False)
        assert set(kinds(image_findings(one, survey, []))) == {"deep"}
