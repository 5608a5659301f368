"""A whole step of EsViT on a small Swin, ours against the same step written plainly.

    python benchmarks/esvit_step.py --repeats 10
    python benchmarks/esvit_step.py --device cuda --precision bf16 --batch 128 --prototypes 65536

Both have the same backbone, begin with the same weights and see the same crops: 2 global ones of 32 pixels and 8 local
ones of 16. A step is the teacher's pass, the student's, both losses, the backward pass, clipping of each tensor, AdamW,
the centres and the teacher's average. The losses of the first steps are compared before anything is timed; the steps
then take turns, and the ratio is that of paired steps.
"""

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from measuring import interleaved, peak_memory, ratio, store, surroundings
from paucal.backbones import BackboneSpec
from paucal.objectives import SelfDistillation, SelfDistillationOptions
from paucal.objectives.distilled_network import StudentOrTeacher
from paucal.training.module import parameter_groups
from paucal.types import Batch, Crops, Progress
from plain.esvit_loss import PlainHead
from plain.esvit_step import PlainNetwork, PlainStep

MODEL = "esvit_swin_tiny_patch4_window7_224"
ARGUMENTS = {"patch_size": 4, "embed_dim": 64, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SIZES = [(32, 2), (16, 8)]  # pixels, crops
CROPS = [Crops(count, size, scale) for (size, count), scale in zip(SIZES, [(0.4, 1.0), (0.2, 0.5)], strict=True)]
LOW, HIGH, MOMENTUM, CLIP, RATE = 0.1, 0.04, 0.99, 3.0, 5e-4
DTYPES = {"fp32": None, "bf16": torch.bfloat16}
COMPARED = 3  # steps
Step = Callable[[list[Tensor]], Tensor]


def our_objective(options: argparse.Namespace) -> SelfDistillation:
    """Return the objective, whose momentum and weight decay stay as they are at the beginning."""
    torch.manual_seed(0)
    numbers = SelfDistillationOptions(
        out_dim=options.prototypes,
        hidden_dim=512,
        bottleneck_dim=128,
        freeze_last_layer=0,
        student_temperature=LOW,
        teacher_temperature=HIGH,
        warmup_teacher_temperature=HIGH,
        momentum=MOMENTUM,
        weight_decay_end=0.04,
        clip=CLIP,
    )
    spec = BackboneSpec(MODEL, 0, image_size=(32, 32), arguments=ARGUMENTS)
    return SelfDistillation(spec, CROPS, numbers, drop_path_rate=0.0).to(options.device).train()


def our_step(objective: SelfDistillation, options: argparse.Namespace) -> Step:
    """Return a step as `training` makes it."""
    groups = parameter_groups(objective, objective.parameter_group)
    for group in groups:
        group["weight_decay"] = 0.04 if group["decayed"] else 0.0
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)
    made = 0

    def step(crops: list[Tensor]) -> Tensor:
        nonlocal made
        # So long a run that momentum and decay stay where they begin.
        now = Progress(made, 1 << 40, 1 << 20)
        with torch.autocast(options.device, DTYPES[options.precision], enabled=DTYPES[options.precision] is not None):
            total = objective(Batch(torch.arange(len(crops[0])), crops), now).total
        total.backward()
        objective.before_step(now)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        made += 1
        objective.after_step(Progress(made, 1 << 40, 1 << 20))
        return total.detach()

    return step


def plain_step(objective: SelfDistillation, options: argparse.Namespace) -> Step:
    """Return the published program's step with the same weights."""
    step = PlainStep(plain_network(objective.student, options), LOW, HIGH, MOMENTUM, CLIP, RATE)
    dtype = DTYPES[options.precision]
    return torch.autocast(options.device, dtype, enabled=dtype is not None)(step)


def plain_network(network: StudentOrTeacher, options: argparse.Namespace) -> PlainNetwork:
    """Return a plain network with a copy of the weights of ours."""
    model = copy.deepcopy(network.backbone).model
    heads = {name: plain_head(network, name, options) for name in ("view", "region")}
    return PlainNetwork(model, **heads)


def plain_head(network: StudentOrTeacher, name: str, options: argparse.Namespace) -> PlainHead:
    """Return a plain head with the weights of ours; the lengths of its prototypes stay 1."""
    head = network.head(name)
    plain = PlainHead(network.backbone.dim, options.prototypes, 512, 128).to(options.device)
    plain.mlp.load_state_dict(head.mlp.state_dict())
    parts: Any = plain.last_layer.get_submodule("parametrizations.weight")
    with torch.no_grad():
        parts.original1.copy_(head.last_layer.weight_v)
        parts.original0.fill_(1.0)
    parts.original0.requires_grad_(False)
    return plain


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compare the first losses, then return times, and on a GPU memory."""
    draw = torch.Generator().manual_seed(0)
    sizes = [size for size, count in SIZES for _ in range(count)]
    crops = [torch.randn(options.batch, 3, size, size, generator=draw).to(options.device) for size in sizes]
    objective = our_objective(options)
    steps = {"plain": plain_step(objective, options), "ours": our_step(objective, options)}
    losses = {way: [step(crops).item() for _ in range(COMPARED)] for way, step in steps.items()}
    whole = {way: lambda step=step: step(crops) for way, step in steps.items()}
    seconds = interleaved(whole, options.repeats, options.device)
    return {
        "ratio": ratio(seconds, "plain", "ours"),
        "peak_memory_mib": {way: peak_memory(step, options.device) for way, step in whole.items()},
        "first_losses": losses,
        "settings": vars(options),
        "surroundings": surroundings(options.device),
        "seconds": seconds,
    }


def main() -> None:
    """Compare, measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prototypes", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    options = parser.parse_args()
    store(f"esvit_step_{options.device}_{options.precision}", measure(options))


if __name__ == "__main__":
    main()
