"""What DrLoc costs: a training step of Swin-T at 224 pixels with 64 pairs, over the same step without the loss.

    python benchmarks/drloc_overhead.py --device cuda --precision bf16 --batch 128
    python benchmarks/drloc_overhead.py --batch 8 --repeats 10

The paper reports 2.36 % (Table 14). The steps take turns; the ratio is that of paired steps. Where the machine scatters
by more than the loss costs, the loss alone is the better measure: its forward and backward pass on a given grid, with
the clipping and the optimizer step of its own weights, over a step without it.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from measuring import interleaved, ratio, store, surroundings
from paucal.backbones import BackboneSpec
from paucal.objectives import DrLoc, Supervised
from paucal.types import Batch, Features, Progress


def make_step(options: argparse.Namespace, with_drloc: bool, checkpointing: bool = False) -> Callable[[], None]:
    """Return a whole training step: forward, backward, clipping, AdamW."""
    size, device = options.size, options.device
    torch.manual_seed(0)
    backbone = BackboneSpec(options.model, 100, image_size=(size, size)).build(drop_path_rate=0.2)
    if checkpointing:
        backbone.model.set_grad_checkpointing(True)  # type: ignore[operator]
    drloc = DrLoc.from_preset("paper", [backbone.dim], [backbone.grid], model_name=options.model, n_pairs=options.pairs)
    objective = Supervised(backbone, {"drloc": drloc} if with_drloc else {}).to(device).train()
    if options.compile:
        for module in objective.compilable():
            module.compile(backend=options.backend)
    images = torch.randn(options.batch, 3, size, size, device=device)
    batch = Batch(torch.arange(options.batch), [images], torch.arange(options.batch, device=device) % 100)
    return stepping(objective, lambda: objective(batch, Progress(0, 100, 10)).total, options)


def make_alone(options: argparse.Namespace) -> Callable[[], None]:
    """Return the part of a step that DrLoc adds, on a grid that asks for its gradient."""
    torch.manual_seed(0)
    side = options.size
    backbone = BackboneSpec(options.model, 100, image_size=(side, side)).build()
    drloc = DrLoc.from_preset("paper", [backbone.dim], [backbone.grid], model_name=options.model, n_pairs=options.pairs)
    drloc = drloc.to(options.device).train()
    grid = torch.randn(options.batch, backbone.dim, *backbone.grid, device=options.device, requires_grad=True)
    batch = Batch(torch.arange(options.batch), [])

    def loss() -> Tensor:
        grid.grad = None
        return drloc(Features([grid], grid.mean((2, 3)), None), batch, Progress(0, 100, 10))

    return stepping(drloc, loss, options)


def stepping(module: nn.Module, loss: Callable[[], Tensor], options: argparse.Namespace) -> Callable[[], None]:
    """Return a forward and backward pass, clipping and AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]

    def step() -> None:
        with torch.autocast(options.device, dtype, enabled=dtype is not None):
            total = loss()
        total.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the loss costs."""
    steps = {"with": make_step(options, True), "without": make_step(options, False), "alone": make_alone(options)}
    seconds = interleaved(steps, options.repeats, options.device)
    ratios = {"ratio": ratio(seconds, "with", "without"), "alone_over_without": ratio(seconds, "alone", "without")}
    return {**ratios, "settings": vars(options), "surroundings": surroundings(options.device), "seconds": seconds}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args()
    store(f"drloc_overhead_{options.device}", measure(options))


if __name__ == "__main__":
    main()
