"""The disks of a story of many brokers: what is kept there, and whether promises are.

Some nodes have one. It stays when its node is started again, and it fails as the plan says. Guests
publish persistent messages, the nodes retain some topics, and regulars have mailboxes there.

Rules, beside those of every other message:

- What leaves the first node of a persistent message, to whomever, is safe on its disk by then, if
  it is kept there at all; so is what is confirmed. Nothing is confirmed after a sync has failed.
- Who is refused is told why, and it is true: the disk failed, is full, or is not there.
- What was confirmed is found after every start, and at the end in the stream and in the mailboxes,
  once and in order. What comes from other nodes is kept once, too.
- A disk that fails is trouble for nothing but the persistent messages that are published there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from regraft.errors import DiskError
from regraft.limits import Limits
from regraft.model.message import DeliveryMode, Message
from regraft.node.event import Event
from regraft.node.storage import Retained
from regraft.simulate.checkers import Complaint, Filter, canonical
from regraft.simulate.custodies import STREAM, Custodies
from regraft.simulate.disk import Disk
from regraft.simulate.ledger import Ledger, Letter, Line, judge
from regraft.simulate.plan import BOXES, ROAMING, Plan
from regraft.simulate.regular import Regular
from regraft.simulate.roaming import Roaming
from regraft.simulate.teller import Teller
from regraft.simulate.witness import Witness, audit
from regraft.simulate.world import Broker, World
from regraft.wire import native

CONFIRM_EARLY = "confirm-early"  # a bug of the nodes
TELLER_NS = 20_000_000  # for a connection to be welcomed
DRAINED_MS, DRAINED_ROUNDS = 250, 40


@dataclass(slots=True, eq=False)
class Place:
    """A disk, whoever works with it, and what was promised there."""

    name: str  # of the node
    stream: Retained
    limits: Limits
    disk: Disk
    ledger: Ledger
    broker: Broker | None = None  # the one that runs, or ran last
    regulars: dict[int, Regular] = field(default_factory=dict)
    teller: Teller | None = None
    tellers: int = 0  # so far
    short: bool = False  # the disk was full since the node was started
    _sent: dict[int, dict[int, Letter]] = field(default_factory=dict)  # by connection and ordinal
    _unsafe: dict[Letter, None] = field(default_factory=dict)
    _witness: Witness = field(default_factory=Witness)

    @property
    def running(self) -> bool:
        """Whether a node works with it."""
        return self.broker is not None and not self.broker.stopped

    def found(self) -> Disk:
        """The disk, as whoever ran last has left it."""
        if self.broker is not None:
            assert self.broker.disk is not None
            self.disk = self.broker.disk
        return self.disk

    def begin(self, broker: Broker) -> None:
        """A node runs again. What was promised must be there."""
        self.broker, self.ledger.disk, self.ledger.broken = broker, broker.disk, False
        self.short = self.disk.capacity is not None
        self._sent.clear()
        self._unsafe.clear()
        self._witness = Witness()
        broker.on_write = self._written
        broker.on_disk = self._reported
        for letter in self.ledger.letters.values():
            kept = letter.confirmed_ns >= 0 and self.ledger.stream.wants(letter)
            if kept and not self.disk.is_durable(letter.mark):
                self.ledger.complain(f"{self.name} was started, and {letter} is not there")

    def connected(self, key: int) -> None:
        """A guest has come, by this connection."""
        self._sent[key] = {}

    def sent(self, key: int, ordinal: int, letter: Letter) -> None:
        """A guest sends a persistent message."""
        letter.sent_ns = self.ledger.world.ns
        self.ledger.letters[letter.mark] = letter
        self._sent[key][ordinal] = letter
        self._unsafe[letter] = None

    def _written(self, key: int, data: bytes) -> None:
        """The node writes: whatever it says must be true now."""
        for letter in [one for one in self._unsafe if one.mark in data]:
            self.ledger.check_safe(letter, "handed on")
            del self._unsafe[letter]
        sent = self._sent.get(key)
        if sent is None:
            return
        for said in self._witness.read(key, data):
            if isinstance(said, native.Confirmed | native.Error):
                self.ledger.answered(said, sent)
            if isinstance(said, native.Error) and said.ordinal in sent:
                self._check_reason(said)

    def _check_reason(self, said: native.Error) -> None:
        """Whether what a publisher is told is true; when it hears that, it may be no more."""
        if said.name not in self.refuses():
            self.ledger.complain(f"a message was refused: {said.name}: {said.text}")

    def _reported(self, event: Event) -> None:
        self.ledger.reported(event)

    def refuses(self) -> set[str]:
        """Why something may be refused."""
        names = {"disk-full"} if self.short else set()
        return names | {"journal-failed"} if self.ledger.broken else names

    def wanted(self) -> Iterator[Filter]:
        """What the node wants of others, beside what its guests do: to be told of messages.

        Those who read mailboxes want what is not persistent, too.
        """
        assert self.broker is not None
        yield canonical(self.broker.node.custody_topic, True, "")
        rows = self.broker.node.report("journal", 1000)["rows"]
        read = {row["name"] for row in rows if row.get("attached")}
        for box in self.ledger.current.values():
            if box.name in read:
                yield canonical(box.pattern, False, "")
        for name, pattern in ROAMING:
            if name in read:
                yield canonical(pattern, False, "")

    def custody(self) -> dict[str, Any]:
        """What the node says of other nodes' mailboxes."""
        assert self.broker is not None
        return self.broker.node.report("custody", 1000)


@dataclass(slots=True)
class Disks:
    """All disks of a story."""

    world: World
    plan: Plan
    bugs: frozenset[str]
    halted: Callable[[int, bool], None]  # ends a node, or its machine
    places: dict[str, Place] = field(default_factory=dict)  # by the name of the node
    letters: dict[bytes, Letter] = field(default_factory=dict)  # of all
    counts: dict[str, int] = field(default_factory=dict)
    custodies: Custodies = field(init=False)
    over: bool = False  # nobody says anything any more
    _firsts: dict[Letter, Place] = field(default_factory=dict)  # where letters began

    def __post_init__(self) -> None:
        self.custodies = Custodies(self.places)
        for index, pattern in self.plan.disks:
            random = Random(f"disk {self.plan.seed} {index}")
            limits = Limits(
                segment_bytes=random.choice((16_384, 32_768)),
                frame_bytes=8192,
                control_frame_bytes=8192,
                selector_bytes=1024,
                journal_tail_bytes=random.choice((1, 1 << 24)),
            )
            ledger = Ledger(self.world, pattern)
            ledger.elsewhere = self.letters
            name = _name(index)
            ledger.due_in = partial(self.custodies.is_due, name)
            stream = Retained(STREAM, pattern)
            self.places[name] = Place(name, stream, limits, Disk(random), ledger)

    # -------------------------------------------------------------------------- nodes

    def broker(self, name: str, **how: Any) -> Broker | None:
        """A new node, with its disk if it has one; none if it does not start."""
        place = self.places.get(name)
        if place is None:
            return self.world.broker(name, Limits(), 10_000, **how)
        try:
            broker = self.world.broker(
                name,
                place.limits,
                10_000,
                place.found(),
                [place.stream],
                confirm_early=CONFIRM_EARLY in self.bugs,
                **how,
            )
        except DiskError as error:
            place.ledger.complain(f"{name} does not start: {error}")
            return None
        place.begin(broker)
        return broker

    def ends(self, name: str) -> None:
        """A node lives no more, or is about to be stopped: its regulars go."""
        place = self.places.get(name)
        if place is not None:
            for regular in place.regulars.values():
                regular.go()
            for box in self.custodies.roaming.values():
                box.go(name)

    def wanted(self, name: str) -> Iterable[Filter]:
        """What the journal of a node wants."""
        return self.places[name].wanted() if name in self.places else ()

    # ------------------------------------------------------------------------- guests

    def letter(self, message: Message, publisher: str, number: int, weight: int) -> Message:
        """The same message, but persistent, and to be known again wherever it is found."""
        letter = Letter(publisher, number, message.topic, weight)
        self.letters[letter.mark] = letter
        return Message(
            message.topic,
            letter.mark + message.body,
            message.attributes,
            sequence=number + 1,
            delivery_mode=DeliveryMode.PERSISTENT,
        )

    def letter_of(self, message: Any) -> Letter | None:
        """What is known of a message; nothing, if it is not persistent."""
        body = bytes(message.body)
        return self.letters.get(body[: body.find(b">") + 1]) if body[:1] == b"<" else None

    def connected(self, name: str, key: int) -> None:
        """A guest has come to a node, by this connection."""
        if name in self.places:
            self.places[name].connected(key)

    def sent(self, name: str, key: int, ordinal: int, letter: Letter) -> None:
        """A guest sends a persistent message to its node."""
        self._count("sent")
        if name in self.places:
            self._firsts[letter] = self.places[name]
            self.custodies.sent(name, letter)
            self.places[name].sent(key, ordinal, letter)

    def seen(self, letter: Letter) -> bool:
        """Somebody got a persistent message: it must be safe where it began.

        Whether it is of a transaction; of those it is only judged what mailboxes get.
        """
        if letter in self._firsts:
            self._firsts[letter].ledger.check_safe(letter, "delivered")
        return bool(letter.mates)

    def at(self, name: str) -> Iterator[bool]:
        """Once, if a node has a disk."""
        if name in self.places:
            yield True

    def confirmed(self, name: str, letter: Letter, message: native.Confirmed) -> None:
        """A guest was told that a message is safe."""
        self._count("confirmed")
        if name in self.places:
            self.places[name].ledger.confirmed(letter, message.takers, message.known)

    def refused(self, name: str, why: str) -> bool:
        """A guest was refused; whether that can be. A node with a disk was judged when it spoke."""
        self._count("refused")
        self._count(f"refused: {why}")
        return name in self.places or why == "not-supported"

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --------------------------------------------------------------------------- acts

    def box(self, index: int, number: int, which: int) -> bool:
        """A regular comes to a node, if it is not there, and reads a mailbox."""
        place = self._running(index)
        if place is None or place.broker is None:
            return False
        regular = place.regulars.setdefault(number, Regular(f"regular-{number}", place.ledger))
        if not regular.here:
            regular.come(place.broker)
        box = place.ledger.box(*BOXES[which])
        if any(reading.box is box for reading in regular.readings.values()):
            return False
        regular.attach(box, 50)
        return True

    def transact(self, index: int, topics: Sequence[str], size: int) -> bool:
        """Somebody publishes messages in a transaction, one for each of these topics."""
        place = self._running(index)
        if place is None or place.broker is None:
            return False
        if place.teller is None or not place.teller.here or place.teller.broker is not place.broker:
            place.tellers += 1
            name = f"teller-{index}-{place.tellers}"
            place.teller = Teller(name, place.broker, partial(self._decided, place, place.broker))
            place.connected(place.teller.guest.pipe.key)
            self.world.after(TELLER_NS, partial(self._tell, place, place.teller, topics, size))
        else:
            self._tell(place, place.teller, topics, size)
        return True

    def _tell(self, place: Place, teller: Teller, topics: Sequence[str], size: int) -> None:
        if not teller.here or not place.running or place.broker is not teller.broker:
            return
        first, teller.numbers = teller.numbers, teller.numbers + len(topics)
        letters = tuple(
            Letter(teller.name, first + n, topic, n % 12) for n, topic in enumerate(topics)
        )
        messages = []
        for letter in letters:
            letter.mates = letters
            body = letter.mark + b"." * size
            attributes = {"n": letter.weight}
            keep = DeliveryMode.PERSISTENT
            messages.append(Message(letter.topic, body, attributes, delivery_mode=keep))
            self.letters[letter.mark] = letter
            self.sent(place.name, teller.guest.pipe.key, -1 - letter.number, letter)
        self.custodies.transactions.append(letters)
        teller.commit(letters, messages)

    def _decided(
        self, place: Place, by: Broker, letters: Sequence[Letter], committed: bool, why: str
    ) -> None:
        """What became of a transaction."""
        self._count("committed" if committed else f"rolled back: {why}")
        for letter in letters:
            if committed:
                place.ledger.check_safe(letter, "committed")
                letter.confirmed_ns = self.world.ns
            else:
                letter.refused = True
        if not committed and by is place.broker and why not in place.refuses():
            place.ledger.complain(f"a transaction of {letters[0]} was refused: {why}")

    def settle(self, index: int, number: int, share: float) -> bool:
        """A regular is done with some of what it has."""
        place = self._running(index)
        regular = place.regulars.get(number) if place is not None else None
        if regular is None or not regular.here:
            return False
        for reading in regular.readings.values():
            if reading.held and reading.stands:
                held = list(reading.held)
                regular.settle(reading, held[: 1 + int(share * len(held))], True)
        return True

    def roam(self, which: int, index: int, stay: bool) -> bool:
        """A reader comes to a node, and has its mailbox come there, too."""
        place = self._running(index)
        if place is None or place.broker is None:
            return False
        name, pattern = ROAMING[which]
        box = self.custodies.roaming.get(name)
        if box is None:
            box = Roaming(Line(name, pattern), place.name, self.world, self.letter_of)
            self.custodies.roaming[name] = box
        return box.come(place.name, place.broker, stay)

    def roam_settle(self, which: int, share: float) -> bool:
        """It is done with some of what it has."""
        box = self.custodies.roaming.get(ROAMING[which][0])
        return box is not None and box.settle(share)

    def collect(self) -> None:
        """If all is well, readers that roam get what is left for them, somewhere."""
        for number, box in enumerate(self.custodies.roaming.values()):
            place = list(self.places.values())[number % len(self.places)]
            if self.custodies.final and place.broker is not None:
                box.collect(place.name, place.broker)

    def fail(self, index: int, what: str, soon: int) -> bool:
        """A write, a sync or the making of a file fails soon."""
        place = self._running(index)
        if place is None:
            return False
        place.disk.fail(what, place.disk.counts[what] + soon, errno.EIO)
        return True

    def fill(self, index: int) -> bool:
        """There is no room for another file."""
        place = self._running(index)
        if place is None:
            return False
        place.disk.capacity = place.disk.used
        place.short = True
        return True

    def room(self, index: int) -> bool:
        """There is room again."""
        place = self._running(index)
        if place is None or place.disk.capacity is None:
            return False
        place.disk.capacity = None
        return True

    def halt(self, index: int, what: str, soon: int, after: bool, power: bool) -> bool:
        """A write or a sync will be the last thing that a node or its machine does."""
        place = self._running(index)
        if place is None or place.broker is None:
            return False
        place.broker.on_halt = partial(self.halted, index, power)
        place.disk.halt(what, place.disk.counts[what] + soon, after)
        return True

    def _running(self, index: int) -> Place | None:
        place = self.places.get(_name(index))
        return place if place is not None and place.running else None

    # ------------------------------------------------------------------------- the end

    def make_well(self) -> None:
        """Nothing fails any more; a journal that failed stays so until its node is restarted."""
        self.custodies.final = True
        for place in self.places.values():
            place.found().mend()
            place.disk.capacity = None

    def wait(self, ms: float) -> None:
        """Let time pass: as much, and more while something follows a mailbox over many nodes."""
        self.world.advance(ms)
        for _ in range(DRAINED_ROUNDS):
            if next(self.custodies.unsettled(), None) is None:
                return
            self.world.advance(DRAINED_MS)

    def unwell(self, leaving: set[str]) -> list[int]:
        """Nodes that have to be started again, so that all that is due can come."""
        return [
            index
            for index, _ in self.plan.disks
            if _name(index) in leaving
            or not self.places[_name(index)].running
            or self.places[_name(index)].ledger.broken
        ]

    def complaints(self) -> Iterator[Complaint]:
        """What was wrong since the last call."""
        for place in self.places.values():
            found, place.ledger.complaints = place.ledger.complaints, []
            yield from (Complaint("journal", f"{place.name}: {text}") for text in found)
        for box in self.custodies.roaming.values():
            found, box.complaints = box.complaints, []
            yield from (Complaint("roaming", text) for text in found)

    def finish(self) -> None:
        """No node runs any more, and somebody looks what is left."""
        self.over = True
        for name, place in self.places.items():
            boxes = [box for box in BOXES if box[0] in place.ledger.current]
            for final in (False, True):
                place.found().mend()
                place.disk.capacity = None
                broker = self.broker(name)
                if broker is None:
                    return
                auditor = Regular("auditor", place.ledger)
                auditor.come(broker)
                replay = audit(auditor, broker, boxes, final)
                if replay.first > 1:
                    place.ledger.complain(f"the stream begins with {replay.first}")
                broker.power_off()
            judge(place.ledger)


def _name(index: int) -> str:
    return f"node-{index}"


DISK_ACTS: dict[str, Callable[..., bool]] = {
    "transact": Disks.transact,
    "box": Disks.box,
    "settle": Disks.settle,
    "roam": Disks.roam,
    "roam-settle": Disks.roam_settle,
    "fail": Disks.fail,
    "fill": Disks.fill,
    "room": Disks.room,
    "halt": Disks.halt,
}
