"""Sequences of millions of strings in one block of memory; a list of `str` takes 100 bytes more per string."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_CHUNK_STRINGS = 4096  # strings that are converted to `str` at a time during iteration
_ARROW_TYPE = pa.large_binary()  # bytes, because file names need not be valid UTF-8


class _Strings(Sequence[str], ABC):
    """A sequence of strings; `take` and slices return many strings at once."""

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Any:
        """Return the strings at some positions, in the order of the positions."""

    @abstractmethod
    def _string(self, position: int) -> str: ...

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        return self._string(range(len(self))[index])


class StringArray(_Strings):
    """Immutable strings in an Arrow array of `large_binary`; bytes that are not UTF-8 become surrogates."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "StringArray":
        """Create an array from strings."""
        return cls(pa.array((_encode(text) for text in strings), _ARROW_TYPE))

    @classmethod
    def numbered(cls, names: Sequence[str], counts: Sequence[int]) -> "StringArray":
        """Return the strings "name#0" to "name#(count - 1)" for each name, given the count of each name."""
        prefixes = pa.array([_encode(f"{name}#") for name in names], _ARROW_TYPE)
        name_rows = pa.array(np.repeat(np.arange(len(names)), counts))
        numbers = np.concatenate([np.arange(count) for count in counts]) if len(counts) else np.zeros(0, np.int64)
        digits = pc.cast(pc.cast(pa.array(numbers), pa.string()), _ARROW_TYPE)
        return cls(_join_pairs(prefixes.take(name_rows), digits))

    @classmethod
    def from_buffers(cls, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> "StringArray":
        """Return the array from the result of `to_buffers`."""
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
        return cls(pa.Array.from_buffers(_ARROW_TYPE, len(ends), buffers))

    @classmethod
    def concatenate(cls, arrays: Sequence["StringArray"]) -> "StringArray":
        """Return one array with the strings of several arrays, in order."""
        return cls(pa.concat_arrays([array._values for array in arrays]))

    def to_buffers(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the concatenated bytes of all strings, and the (N,) offset at which each string ends."""
        lengths = pc.call_function("binary_length", [self._values]).to_numpy(zero_copy_only=False)
        content = b"".join(value for batch in self._batches() for value in batch)
        return np.frombuffer(content, dtype=np.uint8), np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._values)

    def _string(self, position: int) -> str:
        return _decode(self._values[position].as_py())

    def __iter__(self) -> Iterator[str]:
        return (_decode(value) for batch in self._batches() for value in batch)

    def take(self, indices: NDArray[np.int64]) -> "StringArray":
        """Return the strings at some positions, in the order of the positions."""
        return StringArray(self._values.take(pa.array(np.asarray(indices, dtype=np.int64))))

    def prefixed(self, prefix: str) -> "StringArray":
        """Return the strings with `prefix` before each."""
        return StringArray(_join_pairs(pa.scalar(_encode(prefix), _ARROW_TYPE), self._values))

    def argsort(self) -> NDArray[np.int64]:
        """Return the positions that sort the strings by code points."""
        return pc.call_function("array_sort_indices", [self._values]).to_numpy().astype(np.int64)

    def _batches(self) -> Iterator[list[bytes]]:
        return (self._values.slice(first, _CHUNK_STRINGS).to_pylist() for first in range(0, len(self), _CHUNK_STRINGS))


class GroupedStrings(_Strings):
    """Strings "group/name", such as "1.tar/cat.jpg" for an image in a shard; names are read when they are needed.

    `groups` has the part before "/" and `counts` the number of strings of each group; `read` returns the parts after
    "/" in a group, given its position in `groups`.
    """

    def __init__(self, groups: Sequence[str], counts: Sequence[int], read: Callable[[int], StringArray]) -> None:
        self._groups, self._counts, self._read = tuple(groups), tuple(counts), read
        self._ends = list(itertools.accumulate(self._counts))

    def __len__(self) -> int:
        return self._ends[-1]

    def _string(self, position: int) -> str:
        number = bisect.bisect_right(self._ends, position)
        return f"{self._groups[number]}/{self._read(number)[position - self._ends[number] + self._counts[number]]}"

    def __iter__(self) -> Iterator[str]:
        for number, group in enumerate(self._groups):
            yield from (f"{group}/{name}" for name in (self._read(number) if self._counts[number] else ()))

    def take(self, indices: NDArray[np.int64]) -> StringArray:
        """Return the strings at some positions, in the order of the positions."""
        indices = np.asarray(indices, dtype=np.int64)
        group_numbers = np.searchsorted(self._ends, indices, side="right")
        group_order = np.argsort(group_numbers, kind="stable")
        group_starts = np.flatnonzero(np.diff(group_numbers[group_order], prepend=-1))
        pieces = [StringArray.from_strings(())]
        for members in np.split(group_order, group_starts)[1:]:
            group = int(group_numbers[members[0]])
            names = self._read(group).take(indices[members] - self._ends[group] + self._counts[group])
            pieces.append(names.prefixed(f"{self._groups[group]}/"))
        return StringArray.concatenate(pieces).take(np.argsort(group_order, kind="stable"))

    def argsort(self) -> NDArray[np.int64]:
        """Return the positions that sort the strings by code points."""
        prefixes = [_encode(f"{group}/") for group in self._groups]
        numbers = sorted(range(len(prefixes)), key=prefixes.__getitem__)
        if any(prefixes[second].startswith(prefixes[first]) for first, second in itertools.pairwise(numbers)):
            # If one prefix begins with another, the sorted names of the two groups are mixed.
            return self.take(np.arange(len(self))).argsort()
        nonempty = [number for number in numbers if self._counts[number]]
        return np.concatenate([self._ends[n] - self._counts[n] + self._read(n).argsort() for n in nonempty])


class RepeatedStrings(_Strings):
    """Strings with few different values, the `words`; `codes` are the (N,) positions of the strings in `words`."""

    def __init__(self, words: Sequence[str], codes: NDArray[Any]) -> None:
        self._words, self._codes = tuple(words), np.asarray(codes, dtype=np.min_scalar_type(len(words)))

    @classmethod
    def from_strings(cls, words: Sequence[str], strings: NDArray[np.str_]) -> "RepeatedStrings":
        """Create the sequence from an array of strings; raises a ValueError if a string is not among `words`."""
        codes = np.full(len(strings), len(words), dtype=np.min_scalar_type(len(words)))
        for code, text in enumerate(words):
            codes[strings == text] = code
        unknown = np.flatnonzero(codes == len(words))
        if len(unknown):
            raise ValueError(f"expected one of {tuple(words)}, got {str(strings[unknown[0]])!r}")
        return cls(words, codes)

    def equals(self, word: str) -> NDArray[np.bool_]:
        """Return (N,) booleans: whether each string equals `word`, which must be in `words`."""
        return self._codes == self._words.index(word)

    def __len__(self) -> int:
        return len(self._codes)

    def _string(self, position: int) -> str:
        return self._words[self._codes[position]]

    def __iter__(self) -> Iterator[str]:
        return map(self._words.__getitem__, self._codes)  # without a list of all codes, which would be large

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._words, dtype=dtype)[self._codes]

    def take(self, indices: NDArray[np.int64]) -> "RepeatedStrings":
        """Return the strings at some positions, in the order of the positions."""
        return RepeatedStrings(self._words, self._codes[indices])


def take_strings(strings: Sequence[str], indices: NDArray[np.int64]) -> Sequence[str]:
    """Return the strings at some positions, in the order of the positions, as the same kind of sequence."""
    if isinstance(strings, _Strings):
        return strings.take(indices)
    positions: list[int] = np.asarray(indices).tolist()
    return [strings[position] for position in positions]


def argsort_strings(strings: Sequence[str]) -> NDArray[np.int64]:
    """Return the positions that sort strings."""
    if isinstance(strings, StringArray | GroupedStrings):
        return strings.argsort()
    return np.asarray(sorted(range(len(strings)), key=strings.__getitem__), dtype=np.int64)


def _join_pairs(first: pa.Array | pa.Scalar, second: pa.Array) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [first, second, pa.scalar(b"", _ARROW_TYPE)])


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _decode(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
