"""LIKE and topic patterns, on the bytes of UTF-8.

A LIKE pattern without `_` is a list of pieces that are looked for one after another. One with `_`
is a machine whose states are bits, as in the reference (`regraft.model.selector.patterns`), but its
letters are bytes: `_` takes the first byte of a code point, and then all that continue it. Either
way the time is bounded by the length of the string times a 64th of the pattern's.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from typing import Any

from regraft.model.selector.patterns import Wild, like_items

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    SLASH, PLUS, HASH, DOLLAR = b"/+#$"

    def table(data: bytes) -> Any:
        """What a table of bytes is read through."""
        return data

    def words_of(data: bytes) -> Any:
        """What a table of 64-bit words is read through."""
        return memoryview(data).cast("Q")

    def states_of(data: bytearray) -> Any:
        """The same, to be written."""
        return memoryview(data).cast("Q")

    def moved(states: int) -> int:
        """One state on; what leaves the word is lost."""
        return states << 1 & 0xFFFFFFFFFFFFFFFF

    def begins(p: Any, start: int, end: int, text: bytes) -> bool:
        """Whether p[start:end] begins so."""
        return bytes(p[start:end]).startswith(text)

    def ends(p: Any, start: int, end: int, text: bytes) -> bool:
        """Whether p[start:end] ends so."""
        return bytes(p[start:end]).endswith(text)

    def find(p: Any, start: int, end: int, text: bytes) -> int:
        """Where in p[start:end] a text stands first, or -1."""
        found = bytes(p[start:end]).find(text)
        return found if found < 0 else start + found


def fits_topic(p: Any, at: int, end: int, pattern: bytes) -> bool:
    """Whether the topic p[at:end] fits a pattern, level by level."""
    n = len(pattern)
    q = table(pattern)
    if p[at] == DOLLAR and (n == 0 or q[0] != DOLLAR):
        return False
    if n == 0:
        return True
    i = 0
    j = at
    while True:  # a level of the pattern begins at i; one of the topic at j, unless it has ended
        if i < n and q[i] == HASH:
            return True
        if j > end:
            return False
        if i < n and q[i] == PLUS:
            i += 1
            while j < end and p[j] != SLASH:
                j += 1
        else:
            while i < n and q[i] != SLASH:
                if j >= end or p[j] != q[i]:
                    return False
                i += 1
                j += 1
            if j < end and p[j] != SLASH:
                return False
        if i == n:
            return j == end
        i += 1
        j += 1


class Like:
    """A LIKE pattern, compiled."""

    def __init__(self, pattern: str, escape: str | None) -> None:
        items = like_items(pattern, escape)
        self.whole = Wild.MANY not in items
        self.open_end = len(items) > 0 and items[len(items) - 1] is Wild.MANY
        self.first = b""  # without `_`: what the string begins with,
        self.last = b""  # ends with,
        self.pieces: list[bytes] = []  # and has between the two,
        self.shortest = 0  # and the bytes of all of them
        self.words = 0  # of the machine; 0 if there is none
        self.classes = b""  # for a byte, the number of those that do the same
        self.steps = b""  # for such a class, the states that lead on,
        self.stays = b""  # and those that stay
        self.states = bytearray()
        self.goal = 0  # a bit of the last word
        if Wild.ONE in items:
            self.make_machine(items)
        else:
            self.make_pieces(items)

    def make_pieces(self, items: tuple[str | Wild, ...]) -> None:
        """The texts before, between and behind the `%`."""
        texts: list[list[str]] = [[]]
        for item in items:
            if isinstance(item, Wild):
                texts.append([])
            else:
                texts[len(texts) - 1].append(item)
        pieces = ["".join(text).encode() for text in texts]
        self.shortest = sum(len(piece) for piece in pieces)
        self.first = pieces[0]
        if not self.whole:
            self.last = pieces[len(pieces) - 1]
            self.pieces = [piece for piece in pieces[1 : len(pieces) - 1] if piece]

    def make_machine(self, items: tuple[str | Wild, ...]) -> None:
        """The tables of the machine."""
        led: dict[int, int] = {}  # for a byte, the states before it
        anything = 0  # the states before a `_`,
        taken = 0  # those behind one,
        many = 0  # and those before a `%`
        state = 1
        for item in items:
            if item is Wild.MANY:
                many |= state
            elif item is Wild.ONE:
                anything |= state
                state <<= 1
                taken |= state
            else:
                for byte in str(item).encode():
                    led[byte] = led.get(byte, 0) | state
                    state <<= 1
        self.words = (state.bit_length() + 63) // 64
        self.goal = state >> 64 * (self.words - 1)
        self.states = bytearray(8 * self.words)
        # Class 0 are the other bytes that begin a code point, 1 the others that continue one.
        rows = [(anything, many), (0, many | taken)]
        classes = bytearray(1 if continues(byte) else 0 for byte in range(256))
        for byte, before in led.items():
            classes[byte] = len(rows)
            rows.append((before, many | taken) if continues(byte) else (before | anything, many))
        self.classes = bytes(classes)
        self.steps = b"".join(step.to_bytes(8 * self.words, "little") for step, _ in rows)
        self.stays = b"".join(stay.to_bytes(8 * self.words, "little") for _, stay in rows)

    def fits(self, p: Any, at: int, end: int) -> bool:
        """Whether p[at:end] fits."""
        if self.words == 1:
            return self.run(p, at, end)
        if self.words > 1:
            return self.run_long(p, at, end)
        if end - at < self.shortest or not begins(p, at, end, self.first):
            return False
        if self.whole:
            return end - at == self.shortest
        if not ends(p, at, end, self.last):
            return False
        at += len(self.first)
        end -= len(self.last)
        for k in range(len(self.pieces)):
            piece = self.pieces[k]
            at = find(p, at, end, piece)
            if at < 0:
                return False
            at += len(piece)
        return True

    def run(self, p: Any, at: int, end: int) -> bool:
        """Run a machine of up to 64 states."""
        classes = table(self.classes)
        steps = words_of(self.steps)
        stays = words_of(self.stays)
        goal = self.goal
        open_end = self.open_end
        states = 1
        for i in range(at, end):
            k = classes[p[i]]
            states = moved(states & steps[k]) | states & stays[k]
            if states == 0:
                return False
            if open_end and states & goal:
                return True
        return bool(states & goal)

    def run_long(self, p: Any, at: int, end: int) -> bool:
        """Run a machine of more states, word by word."""
        classes = table(self.classes)
        steps = words_of(self.steps)
        stays = words_of(self.stays)
        states = states_of(self.states)
        words = self.words
        goal = self.goal
        open_end = self.open_end
        for w in range(words):
            states[w] = 0
        states[0] = 1
        for i in range(at, end):
            k = classes[p[i]] * words
            carried = 0
            alive = 0
            for w in range(words):
                before = states[w]
                led = before & steps[k + w]
                before = moved(led) | carried | before & stays[k + w]
                carried = led >> 63
                alive |= before
                states[w] = before
            if alive == 0:
                return False
            if open_end and before & goal:
                return True
        return bool(states[words - 1] & goal)


def continues(byte: int) -> bool:
    """Whether a byte is not the first of its code point."""
    return 0x80 <= byte < 0xC0
