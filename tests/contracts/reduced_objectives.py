"""A reduced build of every training method, beside the toys, and a batch for each."""

import torch

from contracts import toys
from paucal.backbones import BackboneSpec
from paucal.objectives import DrLoc, Objective, SelfDistillation, SelfDistillationOptions, Supervised, TokenLabeling
from paucal.objectives.guided import Distillation, LocalityGuidance
from paucal.types import Batch, Crops, Progress

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
SIZE, CLASSES = 32, 6
NOW = Progress(0, 10, 5)


def backbone(name="vit_tiny_patch16_224", **arguments):
    return BackboneSpec(name, CLASSES, image_size=(SIZE, SIZE), arguments={**SMALL, **arguments}).build()


def supervised() -> Objective:
    seen, guide = backbone(patch_size=8), BackboneSpec("resnet10t", CLASSES, image_size=(SIZE, SIZE)).build()
    dims = [shape[0] for shape in seen.shapes(LocalityGuidance.request)] * 2
    drloc = DrLoc.from_preset("paper", [seen.dim], [seen.grid], n_pairs=4)
    seen = backbone(patch_size=8, depth=4)
    teacher = Distillation(BackboneSpec("resnet10t", CLASSES, image_size=(SIZE, SIZE)).build().model, CLASSES)
    terms = {"drloc": drloc, "locality": LocalityGuidance(guide, dims), "distillation": teacher}
    return Supervised(seen, terms, 0.1)


def self_distillation() -> Objective:
    options = SelfDistillationOptions(out_dim=16, hidden_dim=32, bottleneck_dim=8, mixup=0.8, tasks="view")
    return SelfDistillation(toys.spec(0), [Crops(2, SIZE // 2), Crops(2, 8)], options)


OBJECTIVES = {
    **toys.TOYS,
    "supervised": supervised,
    "token_labeling": lambda: TokenLabeling(backbone("lvvit_t", stem_width=8)),
    "token_labeling_outside": lambda: TokenLabeling(backbone(patch_size=8)),
    "mixed_self_distillation": self_distillation,
}


def a_batch(objective: Objective, device: str, n: int = 4) -> Batch:
    own = toys.SIZE if type(objective).__module__.endswith("toys") else SIZE
    sizes = [crops.size or own for crops in objective.data_request.views for _ in range(crops.count)]
    maps = {
        "ink": torch.rand(n, 8, 8, device=device),
        "values": torch.rand(n, 2, 3, 3, device=device),
        "slots": torch.zeros(n, 2, 3, 3, dtype=torch.long, device=device),
        "classes": torch.zeros(n, 4, dtype=torch.long, device=device),
    }
    return Batch(
        torch.zeros(n, dtype=torch.long, device=device),
        [torch.rand(n, 3, int(size), int(size), device=device) for size in sizes],
        torch.zeros(n, dtype=torch.long, device=device),
        [torch.empty(n, 2, 3, device=device) for _ in sizes],
        maps,
    )
