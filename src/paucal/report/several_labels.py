"""What a result on images with several labels means, in sentences for someone who has never read a metric."""

from paucal.evaluation.results import MultiLabelReport, MultiLabelRow
from paucal.wording import counted, percent

FEW_IMAGES = 10
WIDE = 0.1
MOST_NAMES = 5


def headline_of_several(report: MultiLabelReport) -> list[str]:
    """Return the result in a few sentences: mean average precision with interval, beside what chance reaches."""
    score, judged = report.scores["map"], report.judged
    low, high = score.low or 0.0, 1.0 if score.high is None else score.high
    return [
        f"The mean average precision (mAP) is {percent(score.value)} on {counted(report.images, 'test image')} kept "
        "away from training: asked for the images of a class, the model puts them that far above the others, on "
        f"average over {counted(len(judged), 'class', 'classes')}. 100 % means that all of them come first.",
        "With this many images, the mAP on further images of the same kind most likely lies between "
        f"{percent(low)} and {percent(high)} ({percent(report.level, 'g')} interval). An order by chance would reach "
        f"{percent(report.chance)}.",
    ]


def warnings_of_several(report: MultiLabelReport) -> list[str]:
    """Return what a careful reader should know before trusting the result; often empty."""
    score = report.scores["map"]
    found = []
    if (score.low or 0.0) <= report.chance:
        found.append(
            f"The mAP is not clearly above what an order by chance reaches ({percent(report.chance)}): the model may "
            "have learned nothing of use. Look at the curves and at the labels."
        )
    width = (1.0 if score.high is None else score.high) - (score.low or 0.0)
    if width > WIDE:
        found.append(
            f"The interval is {100 * width:.0f} points wide because the test has only "
            f"{counted(report.images, 'image')}. Do not choose between models that differ by less than this."
        )
    if unjudged := [row for row in report.per_class if row.ap is None]:
        found.append(
            f"{counted(len(unjudged), 'class has', 'classes have')} no test image and cannot be judged: "
            f"{_names(unjudged)}."
        )
    if few := [row for row in report.judged if row.images < FEW_IMAGES]:
        found.append(
            f"{counted(len(few), 'class has', 'classes have')} fewer than {FEW_IMAGES} test images, too few to judge "
            f"by: {_names(few)}."
        )
    if lost := [row for row in report.judged if row.ap and row.ap.value <= row.share]:
        found.append(f"{counted(len(lost), 'class is', 'classes are')} told no better than by chance: {_names(lost)}.")
    return found


def _names(rows: list[MultiLabelRow]) -> str:
    shown = ", ".join(f"{row.name} ({row.images})" for row in rows[:MOST_NAMES])
    return shown if len(rows) <= MOST_NAMES else f"{shown} and {len(rows) - MOST_NAMES} more"
