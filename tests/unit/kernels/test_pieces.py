"""Pieces are found as a plain search finds them, compiled and interpreted, while they change."""

import random
from collections.abc import Callable
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import arrays, pieces

TWIN = kernels.load_interpreted()["pieces"]

both = pytest.mark.parametrize("module", [pieces, TWIN], ids=["in use", "interpreted"])

Piece = tuple[int, str, bytes]


class Model:
    """The same, as plainly as can be."""

    def __init__(self) -> None:
        self.numbers: dict[Piece, int] = {}
        self.holders: dict[Piece, int] = {}

    def examine(self, dimension: int, text: bytes) -> list[int]:
        return sorted(
            number
            for (where, sort, piece), number in self.numbers.items()
            if where == dimension
            and (text.startswith(piece) if sort == "prefix" else piece in text)
        )


class Pair:
    """Pieces and their model, changed together."""

    def __init__(self, module: ModuleType) -> None:
        self.pieces = module.Pieces()
        self.model = Model()
        self.most = 0  # numbers are dense

    def hold(self, piece: Piece) -> int:
        dimension, sort, text = piece
        number: int = (
            self.pieces.hold_prefix(dimension, text)
            if sort == "prefix"
            else self.pieces.hold_literal(dimension, text)
        )
        model = self.model
        if piece in model.numbers:
            assert model.numbers[piece] == number
        else:
            assert number not in model.numbers.values()
        model.numbers[piece] = number
        model.holders[piece] = model.holders.get(piece, 0) + 1
        self.most = max(self.most, len(model.numbers))
        assert 0 <= number < self.most
        assert self.pieces.text(number) == text
        return number

    def release(self, piece: Piece) -> None:
        model = self.model
        model.holders[piece] -= 1
        gone = model.holders[piece] == 0
        assert self.pieces.release(model.numbers[piece]) == gone
        if gone:
            del model.numbers[piece]

    def agree(self, dimension: int, text: bytes) -> None:
        assert self.pieces.examine(dimension, text) == self.model.examine(dimension, text)

    def agree_on_counts(self) -> None:
        assert self.pieces.count() == len(self.model.numbers)
        used = {dimension for dimension, _, _ in self.model.numbers}
        assert {d for d in range(-1, 60) if self.pieces.any_of(d)} == used


def letters(alphabet: bytes) -> Callable[[random.Random, int], bytes]:
    return lambda choice, length: bytes(choice.choices(alphabet, k=length))


ALPHABETS = {
    "one": letters(b"a"),
    "two": letters(b"ab"),
    "digits": letters(b"0123456789"),
    "any": lambda choice, length: choice.randbytes(length),
    "high": letters(b"\x00\x80\xfe\xff"),
}


def churn(pair: Pair, choice: random.Random, write: Callable[..., bytes], steps: int) -> None:
    """Hold and release at random, more of the one and then more of the other."""
    held: list[Piece] = []
    for step in range(steps):
        if choice.random() < (0.75 if step % 400 < 250 else 0.2):
            sort = choice.choice(["prefix", "literal", "literal"])
            length = choice.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 12, 12, 20, 60])
            text = write(choice, max(length, sort == "literal"))
            piece = (choice.choice([0, 1, 1, 1, 7, 50]), sort, text)
            pair.hold(piece)
            held.append(piece)
        elif held:
            piece = held.pop(choice.randrange(len(held)))
            pair.release(piece)
        if step % 5 == 0:
            text = write(choice, choice.choice([0, 1, 2, 3, 4, 5, 8, 20, 75, 300]))
            if held and choice.random() < 0.5:  # so that long pieces are found as well
                text = choice.choice([b"", text]) + choice.choice(held)[2] + text[: step % 4]
            pair.agree(choice.choice([0, 1, 1, 7, 8, 50]), text)
        if step % 50 == 0:
            pair.agree_on_counts()
    for piece in held:
        pair.release(piece)
    pair.agree_on_counts()
    assert pair.pieces.count() == 0


@both
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_what_is_found_is_what_a_plain_search_finds(module: ModuleType, alphabet: str) -> None:
    pair = Pair(module)
    choice = random.Random(f"pieces {alphabet}")
    for _ in range(2):  # the second time on numbers and fields that were used before
        churn(pair, choice, ALPHABETS[alphabet], 1600)


@both
def test_crowded_grams(module: ModuleType) -> None:
    """Many literals from few letters: chains fill up, and the others are spanned."""
    choice = random.Random(3)
    pair = Pair(module)
    everything = [(4, "literal", b"a" * n) for n in range(1, 60)]
    for n, times in ((4, 20), (5, 40), (6, 60), (9, 200), (13, 15), (20, 200), (33, 20)):
        everything += [(4, "literal", ALPHABETS["two"](choice, n)) for _ in range(times)]
    everything = list(dict.fromkeys(everything))
    choice.shuffle(everything)
    for piece in everything:
        pair.hold(piece)
    if module is TWIN:
        field = pair.pieces.field_of(4)
        assert 200 < field.spanned < field.literals - 59
    for n in (0, 3, 4, 5, 30, 59, 200):
        pair.agree(4, b"a" * n)
        pair.agree(4, ALPHABETS["two"](choice, n))
    choice.shuffle(everything)
    again = []
    for k, piece in enumerate(everything):
        pair.release(piece)
        if k % 3 == 0:
            pair.agree(4, ALPHABETS["two"](choice, 40) + b"a" * 20)
            pair.agree(4, piece[2] + b"b" + choice.choice(everything)[2])
        if k % 4 == 0:  # some come again while others go
            pair.hold(piece)
            again.append(piece)
    for piece in again:
        pair.release(piece)
    assert pair.pieces.count() == 0


@both
def test_the_bitmap_grows_and_shrinks(module: ModuleType) -> None:
    choice = random.Random(4)
    pair = Pair(module)
    words = [choice.randbytes(choice.randint(1, 9)) for _ in range(1500)]
    for n, word in enumerate(words):
        pair.hold((9, "literal", word))
        if n % 100 == 0:
            pair.agree(9, b"".join(choice.sample(words[: n + 1], min(n + 1, 5))))
    full = pair.pieces.size()
    for word in words[20:]:
        pair.release((9, "literal", word))
    for _ in range(50):
        for word in words[1000:1050]:
            pair.hold((9, "literal", word))
        pair.agree(9, b"".join(choice.sample(words, 6)))
        for word in words[1000:1050]:
            pair.release((9, "literal", word))
    pair.agree(9, b"".join(words[:40]))
    assert pair.pieces.size() < full


@both
def test_the_same_text_in_many_places(module: ModuleType) -> None:
    pair = Pair(module)
    same = [(dimension, sort, b"gold") for dimension in (0, 3) for sort in ("prefix", "literal")]
    assert len({pair.hold(piece) for piece in same}) == 4
    for text in (b"gold", b"golden", b"marigold", b"gol", b"", b"goldgold"):
        for dimension in (0, 1, 3):
            pair.agree(dimension, text)
    for piece in same:
        pair.hold(piece)
        pair.release(piece)
        pair.release(piece)
        pair.agree(0, b"goldgold")
        pair.agree(3, b"goldgold")
    assert pair.pieces.count() == 0


@both
def test_everything_begins_with_nothing(module: ModuleType) -> None:
    held = module.Pieces()
    number = held.hold_prefix(2, b"")
    assert held.examine(2, b"") == held.examine(2, b"x") == [number]
    assert held.examine(1, b"") == held.examine(3, b"") == []
    assert held.release(number) and held.examine(2, b"") == []


@both
def test_what_cannot_be_is_refused(module: ModuleType) -> None:
    held = module.Pieces()
    for dimension in (-1, 1 << 24):
        with pytest.raises(ValueError, match="dimension"):
            held.hold_prefix(dimension, b"a")
    with pytest.raises(ValueError, match="at least one byte"):
        held.hold_literal(0, b"")
    number = held.hold_literal(1 << 20, b"abcde")
    assert held.examine(1 << 20, b"xabcdex") == [number]
    assert held.release(number)
    for wrong in (number, -1, 100):
        with pytest.raises(ValueError, match="No piece"):
            held.release(wrong)
        with pytest.raises(ValueError, match="No piece"):
            held.text(wrong)


def test_searches_are_numbered_from_the_beginning_again() -> None:
    held = TWIN.Pieces()
    numbers = [held.hold_literal(0, text) for text in (b"a", b"abcd", b"bcdef")]
    assert held.examine(0, b"abcdef") == numbers
    held.stamp = TWIN.STAMP_MAX
    for _ in range(3):
        assert held.examine(0, b"abcdef") == numbers
    assert held.stamp == 3


def test_a_shared_table_of_texts_is_left_as_it_was() -> None:
    texts = arrays.Texts()
    number = texts.add(b"gold")
    held = pieces.Pieces(texts)
    released = [held.hold_literal(0, b"gold"), held.hold_prefix(1, b"silver")]
    assert texts.count() == 2
    for piece in released:
        assert held.release(piece)
    assert texts.count() == 1 and texts.number(b"gold") == number


def test_both_forms_give_the_same_numbers() -> None:
    choice = random.Random(5)
    forms = [pieces.Pieces(), TWIN.Pieces()]
    numbers: list[int] = []
    for _ in range(3000):
        if numbers and choice.random() < 0.4:
            number = numbers.pop(choice.randrange(len(numbers)))
            assert forms[0].release(number) == forms[1].release(number)
        else:
            dimension, text = choice.randrange(3), ALPHABETS["two"](choice, choice.randint(1, 14))
            first, second = (form.hold_literal(dimension, text) for form in forms)
            assert first == second
            numbers.append(first)
        assert forms[0].size() == forms[1].size()
