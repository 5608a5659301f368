"""Training and prediction on idle and on busy cores, with the earlier and with the present handling of threads.

    python benchmarks/busy.py

Each variant is a process that stays alive. All variants are measured in turn, on idle and on busy cores, so that ratios
compare measurements made one after the other. Variants:

- before: torch is imported before paucal, which can then set nothing: threads spin for milliseconds before they sleep;
- before, threads chosen: the same, and the number of threads that is quickest at that moment (`choose_threads`);
- after: paucal is imported first, as the command line does;
- after, threads chosen;
- after, one thread;
- passive: OMP_WAIT_POLICY=passive, with which threads sleep at once.

Work: a training step (EfficientNet-Lite0, 16 images of 224 pixels), `paucal.predict` for 64 images of 224 pixels with
such a model, and the built-in run (`paucal train` without data, --epochs 2), as whole commands. Busy means that
programs that only count run at the same time: half as many as cores, at least one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLES = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
FIRST = {"before": "import torch, paucal", "after": "import paucal, torch"}
WAYS: dict[str, tuple[str, dict[str, str], str]] = {  # what is imported first, variables, threads
    "before": ("before", {}, "all"),
    "before, threads chosen": ("before", {}, "chosen"),
    "after": ("after", {}, "all"),
    "after, threads chosen": ("after", {}, "chosen"),
    "after, one thread": ("after", {}, "one"),
    "passive": ("after", {"OMP_WAIT_POLICY": "passive"}, "all"),
}
STATES = ("quiet", "busy")
MODEL, SIDE, BATCH, PREDICTED = "tf_efficientnet_lite0", 224, 16, 64
COMMAND = "import sys; sys.argv[0] = 'paucal'; {first}; from paucal.cli.main import main; sys.exit(main())"


@contextmanager
def load(count: int) -> Iterator[None]:
    """Let programs that do nothing but count run beside the block."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.3)  # until they run
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without those of OpenMP, and some more."""
    return {**{name: value for name, value in os.environ.items() if name not in VARIABLES}, **more}


class Worker:
    """A process that does work on demand, in one of the ways."""

    def __init__(self, way: str, run: Path) -> None:
        first, more, threads = WAYS[way]
        code = (
            f"{FIRST[first]}; import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import busy; busy.serve()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, threads, str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(more),
            text=True,
        )

    def do(self, task: str) -> tuple[float, int]:
        """Return the seconds that a task takes, and the threads that it was done with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{task}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("took "):
                return float(line.split()[1]), int(line.split()[2])
        raise SystemExit(f"a worker ended in {task!r}")

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def serve() -> None:
    """Do the tasks that are named on the standard input; what a `Worker` runs."""
    import torch

    from paucal.cores import choose_threads

    threads, run = sys.argv[1:]
    if threads == "one":
        torch.set_num_threads(1)
    every, tasks = torch.get_num_threads(), prepared_tasks(Path(run))
    for line in sys.stdin:
        step = tasks[line.strip()]
        if threads == "chosen":
            torch.set_num_threads(every)
            choose_threads(step)
        else:
            step()  # warms up
        begin = time.perf_counter()
        step()
        print("took", time.perf_counter() - begin, torch.get_num_threads(), flush=True)


def prepared_tasks(run: Path) -> dict[str, Callable[[], object]]:
    """Return functions that make a training step, and that predict."""
    import timm
    import torch

    import paucal

    torch.manual_seed(0)
    model = timm.create_model(MODEL, num_classes=10).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, labels = torch.randn(BATCH, 3, SIDE, SIDE), torch.arange(BATCH) % 10

    def train() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    trained = paucal.load(run)
    return {"training": train, "prediction": lambda: list(paucal.predict(trained, run.parent / "images"))}


def make_run(work: Path) -> Path:
    """Write images, and a run with a model of them that has hardly learned; return the run."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(PREDICTED):
        folder = work / "images" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    words = [
        "train",
        str(work / "images"),
        "--model",
        MODEL,
        "--init",
        "none",
        "--img-size",
        str(SIDE),
        "--epochs",
        "1",
    ]
    call(FIRST["after"], [*words, "--method", "supervised", "--device", "cpu", "--output", str(work / "run")])
    return work / "run"


def call(first: str, words: Sequence[str]) -> float:
    """Return the seconds that a command of paucal takes."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(first=first), *words],
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    return time.perf_counter() - begin


def in_turns(ways: Sequence[str], run: Path, tasks: Sequence[str], repeats: int, others: int) -> dict[str, Any]:
    """Return seconds by task, state and way, and the threads that were used."""
    workers = {way: Worker(way, run) for way in ways}
    seconds = {task: {state: {way: [] for way in ways} for state in STATES} for task in tasks}
    threads: dict[str, Any] = {task: {state: {way: [] for way in ways} for state in STATES} for task in tasks}
    try:
        for way in ways:
            workers[way].do(tasks[0])  # loads everything
        for _ in range(repeats):
            for state in STATES:
                with load(others if state == "busy" else 0):
                    for task in tasks:
                        for way in ways:
                            took, used = workers[way].do(task)
                            seconds[task][state][way].append(took)
                            threads[task][state][way].append(used)
    finally:
        for worker in workers.values():
            worker.end()
    return {"seconds": seconds, "threads": threads}


def built_in(work: Path, epochs: int, repeats: int, others: int) -> dict[str, dict[str, list[float]]]:
    """Return seconds of the whole built-in run by state and way."""
    found: dict[str, dict[str, list[float]]] = {state: {way: [] for way in FIRST} for state in STATES}
    for number in range(repeats):
        for state in STATES:
            for way, first in FIRST.items():
                output = work / f"built-in-{number}-{state}-{way}"
                words = ["train", "--epochs", str(epochs), "--device", "cpu", "--output", str(output)]
                with load(others if state == "busy" else 0):
                    found[state][way].append(call(first, words))
    return found


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="turns of training and prediction")
    parser.add_argument("--runs", type=int, default=3, help="turns of the built-in run; 0 leaves it out")
    parser.add_argument("--epochs", type=int, default=2, help="of the built-in run")
    parser.add_argument("--tasks", nargs="+", choices=["training", "prediction"], default=["training", "prediction"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--others", type=int, help="programs beside it; by default half as many as cores")
    parser.add_argument("--name", default="busy_cpu", help="of the stored result")
    options = parser.parse_args()
    from measuring import ratio, spread, store, surroundings
    from paucal.cores import count_usable_cores

    others = options.others or max(1, count_usable_cores() // 2)
    with tempfile.TemporaryDirectory() as work:
        found = in_turns(options.ways, make_run(Path(work)), options.tasks, options.repeats, others)
        if options.runs:
            found["seconds"]["built-in run"] = built_in(Path(work), options.epochs, options.runs, others)
    images = {"training": BATCH, "prediction": PREDICTED, "built-in run": 1}
    rows: dict[str, Any] = {}
    for task, states in found["seconds"].items():
        row: dict[str, Any] = {"images": images[task]}
        for state, ways in states.items():
            base = next(iter(ways))
            row[state] = {
                "milliseconds_an_image": {
                    way: spread([1000 * one / images[task] for one in times]) for way, times in ways.items()
                },
                f"times_as_long_as_{base}": {way: ratio(ways, way, base) for way in ways if way != base},
            }
        row["busy_over_quiet"] = {
            way: ratio({"busy": times, "quiet": states["quiet"][way]}, "busy", "quiet")
            for way, times in states["busy"].items()
        }
        rows[task] = row
    settings = {"cores": count_usable_cores(), "others": others, "load_before": os.getloadavg()[0], **vars(options)}
    facts = {"threads_used": found["threads"], "settings": settings, "surroundings": surroundings("cpu")}
    store(options.name, {"rows": rows, **facts})
    for task, row in rows.items():
        for way in row["busy_over_quiet"]:
            quiet, busy = (row[state]["milliseconds_an_image"][way]["median"] for state in STATES)
            print(f"| {task} | {way} | {quiet:.0f} | {busy:.0f} | {row['busy_over_quiet'][way]['median']:.1f} |")


if __name__ == "__main__":
    main()
