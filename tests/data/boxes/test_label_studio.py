"""Label Studio JSON: regions of all kinds, brushed masks, labels of whole images, and damaged files."""

import json
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

import paucal
from data.boxes.written import region, short_task, task, write_cvat, write_label_studio
from paucal.data.boxes.annotations import AnnotationSet
from paucal.data.boxes.label_studio import decode_brush, encode_brush
from paucal.data.boxes.opening import read_boxes
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import open_boxed_images
from paucal.types import UserError
from tasks.detection.made import pictures

SIZE = pictures(1)[0][0].size


def packed(values: list[int], runs: list[tuple[int, list[int]]]) -> list[int]:
    """Return bytes of rle-pack with counts of 4 bits or 8 bits: blocks of a repeat count and value, or of values."""
    bits = f"{len(values):032b}" + f"{7:05b}" + "".join(f"{length - 1:04b}" for length in (4, 8, 12, 16))
    for repeats, block in runs:
        count = repeats or len(block)
        place = next(place for place, length in enumerate((4, 8, 12, 16)) if count <= 1 << length)
        bits += f"{int(repeats > 0)}{place:02b}{count - 1:0{(4, 8, 12, 16)[place]}b}"
        bits += "".join(f"{value:08b}" for value in block)
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]


def brush(mask: np.ndarray) -> list[int]:
    """Return the bytes of a brushed mask: runs of equal values, and a block of single values at the end."""
    values = np.repeat(mask.astype(np.uint8).ravel() * 255, 4).tolist()
    runs: list[tuple[int, list[int]]] = []
    place = 0
    while place < len(values) - 8:
        end = place
        while end < len(values) - 8 and values[end] == values[place]:
            end += 1
        runs.append((end - place, [values[place]]))
        place = end
    return packed(values, [*runs, (0, values[-8:])])


def write(root: Path, tasks: object) -> Path:
    root.mkdir(exist_ok=True)
    (root / "export.json").write_text(tasks if isinstance(tasks, str) else json.dumps(tasks))
    for n, (image, _) in enumerate(pictures(4)):
        image.save(root / f"{n}.png")
    return root


def require_read(described: AnnotationSet) -> None:
    assert len(described.images) == 6
    for one in described.images:
        rows = pictures(6)[int(Path(one.key).stem)][1]
        assert one.names == [row[0] for row in rows]
        assert [pytest.approx(row[1:], abs=1e-3) for row in rows] == one.boxes


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("kind", ["rectangle", "polygon"])
@pytest.mark.parametrize(
    "name",
    ["/data/upload/1/{}.png", "/data/upload/1/1a2b3c4d-{}.png", "/data/local-files/?d=sets/{}.png", "s3://b/{}.png"],
)
def test_regions__are_read_in_pixels_whatever_images_are_called(tmp_path: Path, kind: str, short: bool, name: str):
    described = read_boxes(write_label_studio(tmp_path / "set", kind, name, short))[1]
    require_read(described)
    assert described.notes == ()
    one = described.images[0]
    assert all(one.outlines) == (kind == "polygon")
    if kind == "polygon":
        left, top, right, bottom = one.boxes[0]
        assert one.outlines[0][0] == pytest.approx([left, top, right, top, right, bottom, left, bottom])


@pytest.mark.parametrize("prefix", ["/data/local-files/?d=my%20sets/", "/data/upload/3/1a2b3c4d-", "s3://b/"])
def test_addresses__may_be_percent_encoded(tmp_path: Path, prefix: str):
    names = ["a b.png", "50%.png", "c#d.png", "e%20f.png"]
    rows = pictures(1)[0][1]
    tasks = [task(prefix + quote(name), [region(rows[0], SIZE)]) for name in names]
    root = write(tmp_path / "set", tasks)
    for n, name in enumerate(names):
        (root / f"{n}.png").rename(root / name)
    assert [image.key for image in read_boxes(root)[1].images] == names


def test_regions__of_all_kinds(tmp_path: Path):
    width, height = SIZE
    mask = np.zeros((height, width), dtype=bool)
    mask[3:9, 5:20] = mask[20, 30] = True
    stated = {"original_width": width, "original_height": height}
    ellipse = {"x": 50, "y": 50, "radiusX": 10, "radiusY": 20, "rotation": 0, "ellipselabels": ["b"]}
    plain = {"x": 10, "y": 10, "width": 10, "height": 20, "labels": ["a", "c"]}
    results = [
        {**stated, "type": "brushlabels", "value": {"format": "rle", "rle": brush(mask), "brushlabels": ["a"]}},
        {**stated, "type": "ellipselabels", "value": ellipse},
        {"type": "labels", "value": plain},  # without the size of the image
        {**stated, "type": "keypointlabels", "value": {"x": 1, "y": 2, "width": 0.5, "keypointlabels": ["k"]}},
        {"type": "rating", "value": {"rating": 3}},
        {"type": "choices", "value": {"choices": ["day"]}},
    ]
    described = read_boxes(write(tmp_path / "set", [task("0.png", results)]))[1]
    (one,) = described.images
    assert one.names == ["a", "b", "a", "c"]
    assert one.boxes[0] == (5, 3, 31, 21)
    assert one.boxes[1] == pytest.approx((0.4 * width, 0.3 * height, 0.6 * width, 0.7 * height))
    assert one.boxes[2] == one.boxes[3] == pytest.approx((0.1 * width, 0.1 * height, 0.2 * width, 0.3 * height))
    assert one.tags == ["day"]
    assert sum(one.outlines[0]["counts"][1::2]) == mask.sum()
    assert "2 shapes without a box were not read: keypointlabels 1, rating 1" in described.notes


def test_brushed_masks__are_unpacked_or_refused():
    mask = np.random.default_rng(0).random((7, 13)) > 0.6
    assert (decode_brush(brush(mask), mask.shape) == mask).all()
    for values, size, words in (
        (brush(mask), (7, 12), "the size of the mask is not 12x7 pixels"),
        (brush(mask)[:-4], (7, 13), "ends too early"),
        ([*brush(mask)[:8], 256], (7, 13), "values that are not bytes"),
        (packed([0] * 364, [(400, [0])]), (7, 13), "more values than pixels"),
        (brush(mask), (1 << 20, 1 << 20), "too large"),
    ):
        with pytest.raises(ValueError, match=words):
            decode_brush(values, size)


def test_brushed_masks__take_few_bytes_for_a_pixel():
    mask = np.ones((1000, 1000), dtype=bool)
    values = encode_brush(mask)
    tracemalloc.start()
    assert decode_brush(values, mask.shape).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * mask.size


def test_brushed_masks__without_a_pixel_are_counted(tmp_path: Path):
    width, height = SIZE
    stated = {"original_width": width, "original_height": height, "type": "brushlabels"}
    rle = encode_brush(np.zeros((height, width), dtype=bool))
    results = [
        {**stated, "value": {"format": "rle", "rle": rle, "brushlabels": ["a"]}},
        region(("b", 1, 2, 3, 4), SIZE),
    ]
    described = read_boxes(write(tmp_path / "set", [task("0.png", results)]))[1]
    assert described.images[0].names == ["b"]
    assert "1 shape without a box was not read: brushlabels 1" in described.notes


def test_annotations__of_several_people_and_of_nobody(tmp_path: Path):
    rows = [(name, 5, 5, 20, 20) for name in "abcd"]
    results = [[region(row, SIZE)] for row in rows]
    several = {**task("0.png", results[0]), "annotations": [{"result": one} for one in results]}
    truth = {**task("1.png", results[0]), "annotations": [{"result": results[1], "ground_truth": True}, {"result": []}]}
    nobody = {**task("2.png", []), "annotations": []}
    cancelled = task("3.png", results[0], was_cancelled=True)
    described = read_boxes(write(tmp_path / "set", [several, truth, nobody, cancelled]))[1]
    assert {one.key: one.names for one in described.images} == {"0.png": ["d"], "1.png": ["b"]}
    assert set(described.notes) == {
        "2 images with several annotations: the ground truth was read, or else the last annotation",
        "2 images without an annotation left out",
        "2 images without an annotation are left out",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rotation": 30}, "that is rotated, and rotated boxes are not read"),
        ({"x": "far"}, "whose numbers cannot be read: correct the numbers"),
        ({"points": [[1, 2], [3]]}, "whose numbers cannot be read"),
        ({"rectanglelabels": [" "]}, "without a label"),
        ({"rle": [1, 2, 3]}, r"whose mask cannot be read \(the mask ends too early\)"),
        ({"x": float("nan")}, "whose corners nan .* are not finite numbers"),
        ({"points": [[0, 0], [1e9, 0], [1e9, 1e9]]}, "far outside the image"),
    ],
)
def test_damaged_regions__are_refused_in_a_sentence(tmp_path: Path, change: dict, words: str):
    one = region(("a", 5, 5, 20, 20), SIZE)
    one["value"] |= change
    with pytest.raises(UserError, match=words) as problem:
        open_boxed_images(write(tmp_path / "set", [task("0.png", [one])]))
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"data": {"image": "0.png"}, "annotations": [{"result": [{"value": {"choices": ["a"]}}', "cannot be read"),
        ('[{"data": {"x": 1}, "annotations": [{"result": [{"value": {"choices": ["a"]}}]}]}]', "task without an image"),
        ('["data", {"annotations": [], "data": {"choices": []}}, "choices"]', "is not a list of tasks"),
        ('[{"data": {"image": "../9.png"}, "annotations": [{"result": [{"value": {"choices": ["a"]}}]}]}]', "no such"),
    ],
)
def test_damaged_files__are_refused_in_a_sentence(tmp_path: Path, text: str, words: str):
    Image.new("RGB", (9, 9)).save(tmp_path / "9.png")
    with pytest.raises(UserError, match=words):
        read_boxes(write(tmp_path / "set", text))


def choices(names: list[str]) -> list[dict]:
    return [{"type": "choices", "value": {"choices": names}}] if names else []


def test_choices__are_the_classes_of_whole_images(tmp_path: Path):
    root = write(tmp_path / "set", [task(f"{n}.png", choices([["cat"], ["dog"], ["cat"], []][n])) for n in range(4)])
    for place in (root, root / "export.json"):
        images = open_images(place)
        assert images.classes == ("cat", "dog")
        assert [Path(key).name for key in images.keys] == ["0.png", "1.png", "2.png"]
        assert images.labels.tolist() == [0, 1, 0]
        assert "1 image without a label was left out" in images.notes
    assert paucal.check(root).checked.images.classes == ("cat", "dog")
    with pytest.raises(UserError, match=r"labels of whole images .*, and no boxes: `paucal train` learns classes"):
        open_boxed_images(root)


def test_several_choices__are_several_labels_also_in_the_short_form(tmp_path: Path):
    rows = [["cat", "wet"], ["dog"], [], ["wet"]]
    root = write(tmp_path / "long", [task(f"{n}.png", choices(rows[n])) for n in range(4)])
    short = [{"image": f"/data/upload/{n}.png", "choice": {"choices": rows[n]}, "id": n} for n in range(4)]
    for place in (root, write(tmp_path / "short", short)):
        images = open_images(place)
        assert [images.classes_of(n) for n in range(4)] == rows
    single = [{"image": f"/data/upload/{n}.png", "choice": "ab"[n % 2], "id": n} for n in range(4)]
    assert open_images(write(tmp_path / "single", single)).labels.tolist() == [0, 1, 0, 1]


def test_tags_of_cvat__are_classes_where_there_is_no_box(tmp_path: Path):
    root = write_cvat(tmp_path / "set", subset=True)
    with pytest.raises(UserError, match="`paucal detect` learns boxes"):
        open_images(root)
    rows = "".join(
        f'<image id="{n}" name="{n}.png" subset="{"Train" if n < 4 else "Test"}" width="96" height="64">'
        f'<tag label="{"ab"[n % 2]}"/></image>'
        for n in range(6)
    )
    (root / "annotations.xml").write_text(f"<annotations><version>1.1</version>{rows}</annotations>")
    images = open_images(root)
    assert (images.classes, images.labels.tolist()) == (("a", "b"), [0, 1, 0, 1, 0, 1])
    assert list(images.declared_splits) == ["train"] * 4 + ["test"] * 2
    assert not any(one.name == "bad-boxes" for one in paucal.check(root).findings)


def test_short_tasks__are_made_as_label_studio_makes_them():
    row = short_task("a.png", [region(("a", 1, 2, 3, 4), SIZE)])
    assert row["label"][0]["rectanglelabels"] == ["a"]
    assert row["label"][0]["original_width"] == SIZE[0]
