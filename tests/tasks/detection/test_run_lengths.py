"""Packed lengths of runs: what goes in comes out, as the program that packs them reads it, and nothing else gets in."""

import numpy as np
import pytest
import torch

from paucal.data.boxes.annotations import unpack_run_lengths
from paucal.tasks.detection.masks import mask_functions, mask_overlaps, pack_mask, stack_masks, unpack_mask

KINDS = ("speckled", "blobs", "empty", "full", "one pixel", "striped")


def mask(kind: str, size: tuple[int, int] = (37, 53), seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    made = np.zeros(size, dtype=bool)
    if kind == "speckled":
        made = generator.random(size) < 0.4
    elif kind == "blobs":
        made[5:20, 8:30] = made[30:, 40:] = True
    elif kind == "full":
        made[:] = True
    elif kind == "one pixel":
        made[-1, -1] = True
    elif kind == "striped":
        made[:, ::2] = True
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip__gives_the_same_mask_as_the_program_that_packs(kind: str):
    made = mask(kind)
    runs = pack_mask(made)
    assert runs["size"] == [37, 53]
    assert np.array_equal(unpack_mask(runs), made)
    assert np.array_equal(unpack_mask(runs), mask_functions().decode(runs))


def test_counts__are_those_of_a_loop_over_columns():
    made = mask("speckled", seed=3)
    expected, value = [0], 0
    for pixel in made.T.ravel():
        if pixel != value:
            expected, value = [*expected, 0], int(pixel)
        expected[-1] += 1
    assert unpack_run_lengths(pack_mask(made)["counts"]).tolist() == expected


BAD_TEXT = {
    "empty": b"",
    "a character too low": b"0!",
    "a character too high": b"0p",
    "cut in a number": pack_mask(mask("blobs"))["counts"][:1] + b"P",
    "a number without end": b"PPPPPPPPPPPPPPPP1",
    "bytes": bytes([200, 201]),
}


@pytest.mark.parametrize("kind", BAD_TEXT)
def test_texts__that_stand_for_nothing_are_refused(kind: str):
    with pytest.raises(ValueError, match="the mask "):
        unpack_run_lengths(BAD_TEXT[kind])


def test_stacked__takes_the_nearest_pixel_of_another_size():
    made = mask("blobs", (30, 50))
    runs = pack_mask(made)
    assert torch.equal(stack_masks([runs], (30, 50))[0].bool(), torch.from_numpy(made))
    larger = stack_masks([runs, runs], (60, 100))
    assert np.array_equal(larger[1].numpy(), np.kron(made, np.ones((2, 2))))
    smaller = stack_masks([runs], (10, 10))[0]
    for row in range(10):
        for column in range(10):
            assert smaller[row, column] == made[int((row + 0.5) * 3), int((column + 0.5) * 5)]
    assert stack_masks([], (7, 9)).shape == (0, 7, 9)


def test_overlaps__are_shares_of_pixels_and_those_of_a_crowd_of_the_first_alone():
    masks = [mask("speckled", seed=seed) for seed in range(3)]
    objects = [mask("blobs"), mask("full"), mask("empty")]
    crowd = np.asarray([False, True, False])
    found = mask_overlaps([pack_mask(one) for one in masks], [pack_mask(one) for one in objects], crowd)
    for row, one in enumerate(masks):
        for column, other in enumerate(objects):
            whole = one.sum() if crowd[column] else (one | other).sum()
            assert found[row, column] == pytest.approx((one & other).sum() / whole)
    assert mask_overlaps([], [pack_mask(masks[0])], crowd[:1]).shape == (0, 1)
    assert mask_overlaps([pack_mask(masks[0])], [], crowd[:0]).shape == (1, 0)
