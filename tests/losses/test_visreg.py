"""The losses of VISReg and DIET: naive loops, what they tell apart, and what they do not depend on."""

import math
import statistics

import pytest
import torch

from paucal.losses.diet import diet_loss
from paucal.losses.lejepa import unit_directions
from paucal.losses.visreg import shape_loss, visreg_loss


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def directions(count: int, dim: int) -> torch.Tensor:
    return unit_directions(dim, count, torch.Generator().manual_seed(1))


def naive_shape(embeddings: torch.Tensor, along: torch.Tensor) -> float:
    """One coordinate and one direction after the other, in plain Python."""
    columns = embeddings.T.tolist()
    means = statistics.fmean(statistics.fmean(column) ** 2 for column in columns)
    deviations = statistics.fmean((statistics.pstdev(column) - 1) ** 2 for column in columns)
    normal, shapes = statistics.NormalDist(), []
    for direction in along.T:
        projected = (embeddings @ direction).tolist()
        mean, deviation = statistics.fmean(projected), statistics.pstdev(projected)
        for rank, value in enumerate(sorted(projected)):
            expected = normal.inv_cdf((rank + 0.5) / len(projected))
            shapes.append(((value - mean) / deviation - expected) ** 2)
    return means + deviations + statistics.fmean(shapes)


def test_shape__equals_a_naive_loop():
    embeddings, along = 1.4 * drawn(21, 6) + 0.3, directions(5, 6)
    assert shape_loss(embeddings, along).item() == pytest.approx(naive_shape(embeddings, along), rel=1e-4)


def test_shape__is_small_for_a_standard_normal_sample_only():
    along, normal = directions(64, 16), drawn(512, 16)
    least = shape_loss(normal, along).item()
    assert least < 0.05
    line = torch.zeros(512, 16)
    line[:, 0] = 4 * normal[:, 0]
    for name, other in {"scaled": 2 * normal, "shifted": normal + 1, "line": line}.items():
        assert shape_loss(other, along).item() > 2 * least, name
    assert math.isfinite(shape_loss(torch.ones(8, 16), along).item())


def test_shape__pulls_a_collapsed_sample_apart():
    embeddings = (0.01 * drawn(64, 16)).requires_grad_()
    shape_loss(embeddings, directions(32, 16)).backward()
    assert embeddings.grad is not None
    assert (embeddings.grad * embeddings.detach()).sum() < 0  # a step along it scales them up


def test_visreg__adds_its_parts_and_centres_on_all_views():
    views, along = [drawn(12, 5, seed=seed) for seed in range(3)], directions(7, 5)
    found = visreg_loss(views, along, weight=0.1)
    centre = torch.stack(views).mean(0)
    prediction = statistics.fmean(float((view - centre).square().mean()) for view in views)
    shape = statistics.fmean(float(shape_loss(view, along)) for view in views)
    assert found.prediction.item() == pytest.approx(prediction, rel=1e-5)
    assert found.total.item() == pytest.approx(0.9 * prediction + 0.1 * shape, rel=1e-5)
    with pytest.raises(ValueError, match="needs at least 2, got 1"):
        visreg_loss(views[:1], along)


def test_diet__equals_a_naive_loop():
    logits, images, smoothing = [drawn(4, 9, seed=seed) for seed in range(2)], torch.tensor([8, 0, 3, 3]), 0.8
    total = 0.0
    for view in logits:
        for row, image in zip(view.tolist(), images.tolist(), strict=True):
            norm = math.log(sum(math.exp(value) for value in row))
            for place, value in enumerate(row):
                wanted = smoothing / 9 + (1 - smoothing if place == image else 0.0)
                total -= wanted * (value - norm)
    assert diet_loss(logits, images, smoothing).item() == pytest.approx(total / 8, rel=1e-5)
