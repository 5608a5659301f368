"""Linear attention by positive random features ("Rethinking Attention with Performers", Choromanski et al. 2021).

The softmax kernel exp(q k) is the expected product of phi(q) and phi(k) over random w, where phi(x) is exp(w x - |x|^2
/ 2) / sqrt(m). Keys and values can so be summed up once for all queries, and the cost grows linearly with the tokens.
There is no matrix of weights to look at.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EPS = 1e-8  # in the denominator; where keys are far from queries it decides, so it is carried along exactly
_LARGEST = 80.0  # exponent whose exp is still a float32


def random_features(count: int, width: int) -> Tensor:
    """Return (count, width) random directions, orthogonal to each other and of length sqrt(count).

    Raises:
        ValueError: there are more of them than dimensions.
    """
    if not 1 <= count <= width:
        raise ValueError(f"{count} random features of {width} channels cannot be orthogonal; take 1 to {width}")
    return nn.init.orthogonal_(torch.empty(count, width)) * math.sqrt(count)


def linear_attention(query: Tensor, key: Tensor, value: Tensor, features: Tensor) -> Tensor:
    """Return phi(q) (phi(k)^T v) / (phi(q) sum(phi(k)) + 1e-8), in float32 or wider.

    The published program exponentiates as it stands, which overflows in half precision. Here the largest exponent of
    each query and of each image's keys is subtracted first. Both cancel in the fraction once the 1e-8 is divided by
    the same factors, so the value is the same, for any features. The factors are constants to the backward pass: the
    fraction does not depend on them.

    Args:
        query: (B, N, d).
        key: (B, M, d).
        value: (B, M, e).
        features: (m, d), the random directions w.

    Returns:
        (B, N, e), in the precision of `value` or float32 if that is wider.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    query, key, value, features = (one.to(wide) for one in (query, key, value, features))
    of_query, of_key = _exponents(query, features), _exponents(key, features)
    query_top, key_top = of_query.detach().amax(-1, keepdim=True), of_key.detach().amax((-2, -1), keepdim=True)
    of_query, of_key = (of_query - query_top).exp(), (of_key - key_top).exp()
    # phi(k)^T v, and the sum of phi(k) as one more column, so that one product gives both parts of the fraction.
    summary = torch.cat((of_key.transpose(1, 2) @ value, of_key.sum(1).unsqueeze(-1)), -1)
    parts = of_query @ summary
    constant = math.log(EPS * features.shape[0]) - query_top - key_top  # the sqrt(m) of both sides is in it too
    return parts[..., :-1] / (parts[..., -1:] + constant.clamp(max=_LARGEST).exp())


def _exponents(x: Tensor, features: Tensor) -> Tensor:
    return x @ features.t() - x.square().sum(-1, keepdim=True) / 2


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Switch autocast off where it is on: exponents of a norm lose too much in half precision."""
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        yield
        return
    with torch.autocast(device_type, enabled=False):
        yield
