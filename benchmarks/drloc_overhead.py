"""What DrLoc costs: a training step of Swin-T at 224 pixels with 64 pairs, over the same step without the loss.

    python benchmarks/drloc_overhead.py --device cuda --precision bf16 --batch 128
    python benchmarks/drloc_overhead.py --batch 8 --repeats 10

The paper reports 2.36 % (Table 14). The steps take turns; the ratio is that of paired steps.
"""

import argparse
from collections.abc import Callable

import torch

from measuring import interleaved, ratio, store, surroundings
from paucal.backbones import BackboneSpec
from paucal.objectives import DrLoc, Supervised
from paucal.types import Batch, Progress


def make_step(options: argparse.Namespace, with_drloc: bool) -> Callable[[], None]:
    """Return a whole training step: forward, backward, clipping, AdamW."""
    size, device = options.size, options.device
    torch.manual_seed(0)
    backbone = BackboneSpec(options.model, 100, image_size=(size, size)).build(drop_path_rate=0.2)
    drloc = DrLoc.from_preset("paper", [backbone.dim], [backbone.grid], model_name=options.model, n_pairs=options.pairs)
    objective = Supervised(backbone, {"drloc": drloc} if with_drloc else {}).to(device).train()
    if options.compile:
        for module in objective.compilable():
            module.compile()
    optimizer = torch.optim.AdamW(objective.parameters(), fused=True)
    images = torch.randn(options.batch, 3, size, size, device=device)
    batch = Batch(torch.arange(options.batch), [images], torch.arange(options.batch, device=device) % 100)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]

    def step() -> None:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            total = objective(batch, Progress(0, 100, 10)).total
        total.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


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
    options = parser.parse_args()
    steps = {"with": make_step(options, True), "without": make_step(options, False)}
    seconds = interleaved(steps, options.repeats, options.device)
    result = {"settings": vars(options), "surroundings": surroundings(options.device), "seconds": seconds}
    store(f"drloc_overhead_{options.device}", {"ratio": ratio(seconds, "with", "without"), **result})


if __name__ == "__main__":
    main()
