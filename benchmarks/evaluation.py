"""What the protocols on frozen features cost: the lambda search, chunked k-NN and stored features.

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --device cuda --train 1000000 --test 10000

The lambda search is timed against all 97 points of its grid, on the pooled features that a backbone with random weights
gives for the built-in digits; both must reach the same validation accuracy. Chunked k-NN is timed against a plain
one (one matrix of all similarities, then topk) and its extra memory measured in a process of its own. Extraction is
timed against plain inference over the same batches, and against reading the stored features. The first two are
processor seconds, the last is wall time, in turns.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from measuring import interleaved, ratio, store, surroundings
from paucal.backbones import BackboneSpec
from paucal.data.loader import make_eval_loader
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.evaluation.protocols.data import evaluation_data, limit_split_sizes
from paucal.evaluation.protocols.features import POOLED, Extraction, extract
from paucal.evaluation.protocols.knn import nearest
from paucal.evaluation.protocols.logistic import (
    N_GRID_POINTS,
    SearchResult,
    SolverSettings,
    fit_selected,
    search_strength,
    strength_at,
)
from paucal.models.named import FrozenBackbone, random_backbone
from paucal.models.preprocessing import Preprocessing

PREPROCESSING = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


def clock() -> float:
    """Return the processor seconds of this process, which other programs on the machine do not lengthen.

    On a GPU the processor waits, and that counts too.
    """
    return time.process_time()


def toy_subject(device: str) -> FrozenBackbone:
    """Return a small ViT with random weights at 16 pixels."""
    spec = BackboneSpec("vit_mini", 0, image_size=(16, 16))
    return FrozenBackbone("vit_mini", "random, seed 0", spec, random_backbone(spec, 0).to(device), PREPROCESSING)


def sweep(score: Callable[[float], float]) -> SearchResult:
    """Try every lambda of the grid; of equal scores the larger one wins."""
    scores = {position: score(strength_at(position)) for position in range(N_GRID_POINTS)}
    return SearchResult(max(scores, key=lambda position: (scores[position], position)), scores)


def measure_search(device: str, most: int) -> dict[str, Any]:
    """Time the search and the sweep once each: they take long, and differ by a factor."""
    images = open_images("digits")
    data = limit_split_sizes(evaluation_data(images, make_split(images, 0, val_fraction=0.2)), most, 0)
    features = extract(toy_subject(device), images, data.used, [POOLED], Extraction())[POOLED].to(device)
    labels = data.labels[torch.from_numpy(data.used)]
    train, val = ((features[data.rows(part)], labels[data.rows(part)]) for part in ("train", "val"))
    solver = SolverSettings("torch" if device == "cuda" else "sklearn")
    found, seconds = {}, {}
    for name, search in (("search", search_strength), ("sweep", sweep)):
        begin = clock()
        found[name] = fit_selected(train, val, data.n_classes, "accuracy", solver, search)
        seconds[name] = clock() - begin
    best = {name: one.search.scores[one.search.best] for name, one in found.items()}
    return {
        "images": data.counts(),
        "fits": {name: one.fits for name, one in found.items()},
        "seconds": seconds,
        "time_ratio": seconds["sweep"] / seconds["search"],
        "lambda": {name: one.search.strength for name, one in found.items()},
        "validation_accuracy": best,
        "same_optimum": best["search"] == best["sweep"],
        "curve": [found["sweep"].search.scores[position] for position in range(97)],
    }


def full_matrix(train: torch.Tensor, test: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the neighbours by the plain way."""
    return torch.topk(F.normalize(test, dim=1) @ F.normalize(train, dim=1).T, k)


def one_knn(way: str, n_train: int, n_test: int, dim: int, device: str, answer: Any) -> None:
    """Run one way and send its seconds, its extra memory in bytes and a digest of what it found."""
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(n, dim, generator=generator).to(device) for n in (n_train, n_test))
    before = peak(device)
    begin = clock()
    values, rows = (nearest if way == "chunked" else full_matrix)(train, test, 200)
    digest = int(rows.sum()), float(values.double().mean())
    if device == "cuda":
        torch.cuda.synchronize()
    answer.put((clock() - begin, peak(device) - before, digest))


def peak(device: str) -> int:
    """Return the most bytes that this process has held."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_knn(options: argparse.Namespace) -> dict[str, Any]:
    """Run both ways in processes of their own, in turns."""
    context = multiprocessing.get_context("spawn")
    runs: dict[str, list[Any]] = {"chunked": [], "full": []}
    for _ in range(options.repeats):
        for way, listed in runs.items():
            answer = context.Queue()
            process = context.Process(
                target=one_knn, args=(way, options.train, options.test, options.dim, options.device, answer)
            )
            process.start()
            listed.append(answer.get())
            process.join()
    digests = {way: listed[0][2] for way, listed in runs.items()}
    return {
        "train": options.train,
        "test": options.test,
        "dim": options.dim,
        "seconds": {way: [run[0] for run in listed] for way, listed in runs.items()},
        "extra_bytes": {way: max(run[1] for run in listed) for way, listed in runs.items()},
        "same_neighbours": digests["chunked"][0] == digests["full"][0],
    }


def measure_extraction(device: str, repeats: int) -> dict[str, Any]:
    """Time plain inference, extraction with storing, and reading what is stored."""
    images, subject = open_images("digits"), toy_subject(device)
    indices = np.arange(len(images))
    with tempfile.TemporaryDirectory() as folder:

        def plain() -> None:
            with torch.inference_mode():
                for batch in make_eval_loader(images, indices, PREPROCESSING.transform(), 256):
                    subject.backbone(batch.views[0].to(device)).pooled.cpu()

        def extracted() -> None:
            for file in Path(folder).iterdir():
                file.unlink()
            extract(subject, images, indices, [POOLED], Extraction(cache=Path(folder)))

        def stored() -> None:
            extract(subject, images, indices, [POOLED], Extraction(cache=Path(folder)))

        seconds = interleaved({"plain": plain, "extracted": extracted, "stored": stored}, repeats, device)
    return {
        "images": len(images),
        "seconds": seconds,
        "extracted_over_plain": ratio(seconds, "extracted", "plain"),
        "stored_over_plain": ratio(seconds, "stored", "plain"),
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--images", type=int, default=500, help="of each part, for the lambda search")
    parser.add_argument("--train", type=int, default=100_000)
    parser.add_argument("--test", type=int, default=1_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    result = {
        "settings": vars(options),
        "surroundings": surroundings(options.device),
        "lambda_search": measure_search(options.device, options.images),
        "knn": measure_knn(options),
        "extraction": measure_extraction(options.device, max(3, options.repeats)),
    }
    store(f"evaluation_{options.device}", result)


if __name__ == "__main__":
    main()
