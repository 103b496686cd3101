"""What simulated clients were promised, and what they got.

The ledger knows nothing of the node. It is told what clients send and receive, and it can look at
what of it the disk would still hold if the power failed right now. What contradicts a promise is a
complaint; what can only be judged at the end is judged by `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from regraft.model.topics import matches
from regraft.node.event import DiskFailed, Event
from regraft.simulate.disk import FULL, Disk
from regraft.simulate.world import World
from regraft.wire import native

SLACK_NS = 20_000_000  # for what is on its way when a connection ends


@dataclass(slots=True, eq=False)
class Letter:
    """A persistent message, as its publisher knows it."""

    publisher: str
    number: int  # the publisher's own sequence
    topic: str
    weight: int  # what selectors look at
    expires_us: int = 0
    sent_ns: int = -1  # when it was first given to a connection
    confirmed_ns: int = -1
    refused: bool = False  # once; if its publisher did not hear of that, it was sent again
    safe: bool = False  # it was found on the disk
    mates: tuple[Letter, ...] = ()  # of a transaction: all its letters

    @property
    def mark(self) -> bytes:
        """What its body begins with, and nothing else contains."""
        return f"<{self.publisher}:{self.number}>".encode()

    def __str__(self) -> str:
        return f"{self.publisher}:{self.number} ({self.topic})"


@dataclass(slots=True, eq=False)
class Line:
    """A numbered sequence of letters: what a mailbox or a stream holds, as far as it was seen."""

    name: str
    pattern: str
    least: int = 0  # the weight from which on letters are wanted
    stands_ns: int = -1  # when somebody was first told that it stands
    letters: dict[int, Letter] = field(default_factory=dict)
    places: dict[Letter, int] = field(default_factory=dict)

    def wants(self, letter: Letter) -> bool:
        """Whether it should take a letter."""
        return letter.weight >= self.least and matches(self.pattern, letter.topic)

    def put(self, sequence: int, letter: Letter) -> Iterator[str]:
        """It was seen there; what is wrong with that."""
        known = self.letters.setdefault(sequence, letter)
        if known is not letter:
            yield f"{self.name} had {known} as {sequence}, and now {letter}"
        place = self.places.setdefault(letter, sequence)
        if place != sequence:
            yield f"{self.name} has {letter} twice: as {place} and as {sequence}"
        if not self.wants(letter):
            yield f"{self.name} has {letter}, which it does not want"


@dataclass(slots=True, eq=False)
class Box(Line):
    """A mailbox, from its making to its removal."""

    leaving: bool = False  # its removal was asked for
    doubtful: bool = False  # it may be the one before it, whose removal was not confirmed
    seen: set[int] = field(default_factory=set)  # by a client
    settling: set[int] = field(default_factory=set)  # a client said so,
    settled: set[int] = field(default_factory=set)  # and the node that it is safe

    def owed(self) -> set[int]:
        """What was seen, must come again, and does not expire."""
        return {one for one in self.seen - self.settling if not self.letters[one].expires_us}


@dataclass(slots=True, eq=False)
class Live:
    """A subscription that gets what is published while it lasts."""

    owner: str
    pattern: str
    calm: bool  # its owner always reads
    stands_ns: int = -1
    ended_ns: int = -1
    seen: set[Letter] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)  # number, by publisher


class Ledger:
    """All facts of a story."""

    def __init__(self, world: World, stream: str) -> None:
        self.world = world
        self.complaints: list[str] = []
        self.letters: dict[bytes, Letter] = {}  # by mark
        self.elsewhere: Mapping[bytes, Letter] = {}  # those that other nodes have promised to keep
        self.stream = Line("the stream", stream, stands_ns=0)
        self.stream_first = 1  # the oldest sequence that the last look found
        self.dropping = False  # the stream keeps only the newest for sure
        self.boxes: list[Box] = []
        self.current: dict[str, Box] = {}  # the newest of each name
        self.lives: list[Live] = []
        self.due_in: Callable[[Line, Letter], bool] = lambda line, letter: False
        self._whole: set[tuple[Line, Letter]] = set()  # of transactions, the first letter
        self.disk: Disk | None = None  # of the node at work
        self.broken = False  # that disk failed
        self.counts = dict.fromkeys(
            ("confirmed", "known", "refused", "redelivered", "settled", "replayed", "ended"), 0
        )

    def complain(self, text: str) -> None:
        """Something is wrong."""
        if len(self.complaints) < 100:
            self.complaints.append(f"{self.world.ns / 1e6:.3f} ms: {text}")

    # ------------------------------------------------------------------------ letters

    def letter_of(self, body: bytes) -> Letter | None:
        """The letter with this body; None for messages that are not persistent."""
        if body[:1] != b"<":
            return None
        mark = body[: body.find(b">") + 1]
        return self.letters.get(mark) or self.elsewhere.get(mark)

    def must_be_kept(self, letter: Letter) -> bool:
        """Whether somebody was promised that it is kept."""
        return not letter.expires_us and (
            self.stream.wants(letter) or any(True for _ in self.takers(letter))
        )

    def takers(self, letter: Letter) -> Iterator[Box]:
        """The mailboxes that must take it: they stood when it was sent."""
        for box in self.current.values():
            if 0 <= box.stands_ns <= letter.sent_ns and not box.leaving and box.wants(letter):
                yield box

    def check_safe(self, letter: Letter, what: str) -> None:
        """Would it be there after a power cut right now?"""
        if letter.safe or not self.must_be_kept(letter):
            return
        assert self.disk is not None
        letter.safe = self.disk.is_durable(letter.mark)
        if not letter.safe:
            self.complain(f"{what} {letter}, which is not safe yet")

    def reported(self, event: Event) -> str:
        """What the disk told the node, in a word; nothing if all is well."""
        if type(event) is not DiskFailed or event.what not in ("write", "sync", "create"):
            return ""
        if event.errno in FULL:
            return "disk full"
        self.broken = True
        return "failure"

    def answered(self, answer: native.Confirmed | native.Error, sent: dict[int, Letter]) -> None:
        """A message is taken or refused, now; its publisher may never hear of it.

        `sent` are the letters of this connection, by ordinal.
        """
        if isinstance(answer, native.Error):
            for ordinal in range(answer.ordinal, answer.ordinal + answer.count):
                if ordinal in sent:
                    sent[ordinal].refused = True
                    if not self.broken and sent[ordinal].safe:
                        self.complain(f"refused {sent[ordinal]}, which it has")
            return
        if self.broken and answer.takers:
            self.complain("confirmed something after the disk had failed")
        if answer.known and self.dropping:
            return  # it was there, and may have been dropped meanwhile
        for ordinal in range(answer.ordinal - answer.count + 1, answer.ordinal + 1):
            if ordinal in sent:
                self.check_safe(sent[ordinal], "confirmed")

    def confirmed(self, letter: Letter, takers: int, known: bool) -> None:
        """A publisher was told that it is safe."""
        if letter.confirmed_ns < 0:
            letter.confirmed_ns = self.world.ns
        self.counts["known" if known else "confirmed"] += 1
        least = sum(1 for _ in self.takers(letter)) + self.stream.wants(letter)
        if not known and not letter.expires_us and takers < least:
            self.complain(f"{letter} has {takers} takers, but there are {least} at least")

    # ----------------------------------------------------------------------- mailboxes

    def box(self, name: str, pattern: str, least: int) -> Box:
        """The mailbox of this name; a new one if there is none, or if it is being removed."""
        box = self.current.get(name)
        if box is None or box.leaving:
            doubtful = box is not None and box.leaving
            box = Box(name, pattern, least, doubtful=doubtful)
            self.boxes.append(box)
            self.current[name] = box
        return box

    def box_gone(self, box: Box) -> None:
        """Its removal was confirmed."""
        if self.current.get(box.name) is box:
            del self.current[box.name]

    def box_stands(self, box: Box, next_sequence: int) -> None:
        """A client was told that it reads a mailbox, from there on."""
        if box.stands_ns < 0:
            box.stands_ns = self.world.ns
            expiring = any(letter.expires_us for letter in self.letters.values())
            if next_sequence != 1 and not box.doubtful and not expiring:
                self.complain(f"{box.name} is new and begins with {next_sequence}")
        for sequence in box.owed():
            if sequence < next_sequence:
                self.complain(f"{box.name} passes over {sequence}, which was not settled")

    def delivered(self, box: Box, sequence: int, letter: Letter) -> None:
        """A client got a message of a mailbox."""
        for complaint in box.put(sequence, letter):
            self.complain(complaint)
        if letter.mates and (box, letter.mates[0]) not in self._whole:
            self._whole.add((box, letter.mates[0]))
            self.check_whole(box, letter)
        self.counts["redelivered"] += sequence in box.seen
        box.seen.add(sequence)

    def check_whole(self, line: Line, letter: Letter) -> None:
        """Somebody sees the first of a transaction: what else of it is due must be there, too."""
        assert self.disk is not None
        for mate in self.mates_in(line, letter):
            if not self.disk.is_durable(mate.mark):
                self.complain(f"{line.name} shows {letter}, and {mate} is not there yet")

    def mates_in(self, line: Line, letter: Letter) -> list[Letter]:
        """The letters of a transaction that a line gets all together; none, if that is unsure."""
        wanted = [mate for mate in letter.mates if line.wants(mate)]
        return wanted if all(self.due_in(line, mate) for mate in wanted) else []

    # ---------------------------------------------------------------------------- live

    def live(self, live: Live, letter: Letter) -> None:
        """A live subscriber got a persistent message."""
        if live.last.get(letter.publisher, 0) >= letter.number and not letter.refused:
            self.complain(f"{live.owner} saw {letter} after {live.last[letter.publisher]}")
        live.last[letter.publisher] = letter.number
        live.seen.add(letter)
        if not matches(live.pattern, letter.topic):
            self.complain(f"{live.owner} got {letter} by {live.pattern!r}")

    def replayed(self, sequence: int, letter: Letter) -> None:
        """Somebody got a message of the stream."""
        self.counts["replayed"] += 1
        for complaint in self.stream.put(sequence, letter):
            self.complain(complaint)


# ------------------------------------------------------------------------------- the end


def judge(ledger: Ledger) -> None:
    """Everything was delivered to whoever is left: was that all?"""
    expiring = sum(1 for letter in ledger.letters.values() if letter.expires_us)
    for box in ledger.current.values():
        if box.stands_ns >= 0 and not box.leaving:
            _dense(ledger, box, 1, expiring)
            _ordered(ledger, box)
            _complete(ledger, box)
    if not ledger.dropping:
        _dense(ledger, ledger.stream, ledger.stream_first, expiring)
    _ordered(ledger, ledger.stream)
    _complete(ledger, ledger.stream)
    for live in ledger.lives:
        _seen(ledger, live)


def _dense(ledger: Ledger, line: Line, first: int, expiring: int) -> None:
    """Every sequence was some letter's, but for what expired unseen."""
    if not line.letters or (isinstance(line, Box) and line.doubtful):
        return
    missing = [n for n in range(first, max(line.letters)) if n not in line.letters]
    if len(missing) > expiring:
        ledger.complain(f"{line.name} has nothing at {missing[:5]}, of {len(missing)} in all")


def _ordered(ledger: Ledger, line: Line) -> None:
    """What comes from one publisher is in its order."""
    last: dict[str, Letter] = {}
    for _, letter in sorted(line.letters.items()):
        before = last.get(letter.publisher)
        if letter.refused or letter.sent_ns < line.stands_ns:
            continue  # it may have been sent again after what came behind it had been taken
        if before is not None and before.number > letter.number:
            ledger.complain(f"{line.name} has {letter} behind {before}")
        last[letter.publisher] = letter


def _complete(ledger: Ledger, line: Line) -> None:
    """What was confirmed, and was sent when the line stood, is in it."""
    oldest = line.letters.get(ledger.stream_first) if line is ledger.stream else None
    for letter in ledger.letters.values():
        if letter.confirmed_ns < 0 or letter.expires_us or letter in line.places:
            continue
        if line.wants(letter) and 0 <= line.stands_ns <= letter.sent_ns:
            dropped = ledger.stream_first > 1 and line is ledger.stream
            if not dropped or (oldest is not None and letter.sent_ns > oldest.confirmed_ns >= 0):
                ledger.complain(f"{line.name} lost {letter}, which was confirmed")


def _seen(ledger: Ledger, live: Live) -> None:
    """Who was there, and read, saw what was confirmed meanwhile."""
    if not live.calm or live.stands_ns < 0:
        return
    end_ns = (live.ended_ns if live.ended_ns >= 0 else ledger.world.ns) - SLACK_NS
    for letter in ledger.letters.values():
        if (
            live.stands_ns <= letter.sent_ns
            and 0 <= letter.confirmed_ns <= end_ns
            and not letter.expires_us
            and matches(live.pattern, letter.topic)
            and letter not in live.seen
        ):
            ledger.complain(f"{live.owner} did not see {letter} by {live.pattern!r}")
