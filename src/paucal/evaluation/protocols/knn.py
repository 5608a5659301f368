"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018), as in EsViT's evaluation.

Features are scaled to unit length. Each of the k most similar training images votes for its class with weight
exp(cosine / 0.07). Neither the matrix of all similarities nor a second copy of the training features is kept in memory,
so the method scales to a million training images. The published code needs at least 100 test images and 1000 classes;
here, data sets may have any size.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.evaluation.protocols.classifier import to_double

TEMPERATURE = 0.07
NEIGHBOURS = (10, 20, 100, 200)
# k of the printed score. It is the value that "usually works best" according to the published code, and is not selected
# on test images.
PRINTED_K = 20
MAX_SIMILARITIES = 1 << 24  # largest number of similarities in memory at once; they take up 64 MB
TRAIN_ROWS_PER_CHUNK = 1 << 14  # number of training images whose similarities are computed at once


def knn_scores(
    train: Tensor, labels: Tensor, test: Tensor, n_classes: int, neighbours: Sequence[int] = NEIGHBOURS
) -> dict[int, Tensor]:
    """Return the (M, K) float64 sums of the votes for each class, on the CPU, for each number of neighbours k.

    `train` are (N, D) features, `labels` (N,) labels in [0, K), and `test` (M, D) features. Values of k above N are
    replaced by N, and duplicates are removed.
    """
    if not len(train) or min(neighbours, default=0) < 1:
        raise ValueError(f"expected training images and k >= 1, got {len(train)} and {list(neighbours)}")
    usable = clamp_neighbours(neighbours, len(train))
    similarity, index = nearest(train, test, max(usable))
    votes = (to_double(similarity) / TEMPERATURE).exp()
    index = index.to(votes.device)
    classes = labels.to(votes.device)[index]
    empty = votes.new_zeros(len(test), n_classes)
    return {k: empty.scatter_add(1, classes[:, :k], votes[:, :k]).cpu() for k in usable}


def clamp_neighbours(neighbours: Sequence[int], n_train: int) -> list[int]:
    """Limit the values of k to the number of training images; return them in ascending order without duplicates.

    >>> clamp_neighbours([10, 20, 100, 200], 60)
    [10, 20, 60]
    """
    return sorted({min(k, n_train) for k in neighbours})


def nearest(train: Tensor, test: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k training rows with the highest cosine similarity to each test row, in descending order.

    If cosine similarities are equal, the earlier training row comes first. Returns (M, k) float32 cosines and (M, k)
    int64 rows of `train`, with k <= N.
    """
    device, queries = test.device, F.normalize(test.float(), dim=1)
    best = torch.full((len(test), 0), -torch.inf, device=device)
    rows = torch.zeros(len(test), 0, dtype=torch.long, device=device)
    for start in range(0, len(train), TRAIN_ROWS_PER_CHUNK):
        keys = F.normalize(train[start : start + TRAIN_ROWS_PER_CHUNK].to(device).float(), dim=1)
        n_kept = min(k, best.shape[1] + len(keys))
        new_best, new_rows = best.new_empty(len(test), n_kept), rows.new_empty(len(test), n_kept)
        n_queries = max(1, MAX_SIMILARITIES // len(keys))
        for first in range(0, len(test), n_queries):
            part = slice(first, first + n_queries)
            new_best[part], new_rows[part] = _keep_best(best[part], rows[part], queries[part] @ keys.T, start, n_kept)
        best, rows = new_best, new_rows
    return best, rows


def _keep_best(best: Tensor, rows: Tensor, similarity: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """Merge the best cosines so far with `similarity`, whose columns are training rows from `start` on; keep k.

    Of equal cosines, those of earlier training rows are kept. (`torch.topk` does not guarantee which ones it keeps.)
    """
    n_new = min(k, similarity.shape[1])
    # One additional value shows whether a tie was cut off, without another pass over all similarities.
    values, columns = similarity.topk(min(n_new + 1, similarity.shape[1]), dim=1)
    cut_ties = (values[:, n_new - 1 : n_new] == values[:, n_new:]).any(1).nonzero()[:, 0]
    columns, order = columns[:, :n_new].sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    if len(cut_ties):
        all_values, order = similarity[cut_ties].sort(dim=1, descending=True, stable=True)
        values[cut_ties], columns[cut_ties] = all_values[:, :n_new], order[:, :n_new]
    if not best.shape[1]:
        return values, columns + start
    values, rows = torch.cat([best, values], 1), torch.cat([rows, columns + start], 1)
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], rows.gather(1, order[:, :k])
