"""`--init coco`: the layers of torchvision's detectors, from made files with the entries of the published ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.image_list import ImageList

from paucal.cli.main import main
from paucal.runner.console import SilentConsole
from paucal.runs import RunFolder
from paucal.tasks.detection.assembly import assemble, detector_backbone
from paucal.tasks.detection.job import DetectionJob
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.published import (
    MOBILENET_SETTINGS,
    PUBLISHED,
    RESNET_SETTINGS,
    PublishedDetector,
    adopt_published_settings,
    load_published,
)
from paucal.tasks.detection.settings import DetectSettings, detector_options
from paucal.types import UserError
from tasks.detection.made import write_coco

MOBILE = PUBLISHED[-1]
BUILDERS = {
    MOBILE.title: detection.fasterrcnn_mobilenet_v3_large_320_fpn,
    PUBLISHED[0].title: detection.maskrcnn_resnet50_fpn_v2,
    PUBLISHED[1].title: detection.fasterrcnn_resnet50_fpn_v2,
}
CATEGORIES = MOBILE.weights.meta["categories"]


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch, and no network."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))

    def refuse(*_, **__):
        raise OSError("no network here")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def built() -> dict[str, nn.Module]:
    """torchvision's detectors with random weights, by their titles."""
    return {}


@pytest.fixture
def published_file(built: dict[str, nn.Module]) -> Callable[[PublishedDetector], nn.Module]:
    """Return a function that stores a detector with random weights where the published one would be cached."""

    def store(published: PublishedDetector) -> nn.Module:
        if published.title not in built:
            torch.manual_seed(3)
            built[published.title] = BUILDERS[published.title](weights=None, weights_backbone=None).eval()
            for module in built[published.title].modules():
                if hasattr(module, "running_var"):
                    module.eps = 1e-5  # that of the frozen norms, with which the published MobileNet was trained
        model = built[published.title]
        published.path.parent.mkdir(parents=True, exist_ok=True)
        # The published MobileNet has frozen norms, which do not count batches.
        torch.save({name: value for name, value in model.state_dict().items() if "tracked" not in name}, published.path)
        return model

    return store


def ours(published, classes: list[str]):
    sizes = {"img_size": [128], "regions": 512, "proposals": 2000}
    settings = DetectSettings(data="x", init="coco", **sizes, **published.settings)
    spec, _ = detector_backbone(settings)
    detector = build_detector(spec, len(classes), detector_options(settings)).eval()
    return detector, load_published(detector, settings, classes, SilentConsole().progress)


@pytest.mark.parametrize(
    "published", [MOBILE, *(pytest.param(p, marks=pytest.mark.slow) for p in PUBLISHED[:2])], ids=lambda p: p.title
)
def test_detector_with_the_published_weights__answers_as_torchvision_s(published_file, published):
    """With COCO's own classes maps, anchors, proposals, scores, boxes and masks are those of torchvision's network."""
    theirs = published_file(published)
    detector, report = ours(published, CATEGORIES[1:])
    assert report.share == 1
    assert "BSD-3-Clause" in report.source
    images, size = torch.rand(1, 3, 96, 128), [(96, 128)]
    regions = [torch.tensor([[3.0, 4, 60, 80], [30, 20, 120, 90], [0, 0, 128, 96], [70, 10, 90, 40]])]
    heads, own = theirs.roi_heads, detector.heads
    with torch.no_grad():
        maps = {str(level): grid for level, grid in enumerate(detector.stages(images))}
        mine, expected = detector.pyramid(maps), theirs.backbone(images)
        assert mine.keys() == expected.keys()
        pairs = [(mine[name], expected[name]) for name in expected]
        outputs = zip(detector.proposals.head([*mine.values()]), theirs.rpn.head([*expected.values()]), strict=True)
        pairs += [pair for ours_of, theirs_of in outputs for pair in zip(ours_of, theirs_of, strict=True)]
        padded = ImageList(images, size)
        anchors = [rpn.anchor_generator(padded, [*mine.values()])[0] for rpn in (detector.proposals, theirs.rpn)]
        logits, deltas = own.predict(mine, regions, size)
        answers = heads.box_predictor(heads.box_head(heads.box_roi_pool(expected, regions, size)))
        named = [place for place, name in enumerate(CATEGORIES) if name != "N/A"]  # several classes have this name
        pairs += [(logits[:, named], answers[0][:, named])]
        pairs += [(deltas.view(4, 91, 4)[:, named], answers[1].view(4, 91, 4)[:, named])]
        if own.has_mask():
            cells = heads.mask_head(heads.mask_roi_pool(expected, regions, size))
            pairs += [(own.mask_logits(mine, regions, size)[:, named], heads.mask_predictor(cells)[:, named])]
    assert torch.equal(*anchors)
    assert len(pairs) >= 11
    for mine_of, theirs_of in pairs:
        assert mine_of.std() > 0
        assert torch.allclose(mine_of, theirs_of, rtol=1e-4, atol=1e-5 * float(theirs_of.abs().max()))


def test_classes__are_replaced_and_those_of_coco_keep_their_weights(published_file):
    theirs = published_file(MOBILE).state_dict()
    detector, report = ours(MOBILE, ["gearwheel", "Dog"])
    row = CATEGORIES.index("dog")
    scores, boxes = detector.heads.box_predictor.cls_score, detector.heads.box_predictor.bbox_pred
    published = theirs["roi_heads.box_predictor.cls_score.weight"]
    assert torch.equal(scores.weight[0], published[0])
    assert torch.equal(scores.weight[2], published[row])
    assert not (scores.weight[1] == published).all(1).any()
    of_boxes = theirs["roi_heads.box_predictor.bbox_pred.weight"].view(91, 4, -1)
    assert torch.allclose(boxes.weight.view(3, 4, -1)[1], of_boxes[1:].mean(0), atol=1e-6)
    assert torch.equal(boxes.weight.view(3, 4, -1)[2], of_boxes[row])
    assert "those of Dog from COCO" in report.classifier


def test_run__starts_from_the_detector_and_is_opened_again(published_file, tmp_path: Path):
    published_file(MOBILE)
    data, run = write_coco(tmp_path / "set", 10).parent, tmp_path / "run"
    words = ["detect", str(data), "--init", "coco", "--model", MOBILENET_SETTINGS["model"], "--img-size", "64"]
    flags = ["--workers", "0", "--device", "cpu", "--output", str(run), "--batch-size", "2", "--regions", "16"]
    flags += ["--steps", "1", "--average", "0"]
    assert main([*words, *flags]) == 0
    stored = RunFolder(run)
    assert stored.settings["pyramid_norm"] == "none"
    assert stored.settings["maps"] == "last-blocks"
    assert "torchvision's Faster R-CNN with MobileNetV3-Large 320 FPN" in stored.read_json("init.json")["source"]
    assert main(["predict", str(run), str(data / "0.png"), "--output", str(tmp_path / "found.csv")]) == 0


def test_without_the_file_and_a_network__says_what_to_copy_where(tmp_path: Path):
    data = write_coco(tmp_path / "set", 6).parent
    settings = DetectSettings(data=str(data), init="coco", model=MOBILENET_SETTINGS["model"], steps=2, device="cpu")
    with pytest.raises(UserError, match=r"74 MB, BSD-3-Clause.*no network here.*copy https://.*907ea3f9\.pth to"):
        assemble(settings, {}, SilentConsole().progress)


def test_damaged_file__is_refused(published_file):
    published_file(MOBILE)
    state = torch.load(MOBILE.path, weights_only=True)
    del state["rpn.head.cls_logits.weight"]
    torch.save(state, MOBILE.path)
    with pytest.raises(UserError, match=r"or is damaged \(proposals\.head\.cls_logits\.weight"):
        ours(MOBILE, ["cat"])


def test_layers__follow_from_the_published_detector():
    """Masks take Mask R-CNN where objects have outlines, and other layers are refused."""
    settings, origin = adopt_published_settings(
        DetectSettings(data="x", init="coco"), {"init": "flag"}, has_outlines=True
    )
    assert (settings.masks, settings.mask_norm, settings.model) == ("on", "batch", RESNET_SETTINGS["model"])
    assert origin["head"] == "auto: as in Mask R-CNN with ResNet-50 FPN v2"
    assert adopt_published_settings(DetectSettings(data="x", init="coco"), {}, has_outlines=False)[0].masks == "off"
    with pytest.raises(UserError, match="--pyramid-channels is 64"):
        adopt_published_settings(DetectSettings(pyramid_channels=64), {"pyramid_channels": "flag"}, has_outlines=False)
    with pytest.raises(UserError, match="--model is resnet18"):
        adopt_published_settings(DetectSettings(model="resnet18"), {"model": "flag"}, has_outlines=False)


def test_other_verbs__say_that_it_is_a_detector(tmp_path: Path, capsys):
    data = write_coco(tmp_path / "set", 6).parent
    assert main(["pretrain", str(data), "--init", "coco", "--output", str(tmp_path / "run")]) == 2
    assert "only 'paucal detect' can start from" in " ".join(capsys.readouterr().err.split())


def test_job__keeps_the_name_as_it_is(tmp_path: Path):
    data = write_coco(tmp_path / "set", 6).parent
    assert DetectionJob().with_absolute_paths(DetectSettings(data=str(data), init="coco")).init == "coco"
