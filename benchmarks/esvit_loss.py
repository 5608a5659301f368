"""One step of EsViT's losses, both heads forward and backward: time and peak memory, ours and a plain implementation's.

    python benchmarks/esvit_loss.py --images 8 --repeats 5
    python benchmarks/esvit_loss.py --images 8 32 64 --device cuda --precision bf16

K = 65,536 prototypes, 2 global crops of 49 cells and 8 local ones of 9, features of 768 channels, as for Swin-T. The
values of both are compared first. Peak memory is that of a process of its own that makes one step, less what it
had before; on a GPU, of its allocator during one step. Where the plain one does not fit, its memory is computed from
the tensors it keeps (scores, and two of their size per pair for the backward pass) and marked so.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measuring import interleaved, ratio, store, surroundings
from paucal.losses import EsvitTask, Targets, esvit_loss, region_targets, view_targets
from paucal.objectives.distilled_network import ProjectionHead
from plain.esvit_loss import PlainHead, plain_losses

PROTOTYPES, DIM, COUNTS = 65536, 768, [49, 49, *[9] * 8]
LOW, HIGH = 0.1, 0.04
DTYPES = {"fp32": None, "bf16": torch.bfloat16}


class Inputs:
    """Features of both networks and the heads, the same for both ways."""

    def __init__(self, images: int, device: str, prototypes: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def rows(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.images, self.device = images, device
        self.pooled = rows(images, len(COUNTS), DIM).requires_grad_()
        self.cells = [rows(images, count, DIM).requires_grad_() for count in COUNTS]
        self.goal, self.goal_cells = rows(images, 2, DIM), [rows(images, count, DIM) for count in COUNTS[:2]]
        self.centre = torch.zeros(prototypes, device=device)
        torch.manual_seed(0)
        self.heads = [ProjectionHead(DIM, prototypes).to(device) for _ in range(4)]

    def plain_heads(self) -> list[PlainHead]:
        """Return heads of the plain way with the same weights."""
        heads = []
        for head in self.heads:
            plain = PlainHead(DIM, len(head.last_layer.weight_v)).to(self.device)
            plain.mlp.load_state_dict(head.mlp.state_dict())
            plain.last_layer.weight = head.last_layer.scaled_prototypes().detach()  # the parametrization takes it apart
            lengths, _ = plain.last_layer.parameters()
            lengths.requires_grad_(False)
            heads.append(plain)
        return heads


def our_step(given: Inputs) -> Callable[[], Tensor]:
    """Return a step of `losses.esvit_loss`."""
    view, region, view_teacher, region_teacher = given.heads

    def task(head: ProjectionHead, teacher: ProjectionHead, rows: Tensor, goal: Tensor, targets: Targets) -> EsvitTask:
        with torch.no_grad():
            aim, prototypes = teacher.project(goal), teacher.last_layer.scaled_prototypes()
        return EsvitTask(
            head.project(rows), head.last_layer.scaled_prototypes(), aim, prototypes, given.centre, targets
        )

    def step() -> Tensor:
        targets = view_targets(given.images, 2, len(COUNTS), given.device)
        regions = region_targets([part.detach() for part in given.cells], given.goal_cells)
        cells, goal_cells = torch.cat(given.cells, 1), torch.cat(given.goal_cells, 1)
        tasks = (
            task(view, view_teacher, given.pooled, given.goal, targets),
            task(region, region_teacher, cells, goal_cells, regions),
        )
        total = esvit_loss(*tasks, student_temperature=LOW, teacher_temperature=HIGH).total
        total.backward()
        return total.detach()

    return step


def plain_step(given: Inputs) -> Callable[[], Tensor]:
    """Return a step of the published program's way."""
    view, region, view_teacher, region_teacher = given.plain_heads()

    def crop_major(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.flatten(0, 1) for part in parts])

    def step() -> Tensor:
        cells, goal_cells = crop_major(given.cells), crop_major(given.goal_cells)
        student = (view(crop_major(list(given.pooled.split(1, 1)))), region(cells), cells.detach())
        with torch.no_grad():
            goal = crop_major(list(given.goal.split(1, 1)))
            teacher = (view_teacher(goal), region_teacher(goal_cells), goal_cells)
        centres = (given.centre, given.centre)
        views, regions = plain_losses(student, teacher, COUNTS, given.images, centres, (LOW, HIGH))
        total = 0.5 * views + 0.5 * regions
        total.backward()
        return total.detach()

    return step


STEPS = {"ours": our_step, "plain": plain_step}


def under_precision(step: Callable[[], Tensor], options: argparse.Namespace) -> Callable[[], Tensor]:
    """Return the step in the chosen precision."""
    dtype = DTYPES[options.precision]
    return torch.autocast(options.device, dtype, enabled=dtype is not None)(step)


def peak_of(way: str, images: int, options: argparse.Namespace) -> int:
    """Return the peak memory in bytes of one step, in this process, less what there was before."""
    given = Inputs(images, options.device, options.prototypes)
    step = under_precision(STEPS[way](given), options)
    if options.device == "cuda":
        under_precision(lambda: given.goal[0] @ given.goal[0].T, options)()  # takes the libraries' own memory
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the inputs (Linux)
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """Return the bytes of memory that this process holds (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def child_peak(way: str, images: int, options: argparse.Namespace) -> int | None:
    """Return what `peak_of` measures, in a process of its own unless a GPU counts it; None where it does not fit."""
    if options.device == "cuda":
        torch.cuda.empty_cache()
        try:
            return peak_of(way, images, options)
        except torch.OutOfMemoryError:
            return None
    words = [sys.executable, __file__, "--child", way, "--images", str(images), "--prototypes", str(options.prototypes)]
    words += ["--device", options.device, "--precision", options.precision]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(json.loads(done.stdout)) if done.returncode == 0 else None


def computed_peak(images: int, prototypes: int) -> int:
    """Return the bytes that the plain way needs at least: scores, their scaled copies, and what backward needs."""
    student, teacher, pairs = sum(COUNTS) + len(COUNTS), 2 * COUNTS[0] + 2, 2 * COUNTS[0] + 16 * COUNTS[-1] + 18
    return images * prototypes * 4 * (2 * student + 2 * teacher + 2 * pairs)


def measure(images: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return time and memory for a number of images."""
    result: dict[str, Any] = {"images": images}
    peaks = {way: child_peak(way, images, options) for way in STEPS}
    fits = peaks["plain"] is not None and images <= options.timed_up_to
    plain = peaks["plain"] or computed_peak(images, options.prototypes)
    result["peak_bytes"] = {"ours": peaks["ours"], "plain": plain}
    result["plain_memory"] = "measured" if peaks["plain"] else "computed"
    result["memory_ratio"] = round(plain / peaks["ours"], 2) if peaks["ours"] else None
    if fits:
        given = Inputs(images, options.device, options.prototypes)
        steps = {way: under_precision(make(given), options) for way, make in STEPS.items()}
        values = {way: step().item() for way, step in steps.items()}
        result["values"] = values
        seconds = interleaved(steps, options.repeats, options.device)
        result["seconds"] = {way: sorted(times)[len(times) // 2] for way, times in seconds.items()}
        result["time_ratio"] = ratio(seconds, "plain", "ours")
    return result


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--prototypes", type=int, default=PROTOTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timed-up-to", type=int, default=1 << 20, help="images up to which both ways are timed")
    parser.add_argument("--child", choices=STEPS)
    options = parser.parse_args()
    if options.child:
        print(peak_of(options.child, options.images[0], options))
        return
    cases = [measure(images, options) for images in options.images]
    result = {"surroundings": surroundings(options.device), "settings": vars(options), "cases": cases}
    store(f"esvit_loss_{options.device}_{options.precision}", result)


if __name__ == "__main__":
    main()
