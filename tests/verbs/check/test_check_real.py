"""Real images with copies, near copies, wrong labels and broken files planted: what a check finds of them."""

import warnings
from pathlib import Path

import pytest

import paucal
from paucal.verbs.check.labels import find_local_weights
from verbs.check.planted import DATA, found_pairs, plant, precision_and_recall

needs_data = pytest.mark.skipif(
    not (DATA / "clothing").is_dir(), reason="the real image sets are not beside the project"
)


def pairs_of(result, *names: str) -> set[frozenset[str]]:
    groups = [group for name in names if (finding := result.of(name)) for group in finding.groups]
    return found_pairs(result.checked.images, groups)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("source", "count"), [("clothing", 300), ("cifar10", 400)])
def test_check__finds_every_copy_and_nearly_all_near_copies(tmp_path: Path, source: str, count: int):
    planted = plant(tmp_path / source, source, count)
    result = paucal.check(planted.folder, output=tmp_path / "page")
    assert result.misleads
    assert pairs_of(result, "duplicates-across-parts") == planted.exact
    precision, recall = precision_and_recall(pairs_of(result, "near-duplicates-across-parts"), planted.near)
    print(f"{source}: near duplicates, precision {precision:.2f}, recall {recall:.2f}")
    assert precision >= 0.9
    assert recall >= 0.75
    bad = result.of("unreadable")
    assert bad is not None
    assert {result.checked.images.keys[group[0]] for group in bad.groups} == planted.broken
    page = (tmp_path / "page" / "check.html").read_text()
    assert "duplicates across parts" in page
    assert all(key in page for pair in planted.exact for key in pair)
    assert (tmp_path / "page" / "contact_sheet.png").read_bytes().startswith(b"\x89PNG")


@needs_data
@pytest.mark.slow
@pytest.mark.skipif(find_local_weights() is None, reason="no trained weights are on this machine (the extra `weights`)")
def test_check__suspects_most_wrong_labels_of_photographs(tmp_path: Path):
    planted = plant(tmp_path / "photos", "clothing", 500, copies=4, flips=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = paucal.check(planted.folder, labels=True)
    assert result.suspects is not None
    found = {result.checked.images.keys[one.position] for one in result.suspects}
    precision, recall = precision_and_recall(found, planted.flipped)
    print(f"wrong labels: precision {precision:.2f}, recall {recall:.2f} of {len(planted.flipped)}")
    assert recall >= 0.7
    assert precision >= 0.3  # eight times what chance gives; some of the others are wrong in the set itself
