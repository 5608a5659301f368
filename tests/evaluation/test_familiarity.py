"""Whether an image is like the training images."""

import pytest
import torch

from paucal.evaluation.familiarity import SIMILAR_FRACTION, FamiliarityDetector, fit_familiarity


def rows(count: int, seed: int, shift: float = 3.0) -> torch.Tensor:
    features = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    features[:, 0] += shift
    return features


def test_distances__are_those_to_the_kth_nearest_of_length_one() -> None:
    train, asked = rows(20, 0), rows(4, 1)
    known = FamiliarityDetector(torch.nn.functional.normalize(train, dim=1), 0.0, neighbours=3)
    for one, found in zip(asked, known.distances(asked), strict=True):
        every = sorted(float((one / one.norm() - other / other.norm()).norm()) for other in train)
        assert float(found) == pytest.approx(every[2], abs=1e-5)


def test_limit__is_kept_by_nearly_all_held_out_images_and_by_no_others() -> None:
    known = fit_familiarity(rows(200, 0), rows(100, 1))
    inside = (known.distances(rows(100, 1)) <= known.limit).float().mean()
    assert float(inside) == pytest.approx(SIMILAR_FRACTION, abs=0.011)
    fresh = (known.distances(rows(400, 2)) <= known.limit).float().mean()
    assert float(fresh) == pytest.approx(SIMILAR_FRACTION, abs=0.06)
    assert bool((known.distances(rows(50, 3, shift=-6.0)) > known.limit).all())


def test_limit__does_not_change_with_the_length_of_features() -> None:
    train, held_out = rows(50, 0), rows(30, 1)
    one, two = fit_familiarity(train, held_out), fit_familiarity(7 * train, 0.1 * held_out)
    assert one.limit == pytest.approx(two.limit, abs=1e-5)


def test_fewer_images_than_neighbours_are_enough() -> None:
    known = fit_familiarity(rows(2, 0), rows(3, 1), neighbours=5)
    assert known.distances(rows(1, 2)).shape == (1,)
    with pytest.raises(ValueError, match="both training and held-out images"):
        fit_familiarity(rows(2, 0), rows(0, 1))
