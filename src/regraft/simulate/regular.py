"""A client that comes again: it publishes what must not be lost, reads mailboxes, and replays.

It does what a careful client does. What was not confirmed it sends again, with the same sequence,
over the next connection. It settles what it has read, and believes only what it was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from regraft.kernels.inbox import Inbox, ReceivedMessage
from regraft.model.message import DeliveryMode, Message
from regraft.simulate.ledger import Box, Ledger, Letter, Live
from regraft.simulate.world import Broker, Pipe
from regraft.wire import native

EXPECTED = {
    *("mailbox-in-use", "mailbox-full", "journal-failed", "disk-full", "journal-full"),
    *("taken-over", "shutting-down", "stalled"),
}


@dataclass(slots=True, eq=False)
class Reading:
    """One subscription of one connection."""

    id: int
    box: Box | None = None
    live: Live | None = None
    in_flight: int = 0
    dense: bool = False  # a replay without a selector: no sequence is left out
    stands: bool = False
    ending: bool = False
    waiting: int = 0  # as the node said when it began
    first: int = 0  # the sequences that came first
    last: int = 0  # and last
    held: dict[int, None] = field(default_factory=dict)  # got, and not settled
    due: list[int] = field(default_factory=list)  # settled since the last token
    tokens: dict[int, list[int]] = field(default_factory=dict)


class Regular:
    """One client over all its connections."""

    def __init__(self, name: str, ledger: Ledger, capacity: int = 1 << 20, credit: int = 0) -> None:
        self.name = name
        self.ledger = ledger
        self.capacity = capacity
        self.credit = credit  # messages that it takes ahead; 0: any number
        self.pipe: Pipe | None = None
        self.open = False  # it was welcomed
        self.published = 0  # the last sequence
        self.unconfirmed: dict[int, tuple[Letter, bytes]] = {}
        self.readings: dict[int, Reading] = {}
        self.ordinals: dict[int, Letter] = {}  # of this connection, not answered yet
        self._inbox = Inbox(1 << 26, native.read_transfer)
        self._waiting: list[tuple[Letter | None, bytes]] = []  # for credit
        self.taken = 0  # messages, all in all
        self.looked: tuple[int, int] = (-1, 0)  # for whoever waits until no more come
        self._granted = (0, 0)
        self._sent = [0, 0]
        self._got = 0
        self._last_id = 0
        self._lost: dict[int, Reading] = {}  # the node may have ended them
        self._last_token = 0

    @property
    def here(self) -> bool:
        """Whether it has a connection."""
        return self.pipe is not None and not self.pipe.closed

    @property
    def calm(self) -> bool:
        """Whether it always reads, however much comes."""
        return self.capacity >= 1 << 20 and not self.credit

    # ---------------------------------------------------------------------- coming, going

    def come(self, broker: Broker) -> None:
        """Connect; if it still has a connection, that is taken over."""
        self._forget()
        pipe = broker.connect(self.capacity)
        if pipe.closed:
            return
        self.pipe = pipe
        pipe.on_data = self._for(pipe, self._received)
        pipe.on_close = self._for(pipe, lambda reason: self._forget())
        hello = native.Hello(
            version_min=1,
            version_max=1,
            client_id=self.name,
            passive=True,
            credit_messages=self.credit,
            credit_bytes=1 << 40 if self.credit else 0,
        )
        pipe.send(native.PREFACE + native.encode(hello))
        self._waiting = list(self.unconfirmed.values())

    def _for(self, pipe: Pipe, what: Callable[[Any], None]) -> Callable[[Any], None]:
        """Not after another connection has taken its place."""

        def call(content: Any) -> None:
            if self.pipe is pipe:
                what(content)

        return call

    def go(self) -> None:
        """Hang up."""
        if self.pipe is not None:
            self.pipe.close()
        self._forget()

    def take_leave(self) -> None:
        """Say good-bye: what was sent before is still dealt with."""
        self._send(native.Bye())

    def _forget(self) -> None:
        for reading in self.readings.values():
            if reading.live is not None and reading.live.ended_ns < 0:
                reading.live.ended_ns = self.ledger.world.ns
        self.pipe = None
        self.open = False
        self.readings = {}
        self.ordinals = {}
        self._inbox = Inbox(1 << 26, native.read_transfer)
        self._waiting = []
        self._granted, self._sent, self._got = (0, 0), [0, 0], 0

    def _send(self, message: native.Control) -> None:
        if self.pipe is not None:
            self.pipe.send(native.encode(message))

    # ------------------------------------------------------------------------- publishing

    def publish(self, topic: str, weight: int, padding: int, expires_us: int = 0) -> None:
        """Publish what must not be lost."""
        self.published += 1
        letter = Letter(self.name, self.published, topic, weight, expires_us)
        self.ledger.letters[letter.mark] = letter
        message = Message(
            topic,
            letter.mark + b"." * padding,
            {"weight": weight},
            sequence=letter.number,
            expiration_us=expires_us or None,
            delivery_mode=DeliveryMode.PERSISTENT,
        )
        frame = native.encode(message)
        self.unconfirmed[letter.number] = letter, frame
        if self.here:
            self._waiting.append((letter, frame))
            self._send_waiting()

    def mention(self, topic: str) -> None:
        """Publish what may be lost."""
        if self.here:
            self._waiting.append((None, native.encode(Message(topic, b"mentioned"))))
            self._send_waiting()

    def _send_waiting(self) -> None:
        sent = self._sent
        while self._waiting and self.open and self.pipe is not None:
            if sent[0] >= self._granted[0] or sent[1] >= self._granted[1]:
                return
            letter, frame = self._waiting.pop(0)
            sent[0] += 1
            sent[1] += len(frame)
            if letter is not None:
                self.ordinals[sent[0]] = letter
                if letter.sent_ns < 0:
                    letter.sent_ns = self.ledger.world.ns
            self.pipe.send(frame)

    def _confirmed(self, message: native.Confirmed) -> None:
        for ordinal in range(message.ordinal - message.count + 1, message.ordinal + 1):
            letter = self.ordinals.get(ordinal)
            if letter is None:
                self.ledger.complain(f"{self.name}: confirmed {ordinal}, which nothing waits for")
                continue
            first = next(iter(self.ordinals))
            if first != ordinal:
                self.ledger.complain(f"{self.name}: confirmed {ordinal} before {first}")
            del self.ordinals[ordinal]
            self.unconfirmed.pop(letter.number, None)
            self.ledger.confirmed(letter, message.takers, message.known)

    def _refused(self, message: native.Error) -> None:
        for ordinal in range(message.ordinal, message.ordinal + (message.count or 1)):
            letter = self.ordinals.pop(ordinal, None)
            if letter is not None:
                self.ledger.counts["refused"] += 1
                self.unconfirmed.pop(letter.number, None)

    # ------------------------------------------------------------------------- subscribing

    def _subscribe(self, reading: Reading, message: native.Subscribe) -> Reading:
        self.readings[reading.id] = reading
        self._send(message)
        return reading

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def attach(self, box: Box, in_flight: int = 0) -> Reading:
        """Read a mailbox, which is made if it is not there."""
        id = self._next_id()
        where = f"weight >= {box.least}" if box.least else ""
        wanted = native.Subscribe(id, box.pattern, where, durable=box.name, in_flight=in_flight)
        return self._subscribe(Reading(id, box, in_flight=in_flight or 1 << 30), wanted)

    def listen(self, pattern: str) -> Reading:
        """Get what is published from now on."""
        id = self._next_id()
        live = Live(self.name, pattern, self.calm)
        self.ledger.lives.append(live)
        return self._subscribe(Reading(id, live=live), native.Subscribe(id, pattern))

    def replay(self, sequence: int = 0, time_us: int = 0, least: int = 0) -> Reading:
        """Read the stream again, from there on."""
        id = self._next_id()
        wanted = native.Subscribe(
            id,
            selector=f"weight >= {least}" if least else "",
            stream="all",
            from_sequence=sequence,
            from_time=time_us,
        )
        return self._subscribe(Reading(id, dense=not least), wanted)

    def end(self, reading: Reading, remove: bool = False) -> None:
        """Read no more."""
        reading.ending = True
        if reading.live is not None:
            reading.live.ended_ns = self.ledger.world.ns
        if remove and reading.box is not None:
            reading.box.leaving = True
        self._send(native.Unsubscribe(reading.id, remove))

    def settle(self, reading: Reading, sequences: Iterable[int], confirmed: bool) -> None:
        """Be done with some messages of a mailbox; be told when that is safe."""
        assert reading.box is not None
        ranges: list[int] = []
        for sequence in sorted(sequences):
            if ranges and ranges[-1] + 1 == sequence:
                ranges[-1] = sequence
            else:
                ranges += [sequence, sequence]
            reading.held.pop(sequence, None)
            reading.box.settling.add(sequence)
            reading.due.append(sequence)
        token = 0
        if confirmed:
            token = self._last_token = self._last_token + 1
            reading.tokens[token], reading.due = reading.due, []
        self._send(native.Settle(reading.id, tuple(ranges), token))

    # --------------------------------------------------------------------------- receiving

    def _received(self, data: bytes) -> None:
        for key, content, _ in self._inbox.feed(data):
            if isinstance(key, tuple):
                self._got += len(content)
                self.taken += len(content)
                for message in content:
                    self._message(message)
            else:
                self._control(native.decode(key, content))
        if self.credit and self._got:
            self._send(native.Credit(self._got + self.credit, 1 << 40))

    def _message(self, message: ReceivedMessage) -> None:
        letter = self.ledger.letter_of(message.body)
        for id in message.subscriptions:
            reading = self.readings.get(id)
            if reading is None or not reading.stands:
                self.ledger.complain(f"{self.name} got {message.body[:20]!r} by {id}: no such")
            elif reading.live is not None:
                if letter is not None:
                    self.ledger.live(reading.live, letter)
            elif letter is not None and message.sequence:
                self._sequenced(reading, message, letter)
            elif letter is not None:
                self.ledger.complain(f"{self.name} got {letter} by {id} without a sequence")

    def _sequenced(self, reading: Reading, message: ReceivedMessage, letter: Letter) -> None:
        sequence = message.sequence
        if reading.last:
            self._check_place(reading, sequence)
        reading.first = reading.first or sequence
        reading.last = sequence
        if reading.box is None:
            self.ledger.replayed(sequence, letter)
            return
        self.ledger.delivered(reading.box, sequence, letter)
        reading.held[sequence] = None
        if len(reading.held) > reading.in_flight:
            text = f"has {len(reading.held)} unsettled, and wanted {reading.in_flight} at most"
            self.ledger.complain(f"{self.name} {text}")

    def _check_place(self, reading: Reading, sequence: int) -> None:
        """In order; and without a gap, unless something may have expired or been dropped."""
        gap = reading.dense and sequence > reading.last + 1 and not self.ledger.dropping
        if gap and any(letter.expires_us for letter in self.ledger.letters.values()):
            gap = False
        if sequence <= reading.last or gap:
            self.ledger.complain(f"{self.name} got {sequence} behind {reading.last}")

    def _control(self, message: Any) -> None:
        match message:
            case native.Welcome():
                self.open = True
                self._granted = (message.credit_messages, message.credit_bytes)
                self._send_waiting()
            case native.Credit():
                self._granted = (message.messages, message.bytes)
                self._send_waiting()
            case native.Confirmed():
                self._confirmed(message)
            case native.Subscribed():
                self._stands(self.readings[message.id], message)
            case native.Unsubscribed():
                self._ended(self.readings.pop(message.id))
            case native.Settled():
                self._settled(message)
            case native.Error():
                self._error(message)

    def _stands(self, reading: Reading, message: native.Subscribed) -> None:
        reading.stands = True
        reading.waiting = message.waiting
        if reading.box is not None:
            self.ledger.box_stands(reading.box, message.next_sequence)
        elif reading.live is not None:
            reading.live.stands_ns = self.ledger.world.ns

    def _ended(self, reading: Reading) -> None:
        self.ledger.counts["ended"] += 1
        if reading.box is not None and reading.box.leaving:
            self.ledger.box_gone(reading.box)

    def _settled(self, message: native.Settled) -> None:
        reading = self.readings.get(message.subscription) or self._lost.get(message.subscription)
        if reading is None or reading.box is None or message.token not in reading.tokens:
            self.ledger.complain(f"{self.name}: settled {message}, which nobody asked for")
            return
        for token in [token for token in reading.tokens if token <= message.token]:
            sequences = reading.tokens.pop(token)
            reading.box.settled.update(sequences)
            self.ledger.counts["settled"] += len(sequences)

    def _error(self, message: native.Error) -> None:
        lost = message.name == "unknown-subscription" and message.subscription in self._lost
        if message.name not in EXPECTED and not lost:
            self.ledger.complain(f"{self.name} was told: {message.name}: {message.text}")
        if message.ordinal:
            self._refused(message)
        reading = self.readings.get(message.subscription)
        if reading is not None:
            self._lost[reading.id] = reading  # or only a settlement is, if the disk failed
            if not reading.stands or not self.ledger.broken:
                del self.readings[reading.id]
