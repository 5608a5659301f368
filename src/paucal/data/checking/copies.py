"""Findings about duplicates: images with the same bytes, and images that look alike."""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np

from paucal.data.checking.findings import CheckedSet, Finding
from paucal.data.checking.related import SimilarPair, merge_groups
from paucal.wording import counted, percent

# Smallest fraction of test images with a near duplicate in train that makes the test score misleading.
MISLEADING_FRACTION = 0.01


def exact_copy_findings(checked: CheckedSet, groups: Sequence[Sequence[int]]) -> list[Finding]:
    """Return findings about images with the same bytes: groups in several splits, with several labels, and the rest."""
    divided_groups, conflicting_groups, other_groups = _classify_groups(checked, groups)
    findings = []
    if divided_groups:
        location = "are in several splits" if checked.has_declared_splits else "would be in several splits"
        text = f"{_describe_copies(divided_groups)}, and {location}: the test images would include training images"
        findings.append(Finding("duplicates-across-parts", "misleads", text, _copy_advice(checked), divided_groups))
    if conflicting_groups:
        text = f"{_describe_copies(conflicting_groups)} with a different label: one of the labels is wrong"
        advice = "keep the copy with the right label"
        findings.append(Finding("conflicting-labels", "misleads", text, advice, conflicting_groups))
    if other_groups:
        text = f"{_describe_copies(other_groups)} in the same split and class, so that images count more than once"
        findings.append(Finding("duplicates", "warning", text, "remove the copies", other_groups))
    return findings


def _describe_copies(groups: Sequence[Sequence[int]]) -> str:
    n_copies = sum(len(group) - 1 for group in groups)
    return f"{counted(n_copies, 'image is', 'images are')} the same as another image"


def _classify_groups(checked: CheckedSet, groups: Sequence[Sequence[int]]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the groups that are in several splits, the groups with different labels, and all other groups."""
    is_divided = [checked.is_divided(group) for group in groups]
    # Unlabelled images do not conflict with others.
    labels = [{tuple(checked.images.classes_of(position)) for position in group} - {()} for group in groups]
    has_conflict = [len(group_labels) > 1 for group_labels in labels]
    is_plain = [not divided and not conflict for divided, conflict in zip(is_divided, has_conflict, strict=True)]
    return [tuple(map(tuple, compress(groups, flags))) for flags in (is_divided, has_conflict, is_plain)]


def near_copy_findings(
    checked: CheckedSet, pairs: Sequence[SimilarPair], exact_copies: Sequence[Sequence[int]]
) -> Iterator[Finding]:
    """Yield findings about pairs of similar images; exact copies of the two images are added to their group."""
    copies = {group[0]: group for group in exact_copies}
    groups = merge_groups([[*copies.get(p.first, [p.first]), *copies.get(p.second, [p.second])] for p in pairs])
    confirmed = "" if pairs[0].cosine is None else " (frozen features confirm this)"
    divided_groups, conflicting_groups, other_groups = _classify_groups(checked, groups)
    if divided_groups:
        test = np.flatnonzero(checked.parts == "test")
        leaked_images = {
            i for group in divided_groups if any(checked.parts[j] == "train" for j in group) for i in group
        }
        fraction = len(leaked_images & set(test.tolist())) / max(len(test), 1)
        verb = "would be" if not checked.has_declared_splits else "is" if len(divided_groups) == 1 else "are"
        leak_text = f" ({percent(fraction)} of the test images have a near duplicate in train)" if fraction else ""
        level = "misleads" if fraction >= MISLEADING_FRACTION else "warning"
        groups_text = f"{counted(len(divided_groups), 'group')} of images that look alike{confirmed}"
        text = f"{groups_text} {verb} in several splits{leak_text}"
        advice = f"look at the images on the page (--output); {_copy_advice(checked)}"
        yield Finding("near-duplicates-across-parts", level, text, advice, divided_groups)
    if conflicting_groups:
        verb = "has" if len(conflicting_groups) == 1 else "have"
        text = f"{counted(len(conflicting_groups), 'group')} of images that look alike{confirmed} {verb} several labels"
        advice = "look at the images on the page (--output), and correct wrong labels"
        yield Finding("alike-with-other-labels", "warning", text, advice, conflicting_groups)
    if other_groups:
        verb = "looks" if len(other_groups) == 1 else "look"
        text = f"{counted(len(other_groups), 'group')} of images of one split and class {verb} alike{confirmed}"
        advice = "look at the images on the page (--output); copies add no information"
        yield Finding("near-duplicates", "note", text, advice, other_groups)


def _copy_advice(checked: CheckedSet) -> str:
    if checked.has_declared_splits:
        return "remove the copies from train, or from the other split"
    return "remove the copies, or keep them together with --group-by duplicates"
