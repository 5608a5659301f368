"""Groups that names suggest: what is advised gives the groups that were counted, in every layout."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paucal.data.checking.findings import CheckedSet, label_findings
from paucal.data.checking.related import suggest_groups
from paucal.data.images import ImageSet
from paucal.data.splits.groups import group_numbers
from paucal.data.splits.split import make_split
from paucal.data.stores import ArrayStore


def a_set(keys: list[str], labels: list[int], declared: list[str] | None = None) -> ImageSet:
    pixels = np.zeros((len(keys), 2, 2), dtype=np.uint8)
    classes, numbers = tuple(f"c{label}" for label in range(max(labels) + 1)), np.asarray(labels, dtype=np.int64)
    return ImageSet("made", "nowhere", classes, keys, numbers, declared or [""] * len(keys), ArrayStore(pixels))


def same_partition(one, other) -> bool:
    """Whether two lists of names put the same images together, by comparing all pairs."""
    first, second = (
        np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)[1] for names in (one, other)
    )
    return bool((np.equal.outer(first, first) == np.equal.outer(second, second)).all())


def signs(tracks: list[int], frames: int = 30) -> ImageSet:
    """Tracks of traffic signs: every class counts its own from 0, as GTSRB does."""
    rows = [
        (label, track, frame) for label, count in enumerate(tracks) for track in range(count) for frame in range(frames)
    ]
    return a_set([f"{label:05}/{track:05}_{frame:05}.ppm" for label, track, frame in rows], [row[0] for row in rows])


def test_tracks__of_each_class_are_groups_of_their_own_and_are_divided_well():
    tracks = [7 + (13 * label) % 68 for label in range(43)]
    images = signs(tracks, frames=5)
    found = suggest_groups(images)
    assert found is not None
    assert (found.count, found.largest) == (sum(tracks), 5)
    assert len(np.unique(group_numbers(images, found.pattern))) == sum(tracks)
    split = make_split(images, group_by=found.pattern)
    assert 0.19 < len(split.indices("test")) / len(images) < 0.21
    assert f"({sum(tracks)} groups)" in split.description


def test_names_in_several_folders__are_told_with_both_patterns():
    """A patient may have slices of both classes; nobody but the user knows."""
    images = a_set(
        [f"{name}/patient{p}_slice{n}.png" for name in ("ill", "well") for p in range(6) for n in range(4)],
        [0] * 24 + [1] * 24,
    )
    (finding,) = [
        one for one in label_findings(CheckedSet(images, np.full(48, "train"), False)) if one.name == "name-groups"
    ]
    within, across = re.findall(r"--group-by '([^']+)'", finding.advice)
    assert [len(np.unique(group_numbers(images, pattern))) for pattern in (within, across)] == [12, 6]
    assert "suggest 12 groups of up to 4 images" in finding.text
    assert "'patient0' is the same group in every folder" in finding.advice


LAYOUTS = {
    "class folders": "c{label}/{name}",
    "parts": "{part}/c{label}/{name}",
    "parts in other words": "{part}ING/c{label}/{name}",
    "deeper": "c{label}/2024/{name}",
    "flat": "{name}",
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(
        ["{0:03}_{1:03}.png", "vid{0}-frame{1}.jpg", "p{0} ({1}).png", "a{0}.b_{1:02}.tif", "x_{0}_z{1}.JPG"]
    ),
    st.lists(st.integers(2, 5), min_size=2, max_size=4),
    st.booleans(),
)
def test_pattern__that_is_advised_gives_the_groups_that_were_counted(layout, form, counts, anew):
    """Videos are counted within each class, or over all."""
    where = LAYOUTS[layout]
    if layout == "flat":
        anew = False
    rows, first = [], 0
    for label, count in enumerate(counts):
        rows += [(label, track if anew else first + track, frame) for track in range(count) for frame in range(3)]
        first += count
    keys = [
        where.format(part=("train", "test")[track % 2], label=label, name=form.format(track, frame))
        for label, track, frame in rows
    ]
    keys = [key.replace("trainING", "Training").replace("testING", "TESTING") for key in keys]
    images = a_set(keys, [label for label, _, _ in rows])
    found = suggest_groups(images)
    assert found is not None
    right = [f"{label} {track}" for label, track, _ in rows]
    assert same_partition(found.names, right)
    assert same_partition(group_numbers(images, found.pattern), right)
    assert found.count == len(np.unique(group_numbers(images, found.pattern))) == len(set(right))
    assert (found.across_pattern != "") == (anew and len(counts) > 1)


def shard_keys(keys: list[str]) -> list[str]:
    """The names that `paucal shard` gives images, a few in each of several shards."""
    numbers = np.random.default_rng(0).permutation(len(keys)).tolist()
    return [
        f"shard-{number // 7:06}.tar/{key.rpartition('.')[0].replace(' ', '_')}-{number:08}.{key.rpartition('.')[2]}"
        for key, number in zip(keys, numbers, strict=True)
    ]


def test_shards__hold_the_groups_of_the_images_and_no_others():
    plain = [f"c{n % 2}/{n:03}.png" for n in range(48)]
    counted = [f"c{n % 2}/img_2024_{n:03}.png" for n in range(48)]
    for keys in (plain, counted):
        assert suggest_groups(a_set(shard_keys(keys), [n % 2 for n in range(48)])) is None
    videos = [f"c{v % 2}/vid{v:02}_frame{f:03}.jpg" for v in range(8) for f in range(6)]
    images = a_set(shard_keys(videos), [v % 2 for v in range(8) for _ in range(6)])
    found = suggest_groups(images)
    assert found is not None
    assert same_partition(found.names, [v for v in range(8) for _ in range(6)])
    assert same_partition(group_numbers(images, found.pattern), found.names)


@pytest.mark.parametrize(
    "keys",
    [
        [f"train-{n % 5:05}-of-00005.parquet#{n}" for n in range(40)],
        [f"c{n % 2}/sub{n % 4}/img_2024_{n:04}.jpg" for n in range(40)],
        [f"shard-{n % 3:06}.tar/{n:08}.jpg" for n in range(40)],
    ],
    ids=["rows", "counted in folders", "numbers alone"],
)
def test_names__that_only_count_suggest_nothing(keys: list[str]):
    assert suggest_groups(a_set(keys, [n % 2 for n in range(40)])) is None
