"""What a node remembers of questions: branches, counts, ends, bounds."""

from __future__ import annotations

from random import Random

import pytest

from regraft.routing import replies as module
from regraft.routing.replies import Pending, Replies


def asked(replies: Replies, number: int = 1, asker: int = 100, ends_ns: int = 1000) -> Pending:
    return Pending(b"id %d" % number, number, asker, 7, ends_ns)


def test_it_is_over_when_all_branches_are_and_adds_up() -> None:
    replies = Replies()
    pending = asked(replies)
    replies.open(pending, [1, 2], [3, 4])
    assert (pending.repliers, replies.branches, len(replies)) == (2, 4, 1)
    assert not replies.count(pending, 1, 5)
    assert replies.count(pending, 2, 0)
    assert pending.repliers == 7
    pending.branches[1] += 3
    assert not replies.end(pending, 3, 0, 0, True, "")
    assert not replies.end(pending, 1, 5, 3, True, "")
    assert not replies.end(pending, 2, 0, 0, True, "")
    assert replies.end(pending, 4, 0, 0, True, "")
    assert (pending.complete, pending.repliers) == (True, 7)
    replies.close(pending)
    assert (replies.branches, len(replies), replies._of, replies._asked) == (0, 0, {}, {})


def test_a_branch_that_was_not_counted_is_counted_by_its_end() -> None:
    replies = Replies()
    pending = asked(replies)
    replies.open(pending, [1], [])
    assert replies.end(pending, 1, 12, 0, True, "")
    assert pending.repliers == 12


@pytest.mark.parametrize("how", ["count", "end", "lose", "expire"])
def test_what_goes_wrong_is_not_complete(how: str) -> None:
    replies = Replies()
    pending = asked(replies)
    replies.open(pending, [1], [2])
    replies.end(pending, 2, 0, 0, True, "")
    assert pending.complete
    if how == "count":
        replies.end(pending, 1, 1, 1, True, "")  # one reply was sent, and none came
    elif how == "end":
        replies.end(pending, 1, 1, 0, False, "why")
        assert pending.reason == "why"
    elif how == "lose":
        assert replies.lose(1) == ([pending], [], [])
    else:
        assert replies.expire(999) == []
        assert replies.expire(1000) == [pending]
        assert replies.next_ns is None
    assert not pending.complete and pending.reason


def test_a_lost_branch_need_not_be_counted() -> None:
    replies = Replies()
    pending = asked(replies)
    replies.open(pending, [1, 2], [3])
    assert not replies.count(pending, 1, 4)
    assert replies.lose(2) == ([], [], [pending])
    assert (pending.repliers, pending.complete) == (5, False)


def test_when_the_asker_is_gone_nobody_waits() -> None:
    replies = Replies()
    pending = asked(replies)
    replies.open(pending, [1], [100])  # it also is one of those who reply
    assert replies.asked_by(100) == 1 and replies.find(100, 7) is pending
    assert replies.lose(100) == ([], [pending], [])
    replies.close(pending)
    assert replies.asked_by(100) == 0 and replies.find(100, 7) is None
    assert replies.lose(1) == ([], [], [])


def test_a_question_that_was_here_is_known_for_long_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 10)
    replies = Replies()
    assert not replies.knows(b"first")
    assert replies.knows(b"first")
    for number in range(9):
        assert not replies.knows(b"%d" % number)
    assert replies.knows(b"0") and len(replies._known) + len(replies._older) <= 20
    for number in range(100, 130):
        replies.knows(b"%d" % number)
    assert not replies.knows(b"first")


def test_moments_of_what_is_over_do_not_gather() -> None:
    replies = Replies()
    for number in range(10_000):
        pending = asked(replies, number, ends_ns=10**9 + number)
        replies.open(pending, [], [1])
        replies.close(pending)
    assert len(replies._ends) <= 66
    assert not replies.branches and not replies._of


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_left_whatever_happens(seed: int) -> None:
    """Random histories against the simplest model: a question is complete if nothing went wrong."""
    random = Random(seed)
    replies = Replies()
    fine: dict[int, bool] = {}
    for number in range(200):
        pending = asked(replies, number, random.randrange(10, 15), random.randrange(1, 500))
        keys = random.sample(range(10), random.randrange(1, 6))
        cut = random.randrange(len(keys) + 1)
        replies.open(pending, keys[:cut], keys[cut:])
        fine[number] = True
        now = number * 3
        for over in replies.expire(now):
            assert not over.complete
            replies.close(over)
        for _ in range(random.randrange(6)):
            if not replies.by_number:
                break
            one = random.choice(list(replies.by_number.values()))
            key = random.choice(list(one.branches))
            what = random.random()
            if what < 0.1:
                lost = random.randrange(15)
                spoilt = [p for p in replies.by_number.values() if lost in p.branches]
                over_now, orphaned, _ = replies.lose(lost)
                for each in spoilt:
                    fine[each.number] &= each in orphaned
                for each in over_now:
                    assert not each.complete
                for each in {p.number: p for p in (*over_now, *orphaned)}.values():
                    replies.close(each)
            elif what < 0.5:
                one.branches[key] += 1
            else:
                honest = random.random() < 0.9
                came = one.branches[key]
                fine[one.number] &= honest
                if replies.end(one, key, 0, came + (not honest), True, ""):
                    assert one.complete == fine[one.number]
                    replies.close(one)
    for pending in list(replies.by_number.values()):
        replies.close(pending)
    assert (replies.branches, replies._of, replies._asked) == (0, {}, {})
