"""Files of one set whose values do not mean the same: refused with the flag that settles what is meant."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from paucal.data.masks.measuring import FileFacts, Seen, names_of
from paucal.data.masks.pixels import COLOUR, GREY, PALETTE, unpacked
from paucal.types import UserError
from paucal.wording import counted

VOID = 255  # the grey value that means "not labelled" in masks by index, as in PASCAL VOC
HIGH = 64  # grey value from which on a level rather stands for "marked" than for the number of a class
RARE = 0.1  # share of files that have both codings, below which they are mistakes
SPECKS = 200  # times fewer pixels than the others, from which on a value is a speck
NEAR, APART = 7, 16  # grey levels: how close values lie that were one, and how far apart those of two classes
ENDS = 15  # grey levels from black and from white within which values were black and white
FEW_EDGES = 3  # colours on edges alone that may be thin objects
NOISY, NOISY_TOP = 32, 200  # grey levels of a file, from which on it was blurred or resized if it has bright ones
WHITE = 255
BINARY, OR_GREY = "--mask-values binary (two classes)", "or grey (a class for each level)"


def refuse_kinds(seen: Seen, colours_are_meant: bool = False) -> None:
    """Refuse files of which some are in colour, some have a palette and some hold numbers, where they disagree.

    Args:
        seen: Facts of all files.
        colours_are_meant: Whether a table of classes gives colours, so that those of palettes count.

    Raises:
        UserError: They disagree.
    """
    by_kind: dict[str, list[FileFacts]] = defaultdict(list)
    for file in seen.files:
        by_kind[file.kind].append(file)
    colour, palette, grey = by_kind[COLOUR], by_kind[PALETTE], by_kind[GREY]
    if colours_are_meant:
        return  # a value that the table lacks is refused by itself
    if colour:
        _refuse_beside_colours(colour, palette, grey)
    else:
        top = max((value for file in palette for value in file.values - {VOID}), default=0)
        levels = [file for file in grey if max(file.values - {VOID}, default=0) >= max(HIGH, top + 1)]
        if palette and levels:
            raise _two_ways(palette, "with a palette", levels, "with grey levels", "the colours of palettes are meant")
        _refuse_palettes(palette)


def _refuse_beside_colours(colour: list[FileFacts], palette: list[FileFacts], grey: list[FileFacts]) -> None:
    """Refuse palettes and numbers beside colours, and black and white that no file in colour has."""
    if palette:
        raise _two_ways(colour, "in colour", palette, "with a palette", "the colours of palettes are meant")
    three = [*colour, *(file for file in grey if file.bits == 24)]
    shown = {value >> 16 for file in three for value in file.as_colours().values if value % 0x010101 == 0}
    numbers = [file for file in grey if file.bits in (8, 16) and not file.values <= shown | {0, WHITE}]
    if numbers:
        raise _two_ways(colour, "in colour", numbers, "with numbers or grey levels", "each level is a colour")
    white = [file for file in grey if file.bits in (1, 8) and file.values - {0}]
    if white and WHITE not in shown:
        raise _two_ways(colour, "in colour", white, "in black and white", "white is a class of its own")


def _two_ways(
    files: Sequence[FileFacts], way: str, others: Sequence[FileFacts], other_way: str, meant: str
) -> UserError:
    return UserError(
        f"the masks are stored in two ways: {names_of(files)} {way}, {names_of(others)} {other_way}: store all alike, "
        f"or say --mask-values colour if {meant}."
    )


def _refuse_palettes(files: Sequence[FileFacts]) -> None:
    """Refuse palettes in which one number is of two colours."""
    first: dict[int, tuple[int, FileFacts]] = {}
    for file in files:
        for value, colour in (file.palette or {}).items():
            before, other = first.setdefault(value, (colour, file))
            if before != colour:
                raise UserError(
                    f"the palettes of the masks differ: the number {value} is {unpacked(before)} in {other.name} and "
                    f"{unpacked(colour)} in {file.name}: say --mask-values colour if the colours are meant, or index "
                    "if the numbers are."
                )


def refuse_codings(seen: Seen, void: int | None = None) -> None:
    """Refuse grey files of which some hold numbers of classes and others 0 and one high value, such as 255.

    Args:
        seen: Facts of grey files and of palettes.
        void: Value that the user calls "not labelled".

    Raises:
        UserError: There are such files, and none or hardly any that holds both kinds of values.
    """
    low: list[FileFacts] = []
    both: list[FileFacts] = []
    high: dict[int, list[FileFacts]] = defaultdict(list)
    for file in seen.files:
        marked = sorted(file.values - {0, void})
        if not marked or marked[-1] > WHITE or (file.bits == 1 and _is_white(seen)):
            continue
        if marked[-1] < HIGH:
            low.append(file)
        elif marked == [VOID] and 0 not in file.values:
            continue  # an image that nobody has labelled, unless other files show that 255 marks something
        elif len(marked) == 1 and (file.kind == GREY or marked[0] == VOID):
            high[marked[0]].append(file)
        else:
            both.append(file)
    highs = [file for files in high.values() for file in files]
    if low and highs and len(high) <= 2 and len(both) < max(1, RARE * min(len(low), len(highs))):
        none = "hardly any has" if both else "none has"
        void_words = " or --ignore 255 (nobody has labelled those pixels)" if VOID in high else ""
        raise UserError(f"{_two(highs, low)}, and {none} both: store all alike, or say {BINARY}{void_words}.")
    if not low and not both and len(high) == 2:
        raise UserError(f"{_two(*high.values())}, and none has both: store all alike, or say {BINARY} {OR_GREY}.")


def _two(one: Sequence[FileFacts], other: Sequence[FileFacts]) -> str:
    told = (f"{_listed(sorted(files[0].values))} in {names_of(files)}" for files in (one, other))
    return f"the masks have two codings: {', '.join(told)}"


def _is_white(seen: Seen) -> bool:
    """Whether the grey files of 8 bits are black and white, so that a bit of 1 is white too."""
    values = frozenset().union(*(file.values for file in seen.files if file.bits != 1))
    return WHITE in values and values <= {0, WHITE}


def is_binary(seen: Seen, values: Sequence[int]) -> bool:
    """Whether masks are black and white; the white of files of one bit is 1."""
    return set(values) <= {0, WHITE} or (_is_white(seen) and not seen.has_palette and set(values) <= {0, 1, WHITE})


def refuse_specks(seen: Seen, void: int | None) -> None:
    """Refuse masks of 0 and 255 with a few pixels of a small number, of which 255 would be read as "not labelled".

    Raises:
        UserError: There are such pixels.
    """
    pixels = {value: count for value, count in seen.pixels.items() if value != void}
    small = {value: count for value, count in pixels.items() if 0 < value < HIGH}
    if small and set(pixels) - set(small) == {0, VOID} and sum(small.values()) * SPECKS < min(pixels[0], pixels[VOID]):
        raise UserError(
            f"the masks have the values 0 and 255, and {counted(sum(small.values()), 'pixel')} of {_listed(small)} "
            f"({names_of(seen.with_value(min(small)))}): say {BINARY} or --ignore 255 (nobody has labelled those "
            "pixels), or correct the masks."
        )


def refuse_nearly(seen: Seen, values: Sequence[int]) -> None:
    """Refuse values that lie close to those of classes far apart, such as 254 beside 0 and 255.

    Args:
        seen: Facts of grey files.
        values: Values of classes, sorted.

    Raises:
        UserError: There are such values.
    """
    below = [value for value in values if value != VOID]
    if max(below, default=0) < HIGH:
        return  # numbers of classes
    groups: list[list[int]] = [[values[0]]]
    for before, value in pairwise(values):
        groups[-1].append(value) if value - before <= NEAR else groups.append([value])
    odd = []
    for group in groups:
        usual = max(group, key=lambda value: seen.pixels[value])
        others = [value for value in group if value != usual]
        if group[-1] >= VOID - NEAR or sum(seen.pixels[value] for value in others) * 100 < seen.pixels[usual]:
            odd += others if group[-1] - group[0] <= 2 * NEAR else []
    apart = all(after[0] - before[-1] >= APART for before, after in pairwise(groups))
    if len(values) > 2 and all(value <= ENDS or value >= VOID - ENDS for value in values):
        apart, odd = True, [value for value in values if value not in (0, VOID)]
    if apart and odd and len(groups) > 1:
        where = names_of(seen.with_value(odd[0]))
        raise UserError(
            f"the masks have values that are nearly those of a class, {_listed(odd)} ({where}) among {_listed(values)}"
            f": store one value for each class, or say {BINARY} {OR_GREY}."
        )


def refuse_blurred(seen: Seen, values: Sequence[int]) -> None:
    """Refuse grey levels that occur on edges alone, as blurring and resizing leave them.

    Args:
        seen: Facts of grey files.
        values: Values of classes, sorted.

    Raises:
        UserError: Such levels are many, or in many files.
    """
    noisy = [file for file in seen.files if len(file.values) > NOISY and max(file.values) > NOISY_TOP]
    edges = [value for value in values[1:-1] if value not in seen.solid]
    on_edges = [file for file in seen.files if not file.values.isdisjoint(edges)]
    rare = sum(seen.pixels[value] for value in edges) < sum(seen.pixels.values()) / 2
    many = len(edges) > 2 or len(on_edges) > max(2, 0.2 * len(seen.files))
    blurred = noisy or (on_edges if values[0] == 0 and max(values) >= NOISY_TOP and many and rare else [])
    if blurred:
        worst = max(blurred, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} grey levels from {min(worst.values)} to {max(worst.values)}, "
            f"as after blurring or resizing ({len(blurred)} of {counted(len(seen.files), 'mask')} like that): store "
            "masks as PNG with one value for each class, or say what they mean with --mask-values binary (from 128 "
            "on), grey or index."
        )


def refuse_blurred_colours(seen: Seen) -> None:
    """Refuse colours that occur on edges alone, where they are more than the others.

    Raises:
        UserError: They are more.
    """
    edges = [value for value in seen.values if value not in seen.solid]
    if len(edges) > max(FEW_EDGES, len(seen.values) - len(edges)):
        worst = max(seen.files, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} has {len(worst.values)} colours, and {len(edges)} of the {len(seen.values)} of all "
            "masks occur on edges alone, as after blurring or resizing: store masks as PNG with one colour for each "
            "class, or give --classes with the colours."
        )


def refuse_lossy(seen: Seen) -> None:
    """Refuse a format that keeps values only nearly, unless all masks are black and white.

    A mask of ones that is stored so may well be read as zeros.

    Raises:
        UserError: A file is stored so.
    """
    lossy = [file for file in seen.files if file.lossy]
    if lossy and not set(seen.values) <= {0, WHITE, 0xFFFFFF}:
        worst = max(lossy, key=lambda file: len(file.values))
        raise UserError(
            f"mask {worst.name} is in a lossy format ({counted(len(worst.values), 'value')}): store masks as PNG with "
            "one value for each class, or say what they mean with --mask-values binary (from 128 on), index or "
            "colour."
        )


def refuse_faint(seen: Seen, void: int | None) -> None:
    """Refuse a mask of two classes whose marked pixels lie below the middle, so that they would count as background.

    Raises:
        UserError: There is such a file.
    """
    for file in seen.files:
        marked = file.values - {0, void}
        if marked and 1 < max(marked) < 128 and (len(marked) == 1 or max(marked) >= HIGH):
            raise UserError(
                f"mask {file.name} has values up to {max(marked)}: masks of two classes are marked with 1, or from 128 "
                "on; store it so."
            )


def _listed(values: Sequence[int] | dict[int, int]) -> str:
    shown = [str(value) for value in values]
    return " and ".join(shown) if len(shown) < 3 else ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "")
