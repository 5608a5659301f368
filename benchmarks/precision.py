"""float32 and bfloat16 on this CPU: speed of forward passes and training steps, and whether the outputs agree.

    python benchmarks/precision.py ../shared/data/clothing

Both take turns on the same photographs, so that other work on the machine hits both alike; ratios are medians over the
pairs, with their quartiles. Outputs are compared on 64 photographs: the least cosine of the features before the
classifier, and how many get another class from a head that was fitted to the float32 features of 256 others. Weights
are trained ones where a package brings them (EfficientNet-Lite0), else random: then only the speed means something,
and the cosine is that of a network as it is initialised.
"""

import argparse
import platform
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import interleaved, ratio, store, surroundings
from paucal.backbones import BackboneSpec
from paucal.data.loader import make_eval_loader
from paucal.data.sources.opening import open_images
from paucal.evaluation.predictions import predict_in_order
from paucal.models.features import ClassifierInputExtractor
from paucal.models.named import open_named
from paucal.models.precision import MIN_COSINE, MIN_SPEEDUP, bfloat16_flags
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.local import input_of_weights
from paucal.objectives import Supervised
from paucal.tasks.classification.auto_tune.probe import fit_head
from paucal.types import Batch, Progress

MODELS = (
    "tf_efficientnet_lite0.in1k",
    "resnet18",
    "vit_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "dhvt_tiny",
)
TRAINED = ("tf_efficientnet_lite0.in1k",)
SIDE, CLASSES = 224, 10


def row_of(name: str, source: str, rounds: int, batch: int, counts: tuple[int, int]) -> dict[str, Any]:
    """Return the measurements of a network."""
    backbone = BackboneSpec(name.split(".")[0], CLASSES, image_size=(SIDE, SIDE)).build()
    network, preprocess = backbone.model, Preprocessing.from_image_input((SIDE, SIDE), input_of_weights(name))
    if name in TRAINED:
        trained = open_named(name, "cpu", [SIDE], "--model")
        network, preprocess = trained.module, trained.card.preprocessing
    images = open_images(source)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(np.asarray(images.declared_splits) == "train"))[
        : sum(counts)
    ]
    inputs = ClassifierInputExtractor(network).eval()

    def features(autocast: torch.dtype | None) -> Tensor:
        loader = make_eval_loader(images, rows, preprocess.transform(), batch)
        return predict_in_order(inputs, loader, rows, "cpu", autocast=autocast)

    exact, near = features(None), features(torch.bfloat16)
    labels, cut = torch.from_numpy(images.labels[rows]).long(), counts[0]
    head = fit_head(exact[:cut], labels[:cut], len(images.classes), 0, (100.0,))
    classes = [head.scores(found[cut:]).argmax(1) for found in (exact, near)]
    inputs.close()
    few = next(iter(make_eval_loader(images, rows[:batch], preprocess.transform(), batch)))
    objective = Supervised(backbone).train()
    learned = Batch(few.ids, few.views, labels[:batch] % CLASSES)
    network.eval()

    def forward(low: bool) -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            network(few.views[0])

    def step(low: bool) -> None:
        objective.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            total = objective(learned, Progress(0, 1, 1)).total
        total.backward()

    forward_seconds = interleaved({"float32": lambda: forward(False), "bfloat16": lambda: forward(True)}, rounds, "cpu")
    step_seconds = interleaved({"float32": lambda: step(False), "bfloat16": lambda: step(True)}, rounds, "cpu")
    cosine = F.cosine_similarity(exact[cut:], near[cut:])
    return {
        "model": name,
        "weights": "trained" if name in TRAINED else "random",
        "forward": ratio(forward_seconds, "float32", "bfloat16"),
        "training": ratio(step_seconds, "float32", "bfloat16"),
        "least_cosine": round(float(cosine.min()), 5),
        "other_class": int((classes[0] != classes[1]).sum()),
        "compared": counts[1],
    }


def main() -> None:
    """Measure all networks and store the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--fitted", type=int, default=256)
    parser.add_argument("--compared", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        torch.manual_seed(0)
        rows.append(row_of(name, options.source, options.rounds, options.batch, (options.fitted, options.compared)))
        print(rows[-1], flush=True)
    machine = {"processor": platform.processor() or platform.machine(), "flags": bfloat16_flags()}
    rule = {"faster": MIN_SPEEDUP, "cosine": MIN_COSINE}
    store("precision", {"rows": rows, "machine": machine, "rule": rule, "surroundings": surroundings("cpu")})


if __name__ == "__main__":
    main()
