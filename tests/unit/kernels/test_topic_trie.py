"""The trie finds what the reference finds, compiled and interpreted."""

import itertools
import random
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import topics
from regraft.limits import TOPIC_LEVELS_MAX
from regraft.model.topics import check_pattern, check_topic, matches

TWIN = kernels.load_interpreted()["topics"]
BOTH = pytest.mark.parametrize("module", [topics, TWIN], ids=["in use", "interpreted"])

NAMES = ["", "a", "b", "ab", "größe", "東京", "long-name-of-a-level", "$sys", "$"]
Meaning = tuple[tuple[str, ...], bool]


def meaning(pattern: str, exact: bool) -> Meaning:
    """Equal for patterns that match the same topics."""
    if pattern == "":
        return (), False
    names = tuple(pattern.split("/"))
    return (names[:-1], False) if names[-1] == "#" else (names, exact)


def random_topic(choice: random.Random, levels_max: int = 5) -> str:
    names = choice.choices(NAMES, k=choice.randint(1, levels_max))
    return "/".join(names) or "a"


def random_pattern(choice: random.Random) -> str:
    """Often with wildcards, sometimes empty."""
    levels = random_topic(choice).split("/")
    if choice.random() < 0.4:
        levels[choice.randrange(len(levels))] = "+"
    if choice.random() < 0.2:
        levels.append("#")
    elif choice.random() < 0.1:
        levels = choice.choice([[""], ["#"], ["+"], ["", ""], ["", "#"]])
    return "/".join(levels)


class Story:
    """A trie, and what it was told."""

    def __init__(self, module: ModuleType) -> None:
        self.trie = module.Topics()
        self.held: dict[Meaning, list[tuple[str, bool]]] = {}
        self.numbers: dict[Meaning, int] = {}
        self.peak = 0

    def add(self, pattern: str, exact: bool) -> None:
        check_pattern(pattern)
        key = meaning(pattern, exact)
        number = self.trie.add(pattern.encode(), exact)
        if key in self.numbers:
            assert number == self.numbers[key]
        else:
            assert number not in self.numbers.values()
            self.numbers[key] = number
            self.peak = max(self.peak, len(self.numbers))
            assert number < self.peak  # dense
        self.held.setdefault(key, []).append((pattern, exact))
        assert self.trie.count() == len(self.numbers)

    def release(self, key: Meaning) -> None:
        self.held[key].pop()
        number = self.numbers[key]
        gone = not self.held[key]
        assert self.trie.release(number) is gone
        if gone:
            del self.held[key], self.numbers[key]
        assert self.trie.count() == len(self.numbers)

    def check(self, topic: str) -> None:
        found = self.trie.find(topic.encode())
        assert len(set(found)) == len(found)  # each once
        assert found == self.trie.hits.items()
        for key, patterns in self.held.items():
            pattern, exact = patterns[0]
            assert matches(pattern, topic, exact) == (self.numbers[key] in found), (pattern, topic)


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_it_finds_what_the_reference_finds(module: ModuleType, seed: int) -> None:
    choice = random.Random(seed)
    story = Story(module)
    for step in range(3000):
        adding = 0.7 if step // 500 % 2 == 0 else 0.3  # it grows, and shrinks again
        if choice.random() < adding or not story.held:
            story.add(random_pattern(choice), choice.random() < 0.5)
        else:
            story.release(choice.choice(list(story.held)))
        if step % 5 == 0:
            topic = random_topic(choice)
            check_topic(topic)
            story.check(topic)
    for key in list(story.held):
        while key in story.held:
            story.release(key)
    assert story.trie.count() == 0
    assert story.trie.find(b"a/b") == []


@BOTH
def test_every_short_pattern_against_every_short_topic(module: ModuleType) -> None:
    story = Story(module)
    names = ["", "a", "$", "+", "#"]
    for n in (1, 2, 3):
        for levels in itertools.product(names, repeat=n):
            if "#" not in levels[:-1]:
                story.add("/".join(levels), True)
                story.add("/".join(levels), False)
    for n in (1, 2, 3, 4):
        for levels in itertools.product(["", "a", "b", "$"], repeat=n):
            if levels != ("",):
                story.check("/".join(levels))


@BOTH
def test_patterns_with_one_meaning_have_one_number(module: ModuleType) -> None:
    trie = module.Topics()
    for same in (
        [(b"", True), (b"", False), (b"#", True), (b"#", False)],
        [(b"a/b", False), (b"a/b/#", False), (b"a/b/#", True)],
        [(b"a/b", True)],
        [(b"/#", True), (b"/#", False)],
        [(b"/", False), (b"//#", True)],
        [(b"+", False), (b"+/#", False)],
        [(b"+", True)],
    ):
        before = trie.count()
        assert {trie.add(pattern, exact) for pattern, exact in same} == {before}
        assert trie.count() == before + 1
        assert [trie.release(before) for _ in same[1:]] == [False] * (len(same) - 1)


@BOTH
def test_a_pattern_is_told_again(module: ModuleType) -> None:
    choice = random.Random(7)
    trie = module.Topics()
    assert trie.pattern(trie.add(b"a/+/#", True)) == (b"a/+", False)
    assert trie.pattern(trie.add(b"a/+", True)) == (b"a/+", True)
    assert trie.pattern(trie.add(b"#", True)) == (b"", False)
    assert trie.pattern(trie.add(b"/#", False)) == (b"/#", False)
    assert trie.pattern(trie.add("größe/東京".encode(), True)) == ("größe/東京".encode(), True)
    for _ in range(500):
        number = trie.add(random_pattern(choice).encode(), choice.random() < 0.5)
        pattern, exact = trie.pattern(number)
        assert type(exact) is bool
        assert trie.add(pattern, exact) == number


@BOTH
def test_topics_of_many_levels(module: ModuleType) -> None:
    choice = random.Random(8)
    story = Story(module)
    names = [choice.choice("ab") for _ in range(TOPIC_LEVELS_MAX)]
    topic = "/".join(names)
    for _ in range(300):
        levels = [name if choice.random() < 0.9 else "+" for name in names]
        if choice.random() < 0.3:
            levels[choice.randrange(len(levels))] = "c"
        story.add(
            "/".join(levels[: choice.choice([1, 2, 63, 64, choice.randint(1, 64)])]),
            choice.random() < 0.5,
        )
    story.add("/".join("+" * TOPIC_LEVELS_MAX), True)
    story.add(topic, True)
    story.add(topic, False)
    for end in range(1, TOPIC_LEVELS_MAX + 1):
        story.check("/".join(names[:end]))
    assert story.numbers[meaning(topic, True)] in story.trie.find(topic.encode())


@BOTH
def test_wildcards_in_all_places_at_once(module: ModuleType) -> None:
    story = Story(module)
    for levels in itertools.product("a+", repeat=9):
        story.add("/".join(levels), True)
    story.check("/".join("a" * 9))
    assert len(story.trie.find(b"/".join([b"a"] * 9))) == 2**9
    assert len(story.trie.find(b"/".join([b"a"] * 8 + [b"b"]))) == 2**8
    assert story.trie.find(b"/".join([b"a"] * 10)) == []


@BOTH
def test_what_is_gone_makes_room(module: ModuleType) -> None:
    choice = random.Random(9)
    patterns = sorted({random_pattern(choice).removesuffix("/#") for _ in range(2000)} - {"", "#"})
    trie = module.Topics()
    sizes = []
    for turn in range(5):
        # other names every time: what were left of the last turn would be of no use
        fresh = [pattern.replace("a", f"a{turn}").encode() for pattern in patterns]
        numbers = [trie.add(pattern, True) for pattern in fresh]
        assert sorted(numbers) == list(range(len(fresh)))
        sizes.append(trie.size())
        choice.shuffle(numbers)
        assert all([trie.release(number) for number in numbers])
        assert trie.count() == 0
        assert all(trie.find(pattern) == [] for pattern in fresh[:20])
    assert sizes == sizes[:1] * 5


@BOTH
def test_a_number_that_nobody_holds_is_refused(module: ModuleType) -> None:
    trie = module.Topics()
    number = trie.add(b"a/b", True)
    trie.release(number)
    for wrong in (number, number + 1, -1):
        with pytest.raises(KeyError):
            trie.release(wrong)
        with pytest.raises(KeyError):
            trie.pattern(wrong)
    assert trie.add(b"a/c", True) == number


def test_both_forms_tell_one_story() -> None:
    choice = random.Random(10)
    tries = [topics.Topics(), TWIN.Topics()]
    held: list[int] = []
    for step in range(4000):
        if choice.random() < 0.6 or not held:
            pattern, exact = random_pattern(choice).encode(), choice.random() < 0.5
            first, second = (trie.add(pattern, exact) for trie in tries)
            held.append(first)
        else:
            number = held.pop(choice.randrange(len(held)))
            first, second = (trie.release(number) for trie in tries)
        assert first == second
        if step % 10 == 0:
            topic = random_topic(choice).encode()
            first, second = (trie.find(topic) for trie in tries)
            assert first == second
            first, second = (trie.size() for trie in tries)
            assert first == second


def test_a_topic_inside_a_buffer() -> None:
    trie = TWIN.Topics()  # compiled, only other kernels call this
    wanted = {trie.add(b"a/+", True), trie.add(b"a", False)}
    trie.add(b"a/b/c", True)
    assert trie.match(memoryview(b"$/a/b/c"), 2, 5) == 2
    assert set(trie.hits.items()) == wanted
