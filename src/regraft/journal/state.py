"""What a journal's records amount to: streams, mailboxes, publishers, sinks, transactions.

A state is the sum of the records up to some position. While a node runs, the journal changes it as
it appends; at recovery, `apply` takes in the same records one by one. `snapshot` writes it down, so
that recovery need not begin with the first record, and old segments can go.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from regraft.journal import format, rows
from regraft.journal.format import Bytes, Extent, Options, Range, Record, Spot, damaged
from regraft.journal.streams import (
    TX,
    Arrivals,
    Back,
    HomeState,
    Mailbox,
    Mark,
    Publisher,
    Rank,
    Sink,
    Stream,
)
from regraft.kernels.windows import sequences
from regraft.limits import DECIDED_MAX

CHUNK_BYTES = 256 * 1024  # of a snapshot: one record


class Prepared(NamedTuple):
    """A transaction in doubt."""

    what: format.TxPrepared
    since_us: int


class State:
    """All that must be known to go on. Numbers of streams are never used again."""

    def __init__(self, journal_id: str = "", created_us: int = 0) -> None:
        self.journal_id = journal_id
        self.created_us = created_us
        self.numbers = 1  # the next number of a stream
        self.publisher_numbers = 1
        self.streams: dict[int, Stream] = {}  # public ones and those of mailboxes
        self.names: dict[str, Stream] = {}  # public ones
        self.mailboxes: dict[str, Mailbox] = {}  # by name
        self.publishers: dict[int, Publisher] = {}
        self.clients: dict[str, Publisher] = {}  # publishers by client id
        self.topics: dict[str, format.TopicMade] = {}  # administered ones, by logical name
        self.holes: dict[int, list[tuple[int, int]]] = {}  # segment -> (offset, size), in order
        self.sinks: dict[str, Sink] = {}  # the longest idle first
        self.homes: dict[str, HomeState] = {}  # other nodes that keep messages, by journal
        self.origins: dict[str, Arrivals] = {}  # what came from other journals
        self.prepared: dict[str, Prepared] = {}  # transactions in doubt, by global id
        self.decided: dict[str, bool] = {}  # how others ended, the oldest first
        self.forgotten = 0  # clients whose transactions are remembered no more
        self._group = -1  # up to where records count together, if some do
        self._joined: dict[int, tuple[Mailbox, int, int]] = {}  # what mailboxes get of them

    # --------------------------------------------------------------------- records

    def apply(self, record: Record) -> None:
        """Take in one record; DiskError if it does not fit what came before."""
        if self._joined and record.position >= self._group:
            self._join()
        if record.kind == format.MESSAGES:
            spots, settled = format.split_places(record.meta)
            self.apply_messages(
                record.position, spots, record.messages, len(record.payload), record.priority
            )
            for number, sequence in settled:
                self.apply_settled(number, [(sequence, sequence)])
            if record.publisher:
                self.apply_published(
                    record.position, record.publisher, record.payload, record.time_us
                )
        elif record.kind == format.CONTROL:
            self.apply_control(format.decode_control(record.payload), record.time_us)
        elif record.kind == format.SETTLED:
            self.apply_settled(*format.decode_settled(record.payload))
        elif record.kind == format.TRANSACTION:
            self.apply_transaction(record)

    def apply_transaction(self, record: Record) -> None:
        """A group of records begins: the transaction of a publisher who is remembered."""
        self._group, serial = format.decode_group(record.payload)
        publisher = self.publishers.get(record.publisher)
        if publisher is not None:
            publisher.last_us = record.time_us
            (publisher.window or publisher.thaw()).accept(serial)
        elif record.publisher:
            raise damaged(f"position {record.position} is of no publisher: {record.publisher}")

    def _join(self) -> None:
        """A group of records is over: what goes to other nodes goes as a whole."""
        for mailbox, first, start in self._joined.values():
            if mailbox.next_sequence > first + 1:
                mailbox.join(first, mailbox.next_sequence - 1, start, mailbox.size)
        self._joined = {}

    def apply_settled(self, number: int, ranges: list[Range]) -> None:
        """Messages of a mailbox, if it is there still, are done with."""
        mailbox = self.streams.get(number)
        if isinstance(mailbox, Mailbox):
            for first, last in ranges:
                mailbox.settle(first, last)

    def apply_messages(
        self,
        position: int,
        places: list[Spot],
        messages: int,
        size: int,
        priority: int = format.PRIORITY,
    ) -> None:
        """Messages of this size were appended to streams."""
        streams = self.streams
        if self._joined and position >= self._group:
            self._join()
        for number, sequence in places:
            stream = streams.get(number)
            if stream is None:
                raise damaged(f"position {position} has messages of no stream: {number}")
            if sequence != stream.next_sequence:
                raise damaged(
                    f"position {position} has message {sequence} of stream {number} where "
                    f"{stream.next_sequence} should be"
                )
            if position < self._group and isinstance(stream, Mailbox):
                self._joined.setdefault(number, (stream, sequence, stream.size))
            stream.next_sequence = sequence + messages
            stream.size += size
            if priority != format.PRIORITY and isinstance(stream, Mailbox):
                stream.rank(priority, sequence, sequence + messages - 1)

    def apply_published(self, position: int, number: int, frames: memoryview, time_us: int) -> None:
        """They came from a publisher who is remembered."""
        publisher = self.publishers.get(number)
        if publisher is None:
            raise damaged(f"position {position} is of no publisher: {number}")
        publisher.last_us = time_us
        window = publisher.window or publisher.thaw()
        try:
            for sequence in sequences(frames, 0, len(frames)):
                if sequence >= 0:
                    window.accept(sequence)
        except ValueError as error:
            raise damaged(f"position {position} has messages that are none: {error}") from None

    def apply_control(self, control: format.Control, time_us: int) -> None:
        """Something was made, attached, or has gone."""
        try:
            _CONTROLS[type(control)](self, control, time_us)
        except KeyError as error:
            raise damaged(f"a CONTROL record speaks of what is not there: {control}") from error

    def apply_index(self, first: int, extents: dict[int, Extent]) -> None:
        """The segment that begins at `first` was closed, and holds this."""
        for number, extent in extents.items():
            stream = self.streams.get(number)
            if stream is None:  # it is gone
                continue
            offset = extent.entry(0)[0]
            stream.add_mark(
                Mark(
                    first,
                    offset,
                    extent.first,
                    extent.last,
                    extent.first_us,
                    extent.last_us,
                    stream.size_through(extent.last),
                    first,
                )
            )

    def unknown(self, extents: dict[int, Extent]) -> dict[int, Extent]:
        """Those of what a closed segment holds that its streams do not know yet."""
        return {
            number: extent
            for number, extent in extents.items()
            if number in self.streams and extent.last > self.streams[number].indexed
        }

    def _stream_made(self, made: format.StreamMade, time_us: int) -> None:
        stream = Stream(made.number, made.name, made.pattern, made.exact)
        self.numbers = max(self.numbers, made.number + 1)
        self.streams[made.number] = self.names[made.name] = stream

    def _stream_gone(self, gone: format.StreamGone, time_us: int) -> None:
        stream = self.streams.pop(gone.number)
        del self.names[stream.name]

    def _mailbox_made(self, made: format.MailboxMade, time_us: int) -> None:
        mailbox = Mailbox(
            made.number,
            made.name,
            made.pattern,
            made.exact,
            made.selector,
            made.owner,
            _with_quotas(made),
        )
        mailbox.came = made.came
        self.numbers = max(self.numbers, made.number + 1)
        self.streams[made.number] = self.mailboxes[made.name] = mailbox

    def _mailbox_gone(self, gone: format.MailboxGone, time_us: int) -> None:
        mailbox = self.mailbox(gone.number)
        del self.streams[gone.number]
        self._unname(mailbox)
        self._uncount(mailbox)

    def _mailbox_moved(self, moved: format.MailboxMoved, time_us: int) -> None:
        mailbox = self.mailbox(moved.number)
        if moved.came is None:
            self._uncount(mailbox)
        mailbox.came, mailbox.home = moved.came, moved.home

    def _unname(self, mailbox: Mailbox) -> None:
        """It has its name no more; one that had moved away before it came has it again."""
        if self.mailboxes.get(mailbox.name) is mailbox:
            del self.mailboxes[mailbox.name]
            for other in self.streams.values() if mailbox.came is not None else ():
                if not isinstance(other, Mailbox) or other is mailbox:
                    continue
                if other.name == mailbox.name:
                    self.mailboxes[other.name] = other

    def _uncount(self, mailbox: Mailbox) -> None:
        """Nothing more comes for it from where it was before."""
        for arrivals in list(self.origins.values()) if mailbox.came is not None else ():
            if arrivals.mailbox == mailbox.number:
                del self.origins[arrivals.key]
                del self.streams[arrivals.number]

    def _publisher_made(self, made: format.PublisherMade, time_us: int) -> None:
        publisher = Publisher(made.number, made.client_id, time_us)
        self.publisher_numbers = max(self.publisher_numbers, made.number + 1)
        self.publishers[made.number] = self.clients[made.client_id] = publisher

    def _publisher_gone(self, gone: format.PublisherGone, time_us: int) -> None:
        publisher = self.publishers.pop(gone.number)
        del self.clients[publisher.client_id]
        self.forgotten += publisher.client_id.startswith(TX)

    def _attached(self, attached: format.Attached, time_us: int) -> None:
        self.mailbox(attached.number).window = attached.window

    def _detached(self, detached: format.Detached, time_us: int) -> None:
        mailbox = self.mailbox(detached.number)
        mailbox.delivered = detached.delivered
        mailbox.window = 0

    def _mailbox_changed(self, changed: format.MailboxChanged, time_us: int) -> None:
        mailbox = self.mailbox(changed.number)
        if changed.name != mailbox.name:
            self._unname(mailbox)
            self.mailboxes[changed.name] = mailbox
        mailbox.name, mailbox.options = changed.name, changed.options

    def _reached(self, reached: format.Reached, time_us: int) -> None:
        mailbox = self.mailbox(reached.number)
        mailbox.delivered = max(mailbox.delivered, reached.sequence)

    def _returned(self, returned: format.Returned, time_us: int) -> None:
        mailbox = self.mailbox(returned.number)
        for first, last, *about in returned.runs:
            mailbox.give_back(first, last, Back(*about))

    def _sought(self, sought: format.Sought, time_us: int) -> None:
        self.mailbox(sought.number).seek(sought.sequence)

    def _topic_made(self, made: format.TopicMade, time_us: int) -> None:
        self.topics[made.name] = made

    def _topic_gone(self, gone: format.TopicGone, time_us: int) -> None:
        del self.topics[gone.name]

    def _hole_made(self, made: format.HoleMade, time_us: int) -> None:
        self.add_hole(made.first, made.offset, made.size)

    def _sink_committed(self, made: format.SinkCommitted, time_us: int) -> None:
        self.sinks.pop(made.sink, None)
        self.sinks[made.sink] = Sink(made.sink, made.batch, time_us, made.parts)

    def _sink_applied(self, done: format.SinkApplied, time_us: int) -> None:
        self.sinks[done.sink].parts = []

    def _sink_gone(self, gone: format.SinkGone, time_us: int) -> None:
        del self.sinks[gone.sink]

    def _home_told(self, told: format.HomeTold, time_us: int) -> None:
        home = self.homes.setdefault(told.journal, HomeState(told.journal))
        home.node, home.name = told.node, told.name
        home.version, home.gone = told.version, told.gone
        for interest in told.add:
            home.interests[interest.number] = interest
        for number in told.remove:
            home.interests.pop(number, None)

    def _origin_heard(self, heard: format.OriginHeard, time_us: int) -> None:
        about = (heard.journal, heard.stream, heard.shift, heard.mailbox)
        arrivals = Arrivals(heard.number, *about)
        known = self.origins.get(arrivals.key)
        if known is not None and known.number == heard.number:
            known.shift = heard.shift
            return
        if known is not None:
            del self.streams[known.number]
        self.numbers = max(self.numbers, heard.number + 1)
        self.streams[heard.number] = self.origins[arrivals.key] = arrivals

    def _tx_prepared(self, made: format.TxPrepared, time_us: int) -> None:
        self.prepared[made.gid] = Prepared(made, time_us)

    def _tx_decided(self, done: format.TxDecided, time_us: int) -> None:
        self.prepared.pop(done.gid, None)
        self.decided.pop(done.gid, None)
        self.decided[done.gid] = done.committed
        while len(self.decided) > DECIDED_MAX:
            del self.decided[next(iter(self.decided))]

    @property
    def boxes(self) -> list[Mailbox]:
        """All mailboxes, also those that moved away and came back under the same name."""
        return [one for one in self.streams.values() if isinstance(one, Mailbox)]

    def mailbox(self, number: int) -> Mailbox:
        """The mailbox with this number; KeyError if there is none."""
        stream = self.streams[number]
        if not isinstance(stream, Mailbox):
            raise KeyError(number)
        return stream

    def add_hole(self, first: int, offset: int, size: int) -> None:
        """A stretch of a segment is dead; it takes in the holes that lie in it."""
        end = offset + size
        holes = [
            hole
            for hole in self.holes.get(first, [])
            if hole[0] + hole[1] <= offset or hole[0] >= end
        ]
        self.holes[first] = sorted([*holes, (offset, size)])

    def calm(self) -> list[int]:
        """After a crash: nobody is attached or publishes. The mailboxes of which that is new."""
        self._join()
        for publisher in self.publishers.values():
            publisher.freeze()
        return [mailbox.number for mailbox in self.boxes if mailbox.abandon()]

    # ------------------------------------------------------------------- snapshots

    def snapshot(self, chunk_bytes: int = CHUNK_BYTES) -> list[bytes]:
        """All of it, as the payloads of SNAPSHOT records."""
        numbers = (self.numbers, self.publisher_numbers, self.forgotten)
        head = rows.Head(self.journal_id, self.created_us, *numbers)
        found: list[rows.Row] = [head]
        for stream in self.streams.values():
            if isinstance(stream, Mailbox):
                found += rows.mailbox_rows(stream, chunk_bytes)
            elif isinstance(stream, Arrivals):
                counted = (stream.next_sequence, stream.size, stream.indexed)
                about = (stream.number, stream.journal, stream.stream, stream.shift)
                found.append(rows.OriginRow(*about, *counted, stream.mailbox))
            else:
                found.append(
                    rows.StreamRow(
                        stream.number,
                        stream.name,
                        stream.pattern,
                        stream.exact,
                        stream.next_sequence,
                        stream.size,
                        stream.indexed,
                    )
                )
            found += rows.mark_rows(stream, chunk_bytes)
        found += [
            rows.PublisherRow(p.number, p.client_id, p.last_us, p.state())
            for p in self.publishers.values()
        ]
        found += [rows.HolesRow(first, holes) for first, holes in self.holes.items()]
        found += [rows.TopicRow(topic) for topic in self.topics.values()]
        found += [
            rows.SinkRow(one.name, one.batch, one.last_us, one.parts) for one in self.sinks.values()
        ]
        for home in self.homes.values():
            found.append(rows.HomeRow(home.journal, home.node, home.name, home.version, home.gone))
            found += [rows.InterestRow(home.journal, one) for one in home.interests.values()]
        found += [rows.PreparedRow(one.what, one.since_us) for one in self.prepared.values()]
        decided = iter(self.decided.items())
        while some := list(islice(decided, rows.DECIDED_PER_ROW)):
            found.append(rows.DecidedRow(some))
        return rows.pack(found, chunk_bytes)

    @classmethod
    def restore(cls, chunks: list[Bytes]) -> State:
        """A state from all the chunks of its snapshot, in order."""
        state = cls()
        for number, chunk in enumerate(chunks):
            part, parts, found = rows.decode_chunk(chunk)
            if (part, parts) != (number, len(chunks)):
                raise damaged("the parts of a snapshot do not fit together")
            try:
                for row in found:
                    _RESTORERS[type(row)](state, row)
            except KeyError as error:
                raise damaged(f"a snapshot speaks of what is not in it: {error}") from None
        return state

    def _restore_head(self, row: rows.Head) -> None:
        self.journal_id, self.created_us = row.journal_id, row.created_us
        self.numbers, self.publisher_numbers = row.numbers, row.publisher_numbers
        self.forgotten = row.forgotten

    def _restore_stream(self, row: rows.StreamRow) -> None:
        stream = Stream(row.number, row.name, row.pattern, row.exact)
        stream.next_sequence, stream.size, stream.indexed = row.next_sequence, row.size, row.indexed
        self.streams[row.number] = self.names[row.name] = stream

    def _restore_mailbox(self, row: rows.MailboxRow) -> None:
        mailbox = Mailbox(
            row.number,
            row.name,
            row.pattern,
            row.exact,
            row.selector,
            row.owner,
            _with_quotas(row),
        )
        mailbox.next_sequence, mailbox.size = row.next_sequence, row.size
        mailbox.indexed, mailbox.floor = row.indexed, row.floor
        mailbox.delivered, mailbox.window = row.delivered, row.window
        mailbox.sought, mailbox.came, mailbox.home = row.sought, row.came, row.home
        mailbox.ranks = {priority: Rank(low, last) for priority, low, last in row.ranks}
        self.streams[row.number] = self.mailboxes[row.name] = mailbox

    def _restore_settled(self, row: rows.SettledRow) -> None:
        settled = self.mailbox(row.number).settled
        for first, last in row.ranges:
            settled.add(first, last)
        for page, bits in row.pages:
            settled.add_bits(page, bits)

    def _restore_returned(self, row: rows.ReturnedRow) -> None:
        returned = self.mailbox(row.number).returned
        for sequence, *about in row.returned:
            returned[sequence] = Back(*about)

    def _restore_topic(self, row: rows.TopicRow) -> None:
        self.topics[row.topic.name] = row.topic

    def _restore_marks(self, row: rows.MarksRow) -> None:
        self.streams[row.number].marks += row.marks

    def _restore_joints(self, row: rows.JointsRow) -> None:
        self.mailbox(row.number).joints += row.joints

    def _restore_publisher(self, row: rows.PublisherRow) -> None:
        publisher = Publisher(row.number, row.client_id, row.last_us, row.window)
        self.publishers[row.number] = self.clients[row.client_id] = publisher

    def _restore_holes(self, row: rows.HolesRow) -> None:
        self.holes[row.first] = row.holes

    def _restore_origin(self, row: rows.OriginRow) -> None:
        arrivals = Arrivals(row.number, row.journal, row.stream, row.shift, row.mailbox)
        arrivals.next_sequence, arrivals.size = row.next_sequence, row.size
        arrivals.indexed = row.indexed
        self.streams[row.number] = self.origins[arrivals.key] = arrivals

    def _restore_home(self, row: rows.HomeRow) -> None:
        home = self.homes[row.journal] = HomeState(row.journal)
        home.node, home.name, home.version, home.gone = row.node, row.name, row.version, row.gone

    def _restore_interest(self, row: rows.InterestRow) -> None:
        self.homes[row.journal].interests[row.interest.number] = row.interest

    def _restore_sink(self, row: rows.SinkRow) -> None:
        self.sinks[row.name] = Sink(row.name, row.batch, row.last_us, row.parts)

    def _restore_prepared(self, row: rows.PreparedRow) -> None:
        self.prepared[row.what.gid] = Prepared(row.what, row.since_us)

    def _restore_decided(self, row: rows.DecidedRow) -> None:
        self.decided.update(row.decided)


# --------------------------------------------------------------------- who takes what

_CONTROLS: dict[type, Callable[[State, Any, int], None]] = {
    format.StreamMade: State._stream_made,
    format.StreamGone: State._stream_gone,
    format.MailboxMade: State._mailbox_made,
    format.MailboxGone: State._mailbox_gone,
    format.PublisherMade: State._publisher_made,
    format.PublisherGone: State._publisher_gone,
    format.MailboxChanged: State._mailbox_changed,
    format.MailboxMoved: State._mailbox_moved,
    format.Reached: State._reached,
    format.Returned: State._returned,
    format.Sought: State._sought,
    format.TopicMade: State._topic_made,
    format.TopicGone: State._topic_gone,
    format.Attached: State._attached,
    format.Detached: State._detached,
    format.HoleMade: State._hole_made,
    format.SinkCommitted: State._sink_committed,
    format.SinkApplied: State._sink_applied,
    format.SinkGone: State._sink_gone,
    format.HomeTold: State._home_told,
    format.OriginHeard: State._origin_heard,
    format.TxPrepared: State._tx_prepared,
    format.TxDecided: State._tx_decided,
}

_RESTORERS: dict[type, Callable[[State, Any], None]] = {
    rows.Head: State._restore_head,
    rows.StreamRow: State._restore_stream,
    rows.MailboxRow: State._restore_mailbox,
    rows.SettledRow: State._restore_settled,
    rows.ReturnedRow: State._restore_returned,
    rows.TopicRow: State._restore_topic,
    rows.MarksRow: State._restore_marks,
    rows.JointsRow: State._restore_joints,
    rows.PublisherRow: State._restore_publisher,
    rows.HolesRow: State._restore_holes,
    rows.SinkRow: State._restore_sink,
    rows.OriginRow: State._restore_origin,
    rows.HomeRow: State._restore_home,
    rows.InterestRow: State._restore_interest,
    rows.PreparedRow: State._restore_prepared,
    rows.DecidedRow: State._restore_decided,
}


def _with_quotas(made: format.MailboxMade | rows.MailboxRow) -> Options:
    if not made.quota_messages and not made.quota_bytes:
        return made.options
    return msgspec.structs.replace(
        made.options, quota_messages=made.quota_messages, quota_bytes=made.quota_bytes
    )
