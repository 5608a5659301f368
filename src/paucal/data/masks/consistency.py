"""Checks that all mask files of a set encode classes in the same way; error messages name the flag for the encoding."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from paucal.data.masks.mask_files import (
    COLOUR,
    GREY,
    PALETTE,
    FileStatistics,
    MaskStatistics,
    describe_files,
    unpack_colour,
)
from paucal.types import UserError
from paucal.wording import counted, join_first_few

VOID = 255  # value that means "not labelled" in masks of class numbers, as in PASCAL VOC
MIN_FOREGROUND = 64  # lowest value that means "foreground"; lower values are class numbers
# Files that mix the values of two codings count as mistakes if there are fewer such files than this fraction of the
# files of either coding.
MAX_MIXED_FRACTION = 0.1
# Pixels with a value from 1 to 63 are stray pixels if 0 and 255 each have more than this many times as many pixels.
MIN_STRAY_RATIO = 200
# Neighbouring grey levels that differ by at most `MAX_SAME_GAP` belong to one class, and levels that differ by at least
# `MIN_CLASS_GAP` belong to two classes.
MAX_SAME_GAP, MIN_CLASS_GAP = 7, 16
END_MARGIN = 15  # maximum distance to 0 or 255 of values that count as black or white
MAX_EDGE_COLOURS = 3  # number of class colours that may occur only on edges, since objects may be thin
# A file was blurred or resized if it has more than `NOISY_LEVELS` grey levels, and one level is above `NOISY_TOP`.
NOISY_LEVELS, NOISY_TOP = 32, 200
WHITE = 255
# Flags that error messages suggest.
BINARY_FLAG, OR_GREY = "--mask-values binary (two classes)", "or grey (a class for each level)"


def refuse_mixed_kinds(stats: MaskStatistics) -> None:
    """Refuse sets that mix colour, palette and grey files, unless a value has the same meaning in all files."""
    files_by_kind: dict[str, list[FileStatistics]] = defaultdict(list)
    for file in stats.files:
        files_by_kind[file.kind].append(file)
    colour, palette, grey = files_by_kind[COLOUR], files_by_kind[PALETTE], files_by_kind[GREY]
    palettes_are_classes = "the palettes' colours are the classes"
    if colour:
        if palette:
            raise _mixed_mask_encodings_error(colour, "in colour", palette, "with a palette", palettes_are_classes)
        three_channels = [*colour, *(file for file in grey if file.bits == 24)]
        colours = {value for file in three_channels for value in file.as_colours().values}
        grey_levels = {value >> 16 for value in colours if value % 0x010101 == 0}
        if numbers := [file for file in grey if file.bits in (8, 16) and not file.values <= grey_levels | {0, WHITE}]:
            raise _mixed_mask_encodings_error(
                colour, "in colour", numbers, "with numbers or grey levels", "each grey level is a colour"
            )
        white = [file for file in grey if file.bits in (1, 8) and file.values - {0}]
        if white and WHITE not in grey_levels:
            raise _mixed_mask_encodings_error(
                colour, "in colour", white, "in black and white", "white is a separate class"
            )
        return
    top = max((value for file in palette for value in file.values - {VOID}), default=0)
    levels = [file for file in grey if max(file.values - {VOID}, default=0) >= max(MIN_FOREGROUND, top + 1)]
    if palette and levels:
        raise _mixed_mask_encodings_error(palette, "with a palette", levels, "with grey levels", palettes_are_classes)
    first_colours: dict[int, tuple[int, FileStatistics]] = {}
    for file in palette:
        for value, file_colour in (file.palette or {}).items():
            earlier_colour, other = first_colours.setdefault(value, (file_colour, file))
            if earlier_colour != file_colour:
                raise UserError(
                    f"the palettes of the masks differ: index {value} has the colour {unpack_colour(earlier_colour)} "
                    f"in {other.name}, and {unpack_colour(file_colour)} in {file.name}. Give --mask-values colour if "
                    "each colour is a class, or --mask-values index if each index is a class."
                )


def _mixed_mask_encodings_error(
    files: Sequence[FileStatistics],
    encoding: str,
    other_files: Sequence[FileStatistics],
    other_encoding: str,
    condition: str,
) -> UserError:
    """Return the error for masks with two encodings; `condition` says when `--mask-values colour` is right."""
    return UserError(
        f"the masks are stored in two ways ({describe_files(files)} {encoding}, {describe_files(other_files)} "
        f"{other_encoding}): store all masks in the same way, or give --mask-values colour if {condition}."
    )


def refuse_mixed_codings(stats: MaskStatistics, void: int | None = None) -> None:
    """Refuse sets in which some grey files contain class numbers, and others contain 0 and a high value such as 255.

    If more than a few files contain both class numbers and high values, the set has a single coding and is accepted.
    """
    low_files: list[FileStatistics] = []
    mixed_files: list[FileStatistics] = []
    high_files_by_value: dict[int, list[FileStatistics]] = defaultdict(list)
    for file in stats.files:
        nonzero = sorted(file.values - {0, void})
        if not nonzero or nonzero[-1] > WHITE or (file.bits == 1 and _does_one_mean_white(stats)):
            continue
        if nonzero[-1] < MIN_FOREGROUND:
            low_files.append(file)
        elif nonzero == [VOID] and 0 not in file.values:
            continue  # no pixel is labelled
        elif len(nonzero) == 1 and (file.kind == GREY or nonzero[0] == VOID):
            high_files_by_value[nonzero[0]].append(file)
        else:
            mixed_files.append(file)
    high_files = [file for files in high_files_by_value.values() for file in files]
    max_mixed_files = max(1, MAX_MIXED_FRACTION * min(len(low_files), len(high_files)))
    if low_files and high_files and len(high_files_by_value) <= 2 and len(mixed_files) < max_mixed_files:
        subject = "hardly any mask has" if mixed_files else "no mask has"
        void_advice = " or --ignore 255 (pixels of value 255 are not labelled)" if VOID in high_files_by_value else ""
        raise UserError(
            f"{_describe_two_codings(high_files, low_files)}, and {subject} values of both codings: store all masks in "
            f"the same way, or give {BINARY_FLAG}{void_advice}."
        )
    if not low_files and not mixed_files and len(high_files_by_value) == 2:
        raise UserError(
            f"{_describe_two_codings(*high_files_by_value.values())}, and no mask has values of both codings: store "
            f"all masks in the same way, or give {BINARY_FLAG} {OR_GREY}."
        )


def _describe_two_codings(first: Sequence[FileStatistics], second: Sequence[FileStatistics]) -> str:
    codings = (f"{_list_values(sorted(files[0].values))} in {describe_files(files)}" for files in (first, second))
    return f"the masks have two codings: {', '.join(codings)}"


def _does_one_mean_white(stats: MaskStatistics) -> bool:
    """Return whether 1 means white in 1-bit files, which is assumed if all other files are black and white."""
    values = frozenset().union(*(file.values for file in stats.files if file.bits != 1))
    return WHITE in values and values <= {0, WHITE}


def is_black_and_white(stats: MaskStatistics, values: Sequence[int]) -> bool:
    """Return whether masks are black and white; in 1-bit files, white is the value 1."""
    if set(values) <= {0, WHITE}:
        return True
    return _does_one_mean_white(stats) and not stats.has_palette and set(values) <= {0, 1, WHITE}


def refuse_stray_pixels(stats: MaskStatistics, void: int | None) -> None:
    """Refuse masks of 0 and 255 that also have a few pixels with a small value, which is probably a mistake.

    Because of these pixels, the masks would be read as class numbers, and 255 would mean "not labelled".
    """
    pixels = {value: count for value, count in stats.pixel_counts.items() if value != void}
    small_values = {value: count for value, count in pixels.items() if 0 < value < MIN_FOREGROUND}
    if not small_values or set(pixels) - set(small_values) != {0, VOID}:
        return
    n_small = sum(small_values.values())
    if n_small * MIN_STRAY_RATIO < min(pixels[0], pixels[VOID]):
        example_files = describe_files(stats.files_with_value(min(small_values)))
        raise UserError(
            f"the masks have the values 0 and 255, and {counted(n_small, 'pixel')} with the value "
            f"{_list_values(small_values)} ({example_files}): give {BINARY_FLAG} or "
            "--ignore 255 (pixels of value 255 are not labelled), or correct the masks."
        )


def refuse_near_levels(stats: MaskStatistics, values: Sequence[int]) -> None:
    """Refuse masks with values close to a class value, such as 254 next to 255; `values` are sorted."""
    class_values = [value for value in values if value != VOID]
    if max(class_values, default=0) < MIN_FOREGROUND:
        return  # small values are class numbers
    groups: list[list[int]] = [[values[0]]]
    for previous, value in pairwise(values):
        groups[-1].append(value) if value - previous <= MAX_SAME_GAP else groups.append([value])
    stray_values = []
    for group in groups:
        commonest = max(group, key=lambda value: stats.pixel_counts[value])
        other_values = [value for value in group if value != commonest]
        if (
            group[-1] >= VOID - MAX_SAME_GAP
            or sum(stats.pixel_counts[value] for value in other_values) * 100 < stats.pixel_counts[commonest]
        ):
            stray_values += other_values if group[-1] - group[0] <= 2 * MAX_SAME_GAP else []
    are_far_apart = all(after[0] - previous[-1] >= MIN_CLASS_GAP for previous, after in pairwise(groups))
    if len(values) > 2 and all(value <= END_MARGIN or value >= VOID - END_MARGIN for value in values):
        are_far_apart, stray_values = True, [value for value in values if value not in (0, VOID)]
    if are_far_apart and stray_values and len(groups) > 1:
        example_files = describe_files(stats.files_with_value(stray_values[0]))
        raise UserError(
            f"the masks have the values {_list_values(values)}; {_list_values(stray_values)} ({example_files}) may be "
            f"slightly changed class values: store one value for each class, or give {BINARY_FLAG} {OR_GREY}."
        )


def refuse_blurred_levels(stats: MaskStatistics, values: Sequence[int]) -> None:
    """Refuse masks if many values occur only on edges, as after blurring or resizing; `values` are sorted."""
    noisy_files = [file for file in stats.files if len(file.values) > NOISY_LEVELS and max(file.values) > NOISY_TOP]
    edge_values = [value for value in values[1:-1] if value not in stats.solid_values]
    edge_files = [file for file in stats.files if not file.values.isdisjoint(edge_values)]
    is_minority = sum(stats.pixel_counts[value] for value in edge_values) < sum(stats.pixel_counts.values()) / 2
    are_many = len(edge_values) > 2 or len(edge_files) > max(2, 0.2 * len(stats.files))
    has_edges = values[0] == 0 and max(values) >= NOISY_TOP and are_many and is_minority
    blurred_files = noisy_files or (edge_files if has_edges else [])
    if blurred_files:
        worst = max(blurred_files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} grey levels from {min(worst.values)} to {max(worst.values)}, "
            f"as after blurring or resizing ({len(blurred_files)} of {counted(len(stats.files), 'mask')} affected): "
            "store masks as PNG with one value for each class, or give --mask-values binary (values from 128 are "
            "foreground), grey or index."
        )


def refuse_blurred_colours(stats: MaskStatistics) -> None:
    """Refuse masks in which most colours occur only on edges."""
    edge_colours = [value for value in stats.values if value not in stats.solid_values]
    if len(edge_colours) > max(MAX_EDGE_COLOURS, len(stats.values) - len(edge_colours)):
        worst = max(stats.files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} colours, and {len(edge_colours)} of the {len(stats.values)} "
            "colours of all masks occur only on edges, as after blurring or resizing: store masks as PNG with one "
            "colour for each class, or give --classes with the colours."
        )


def refuse_lossy(stats: MaskStatistics) -> None:
    """Refuse masks in a lossy format, which may change a 1 to a 0; masks that are all black and white are accepted."""
    lossy_files = [file for file in stats.files if file.lossy]
    if lossy_files and not set(stats.values) <= {0, WHITE, 0xFFFFFF}:
        worst = max(lossy_files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} is in a lossy format ({counted(len(worst.values), 'value')}): store masks as PNG with "
            "one value for each class, or give --mask-values binary (values from 128 are foreground), index or colour."
        )


def refuse_faint(stats: MaskStatistics, void: int | None) -> None:
    """Refuse masks of two classes whose foreground values are below 128, since these would count as background."""
    for file in stats.files:
        nonzero = file.values - {0, void}
        if nonzero and 1 < max(nonzero) < 128 and (len(nonzero) == 1 or max(nonzero) >= MIN_FOREGROUND):
            raise UserError(
                f"mask {file.name} has values up to {max(nonzero)}, but in masks of two classes the foreground is 1, "
                "or 128 to 255: change the values of the mask."
            )


def _list_values(values: Sequence[int] | dict[int, int]) -> str:
    texts = [str(value) for value in values]
    return " and ".join(texts) if len(texts) < 3 else join_first_few(texts, 6)
