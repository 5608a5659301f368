"""Detection of collapse from the metrics that a pre-training run records.

Pre-training can fail in four ways. Constant output: the teacher gives every image the same output, and the loss falls
towards 0. Uniform output: the teacher's output for every image is uniform, and the loss stays at ln K. Dimensional
collapse: the features differ, but only along a single line. Divergence: the loss or the features grow without bound.
Centring prevents constant output but favours uniform output. A low teacher temperature prevents uniform output but
favours constant output (DINO, arXiv:2104.14294, section 5.3). So these two failures need opposite remedies.

At the start, even a healthy run has nearly uniform outputs and nearly one-dimensional features. So only non-finite
values are reported during a grace period. Afterwards, a failure is reported only if its symptom persists for several
consecutive epochs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Row = Mapping[str, float]
Kind = Literal["constant output", "uniform output", "dimensional collapse", "divergence"]

# Columns of `metrics.csv` from which a collapse is detected; each value is a mean over an epoch. The columns of the
# region head start with `region_`. A column that is missing from a row, or NaN, is treated as healthy.
COLUMNS = {
    "teacher_entropy": "mean entropy of the teacher's distribution of an image, nats",
    "batch_entropy": "entropy of the teacher's distributions averaged over a batch, nats",
    "feature_spread": "losses.feature_spread of the teacher's features",
    "effective_rank": "losses.effective_rank of the teacher's features",
    "feature_norm": "mean L2 norm of the teacher's features",
    "centre_norm": "L2 norm of the centre; exactly 0 if outputs are not centred",
    "teacher_temperature": "temperature of the teacher",
    "teacher_distance": "L2 norm of teacher minus student weights, divided by the L2 norm of the student weights",
}

GRACE_STEPS = 500  # number of first optimizer steps during which only non-finite values are reported
PATIENCE = 3  # number of consecutive epochs that must show a symptom before a failure is reported
# Outputs count as uniform if exp(entropy) is at least this fraction of the K prototypes. In other words, the entropy is
# at least ln K - 0.22.
UNIFORM_FRACTION = 0.8
# An output that is equal for all images counts as uniform if its entropy is at least this fraction of ln K. Otherwise
# the output counts as constant.
UNIFORM_ENTROPY = 0.5
# A uniform output is not reported if the information that the output contains about the image grew by this factor over
# the last `PATIENCE` epochs.
RECOVERY_FACTOR = 1.5
# Outputs count as constant if the batch entropy is at most this fraction of the entropy that a batch has if each image
# has its own prototype. For a batch of 64 images, the limit is 0.4 nats, which corresponds to 1.5 prototypes.
CONSTANT_ENTROPY = 0.1
# Outputs count as equal if the information (in nats) that they contain about the image is at most this fraction of the
# largest possible information.
EQUAL_INFORMATION = 0.01
# Features count as equal if their spread (`losses.feature_spread`) is below this value. Untrained networks have a
# spread of 0.3 to 0.6; the class tokens of tiny networks have a spread of 0.04.
EQUAL_SPREAD = 0.01
MIN_SPREAD = 0.1  # smallest spread of features that have not collapsed to a point
# Features count as collapsed to few directions if their effective rank is at most LINE_RANK (1.2; training on small
# digit images starts at 1.6). They also count as collapsed if the rank is at most FRACTION_OF_HIGHEST times the highest
# rank so far and at most FRACTION_OF_DIRECTIONS times the rank of independent features (see `_find_low_rank`).
LINE_RANK, FRACTION_OF_HIGHEST, FRACTION_OF_DIRECTIONS = 1.2, 0.25, 0.05
MIN_DIRECTIONS = 8.0  # with fewer possible directions (tiny batches), a low rank is normal and not reported
MAX_NORM_GROWTH = 100.0  # growth factor of the features' norm that counts as divergence
# A loss above ln K plus this fraction of ln K (but at least 1 nat) counts as divergence, because an output that ignores
# the image has a loss of at most ln K.
LOSS_MARGIN = 0.2


@dataclass(frozen=True)
class Verdict:
    """A failure of pre-training."""

    kind: Kind
    sentence: str  # kind of the failure, and the metrics that show it
    advice: str


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of one head and of a batch, from which the limits for the head's metrics are computed."""

    head: str  # "view" or "region"
    out_dim: int  # number of prototypes K
    feature_dim: int  # number of features D
    batch: int | None  # number of images whose outputs and features are compared; None (unknown) counts as infinite

    @property
    def max_entropy(self) -> float:
        """The largest possible batch entropy in nats: every image has a different prototype."""
        return math.log(min(self.out_dim, max(2, self.batch or self.out_dim)))

    def read(self, row: Row, name: str) -> float:
        """Return the value of this head's column; NaN if the column is missing."""
        return row.get(name if self.head == "view" else f"region_{name}", math.nan)


def find_collapse(
    rows: Sequence[Row],
    out_dim: int,
    feature_dim: int,
    *,
    batch: int | None = None,
    grace_steps: int = GRACE_STEPS,
    patience: int = PATIENCE,
) -> Verdict | None:
    """Return the failure that the metrics of a run show after the newest epoch; None if the run is healthy.

    The rows of the epochs so far have the columns in `COLUMNS` and "step", "skipped_steps" and "train_loss". If the
    view loss and the region loss are known separately, rows also have "train_view" and "train_region". `out_dim` is the
    number of prototypes K of a head, and `batch` the number of images per process, over which entropies and ranks are
    computed; None if it is unknown.
    """
    if out_dim < 2 or patience < 1:
        raise ValueError(f"expected at least 2 prototypes and 1 epoch of patience, got {out_dim} and {patience}")
    verdict, later_rows = _find_non_finite(rows), [row for row in rows if row.get("step", math.inf) >= grace_steps]
    if verdict is not None or len(later_rows) < patience:
        return verdict
    for head in ("view", "region"):
        sizes = HeadSizes(head, out_dim, feature_dim, batch)
        for find_failure in (_find_divergence, _find_constant_output, _find_uniform_output, _find_low_rank):
            verdict = verdict or find_failure(later_rows, sizes, patience)
    return verdict


def grace_period(total_steps: int, warmup_steps: int) -> int:
    """Return the number of first steps during which no collapse is reported.

    The grace period lasts as long as the warm-up, but at least 500 steps or a quarter of all steps, whichever is less.
    """
    return max(warmup_steps, min(GRACE_STEPS, total_steps // 4))


def _find_non_finite(rows: Sequence[Row]) -> Verdict | None:
    """Return a verdict if the newest epoch skipped at least half of its steps or has a non-finite loss."""
    if not rows:
        return None
    row, previous_step = rows[-1], rows[-2].get("step", 0.0) if len(rows) > 1 else 0.0
    skipped, steps = row.get("skipped_steps", 0.0), row.get("step", math.nan) - previous_step
    if skipped > 0 and skipped >= 0.5 * steps:
        subject = "the last step was" if steps == 1 else f"{skipped:.0f} of the last {steps:.0f} steps were"
        return _make_verdict("divergence", f"{subject} not finite and skipped", row)
    losses = [name for name in row if name.startswith("train_") and not math.isfinite(row[name])]
    return _make_verdict("divergence", f"{losses[0]} is {row[losses[0]]}", row) if losses else None


# Each of the following `_find_...` functions returns a verdict if the last `patience` rows all show its symptom. The
# callers ensure that there are at least `patience` rows.


def _find_divergence(rows: Sequence[Row], sizes: HeadSizes, patience: int) -> Verdict | None:
    uniform_entropy = math.log(sizes.out_dim)
    max_loss = uniform_entropy + max(1.0, LOSS_MARGIN * uniform_entropy)
    if all(_head_loss(row, sizes) > max_loss for row in rows[-patience:]):
        text = (
            f"the {sizes.head} loss is {_head_loss(rows[-1], sizes):.2f}, but a uniform output would have a loss of "
            f"only ln {sizes.out_dim} = {math.log(sizes.out_dim):.3f} nats"
        )
        return _make_verdict("divergence", text, rows[-1])
    return _find_growing_features(rows, sizes, patience, f"the {sizes.head} features")


def _find_growing_features(rows: Sequence[Row], sizes: HeadSizes, patience: int, subject: str) -> Verdict | None:
    norms = [norm for row in rows if math.isfinite(norm := sizes.read(row, "feature_norm"))]
    for row in rows[-patience:]:
        if not norms or not sizes.read(row, "feature_norm") > MAX_NORM_GROWTH * norms[0]:
            return None
    text = f"{subject} grew from a norm of {norms[0]:.3g} to {norms[-1]:.3g}"
    return _make_verdict("divergence", text, rows[-1])


def _find_constant_output(rows: Sequence[Row], sizes: HeadSizes, patience: int) -> Verdict | None:
    """Return a verdict if all images share a prototype, have equal features, or have equal but not uniform outputs."""
    for row in rows[-patience:]:
        are_alike = _are_outputs_equal(row, sizes) or sizes.read(row, "feature_spread") < EQUAL_SPREAD
        share_prototype = sizes.read(row, "batch_entropy") <= CONSTANT_ENTROPY * sizes.max_entropy
        if not share_prototype and (not are_alike or _are_outputs_uniform(row, sizes)):
            return None
    entropy, spread = (sizes.read(rows[-1], name) for name in ("batch_entropy", "feature_spread"))
    numbers = [f"a whole batch uses about {math.exp(entropy):.3g} prototypes"] if entropy == entropy else []
    numbers += [f"spread of the features {spread:.3f}"] if spread == spread else []
    text = f"the teacher's {sizes.head} head gives all images the same output ({'; '.join(numbers)})"
    return _make_verdict("constant output", text, rows[-1])


def _find_uniform_output(rows: Sequence[Row], sizes: HeadSizes, patience: int) -> Verdict | None:
    if not all(_are_outputs_uniform(row, sizes) for row in rows[-patience:]):
        return None
    last, uniform_entropy = rows[-1], math.log(sizes.out_dim)
    information = []  # nats that an output contains about its image; an upper bound if the batch entropy is unknown
    for row in (rows[-patience], last):
        entropy = sizes.read(row, "batch_entropy")
        information.append((uniform_entropy if entropy != entropy else entropy) - sizes.read(row, "teacher_entropy"))
    # In a recovering run, the information grows exponentially, so a run whose information grows is not reported.
    if patience > 1 and information[1] > RECOVERY_FACTOR * max(information[0], 1e-3):
        return None
    entropy = sizes.read(last, "teacher_entropy")
    value = f"entropy {entropy:.3f}" if entropy == entropy else f"loss {_head_loss(last, sizes):.3f}"
    number = math.exp(entropy) if entropy == entropy else sizes.out_dim
    text = (
        f"the teacher's {sizes.head} head spreads every image over about {number:.0f} of its {sizes.out_dim} "
        f"prototypes ({value}; ln {sizes.out_dim} = {uniform_entropy:.3f} if uniform)"
    )
    return _make_verdict("uniform output", text, last)


def _find_low_rank(rows: Sequence[Row], sizes: HeadSizes, patience: int) -> Verdict | None:
    ranks = [rank for row in rows if math.isfinite(rank := sizes.read(row, "effective_rank"))]
    batch, dim = sizes.batch, sizes.feature_dim
    # Effective rank of independent, normally distributed features of a batch.
    expected_rank = batch * dim / (batch + dim) if batch else dim
    if expected_rank < MIN_DIRECTIONS or not ranks:
        return None
    max_rank = max(LINE_RANK, min(FRACTION_OF_HIGHEST * max(ranks), FRACTION_OF_DIRECTIONS * expected_rank))
    for row in rows[-patience:]:
        if not (sizes.read(row, "effective_rank") <= max_rank and sizes.read(row, "feature_spread") >= MIN_SPREAD):
            return None
    text = (
        f"the {sizes.head} features of different images differ, but only in {ranks[-1]:.1f} directions, of about "
        f"{expected_rank:.0f} that a batch could show (at most {max(ranks):.1f} so far)"
    )
    return _make_verdict("dimensional collapse", text, rows[-1])


def _are_outputs_uniform(row: Row, sizes: HeadSizes) -> bool:
    """Return whether each output is nearly uniform, or all outputs are equal with an entropy of at least half of ln K.

    If the entropy was not recorded, the loss is used instead: for a uniform output, the loss is ln K.
    """
    uniform_entropy, entropy = math.log(sizes.out_dim), sizes.read(row, "teacher_entropy")
    if entropy == entropy:
        is_high = entropy >= UNIFORM_ENTROPY * uniform_entropy
        return entropy >= uniform_entropy + math.log(UNIFORM_FRACTION) or (is_high and _are_outputs_equal(row, sizes))
    return abs(_head_loss(row, sizes) - uniform_entropy) <= -math.log(UNIFORM_FRACTION) / 10


def _are_outputs_equal(row: Row, sizes: HeadSizes) -> bool:
    """Return whether the outputs contain no information about the image, because all outputs of a batch are equal."""
    information = sizes.read(row, "batch_entropy") - sizes.read(row, "teacher_entropy")
    return information <= EQUAL_INFORMATION * sizes.max_entropy


def _head_loss(row: Row, sizes: HeadSizes) -> float:
    value = row.get(f"train_{sizes.head}", math.nan)
    return row.get("train_loss", math.nan) if value != value and sizes.head == "view" else value


def _make_verdict(kind: Kind, text: str, row: Row) -> Verdict:
    return Verdict(kind, f"{kind}: {text}.", " ".join([*causes(row), ADVICE[kind]]))


STUDENT_TEMPERATURE = 0.1
# If `teacher_distance` is below this value, teacher and student count as equal. In healthy runs on small data sets,
# with a teacher momentum of 0.98 or more, `teacher_distance` is 0.03 to 0.1.
MIN_TEACHER_DISTANCE = 0.005

ADVICE = {
    "constant output": "Raise the teacher temperature (0.04 to 0.07 are published), let the centres adapt faster "
    "(centre momentum 0.9), lower the learning rate, or use larger batches, whose centres are less noisy.",
    "uniform output": "Lower the teacher temperature (0.04, or 0.03 for few images) and warm it up longer, use fewer "
    "prototypes (a few thousand for a small set), a teacher momentum of 0.99 to 0.996, and train for more steps; if "
    "the loss does not change at all, change the learning rate.",
    "dimensional collapse": "Use larger batches and more local crops, lower the learning rate and the weight decay, "
    "and check that the images are not nearly identical; if only the view loss is used, add the region loss.",
    "divergence": "Lower the learning rate and warm it up longer, clip gradients (3.0 per tensor is published), keep "
    "the lengths of the prototypes fixed and freeze the last layer for longer, and use bfloat16 or float32 instead of "
    "float16.",
}


def causes(row: Mapping[str, float]) -> list[str]:
    """Return a sentence for each setting in a row of metrics that prevents self-distillation from working.

    >>> causes({"centre_norm": 0.0, "teacher_temperature": 0.04})
    ['The centre is 0: switch centring on.']
    """
    sentences = []
    if row.get("centre_norm", math.nan) == 0:
        sentences.append("The centre is 0: switch centring on.")
    temperature = row.get("teacher_temperature", math.nan)
    if temperature >= STUDENT_TEMPERATURE:
        sentences.append(
            f"The teacher temperature is {temperature:g}; it must stay below the student's ({STUDENT_TEMPERATURE:g}), "
            "because otherwise the teacher's targets are less certain than the student's output."
        )
    if row.get("teacher_distance", math.nan) < MIN_TEACHER_DISTANCE:
        sentences.append("Teacher and student are nearly equal: give the teacher a momentum of 0.99 to 0.996.")
    return sentences


FEATURE_ADVICE: dict[Kind, str] = {
    "constant output": "Raise the weight of the regularising loss (--sigreg-weight or --visreg-weight), use larger "
    "batches, and lower the learning rate.",
    "dimensional collapse": "Use larger batches and more crops, raise the weight of the regularising loss "
    "(--sigreg-weight or --visreg-weight), lower the learning rate, and check that the images are not nearly "
    "identical.",
    "divergence": "Lower the learning rate and warm it up longer, clip gradients (--clip 1), and use bfloat16 or "
    "float32 instead of float16.",
}


def find_feature_collapse(
    rows: Sequence[Row],
    feature_dim: int,
    *,
    batch: int | None = None,
    grace_steps: int = GRACE_STEPS,
    patience: int = PATIENCE,
) -> Verdict | None:
    """Return the failure that a run without prototypes shows after the newest epoch; None if the run is healthy.

    The arguments are as in `find_collapse`, but `rows` have only "feature_spread", "effective_rank", "feature_norm",
    "step", "skipped_steps" and the losses. A column that is NaN or missing from a row is treated as healthy.

    Example:
        >>> rows = [{"step": 400.0 * n, "feature_spread": 0.001} for n in range(1, 7)]
        >>> find_feature_collapse(rows[:2], 384) is None, find_feature_collapse(rows, 384).kind
        (True, 'constant output')
    """
    verdict, later_rows = _find_non_finite(rows), [row for row in rows if row.get("step", math.inf) >= grace_steps]
    if verdict is None and len(later_rows) >= patience:
        sizes = HeadSizes("view", 2, feature_dim, batch)
        verdict = _find_growing_features(later_rows, sizes, patience, "the features")
        if verdict is None and all(sizes.read(row, "feature_spread") < EQUAL_SPREAD for row in later_rows[-patience:]):
            text = f"all images have the same features (spread {later_rows[-1]['feature_spread']:.4f})"
            verdict = _make_verdict("constant output", text, later_rows[-1])
        verdict = verdict or _find_low_rank(later_rows, sizes, patience)
    return None if verdict is None else replace(verdict, advice=FEATURE_ADVICE[verdict.kind])
