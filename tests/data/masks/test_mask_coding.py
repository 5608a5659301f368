"""What the values of masks mean."""

import numpy as np
import pytest

from paucal.data.masks.coding import (
    IGNORED,
    MaskCoding,
    NamedClasses,
    find_coding,
    read_class_names,
    require_same_coding,
)
from paucal.data.masks.mask_files import COLOUR, PALETTE, FileStatistics, MaskStatistics
from paucal.types import UserError


def file_facts(
    *values: int, name: str = "a.png", solid_values: tuple[int, ...] | None = None, **more
) -> FileStatistics:
    """Return the facts of a file in which each value has as many pixels, or those of `pixels`."""
    pixels = more.pop("pixels", dict.fromkeys(values, 100))
    return FileStatistics(name, pixels, frozenset(values if solid_values is None else solid_values), **more)


def one_file(*values: int, **more) -> MaskStatistics:
    """Return the facts of a set of one file."""
    return MaskStatistics((file_facts(*values, **more),))


def several_files(*many: tuple[int, ...], **more) -> MaskStatistics:
    """Return the facts of a set of files with these values."""
    return MaskStatistics(tuple(file_facts(*values, name=f"{place}.png", **more) for place, values in enumerate(many)))


@pytest.mark.parametrize(
    ("values", "kind", "classes", "ignore"),
    [
        ((0, 255), "binary", (0, 255), None),
        ((0, 1), "index", (0, 1), None),
        ((0, 1, 3), "index", (0, 1, 2, 3), None),  # 2 occurs nowhere
        ((0, 1, 2, 255), "index", (0, 1, 2), 255),  # VOC's void
        ((0, 15), "index", tuple(range(16)), None),
        (tuple(range(151)), "index", tuple(range(151)), None),  # ADE20K
        ((0, 128), "grey", (0, 128), None),
        ((0, 85, 170, 255), "grey", (0, 85, 170, 255), None),
    ],
)
def test_coding__is_told_from_the_values(values, kind, classes, ignore):
    assert find_coding(one_file(*values)) == MaskCoding(kind, classes, ignore)


def test_what_is_said__wins_over_what_looks_likely():
    assert find_coding(one_file(0, 128), "index").count == 129
    assert find_coding(one_file(0, 1, 2), "grey").values == (0, 1, 2)
    assert find_coding(one_file(0, 1, 2, 9), ignore=[9]) == MaskCoding("index", (0, 1, 2), 9)
    assert find_coding(one_file(0, 1, 2), ignore=[0]) == MaskCoding("index", (1, 2), 0)
    assert find_coding(one_file(3, 40, 200, lossy=True, name="a.jpg"), "binary").values == (0, 255)


def test_palettes__are_indices():
    assert find_coding(one_file(0, 100, 200, kind=PALETTE, palette={})).kind == "index"


def test_encode__numbers_classes_and_marks_what_nobody_labelled():
    values = np.asarray([[0, 85, 7], [170, 85, 0]], dtype=np.int32)
    coding = MaskCoding("grey", (85, 0, 170), ignore=7)
    assert coding.encode(values, "x").tolist() == [[1, 0, IGNORED], [2, 0, 1]]


@pytest.mark.parametrize(
    "coding",
    [
        MaskCoding("index", (1, 2, 3), 0),
        MaskCoding("binary", (0, 255)),
        MaskCoding("binary", (0, 1)),
        MaskCoding("grey", (0, 85, 170)),
        MaskCoding("colour", (0x800000, 0, 0x00FF00)),
    ],
)
def test_decode__gives_back_what_encode_has_read(coding):
    classes = np.arange(6).reshape(2, 3) % coding.count
    values = coding.decode(classes).astype(np.int32)
    if coding.kind == "colour":
        assert values.shape == (2, 3, 3)
        values = values[..., 0] << 16 | values[..., 1] << 8 | values[..., 2]
    assert coding.encode(values, "x").tolist() == classes.tolist()


def test_binary__cuts_in_the_middle_or_above_zero():
    values = np.asarray([[0, 1, 127, 128, 250]], dtype=np.int32)
    assert MaskCoding("binary", (0, 255)).encode(values, "x").tolist() == [[0, 0, 0, 1, 1]]
    assert MaskCoding("binary", (0, 1)).encode(values[:, :2], "x").tolist() == [[0, 1]]


def test_values_of_no_class__are_refused_with_the_file():
    with pytest.raises(UserError, match=r"mask a\.png has the value 7, .*--ignore"):
        MaskCoding("index", (0, 1)).encode(np.asarray([[0, 7]], dtype=np.int32), "a.png")
    with pytest.raises(UserError, match=r"has the value \(0, 0, 9\)"):
        MaskCoding("colour", (0, 255)).encode(np.asarray([[0, 9]], dtype=np.int32), "a.png")


@pytest.mark.parametrize(
    ("facts", "more", "words"),
    [
        (one_file(*range(0, 256, 2)), {}, r"mask a\.png has 128 grey levels from 0 to 254, as after blurring"),
        (one_file(0, 3, 250, 255, lossy=True, name="a.jpg"), {}, "a.jpg is in a lossy format"),
        (one_file(0, 400, bits=16), {"requested_kind": "grey"}, "a.png has 16 bits per pixel"),
        (one_file(0, 20000, bits=16), {}, "a.png has 16 bits per pixel"),
        (one_file(0, 300, bits=16), {"requested_kind": "index"}, "at most 255 classes are supported"),
        (one_file(255), {}, "are of one class"),
        (one_file(0), {}, "are of one class"),
        (one_file(0), {"ignore": [0]}, "no pixel of the masks is labelled"),
        (one_file(0, 255), {"ignore": [1, 2, 3]}, "expected one grey value"),
        (one_file(0, 255, kind=COLOUR), {"ignore": [1]}, "expected red, green and blue"),
        (one_file(0, 255), {"requested_kind": "colour"}, "the masks are grey"),
        (one_file(0, 255, kind=COLOUR), {"requested_kind": "index"}, "the masks are in colour"),
        (one_file(*range(300), kind=COLOUR), {}, "300 colours, but at most 255"),
        (one_file(0, 1, 2), {"named_classes": NamedClasses(("a", "b"))}, "names 2 classes, but the masks have 3"),
        (
            one_file(0, 1),
            {"named_classes": NamedClasses(("a", "b"), (0, 9), has_colours=True)},
            "gives colours, but the masks are grey",
        ),
    ],
)
def test_masks_that_mean_nothing__are_refused(facts, more, words):
    with pytest.raises(UserError, match=words):
        find_coding(facts, **more)


ZERO_ONE, ZERO_255, VOID = (0, 1), (0, 255), (0, 1, 255)


@pytest.mark.parametrize(
    ("many", "words"),
    [
        (
            [ZERO_255, ZERO_ONE] * 6,
            r"0 and 255 in 0\.png and 5 others, 0 and 1 in 1\.png and 5 .* no mask has values of both",
        ),
        ([*[ZERO_255, ZERO_ONE] * 11, VOID], "and hardly any mask has values of both"),
        (
            [*[ZERO_255] * 11, (0, 254)],
            r"0 and 255 in 0\.png and 10 others, 0 and 254 in 11\.png, .*-values binary",
        ),
        ([ZERO_255, (0, 128)], "two codings"),
        ([ZERO_ONE, (0, 128)], "two codings"),
        ([(0, 1, 2), (0, 3), ZERO_255], "two codings.*--ignore 255"),
        (
            [(0, 1, 254, 255), ZERO_255],
            r"values 0, 1, 254, 255; 1 and 254 \(0\.png\) may be slightly changed class values",
        ),
        ([(0, 5, 250), (0, 250)], "may be slightly changed class values"),
        ([(0, 85, 170, 255), (0, 84, 85, 255)], r"; 84 \(1\.png\) may be slightly changed class values"),
    ],
)
def test_files_of_two_codings__are_refused_with_the_flag_that_settles_it(many, words):
    facts = several_files(*many)
    if "84" in words:
        facts.files[1].pixel_counts[84] = 1
    with pytest.raises(UserError, match=words):
        find_coding(facts)


def test_flags__settle_what_files_of_two_codings_mean():
    mixed = several_files(ZERO_255, ZERO_ONE)
    assert find_coding(mixed, "binary") == MaskCoding("binary", (0, 255))
    assert find_coding(mixed, ignore=[255]) == MaskCoding("index", (0, 1), 255)
    assert find_coding(several_files(ZERO_255, (0, 254)), "grey") == MaskCoding("grey", (0, 254, 255))
    rows = np.asarray([[0, 1, 1], [0, 255, 254]], dtype=np.int32)
    assert [MaskCoding("binary", (0, 255)).encode(row[None], "x").tolist() for row in rows] == [[[0, 1, 1]]] * 2
    with pytest.raises(UserError, match=r"mask 1\.png has values up to 100, .* the foreground is 1, or 128"):
        find_coding(several_files(ZERO_255, (0, 100)), "binary")


@pytest.mark.parametrize(
    "many",
    [
        [VOID, (0, 1), (0, 255), (0, 2)],  # VOC's void beside objects, and alone
        [(0, 1), (0, 2), (0, 3)],  # one class in each image
        [(0, 85), (0, 170), (0, 255)],  # the same in grey
        [(0, 128, 255), (0, 128), (0, 255)],
        [(0, 1), (255,)],  # an image that nobody has labelled
        [(0, 20, 149), (0, 3), (0, 120), (0, 7, 90)],  # some of ADE20K's 150
    ],
)
def test_sound_sets__are_not_refused(many):
    facts = several_files(*many)
    assert set(find_coding(facts).values) | {255} >= set(facts.values)


def test_a_few_pixels_of_a_small_number__do_not_make_white_unlabelled():
    specks = one_file(0, 1, 255, pixels={0: 90_000, 1: 20, 255: 40_000})
    with pytest.raises(
        UserError, match=r"0 and 255, and 20 pixels with the value 1 \(a\.png\): give --mask-values binary"
    ):
        find_coding(specks)
    assert find_coding(specks, "binary").count == 2
    scribbles = one_file(0, 1, 255, pixels={0: 300, 1: 200, 255: 90_000})
    assert find_coding(scribbles) == MaskCoding("index", (0, 1), 255)


def test_palettes_that_differ__are_refused_and_their_colours_may_be_meant():
    red, blue, black = 0xFF0000, 0x0000FF, 0
    one = file_facts(0, 1, name="one.png", kind=PALETTE, palette={0: black, 1: red})
    other = file_facts(0, 1, 2, name="two.png", kind=PALETTE, palette={0: black, 1: blue, 2: red})
    with pytest.raises(UserError, match=r"index 1 has the colour \(255, 0, 0\) in one\.png, and \(0, 0, 255\) in two"):
        find_coding(MaskStatistics((one, other)))
    assert find_coding(MaskStatistics((one, other)), "colour") == MaskCoding("colour", (black, blue, red))
    assert find_coding(MaskStatistics((one, other)), "index") == MaskCoding("index", (0, 1, 2))
    table = NamedClasses(("sky", "car", "none"), (blue, red, black), has_colours=True)
    assert find_coding(MaskStatistics((one, other)), named_classes=table).values == (blue, red, black)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (
            (file_facts(0, 0xFF0000, kind=COLOUR), file_facts(0, 1, kind=PALETTE, palette={0: 0, 1: 9})),
            r"with a palette\): store all masks in the same way, or give",
        ),
        ((file_facts(0, 0xFF0000, kind=COLOUR), file_facts(0, 1, 2)), "with numbers or grey levels"),
        ((file_facts(0, 0xFF0000, kind=COLOUR), file_facts(0, 255)), "in black and white"),
        ((file_facts(0, 1, kind=PALETTE, palette={}), file_facts(0, 76, 150)), "with grey levels"),
        ((file_facts(0, 1, kind=PALETTE, palette={}), file_facts(0, 255)), "two codings"),
    ],
)
def test_masks_that_are_stored_in_two_ways__are_refused(pair, words):
    with pytest.raises(UserError, match=words):
        find_coding(MaskStatistics(pair))


def test_black_white_and_grey__are_colours_where_a_file_of_three_channels_has_them():
    colour, grey = file_facts(0, 0xFF0000, kind=COLOUR), file_facts(0, 128, 255, bits=24)
    found = find_coding(
        MaskStatistics((colour, grey, file_facts(0, 128), file_facts(0, 255), file_facts(0, 1, bits=1)))
    )
    assert found == MaskCoding("colour", (0, 0x808080, 0xFF0000, 0xFFFFFF))


def test_one_bit_and_eight__are_black_and_white_alike():
    assert find_coding(MaskStatistics((file_facts(0, 1, bits=1), file_facts(0, 255)))) == MaskCoding("binary", (0, 255))
    assert find_coding(MaskStatistics((file_facts(0, 1, bits=1), file_facts(0, 1, 2)))) == MaskCoding(
        "index", (0, 1, 2)
    )


def test_blurred_masks__are_named():
    clean, grey = file_facts(0, 255, name="clean.png"), tuple(range(0, 256, 12))
    blurred = file_facts(*grey, 255, name="blurred.png", solid_values=(0, 255), pixels=dict.fromkeys((*grey, 255), 1))
    with pytest.raises(UserError, match=r"mask blurred\.png has 23 grey levels .* \(1 of 4 masks affected\)"):
        find_coding(MaskStatistics((clean, blurred, clean, clean)))
    edges = file_facts(
        0, 64, 128, 191, 255, name="edges.png", solid_values=(0, 255), pixels={0: 900, 64: 9, 128: 9, 191: 9, 255: 900}
    )
    with pytest.raises(UserError, match=r"mask edges\.png has 5 grey levels"):
        find_coding(MaskStatistics((edges, clean)))
    colours = [n * 0x010203 for n in range(9)]
    with pytest.raises(
        UserError, match=r"mask a\.png has 9 colours, and 7 of the 9 colours of all masks occur only on edges"
    ):
        find_coding(one_file(*colours, kind=COLOUR, solid_values=tuple(colours[:2])))


def test_lossy_masks_of_numbers__are_refused_even_where_nothing_is_left():
    with pytest.raises(UserError, match=r"mask b\.jpg is in a lossy format"):
        find_coding(MaskStatistics((file_facts(0, 1), file_facts(0, name="b.jpg", lossy=True))))
    assert find_coding(MaskStatistics((file_facts(0, 255), file_facts(0, 255, lossy=True)))).kind == "binary"


def test_masks_for_a_run__must_have_the_coding_that_it_knows():
    known = MaskCoding("index", (0, 1, 2), 255)
    require_same_coding(known, several_files((0, 1, 255), (0, 255)))
    with pytest.raises(UserError, match="only the values 0 and 255"):
        require_same_coding(known, several_files(ZERO_255, ZERO_255))
    require_same_coding(known, several_files(ZERO_255, ZERO_255), ignore=[255])
    with pytest.raises(UserError, match="two codings"):
        require_same_coding(known, several_files(ZERO_255, ZERO_ONE))
    require_same_coding(MaskCoding("binary", (0, 255)), several_files(ZERO_255, ZERO_ONE))
    with pytest.raises(UserError, match="values up to 90"):
        require_same_coding(MaskCoding("binary", (0, 255)), several_files((0, 90)))


def test_names__give_classes_that_no_mask_shows():
    assert find_coding(one_file(0, 1), named_classes=NamedClasses(("a", "b", "c"))).values == (0, 1, 2)
    named = NamedClasses(("road", "sky"), (7, 23))
    assert find_coding(one_file(7, 23, 255), named_classes=named) == MaskCoding("index", (7, 23), 255)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat\ndog\n", NamedClasses(("cat", "dog"))),
        ("name\ncat\ndog\n", NamedClasses(("cat", "dog"))),
        ("0,cat\n7,dog\n", NamedClasses(("cat", "dog"), (0, 7))),
        ("name,value\ncat,1\ndog,2\n", NamedClasses(("cat", "dog"), (1, 2))),
        ("name,r,g,b\nsky, 0, 0,255\nroad,128,0,0\n", NamedClasses(("sky", "road"), (255, 0x800000), has_colours=True)),
        ("0,0,255,sky\n128,0,0,road\n", NamedClasses(("sky", "road"), (255, 0x800000), has_colours=True)),
    ],
)
def test_files_of_classes__are_read(tmp_path, text, expected):
    path = tmp_path / "classes.txt"
    path.write_text(text)
    assert read_class_names(path) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_files_of_classes__are_read_in_any_encoding(tmp_path, encoding):
    path = tmp_path / "classes.txt"
    path.write_bytes("Kätzchen,1\r\nHündchen,2\r\n".encode(encoding))
    found = read_class_names(path)
    assert (found.names, found.values) == (("Kätzchen", "Hündchen"), (1, 2))
    assert bool(found.note) == (encoding == "cp1252")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "contains no class name"),
        (b"cat\ncat\n", "has 'cat' twice"),
        (b"cat,1\ndog,1\n", "has .1. twice"),
        (b"cat,1\ndog\n", "have different numbers of columns"),
        (b"cat,one\n", "is not of the form"),
        (b"cat,1,2,300\n", "is not of the form"),
        (b"cat\x81\ndog", "is not UTF-8 text"),
        (b"1,2,3,4,5\n", "is not of the form"),
    ],
)
def test_files_of_classes_that_do_not_do__are_refused(tmp_path, content, words):
    path = tmp_path / "classes.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_class_names(path)
    with pytest.raises(UserError, match="does not exist"):
        read_class_names(tmp_path / "none.txt")
