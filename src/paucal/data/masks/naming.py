"""Interpretation of names in sets with masks: folders of images or of masks, and the image that a mask belongs to."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import FOLDER_WORDS, WHOLE_WORDS, folder_words

# Folder names in published sets and labelling tools, in lower case, without separators, splits and formats.
_IMAGE_FOLDER = re.compile(
    r"images?|imgs?|(?:jpeg|rgb|original|raw)images|photos?|pictures|rgb|inputs?|originals?|leftimg8bit|frames|stillsraw"
)
_MASK_FOLDER = re.compile(
    r"(?:seg|segmentation|semantic|binary|pixel)?(?:masks?|labels?)|lbl|ann(?:s|ots?|otations?)?|gt(?:s|fine|coarse)?|"
    r"(?:ground)?truths?|segs?|segmentations?|segmentationclass(?:es)?|targets?|trimaps?|1stmanual|semantic|"
    r"label(?:ids|maps?|images|segmentation)|maskimages|stuffthingmaps|labeledapproved"
)
# "other": masks that number objects rather than classes, as VOC's and COCO's.
_CONTENTS = (("image", _IMAGE_FOLDER), ("mask", _MASK_FOLDER), ("other", re.compile("segmentationobjects?|panoptic")))
_FORMATS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif")
_PART_WORDS = "|".join(sorted(WHOLE_WORDS, key=len, reverse=True))
_JOINED_WITH_PART = re.compile(rf"(?P<part>{_PART_WORDS})(?P<rest>[a-z]+)|(?P<head>[a-z]+)(?P<tail>{_PART_WORDS})")

# Words for masks in file names.
TOKENS = (
    r"masks?|labels?|lbl|label(?:train)?ids|seg(?:s|mented|masks?|mentations?)?|annot(?:s|ated|ations?)?|"
    r"gt(?:fine|coarse)?|ground[\W_]?truths?|truth|targets?|trimaps?|manual\d?"
)
_TOKENS_BY_STRICT = ((True, TOKENS), (False, rf"{TOKENS}|l"))
_GAP = r"[\s_.,+~-]+"  # between words of a file name
_COUNT = r"(?:[\s_.,+~-]*)\(?(\d{1,6})\)?"  # _1, 1, (1)
# Words in names of pictures of masks and of other kinds of labels.
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
_NUMBERED = re.compile(rf"(.+?)(?:{_GAP}|\s*(?=\()){_COUNT}")
_LAST_WORD = re.compile(rf"(.+?){_GAP}[^\s_.,+~-]+")


def fold(text: str) -> str:
    """Return a name in the form in which names are compared: without differences in case and Unicode form.

    Example:
        >>> fold("E\u0301tang") == fold("\u00c9TANG")
        True
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


@dataclass(frozen=True)
class FolderRole:
    """What the name of a folder says about the files in it.

    Attributes:
        content: "image", "mask", "other" for labels of another kind, or "" if the name does not say.
        part: "train", "val", "test", or "" if the name does not say.
    """

    content: str
    part: str


@lru_cache(maxsize=1 << 12)
def folder_role(name: str) -> FolderRole:
    """Return the role that a folder's name states; every word of the name must be recognised.

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
    is_understood = content or (not unknown_words and all(word in WHOLE_WORDS for word in words))
    return FolderRole(content, "".join(parts) if is_understood and len(parts) == 1 else "")


def ends_as_masks(name: str) -> bool:
    """Return whether the last words of a folder's name stand for masks.

    Example:
        >>> ends_as_masks("ISIC2018_Task1_Training_GroundTruth"), ends_as_masks("photos")
        (True, False)
    """
    words = [word for word in folder_words(name) if word not in FOLDER_WORDS]
    if "instance" in words or "panoptic" in words:
        return False
    return any(_MASK_FOLDER.fullmatch("".join(words[-count:])) for count in (1, 2, 3))


def is_decoy_folder(name: str) -> bool:
    """Return whether a folder's name stands for pictures of masks or for labels of another kind."""
    return any(_DECOYS.fullmatch(word) for word in folder_words(name))


def is_decoy_name(words: str) -> bool:
    """Return whether a word of a file name stands for a picture of a mask, or for a label of another kind.

    Example:
        >>> is_decoy_name("_gtFine_color"), is_decoy_name("_tumor")
        (True, False)
    """
    return any(_DECOYS.fullmatch(word) for word in re.split(_GAP, words))


def _content_of_words(joined_words: str) -> str:
    return next((content for content, pattern in _CONTENTS if pattern.fullmatch(joined_words)), "")


@dataclass(frozen=True)
class MaskName:
    """One of several possible parses of a mask's name.

    Attributes:
        base: Name of the image that the mask would belong to; "" for the only image in the folder.
        kind: Words for masks in the name, in folded form, such as "mask" or "labelids"; "" for none.
        number: Number of the mask among the masks of its image; "" for none.
    """

    base: str
    kind: str = ""
    number: str = ""


_MASK_END = {strict: re.compile(rf"(.+?){_GAP}({tokens})", re.IGNORECASE) for strict, tokens in _TOKENS_BY_STRICT}
_MASK_END_NUMBERED = {
    strict: re.compile(rf"(.+?)({_GAP})({tokens}){_COUNT}", re.IGNORECASE) for strict, tokens in _TOKENS_BY_STRICT
}
# Names such as `mask.png` and `mask_1.png`, in a folder with an `image.png`.
_MASK_ONLY = {strict: re.compile(tokens, re.IGNORECASE) for strict, tokens in _TOKENS_BY_STRICT}
_MASK_ONLY_NUMBERED = {
    strict: re.compile(rf"({tokens}){_COUNT}", re.IGNORECASE) for strict, tokens in _TOKENS_BY_STRICT
}
_MASK_BEGIN = re.compile(rf"({TOKENS})(?:{_GAP}(.+)|(\d.*))", re.IGNORECASE)


def parse_mask_name(stem: str, strict: bool = False) -> Iterator[MaskName]:
    """Yield the parses of a mask's name that is not numbered, the longest base first.

    Args:
        stem: Name without suffix.
        strict: False if "l" at the end counts as a word for masks too, as in CamVid's `0001TP_006690_L.png`.

    Example:
        >>> [name.base for name in parse_mask_name("a_seg_mask")]
        ['a_seg', 'a']
    """
    if _MASK_ONLY[strict].fullmatch(stem):
        yield MaskName("", fold(stem))
    kinds, base = [], stem
    while match := _MASK_END[strict].fullmatch(base):
        base, kinds = match[1], [fold(match[2]), *kinds]
        yield MaskName(base, " ".join(kinds))
    if match := _MASK_BEGIN.fullmatch(stem):
        yield MaskName(match[2] or match[3], fold(match[1]))


def parse_numbered_name(stem: str, strict: bool = False) -> Iterator[MaskName]:
    """Yield the parses of a mask's name that ends in a word for masks and a number.

    In `a_mask_1` the number may count the masks of `a`, or belong to the name of an image `a_1`.

    Example:
        >>> [(name.base, name.number) for name in parse_numbered_name("a_mask_1")]
        [('a', '1'), ('a_1', '')]
    """
    if match := _MASK_ONLY_NUMBERED[strict].fullmatch(stem):
        yield MaskName("", fold(match[1]), match[2])
    match = _MASK_END_NUMBERED[strict].fullmatch(stem)
    if match is None:
        return
    base, gap, kind, number = match[1], match[2], fold(match[3]), match[4]
    yield MaskName(base, kind, number)
    for inner in parse_mask_name(base, strict):
        yield MaskName(inner.base, f"{inner.kind} {kind}", number)
    yield MaskName(f"{base}{gap}{number}", kind)


def parse_counted_name(stem: str) -> MaskName | None:
    """Parse a name that ends in a number as the name of an image and the number of a mask; None without a number."""
    match = _NUMBERED.fullmatch(stem)
    return MaskName(match[1], "", match[2]) if match else None


def image_bases(stem: str) -> Iterator[str]:
    """Yield the name of an image without words such as "image" at its beginning or end.

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


def object_name(stem: str) -> str:
    """Return a mask's name in folded form, without numbers and words for masks; "" if nothing remains.

    Example:
        >>> object_name("mask_1"), object_name("Liver_mask")
        ('', 'liver')
    """
    words = re.split(_GAP, re.sub(r"\d+", " ", fold(stem)).replace(" ", "_"))
    return "_".join(word for word in words if word and not re.fullmatch(TOKENS, word))


def without_suffix(name: str) -> str:
    """Return a name without its suffix, if that is the suffix of an image.

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
