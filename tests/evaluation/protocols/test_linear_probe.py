"""The linear probe: all rates at once equal separate runs of torch's SGD; the best is chosen on validation images."""

import math

import pytest
import torch
from torch import nn

from paucal.evaluation.protocols.linear_probe import ProbeSettings, cached_batches, fit_probe, train_probes
from paucal.types import UserError


def blobs(n=90, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.randn(n, dim, generator=generator) + 2 * torch.eye(3, dim)[labels], labels


def one_by_one(rate, features, labels, settings):
    """The published program, one rate per run."""
    layer = nn.Linear(features.shape[1], 3)
    generator = torch.Generator().manual_seed(settings.seed)
    layer.weight.data = torch.randn(3, features.shape[1], generator=generator) * 0.01
    layer.bias.data.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate * settings.batch / 256, momentum=0.9, weight_decay=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs, eta_min=0)
    batches = cached_batches(features, labels, settings)
    for epoch in range(settings.epochs):
        for values, targets in batches(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(values), targets).backward()
            optimizer.step()
        schedule.step()
    return layer


@pytest.mark.parametrize("seed", [2**44, 2**62])
def test_batches__of_large_seeds_are_orders_of_their_own(seed):
    features, labels = torch.arange(40.0)[:, None], torch.zeros(40, dtype=torch.long)
    orders = []
    for one, epoch in ((seed, 0), (seed, 1), (seed - 1, 0), (seed, 0)):
        batches = cached_batches(features, labels, ProbeSettings(batch=16, seed=one))(epoch)
        orders.append(torch.cat([values for values, _ in batches])[:, 0].tolist())
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[0] == orders[3]
    assert orders[0] not in orders[1:3]
    assert orders[1] != orders[2]


def test_probes__together_equal_separate_runs_of_sgd():
    features, labels = blobs()
    settings = ProbeSettings(rates=(0.01, 0.3, 2.0), epochs=6, batch=32, seed=3)
    weights, biases = train_probes(cached_batches(features, labels, settings), 5, 3, settings)
    for number, rate in enumerate(settings.rates):
        layer = one_by_one(rate, features, labels, settings)
        torch.testing.assert_close(weights[number], layer.weight.data, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(biases[number], layer.bias.data, rtol=1e-4, atol=1e-6)


def test_batches__show_every_image_once_in_an_order_of_the_epoch():
    features, labels = torch.arange(10.0)[:, None], torch.arange(10)
    batches = cached_batches(features, labels, ProbeSettings(batch=4, seed=1))
    first, again, second = ([x.flatten().tolist() for x, _ in batches(epoch)] for epoch in (0, 0, 1))
    assert first == again != second
    assert [len(part) for part in first] == [4, 4, 2]
    assert sorted(value for part in first for value in part) == features.flatten().tolist()
    assert all(torch.equal(x[:, 0].long(), y) for x, y in batches(0))


def test_probe__keeps_the_best_rate_and_survives_one_that_diverges():
    train, val = blobs(), blobs(seed=1)
    settings = ProbeSettings(rates=(1e-6, 0.1, math.inf), epochs=10, batch=32)
    alone = cached_batches(*train, settings)
    found = fit_probe(alone, alone, val, 3, settings)
    assert found.rate == 0.1
    assert math.isnan(found.scores[math.inf])
    assert found.scores[0.1] > 0.8 > found.scores[1e-6]
    predicted = found.classifier.scores(val[0]).argmax(1)
    assert float((predicted == val[1]).double().mean()) == pytest.approx(found.scores[0.1])


def test_probe__is_trained_again_with_the_best_rate_on_both_parts():
    train, val = blobs(), blobs(60, seed=1)
    settings = ProbeSettings(rates=(1e-6, 0.1), epochs=4, batch=32, seed=2)
    both = cached_batches(torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]]), settings)
    told = []
    found = fit_probe(
        cached_batches(*train, settings), both, val, 3, settings, "accuracy", lambda done, total: told.append(done)
    )
    layer = one_by_one(0.1, torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]]), settings)
    assert found.rate == 0.1
    torch.testing.assert_close(found.classifier.weight, layer.weight.data, rtol=1e-4, atol=1e-6)
    assert told == list(range(1, 9))


def test_probe__refuses_missing_validation_images_other_models_and_broken_features():
    train, val = blobs(), blobs(seed=1)
    settings = ProbeSettings(epochs=1)
    alone = cached_batches(*train, settings)
    with pytest.raises(UserError, match="no validation images to select the learning rate with"):
        fit_probe(alone, alone, (val[0][:0], val[1][:0]), 3, settings)
    val[0][0] = torch.nan
    with pytest.raises(UserError, match="the features of 1 of 90 validation images are not finite"):
        fit_probe(alone, alone, val, 3, settings)
