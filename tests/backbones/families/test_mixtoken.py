"""MixToken's exchange, against a loop over cells and against the published program."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from paucal.backbones.families.lvvit import LvVit, exchange_box, exchange_tokens, inside_box
from vectors import fill, recorded

RECORD = json.loads((recorded.MODELS.parent / "mixtoken_model.json").read_text())
BOXES = {"box[1, 0, 3, 2]": (1, 0, 3, 2), "box[0, 1, 4, 3]": (0, 1, 4, 3)}


def naive_exchange(cells: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    out, (top, left, bottom, right) = cells.clone(), box
    for b in range(cells.shape[0]):
        for row in range(top, bottom):
            for column in range(left, right):
                out[b, :, row, column] = cells[cells.shape[0] - 1 - b, :, row, column]
    return out


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("box", [(1, 0, 3, 2), (0, 2, 3, 5), (2, 2, 2, 4), (0, 0, 3, 5)])
def test_exchange_box__swaps_the_cells_inside_with_the_flipped_batch(
    count: int, box: tuple[int, int, int, int]
) -> None:
    cells = torch.randn(count, 2, 3, 5)
    expected = naive_exchange(cells, box)
    assert torch.equal(exchange_box(cells, box), expected)
    assert torch.equal(exchange_box(cells, torch.tensor(box)), expected)
    tokens = exchange_tokens(cells.flatten(2).mT, box, (3, 5))
    assert torch.equal(tokens, expected.flatten(2).mT)
    assert torch.equal(exchange_box(expected, box), cells), "its own inverse"


@pytest.mark.parametrize("box", [(-1, 0, 1, 1), (2, 0, 1, 1), (0, 0, 4, 1), (0, 0, 1, 6)])
def test_inside_box__refuses_what_is_not_on_the_grid(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(
        ValueError, match=r"box .* is not inside a grid of 3x5 cells; it must be \(top, left, bottom, right\)"
    ):
        inside_box(box, (3, 5))


def tiny(rule: str) -> LvVit:
    model = LvVit(img_size=64, num_classes=7, embed_dim=32, depth=2, num_heads=2, skip_lam=2.0)
    state = model.state_dict()
    listed = RECORD["runs"]["mix"]["expected"]["state_dict"]
    assert {name: list(value.shape) for name, value in state.items()} == {name: shape for name, shape, _ in listed}
    filled = {
        name: torch.from_numpy(fill.fill(name, value.shape, rule)) if value.is_floating_point() else value
        for name, value in state.items()
    }
    model.load_state_dict(filled)
    return model.train()


def token_label_loss(class_logits: Tensor, token_logits: Tensor, box: tuple[int, int, int, int], rule: str) -> Tensor:
    target = torch.from_numpy(fill.tensor("tl.target", (4, 7, 18), 3.0, rule)).softmax(1)
    kept = 1 - (box[2] - box[0]) * (box[3] - box[1]) / 16
    of_class = kept * target[..., 1] + (1 - kept) * target[..., 1].flip(0)
    of_tokens = target[..., 2:].mT
    dense = -(of_tokens * token_logits.log_softmax(-1)).sum(-1).mean()
    return dense - (of_class * class_logits.log_softmax(-1)).sum(-1).mean()


def require_close(actual: Tensor, expected: dict, looser: float) -> None:
    assert list(actual.shape) == expected["shape"]
    values = actual.detach().flatten().numpy()
    np.testing.assert_allclose(values, expected["values"], rtol=0, atol=recorded.VALUE * looser)


@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize("box", list(BOXES))
def test_forward_dense__trains_as_the_published_program_with_the_same_box(box: str, rule: str) -> None:
    expected, looser = RECORD["runs"][rule]["expected"][box], recorded.LOOSER[rule]
    model = tiny(rule)
    images = torch.from_numpy(fill.image(64, 64, 4, rule))
    class_logits, mixed = model.dense_logits(model.forward_features(images, mix_box=BOXES[box]))
    token_logits = exchange_tokens(mixed, BOXES[box], (4, 4))
    require_close(class_logits, expected["class_logits"], looser)
    require_close(token_logits, expected["token_logits"], looser)
    mean = model.get_buffer("patch_embed.bn1.running_mean")
    np.testing.assert_allclose(mean[:8], expected["running_mean_bn1"], atol=1e-6 * looser)
    loss = token_label_loss(class_logits, token_logits, BOXES[box], rule)
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-5)
    loss.backward()
    for name, norm in expected["gradient_l2"].items():
        # Batch norm's gradients cancel in the sums of angles.
        tolerance = 1e-3 if rule == "sine" and "conv1" in name else 1e-4
        assert model.get_parameter(name).grad.norm().item() == pytest.approx(norm, rel=tolerance), name


def test_forward_features__mixes_before_positions_are_added() -> None:
    model = tiny("mix").eval()
    images = torch.from_numpy(fill.image(64, 64, 4, "mix"))
    with torch.no_grad():
        embedded, _ = model.embed(images, (0, 0, 4, 4))
        plain, _ = model.embed(images)
        positions = model.pos_embed
        torch.testing.assert_close(embedded[:, 1:] - positions[:, 1:], (plain[:, 1:] - positions[:, 1:]).flip(0))
        assert torch.equal(embedded[:, 0], plain[:, 0])
        assert torch.equal(model.forward_features(images, (1, 1, 1, 3)), model.forward_features(images))
