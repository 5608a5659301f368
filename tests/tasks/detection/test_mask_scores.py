"""Average precision of masks: known values, COCO's own program on written files, and the matches behind intervals."""

import json
from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster

from paucal.metrics.intervals import Bootstrap
from paucal.metrics.measures import value_of
from paucal.tasks.detection.detections import Detections, coco_json_text
from paucal.tasks.detection.evaluation import average_precision, coco_scores, match_detections
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.masks import RunLengths, pack_mask, unpack_mask
from paucal.tasks.detection.pictures import COLOURS, draw_detections
from paucal.types import UserError

SIZE = (120, 160)
Disc = tuple[int, float, int, int, int, float]  # label, score, x, y, radius, share of its height that is seen
NAMES = ("plain", "map", "rare", "never")
PARTS = (("ap", 0), ("ap50", 1), ("ap75", 2), ("ap_small", 3), ("ap_medium", 4), ("recall", 8))


def disc(x: float, y: float, radius: float, share: float = 1.0) -> np.ndarray:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    inside = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    return inside & (rows <= y + radius * (2 * share - 1))


def boxed(masks: list[np.ndarray]) -> np.ndarray:
    """Return the box of the whole disc, so that boxes and masks of cut discs overlap differently."""
    corners = []
    for mask in masks:
        rows, columns = np.nonzero(mask)
        corners.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return np.asarray(corners, np.float32).reshape(-1, 4)


def runs(masks: list[np.ndarray]) -> tuple[RunLengths, ...]:
    return tuple(pack_mask(mask) for mask in masks)


def sets(images: int = 25, seed: int = 0, crowds: float = 0.0) -> tuple[list[Detections], list[Boxes]]:
    generator = np.random.default_rng(seed)
    answers, objects = [], []
    for _ in range(images):
        count = int(generator.integers(0, 5))
        places = np.stack([generator.integers(25, 135, count), generator.integers(25, 95, count)], 1)
        radii, labels = generator.integers(8, 24, count), generator.integers(0, 3, count)
        masks = [disc(*place, radius) for place, radius in zip(places, radii, strict=True)]
        objects.append(Boxes(boxed(masks), labels, generator.random(count) < crowds, SIZE, runs(masks)))
        shares = generator.uniform(0.5, 1, count)
        found = [
            disc(*(place + generator.integers(-3, 4, 2)), radius, share)
            for place, radius, share in zip(places, radii, shares, strict=True)
        ]
        found += [disc(*generator.integers(30, 90, 2), 10) for _ in range(2)]
        # The boxes of the whole discs: masks are cut, and overlap less than they.
        whole = np.concatenate([objects[-1].corners, boxed(found[count:])])
        scores = np.sort(generator.random(count + 2).astype(np.float32).round(4))[::-1].copy()
        order = generator.permutation(count + 2)
        named = np.concatenate([labels, generator.integers(0, 3, 2)])
        answers.append(Detections(whole[order], scores, named[order], runs([found[place] for place in order])))
    return answers, objects


def truth_file(path: Path, objects: list[Boxes]) -> Path:
    annotations = []
    for image, one in enumerate(objects, 1):
        assert one.masks is not None
        for place, mask in enumerate(one.masks):
            left, top, right, bottom = one.corners[place].tolist()
            annotations.append(
                {
                    **{"id": len(annotations) + 1, "image_id": image, "category_id": int(one.labels[place]) + 1},
                    **{"bbox": [left, top, right - left, bottom - top], "iscrowd": int(one.crowd[place])},
                    "area": int(unpack_mask(mask).sum()),
                    "segmentation": {"size": [*SIZE], "counts": mask["counts"].decode()},
                }
            )
    images = [
        {"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in range(1, len(objects) + 1)
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


@pytest.mark.parametrize(("seed", "crowds"), [(0, 0.0), (1, 0.3)])
def test_scores__are_those_of_cocos_program_on_written_files(tmp_path: Path, seed: int, crowds: float):
    answers, objects = sets(seed=seed, crowds=crowds)
    ours = coco_scores(answers, objects, 4)
    keys = [f"{number}.png" for number in range(1, len(objects) + 1)]
    written = json.loads(coco_json_text(keys, [SIZE] * len(keys), answers, NAMES, (1, 2, 3, 4)))
    truth = COCO(str(truth_file(tmp_path / "truth.json", objects)))
    for kind, prefix in (("bbox", ""), ("segm", "mask_")):
        # With a box beside a mask the program takes the area of the box for that of the mask.
        left_out = "segmentation" if kind == "bbox" else "bbox"
        rows = [{name: value for name, value in row.items() if name != left_out} for row in written["annotations"]]
        judged = COCOeval_faster(truth, truth.loadRes(rows), iouType=kind)
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
        for name, place in PARTS:
            assert ours[prefix + name] == pytest.approx(float(judged.stats[place]), abs=1e-6), prefix + name
    assert 0.02 < ours["mask_ap"] < ours["ap"] < 1


@pytest.mark.parametrize(("seed", "crowds"), [(0, 0.0), (1, 0.3)])
def test_matches__of_masks_give_the_same_average_precision_and_its_interval(seed: int, crowds: float):
    answers, objects = sets(seed=seed, crowds=crowds)
    theirs, ours = coco_scores(answers, objects, 4), match_detections(answers, objects, 4, masks=True)
    once = np.ones(len(answers))
    assert value_of(average_precision(ours), len(answers)) == pytest.approx(theirs["mask_ap"], abs=1e-5)
    assert value_of(average_precision(ours, slice(0, 1)), len(answers)) == pytest.approx(theirs["mask_ap50"], abs=1e-5)
    for label in range(3):
        curve = ours[label].precisions(once)
        assert curve is not None
        assert curve.mean() == pytest.approx(theirs["mask_per_class"][label], abs=1e-5)
    assert theirs["mask_per_class"][3] is None
    score = Bootstrap(draws=300).interval(average_precision(ours), len(answers))
    assert score.low is not None
    assert score.high is not None
    assert 0 < score.low < theirs["mask_ap"] < score.high < 1


def test_perfect_masks__have_1_and_masks_elsewhere_in_the_box_have_0():
    mask = np.zeros(SIZE, dtype=bool)
    mask[10:50, 10:30] = True
    box, label = np.asarray([[10, 10, 50, 50]], np.float32), np.zeros(1, np.int64)
    objects = [
        Boxes(box, label, np.zeros(1, bool), SIZE, runs([mask])),
        Boxes(box[:0], label[:0], label[:0] > 0, SIZE, ()),
    ]
    nothing = Detections(box[:0], np.zeros(0, np.float32), label[:0], ())
    perfect = coco_scores([Detections(box, np.ones(1, np.float32), label, runs([mask])), nothing], objects, 1)
    beside = coco_scores([Detections(box, np.ones(1, np.float32), label, runs([mask[:, ::-1]])), nothing], objects, 1)
    assert (perfect["ap"], perfect["mask_ap"]) == pytest.approx((1, 1))
    assert (beside["ap"], beside["mask_ap"], beside["mask_recall"]) == pytest.approx((1, 0, 0))
    none = coco_scores([nothing, nothing], objects, 1)
    assert (none["mask_ap"], none["mask_per_class"]) == (0, [0])


def test_boxes_alone__are_judged_without_masks():
    answers, objects = sets(4)
    bare = [Detections(one.boxes, one.scores, one.labels) for one in answers]
    assert not any(name.startswith("mask") for name in coco_scores(bare, objects, 4))
    with pytest.raises(UserError, match="predicts only boxes: train a detector with --masks on"):
        bare[0].mask(0)


def test_found_above__a_score_keeps_the_masks_of_what_is_kept():
    found = next(one for one in sets()[0] if len(one) > 4)
    kept = found.with_min_score(float(found.scores[2]))
    assert kept.masks == (found.masks or ())[: len(kept)]
    assert len(kept) >= 3
    assert np.array_equal(kept.mask(1), unpack_mask(found.masks[1]).astype(bool))  # type: ignore[index]


def test_document__holds_masks_that_cocos_program_reads():
    answers, _ = sets(3)
    written = json.loads(coco_json_text(["a", "b", "c"], [SIZE] * 3, answers, NAMES, (1, 2, 3, 4)))
    rows = iter(written["annotations"])
    for one in answers:
        for mask in one.masks or ():
            row = next(rows)
            told = row["segmentation"]
            assert np.array_equal(
                unpack_mask(RunLengths(size=told["size"], counts=told["counts"].encode())), unpack_mask(mask)
            )
            assert row["area"] == unpack_mask(mask).sum()


def test_pictures__mix_half_a_colour_into_the_pixels_of_a_mask():
    from PIL import Image, ImageColor

    mask = np.zeros(SIZE, dtype=bool)
    mask[60:100, 40:80] = True
    box, label = np.asarray([[20, 50, 100, 110]], np.float32), np.ones(1, np.int64)
    found = Detections(box, np.asarray([0.9], np.float32), label, runs([mask]))
    colour = ImageColor.getrgb(COLOURS[1])
    for size in ((160, 120), (80, 60)):  # (width, height); images may be drawn smaller than they were annotated
        factor = size[0] / SIZE[1]
        nothing = Boxes(box[:0], label[:0], label[:0] > 1, SIZE)
        picture = draw_detections(Image.new("RGB", size, (100, 100, 100)), found, NAMES, nothing)
        inside = picture.getpixel((round(60 * factor), round(80 * factor)))
        assert inside == pytest.approx([(100 + one) / 2 for one in colour], abs=2)
        assert picture.getpixel((round(30 * factor), round(80 * factor))) == (100, 100, 100)
    weak = Detections(box, np.asarray([0.1], np.float32), label, runs([mask]))
    untouched = draw_detections(Image.new("RGB", (160, 120), (100, 100, 100)), weak, NAMES, nothing)
    assert untouched.getpixel((60, 80)) == (100, 100, 100)
