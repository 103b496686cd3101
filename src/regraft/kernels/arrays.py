"""Growing arrays and tables of primitives: what the indexes are made of.

Compiled, an array is memory of its own behind a pointer, interpreted a list; `x.a[i]` reads and
writes both, and nothing checks an index. Nobody waits for a large one to grow. A `Table` maps
64-bit keys to numbers from 0 on. `Texts` gives equal bytes the same number for as long as anybody
holds them.

Another kernel names these classes with `cimport` in its `.pxd`, and imports them interpreted only.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.frame import cut

    def grow_list(x: Ints | Longs | Reals, n: int) -> None:
        """Make room for n items."""
        if len(x.a) < n:
            x.a.extend([0] * (n - len(x.a)))

    grow_ints = grow_longs = grow_reals = grow_list

    def key_find(table: Table, key: int) -> int:
        """The number of a key, or -1."""
        return table.held.get(key, -1)

    def key_store(table: Table, key: int, value: int) -> None:
        """Set the number of a key."""
        table.held[key] = value
        table.n = len(table.held)

    def key_erase(table: Table, key: int) -> None:
        """Forget a key, if it is there."""
        table.held.pop(key, None)
        table.n = len(table.held)

    def text_find(texts: Texts, p: Any, start: int, end: int) -> int:
        """The number of p[start:end], or -1."""
        return texts.held.get(cut(p, start, end), -1)

    def text_is(texts: Texts, number: int, p: Any, start: int, end: int) -> bool:
        """Whether p[start:end] is the text of a number, which may have been used before."""
        return 0 <= number < len(texts.texts) and texts.texts[number] == cut(p, start, end)

    def text_hash(text: bytes) -> int:
        """Of no use where there is a dict."""
        return 0

    def text_seek(texts: Texts, key: int, text: bytes) -> int:
        """The number of a text of which the hash is known, or -1."""
        return texts.held.get(text, -1)

    def text_store(texts: Texts, key: int, text: bytes, number: int) -> None:
        """A text that is new has this number."""
        texts.held[text] = number

    def text_erase(texts: Texts, text: bytes, number: int) -> None:
        """Forget a text."""
        del texts.held[text]

    def pointer(text: bytes) -> Any:
        """What bytes are read through."""
        return text


# Python's own, another one in every process: nobody outside can choose texts that collide.
SEED = hash(b"regraft") & 0xFFFFFFFFFFFFFFFF


class Ints:
    """32-bit integers."""

    def __init__(self) -> None:
        self.n = 0
        if not cython.compiled:
            self.a: list[int] = []

    def __dealloc__(self) -> None:
        free_ints(self)

    def reserve(self, n: int) -> None:
        """Make room for `n` items; new room holds zeros."""
        grow_ints(self, n)

    def push(self, value: int) -> bool:
        """One more at the end. It returns something, as that is the cheaper way to fail."""
        grow_ints(self, self.n + 1)
        self.a[self.n] = value
        self.n += 1
        return True

    def items(self) -> list[int]:
        """All of them, to look at."""
        return [self.a[k] for k in range(self.n)]


class Longs:
    """64-bit integers."""

    def __init__(self) -> None:
        self.n = 0
        if not cython.compiled:
            self.a: list[int] = []

    def __dealloc__(self) -> None:
        free_longs(self)

    def reserve(self, n: int) -> None:
        """Make room for `n` items; new room holds zeros."""
        grow_longs(self, n)

    def push(self, value: int) -> None:
        """One more at the end."""
        grow_longs(self, self.n + 1)
        self.a[self.n] = value
        self.n += 1


class Reals:
    """Doubles."""

    def __init__(self) -> None:
        self.n = 0
        if not cython.compiled:
            self.a: list[float] = []

    def __dealloc__(self) -> None:
        free_reals(self)

    def reserve(self, n: int) -> None:
        """Make room for `n` items; new room holds zeros."""
        grow_reals(self, n)

    def push(self, value: float) -> None:
        """One more at the end."""
        grow_reals(self, self.n + 1)
        self.a[self.n] = value
        self.n += 1


class Table:
    """From 64-bit keys to numbers from 0 on: open addressing, at most two thirds full."""

    def __init__(self) -> None:
        self.n = 0
        if not cython.compiled:
            self.held: dict[int, int] = {}

    def __dealloc__(self) -> None:
        free_table(self)

    def get(self, key: int) -> int:
        """The number of a key, or -1."""
        return key_find(self, key)

    def put(self, key: int, value: int) -> None:
        """Set the number of a key."""
        key_store(self, key, value)

    def drop(self, key: int) -> None:
        """Forget a key, if it is there."""
        key_erase(self, key)


class Texts:
    """Equal bytes have one number while somebody holds them; numbers are used again."""

    def __init__(self) -> None:
        self.texts: list[bytes | None] = []
        self.holders = Ints()
        self.free = Ints()
        self.size = 0  # bytes of all texts
        if not cython.compiled:
            self.held: dict[bytes, int] = {}

    def __dealloc__(self) -> None:
        free_texts(self)

    def get(self, p: Any, start: int, end: int) -> int:
        """The number of p[start:end], or -1."""
        return text_find(self, p, start, end)

    def number(self, text: bytes) -> int:
        """The number of a text, or -1."""
        return text_find(self, pointer(text), 0, len(text))

    def add(self, text: bytes) -> int:
        """Hold a text once more; its number."""
        key = text_hash(text)
        number = text_seek(self, key, text)
        if number < 0:
            if self.free.n:
                self.free.n -= 1
                number = self.free.a[self.free.n]
                self.texts[number] = text
            else:
                number = len(self.texts)
                self.texts.append(text)
                self.holders.push(0)
                self.holders.a[number] = 0
            self.size += len(text)
            text_store(self, key, text, number)
        self.holders.a[number] += 1
        return number

    def release(self, number: int) -> bool:
        """Hold a text once less; whether it is gone."""
        self.holders.a[number] -= 1
        if self.holders.a[number] > 0:
            return False
        text = self.texts[number]
        assert text is not None
        text_erase(self, text, number)
        self.size -= len(text)
        self.texts[number] = None
        self.free.push(number)
        return True

    def count(self) -> int:
        """How many texts are held."""
        return len(self.texts) - self.free.n


if not cython.compiled:

    def free_nothing(_: Any) -> None:
        """Lists free themselves."""

    free_ints = free_longs = free_reals = free_table = free_texts = free_nothing
