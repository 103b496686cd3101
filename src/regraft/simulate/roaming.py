"""Mailboxes that move from node to node with their reader, and whether it gets what is its own.

Each is made at one node, and asked for at others afterwards. This checker knows nothing of moves
but what the reader is told: wherever it is, it must get each letter that is due, none again that it
has settled, and none as new that it has seen; in the order of each publisher, and of a transaction
nothing before all that is left of it is on the disk of that node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from regraft.kernels.inbox import Inbox, ReceivedMessage
from regraft.simulate.checkers import Complaint
from regraft.simulate.disk import Disk
from regraft.simulate.ledger import Letter, Line
from regraft.simulate.world import Broker, Pipe, World
from regraft.wire import native

EXPECTED = {
    *("mailbox-moved", "mailbox-in-use", "unknown-mailbox", "timed-out", "unknown-subscription"),
    *("journal-failed", "disk-full", "shutting-down", "taken-over", "limit-exceeded"),
}
SUBSCRIPTION = 1
COLLECT_MS, COLLECT_ROUNDS = 200, 100


@dataclass(slots=True, eq=False)
class Stay:
    """A connection of a reader to a node."""

    node: str
    disk: Disk
    pipe: Pipe
    inbox: Inbox = field(default_factory=lambda: Inbox(1 << 26, native.read_transfer))
    stands: bool = False
    held: dict[int, Letter] = field(default_factory=dict)  # by sequence
    tokens: dict[int, list[Letter]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Roaming:
    """One mailbox, wherever it is, and whoever reads it."""

    line: Line  # its name, and what it wants
    first: str  # the node where it is made
    world: World
    letter_of: Callable[[Any], Letter | None]
    complaints: list[str] = field(default_factory=list)
    made: bool = False
    moves: int = 0  # that were asked for,
    told: int = 0  # and of which the reader heard where it is
    due: set[Letter] = field(default_factory=set)
    seen: set[Letter] = field(default_factory=set)
    settling: set[Letter] = field(default_factory=set)
    settled: set[Letter] = field(default_factory=set)
    stays: list[Stay] = field(default_factory=list)
    _last: dict[str, Letter] = field(default_factory=dict)  # that came as new, by publisher
    _whole: set[tuple[str, Letter]] = field(default_factory=set)
    _tokens: int = 0

    @property
    def name(self) -> str:
        return self.line.name

    def complain(self, text: str) -> None:
        """Something is wrong."""
        if len(self.complaints) < 20:
            self.complaints.append(f"{self.world.ns / 1e6:.3f} ms: {self.name}: {text}")

    def sent(self, letter: Letter) -> None:
        """Somebody publishes where it is known that there is such a mailbox."""
        if self.line.wants(letter):
            self.due.add(letter)

    # ----------------------------------------------------------------------- the reader

    def come(self, node: str, broker: Broker, stay: bool) -> bool:
        """Read it at a node; it may have to come there."""
        if not self.made and node != self.first:
            return False
        if not stay:
            self.go()
        assert broker.disk is not None
        one = Stay(node, broker.disk, broker.connect(1 << 20))
        if one.pipe.closed:
            return False
        self.stays.append(one)
        one.pipe.on_data = partial(self._received, one)
        one.pipe.on_close = lambda reason: self.left(one)
        client = f"rover-{self.name}-{self.world.ns}"
        hello = native.Hello(version_min=1, version_max=1, client_id=client, passive=True)
        how: dict[str, Any] = {"existing": self.made, "move": self.made}
        pattern = "" if self.made else self.line.pattern
        wanted = native.Subscribe(SUBSCRIPTION, pattern, durable=self.name, **how)
        one.pipe.send(native.PREFACE + native.encode(hello) + native.encode(wanted))
        self.moves += self.made
        return True

    def left(self, one: Stay) -> None:
        """A connection has ended."""
        if one in self.stays:
            self.stays.remove(one)

    def go(self, node: str = "") -> None:
        """Hang up, everywhere or at one node."""
        for one in list(self.stays):
            if node in ("", one.node):
                self.left(one)
                one.pipe.close()

    def settle(self, share: float) -> bool:
        """Be done with some of what is held."""
        settled = False
        for one in self.stays:
            some = list(one.held) if share > 0.5 else list(one.held)[::2]  # or there are gaps
            sequences = some[: 1 + int(share * len(some))]
            if not sequences:
                continue
            self._tokens += 1
            letters = [one.held.pop(sequence) for sequence in sequences]
            self.settling.update(letters)
            one.tokens[self._tokens] = letters
            ranges = tuple(number for each in sequences for number in (each, each))
            settle = native.Settle(SUBSCRIPTION, ranges, self._tokens)
            one.pipe.send(native.encode(settle))
            settled = True
        return settled

    def _received(self, one: Stay, data: bytes) -> None:
        if one not in self.stays:
            return
        for key, content, _ in one.inbox.feed(data):
            if isinstance(key, tuple):
                for message in content:
                    self._message(one, message)
            else:
                self._control(one, native.decode(key, content))

    def _control(self, one: Stay, message: Any) -> None:
        if isinstance(message, native.Subscribed):
            self.made = one.stands = True
        elif isinstance(message, native.Settled):
            self.settled.update(one.tokens.pop(message.token, ()))
        elif isinstance(message, native.Error):
            self.told += message.name == "mailbox-moved"
            if message.name not in EXPECTED:
                self.complain(f"its reader was told: {message.name}: {message.text}")
            elif message.subscription == SUBSCRIPTION and not message.settlement:
                one.stands = False
                one.held.clear()

    def _message(self, one: Stay, message: ReceivedMessage) -> None:
        letter = self.letter_of(message)
        if letter is None or not message.sequence:
            return  # not persistent: it is for whoever is there
        if letter in self.settled:
            self.complain(f"{letter} comes again at {one.node}, and was settled")
        if letter in self.seen and not message.attempts:
            self.complain(f"{letter} comes again at {one.node}, as if it were new")
        if not self.line.wants(letter):
            self.complain(f"{letter} comes, and is not wanted")
        if not message.attempts:
            self._in_order(letter)
        if letter.mates and (one.node, letter.mates[0]) not in self._whole:
            self._whole.add((one.node, letter.mates[0]))
            self._is_whole(one, letter)
        self.seen.add(letter)
        one.held[message.sequence] = letter

    def _in_order(self, letter: Letter) -> None:
        before = self._last.get(letter.publisher)
        if letter.refused or letter not in self.due:
            return  # it may have been sent again
        if before is not None and before.number > letter.number:
            self.complain(f"{letter} comes behind {before}")
        self._last[letter.publisher] = letter

    def _is_whole(self, one: Stay, letter: Letter) -> None:
        """What is left of a transaction is there, when some of it is seen."""
        wanted = [mate for mate in letter.mates if self.line.wants(mate)]
        if not all(mate in self.due for mate in wanted):
            return
        for mate in wanted:
            if mate not in self.seen and not one.disk.is_durable(mate.mark):
                self.complain(f"{one.node} shows {letter}, and {mate} is not there yet")

    # -------------------------------------------------------------------------- the end

    def collect(self, node: str, broker: Broker) -> None:
        """All is well: its reader has it come to a node, and takes all that is left."""
        if not self.made:
            return
        self.come(node, broker, False)
        calm = 0
        for _ in range(COLLECT_ROUNDS):
            self.world.advance(COLLECT_MS)
            came = any(one.stands for one in self.stays)  # it may have to follow it over many nodes
            calm = 0 if self.settle(1.0) or not came else calm + 1
            if calm > 10:
                break
        if not any(one.stands for one in self.stays):
            self.complain(f"it does not come to {node}, though all is well")
        self.go()

    def judge(self) -> Iterator[Complaint]:
        """It is over."""
        for letter in self.due if self.made else ():
            if letter.confirmed_ns >= 0 and letter not in self.seen:
                text = f"{letter} was confirmed, and never came to {self.name}, wherever that was"
                yield Complaint("custody", text)
        for letter in self.seen - self.settling:
            text = f"{letter} was not settled, and never came again to {self.name}"
            yield Complaint("custody", text)
