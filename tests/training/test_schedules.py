import pytest

from paucal.training import CosineWarmup

# Anchors of the fact sheet (section 3.2) for a peak of 1e-3, a floor of 1e-5 and 20 epochs of warm-up.
LONG = {0: 1.000e-6, 1: 5.095e-5, 10: 5.005e-4, 20: 9.892e-4, 50: 9.337e-4, 80: 8.362e-4, 100: 7.525e-4}
SHORT = {0: 1.000e-6, 1: 5.095e-5, 10: 5.005e-4, 20: 9.055e-4, 50: 5.050e-4, 80: 1.045e-4, 100: 1.000e-5}


@pytest.mark.parametrize(("horizon", "anchors"), [(300, LONG), (100, SHORT)])
def test_cosine__meets_the_published_anchors(horizon, anchors):
    steps = 48  # per epoch
    schedule = CosineWarmup(1e-3, horizon * steps, 20 * steps, start=1e-6, floor=1e-5)
    for epoch, value in anchors.items():
        assert schedule(epoch * steps) == pytest.approx(value, rel=1e-3)
    assert schedule(20 * steps - 1) == pytest.approx(9.990e-4, rel=1e-3)


def test_cosine__stays_at_the_floor_beyond_its_horizon():
    schedule = CosineWarmup(1.0, 10, floor=0.1)
    assert schedule(10) == schedule(50) == pytest.approx(0.1)


def test_cosine__works_without_warmup_and_with_a_horizon_of_nothing():
    assert CosineWarmup(1.0, 10)(0) == 1.0
    assert CosineWarmup(1.0, 0, floor=0.2)(3) == pytest.approx(0.2)
