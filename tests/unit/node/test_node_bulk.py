"""Tables and batches: what a node hands over, and that a batch is published whole and once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from harness import Client, KeepingWorld

from regraft.model.message import DeliveryMode, Message
from regraft.node.effect import (
    CheckStaged,
    Effect,
    HandOver,
    ReadStaged,
    RemoveStaged,
    SweepStaged,
)
from regraft.node.event import Closed, Event, StagedRead
from regraft.node.storage import Retained
from regraft.simulate.disk import Disk
from regraft.wire import bulk, native, peers

ALL = [Retained("all", "#")]
SINK = "query-1"


class BulkWorld(KeepingWorld):
    """One with staged files, which survive every crash: they were synced before."""

    def __init__(
        self,
        streams: Sequence[Retained] = ALL,
        disk: Disk | None = None,
        ns: int = 1_000_000_000,
        files: dict[str, bytes] | None = None,
        **limits: int,
    ) -> None:
        self.files: dict[str, bytes] = {} if files is None else files
        self.jobs: list[Any] = []
        self.swept: list[SweepStaged] = []
        self.late: list[Event] | None = None  # answers that wait for `let`
        super().__init__(streams, disk, ns, **limits)
        self.node.hand_over(self.now)
        self.step()
        self.settle()

    def step_once(self, *events: Event) -> None:
        following: Sequence[Event] = events
        first = True
        while following or first:
            first = False
            answers: list[Event] = []
            for effect in self.node.step(following, self.now):
                self.perform(effect, answers)
            following = answers

    def perform(self, effect: Effect, answers: list[Event]) -> None:
        told = answers if self.late is None else self.late
        match effect:
            case HandOver(key, job):
                self.jobs.append(bulk.decode_job(job))
                self.clients[key].closed = "handed over"
                answers.append(Closed(key, "handed over"))
            case CheckStaged(ticket, files):
                wrong = [name for name, size in files if len(self.files.get(name, b"")) != size]
                told.append(StagedRead(ticket, b"", f"{wrong[0]} is not whole" if wrong else ""))
            case ReadStaged(ticket, name, offset, size):
                data = self.files.get(name)
                if data is None:
                    told.append(StagedRead(ticket, b"", f"{name} is not there"))
                else:
                    told.append(StagedRead(ticket, data[offset : offset + size], ""))
            case RemoveStaged(names):
                for name in names:
                    self.files.pop(name, None)
            case SweepStaged():
                self.swept.append(effect)
            case _:
                super().perform(effect, answers)

    def let(self, count: int) -> bool:
        """Let some of the late answers come; whether there were any."""
        assert self.late is not None
        told, self.late[:] = self.late[:count], self.late[count:]
        if told:
            self.step(*told)
        return bool(told)

    def settle(self) -> None:
        self.persist()

    def again(self, power: bool = False, **limits: int) -> BulkWorld:
        left = self.disk.power_off() if power else self.disk.crash()
        return BulkWorld(self.streams, left, self.ns + 1_000_000, self.files, **limits)

    def stage(self, part: int, count: int, batch: int = 0, attempt: str = "a", **more: Any) -> Any:
        """Messages in a staged file, as a sink makes them: the row of a commit."""
        frames = [
            native.encode(
                Message(
                    more.get("topic", "t"),
                    f"{batch}/{part}/{row}".encode() + b"." * more.get("size", 0),
                    sequence=(batch << 32) + row + 1,
                    delivery_mode=DeliveryMode.PERSISTENT,
                )
            )
            for row in range(count)
        ]
        data = b"".join(frames)
        self.files[bulk.staged_name(SINK, batch, part, attempt)] = data
        return part, attempt, len(data), count

    def stored(self) -> list[str]:
        """All that stream "all" holds, read back as a replay."""
        client = self.connect()
        client.send(native.Subscribe(1, "#", stream="all", from_sequence=1))
        self.persist()
        return [body.decode().rstrip(".") for body in client.bodies()]


def command(client: Client, what: str, request: Any, token: int = 1) -> None:
    client.send(peers.Command(token, what, bulk.encode(request)))


def commit(client: Client, parts: list[Any], batch: int = 0, sink: str = SINK) -> None:
    command(client, "commit", bulk.Parts(sink, batch, parts))


def done(client: Client) -> list[Any]:
    """Answers, and names of errors."""
    found: list[Any] = []
    for one in client.take():
        if isinstance(one, peers.Done):
            found.append(json.loads(one.json))
        elif isinstance(one, native.Error):
            found.append((one.name, one.text))
    return found


def rows(*counts: int, batch: int = 0) -> list[str]:
    return [f"{batch}/{part}/{row}" for part, count in enumerate(counts) for row in range(count)]


def committed(messages: int, known: bool = False) -> dict[str, Any]:
    return {"messages": messages, "known": known, "refused": 0}


# ---------------------------------------------------------------------------- reading


def read(**more: Any) -> bulk.Read:
    given = {"journal": "", "stream": "all", "columns": [("topic", "string")], "end": 5}
    return bulk.Read(**(given | more))


def test_streams_are_told_once_they_are_safe() -> None:
    world = BulkWorld()
    client = world.connect("p")
    client.send(Message("t", b"1", sequence=1, delivery_mode=DeliveryMode.PERSISTENT))
    command(client, "streams", bulk.Streams())
    assert done(client) == []
    world.persist()
    (answer,) = done(client)
    assert answer["journal"] == "00" * 16
    assert answer["streams"] == [{"name": "all", "pattern": "#", "first": 1, "next": 2}]


def test_a_read_is_handed_over_with_its_place() -> None:
    world = BulkWorld()
    client = world.connect("p")
    for number in range(1, 1500):
        body = b"x" * 200
        letter = Message("t", body, sequence=number, delivery_mode=DeliveryMode.PERSISTENT)
        client.send(letter)
    world.persist()
    command(client, "read", read(start=1000, end=1200, selector="a > 5"), 77)
    (job,) = world.jobs
    assert isinstance(job, bulk.ReadJob)
    assert (job.token, job.request.start, job.request.end) == (77, 1000, 1200)
    assert 0 < job.position < job.persisted == world.journal.persisted_position
    assert client.closed == "handed over"
    assert client.key not in world.node._connections


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (read(stream="none"), "unknown-stream"),
        (read(journal="11" * 16), "other-journal"),
        (read(start=0), "position-expired"),
        (read(selector="a >"), "bad-selector"),
        (read(columns=[]), "limit-exceeded"),
        (read(columns=[("topic", "int")]), "bad-message"),
        (read(columns=[("price", "decimal(10,2)")]), "bad-message"),
    ],
)
def test_what_cannot_be_read_is_refused_and_the_connection_stays(
    request_: bulk.Read, name: str
) -> None:
    world = BulkWorld()
    client = world.connect()
    command(client, "read", request_)
    ((found, text),) = done(client)
    assert found == name
    assert len(text) > 15
    assert not world.jobs
    assert not client.closed


def test_who_may_not_subscribe_may_not_read() -> None:
    world = BulkWorld()
    world.node._control._authorize = lambda principal, action, topic: action != "subscribe"
    client = world.connect()
    command(client, "read", read())
    assert done(client)[0][0] == "not-authorized"


def test_json_that_is_wrong_is_refused() -> None:
    world = BulkWorld()
    client = world.connect()
    client.send(peers.Command(1, "read", b'{"stream": 5}'))
    assert done(client)[0][0] == "bad-message"
    assert not client.closed


def test_a_node_without_a_process_beside_it_says_so() -> None:
    world = KeepingWorld(ALL)
    client = world.connect()
    command(client, "streams", bulk.Streams())
    ((name, _),) = done(client)
    assert name == "not-supported"


# ---------------------------------------------------------------------------- staging


def test_staging_is_handed_over_under_a_name_that_leads_nowhere_else() -> None:
    world = BulkWorld()
    client = world.connect()
    command(client, "stage", bulk.Stage(SINK, 3, 4, "abc"))
    (job,) = world.jobs
    assert isinstance(job, bulk.StageJob)
    assert job.name == f"{SINK}.3.4.abc.frames"
    for stage in (
        bulk.Stage("../x", 0, 0, "a"),
        bulk.Stage(SINK, 0, 0, "a/b"),
        bulk.Stage(SINK, -1, 0, "a"),
        bulk.Stage("", 0, 0, "a"),
    ):
        other = world.connect()
        command(other, "stage", stage)
        assert done(other)[0][0] == "bad-message"
    assert len(world.jobs) == 1


# ------------------------------------------------------------------------- committing


def test_nothing_is_seen_before_the_commit_and_all_of_it_behind() -> None:
    world = BulkWorld()
    live = world.subscriber("t")
    parts = [world.stage(0, 3), world.stage(1, 2)]
    assert world.stored() == []
    client = world.connect()
    commit(client, parts)
    assert done(client) == []
    world.persist()
    assert done(client) == [committed(5)]
    assert world.stored() == rows(3, 2)
    assert [body.decode() for body in live.bodies()] == rows(3, 2)
    assert world.files == {}


def test_a_batch_that_is_committed_again_is_only_answered() -> None:
    world = BulkWorld()
    client = world.connect()
    commit(client, [world.stage(0, 3)])
    world.persist()
    commit(client, [world.stage(0, 3, attempt="b")])
    world.persist()
    assert done(client) == [committed(3), committed(0, True)]
    assert world.stored() == rows(3)
    assert world.files == {}  # what was staged once more is dropped
    world = world.again()
    client = world.connect()
    commit(client, [world.stage(0, 3, attempt="c")])
    world.persist()
    assert done(client) == [committed(0, True)]
    assert world.stored() == rows(3)


def test_batches_follow_one_another_and_snapshots_know_them() -> None:
    world = BulkWorld()
    client = world.connect()
    wanted = []
    for batch in range(6):
        commit(client, [world.stage(0, 40, batch, size=300), world.stage(1, 2, batch)], batch)
        world.persist()
        wanted += rows(40, 2, batch=batch)
    assert world.journal.snapshots > 0
    world = world.again(power=True)
    assert world.stored() == wanted
    client = world.connect()
    commit(client, [world.stage(0, 40, 5, "again")], 5)
    commit(client, [world.stage(0, 1, 6)], 6)
    world.persist()
    assert done(client) == [committed(0, True), committed(1)]
    assert len(world.stored()) == len(wanted) + 1


def test_files_that_are_not_whole_are_not_promised() -> None:
    world = BulkWorld()
    client = world.connect()
    part, attempt, size, count = world.stage(0, 3)
    commit(client, [(part, attempt, size + 1, count)])
    ((name, text),) = done(client)
    assert name == "bad-message"
    assert "not whole" in text
    assert world.journal.state.sinks == {}
    commit(client, [(part, attempt, size, count)])
    world.persist()
    assert done(client) == [committed(3)]


def test_an_abort_drops_its_own_and_nothing_that_was_committed() -> None:
    world = BulkWorld()
    client = world.connect()
    part = world.stage(0, 3)
    command(client, "abort", bulk.Parts(SINK, 0, [part]))
    assert world.files == {}
    part = world.stage(0, 3, attempt="b")
    world.late = []
    commit(client, [part])  # its files are being looked at
    command(client, "abort", bulk.Parts(SINK, 0, [part]))
    assert len(world.files) == 1
    while world.let(1) or world.asked:
        world.persist()
    assert world.stored() == rows(3)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_moment_of_a_commit(power: bool) -> None:
    """All rows or none are there, and a commit that is tried again makes it all, once."""
    outcomes = set()
    for moment in range(40):
        world = BulkWorld(journal_pending_bytes=20_000)
        parts = [world.stage(0, 120, size=300), world.stage(1, 250, size=300)]
        world.late = []
        client = world.connect()
        commit(client, parts)
        for _ in range(moment):
            if not world.let(1):
                world.persist(1)
        answered = bool(done(client))
        world = world.again(power)
        found = world.stored()
        assert found in ([], rows(120, 250)), moment
        outcomes.add((answered, bool(found)))
        assert found or not answered
        client = world.connect()
        commit(client, [world.stage(0, 120, attempt="z", size=300), *parts[1:]])
        world.persist()
        (answer,) = done(client)
        assert answer == committed(0 if found else 370, bool(found))
        assert sorted(world.stored()) == sorted(rows(120, 250))
    assert outcomes == {(False, False), (False, True), (True, True)}


def test_a_full_mailbox_holds_a_batch_up_until_it_takes_more() -> None:
    world = BulkWorld(mailbox_messages=10)
    reader = world.reader("box", "t")
    client = world.connect()
    commit(client, [world.stage(0, 25, size=200)])
    world.persist()
    assert done(client) in ([], [committed(25)])
    for _ in range(60):
        got = reader.take()
        sequences = [one.sequence for one in got if hasattr(one, "sequence")]
        if sequences:
            reader.send(native.Settle(1, (sequences[0], sequences[-1])))
        world.persist()
        world.advance(1000)
        world.persist()
    assert world.stored() == rows(25)
    assert sorted({body.decode().rstrip(".") for body in reader.bodies()}) == sorted(rows(25))


def test_a_failed_disk_is_told_and_the_next_start_goes_on() -> None:
    world = BulkWorld()
    client = world.connect()
    parts = [world.stage(0, 3)]
    commit(client, parts)
    world.fail()
    assert done(client)[0][0] in ("bad-message", "journal-failed")
    world = world.again()
    client = world.connect()
    commit(client, parts)
    world.persist()
    assert len(done(client)) == 1
    assert world.stored() == rows(3)


def test_a_file_that_is_gone_hangs_and_is_told() -> None:
    world = BulkWorld()
    client = world.connect()
    world.late = []
    commit(client, [world.stage(0, 3)])
    world.let(1)  # checked
    world.persist()
    files, world.files = world.files, {}
    world.late = None
    world = world.again()
    assert any("hangs" in note.text for note in world.notes)
    client = world.connect()
    commit(client, [(0, "a", 1, 1)])
    assert done(client)[0][0] == "journal-failed"
    world.files.update(files)
    commit(client, [(0, "b", 1, 1)])
    world.persist()
    assert done(client) == [committed(3)]
    assert world.stored() == rows(3)


def test_as_many_sinks_are_remembered_as_may_be() -> None:
    world = BulkWorld(sinks_remembered=3)
    client = world.connect()
    for number in range(5):
        name = bulk.staged_name(f"s{number}", 0, 0, "a")
        world.stage(0, 1)
        world.files[name] = world.files.pop(bulk.staged_name(SINK, 0, 0, "a"))
        commit(client, [(0, "a", len(world.files[name]), 1)], sink=f"s{number}")
        world.persist()
    assert list(world.journal.state.sinks) == ["s2", "s3", "s4"]
    assert list(world.again().journal.state.sinks) == ["s2", "s3", "s4"]


def test_what_nobody_commits_is_swept_away() -> None:
    world = BulkWorld(staged_s=100)
    (sweep,) = world.swept
    assert sweep.before_us == world.now.wall_us - 100_000_000
    world.late = []
    commit(world.connect(), [world.stage(0, 3)])
    world.advance(1_201_000)
    assert len(world.swept) == 3
    assert world.swept[-1].keep == (bulk.staged_name(SINK, 0, 0, "a"),)


def test_too_many_parts_are_refused() -> None:
    world = BulkWorld(control_frame_bytes=60_000, frame_bytes=16_384 * 4, segment_bytes=1 << 17)
    client = world.connect()
    parts = [world.stage(part, 1) for part in range(1200)]
    commit(client, parts)
    ((name, text),) = done(client)
    assert (name, "use fewer" in text) == ("limit-exceeded", True)
    commit(client, [parts[0], parts[0]])
    assert done(client)[0][0] == "bad-message"
