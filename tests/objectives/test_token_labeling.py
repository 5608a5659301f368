"""Token labeling as an objective: on LV-ViT, which classifies its tokens, and on any other backbone."""

from dataclasses import replace

import pytest
import torch
from torchvision.ops import roi_align

from paucal.backbones import BackboneSpec
from paucal.data.maps.reader import list_map_classes
from paucal.losses.token_labeling import TokenLabelingReading, draw_mix_box
from paucal.objectives import DrLoc, Supervised, TokenLabeling, TokenLabelingOptions
from paucal.objectives.token_labeling import swap_boxes
from paucal.types import Batch, Progress

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
MODELS = {
    "lvvit_t": {**SMALL, "stem_width": 8},
    "vit_tiny_patch16_224": SMALL,
    "test_resnet": {},
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 16,
        "depths": (1, 1, 1, 1),
        "num_heads": (1, 2, 2, 2),
        "window_size": 4,
    },
}
NOW = Progress(3, 10, 5, 3)
each = pytest.mark.parametrize("name", MODELS)


def objective(name, classes=6, terms=None, **options):
    torch.manual_seed(0)
    backbone = BackboneSpec(name, classes, image_size=(64, 64), arguments=MODELS[name]).build()
    extra = {}
    if terms:
        extra = {"drloc": DrLoc.from_preset("paper", [backbone.dim], [backbone.grid], n_pairs=4)}
    return TokenLabeling(backbone, TokenLabelingOptions(**options), extra)


def batch(count=4, classes=6):
    generator = torch.Generator().manual_seed(1)
    indices = torch.rand(count, classes, 3, 3, generator=generator).argsort(1)[:, :2]
    named, slots = list_map_classes(indices)
    values = torch.randn(count, 2, 3, 3, generator=generator) * 4
    return Batch(
        torch.arange(count),
        [torch.randn(count, 3, 64, 64, generator=generator)],
        torch.arange(count) % classes,
        [torch.eye(2, 3).expand(count, 2, 3)],
        {"values": values, "slots": slots, "classes": named},
    )


@each
def test_losses__are_class_and_tokens_and_reach_every_parameter(name):
    model = objective(name, terms=True).train()
    losses = model(batch(), NOW)
    assert set(losses.values) == {"class", "tokens", "drloc"}
    losses.total.backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without


def test_lvvit__has_no_second_classifier_and_deploys_its_own():
    model = objective("lvvit_t")
    assert model.aux_head is None
    assert "aux_head.weight" in model.deployable().state_dict()
    other = objective("vit_tiny_patch16_224")
    assert other.aux_head is not None
    assert not any(key.startswith("aux") for key in other.deployable().state_dict())


@each
def test_losses__without_mixing_equal_a_dense_computation(name):
    model = objective(name, mix_token=False, label_smoothing=0.2).eval()
    data = batch()
    with torch.no_grad():
        losses = model(data, NOW)
        features = model.backbone(data.views[0], dense=model.dense)
        tokens = features.token_logits
        if tokens is None:
            tokens = model.aux_head(features.grids[0].flatten(2).transpose(1, 2))
    maps = data.label_maps
    numbers = maps["classes"][:, :, None, None].expand(-1, -1, 3, 3).gather(1, maps["slots"])
    full = torch.zeros(4, 6, 3, 3).scatter_(1, numbers, maps["values"])
    boxes = torch.tensor([[0.0, 0.0, 3.0, 3.0]]).repeat(4, 1)
    boxes = torch.cat((torch.arange(4.0)[:, None], boxes), 1)
    for key, logits, size in (("class", features.logits[:, None], (1, 1)), ("tokens", tokens, model.backbone.grid)):
        pooled = roi_align(full, boxes, size, aligned=True).flatten(2).transpose(1, 2)
        target = pooled.softmax(-1) * 0.8 + 0.2 / 6
        expected = -(target * logits.log_softmax(-1)).sum(-1).mean()
        torch.testing.assert_close(losses.values[key], expected, atol=1e-5, rtol=1e-5)


def test_losses__of_a_teacher_with_more_classes_reach_all_of_the_runs_own():
    model, data = objective("test_resnet", mix_token=False, label_smoothing=0.0).eval(), batch(classes=9)
    assert data.label_maps is not None
    assert (data.label_maps["classes"] >= 6).any()
    data.label_maps["teacher_classes"] = torch.full((4,), 9)
    data.labels = data.labels % 6
    with torch.no_grad():
        losses = model(data, NOW)
        logits = model.backbone(data.views[0]).logits
    full = torch.zeros(4, 9, 3, 3)
    named = data.label_maps["classes"][torch.arange(4)[:, None, None, None], data.label_maps["slots"]]
    full.scatter_(1, named, data.label_maps["values"])
    everything = full.mean((2, 3)).softmax(-1)
    expected = everything[:, :6] + everything[:, 6:].sum(-1, keepdim=True) / 6
    torch.testing.assert_close(losses.values["class"], -(expected * logits.log_softmax(-1)).sum(-1).mean())


def test_paste__exchanges_along_cells_and_back():
    images, box = torch.randn(4, 3, 64, 64), (0, 1, 2, 2)
    mixed = swap_boxes(images, box, (2, 2))
    assert torch.equal(mixed[0, :, :, 32:], images[3, :, :, 32:])
    assert torch.equal(mixed[0, :, :, :32], images[0, :, :, :32])
    assert torch.equal(swap_boxes(mixed, box, (2, 2)), images)


@each
def test_mixing__draws_the_same_box_for_the_same_step(name):
    model = objective(name).train()
    first, again, later = (model._draw_box(Progress(0, 1, 1, step)) for step in (5, 5, 6))
    assert first == again
    boxes = {model._draw_box(Progress(0, 1, 1, step)) for step in range(50)}
    assert len(boxes) > 10 or model.backbone.grid == (2, 2)
    assert later in boxes


def test_box__has_the_programs_size():
    generator = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(4000):
        top, left, bottom, right = draw_mix_box((14, 14), generator)
        assert 0 <= top <= bottom <= 14
        assert 0 <= left <= right <= 14
        kept.append(1 - (bottom - top) * (right - left) / 196)
    assert sum(kept) / len(kept) == pytest.approx(0.729, abs=0.02)  # as measured with the program
    assert min(kept) > 0.26


def test_tokens__of_an_exchanged_box_meet_their_own_labels():
    """Training on two images whose cells each show their class drives the tokens' loss down with mixing on."""
    torch.manual_seed(0)
    model = objective("lvvit_t", classes=2, label_smoothing=0.0).train()
    views = torch.stack([torch.full((3, 64, 64), value) for value in (-1.0, 1.0)])
    labels = torch.tensor([0, 1])
    maps = {
        "values": torch.full((2, 1, 1, 1), 20.0),
        "slots": torch.zeros(2, 1, 1, 1, dtype=torch.long),
        "classes": labels[:, None],
    }
    data = Batch(torch.arange(2), [views], labels, [torch.eye(2, 3).expand(2, 2, 3)], maps)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(60):
        losses = model(data, Progress(step, 60, 60, step))
        losses.total.backward()
        optimizer.step()
        optimizer.zero_grad()
    # Were the predictions not put back, a box's tokens would be taught the partner's label: ln 2 there at best.
    mixed = [model(data, Progress(0, 1, 1, step)).values["tokens"].item() for step in range(20)]
    assert max(mixed) < 0.1


def test_relabel__is_the_class_target_alone():
    reading = TokenLabelingReading(dense_weight=0.0)
    model = objective("test_resnet", reading=reading, mix_token=False).train()
    assert model.aux_head is None
    losses = model(batch(), NOW)
    assert set(losses.values) == {"class"}


def test_truth__changes_the_class_target_only():
    plain = objective("test_resnet", mix_token=False).eval()
    with_truth = objective("test_resnet", mix_token=False, reading=TokenLabelingReading(use_truth=True)).eval()
    with torch.no_grad():
        a, b = plain(batch(), NOW), with_truth(batch(), NOW)
    assert a.values["class"] != b.values["class"]
    assert a.values["tokens"] == b.values["tokens"]


def test_like_program__looks_labels_up_across():
    data = batch()
    theta = torch.tensor([[0.5, 0.0, -0.5], [0.0, 1.0, 0.0]]).expand(4, 2, 3)  # the left half
    data.geometry = [theta]
    ours, theirs = (objective("lvvit_t", like_authors_code=which, mix_token=False) for which in (False, True))
    right, wrong = ours._targets(data)[1].dense(), theirs._targets(data)[1].dense()
    data.geometry = [torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, -0.5]]).expand(4, 2, 3)]  # the upper half
    across = ours._targets(data)[1].dense()
    scale = 0.9 + 0.1 / 6
    torch.testing.assert_close(wrong, (across - 0.1 / 6) / 0.9 * scale + 0.1 / 6)
    assert not torch.allclose(right, across)
    torch.testing.assert_close(wrong.sum(-1), torch.full(wrong.shape[:2], 1 + 0.1 / 6))
    torch.testing.assert_close(right.sum(-1), torch.ones(right.shape[:2]))


def test_batch__of_one_image_works():
    for name in MODELS:
        model = objective(name).eval()
        assert torch.isfinite(model(batch(1), NOW).total)


def test_batch__without_maps_is_refused():
    data = batch()
    data.label_maps = None
    with pytest.raises(ValueError, match="needs a batch with label_maps and geometry"):
        objective("test_resnet")(data, NOW)


def test_maps_of_central_squares__are_put_in_their_place_except_by_the_program():
    data = batch()
    data.label_maps["covered"] = torch.tensor([[0.5, 1.0]]).expand(4, 2)
    model = objective("vit_tiny_patch16_224")
    known = model._targets(data)[1].coverage.unflatten(1, model.backbone.grid)
    quarter = model.backbone.grid[1] // 4
    assert (known[..., quarter:-quarter] == 1).all()
    assert (known[..., :quarter] == 0).all()
    assert (known[..., -quarter:] == 0).all()
    stored = objective("vit_tiny_patch16_224", like_authors_code=True)._targets(data)
    assert stored[0].coverage is stored[1].coverage is None
    # The squares of the program are stretched over the image: its second column is our first.
    geometry = torch.tensor([[0.5, 0, 0], [0, 1, 0]]).expand(4, 2, 3)
    inner = objective("vit_tiny_patch16_224")._targets(replace(data, geometry=[geometry]))[1]
    plain = objective("vit_tiny_patch16_224")._targets(replace(batch(), geometry=[torch.eye(2, 3).expand(4, 2, 3)]))[1]
    torch.testing.assert_close(inner.dense(), plain.dense())


def test_names__of_its_own_losses_are_no_names_of_terms():
    backbone = BackboneSpec("vit_tiny_patch16_224", 3, image_size=(64, 64), arguments=SMALL).build()
    term = DrLoc.from_preset("paper", [backbone.dim], [backbone.grid], n_pairs=4)
    for name in ("class", "tokens"):
        with pytest.raises(ValueError, match=f"cannot be named '{name}'"):
            TokenLabeling(backbone, terms={name: term})
    assert Supervised(backbone, {"tokens": term}).names == ("tokens",)
    with pytest.raises(ValueError, match="cannot be named 'class'"):
        Supervised(backbone, {"class": term})


@pytest.mark.parametrize("seed", [2**31, 2**32, 2**62])  # 2**62 is the largest that --seed takes
def test_boxes__of_large_seeds_are_drawn_and_differ_from_those_of_small_ones(seed):
    steps = [Progress(step, 10, 5, step) for step in range(8)]
    made = [objective("vit_tiny_patch16_224", seed=value) for value in (seed, seed - 1, 0, seed)]
    drawn = [[one._draw_box(now) for now in steps] for one in made]
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1]
    assert drawn[0] != drawn[2]
