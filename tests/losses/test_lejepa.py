"""The loss of LeJEPA: a naive double loop, what SIGReg tells apart, and what it does not depend on."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paucal.losses.lejepa import lejepa_loss, prediction_loss, sigreg, unit_directions
from paucal.losses.visreg import shape_loss

N, DIM = 512, 16


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def directions(count: int = 256, seed: int = 1, dim: int = DIM) -> torch.Tensor:
    return unit_directions(dim, count, torch.Generator().manual_seed(seed))


def naive_sigreg(embeddings: torch.Tensor, along: torch.Tensor, knots: int = 17, limit: float = 3.0) -> float:
    """The trapezoid rule over the whole line, one direction and one knot after the other."""
    points = [limit * (2 * place / (2 * knots - 2) - 1) for place in range(2 * knots - 1)]
    values = []
    for direction in along.T:
        projected = (embeddings @ direction).tolist()
        heights = []
        for t in points:
            real = sum(math.cos(t * x) for x in projected) / len(projected) - math.exp(-t * t / 2)
            imaginary = sum(math.sin(t * x) for x in projected) / len(projected)
            heights.append(math.exp(-t * t / 2) * (real**2 + imaginary**2))
        step = points[1] - points[0]
        values.append(len(projected) * step * (sum(heights) - (heights[0] + heights[-1]) / 2))
    return sum(values) / len(values)


def test_sigreg__equals_a_naive_loop():
    embeddings, along = drawn(20, 5) * 1.3 + 0.2, directions(7, dim=5)
    assert sigreg(embeddings, along).item() == pytest.approx(naive_sigreg(embeddings, along), rel=1e-4)
    assert sigreg(embeddings, along, 9, 5.0).item() == pytest.approx(naive_sigreg(embeddings, along, 9, 5.0), rel=1e-4)


def test_sigreg__is_small_for_a_standard_normal_sample_only():
    """For N points of it the expected value is the same for every N: the integral of w (1 - exp(-t^2))."""
    expected = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))  # about 1.06 over the whole line
    for n in (256, 1024):
        found = [sigreg(drawn(n, DIM, seed=seed), directions(seed=seed + 100)).item() for seed in range(20)]
        assert sum(found) / len(found) == pytest.approx(expected, rel=0.1)
    normal, line = drawn(N, DIM), torch.zeros(N, DIM)
    line[:, 0] = math.sqrt(DIM) * drawn(N)
    others = {"scaled": 2 * normal, "shrunk": normal / 2, "shifted": normal + 1, "constant": torch.ones(N, DIM)}
    others |= {"zero": torch.zeros(N, DIM), "line": line}
    for name, sample in others.items():
        assert sigreg(sample, directions()).item() > 10 * expected, name


def test_sigreg__does_not_depend_on_the_order_of_images_or_directions():
    embeddings, along = drawn(N, DIM) + 0.3, directions()
    shuffled = sigreg(embeddings.flip(0), along.flip(1))
    torch.testing.assert_close(shuffled, sigreg(embeddings, along))


def test_sigreg__pulls_a_collapsed_sample_apart():
    embeddings = (0.01 * drawn(64, DIM)).requires_grad_()
    sigreg(embeddings, directions()).backward()
    assert embeddings.grad is not None
    assert (embeddings.grad * embeddings.detach()).sum() < 0  # a step along it scales them up


def test_prediction__is_the_mean_square_to_the_centre_of_the_global_views():
    views = drawn(4, 8, 3)
    centre = [[sum(views[v, n, d].item() for v in range(2)) / 2 for d in range(3)] for n in range(8)]
    squares = [(views[v, n, d].item() - centre[n][d]) ** 2 for v in range(4) for n in range(8) for d in range(3)]
    assert prediction_loss(views, 2).item() == pytest.approx(sum(squares) / len(squares), rel=1e-5)
    assert prediction_loss(views).item() < prediction_loss(views, 2).item()  # the mean of all is nearest to all


def test_prediction__sends_gradient_through_both_sides():
    views = drawn(3, 8, 3).requires_grad_()
    prediction_loss(views, 1).backward()
    assert views.grad is not None
    torch.testing.assert_close(views.grad.sum(0), torch.zeros(8, 3))  # no side is held still
    assert views.grad[0].abs().sum() > 0


def test_total__weighs_the_two_parts():
    views, along = list(drawn(2, 32, DIM)), directions()
    found = lejepa_loss(views, along, weight=0.2)
    regular = torch.stack([sigreg(view, along) for view in views]).mean()
    torch.testing.assert_close(found.sigreg, regular)
    torch.testing.assert_close(found.total, 0.2 * regular + 0.8 * prediction_loss(torch.stack(views)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss__is_float32_inside_autocast(dtype):
    views, along = [view.to(dtype) for view in drawn(2, 32, DIM)], directions()
    plain = lejepa_loss([view.float() for view in views], along)
    with torch.autocast("cpu", torch.bfloat16):
        found = lejepa_loss(views, along)
    assert found.total.dtype == torch.float32
    torch.testing.assert_close(found.total, plain.total)


def test_loss__refuses_what_is_no_pair_and_no_share():
    for views, weight in (([drawn(4, DIM)], 0.1), (list(drawn(2, 4, DIM)), 1.5)):
        with pytest.raises(ValueError, match=r"needs at least 2, got 1|weight must be from 0 to 1"):
            lejepa_loss(views, directions(), weight=weight)


PROGRAM = """
import sys, torch, torch.distributed as dist
from paucal.losses.lejepa import sigreg, unit_directions
from paucal.losses.visreg import shape_loss
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meeting", rank=rank, world_size=2)
joint = torch.load(f"{sys.argv[2]}/joint.pt", weights_only=True)
own = joint[rank::2].clone().requires_grad_()
value = globals()[sys.argv[3]](own, unit_directions(16, 64, torch.Generator().manual_seed(5)))
value.backward()
torch.save({"value": value.detach(), "gradient": own.grad / 2}, f"{sys.argv[2]}/{rank}.pt")  # as DDP averages
"""


@pytest.mark.parametrize("loss", [pytest.param(sigreg, marks=pytest.mark.slow), shape_loss])
def test_loss_of_a_batch__two_processes_equal_one(loss, tmp_path: Path):
    joint = (drawn(24, DIM) + 0.5).requires_grad_()
    torch.save(joint.detach(), tmp_path / "joint.pt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [[sys.executable, "-c", PROGRAM, str(rank), str(tmp_path), loss.__name__] for rank in (0, 1)]
    for process in [subprocess.Popen(word, env=environment) for word in words]:
        assert process.wait(120) == 0
    value = loss(joint, unit_directions(DIM, 64, torch.Generator().manual_seed(5)))
    value.backward()
    assert joint.grad is not None
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["value"], value.detach())
        torch.testing.assert_close(found["gradient"], joint.grad[rank::2])
