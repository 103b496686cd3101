"""How long what a lost link causes waits."""

from regraft.routing.reconfiguration import PROTOCOLS, DeferredTimed, Reconfigurator, Strawman

MS = 1_000_000


def test_strawman_never_waits() -> None:
    one: Reconfigurator = Strawman()
    assert not one.lost(1, b"r", False, 0)
    one.added(2, b"r", 0)
    assert one.next_ns is None and one.ended(10**18) == []


def test_deferred_waits_for_its_time() -> None:
    one: Reconfigurator = DeferredTimed(10)
    assert one.lost(1, b"r", False, 0) and one.lost(2, b"s", True, 4 * MS)
    assert one.next_ns == 10 * MS
    one.added(3, b"r", 5 * MS)
    assert one.ended(9 * MS) == []
    assert one.ended(10 * MS) == [1] and one.ended(10 * MS) == []
    assert one.next_ns == 14 * MS
    one.forget()
    assert one.next_ns is None and one.ended(20 * MS) == []


def test_changed_times_apply_from_the_next_loss_on() -> None:
    one = DeferredTimed(10)
    one.lost(1, b"r", False, 0)
    one.delay_ms = 5
    one.lost(2, b"s", False, 0)
    assert one.ended(5 * MS) == [2] and one.next_ns == 10 * MS
    one.delay_ms = 0
    assert not one.lost(3, b"t", False, 0)


def test_protocols_have_names() -> None:
    assert {name: make(7).name for name, make in PROTOCOLS.items()} == {
        name: name for name in PROTOCOLS
    }
