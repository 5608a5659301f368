"""Checks that all mask files of a set have the same coding; error messages name the flag that sets the coding."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from paucal.data.masks.mask_files import COLOUR, GREY, PALETTE, FileFacts, MaskFacts, list_files, unpack_colour
from paucal.types import UserError
from paucal.wording import counted, join_first_few

VOID = 255  # value that means "not labelled" in masks of class numbers, as in PASCAL VOC
MIN_HIGH = 64  # lowest value that means "foreground" rather than a class number
# Files that mix the values of two codings count as mistakes if there are fewer such files than this fraction of the
# files of either coding.
MAX_MIXED_FRACTION = 0.1
MIN_SPECK_RATIO = 200  # small values are specks if 0 and 255 each have over this many times as many pixels
# Neighbouring grey levels that differ by at most `MAX_SAME_GAP` belong to one class, and levels that differ by at least
# `MIN_CLASS_GAP` belong to two classes.
MAX_SAME_GAP, MIN_CLASS_GAP = 7, 16
END_MARGIN = 15  # maximum distance to 0 or 255 of values that count as black or white
MAX_EDGE_COLOURS = 3  # this many class colours may always occur only on edges, as in thin objects
# A file was blurred or resized if it has more than `NOISY_LEVELS` grey levels, and one level is above `NOISY_TOP`.
NOISY_LEVELS, NOISY_TOP = 32, 200
WHITE = 255
# Flags that error messages suggest.
BINARY_FLAG, OR_GREY = "--mask-values binary (two classes)", "or grey (a class for each level)"


def refuse_mixed_kinds(facts: MaskFacts) -> None:
    """Refuse sets that mix colour, palette and grey files, unless a value has the same meaning in all files."""
    files_by_kind: dict[str, list[FileFacts]] = defaultdict(list)
    for file in facts.files:
        files_by_kind[file.kind].append(file)
    colour, palette, grey = files_by_kind[COLOUR], files_by_kind[PALETTE], files_by_kind[GREY]
    if colour:
        _refuse_beside_colours(colour, palette, grey)
    else:
        top = max((value for file in palette for value in file.values - {VOID}), default=0)
        levels = [file for file in grey if max(file.values - {VOID}, default=0) >= max(MIN_HIGH, top + 1)]
        if palette and levels:
            raise _storage_error(
                palette, "with a palette", levels, "with grey levels", "the palettes' colours are the classes"
            )
        _refuse_palettes(palette)


def _refuse_beside_colours(colour: list[FileFacts], palette: list[FileFacts], grey: list[FileFacts]) -> None:
    """Refuse files with palettes or class numbers beside files in colour.

    Black-and-white files are refused too, unless a file in colour contains white.
    """
    if palette:
        raise _storage_error(colour, "in colour", palette, "with a palette", "the palettes' colours are the classes")
    three_channels = [*colour, *(file for file in grey if file.bits == 24)]
    colours = {value for file in three_channels for value in file.as_colours().values}
    grey_levels = {value >> 16 for value in colours if value % 0x010101 == 0}
    numbers = [file for file in grey if file.bits in (8, 16) and not file.values <= grey_levels | {0, WHITE}]
    if numbers:
        raise _storage_error(colour, "in colour", numbers, "with numbers or grey levels", "each level is a colour")
    white = [file for file in grey if file.bits in (1, 8) and file.values - {0}]
    if white and WHITE not in grey_levels:
        raise _storage_error(colour, "in colour", white, "in black and white", "white is a separate class")


def _storage_error(
    files: Sequence[FileFacts], storage: str, other_files: Sequence[FileFacts], other_storage: str, condition: str
) -> UserError:
    """Return the error for files in two formats; `condition` says when `--mask-values colour` is right."""
    return UserError(
        f"the masks are stored in two ways ({list_files(files)} {storage}, {list_files(other_files)} {other_storage}): "
        f"store all masks in the same way, or give --mask-values colour if {condition}."
    )


def _refuse_palettes(files: Sequence[FileFacts]) -> None:
    """Refuse files with palettes if two palettes have different colours for the same index."""
    first: dict[int, tuple[int, FileFacts]] = {}
    for file in files:
        for value, colour in (file.palette or {}).items():
            earlier_colour, other = first.setdefault(value, (colour, file))
            if earlier_colour != colour:
                raise UserError(
                    f"the palettes of the masks differ: index {value} has the colour {unpack_colour(earlier_colour)} "
                    f"in {other.name}, and {unpack_colour(colour)} in {file.name}. Give --mask-values colour if each "
                    "colour is a class, or --mask-values index if each index is a class."
                )


def refuse_mixed_codings(facts: MaskFacts, void: int | None = None) -> None:
    """Refuse sets in which some grey files contain class numbers, and others contain 0 and a high value such as 255.

    If more than a few files contain both class numbers and high values, the set has a single coding, and is accepted.
    """
    low: list[FileFacts] = []
    mixed_files: list[FileFacts] = []
    high: dict[int, list[FileFacts]] = defaultdict(list)
    for file in facts.files:
        nonzero = sorted(file.values - {0, void})
        if not nonzero or nonzero[-1] > WHITE or (file.bits == 1 and _is_one_white(facts)):
            continue
        if nonzero[-1] < MIN_HIGH:
            low.append(file)
        elif nonzero == [VOID] and 0 not in file.values:
            continue  # no pixel is labelled
        elif len(nonzero) == 1 and (file.kind == GREY or nonzero[0] == VOID):
            high[nonzero[0]].append(file)
        else:
            mixed_files.append(file)
    highs = [file for files in high.values() for file in files]
    if low and highs and len(high) <= 2 and len(mixed_files) < max(1, MAX_MIXED_FRACTION * min(len(low), len(highs))):
        subject = "hardly any mask has" if mixed_files else "no mask has"
        void_advice = " or --ignore 255 (pixels of value 255 are not labelled)" if VOID in high else ""
        raise UserError(
            f"{_describe_two_codings(highs, low)}, and {subject} values of both: store all masks in the same way, or "
            f"give {BINARY_FLAG}{void_advice}."
        )
    if not low and not mixed_files and len(high) == 2:
        raise UserError(
            f"{_describe_two_codings(*high.values())}, and no mask has values of both: store all masks in the same "
            f"way, or give {BINARY_FLAG} {OR_GREY}."
        )


def _describe_two_codings(first: Sequence[FileFacts], second: Sequence[FileFacts]) -> str:
    codings = (f"{_list_values(sorted(files[0].values))} in {list_files(files)}" for files in (first, second))
    return f"the masks have two codings: {', '.join(codings)}"


def _is_one_white(facts: MaskFacts) -> bool:
    """Return whether 1 means white in 1-bit files, which is assumed if all other files are black and white."""
    values = frozenset().union(*(file.values for file in facts.files if file.bits != 1))
    return WHITE in values and values <= {0, WHITE}


def is_black_and_white(facts: MaskFacts, values: Sequence[int]) -> bool:
    """Return whether masks are black and white; in 1-bit files, white is the value 1."""
    if set(values) <= {0, WHITE}:
        return True
    return _is_one_white(facts) and not facts.has_palette and set(values) <= {0, 1, WHITE}


def refuse_specks(facts: MaskFacts, void: int | None) -> None:
    """Refuse masks of 0 and 255 that have a few pixels of a small value.

    With such a value, the masks would be read as class numbers, and 255 would mean "not labelled".
    """
    pixels = {value: count for value, count in facts.pixels.items() if value != void}
    small_values = {value: count for value, count in pixels.items() if 0 < value < MIN_HIGH}
    if not small_values or set(pixels) - set(small_values) != {0, VOID}:
        return
    n_small = sum(small_values.values())
    if n_small * MIN_SPECK_RATIO < min(pixels[0], pixels[VOID]):
        raise UserError(
            f"the masks have the values 0 and 255, and {counted(n_small, 'pixel')} with the value "
            f"{_list_values(small_values)} ({list_files(facts.with_value(min(small_values)))}): give {BINARY_FLAG} or "
            "--ignore 255 (pixels of value 255 are not labelled), or correct the masks."
        )


def refuse_near_levels(facts: MaskFacts, values: Sequence[int]) -> None:
    """Refuse masks if some values are close to a class value, such as 254 beside 0 and 255; `values` are sorted."""
    class_values = [value for value in values if value != VOID]
    if max(class_values, default=0) < MIN_HIGH:
        return  # small values are class numbers
    groups: list[list[int]] = [[values[0]]]
    for previous, value in pairwise(values):
        groups[-1].append(value) if value - previous <= MAX_SAME_GAP else groups.append([value])
    stray_values = []
    for group in groups:
        commonest = max(group, key=lambda value: facts.pixels[value])
        other_values = [value for value in group if value != commonest]
        if (
            group[-1] >= VOID - MAX_SAME_GAP
            or sum(facts.pixels[value] for value in other_values) * 100 < facts.pixels[commonest]
        ):
            stray_values += other_values if group[-1] - group[0] <= 2 * MAX_SAME_GAP else []
    are_far_apart = all(after[0] - previous[-1] >= MIN_CLASS_GAP for previous, after in pairwise(groups))
    if len(values) > 2 and all(value <= END_MARGIN or value >= VOID - END_MARGIN for value in values):
        are_far_apart, stray_values = True, [value for value in values if value not in (0, VOID)]
    if are_far_apart and stray_values and len(groups) > 1:
        example_files = list_files(facts.with_value(stray_values[0]))
        raise UserError(
            f"the masks have the values {_list_values(values)}; {_list_values(stray_values)} ({example_files}) may be "
            f"slightly changed class values: store one value for each class, or give {BINARY_FLAG} {OR_GREY}."
        )


def refuse_blurred_levels(facts: MaskFacts, values: Sequence[int]) -> None:
    """Refuse masks if many values occur only on edges, as after blurring or resizing; `values` are sorted."""
    noisy = [file for file in facts.files if len(file.values) > NOISY_LEVELS and max(file.values) > NOISY_TOP]
    edge_values = [value for value in values[1:-1] if value not in facts.solid]
    edge_files = [file for file in facts.files if not file.values.isdisjoint(edge_values)]
    is_minority = sum(facts.pixels[value] for value in edge_values) < sum(facts.pixels.values()) / 2
    are_many = len(edge_values) > 2 or len(edge_files) > max(2, 0.2 * len(facts.files))
    has_edges = values[0] == 0 and max(values) >= NOISY_TOP and are_many and is_minority
    blurred_files = noisy or (edge_files if has_edges else [])
    if blurred_files:
        worst = max(blurred_files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} grey levels from {min(worst.values)} to {max(worst.values)}, "
            f"as after blurring or resizing ({len(blurred_files)} of {counted(len(facts.files), 'mask')} affected): "
            "store masks as PNG with one value for each class, or give --mask-values binary (values from 128 are "
            "foreground), grey or index."
        )


def refuse_blurred_colours(facts: MaskFacts) -> None:
    """Refuse masks in which most colours occur only on edges."""
    edge_colours = [value for value in facts.values if value not in facts.solid]
    if len(edge_colours) > max(MAX_EDGE_COLOURS, len(facts.values) - len(edge_colours)):
        worst = max(facts.files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} colours, and {len(edge_colours)} of the {len(facts.values)} "
            "colours of all masks occur only on edges, as after blurring or resizing: store masks as PNG with one "
            "colour for each class, or give --classes with the colours."
        )


def refuse_lossy(facts: MaskFacts) -> None:
    """Refuse masks in a lossy format, which may change a 1 to a 0; masks that are all black and white are accepted."""
    lossy = [file for file in facts.files if file.lossy]
    if lossy and not set(facts.values) <= {0, WHITE, 0xFFFFFF}:
        worst = max(lossy, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} is in a lossy format ({counted(len(worst.values), 'value')}): store masks as PNG with "
            "one value for each class, or give --mask-values binary (values from 128 are foreground), index or colour."
        )


def refuse_faint(facts: MaskFacts, void: int | None) -> None:
    """Refuse masks of two classes whose foreground values are below 128, and so would count as background."""
    for file in facts.files:
        nonzero = file.values - {0, void}
        if nonzero and 1 < max(nonzero) < 128 and (len(nonzero) == 1 or max(nonzero) >= MIN_HIGH):
            raise UserError(
                f"mask {file.name} has values up to {max(nonzero)}, but in masks of two classes the foreground is 1, "
                "or 128 to 255: change the values of the mask."
            )


def _list_values(values: Sequence[int] | dict[int, int]) -> str:
    texts = [str(value) for value in values]
    return " and ".join(texts) if len(texts) < 3 else join_first_few(texts, 6)
