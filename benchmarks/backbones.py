"""Speed and memory of our backbones, compared with plain reimplementations of the original code.

    python benchmarks/backbones.py                                   # all families on the CPU, float32
    python benchmarks/backbones.py --device cuda --batch 64 --precision bf16 --compile
    python benchmarks/backbones.py --only cvt_13 esvit_swin_tiny_patch4_window7_224

Both compute the same function from the same parameters, which is checked before anything is timed. Forward passes and
training steps (forward, backward) alternate; a ratio of 1.2 means that ours processes 1.2 times as many images.
"""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import nn

import paucal.backbones
from measuring import interleaved, peak_memory, ratio, store, surroundings

assert paucal.backbones
# Name of the model, module of its transcription, side of the images, images on a CPU.
CASES: tuple[tuple[str, str, int, int], ...] = (
    ("dhvt_tiny_cifar_patch4", "dhvt", 32, 64),
    ("dhvt_tiny_imagenet_patch16", "dhvt", 224, 8),
    ("lvvit_t", "lvvit", 224, 8),
    ("t2t_vit_14", "t2t_vit", 224, 4),
    ("t2t_vit_t_14", "t2t_vit", 224, 4),
    ("cvt_13", "cvt", 224, 4),
    ("drloc_cvt_13", "cvt_drloc", 224, 4),
    ("esvit_cvt_tiny", "cvt_esvit", 224, 4),
    ("vil_tiny", "vil", 224, 4),
    ("esvit_vil_tiny", "vil_esvit", 224, 4),
    ("esvit_swin_tiny_patch4_window7_224", "swin_esvit", 224, 4),
    ("esvit_swin_tiny_patch4_window7_224", "swin_esvit", 96, 16),
    ("esvit_swin_tiny_patch4_window14_224", "swin_esvit", 96, 16),
)
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted({case[0] for case in CASES}), help="names of models")
    parser.add_argument("--batch", type=int, default=None, help="images; by default few, for a CPU")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=list(DTYPES), default="fp32")
    parser.add_argument("--compile", action="store_true", help="compile both")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args()
    suffix = "_compiled" if options.compile else ""
    name = f"backbones_{options.device}_{options.precision}{suffix}"
    results: list[dict[str, Any]] = []
    for case in CASES:
        if options.only is None or case[0] in options.only:
            results.append(compare(*case, options))
            # After each, so that a run that is cut short leaves what it has found.
            store(name, {"settings": vars(options), "surroundings": surroundings(options.device), "models": results})


def compare(name: str, module: str, side: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one model beside its transcription."""
    device = options.device
    torch.manual_seed(0)
    ours = timm.create_model(name, num_classes=100).to(device)
    plain = importlib.import_module(f"plain.{module}").Plain(ours)
    images = torch.randn(options.batch or batch, 3, side, side, device=device)
    difference = require_equal(ours, plain, images)
    if options.compile:
        ours.compile(backend=options.backend)
        plain.compile(backend=options.backend)
    result: dict[str, Any] = {"model": name, "side": side, "images": len(images), "largest_difference": difference}
    for task in ("forward", "step"):
        steps = {
            which: make(task, model, images, DTYPES[options.precision])
            for which, model in (("ours", ours), ("plain", plain))
        }
        seconds = interleaved(steps, options.repeats, device)
        middle = sorted(seconds["ours"])[len(seconds["ours"]) // 2]
        result[task] = {
            "images_per_second": round(len(images) / middle, 2),
            "ratio": ratio(seconds, "plain", "ours"),
            "peak_memory_mib": {which: peak_memory(step, device) for which, step in steps.items()},
        }
        print(f"{name} {side} {task}: {result[task]['ratio']['median']:.2f}", flush=True)
    return result


def require_equal(ours: nn.Module, plain: nn.Module, images: torch.Tensor) -> float:
    """Return the largest difference of the logits, relative to their size, in evaluation mode."""
    ours.eval()
    plain.eval()
    # A GPU would round what its convolutions multiply to 10 bits, each layout in its own way.
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    with torch.no_grad():
        theirs = plain(images)
        difference = float(((ours(images) - theirs).abs().max() / theirs.abs().max()).item())
    torch.backends.cudnn.allow_tf32 = before
    if difference > 1e-4:
        raise SystemExit(f"the two differ by {difference:.1e} of the largest logit: nothing is timed")
    return difference


def make(task: str, model: nn.Module, images: torch.Tensor, dtype: torch.dtype | None) -> Callable[[], None]:
    """Return a forward pass in evaluation mode, or a forward and backward pass in training mode."""
    device = images.device.type

    def forward() -> None:
        model.eval()
        with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype is not None):
            model(images)

    def step() -> None:
        model.train()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            total = model(images).float().square().mean()
        total.backward()
        model.zero_grad(set_to_none=True)

    return forward if task == "forward" else step


if __name__ == "__main__":
    main()
