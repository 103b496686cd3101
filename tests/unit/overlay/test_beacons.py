"""Signs of life and round-trip times."""

from __future__ import annotations

from table import ME, Table, address, node

from regraft.overlay.actions import Cast, Dead, HangUp, Say
from regraft.overlay.beacons import Numbers, Verdict, Watch, smoothed
from regraft.overlay.messages import Beacon
from regraft.overlay.options import MS, Options


def watch(**options: int) -> Watch:
    return Watch(Options(beacon_ms=100, **options), 0)


def test_late_after_a_period_and_a_quarter_then_every_period() -> None:
    one = watch()
    assert one.due_ns == 125 * MS
    assert one.check(124 * MS) is Verdict.ALIVE
    assert one.check(125 * MS) is Verdict.LATE
    assert one.due_ns == 225 * MS
    assert one.check(225 * MS) is Verdict.DEAD


def test_a_sign_in_time_moves_the_expectation() -> None:
    one = watch()
    one.heard(100 * MS)
    assert one.check(125 * MS) is Verdict.ALIVE
    assert one.due_ns == 225 * MS


def test_a_miss_that_a_sign_follows_does_not_count() -> None:
    one = watch()
    for start in range(0, 1000, 200):
        assert one.check((start + 125) * MS) is Verdict.LATE
        one.heard((start + 200) * MS)
        assert one.check((start + 225) * MS) is Verdict.ALIVE


def test_as_many_misses_as_are_asked_for() -> None:
    one = watch(missed=3, expected=5)
    verdicts = [one.check(at * MS) for at in (125, 225, 325)]
    assert verdicts == [Verdict.LATE, Verdict.LATE, Verdict.DEAD]


def test_a_round_trip_time_is_told_by_an_echo() -> None:
    numbers = Numbers(node(1), 1)
    datagram = numbers.next(frame=False, now_ns=0)
    frame = numbers.next(frame=True, now_ns=1 * MS)
    assert (datagram % 2, frame % 2) == (0, 1)
    assert numbers.round_trip_us(Beacon(node(2), 1, 0, datagram, 400), 1 * MS) == 600
    assert numbers.round_trip_us(Beacon(node(2), 1, 0, frame, 0), 4 * MS) == 3000
    assert numbers.round_trip_us(Beacon(node(2), 1, 0, 99, 0), 4 * MS) is None
    assert numbers.round_trip_us(Beacon(node(2), 1, 0, frame, 9000), 4 * MS) is None  # it lies
    for _ in range(100):
        numbers.next(frame=False, now_ns=5 * MS)
    assert numbers.round_trip_us(Beacon(node(2), 1, 0, frame, 0), 6 * MS) is None


def test_round_trip_times_are_averaged() -> None:
    assert smoothed(None, 800) == 800
    assert smoothed(800, 1600) == 900


def beacons(table: Table, number: int) -> list[Beacon]:
    return [cast.beacon for cast in table.seen(Cast) if cast.address == address(number)]


def datagram(table: Table, number: int, beacon: int, echo: int = 0, life: int = 1) -> None:
    table.tree.beacon(address(number), Beacon(node(number), life, beacon, echo, 0), table.now_ns)
    table.look()


def test_neighbours_get_beacons_and_silent_ones_are_dead() -> None:
    table = Table()
    key = table.child(7)
    table.after(500)
    assert len(beacons(table, 7)) == 1
    table.after(125)
    assert len(table.said(key, Beacon)) == 2  # nothing came back by datagram; then it was late
    table.after(499)
    assert not table.seen(Dead)
    table.after(1)
    assert [dead.key for dead in table.seen(Dead)] == [key]
    assert [hang.key for hang in table.seen(HangUp)] == [key]
    assert table.tree.children == []


def test_datagrams_are_signs_of_life_and_echoes() -> None:
    table = Table()
    key = table.child(7)
    for number in range(2, 22, 2):
        table.after(500)
        sent = beacons(table, 7)[-1]
        datagram(table, 7, number, echo=sent.number)
    assert not table.seen(Dead)
    assert beacons(table, 7)[-1].echo == 18
    assert len(table.said(key, Beacon)) == 1  # before it was known that datagrams get through
    assert table.tree.snapshot()["links"][0]["rtt_us"] == 0


def test_a_neighbour_without_datagrams_lives_by_frames() -> None:
    table = Table()
    key = table.child(7)
    for _ in range(20):
        table.after(450)
        table.tree.heard(key, table.now_ns)
    assert not table.seen(Dead)
    assert len(table.said(key, Beacon)) == len(beacons(table, 7)) == 18


def test_a_frame_that_wants_an_echo_gets_one() -> None:
    table = Table()
    key = table.connect(7)
    table.get(key, Beacon(node(7), 1, 5, 0, 0))
    assert table.said(key, Beacon) == [Beacon(node(ME), 1, 0, 5, 0)]
    table.get(key, Beacon(node(7), 1, 0, 0, 0))
    assert len(table.said(key, Beacon)) == 1


def test_a_datagram_from_a_spare_is_answered_and_others_are_ignored() -> None:
    table = Table()
    datagram(table, 7, 4)
    assert not beacons(table, 7)
    table.connect(7)
    datagram(table, 7, 4)
    assert beacons(table, 7) == [Beacon(node(ME), 1, 0, 4, 0)]
    datagram(table, 7, 6, life=2)
    assert len(beacons(table, 7)) == 1


def test_with_two_connections_datagrams_say_nothing_about_the_link() -> None:
    """The other end may have lost the link, and cast beacons because of the other connection."""
    table = Table()
    link = table.child(7)
    table.connect(7)
    for number in range(2, 12, 2):
        table.after(400)
        datagram(table, 7, number)
    assert [dead.key for dead in table.seen(Dead)] == [link]


def test_a_process_that_slept_forgives_everybody() -> None:
    table = Table()
    table.child(7)
    table.now_ns += 10_000 * MS
    table.tree.tick(table.now_ns)
    table.look()
    assert not table.seen(Dead)
    assert "slept" in table.seen(Say)[-1].text
    table.after(1124)
    assert not table.seen(Dead)
    table.after(1)
    assert table.seen(Dead)


def test_a_silent_spare_is_hung_up() -> None:
    table = Table()
    key = table.connect(7, dialled=True)
    table.after(3500)
    assert [hang.key for hang in table.seen(HangUp)] == [key]


def test_whoever_is_busy_itself_waits_a_period_more_and_no_longer() -> None:
    one = watch()
    assert one.check(125 * MS) is Verdict.LATE
    assert one.check(260 * MS, busy=True) is Verdict.LATE
    assert one.due_ns == 360 * MS
    assert one.check(400 * MS, busy=True) is Verdict.DEAD
    one = watch()
    assert one.check(125 * MS) is Verdict.LATE
    assert one.check(260 * MS, busy=True) is Verdict.LATE
    one.heard(261 * MS)  # it had been there all the time
    assert one.check(360 * MS, busy=True) is Verdict.ALIVE


def test_a_tick_that_is_late_gives_nobody_up_at_once() -> None:
    table = Table()
    table.child(7)
    table.after(1124)
    assert not table.seen(Dead)
    table.now_ns += 100 * MS  # it is busy, and should have looked before
    table.tree.tick(table.now_ns)
    table.look()
    assert not table.seen(Dead)
    table.after(499)
    assert not table.seen(Dead)
    table.after(1)
    assert table.seen(Dead)
