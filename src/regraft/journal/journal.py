"""The journal: what was appended, what is persisted, what may be read and what may go.

Rules:

- Records are appended in memory, at once; `flush` asks for what has gathered to be persisted. One
  such batch is under way at a time, and what comes meanwhile is the next: group commit.
- `persisted_position` moves only when the disk has said so. Whoever was promised something for a
  position is told when this one has reached it.
- A batch that failed is final: `broken` is set, nothing is asked for or confirmed any more. The
  exception is a full disk: nothing was promised for the batch, and all of it is written again.
- Nobody calls this room from more than one place at a time, and it looks at no clock: `now_us` is
  the wall clock of the step.

The lane appends messages through `recorder` itself; the state is brought up to date when somebody
looks at it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from regraft.errors import LocalError
from regraft.journal import format
from regraft.journal.compaction import Compaction
from regraft.journal.format import Elsewhere, Options, Range, Start
from regraft.journal.index import Place, Places
from regraft.journal.recovery import Recovered
from regraft.journal.requests import (
    Persist,
    Piece,
    PrepareSegment,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.journal.retention import KEEP, Drops, Quotas, Retention
from regraft.journal.segments import Segments, Tail, start_of
from regraft.journal.streams import Mailbox, Publisher, Stream, describe
from regraft.kernels.records import Recorder
from regraft.limits import Limits

RETRY_US = 1_000_000  # after a disk was full
NEVER_US = 1 << 62
SNAPSHOT_SEGMENTS = 1  # written since the last snapshot, before the next
SNAPSHOT_FACTOR = 16  # and this many times the size of the last one
RANGE_BYTES = 16  # of a SETTLED record
RETURNED_BYTES = 64  # of one run that came back, as JSON
NO_OPTIONS = Options()
STREAM_BYTES = 64  # what a stream adds to a record of messages and to the INDEX of its segment
BESIDE_BYTES = 1024  # of a segment, beside one record; and of a mailbox's row, beside its texts
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ASIDE = ("prepare", "remove", "punch", "read")  # what can fail without a batch being lost


def keep_all(name: str) -> Retention:
    """Every public stream keeps what it has."""
    return KEEP


class Journal:
    """One journal that is being written. `requests` is emptied by whoever performs them."""

    def __init__(
        self,
        recovered: Recovered,
        limits: Limits,
        now_us: int,
        retention_of: Callable[[str], Retention] = keep_all,
    ) -> None:
        self.requests: list[Request] = []
        self.state = recovered.state
        self.persisted_position = recovered.position
        self.broken = ""  # why nothing can be persisted any more
        self.segments = Segments(recovered.segments)
        self.tail = Tail(limits.journal_tail_bytes)
        self.quotas = Quotas(limits.mailbox_messages, limits.mailbox_bytes)
        self.away: dict[int, Mailbox] = {}  # mailboxes that stand for other nodes
        self.batches = self.batch_bytes_max = self.written = 0
        self.snapshots = self.dropped_segments = 0
        self._limits = limits
        self._retention_of = retention_of
        self._batch: tuple[Piece, ...] = ()  # under way, with
        self._overwrites: tuple[Piece, ...] = ()  # which goes first
        self._batch_end = recovered.position
        self._by_slot: dict[int, Stream] = {}
        # Streams that get something with the batch under way, and where the first of it begins;
        self._touched: list[tuple[Stream, int]] = []
        self.touched: list[tuple[Stream, int]] = []  # and that got something with the last one.
        self._no_space = False  # for the batch under way,
        self._no_segment = False  # or for the next segment
        self._retry_us = self._prepare_us = 0  # not before
        self._prepared = set(recovered.prepared)
        self._snapshot = recovered.snapshot  # the newest that is persisted
        self._pointed = recovered.pointed  # the one that the newest START points to
        self._snapshot_bytes = recovered.snapshot_bytes
        self._snapshot_at = recovered.snapshot  # the newest of all,
        self._snapshot_end = 0  # which counts once this position is persisted
        self._doomed = 0  # segments that end here or before may go, ...
        self._doomed_at = 0  # ... once what was said up to here is persisted
        self._idle: dict[int, None] = {}  # publishers that are away, the longest first
        self._tickets = 0
        self._reads: dict[int, Callable[[bytes, str], None]] = {}  # the journal's own
        self.recorder = self._recorder(recovered)
        reserve = min(self.recorder.segment_bytes, limits.journal_bytes // 4)
        self._usable = limits.journal_bytes - reserve
        self._drops = Drops(self.segments, self._retention)
        self.places = Places(
            self.state, self.segments, self.recorder, self.tail, self._ask, limits.index_cache_bytes
        )
        self._compaction = Compaction(self.state, self.segments, self.places.footers, self._ask)
        self._open(recovered, now_us)

    def _retention(self, name: str) -> Retention:
        """How long a public stream keeps messages: as its topic says, or the configuration."""
        topic = self.state.topics.get(name)
        if topic is not None and topic.retain:
            return Retention(topic.keep_s * 1_000_000, topic.keep_bytes)
        return self._retention_of(name)

    def _recorder(self, recovered: Recovered) -> Recorder:
        recorder = Recorder(recovered.segment_bytes, format.INDEX_EVERY)
        recorder.open(recovered.first, recovered.position, recovered.epoch, recovered.time_us)
        recorder.synced = recovered.position
        for entry in recovered.entries:
            recorder.reindex(*entry)
        return recorder

    def _open(self, recovered: Recovered, now_us: int) -> None:
        for stream in self.state.streams.values():
            self.give_slot(stream)
            if isinstance(stream, Mailbox):
                self.quotas.watch(stream, recovered.position)
        away = sorted(self.state.publishers.values(), key=lambda one: one.last_us)
        self._idle = dict.fromkeys(one.number for one in away)
        self._point_to_snapshot()
        for number in recovered.abandoned:
            self.detach(number, self.state.mailbox(number).delivered, now_us)
        self.tick(now_us)

    # ------------------------------------------------------------------- streams

    def make_stream(self, name: str, pattern: str, exact: bool, now_us: int) -> Stream:
        """Retain a topic, or go on doing so."""
        known = self.state.names.get(name)
        if known is not None and (known.pattern, known.exact) == (pattern, exact):
            return known
        if known is not None:
            self.remove_stream(known.number, now_us)
        if len(self.state.names) >= self._limits.streams:
            raise _too_many("streams", self._limits.streams)
        self._check_meta()
        made = format.StreamMade(self.state.numbers, name, pattern, exact)
        self.control(made, now_us)
        return self.give_slot(self.state.streams[made.number])

    def remove_stream(self, number: int, now_us: int) -> None:
        """Retain a topic no more."""
        self.free_slot(self.state.streams[number])
        self.control(format.StreamGone(number), now_us)
        self._drops.holder = None

    def make_mailbox(
        self,
        name: str,
        pattern: str,
        exact: bool,
        selector: str,
        owner: str,
        now_us: int,
        options: Options = NO_OPTIONS,
        came: Elsewhere | None = None,
    ) -> Mailbox:
        """Begin a durable subscription. LocalError if there are too many, or the name is taken."""
        made = self.check_mailbox(name, pattern, exact, selector, owner, options, came=came)
        self.control(made, now_us)
        mailbox = self.state.mailboxes[name]
        self.give_slot(mailbox)
        self.quotas.watch(mailbox, self.recorder.position)
        return mailbox

    def check_mailbox(
        self,
        name: str,
        pattern: str,
        exact: bool,
        selector: str,
        owner: str,
        options: Options,
        others: int = 0,
        came: Elsewhere | None = None,
    ) -> format.MailboxMade:
        """What a mailbox will be, with so `others` made before it; LocalError if it cannot be."""
        known = self.state.mailboxes.get(name)
        if known is not None and (came is None or known.home is None):  # or it comes back
            raise LocalError("subscription-in-use", f"there is a mailbox {name} already")
        if len(self.state.mailboxes) + others >= self._limits.mailboxes:
            raise _too_many("mailboxes", self._limits.mailboxes)
        self._check_meta(others)
        number = self.state.numbers
        about = (number, name, pattern, selector, exact, owner)
        made = format.MailboxMade(*about, options=options, came=came)
        room = self.recorder.segment_bytes - 2 * BESIDE_BYTES
        if len(format.encode_control(made)) > room:
            text = f"pattern and selector do not fit into a segment of the journal: {room} bytes"
            raise LocalError("limit-exceeded", f"{text} as JSON (limit segment_bytes)")
        return made

    def remove_mailbox(self, number: int, now_us: int) -> None:
        """End a durable subscription, with all that waits in it."""
        self.free_slot(self.state.mailbox(number))
        self.control(format.MailboxGone(number), now_us)
        self.quotas.forget(number)
        self._drops.holder = None

    def attach(self, number: int, window: int, now_us: int) -> None:
        """A client reads a mailbox; it may have `window` messages in its hands."""
        self.control(format.Attached(number, window), now_us)

    def detach(self, number: int, delivered: int, now_us: int) -> None:
        """Nobody reads it now; up to this one, any may have been delivered without coming back."""
        self.control(format.Detached(number, delivered), now_us)

    def settle(self, number: int, ranges: Iterable[Range], now_us: int) -> int:
        """Settle messages of a mailbox; how many were not so before.

        It counts once the position after it is persisted.
        """
        mailbox = self.state.mailbox(number)
        self.refresh(mailbox)
        changed: list[Range] = []
        for first, last in ranges:
            changed += mailbox.settle(first, last)
        many = self.recorder.segment_bytes // 8 // RANGE_BYTES  # a record must fit into a segment
        for at in range(0, len(changed), many):
            payload = format.encode_settled(number, changed[at : at + many])
            self.recorder.append(format.SETTLED, payload, now_us)
        self.see_quota(mailbox)
        return sum(last - first + 1 for first, last in changed)

    def see_quota(self, mailbox: Mailbox) -> None:
        """There may be room in a mailbox again."""
        if mailbox.number in self.quotas.full:
            self.quotas.watch(mailbox, self.recorder.position)

    def change_mailbox(self, number: int, name: str, options: Options, now_us: int) -> None:
        """Give a mailbox another name, or other options."""
        self.control(format.MailboxChanged(number, name, options), now_us)
        mailbox = self.state.mailbox(number)
        self.refresh(mailbox)
        self.quotas.watch(mailbox, self.recorder.position)

    def reach(self, number: int, sequence: int, now_us: int) -> None:
        """Messages of a mailbox up to this one are about to be delivered."""
        self.control(format.Reached(number, sequence), now_us)

    def give_back(
        self, number: int, runs: list[tuple[int, int, int, int, int]], now_us: int
    ) -> None:
        """Messages came back unsettled: first, last, attempts, not before, priority."""
        self.refresh(self.state.mailbox(number))
        many = self.recorder.segment_bytes // 8 // RETURNED_BYTES
        for at in range(0, len(runs), many):
            self.control(format.Returned(number, runs[at : at + many]), now_us)

    def seek(self, number: int, sequence: int, now_us: int) -> int:
        """Have a mailbox begin elsewhere; the first sequence that it has from now on."""
        mailbox = self.state.mailbox(number)
        self.refresh(mailbox)
        sequence = min(max(sequence, mailbox.first_sequence()), mailbox.next_sequence)
        self.control(format.Sought(number, sequence), now_us)
        self.quotas.watch(mailbox, self.recorder.position)
        self._drops.holder = None
        return mailbox.floor

    def administer(self, topic: format.TopicMade, now_us: int) -> None:
        """Have an administered topic, or have it differently."""
        if topic.name not in self.state.topics and len(self.state.topics) >= self._limits.topics:
            raise _too_many("topics", self._limits.topics)
        self.control(topic, now_us)

    def forget_topic(self, name: str, now_us: int) -> None:
        """It is administered no more."""
        self.control(format.TopicGone(name), now_us)

    def see_ranks(self) -> None:
        """Take note of what was appended with another priority than the common one."""
        if self.recorder.ranks_waiting:
            for slot, priority, first, count in self.recorder.take_ranked():
                mailbox = self._by_slot.get(slot)
                if isinstance(mailbox, Mailbox):
                    mailbox.rank(priority, first, first + count - 1)

    def refresh(self, stream: Stream) -> Stream:
        """Bring what the state says of a stream up to what was appended."""
        counted = self.recorder.size(stream.slot)
        stream.next_sequence = self.recorder.next_sequence(stream.slot)
        stream.size += counted - stream.counted
        stream.counted = counted
        return stream

    def _check_meta(self, others: int = 0) -> None:
        """A run has three quarters of a segment at most; if all take it, the rest must do."""
        room = self.recorder.segment_bytes // 4 - BESIDE_BYTES
        if STREAM_BYTES * (len(self.state.streams) + others + 1) > room:
            raise LocalError(
                "limit-exceeded",
                f"this journal takes {room // STREAM_BYTES} mailboxes and streams: its segments "
                "are too small for more (limit segment_bytes)",
            )

    def by_slot(self, slot: int) -> Stream | None:
        """The stream that is recorded under a slot."""
        return self._by_slot.get(slot)

    def give_slot(self, stream: Stream) -> Stream:
        """Have messages recorded for a stream."""
        stream.slot = self.recorder.add_stream(stream.number, stream.next_sequence)
        self._by_slot[stream.slot] = stream
        stream.counted = 0
        return stream

    def free_slot(self, stream: Stream) -> None:
        """Have none recorded for it any more."""
        self.see_ranks()  # another stream may get the slot
        self.recorder.remove_stream(stream.slot)
        del self._by_slot[stream.slot]

    def control(self, control: format.Control, now_us: int) -> int:
        """Append a CONTROL record, and do what it says; the position behind it."""
        self.recorder.append(format.CONTROL, format.encode_control(control), now_us)
        self.state.apply_control(control, now_us)
        return self.recorder.position

    # ---------------------------------------------------------------- publishers

    def publisher(self, client_id: str, now_us: int) -> Publisher:
        """What is known of a publisher that is here now; its window is ready to be used."""
        known = self.state.clients.get(client_id)
        if known is None:
            while len(self.state.publishers) >= self._limits.publishers_remembered:
                if not self._idle:
                    raise _too_many("publishers_remembered", self._limits.publishers_remembered)
                self._forget(next(iter(self._idle)), now_us)
            number = self.state.publisher_numbers
            self.control(format.PublisherMade(number, client_id), now_us)
            known = self.state.clients[client_id]
        self._idle.pop(known.number, None)
        known.thaw()
        return known

    @property
    def crowded(self) -> bool:
        """Whether nobody new is remembered: there are as many as may be, and none is away."""
        return len(self.state.publishers) >= self._limits.publishers_remembered and not self._idle

    def release(self, publisher: Publisher, now_us: int) -> None:
        """A publisher is away from now on."""
        publisher.last_us = now_us
        publisher.freeze()
        self._idle[publisher.number] = None

    def _forget(self, number: int, now_us: int) -> None:
        del self._idle[number]
        self.control(format.PublisherGone(number), now_us)

    def _forget_idle(self, now_us: int) -> None:
        """Forget publishers that were away for too long."""
        oldest = now_us - self._limits.publisher_idle_s * 1_000_000
        while self._idle:
            number = next(iter(self._idle))
            if self.state.publishers[number].last_us >= oldest:
                return
            self._forget(number, now_us)

    def note(self, what: format.Control, now_us: int) -> None:
        """Have it recorded what became of the batch of a sink, or of a transaction."""
        self.control(what, now_us)

    # ----------------------------------------------------------------- refusals

    def refusal(self, numbers: Iterable[int]) -> str:
        """The name of the error that a publication for these streams gets now; "" for none.

        It may change with every call but this one; of mailboxes, `quotas.changed` says which.
        """
        if self.broken:
            return "journal-failed"
        if self.disk_full:
            return "disk-full"
        if self.full:
            return "journal-full"
        if self.quotas.full and not self.quotas.full.isdisjoint(numbers):
            return "mailbox-full"
        return ""

    @property
    def disk_full(self) -> bool:
        """There is no space left, or only what is left of this segment.

        It is refused that early, so that what is left is enough to say what may be dropped.
        """
        return self._no_space or self._no_segment

    @property
    def full(self) -> bool:
        """All of the space is used but for a rest, which settlements and snapshots need."""
        used = self.recorder.position - self.segments.oldest - self._compaction.punched
        return used >= self._usable

    # -------------------------------------------------------------- group commit

    @property
    def batch(self) -> tuple[Piece, ...]:
        """What is on its way to the disk."""
        return self._batch

    def flush(self, now_us: int) -> None:
        """Have persisted what was appended, unless a batch is under way: call it once per step."""
        if self.broken:
            self.recorder.take()  # nobody will ever have it
        if self._batch or not self.recorder.used:
            return
        self.see_ranks()
        touched, known = self.recorder.take_touched(), self._by_slot
        self._touched = [(known[slot], at) for slot, at in touched if slot in known]
        self._overwrites = tuple(self._compaction.overwrites(self.persisted_position))
        self._batch = tuple(Piece(*piece) for piece in self.recorder.take())
        self._batch_end = self.recorder.position
        closed = [self._note(piece) for piece in self._batch]
        self._persist()
        for number in self.quotas.due(self._batch_end):
            mailbox = self.state.streams.get(number)
            if isinstance(mailbox, Mailbox):
                self.refresh(mailbox)
                self.quotas.watch(mailbox, self._batch_end)
        if any(closed):
            self._maintain(now_us)
        self._prepare(now_us)

    def _persist(self) -> None:
        pieces = self._overwrites + self._batch
        self.requests.append(Persist(pieces, self.recorder.segment_bytes))

    def _note(self, piece: Piece) -> bool:
        """A piece leaves for the disk: which segment it begins or closes; whether it closes one."""
        size = self.recorder.segment_bytes
        if piece.first >= self.segments.end:
            self.segments.add(piece.first, size)
            self._prepared.discard(piece.first)
            self._pointed = start_of(piece).snapshot
        if piece.offset + len(piece.data) < size:
            return False
        index = format.decode_trailer(memoryview(piece.data)[-format.TRAILER_BYTES :])
        if index:
            at = index - piece.first - piece.offset
            header = format.decode_header(memoryview(piece.data)[at:], index)
            assert header is not None, "a trailer points to the INDEX"
            payload = bytes(piece.data[at + format.HEADER_BYTES : at + header.length])  # to keep
            extents = format.decode_index(payload)
            for number in extents:
                stream = self.state.streams.get(number)
                if stream is not None:
                    self.refresh(stream)
            self.state.apply_index(piece.first, extents)
            self.places.footers.put(piece.first, extents, len(payload), index - piece.first)
        return True

    def _prepare(self, now_us: int) -> None:
        """Have the next segment made, when this one is nearly full."""
        size = self.recorder.segment_bytes
        following = self.recorder.first + size
        if self.recorder.position - self.recorder.first < size * 3 // 4:
            return
        if following not in self._prepared and now_us >= self._prepare_us:
            self._prepared.add(following)
            self.requests.append(PrepareSegment(following, size))

    def persisted(self, now_us: int) -> tuple[Piece, ...]:
        """The batch under way is on the disk: this is what it held."""
        assert self._batch, "nothing was to be persisted"
        batch, self.touched = self._batch, self._touched
        self.persisted_position = self.recorder.synced = self._batch_end
        size = sum(len(piece.data) for piece in self._batch)
        self.batches += 1
        self.written += size
        self.batch_bytes_max = max(self.batch_bytes_max, size)
        for piece in self._batch:
            self.tail.add(piece)
        self.requests += self._compaction.overwritten()
        self._no_segment = self._no_segment and all(piece.offset for piece in batch)  # one was made
        self._batch = self._overwrites = ()
        self._no_space = False
        if self._snapshot_at > self._snapshot and self.persisted_position >= self._snapshot_end:
            self._snapshot = self._snapshot_at
        self._drop()
        self.flush(now_us)
        return batch

    def failed(self, what: str, number: int, text: str, now_us: int) -> None:
        """The disk did not do what it was asked for; `number` is its errno."""
        if what == "prepare":  # only a hint; what needs the segment will try again
            self._prepared.clear()
            self._prepare_us = now_us + RETRY_US
            self._no_segment = number in _FULL
        elif what in _ASIDE:
            return
        elif number in _FULL:
            self._no_space = True
            self._retry_us = now_us + RETRY_US
        else:
            self.broken = text

    def prepared(self, first: int) -> None:
        """A segment is ready to be written to."""
        self._prepared.add(first)
        self._no_segment = False

    def tick(self, now_us: int) -> None:
        """What time brings. Call it about once a second, and `flush` behind it."""
        if self.broken:
            return
        if self._no_space and now_us >= self._retry_us:
            self._retry_us = NEVER_US  # unless it fails again
            self._persist()
        self._prepare(now_us)
        self._forget_idle(now_us)
        if self._batch:
            return
        self._maintain(now_us)
        if isinstance(self._drops.holder, Mailbox):
            self._compaction.look(
                self._pointed,  # a recovery begins there, and does not come by what is punched
                lambda number: self._drops.held_by(self.state.streams[number], now_us),
                now_us,
            )
        self._compaction.announce(lambda made: self.control(made, now_us))
        if self._compaction.ready(self.persisted_position) and not self.recorder.used:
            self.recorder.append(format.SKIP, b"", now_us)  # for a batch to go along with

    # --------------------------------------------------------- snapshots and drops

    def _maintain(self, now_us: int) -> None:
        """Write a snapshot if it is time for one; see what may be dropped."""
        end = self.segments.oldest_end
        if len(self.segments) > 1 and self._doomed < end:
            needed = self._drops.needed_from(map(self.refresh, self.state.streams.values()), now_us)
            if needed >= end:
                self._doomed, self._doomed_at = needed, self.recorder.position
        least = max(
            SNAPSHOT_SEGMENTS * self.recorder.segment_bytes,
            SNAPSHOT_FACTOR * self._snapshot_bytes,
        )
        written = self.recorder.position - self._snapshot_at
        short = self.full or self.disk_full
        if written >= least or (short and self._doomed >= end > self._snapshot_at):
            self.write_snapshot(now_us)
        self._drop()

    def write_snapshot(self, now_us: int) -> bool:
        """Append a snapshot, if all that is in memory was taken; whether it was."""
        if self.recorder.used:
            return False
        self.see_ranks()
        for stream in self.state.streams.values():
            self.refresh(stream)
        for publisher in self.state.publishers.values():
            if publisher.window is not None:
                publisher.last_us = now_us
        before = self.recorder.position
        chunks = self.state.snapshot(min(256 * 1024, self.recorder.segment_bytes // 8))
        positions = [self.recorder.append(format.SNAPSHOT, chunk, now_us) for chunk in chunks]
        self._snapshot_at = positions[0]
        self._snapshot_end = self.recorder.position
        self._snapshot_bytes = self.recorder.position - before
        self.snapshots += 1
        self._point_to_snapshot()
        return True

    def _point_to_snapshot(self) -> None:
        self.recorder.start_payload = format.encode_start(
            Start(
                format.FORMAT,
                self.state.journal_id,
                self.recorder.segment_bytes,
                self._snapshot_at,
                self.state.created_us,
            )
        )

    def _drop(self) -> None:
        """Remove segments that nobody needs, once the disk knows that nobody does."""
        if self.persisted_position < self._doomed_at:
            return
        lowest = min(self._doomed, self._snapshot)
        dropped = 0
        while len(self.segments) > 1 and self.segments.oldest_end <= lowest:
            if self._compaction.touches(self.segments.oldest):
                break
            first = self.segments.drop()
            self.state.holes.pop(first, None)
            self._compaction.forget(first)
            self.places.footers.forget(first)
            self.requests.append(RemoveSegment(first))
            dropped += 1
        if dropped:
            self.dropped_segments += dropped
            self._drops.holder = None
            for stream in self.state.streams.values():
                stream.forget_before(self.segments.oldest)

    # ------------------------------------------------------------------- reading

    def locate(self, number: int, sequence: int) -> Place | None:
        """Where to begin reading a stream from a sequence on. None: not yet, ask again.

        It is time to ask again when `arrived` has returned True.
        """
        return self._not_in_hole(self.places.locate(number, sequence))

    def locate_time(self, number: int, time_us: int) -> Place | None:
        """The same from a time on: behind it, all records are of that time or later."""
        return self._not_in_hole(self.places.locate_time(number, time_us))

    def forward(self, position: int) -> int:
        """Where a reader at this position goes on: the same, unless what is there is gone.

        To be asked before something is read, and again when it has arrived.
        """
        return self._compaction.behind_hole(max(position, self.segments.oldest))

    def read(self, first: int, offset: int, size: int) -> int:
        """Have bytes read for somebody else; the ticket that will come with them."""
        self._tickets += 1
        self.requests.append(ReadJournal(self._tickets, first, offset, size))
        return self._tickets

    def arrived(self, ticket: int, data: bytes, error: str) -> bool:
        """Bytes were read; whether the journal itself had asked for them."""
        wanted = self._reads.pop(ticket, None)
        if wanted is None:
            return False
        wanted(data, error)
        return True

    def _ask(self, first: int, offset: int, size: int, then: Callable[[bytes, str], None]) -> None:
        self._reads[self.read(first, offset, size)] = then

    def _not_in_hole(self, place: Place | None) -> Place | None:
        if place is None:
            return None
        position = self.forward(sum(place))
        segment = self.segments.find(position)
        return place if segment is None else Place(segment[0], position - segment[0])

    # ------------------------------------------------------------------ counters

    def snapshot_counters(self) -> dict[str, Any]:
        """What the journal holds and has done, for people and for tests."""
        holder = self._drops.holder
        given = self._batch_end if self._batch else self.persisted_position
        return {
            "segments": len(self.segments),
            "bytes": self.segments.size,
            "bytes_punched": self._compaction.punched,
            "index_bytes_cached": self.places.footers.size,
            "indexes_unreadable": self.places.footers.unreadable,
            "position": self.recorder.position,
            "persisted": self.persisted_position,
            "epoch": self.recorder.epoch,
            "streams": len(self.state.names),
            "mailboxes": len(self.state.mailboxes),
            "mailboxes_full": len(self.quotas.full),
            "publishers": len(self.state.publishers),
            "batches": self.batches,
            "batch_bytes_max": self.batch_bytes_max,
            "written_bytes": self.written,
            "waiting_bytes": self.recorder.position - given,
            "snapshots": self.snapshots,
            "segments_dropped": self.dropped_segments,
            "held_by": holder.name if holder is not None else "",
            "full": self.full,
            "disk_full": self.disk_full,
            "broken": self.broken,
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Streams and mailboxes, to look at."""
        for stream in self.state.streams.values():
            yield describe(self.refresh(stream), stream.number in self.quotas.full)


def _too_many(limit: str, value: int) -> LocalError:
    return LocalError("limit-exceeded", f"this node takes {value}: limit {limit}")
