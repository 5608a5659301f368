"""Interpretation of names in sets with masks: folders of images or of masks, and the image that a mask belongs to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from paucal.data.sources.locating import fold_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import FOLDER_WORDS, STANDALONE_WORDS, folder_words

# Folder names in published sets and labelling tools, in lower case, without separators and without words for splits and
# file formats.
_IMAGE_FOLDER = re.compile(
    r"images?|imgs?|(?:jpeg|rgb|original|raw)images|photos?|pictures|rgb|inputs?|originals?|leftimg8bit|frames|stillsraw"
)
_MASK_FOLDER = re.compile(
    r"(?:seg|segmentation|semantic|binary|pixel)?(?:masks?|labels?)|lbl|ann(?:s|ots?|otations?)?|gt(?:s|fine|coarse)?|"
    r"(?:ground)?truths?|segs?|segmentations?|segmentationclass(?:es)?|targets?|trimaps?|1stmanual|semantic|"
    r"label(?:ids|maps?|images|segmentation)|maskimages|stuffthingmaps|labeledapproved"
)
# Folders with the content "other" have masks of object numbers instead of class numbers, as in VOC and COCO.
_CONTENTS = (("image", _IMAGE_FOLDER), ("mask", _MASK_FOLDER), ("other", re.compile("segmentationobjects?|panoptic")))
_FORMATS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif")
_PART_WORDS = "|".join(sorted(STANDALONE_WORDS, key=len, reverse=True))
_JOINED_WITH_PART = re.compile(rf"(?P<part>{_PART_WORDS})(?P<rest>[a-z]+)|(?P<head>[a-z]+)(?P<tail>{_PART_WORDS})")

# Words for masks in file names.
MASK_WORDS = (
    r"masks?|labels?|lbl|label(?:train)?ids|seg(?:s|mented|masks?|mentations?)?|annot(?:s|ated|ations?)?|"
    r"gt(?:fine|coarse)?|ground[\W_]?truths?|truth|targets?|trimaps?|manual\d?"
)
# Words for masks, by the argument `strict` of `parse_mask_name`. If `strict` is False, "l" is also such a word.
_MASK_WORDS_BY_STRICT = ((True, MASK_WORDS), (False, rf"{MASK_WORDS}|l"))
_GAP = r"[\s_.,+~-]+"  # separator between words of a file name
_COUNT = r"(?:[\s_.,+~-]*)\(?(\d{1,6})\)?"  # number at the end of a file name, such as "_1", "1" or "(1)"
# Words in the names of mask visualisations and of other kinds of labels.
_DECOYS = re.compile(
    r"colou?r(?:s|ed|ized|masks?)?|instances?|instance(?:train)?ids|panoptic|overlays?|previews?|vis|viz|visuali[sz]ed|"
    r"thumbs?|edges?|depth",
    re.IGNORECASE,
)
_IMAGE_WORDS = r"images?|imgs?|im|photos?|pictures?|sat|rgb|leftimg8bit|inputs?|original|orig|raw"
# In nnU-Net, image names end in the number of the channel, 0000.
_IMAGE_END = re.compile(rf"(.+?){_GAP}(?:{_IMAGE_WORDS}|{_PART_WORDS}|0000)", re.IGNORECASE)
_IMAGE_BEGIN = re.compile(rf"(?:{_IMAGE_WORDS})(?:{_GAP}(.+)|(\d.*))", re.IGNORECASE)
_IMAGE_ONLY = re.compile(_IMAGE_WORDS, re.IGNORECASE)
NUMBERED_NAME = re.compile(rf"(.+?)(?:{_GAP}|\s*(?=\()){_COUNT}")  # name of an image, and number of a mask: "a_1"
_LAST_WORD = re.compile(rf"(.+?){_GAP}[^\s_.,+~-]+")


@dataclass(frozen=True)
class FolderRole:
    """The kind and the split of the files in a folder, parsed from the folder's name; "" if unknown."""

    content: str  # "image", "mask", or "other" for labels of another kind
    part: str  # "train", "val" or "test"


@lru_cache(maxsize=1 << 12)
def folder_role(name: str) -> FolderRole:
    """Parse a folder's name; the content and the split are "" unless every word of the name is recognised.

    Example:
        >>> folder_role("trainannot"), folder_role("Training_Images")
        (FolderRole(content='mask', part='train'), FolderRole(content='image', part='train'))
        >>> folder_role("with_mask"), folder_role("val2017")
        (FolderRole(content='', part=''), FolderRole(content='', part='val'))
    """
    words = folder_words(name)
    parts = {FOLDER_WORDS[word] for word in words if word in FOLDER_WORDS}
    unknown_words = [word for word in words if word not in FOLDER_WORDS]
    unknown_words = [word for word in unknown_words if word not in _FORMATS] or unknown_words
    joined_words = "".join(unknown_words)
    part_match = _JOINED_WITH_PART.fullmatch(joined_words)
    if part_match and _content_of_words(part_match["rest"] or part_match["head"]) and not parts:
        parts = {FOLDER_WORDS[part_match["part"] or part_match["tail"]]}
        joined_words = part_match["rest"] or part_match["head"]
    content = _content_of_words(joined_words)
    is_recognised = content or (not unknown_words and all(word in STANDALONE_WORDS for word in words))
    return FolderRole(content, "".join(parts) if is_recognised and len(parts) == 1 else "")


def ends_in_mask_words(name: str) -> bool:
    """Return whether the last words of a folder's name stand for masks.

    Example:
        >>> ends_in_mask_words("ISIC2018_Task1_Training_GroundTruth"), ends_in_mask_words("photos")
        (True, False)
    """
    words = [word for word in folder_words(name) if word not in FOLDER_WORDS]
    if "instance" in words or "panoptic" in words:
        return False
    return any(_MASK_FOLDER.fullmatch("".join(words[-count:])) for count in (1, 2, 3))


def is_decoy_folder(name: str) -> bool:
    """Return whether a folder is named after mask visualisations or labels of another kind."""
    return any(_DECOYS.fullmatch(word) for word in folder_words(name))


def is_decoy_name(name: str) -> bool:
    """Return whether a word of a file name stands for a mask visualisation or a label of another kind.

    Example:
        >>> is_decoy_name("_gtFine_color"), is_decoy_name("_tumor")
        (True, False)
    """
    return any(_DECOYS.fullmatch(word) for word in re.split(_GAP, name))


def _content_of_words(joined_words: str) -> str:
    return next((content for content, pattern in _CONTENTS if pattern.fullmatch(joined_words)), "")


@dataclass(frozen=True)
class MaskName:
    """One of several possible parses of a mask's name."""

    base: str  # name of the image that the mask would belong to; "" for the only image in the folder
    kind: str = ""  # words for masks in the name, in folded form, such as "mask" or "labelids"
    number: str = ""  # number of the mask among the masks of the image


def _patterns_by_strict(begin: str, end: str) -> dict[bool, re.Pattern[str]]:
    """Return patterns of names with a word for masks between `begin` and `end`, by the argument `strict`."""
    return {strict: re.compile(f"{begin}({words}){end}", re.IGNORECASE) for strict, words in _MASK_WORDS_BY_STRICT}


# File names that end in a word for masks, or in such a word and a number.
_MASK_WORD_AT_END = _patterns_by_strict(f"(.+?){_GAP}", "")
_NUMBERED_MASK_WORD_AT_END = _patterns_by_strict(f"(.+?)({_GAP})", _COUNT)
# Names that consist of a word for masks (`mask.png`), or of such a word and a number (`mask_1.png`). Masks have such
# names in a folder with an `image.png`.
_MASK_WORD, _NUMBERED_MASK_WORD = _patterns_by_strict("", ""), _patterns_by_strict("", _COUNT)
_MASK_WORD_AT_BEGINNING = re.compile(rf"({MASK_WORDS})(?:{_GAP}(.+)|(\d.*))", re.IGNORECASE)


def parse_mask_name(stem: str, strict: bool = False) -> Iterator[MaskName]:
    """Yield the possible parses of the name of a mask without a number, from the longest to the shortest base.

    Unless `strict`, "l" at the end also counts as a word for masks, as in CamVid's `0001TP_006690_L.png`.

    Example:
        >>> [name.base for name in parse_mask_name("a_seg_mask")]
        ['a_seg', 'a']
    """
    if _MASK_WORD[strict].fullmatch(stem):
        yield MaskName("", fold_name(stem))
    kinds, base = [], stem
    while match := _MASK_WORD_AT_END[strict].fullmatch(base):
        base, kinds = match[1], [fold_name(match[2]), *kinds]
        yield MaskName(base, " ".join(kinds))
    if match := _MASK_WORD_AT_BEGINNING.fullmatch(stem):
        yield MaskName(match[2] or match[3], fold_name(match[1]))


def parse_numbered_name(stem: str, strict: bool = False) -> Iterator[MaskName]:
    """Yield the possible parses of a mask's name that ends in a word for masks and a number.

    Example:
        >>> [(name.base, name.number) for name in parse_numbered_name("a_mask_1")]
        [('a', '1'), ('a_1', '')]
    """
    if match := _NUMBERED_MASK_WORD[strict].fullmatch(stem):
        yield MaskName("", fold_name(match[1]), match[2])
    match = _NUMBERED_MASK_WORD_AT_END[strict].fullmatch(stem)
    if match is None:
        return
    base, gap, kind, number = match[1], match[2], fold_name(match[3]), match[4]
    yield MaskName(base, kind, number)
    for inner in parse_mask_name(base, strict):
        yield MaskName(inner.base, f"{inner.kind} {kind}", number)
    yield MaskName(f"{base}{gap}{number}", kind)


def image_bases(stem: str) -> Iterator[str]:
    """Yield shorter forms of an image's name, without words such as "image" at the beginning or end.

    Example:
        >>> list(image_bases("aachen_000000_leftImg8bit")), list(image_bases("img001"))
        (['aachen_000000'], ['001'])
    """
    if _IMAGE_ONLY.fullmatch(stem):
        yield ""
    if match := _IMAGE_END.fullmatch(stem):
        yield match[1]
    if match := _IMAGE_BEGIN.fullmatch(stem):
        yield match[1] or match[2]


def name_without_mask_words(stem: str) -> str:
    """Return a mask's name in folded form, without numbers and words for masks; "" if nothing remains.

    Example:
        >>> name_without_mask_words("mask_1"), name_without_mask_words("Liver_mask")
        ('', 'liver')
    """
    words = re.split(_GAP, re.sub(r"\d+", " ", fold_name(stem)).replace(" ", "_"))
    return "_".join(word for word in words if word and not re.fullmatch(MASK_WORDS, word))


def without_suffix(name: str) -> str:
    """Return a file name without its suffix, if the suffix is that of an image format.

    Example:
        >>> without_suffix("a.JPG"), without_suffix("a.1")
        ('a', 'a.1')
    """
    suffix = next((suffix for suffix in IMAGE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def shorter_names(stem: str) -> Iterator[str]:
    """Yield a name without its last word, without its last two words, and so on.

    Example:
        >>> list(shorter_names("a_tumor_1"))
        ['a_tumor', 'a']
    """
    while match := _LAST_WORD.fullmatch(stem):
        stem = match[1]
        yield stem
