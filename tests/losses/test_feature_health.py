"""Spread, effective rank and entropy: known values, limits, and peers that need a decomposition."""

import math

import pytest
import torch

from paucal.losses.feature_health import effective_rank, entropy, feature_spread


def normal(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def eigenvalues(features: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(torch.cov(features.double().T, correction=0)).clamp(min=0)


def rankme(features: torch.Tensor) -> float:
    values = torch.linalg.svdvals((features - features.mean(0)).double())
    shares = values / values.sum()
    return math.exp(torch.special.entr(shares).sum())


def test_feature_spread__is_one_for_all_directions_alike_and_falls_with_a_common_one():
    features = normal(4000, 32)
    spread = feature_spread(features).item()
    assert spread == pytest.approx(1.0, abs=0.01)
    assert spread <= 1.0
    shifted = feature_spread(features + 10.0).item()
    cosine = 10 * math.sqrt(32) / math.sqrt(32 * 101)  # of a feature and the common direction
    assert shifted == pytest.approx(math.sqrt(1 - cosine**2), abs=0.01)


def test_feature_spread__is_simsiams_measure():
    features = normal(50, 16) * 3 + 0.5
    unit = torch.nn.functional.normalize(features, dim=1)
    expected = unit.std(0, correction=0).mean() * 4
    torch.testing.assert_close(feature_spread(features), expected)
    torch.testing.assert_close(feature_spread(features * 9), expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_measures__equal_features_give_zero(scale):
    features = scale * normal(1, 24).expand(40, 24)
    assert feature_spread(features).item() == pytest.approx(0.0, abs=1e-5)
    assert effective_rank(features).item() == 0.0
    rounding = features * (1 + 1e-7 * normal(40, 24))
    assert effective_rank(rounding).item() == 0.0


def test_measures__zeros_give_zero_and_one_row_says_nothing():
    assert feature_spread(torch.zeros(4, 8)).item() == 0.0
    assert effective_rank(torch.zeros(4, 8)).item() == 0.0
    for measure in (feature_spread, effective_rank):
        assert math.isnan(measure(torch.ones(1, 8)).item())


@pytest.mark.parametrize(("n", "dim"), [(200, 12), (12, 200), (30, 30)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_effective_rank__is_the_participation_ratio_of_the_eigenvalues(n, dim, scale):
    features = normal(n, dim) * torch.linspace(0.1, 2, dim) + 0.3
    values = eigenvalues(features)
    expected = (values.sum() ** 2 / values.square().sum()).float()
    torch.testing.assert_close(effective_rank(scale * features), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_effective_rank__counts_equal_directions(rank):
    directions = torch.linalg.qr(normal(20, rank)).Q
    codes = normal(400, rank, 3)
    codes = torch.linalg.qr(codes - codes.mean(0)).Q  # columns stay centred, and become orthonormal
    assert effective_rank(codes @ directions.T + 5.0).item() == pytest.approx(rank, rel=1e-3)


def test_effective_rank__of_normal_values_and_never_above_rankme():
    features = normal(64, 192)
    assert effective_rank(features).item() == pytest.approx(64 * 192 / (64 + 192), rel=0.03)
    for power in (0.0, 0.5, 1.0, 2.0):
        uneven = normal(80, 30) * torch.arange(1, 31) ** -power
        assert effective_rank(uneven).item() <= rankme(uneven) + 1e-4
    line = normal(80, 1) @ normal(1, 30)
    assert effective_rank(line).item() == pytest.approx(rankme(line), rel=1e-3) == pytest.approx(1.0, rel=1e-3)


def test_entropy__known_values():
    probabilities = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 0.0]])
    expected = [math.log(2), -0.7 * math.log(0.7) - 0.3 * math.log(0.1), 0.0]
    torch.testing.assert_close(entropy(probabilities), torch.tensor(expected))
    assert entropy(torch.full((2, 3, 4096), 1 / 4096)).shape == (2, 3)
    assert entropy(torch.full((4096,), 1 / 4096)).item() == pytest.approx(8.3178, abs=1e-4)


def test_measures__compute_in_float32_under_autocast_and_from_half():
    features = normal(60, 24) * torch.linspace(0.01, 2, 24)
    expected = [measure(features) for measure in (feature_spread, effective_rank)]
    with torch.autocast("cpu", torch.bfloat16):
        inside = [measure(features) for measure in (feature_spread, effective_rank)]
    torch.testing.assert_close(inside, expected, rtol=0, atol=0)
    rounded = features.bfloat16()
    half = [measure(rounded) for measure in (feature_spread, effective_rank)]
    assert all(value.dtype == torch.float32 for value in half)
    torch.testing.assert_close(half, [measure(rounded.float()) for measure in (feature_spread, effective_rank)])
    assert entropy(features.softmax(1).bfloat16()).dtype == torch.float32
