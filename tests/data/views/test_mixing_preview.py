import numpy as np
import pytest
import torch
from PIL import Image

from data.seeding import seeded
from paucal.data.views.augmentation import Mixing
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.sheets import draw_sheet
from paucal.types import Batch, UserError


def _batch(count: int = 5, side: int = 8) -> Batch:
    """Image i has the constant value i and the label i."""
    labels = torch.arange(count)
    return Batch(
        ids=labels,
        views=[labels.float().view(-1, 1, 1, 1).expand(count, 3, side, side).clone()],
        labels=labels,
    )


def _mixed(mixing: Mixing, seed: int = 0, count: int = 5) -> Batch:
    with seeded(seed):
        return mixing.mix(_batch(count), count)


def _pasted(view: torch.Tensor) -> bool:
    """Whether every pixel is one of the images' own, so that nothing was blended."""
    return torch.equal(view, view.round())


@pytest.mark.parametrize("mixing", [Mixing(cutmix=0), Mixing(mixup=0)])
@pytest.mark.parametrize("count", [2, 5])
def test_mix__labels_are_the_shares_of_the_pixels(mixing, count):
    for seed in range(5):
        batch = _mixed(mixing, seed, count)
        assert batch.labels.shape == (count, count)
        assert torch.allclose(batch.labels.sum(1), torch.ones(count))
        # Image i is constant i, so its mean is what the label shares say, for mixup and for CutMix alike.
        expected = batch.labels @ torch.arange(count).float()
        assert torch.allclose(batch.views[0].mean((1, 2, 3)), expected, atol=1e-5)


def test_mix__cutmix_pastes_a_box_and_mixup_blends():
    cut, blend = (_mixed(mixing, 1).views[0] for mixing in (Mixing(mixup=0), Mixing(cutmix=0)))
    assert _pasted(cut)
    assert not _pasted(blend)
    assert torch.equal(blend, blend[:, :, :1, :1].expand_as(blend))


def test_mix__switches_between_the_two():
    assert 10 < sum(_pasted(_mixed(Mixing(), seed).views[0]) for seed in range(40)) < 30
    assert all(_pasted(_mixed(Mixing(switch_prob=1.0), seed).views[0]) for seed in range(10))


def test_mix__applies_with_its_probability():
    mixed = [_mixed(Mixing(prob=0.3), seed).labels.ndim == 2 for seed in range(100)]
    assert 18 < sum(mixed) < 42


@pytest.mark.parametrize("mixing", [Mixing(prob=0.0), Mixing(mixup=0.0, cutmix=0.0)])
def test_mix__off_changes_nothing(mixing):
    batch = _batch()
    assert mixing.mix(batch, 5) is batch


def test_mix__leaves_a_single_image_alone():
    batch = _batch(1)
    assert Mixing().mix(batch, 5) is batch


def test_mix__leaves_the_given_batch_alone_and_depends_on_the_torch_seed_only():
    batch = _batch()
    np.random.seed(0)
    with seeded(4):
        first = Mixing().mix(batch, 5)
    assert torch.equal(batch.views[0], _batch().views[0])
    assert torch.equal(batch.labels, torch.arange(5))
    torch.manual_seed(1)
    one = Mixing().mix(batch, 5)
    np.random.seed(99)
    torch.manual_seed(1)
    two = Mixing().mix(batch, 5)
    assert torch.equal(one.views[0], two.views[0])
    assert not torch.equal(one.views[0], first.views[0])


def test_mix__refuses_batches_it_would_spoil():
    two_views = Batch(torch.arange(2), [torch.zeros(2, 3, 4, 4)] * 2, torch.arange(2))
    with pytest.raises(ValueError, match="got 2 views"):
        Mixing().mix(two_views, 2)
    with pytest.raises(ValueError, match="labels: False"):
        Mixing().mix(Batch(torch.arange(2), [torch.zeros(2, 3, 4, 4)]), 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixup": -1}, "mixup is -1 and cutmix is 1.0; expected 0"),
        ({"prob": 2}, "mixing probability is 2; expected a probability"),
        ({"switch_prob": -0.1}, "switch_prob is -0.1"),
    ],
)
def test_mixing__says_what_is_wrong(settings, message):
    with pytest.raises(UserError, match=message):
        Mixing(**settings)


@pytest.mark.parametrize("alpha", [1e-320, 1e-4, 1e39, float("inf"), float("nan")])
def test_mixing__refuses_shapes_that_float32_cannot_draw_from(alpha):
    for name in ("mixup", "cutmix"):
        with pytest.raises(UserError, match=f"{name} .*expected 0 \\(off\\) or a number from 0.001 to 1000"):
            Mixing(**{name: alpha})
    mixed = Mixing(mixup=1e-3, cutmix=1e3).mix(_batch(), 5)
    assert torch.isfinite(mixed.labels).all()


def test_sheet__shows_the_images_in_order_and_in_their_colours():
    normalisation = Normalisation()
    colours = [(255, 0, 0), (0, 255, 0), (30, 60, 90)]
    views = torch.stack([normalisation.apply(Image.new("RGB", (32, 32), colour)) for colour in colours])
    page = np.asarray(draw_sheet(Batch(torch.arange(3), [views], torch.arange(3)), normalisation, ("a", "b", "c")))
    tile = 96 + 4
    assert page.shape == (96 + 4 + 14 + 4, 3 * tile + 4, 3)
    assert [tuple(page[50, 50 + i * tile].tolist()) for i in range(3)] == colours
    assert (page[:4] == 255).all()
    captions = [page[100:, 4 + i * tile : 100 + i * tile] for i in range(3)]
    assert all((caption < 128).any() for caption in captions)
    assert not np.array_equal(captions[0], captions[1])


def test_sheet__has_at_most_32_images_and_no_captions_without_classes():
    batch = Batch(torch.arange(40), [torch.zeros(40, 3, 100, 120)], torch.arange(40))
    assert draw_sheet(batch, Normalisation(), ()).size == (8 * 124 + 4, 4 * 104 + 4)


def test_sheet__captions_mixed_labels_and_odd_names():
    batch = _mixed(Mixing(cutmix=0))
    page = draw_sheet(batch, Normalisation(), ("zażółć", "b" * 300, "c", "d", "e"))
    assert page.size[0] == 5 * 100 + 4


@pytest.mark.parametrize("mixing", [Mixing(cutmix=0), Mixing(mixup=0)])
def test_mix__of_several_labels_mixes_each_of_them_and_keeps_what_is_unknown(mixing):
    labels = torch.tensor([[1.0, 0, 1], [0, 0, torch.nan], [1, 1, 0], [0, 1, 0]])
    batch = Batch(torch.arange(4), [torch.arange(4.0).view(-1, 1, 1, 1).expand(4, 3, 8, 8).clone()], labels)
    with seeded(1):
        mixed = mixing.mix(batch, 3)
    assert mixed.labels is not None
    # Image i is constant i and is mixed with the one before it, so its mean tells the share of each.
    share = mixed.views[0].mean((1, 2, 3))[2] - 1
    torch.testing.assert_close(mixed.labels[2][:2], share * labels[2][:2] + (1 - share) * labels[1][:2])
    assert mixed.labels.isnan().tolist() == [[False] * 3, [False, False, True], [False, False, True], [False] * 3]
