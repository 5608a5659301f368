"""The detector: what it answers, that all of it learns, and that negatives teach."""

import pytest
import torch
from torchvision.ops import box_iou

from paucal.backbones import BackboneSpec
from paucal.objectives.finetuning import FineTuning
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.model import DetectorCard
from paucal.tasks.detection.network.cascade import CascadeHeads
from paucal.tasks.detection.network.detector import Detector, build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.objective import DetectionObjective
from paucal.types import Progress, UserError

START = Progress(0, 10, 10)
TINY = {"channels": 16, "head_dim": 16, "regions": 32, "proposals": 64, "anchor": 4}
SPECS = {
    "convolutional": BackboneSpec("test_resnet", 0, image_size=(128, 128)),
    "stages": BackboneSpec(
        "swin_tiny_patch4_window7_224",
        0,
        image_size=(128, 128),
        arguments={"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
    ),
    "single grid": BackboneSpec(
        "vit_tiny_patch16_224", 0, image_size=(128, 128), arguments={"depth": 1, "patch_size": 16}
    ),
}
every_backbone = pytest.mark.parametrize("kind", SPECS)
both = pytest.mark.parametrize("cascade", [False, True], ids=["plain", "cascade"])


def made(kind: str = "convolutional", cascade: bool = False, finest: int = 8) -> Detector:
    torch.manual_seed(0)
    return build_detector(SPECS[kind], 3, DetectorOptions(**TINY, finest=finest, cascade=cascade))


def batch(boxes: bool = True) -> BoxBatch:
    corners = torch.tensor([[10.0, 20.0, 50.0, 70.0], [60.0, 10.0, 90.0, 40.0]])
    none = torch.zeros(0, 4)
    return BoxBatch(
        ids=torch.arange(2),
        images=torch.randn(2, 3, 96, 100, generator=torch.Generator().manual_seed(1)),
        sizes=torch.tensor([[96, 100], [80, 90]]),
        boxes=[corners if boxes else none, none],
        labels=[
            torch.tensor([0, 2]) if boxes else torch.zeros(0, dtype=torch.int64),
            torch.zeros(0, dtype=torch.int64),
        ],
        original_sizes=torch.tensor([[192, 200], [80, 90]]),
    )


@every_backbone
@both
def test_detector__answers_within_the_images_with_labels_from_0(kind: str, cascade: bool):
    detector, seen = made(kind, cascade).eval(), batch()
    with torch.no_grad():
        answers = detector(seen.images, seen.image_sizes())
    assert len(answers) == 2
    for answer, (height, width) in zip(answers, seen.image_sizes(), strict=True):
        boxes = answer["boxes"]
        assert len(boxes) > 0
        assert boxes.shape[1] == 4
        assert bool((boxes >= 0).all())
        assert bool((boxes <= torch.tensor([width, height, width, height])).all())
        assert set(answer["labels"].tolist()) <= {0, 1, 2}
        assert answer["scores"].tolist() == sorted(answer["scores"].tolist(), reverse=True)


@every_backbone
@both
def test_losses__reach_every_parameter_that_may_learn(kind: str, cascade: bool):
    objective = DetectionObjective(made(kind, cascade), FineTuning())
    objective.train()
    torch.manual_seed(1)
    terms = objective(batch(), START)
    terms.total.backward()
    names = {"object", "proposal"} | (
        {f"{what}_{n}" for what in ("class", "box") for n in (1, 2, 3)} if cascade else {"class", "box"}
    )
    assert set(terms.values) == names
    assert [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None] == []


@both
def test_images_without_objects__teach_that_there_is_none(cascade: bool):
    objective = DetectionObjective(made(cascade=cascade), FineTuning()).train()
    values = objective(batch(boxes=False), START).values
    assert all(bool(torch.isfinite(value)) for value in values.values())
    assert all(float(value.detach()) == 0 for name, value in values.items() if name.startswith(("box", "proposal")))
    assert float(values["object"].detach()) > 0.1


def test_a_few_steps__find_the_object_of_one_image():
    objective = DetectionObjective(made("stages"), FineTuning()).train()
    optimizer, seen = torch.optim.AdamW(objective.parameters(), lr=3e-3), batch()
    for step in range(70):
        torch.manual_seed(step)
        optimizer.zero_grad()
        objective(seen, START).total.backward()
        optimizer.step()
    with torch.no_grad():
        answer = objective.eval().detector(seen.images, seen.image_sizes())[0]
    best = answer["boxes"][answer["labels"] == 0][:1]
    assert float(box_iou(best, seen.boxes[0][:1])) > 0.5


def test_labels__are_moved_by_one_for_torchvision_and_back():
    detector = made().train()
    told: list[int] = []
    heads = detector.heads
    heads.register_forward_hook(  # type: ignore[union-attr]
        lambda module, given, made: told.extend(given[3][0]["labels"].tolist())
    )
    seen = batch()
    detector.losses(seen.images, seen.image_sizes(), seen.boxes, seen.labels)
    assert told == [1, 3]


def test_padding__to_whole_cells_changes_no_answer():
    detector, seen = made().eval(), batch()
    wide = torch.zeros(2, 3, 96, 128)
    wide[:, :, :96, :100] = seen.images
    with torch.no_grad():
        narrow, padded = (detector(images, seen.image_sizes())[0] for images in (seen.images, wide))
    torch.testing.assert_close(narrow["boxes"], padded["boxes"])
    torch.testing.assert_close(narrow["scores"], padded["scores"])


def test_finer_maps__are_left_out_and_cost_nothing():
    coarse, fine = made(finest=16), made(finest=4)
    assert (coarse.stages.strides, fine.stages.strides) == ((16, 32), (4, 8, 16, 32))
    assert len(list(coarse.pyramid.parameters())) < len(list(fine.pyramid.parameters()))


def test_frozen_stages__stay_as_they_are_in_training():
    objective = DetectionObjective(made(), FineTuning(freeze=1, eval_mode=True)).train()
    model = objective.backbones()[0].model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective(batch(), START).total.backward()
    assert all(p.grad is None for name, p in model.named_parameters() if name.startswith(("conv1", "layer1")))
    assert all(p.grad is not None for name, p in model.named_parameters() if name.startswith("layer2"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_backbone__may_have_a_rate_of_its_own():
    objective = DetectionObjective(made(), FineTuning(), backbone_lr=0.25)
    labels = {objective.parameter_group(name) for name, _ in objective.named_parameters()}
    scales = objective.group_scales(START)
    assert labels == {"main", "backbone"}
    assert (scales["backbone"].lr, scales["backbone"].weight_decay) == (0.25, 1.0)


def test_cascade__counts_later_heads_less():
    heads = made(cascade=True).heads
    assert isinstance(heads, CascadeHeads)
    weights = heads.loss_weights()
    assert [weights[f"class_{n}"] for n in (1, 2, 3)] == [1, 0.5, 0.25]
    assert [weights[f"box_{n}"] for n in (1, 2, 3)] == [1, 0.5, 0.25]
    coders = [stage.box_coder.weights for stage in heads.stages]  # type: ignore[union-attr]
    assert coders == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


def test_card__brings_the_same_detector_back():
    from paucal.models.preprocessing import Preprocessing

    fed = Preprocessing((128, 128), 1.0, "bilinear", (0.5,) * 3, (0.5,) * 3, resize="letterbox")
    options = DetectorOptions(**TINY, finest=8, cascade=True)
    card = DetectorCard(
        SPECS["convolutional"], ("a", "b", "c"), fed, options=options, category_ids=(3, 7, 9), resize_to=(100, 128)
    )
    again = DetectorCard.from_dict(card.to_dict())
    assert again == card
    again.build().load_state_dict(made(cascade=True).state_dict())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": None}, "for classification, expected detection"),
        ({"classes": ["a"]}, "name the 3 classes"),
        ({"classes": "abc"}, "name the 3 classes"),
        ({"category_ids": [1, 2, "3"]}, "an integer in 'category_ids' for each class"),
        ({"category_ids": []}, "an integer in 'category_ids' for each class"),
        ({"category_ids": [1, 2]}, "name the 2 classes"),
        ({"resize_to": [1, 10**9]}, "'resize_to' in model.json is"),
        ({"options": {"channels": 10**9}}, "lacks the option 'anchor' of its detector"),
        ({"options": {**DetectorOptions().to_dict(), "head_dim": 10**12}}, "invalid detector option head_dim"),
        ({"options": {**DetectorOptions().to_dict(), "cascade": "yes"}}, "invalid detector option cascade"),
    ],
)
def test_card__of_a_stranger_is_refused_in_one_sentence(changes: dict, words: str):
    from paucal.models.preprocessing import Preprocessing

    fed = Preprocessing((128, 128), 1.0, "bilinear", (0.5,) * 3, (0.5,) * 3)
    card = DetectorCard(SPECS["convolutional"], ("a", "b", "c"), fed, category_ids=(1, 2, 3))
    with pytest.raises(UserError, match=words):
        DetectorCard.from_dict({**card.to_dict(), **changes})
