"""Numbers per token, in 4 bytes each."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, overload

N = TypeVar("N", int, float)


class Packed(Sequence[N]):
    """Numbers in 4 bytes each: ids (``"i"``, int32) or log-probs (``"f"``, float32, which is what engines compute in).

    In all else a tuple: not changed after it is made, hashable, equal to a tuple of the same numbers. ``array`` is
    its memory, for readers that want no Python object per number. Raises OverflowError for an id beyond int32.
    """

    __slots__ = ("array",)

    array: array[N]

    def __init__(self, code: Literal["i", "f"], values: Iterable[N]) -> None:
        known = values.array if isinstance(values, Packed) else None
        self.array = known if known is not None and known.typecode == code else array(code, values)

    @classmethod
    def from_base64(cls, code: Literal["i", "f"], text: str) -> Packed[N]:
        """The numbers that ``base64`` was given of. Raises ValueError for a text of another form."""
        values: array[N] = array(code)
        values.frombytes(base64.b64decode(text, validate=True))
        return cls(code, values)

    @property
    def base64(self) -> bytes:
        """The form of files: base64 of 4 bytes for each number, lowest first."""
        return base64.b64encode(self.array)

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> N: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[N, ...]: ...

    def __getitem__(self, index: int | slice) -> N | tuple[N, ...]:
        return tuple(self.array[index]) if isinstance(index, slice) else self.array[index]

    def __iter__(self) -> Iterator[N]:
        return iter(self.array)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Packed):
            return self.array == other.array
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.array.typecode, self.array)
