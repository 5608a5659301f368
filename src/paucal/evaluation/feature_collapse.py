"""Whether a method without prototypes goes wrong, told from its features alone.

The signs and their bounds are those of `collapse`, which also judges the answers of heads; the advice is for losses
that have neither a teacher nor a temperature.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from paucal.evaluation.collapse import (
    EQUAL,
    EXPLODED,
    GRACE_STEPS,
    PATIENCE,
    Kind,
    Row,
    Scale,
    Verdict,
    lasts,
    not_finite,
    on_a_line,
)

ADVICE: dict[Kind, str] = {
    "constant output": "Give the part of the loss that keeps embeddings apart more weight, use larger batches, and "
    "lower the learning rate.",
    "dimensional collapse": "Use larger batches and more crops, give the part of the loss that keeps embeddings apart "
    "more weight, lower the learning rate, and check that the images are not nearly all alike.",
    "divergence": "Lower the learning rate and warm it up longer, clip gradients (--clip 1), and use bfloat16 or "
    "float32 instead of float16.",
}


def judge_features(
    rows: Sequence[Row],
    feature_dim: int,
    *,
    batch: int | None = None,
    grace_steps: int = GRACE_STEPS,
    patience: int = PATIENCE,
) -> Verdict | None:
    """Say what is wrong with a run after its newest epoch; None where nothing is.

    Args:
        rows: one per epoch so far, with "feature_spread", "effective_rank", "feature_norm", "step", "skipped_steps"
            and the losses; columns that a row lacks, or that are NaN there, are taken for healthy.
        feature_dim: D, channels of the features.
        batch: images per process, on which the rank is computed.
        grace_steps: optimizer steps of which nothing but non-finite numbers counts.
        patience: epochs in a row that must show the sign.

    Example:
        >>> rows = [{"step": 400.0 * n, "feature_spread": 0.001} for n in range(1, 7)]
        >>> judge_features(rows[:2], 384) is None, judge_features(rows, 384).kind
        (True, 'constant output')
    """
    if (broken := not_finite(rows)) is not None:
        return _advised(broken)
    judged = [row for row in rows if row.get("step", math.inf) >= grace_steps]
    found = _grown(judged, patience) or _equal(judged, patience)
    if found is not None:
        return found
    line = on_a_line(judged, Scale("view", 2, feature_dim, batch), patience)
    return None if line is None else _advised(line)


def _grown(rows: Sequence[Row], patience: int) -> Verdict | None:
    lengths = [length for row in rows if math.isfinite(length := row.get("feature_norm", math.nan))]
    if not lengths or not lasts(rows, lambda row: row.get("feature_norm", math.nan) > EXPLODED * lengths[0], patience):
        return None
    text = f"the features grew from a length of {lengths[0]:.3g} to {lengths[-1]:.3g}"
    return Verdict("divergence", f"divergence: {text}.", ADVICE["divergence"])


def _equal(rows: Sequence[Row], patience: int) -> Verdict | None:
    if not lasts(rows, lambda row: row.get("feature_spread", math.nan) < EQUAL, patience):
        return None
    text = f"all images have the same features (spread {rows[-1]['feature_spread']:.4f})"
    return Verdict("constant output", f"constant output: {text}.", ADVICE["constant output"])


def _advised(found: Verdict) -> Verdict:
    return replace(found, advice=ADVICE[found.kind])
