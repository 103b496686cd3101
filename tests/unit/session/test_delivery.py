"""Credit, windows, and what the policies do to a subscriber that does not move."""

import pytest

from regraft.model.message import Message
from regraft.session.backlog import Backlog
from regraft.session.session import DISCONNECT, DROP_NEWEST, DROP_OLDEST, UNLIMITED, Delivery
from regraft.session.window import Window
from regraft.wire import native

IDS = b"\x12\x01\x01"
FRAME = native.encode(Message("t", b"0123456789"))
SIZE = len(FRAME)


def run(count: int) -> tuple[bytes, int, bytes, int, int]:
    return IDS, count, FRAME * count, 0, 0


def delivery(policy: int, messages: int = 4) -> Delivery:
    return Delivery(Backlog(messages, 100_000), policy)


# ----------------------------------------------------------------------- window


def test_a_window_is_exhausted_by_messages_or_by_bytes() -> None:
    window = Window(10, 100)
    assert not window.exhausted(9, 99)
    assert window.exhausted(10, 0)
    assert window.exhausted(0, 100)


def test_a_window_is_extended_once_half_of_it_is_used() -> None:
    window = Window(10, 100)
    assert not window.extend(4, 40, 10, 100)
    assert window.extend(5, 40, 10, 100)
    assert (window.messages, window.size) == (15, 140)
    assert not window.extend(5, 40, 10, 100)
    assert window.extend(5, 90, 10, 100)
    assert (window.messages, window.size) == (15, 190)


def test_a_window_never_shrinks() -> None:
    window = Window(10, 1_000)
    assert not window.extend(0, 100, 10, 100)
    assert window.extend(5, 100, 10, 100)
    assert (window.messages, window.size) == (15, 1_000)


def test_an_overdrawn_window_is_extended_from_what_was_sent() -> None:
    window = Window(10, 100)
    assert window.extend(50, 700, 10, 100)
    assert (window.messages, window.size) == (60, 800)


# ----------------------------------------------------------------------- credit


def test_without_credit_there_is_no_bound() -> None:
    assert not delivery(DISCONNECT).near_credit(1 << 40, 1 << 50)


def test_credit_is_taken_exactly() -> None:
    subject = delivery(DISCONNECT, 100)
    subject.credit_messages, subject.credit_bytes = 3, UNLIMITED
    subject.keep([run(5)])
    assert subject.take(1 << 20, 0).messages == 3
    assert subject.take(1 << 20, 0).messages == 0
    assert subject.allow(4, 0)
    assert subject.take(1 << 20, 0).messages == 1
    assert subject.sent_messages == 4


def test_a_message_may_begin_while_a_byte_of_credit_is_left() -> None:
    subject = delivery(DISCONNECT, 100)
    subject.credit_messages, subject.credit_bytes = UNLIMITED, 2 * SIZE + 1
    subject.keep([run(5)])
    assert subject.take(1 << 20, 0).messages == 3
    assert subject.take(1 << 20, 0).messages == 0
    subject.allow(0, 3 * SIZE)
    assert subject.take(1 << 20, 0).messages == 0
    subject.allow(0, 3 * SIZE + 1)
    assert subject.take(1 << 20, 0).messages == 1


def test_credit_only_grows() -> None:
    subject = delivery(DISCONNECT)
    subject.credit_messages = subject.credit_bytes = 10
    assert not subject.allow(5, 10)
    assert subject.allow(5, 11)
    assert (subject.credit_messages, subject.credit_bytes) == (10, 11)


def test_the_largest_credit_that_can_be_said_is_no_limit() -> None:
    subject = delivery(DISCONNECT)
    subject.credit_messages = subject.credit_bytes = 0
    subject.allow(2**64 - 1, 2**64 - 1)
    subject.keep([run(2)])
    assert subject.take(1 << 20, 0).messages == 2


# --------------------------------------------------------------------- policies


@pytest.mark.parametrize("policy", [DISCONNECT, DROP_OLDEST, DROP_NEWEST])
def test_nothing_is_dropped_before_a_stall(policy: int) -> None:
    subject = delivery(policy)
    assert subject.keep([run(9)]) == 0
    assert subject.backlog.messages == 9


def test_a_stall_drops_the_oldest_beyond_the_bounds() -> None:
    subject = delivery(DROP_OLDEST)
    subject.keep([run(9)])
    assert subject.stall() == 5
    assert subject.backlog.messages == 4
    assert subject.keep([run(1), run(2)]) == 3
    assert (subject.dropped_messages, subject.dropped_bytes) == (8, 8 * SIZE)
    assert subject.dropped_total == 8


def test_a_stall_drops_the_newest_once_it_is_full() -> None:
    subject = delivery(DROP_NEWEST)
    subject.keep([run(3)])
    assert subject.stall() == 0
    assert subject.keep([run(1)]) == 0
    assert subject.keep([run(1), run(2)]) == 3
    assert subject.backlog.messages == 4
    assert (subject.dropped_messages, subject.dropped_bytes) == (3, 3 * SIZE)


def test_a_stall_drops_what_came_when_it_was_full_already() -> None:
    subject = delivery(DROP_NEWEST)
    subject.keep([run(3), run(6)])
    assert subject.stall() == 5
    assert subject.backlog.messages == 4
    assert (subject.dropped_messages, subject.dropped_bytes) == (5, 5 * SIZE)


def test_giving_up_drops_all_and_counts_it() -> None:
    subject = delivery(DROP_NEWEST)
    subject.keep([run(3)])
    assert subject.give_up() == 3
    assert not subject.backlog
    assert subject.dropped_total == 3


def test_credit_that_comes_while_nothing_is_sent_counts_afterwards() -> None:
    """Nobody says it again: who was frozen with no credit left would wait for ever."""
    one = delivery(DROP_OLDEST)
    one.credit_messages = one.credit_bytes = 0
    one.keep([run(2)])
    one.frozen = True
    assert one.allow(2, 2 * SIZE)
    assert one.take(10_000, 0).messages == 0
    one.frozen = False
    assert one.take(10_000, 0).messages == 2
