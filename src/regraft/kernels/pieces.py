"""Which of very many short texts a string begins with, or contains.

A *piece* is such a text together with a dimension and what is asked: a prefix, or a literal that
may stand anywhere. Pieces come and go at any time, at a small cost each.

Prefixes: per dimension the lengths in use; a string is cut at each of them and looked up.

Literals: each is filed under one of its *grams*, four bytes somewhere inside it (one of less than
four bytes: itself), and under the one that fewest others use. A string is read gram by gram. A
bitmap of the dimension says of nearly all of them that nobody uses them; for the others the chain
of literals is compared with what stands around.

The bound: a chain grows to CROWD literals. One whose grams are all crowded (few letters, very many
literals) is *spanned* instead, if there are MANY literals of its length: where a string has its
first gram, and the last four bytes at that distance, the bytes from here to there are looked up as
with prefixes. So a position of a string costs at most a comparison for CROWD literals and for MANY
of every length, and a look-up for every length. Usually it costs one look at the bitmap.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Table, Texts, key_find, pointer

    PREFIX = 0
    LITERAL = 1

    # A piece is a row of numbers, so that comparing one touches one place in memory.
    TEXT = 0
    WHERE = 1  # its dimension and whether it is a literal
    HOLDERS = 2
    LENGTH = 3
    OFFSET = 4  # where its gram stands in it
    STAMP = 5  # the search that found it last
    NEXT = 6  # in the chain of its gram, or NONE, or SPANNED
    AFTER = 7  # all literals of a dimension, to fill its bitmap again
    BEFORE = 8
    GUARD = 9  # four bytes at its other end: see `guard_offset`
    ROW = 10

    NONE = -1
    SPANNED = -2

    # Per length in a dimension: how many prefixes, literals, and spanned ones among these.
    PREFIXES = 1
    LITERALS = 2
    SPANS = 3
    COUNTS = 4

    GRAM = 4
    CROWD = 8
    MANY = 16
    BITS_PER_MARK = 8
    DIMENSIONS = 1 << 24
    STAMP_MAX = 2147483647

    def piece_key(where: int, text: int) -> int:
        """What a piece is known by: 25 bits and 31."""
        return where << 32 | text

    def gram_key(dimension: int, length: int, gram: int) -> int:
        """What a chain is known by: 24 bits, 3 and 32."""
        return dimension << 35 | length << 32 | gram

    def gram_at(p: Any, i: int, length: int) -> int:
        """The bytes at i as a number."""
        return int.from_bytes(p[i : i + length], "little")

    def spot(gram: int, length: int, shift: int) -> int:
        """The place of a gram in a bitmap of 2 ** (32 - shift) bits."""
        return ((gram + length * 0x85EBCA77) * 0x9E3779B1 & 0xFFFFFFFF) >> shift

    def has_bit(bits: Longs, i: int) -> bool:
        """Whether a bit is set."""
        return bool(bits.a[i >> 6] >> (i & 63) & 1)

    def set_bit(bits: Longs, i: int) -> None:
        """Set a bit."""
        bits.a[i >> 6] |= 1 << (i & 63)

    def ends_at(p: Any, start: int, stop: int) -> int:
        """The first and the last four bytes of p[start:stop] as one number."""
        return gram_at(p, start, GRAM) * 0xC2B2AE3D + gram_at(p, stop - GRAM, GRAM) & 0xFFFFFFFF

    def guard_offset(offset: int, length: int) -> int:
        """Where the guard stands in a literal: at the end that is farther from the gram."""
        return 0 if offset * 2 + GRAM > length else length - GRAM

    def stands_at(texts: Texts, rows: Ints, row: int, p: Any, at: int) -> bool:
        """Whether a literal stands at `at`. The guard spares most others a look at their text."""
        length = rows.a[row + LENGTH]
        guard = guard_offset(rows.a[row + OFFSET], length)
        if gram_at(p, at + guard, GRAM) != rows.a[row + GUARD]:
            return False
        return bytes(p[at : at + length]) == texts.texts[rows.a[row + TEXT]]


def count_length(lengths: Ints, length: int, column: int, by: int) -> int:
    """Count a length once more or less; the count. A length that nobody has leaves the array."""
    low = 0
    high = lengths.n // COUNTS
    while low < high:
        middle = (low + high) // 2
        if lengths.a[middle * COUNTS] < length:
            low = middle + 1
        else:
            high = middle
    k = low * COUNTS
    if k == lengths.n or lengths.a[k] != length:
        lengths.reserve(lengths.n + COUNTS)
        lengths.n += COUNTS
        for j in range(lengths.n - 1, k + COUNTS - 1, -1):
            lengths.a[j] = lengths.a[j - COUNTS]
        for j in range(COUNTS):
            lengths.a[k + j] = 0
        lengths.a[k] = length
    lengths.a[k + column] += by
    count = lengths.a[k + column]
    if lengths.a[k + PREFIXES] == 0 and lengths.a[k + LITERALS] == 0:
        lengths.n -= COUNTS
        for j in range(k, lengths.n):
            lengths.a[j] = lengths.a[j + COUNTS]
    return count


class Field:
    """What a dimension that has pieces needs."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.prefixes = 0
        self.literals = 0
        self.spanned = 0  # of the literals
        self.first = NONE  # of the literals
        self.lengths = Ints()  # sorted, see `count_length`
        self.marks = 0  # bits set since the bitmap was filled; those of some may be gone
        self.shift = 32  # the bitmap has 2 ** (32 - shift) bits
        self.bits = Longs()
        if not cython.compiled:
            self.uses = [0] * (GRAM + 1)  # how many literals have a gram of this length


class Pieces:
    """The pieces of all dimensions. Nothing is found twice in one string."""

    def __init__(self, texts: Texts | None = None) -> None:
        self.texts = Texts() if texts is None else texts
        self.known = Table()  # `piece_key` -> piece
        self.grams = Table()  # `gram_key` -> first of a chain
        self.rows = Ints()
        self.free = Ints()
        self.places = Ints()  # dimension -> its place in `fields` + 1, or 0
        self.fields: list[Field | None] = []
        self.free_fields = Ints()
        self.stamp = 0
        self.letters = 0  # bytes of the texts
        self.words = 0  # of all bitmaps

    def hold_prefix(self, dimension: int, text: bytes) -> int:
        """Hold a piece once more: what a string begins with. Its number."""
        return self.hold(dimension, PREFIX, text)

    def hold_literal(self, dimension: int, text: bytes) -> int:
        """Hold a piece once more: what a string contains. Its number."""
        if len(text) == 0:
            raise ValueError("A literal has at least one byte.")
        return self.hold(dimension, LITERAL, text)

    def hold(self, dimension: int, sort: int, text: bytes) -> int:
        if dimension < 0 or dimension >= DIMENSIONS:
            raise ValueError(f"{dimension} is no dimension.")
        where = dimension * 2 + sort
        known = self.texts.number(text)
        if known >= 0:
            number = self.known.get(piece_key(where, known))
            if number >= 0:
                self.rows.a[number * ROW + HOLDERS] += 1
                return number
        field = self.field_of(dimension)
        number = self.new_row()
        row = number * ROW
        self.rows.a[row + TEXT] = self.texts.add(text)
        self.rows.a[row + WHERE] = where
        self.rows.a[row + HOLDERS] = 1
        self.rows.a[row + LENGTH] = len(text)
        self.known.put(piece_key(where, self.rows.a[row + TEXT]), number)
        self.letters += len(text)
        if sort == PREFIX:
            field.prefixes += 1
            count_length(field.lengths, len(text), PREFIXES, 1)
        else:
            self.link(field, number, text)
        return number

    def release(self, number: int) -> bool:
        """Hold a piece once less; whether it is gone."""
        row = self.row_of(number)
        self.rows.a[row + HOLDERS] -= 1
        if self.rows.a[row + HOLDERS] > 0:
            return False
        text = self.text_of(row)
        field = self.field_of(self.rows.a[row + WHERE] >> 1)
        self.known.drop(piece_key(self.rows.a[row + WHERE], self.rows.a[row + TEXT]))
        if self.rows.a[row + WHERE] & 1 == PREFIX:
            field.prefixes -= 1
            count_length(field.lengths, len(text), PREFIXES, -1)
        else:
            self.unlink(field, number, text)
        self.texts.release(self.rows.a[row + TEXT])
        self.letters -= len(text)
        self.free.push(number)
        if field.prefixes == 0 and field.literals == 0:
            self.drop_field(field)
        return True

    def any_of(self, dimension: int) -> bool:
        """Whether a dimension has any piece."""
        return 0 <= dimension < self.places.n and self.places.a[dimension] > 0

    def find(self, dimension: int, p: Any, start: int, end: int, found: Ints) -> None:
        """Push the pieces of a dimension that p[start:end] begins with or contains."""
        if not self.any_of(dimension):
            return
        field = self.field_of(dimension)
        if field.prefixes:
            self.find_prefixes(field, p, start, end, found)
        if field.literals == 0:
            return
        if self.stamp == STAMP_MAX:
            self.forget_stamps()
        self.stamp += 1
        for size in range(1, GRAM + 1):
            if field.uses[size]:
                self.scan(field, size, p, start, end, found)

    def examine(self, dimension: int, text: bytes) -> list[int]:
        """The pieces of a dimension that a string begins with or contains, sorted."""
        found = Ints()
        self.find(dimension, pointer(text), 0, len(text), found)
        return sorted(found.items())

    def text(self, number: int) -> bytes:
        """The text of a piece."""
        return self.text_of(self.row_of(number))

    def count(self) -> int:
        """How many pieces are held."""
        return self.known.n

    def size(self) -> int:
        """How many bytes of memory this takes, about."""
        # An entry of a table has 12 bytes, and the table is half empty; a text is an object.
        return (
            self.places.n * 4
            + len(self.fields) * 320
            + self.words * 8
            + self.rows.n * 5
            + self.known.n * (24 + 24 + 52)
            + self.grams.n * 24
            + self.letters
        )

    # Rows and fields.

    def row_of(self, number: int) -> int:
        """Where the row of a piece begins; numbers that no piece has are refused."""
        if number < 0 or number * ROW >= self.rows.n or not self.rows.a[number * ROW + HOLDERS]:
            raise ValueError(f"No piece has the number {number}.")
        return number * ROW

    def text_of(self, row: int) -> bytes:
        text = self.texts.texts[self.rows.a[row + TEXT]]
        assert text is not None
        return text

    def new_row(self) -> int:
        if self.free.n:
            self.free.n -= 1
            return self.free.a[self.free.n]
        for _ in range(ROW):
            self.rows.push(0)
        return self.rows.n // ROW - 1

    def field_of(self, dimension: int) -> Field:
        """The field of a dimension, made if there is none."""
        if self.any_of(dimension):
            field = self.fields[self.places.a[dimension] - 1]
            assert field is not None
            return field
        if self.places.n <= dimension:
            self.places.reserve(dimension + 1)
            self.places.n = dimension + 1
        field = Field(dimension)
        if self.free_fields.n:
            self.free_fields.n -= 1
            self.places.a[dimension] = self.free_fields.a[self.free_fields.n] + 1
            self.fields[self.free_fields.a[self.free_fields.n]] = field
        else:
            self.fields.append(field)
            self.places.a[dimension] = len(self.fields)
        return field

    def drop_field(self, field: Field) -> None:
        self.words -= field.bits.n
        self.free_fields.push(self.places.a[field.dimension] - 1)
        self.fields[self.places.a[field.dimension] - 1] = None
        self.places.a[field.dimension] = 0

    # Literals come and go.

    def link(self, field: Field, number: int, text: bytes) -> None:
        """File a new literal under a gram, or as spanned."""
        p = pointer(text)
        length = len(text)
        size = min(length, GRAM)
        row = number * ROW
        many = count_length(field.lengths, length, LITERALS, 1) > MANY
        offset = self.choose(field, p, length, many)
        self.rows.a[row + STAMP] = 0
        if offset >= 0:
            key = gram_key(field.dimension, size, gram_at(p, offset, size))
            self.rows.a[row + OFFSET] = offset
            self.rows.a[row + NEXT] = self.grams.get(key)
            if length >= GRAM:
                self.rows.a[row + GUARD] = gram_at(p, guard_offset(offset, length), GRAM)
            self.grams.put(key, number)
        else:
            self.rows.a[row + OFFSET] = 0
            self.rows.a[row + NEXT] = SPANNED
            field.spanned += 1
            count_length(field.lengths, length, SPANS, 1)
        after = field.first
        self.rows.a[row + BEFORE] = NONE
        self.rows.a[row + AFTER] = after
        if after >= 0:
            self.rows.a[after * ROW + BEFORE] = number
        field.first = number
        field.uses[size] += 1
        field.literals += 1
        if (field.marks + 2) * BITS_PER_MARK > field.bits.n * 64:
            self.mark_all(field)
        else:
            self.mark(field, row, p)

    def unlink(self, field: Field, number: int, text: bytes) -> None:
        """Undo `link`; the bits in the bitmap stay until that is filled again."""
        length = len(text)
        size = min(length, GRAM)
        row = number * ROW
        if self.rows.a[row + NEXT] == SPANNED:
            field.spanned -= 1
            count_length(field.lengths, length, SPANS, -1)
        else:
            gram = gram_at(pointer(text), self.rows.a[row + OFFSET], size)
            self.unchain(gram_key(field.dimension, size, gram), number)
        count_length(field.lengths, length, LITERALS, -1)
        after = self.rows.a[row + AFTER]
        before = self.rows.a[row + BEFORE]
        if after >= 0:
            self.rows.a[after * ROW + BEFORE] = before
        if before >= 0:
            self.rows.a[before * ROW + AFTER] = after
        else:
            field.first = after
        field.uses[size] -= 1
        field.literals -= 1

    def unchain(self, key: int, number: int) -> None:
        """Take a literal out of the chain of its gram."""
        after = self.rows.a[number * ROW + NEXT]
        first = self.grams.get(key)
        if first == number:
            if after >= 0:
                self.grams.put(key, after)
            else:
                self.grams.drop(key)
            return
        while self.rows.a[first * ROW + NEXT] != number:
            first = self.rows.a[first * ROW + NEXT]
        self.rows.a[first * ROW + NEXT] = after

    def choose(self, field: Field, p: Any, length: int, many: bool) -> int:
        """Where the gram that fewest literals use stands in a text; NONE: it is to be spanned."""
        if length < GRAM:
            return 0
        best = 0
        least = CROWD
        for offset in range(length - GRAM + 1):
            gram = gram_at(p, offset, GRAM)
            number = key_find(self.grams, gram_key(field.dimension, GRAM, gram))
            users = 0
            while number >= 0 and users < least:
                users += 1
                number = self.rows.a[number * ROW + NEXT]
            if users < least:
                best = offset
                least = users
                if users == 0:
                    break
        return NONE if least == CROWD and many else best

    def mark(self, field: Field, row: int, p: Any) -> None:
        """Set the bits of a literal."""
        length = self.rows.a[row + LENGTH]
        size = min(length, GRAM)
        gram = gram_at(p, self.rows.a[row + OFFSET], size)
        set_bit(field.bits, spot(gram, size, field.shift))
        field.marks += 1
        if self.rows.a[row + NEXT] == SPANNED:
            set_bit(field.bits, spot(ends_at(p, 0, length), length, field.shift))
            field.marks += 1

    def mark_all(self, field: Field) -> None:
        """Fill the bitmap again: with room for half as many marks again, or more."""
        words = 1
        field.shift = 26
        marks = field.literals + field.spanned + 2
        while words * 128 < marks * BITS_PER_MARK * 3 and field.shift > 0:
            words *= 2
            field.shift -= 1
        self.words += words - field.bits.n
        field.bits = Longs()
        field.bits.reserve(words)
        field.bits.n = words
        field.marks = 0
        number = field.first
        while number >= 0:
            self.mark(field, number * ROW, pointer(self.text_of(number * ROW)))
            number = self.rows.a[number * ROW + AFTER]

    # Strings are searched.

    def find_prefixes(self, field: Field, p: Any, start: int, end: int, found: Ints) -> None:
        lengths = field.lengths
        for k in range(0, lengths.n, 4):
            stop = start + lengths.a[k]
            if stop > end:
                break
            if lengths.a[k + PREFIXES] == 0:
                continue
            text = self.texts.get(p, start, stop)
            if text >= 0:
                number = key_find(self.known, piece_key(field.dimension * 2 + PREFIX, text))
                if number >= 0:
                    found.push(number)

    def scan(self, field: Field, size: int, p: Any, start: int, end: int, found: Ints) -> None:
        """Find the literals whose grams have this size."""
        bits = field.bits
        shift = field.shift
        for i in range(start, end - size + 1):
            gram = gram_at(p, i, size)
            if not has_bit(bits, spot(gram, size, shift)):
                continue
            number = key_find(self.grams, gram_key(field.dimension, size, gram))
            if size < GRAM:
                if number >= 0:
                    self.take(number, found)
                continue
            if number >= 0:
                self.walk(number, p, start, i, end, found)
            if field.spanned:
                self.find_spans(field, p, i, end, found)

    def take(self, number: int, found: Ints) -> None:
        """Push a literal, once in a search."""
        if self.rows.a[number * ROW + STAMP] != self.stamp:
            self.rows.a[number * ROW + STAMP] = self.stamp
            found.push(number)

    def walk(self, number: int, p: Any, start: int, i: int, end: int, found: Ints) -> None:
        """Compare the literals of a chain with what stands around their gram at i."""
        rows = self.rows
        while number >= 0:
            row = number * ROW
            at = i - rows.a[row + OFFSET]
            if (
                at >= start
                and at + rows.a[row + LENGTH] <= end
                and rows.a[row + STAMP] != self.stamp
                and stands_at(self.texts, rows, row, p, at)
            ):
                self.take(number, found)
            number = rows.a[row + NEXT]

    def find_spans(self, field: Field, p: Any, i: int, end: int, found: Ints) -> None:
        """Look up what begins at i, at every length that spanned literals have."""
        lengths = field.lengths
        for k in range(0, lengths.n, 4):
            stop = i + lengths.a[k]
            if stop > end:
                break
            if lengths.a[k + SPANS] == 0:
                continue
            if not has_bit(field.bits, spot(ends_at(p, i, stop), lengths.a[k], field.shift)):
                continue
            text = self.texts.get(p, i, stop)
            if text >= 0:
                # It may be one that is not spanned: found as well, and not again.
                number = key_find(self.known, piece_key(field.dimension * 2 + LITERAL, text))
                if number >= 0:
                    self.take(number, found)

    def forget_stamps(self) -> None:
        """After two thousand million searches their numbers begin again."""
        for number in range(self.rows.n // ROW):
            self.rows.a[number * ROW + STAMP] = 0
        self.stamp = 0
