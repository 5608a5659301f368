"""All ablations of DHVT's supplement (Tables 2 to 5, section 2.2.2, Figures 1 and 2) as one study at any scale.

Rows that mean the same model are trained once. A run's epoch is the best on the validation images, where the paper
takes the best on the test images; the test images are read once, at its end. Every run is stored as it ends, and what
is stored is not repeated. The table and the figures' curves are drawn from all that is stored.

    python benchmarks/dhvt_ablations.py ../shared/data/cifar10 --width 48 --depth 4 --images 2000 --epochs 20 --batch 64
    python benchmarks/dhvt_ablations.py cifar100 --data-root sets --seeds 0 1 2         # the paper's scale
    python benchmarks/dhvt_ablations.py ../shared/data/cifar10 --only "Table 3" "Figure 2" --list

With `--batch` other batches of the paper shrink alike: 256 becomes half of it, 128 a quarter.
"""

import argparse
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from measuring import surroundings
from paucal.backbones.families.dhvt.ablations import ABLATIONS, SMALL, TINY, Ablation
from paucal.backbones.families.dhvt.parts import DhvtParts
from small_data import make_part, n_val, run_one
from small_data_table import spread

RESULTS = Path(__file__).parent / "results"
PAPER_BATCH = 512
HEADS = {TINY: 4, SMALL: 8}
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One number of a published table: a row at a batch size.

    Attributes:
        row: of the supplement.
        batch: images of a step in the paper.
        published: top-1 in percent; None for a curve.
    """

    row: Ablation
    batch: int
    published: float | None

    @property
    def key(self) -> str:
        """What has to be trained: model, arguments that are not the defaults, and batch, as text."""
        usual = {**vars(DhvtParts()), "num_heads": HEADS[self.row.model]}
        differing = {name: value for name, value in sorted(self.row.arguments.items()) if value != usual[name]}
        return json.dumps([self.row.model, differing, self.batch])


def digest(key: str) -> str:
    """Return a short name of a run folder for a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]


def cells(only: Sequence[str]) -> list[Cell]:
    """Return the cells whose source or name contains one of the words; all of them without words."""
    found = []
    for row in ABLATIONS:
        if not only or any(word.lower() in f"{row.source} {row.name}".lower() for word in only):
            scores: Mapping[int, float | None] = row.accuracy or {PAPER_BATCH: None}
            found += [Cell(row, batch, score) for batch, score in scores.items()]
    return found


def settings_of(cell: Cell, options: argparse.Namespace) -> Row:
    """Return the settings of a cell's run at the study's scale, but for the seed."""
    width = options.width * (2 if cell.row.model == SMALL else 1)
    scale = {"embed_dim": width, "depth": options.depth}
    words = [f"{name}={json.dumps(value)}" for name, value in {**cell.row.arguments, **scale}.items()]
    batch = max(2, options.batch * cell.batch // PAPER_BATCH)
    chosen = {"recipe": options.recipe, "model": cell.row.model, "model_args": words, "img_size": [32]}
    length = {"epochs": options.epochs, "schedule_epochs": options.epochs, "batch_size": batch}
    warmup = {} if options.epochs >= 100 else {"warmup_epochs": options.epochs / 10}
    rate = {} if options.lr is None else {"lr": options.lr * batch / options.batch}
    return {**chosen, **length, **warmup, **rate, "method": "supervised", "workers": options.workers}


def table(study: Sequence[Cell], rows: Sequence[Row]) -> str:
    """Return a Markdown table: published and measured scores, and both as differences from the table's first row."""
    lines = [
        "| source | row | batch | published | ours | published change | our change |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in study:
        first = next(one for one in study if (one.row.source, one.batch) == (cell.row.source, cell.batch))
        scores, base = scores_of(cell, rows), scores_of(first, rows)
        changes = [scores[seed] - base[seed] for seed in scores if seed in base]
        known = cell.published is not None and first.published is not None
        published = f"{cell.published - first.published:+.2f}" if known else ""  # type: ignore[operator]
        words = [cell.row.source, cell.row.name, cell.batch, cell.published or "", spread(list(scores.values()))]
        ours = "" if cell is first else spread(changes, "+")
        lines.append(f"| {' | '.join(map(str, words))} | {'' if cell is first else published} | {ours} |")
    return "\n".join(lines)


def scores_of(cell: Cell, rows: Sequence[Row]) -> dict[int, float]:
    """Return the test accuracy in percent by seed."""
    return {row["seed"]: 100 * row["test_top1"] for row in rows if row["key"] == cell.key}


def draw(study: Sequence[Cell], rows: Sequence[Row], source: str) -> Figure:
    """Draw a figure of the supplement: validation accuracy over epochs, the mean over seeds, a line per row."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(title=source, xlabel="epoch", ylabel="validation accuracy")
    for cell in study:
        curves = [row["val_top1"] for row in rows if row["key"] == cell.key]
        if cell.row.source == source and curves:
            means = [statistics.mean(values) for values in zip(*curves, strict=True)]
            axes.plot(range(1, len(means) + 1), means, label=cell.row.name)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)
    return figure


def write(path: Path, rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Store all runs, the table and the figures."""
    scale = {name: getattr(options, name) for name in ("width", "depth", "epochs", "batch", "images", "recipe")}
    facts = {"data": options.data.name, "scale": scale, "surroundings": surroundings("cpu")}
    path.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(cells([]), rows) + "\n")
    for number in (1, 2):
        draw(cells([]), rows, f"Figure {number}").savefig(path.with_name(f"{path.stem}_figure{number}.png"), dpi=110)


def main() -> None:
    """Train what is asked for and not stored, storing each run as it ends; then print the table."""
    options = arguments()
    study, stored = cells(options.only), RESULTS / f"{options.name}.json"
    unique = {cell.key: cell for cell in study}
    if options.list:
        raise SystemExit("\n".join(unique))
    rows: list[Row] = json.loads(stored.read_text())["runs"] if stored.exists() else []
    data, part = options.data, {}
    if options.images:
        data = make_part(options.data, options.work / f"images-{options.images}", options.images)
        part["val_fraction"] = n_val(options.images) / (options.images + n_val(options.images))
    place = {} if options.data_root is None else {"data_root": options.data_root}
    for seed in options.seeds:
        for key, cell in unique.items():
            if any((row["key"], row["seed"]) == (key, seed) for row in rows):
                continue
            settings = {**settings_of(cell, options), **part, **place, "seed": seed}
            rows.append(
                {"key": key, "seed": seed} | run_one(data, options.work / f"run-{digest(key)}-{seed}", settings)
            )
            write(stored, rows, options)
    print(table(study, rows))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Parquet files with --images, else any data paucal reads")
    parser.add_argument("--data-root", help="folder of the published sets")
    parser.add_argument("--work", type=Path, default=Path("runs/dhvt_ablations"), help="where runs go")
    parser.add_argument("--name", default="dhvt_ablations", help="of the results; one for each scale")
    parser.add_argument("--only", nargs="+", default=[], help="parts of sources or names, such as 'Table 3'")
    parser.add_argument("--list", action="store_true", help="print what would be trained")
    parser.add_argument("--recipe", default="dhvt-cifar", help="named recipe of all runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch", type=int, default=PAPER_BATCH, help="for the paper's 512")
    parser.add_argument(
        "--lr", type=float, help="peak rate at that batch, to which it is in proportion; else the recipe's"
    )
    parser.add_argument("--width", type=int, default=192, help="channels of DHVT-T; DHVT-S has twice as many")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--images", type=int, default=0, help="training images; all there are where it is not given")
    parser.add_argument("--workers", type=int, default=0, help="processes that load images")
    return parser.parse_args()


if __name__ == "__main__":
    main()
