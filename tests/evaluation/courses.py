"""Rows of metrics of runs of self-distillation, made up and recorded."""

import math

from paucal.evaluation.collapse import COLUMNS

K, D, B = 4096, 384, 64
CHANCE = math.log(K)


def course(epochs: int = 8, steps: int = 200, head: str = "", **columns) -> list[dict[str, float]]:
    """Rows of a run; a column is a number or a function of the epoch from 1. What is not given is healthy."""
    healthy = {
        "teacher_entropy": lambda e: max(2.5, CHANCE - 0.1 * 2**e),
        "batch_entropy": lambda e: min(CHANCE, max(2.5, CHANCE - 0.1 * 2**e) + min(3.5, 0.1 * 2**e)),
        "feature_spread": 0.6,
        "effective_rank": lambda e: 1.6 + 2 * e,
        "feature_norm": 15.0,
        "centre_norm": 1.5,
        "teacher_temperature": 0.04,
        "teacher_distance": 0.05,
        "train_loss": lambda e: max(4.0, CHANCE - 0.1 * 2**e),
        "skipped_steps": 0.0,
    }
    rows = []
    for epoch in range(1, epochs + 1):
        row: dict[str, float] = {"epoch": float(epoch), "step": float(steps * epoch)}
        for name, value in {**healthy, **columns}.items():
            place = name if name not in COLUMNS else f"{head}{name}"
            row[place] = value(epoch) if callable(value) else value
        rows.append(row)
    return rows


# Digits, a small ViT, 256 prototypes, batches of 64, temperature 0.04 to 0.07: it never leaves ln K.
MEASURED = ("teacher_entropy", "batch_entropy", "feature_spread", "effective_rank")
STUCK = [
    {"step": 28.0 * number, **dict(zip(MEASURED, values, strict=True))}
    for number, values in enumerate(
        [
            (3.157, 4.141, 0.588, 1.575),
            (5.213, 5.372, 0.554, 1.684),
            (5.487, 5.512, 0.506, 1.735),
            (5.528, 5.536, 0.469, 1.813),
            (5.538, 5.542, 0.439, 1.902),
            (5.541, 5.544, 0.418, 1.941),
        ],
        start=1,
    )
]

ONE_PROTOTYPE = {"teacher_entropy": 0.01, "batch_entropy": 0.02, "train_loss": 0.05}
SAME_MIXTURE = {"teacher_entropy": 3.0, "batch_entropy": 3.01}
SAME_SPREAD_OUT = {"teacher_entropy": 6.0, "batch_entropy": 6.01}
EQUAL_FEATURES = {"feature_spread": 0.004}
UNIFORM = {"teacher_entropy": CHANCE - 0.01, "batch_entropy": CHANCE - 0.005, "train_loss": CHANCE}
LINE = {"effective_rank": 1.05}

# CIFAR-10 (10,000 images), a Swin of two stages, 2048 prototypes, batches of 64, temperature 0.04: the view task alone,
# and below the region head of a run of both tasks.
LEARNING = [
    {"step": 156.0 * number, **dict(zip((*MEASURED, "teacher_distance", "train_loss"), values, strict=True))}
    for number, values in enumerate(
        [
            (4.766, 6.365, 0.820, 2.207, 0.0358, 6.612),
            (4.648, 5.852, 0.670, 2.805, 0.0744, 5.516),
            (6.092, 7.103, 0.672, 2.948, 0.0525, 6.741),
            (5.915, 7.092, 0.686, 3.224, 0.0579, 6.660),
        ],
        start=1,
    )
]
LEARNING_REGIONS = [
    {f"region_{name}": value for name, value in zip(MEASURED, values, strict=True)}
    for values in [(2.993, 4.659, 0.896, 3.274), (4.207, 5.273, 0.745, 2.158)]
]
