"""The tree of patterns and the subscription table, against one pattern at a time."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.model.topics import check_pattern, check_topic, matches
from regraft.routing.patterns import PatternTree
from regraft.routing.table import SubscriptionTable

LAW = settings(derandomize=True, deadline=None, max_examples=150)

LEVELS = ["a", "b", "", "$", "$x"]
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)
PATTERNS = st.one_of(
    st.just(""),
    st.just("#"),
    st.builds(
        lambda levels, rest: "/".join(levels + rest),
        st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=4),
        st.sampled_from([[], [], ["#"]]),
    ),
)
SUBSCRIPTIONS = st.lists(st.tuples(PATTERNS, st.booleans()), max_size=12)


def filled(subscriptions: list[tuple[str, bool]]) -> PatternTree[int]:
    tree: PatternTree[int] = PatternTree()
    for number, (pattern, exact) in enumerate(subscriptions):
        check_pattern(pattern)
        tree.add(pattern, exact, number)
    return tree


def is_empty(tree: PatternTree[int]) -> bool:
    root = tree._root
    return not (root.children or root.here or root.below)


@LAW
@given(SUBSCRIPTIONS, st.lists(TOPICS, min_size=1, max_size=6))
def test_the_tree_finds_what_each_pattern_alone_would(
    subscriptions: list[tuple[str, bool]], topics: list[str]
) -> None:
    tree = filled(subscriptions)
    for topic in topics:
        check_topic(topic)
        found = list(tree.find(topic))
        assert len(found) == len(set(found)), "a value is found once"
        assert set(found) == {
            number
            for number, (pattern, exact) in enumerate(subscriptions)
            if matches(pattern, topic, exact)
        }


@LAW
@given(SUBSCRIPTIONS, st.randoms(use_true_random=False), TOPICS)
def test_removal_undoes_addition_and_leaves_an_empty_tree(
    subscriptions: list[tuple[str, bool]], choice: random.Random, topic: str
) -> None:
    tree = filled(subscriptions)
    left = list(enumerate(subscriptions))
    choice.shuffle(left)
    while left:
        number, (pattern, exact) = left.pop()
        tree.remove(pattern, exact, number)
        assert set(tree.find(topic)) == {
            other for other, (form, whole) in left if matches(form, topic, whole)
        }
    assert is_empty(tree)


def test_many_random_patterns_and_topics_agree() -> None:
    choice = random.Random(4)

    def levels(of: list[str]) -> str:
        return "/".join(choice.choice(of) for _ in range(choice.randint(1, 6)))

    subscriptions = [
        (levels(["a", "b", "c", "+", "", "$s"]) + choice.choice(["", "", "/#"]), bool(k % 3))
        for k in range(300)
    ]
    tree = filled(subscriptions)
    for _ in range(400):
        topic = levels(["a", "b", "c", "", "$s", "d"]) or "a"
        assert set(tree.find(topic)) == {
            number
            for number, (pattern, exact) in enumerate(subscriptions)
            if matches(pattern, topic, exact)
        }, topic


def test_topics_of_the_bus_are_found_by_name_only() -> None:
    tree = filled([("", False), ("#", False), ("+/a", False), ("$sys/#", False), ("$sys", True)])
    assert sorted(tree.find("$sys/a")) == [3]
    assert sorted(tree.find("$sys")) == [3, 4]
    assert sorted(tree.find("a")) == [0, 1]


# ------------------------------------------------------------------------ table


def test_takers_come_with_all_their_subscriptions_in_order() -> None:
    table = SubscriptionTable()
    table.add(7, 30, "a/#", False)
    table.add(7, 2, "a", False)
    table.add(7, 5, "b", False)
    table.add(8, 1, "", False)
    assert table.takers("a/b") == {7: [2, 30], 8: [1]}
    assert table.takers("c") == {8: [1]}
    assert table.held(7) == {30: ("a/#", False), 2: ("a", False), 5: ("b", False)}
    assert table.size == 4


def test_a_removed_subscription_takes_nothing() -> None:
    table = SubscriptionTable()
    table.add(7, 1, "a", False)
    table.add(7, 2, "a", False)
    table.remove(7, 1)
    assert table.takers("a") == {7: [2]}
    assert table.size == 1


def test_nothing_is_left_of_a_taker_that_is_forgotten() -> None:
    table = SubscriptionTable()
    for number in range(1, 50):
        table.add(7, number, f"a/{number}", bool(number % 2))
    table.remove_all(7)
    table.remove_all(8)
    assert table.size == 0
    assert table.held(7) == {}
    assert not table._held
    assert table.takers("a/3") == {}


def test_nothing_is_left_of_a_taker_that_removed_its_subscriptions_itself() -> None:
    table = SubscriptionTable()
    table.add(7, 1, "a", False)
    table.remove(7, 1)
    assert not table._held


def test_the_same_pattern_may_be_held_by_many() -> None:
    table = SubscriptionTable()
    for taker in range(20):
        table.add(taker, 1, "a/+", False)
        table.add(taker, 2, "a/+", True)
    table.remove(3, 2)
    takers = table.takers("a/b")
    assert takers.pop(3) == [1]
    assert all(found == [1, 2] for found in takers.values())
