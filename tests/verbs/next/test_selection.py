"""Which images to label next: what is chosen, in values."""

import numpy as np
import pytest
import torch

from paucal.verbs.next import selection
from paucal.verbs.next.selection import (
    MAX_AXES,
    choose_greedily,
    choose_images,
    margin_uncertainty,
    project_to_axes,
    similarities,
)

KNOWN = torch.zeros(0, 2)


def clusters(sizes: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features in tight clusters around the axes, and the cluster of each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    noise = 0.02 * torch.randn(len(labels), len(sizes), generator=generator)
    return torch.eye(len(sizes))[labels] + noise, labels


def test_unsureness__is_one_minus_the_lead() -> None:
    shares = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.6, 0.3, 0.1]])
    assert margin_uncertainty(shares).tolist() == [1.0, 0.0, torch.tensor(1 - (0.6 - 0.3)).item()]
    several = torch.tensor([[0.5, 0.99], [0.0, 1.0]])
    assert margin_uncertainty(several, several=True).tolist() == [1.0, 0.0]
    assert torch.allclose(margin_uncertainty(torch.tensor([[0.9]])), torch.tensor([0.2]))


def test_choices__are_one_of_each_cluster_the_largest_first() -> None:
    features, labels = clusters([40, 10, 25])
    choices = choose_images(torch.ones(75), features, torch.zeros(0, 3), 3)
    assert labels[[one.index for one in choices]].tolist() == [0, 2, 1]
    assert [one.n_represented for one in choices] == [40, 25, 10]


def test_choices__avoid_what_is_labelled_and_go_where_the_model_is_unsure() -> None:
    features, labels = clusters([40, 10, 25])
    labelled = torch.tensor([[1.0, 0.0, 0.0]])
    first = choose_images(torch.ones(75), features, labelled, 1)[0]
    assert labels[first.index] == 2
    unsure = torch.where(labels == 1, 1.0, 0.01)
    assert labels[choose_images(unsure, features, labelled, 1)[0].index] == 1


def test_choices__depend_on_what_tells_images_apart_not_on_what_all_have_in_common() -> None:
    generator = torch.Generator().manual_seed(3)
    features, labelled = torch.randn(120, 100, generator=generator), torch.randn(6, 100, generator=generator)
    choices = choose_images(torch.ones(120), features, labelled, 12)
    moved, moved_labelled = 4 * features + 20, 4 * labelled + 20
    assert [one.index for one in choose_images(torch.ones(120), moved, moved_labelled, 12)] == [
        one.index for one in choices
    ]


def test_directions__are_those_of_the_strongest_axes() -> None:
    generator = torch.Generator().manual_seed(4)
    strong = torch.randn(300, MAX_AXES, generator=generator)
    rows = torch.cat([strong, 1e-3 * torch.randn(300, 500, generator=generator)], dim=1)
    vectors, labelled = project_to_axes(rows[:250], rows[250:])
    assert vectors.shape == (250, MAX_AXES)
    expected = torch.nn.functional.normalize(strong - strong[:250].mean(0), dim=1)
    torch.testing.assert_close(vectors @ labelled.T, expected[:250] @ expected[250:].T, atol=0.01, rtol=0)


def test_copies__add_nothing() -> None:
    features = torch.cat([clusters([30, 30])[0], clusters([30, 30])[0][:1].expand(20, -1)])
    chosen = [one.index for one in choose_images(torch.ones(80), features, torch.zeros(0, 2), 40)]
    assert len(set(chosen)) == 40
    assert sum(place in (0, *range(60, 80)) for place in chosen[:10]) <= 1


def test_random_share__is_drawn_from_all_images_whatever_the_model_says() -> None:
    features, _ = clusters([50, 50])
    drawn = np.zeros(100)
    for seed in range(60):
        choices = choose_images(
            torch.linspace(0, 1, 100), features, torch.zeros(0, 2), 20, random_share=0.25, seed=seed
        )
        random = [one.index for one in choices if one.is_random]
        assert len(choices) == len({one.index for one in choices}) == 20
        assert len(random) == 5
        assert choices[15:] == [one for one in choices if one.is_random]
        drawn[random] += 1
    halves = drawn[:50].sum(), drawn[50:].sum()
    assert abs(halves[0] - halves[1]) < 0.2 * drawn.sum()


@pytest.mark.parametrize(("count", "images"), [(3, 3), (3, 10), (10, 3)])
def test_random_share__of_all_chooses_at_random_alone(count: int, images: int) -> None:
    choices = choose_images(torch.ones(images), torch.rand(images, 8), torch.zeros(0, 8), count, random_share=1.0)
    assert all(one.is_random for one in choices)
    assert len({one.index for one in choices}) == len(choices) == min(count, images)


def test_herd__is_the_greedy_maximum_of_the_covered_uncertainty() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator), dim=1)
    unsure = torch.rand(30, generator=generator)
    similar, covered = similarities(vectors, vectors[:2])
    chosen, nearest = choose_greedily(unsure, similar, covered, 5)
    now = covered.clone()
    for place in chosen:
        gains = [(unsure * torch.maximum(now, similar[other])).sum().item() for other in range(30)]
        assert gains[place] == max(gains)
        now = torch.maximum(now, similar[place])
    for image in range(30):
        own = [similar[place, image].item() for place in chosen]
        if nearest[image] >= 0 and image not in chosen:
            assert own[nearest[image]] == max(own) > covered[image]
    assert similar.diagonal().allclose(torch.ones(30), atol=1e-3)


def test_more_than_there_are() -> None:
    assert len(choose_images(torch.rand(3), torch.rand(3, 2), KNOWN, 10)) == 3
    assert len(choose_images(torch.rand(1), torch.rand(1, 2), KNOWN, 1)) == 1


def test_choices__are_as_many_as_asked_for_also_beyond_the_images_that_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "MAX_COMPARED", 8)
    features, _ = clusters([20, 20])
    choices = choose_images(torch.ones(40), features, KNOWN, 30, random_share=0.1)
    assert len({one.index for one in choices}) == 30
    assert sum(one.is_random for one in choices) == 3
