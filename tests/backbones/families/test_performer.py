"""Linear attention by random features: against the formula as it stands, in double precision."""

import math

import pytest
import torch

from paucal.backbones.families.t2t_vit import full_precision, linear_attention, random_features


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def phi(x, features):
    half = x.square().sum(-1, keepdim=True) / 2
    return (x @ features.T - half).exp() / math.sqrt(len(features))


def naive(query, key, value, features):
    of_query, of_key = phi(query, features), phi(key, features)
    out = torch.zeros(*query.shape[:2], value.shape[-1], dtype=value.dtype)
    for image in range(len(query)):
        for token in range(query.shape[1]):
            products = torch.stack([of_query[image, token] @ one for one in of_key[image]])
            out[image, token] = (products[:, None] * value[image]).sum(0) / (products.sum() + 1e-8)
    return out


def test_random_features__are_orthogonal_of_length_root_of_their_number() -> None:
    features = random_features(8, 12)
    torch.testing.assert_close(features @ features.T, torch.eye(8) * 8, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="13 random features of 12 channels"):
        random_features(13, 12)


@pytest.mark.parametrize("scale", [0.1, 0.6, 1.5, 3.0])
def test_linear_attention__is_the_formula(scale: float) -> None:
    query, key, value = draw(2, 5, 12, seed=1, scale=scale), draw(2, 7, 12, seed=2, scale=scale), draw(2, 7, 3, seed=3)
    features = random_features(6, 12).double()
    expected = naive(query, key, value, features)
    torch.testing.assert_close(linear_attention(query, key, value, features), expected, rtol=1e-9, atol=1e-30)


def test_linear_attention__keeps_the_epsilon_that_hides_far_keys() -> None:
    value, features = draw(1, 7, 3, seed=3).abs() + 1, random_features(6, 12).double()
    near, far = (
        linear_attention(draw(1, 5, 12, scale=s), draw(1, 7, 12, seed=2, scale=s), value, features) for s in (0.5, 4)
    )
    assert near.min() > 1  # a mean of values above 1
    assert far.max() < 1e-9  # every product is far below the 1e-8


def test_linear_attention__has_the_gradients_of_the_formula() -> None:
    features = random_features(6, 12).double()
    grads = []
    for function in (linear_attention, naive):
        inputs = [draw(2, 4, 12, seed=seed, scale=0.8).requires_grad_() for seed in (1, 2, 3)]
        function(*inputs, features).sin().sum().backward()
        grads.append([one.grad for one in inputs])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-12)


def test_linear_attention__does_not_overflow_where_the_formula_does() -> None:
    features = random_features(6, 12) * 8
    query = features[:3].reshape(1, 3, 12) * 0.9
    key, value = (features[:4].reshape(1, 4, 12) * 0.8).requires_grad_(), draw(1, 4, 3, seed=3).float()
    assert not torch.isfinite(phi(query, features)).all()
    actual = linear_attention(query, key, value, features)
    expected = naive(query.double(), key.double(), value.double(), features.double())
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-5)
    actual.sum().backward()
    assert torch.isfinite(key.grad).all()


def test_linear_attention__gives_zeros_and_finite_gradients_where_nothing_is_near() -> None:
    query, key = torch.full((1, 2, 12), 40.0, requires_grad=True), torch.full((1, 3, 12), -40.0, requires_grad=True)
    out = linear_attention(query, key, torch.ones(1, 3, 2), random_features(6, 12))
    out.sum().backward()
    assert out.abs().max() == 0
    assert torch.isfinite(query.grad).all()
    assert torch.isfinite(key.grad).all()


def test_linear_attention__computes_halves_in_single_precision() -> None:
    query, key, value = (draw(1, 4, 12, seed=seed).half() for seed in (1, 2, 3))
    features = random_features(6, 12)
    actual = linear_attention(query, key, value, features)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, linear_attention(query.float(), key.float(), value.float(), features))


def test_full_precision__switches_autocast_off_and_on_again() -> None:
    a = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with full_precision("cpu"):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16
    with full_precision("meta"):  # where there is no autocast
        assert (a @ a).dtype == torch.float32
