"""A random story of a node with a journal, its regulars, and everything that can happen to it.

Regulars publish and retry, read mailboxes and settle some of it, leave and come back. Meanwhile
the process dies, the power fails, syncs fail, the disk is full for a while. At the end all is
healed, everybody gets what is theirs, and the ledger is judged.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from regraft.errors import DiskError
from regraft.journal.retention import Retention
from regraft.kernels.inbox import ReceivedMessage
from regraft.limits import Limits
from regraft.node.event import Event
from regraft.node.storage import Retained
from regraft.simulate.disk import Disk
from regraft.simulate.ledger import Box, Ledger, Letter, judge
from regraft.simulate.regular import Reading, Regular
from regraft.simulate.witness import Witness, audit
from regraft.simulate.world import Broker, World

STREAM = Retained("all", "kept/#")
TOPICS = ("kept/a", "kept/b", "kept/a/x", "loose/a", "loose/b")
PATTERNS = ("kept/#", "kept/a", "kept/+", "loose/#", "#", "+/a")
BOXES = (("north", "kept/#", 0), ("east", "+/a", 0), ("south", "#", 5), ("west", "loose/#", 0))
PATIENCE_MS = 60_000  # at the end, for everything that was promised


def random_limits(random: Random) -> Limits:
    """Limits that are met soon."""
    segment_bytes = random.choice((16_384, 32_768, 131_072))
    return Limits(
        segment_bytes=segment_bytes,
        journal_bytes=random.choice((8 * segment_bytes, 1 << 36)),
        frame_bytes=4096,
        control_frame_bytes=4096,
        selector_bytes=1024,
        window_bytes_first=random.choice((4096, 65_536)),
        write_bytes=random.choice((1500, 262_144)),
        journal_tail_bytes=random.choice((1, 1 << 24)),
        journal_pending_bytes=random.choice((3000, 1 << 23)),
        mailbox_messages=random.choice((40, 10_000_000, 10_000_000)),
        in_flight=random.choice((5, 10_000)),
        stall_ms=500,
    )


@dataclass(slots=True)
class DurableStory:
    """What happens, by the seed."""

    seed: int
    steps: int = 160
    confirm_early: bool = False  # a bug of the node
    rests: float = 0.02  # how often nothing happens for a while
    limits: Limits = field(init=False)
    world: World = field(init=False)
    ledger: Ledger = field(init=False)
    disk: Disk = field(init=False)
    broker: Broker = field(init=False)
    retention: dict[str, Retention] = field(default_factory=dict)
    regulars: list[Regular] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)  # what happened, how often
    over: bool = False  # the node cannot be started any more
    _expiring: float = 0.0
    _witness: Witness = field(default_factory=Witness)
    _sent: dict[int, dict[int, Letter]] = field(default_factory=dict)  # by connection and ordinal
    _readings: dict[int, dict[int, Reading]] = field(default_factory=dict)  # the same, and id

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        random = self.world.random
        self.ledger = Ledger(self.world, STREAM.pattern)
        self.disk = self.world.disk()
        self.limits = random_limits(random)
        self._expiring = random.choice((0.0, 0.0, 0.1))
        if random.random() < 0.3:
            self.retention["all"] = Retention(size=20_000)
            self.ledger.dropping = True
        for number in range(random.randint(2, 5)):
            calm = random.random() < 0.6
            self.regulars.append(
                Regular(
                    f"r{number}",
                    self.ledger,
                    1 << 20 if calm else 2048,
                    0 if calm else random.choice((0, 3, 20)),
                )
            )

    @property
    def complaints(self) -> list[str]:
        """What the checkers found wrong."""
        return self.ledger.complaints

    @property
    def trace_hash(self) -> str:
        """The story in one word."""
        return self.world.trace_hash

    def tell(self) -> None:
        """Let it happen, to the end."""
        self.begin()
        for _ in range(self.steps):
            self._act(self.world.random)
            if self.over:
                return
            self._wait(self.world.random)
        self.finish()

    def _wait(self, random: Random) -> None:
        if random.random() < 0.7:
            self.world.advance(random.choice((0.05, 0.3, 1, 3, 10, 40)))
        if random.random() < self.rests:
            self.world.advance(1500)

    # ----------------------------------------------------------------------------- the node

    def begin(self) -> None:
        """Start a node on the disk as it is."""
        self._witness = Witness()
        self._sent.clear()
        self._readings.clear()
        self.ledger.disk, self.ledger.broken = self.disk, False
        try:
            self.broker = self.world.broker(
                limits=self.limits,
                disk=self.disk,
                streams=[STREAM],
                retention=self.retention,
                confirm_early=self.confirm_early,
            )
        except DiskError as error:
            self.ledger.complain(f"the node does not start: {error}")
            self.over = True
            return
        self.broker.on_write = self._written
        self.broker.on_disk = self._reported

    def end(self, power: bool) -> None:
        """The process dies, or the power fails."""
        if not self.broker.stopped:
            self._count("power cut" if power else "process death")
            if power:
                self.broker.power_off()
            else:
                self.broker.kill()

    def restart(self) -> None:
        """Start it again, if it has ended."""
        if self.broker.stopped:
            assert self.broker.disk is not None
            self.disk = self.broker.disk
            self.begin()

    def come(self, regular: Regular) -> None:
        """A regular connects."""
        regular.come(self.broker)
        if regular.pipe is not None:
            self._sent[regular.pipe.key] = regular.ordinals
            self._readings[regular.pipe.key] = regular.readings

    def _count(self, what: str) -> None:
        self.events[what] = self.events.get(what, 0) + 1

    def _written(self, key: int, data: bytes) -> None:
        """The node writes: whatever it says must be true now."""
        for said in self._witness.read(key, data):
            if isinstance(said, ReceivedMessage):
                self._delivers(said, self._readings.get(key, {}))
            else:
                self.ledger.answered(said, self._sent.get(key, {}))

    def _delivers(self, message: ReceivedMessage, readings: dict[int, Reading]) -> None:
        letter = self.ledger.letter_of(message.body)
        if letter is None:
            return
        self.ledger.check_safe(letter, "delivered")
        sequence = message.sequence
        if not sequence:
            return
        if 0 < letter.expires_us <= self.world.now().wall_us:
            self.ledger.complain(f"delivered {letter}, which has expired")
        reading = readings.get(message.subscriptions[0])
        box = reading.box if reading is not None else None
        if box is None:
            return
        if sequence in box.settled:
            self.ledger.complain(f"{box.name} delivers {sequence} again, and it is settled")
        if sequence in box.seen and not message.attempts:
            self.ledger.complain(f"{box.name} delivers {sequence} again, and does not say so")

    def _reported(self, event: Event) -> None:
        if what := self.ledger.reported(event):
            self._count(what)

    # ------------------------------------------------------------------------- what happens

    def _act(self, random: Random) -> None:
        if self.broker.stopped:
            if random.random() < 0.4:
                self.restart()
                return
        elif self.ledger.broken and random.random() < 0.1:
            self.end(random.random() < 0.5)
            return
        if random.random() < 0.06:
            self._fault(random)
            return
        regular = random.choice(self.regulars)
        if not regular.here:
            if not self.broker.stopped and random.random() < 0.6:
                self.come(regular)
            elif random.random() < 0.3:
                self._publish(random, regular)  # it is sent when there is a connection
            return
        what = random.random()
        for limit, action in ACTIONS:
            if what < limit:
                action(self, random, regular)
                return

    def _publish(self, random: Random, regular: Regular) -> None:
        for _ in range(random.choice((1, 1, 2, 5, 20))):
            topic = random.choice(TOPICS)
            if random.random() < 0.1:
                regular.mention(topic)
                continue
            expires_us = 0
            if random.random() < self._expiring:
                expires_us = self.world.now().wall_us + random.choice((300, 3000, 300_000))
            padding = random.choice((0, 10, 200, 2000))
            regular.publish(topic, random.randint(0, 9), padding, expires_us)

    def _attach(self, random: Random, regular: Regular) -> None:
        box = self.ledger.box(*random.choice(BOXES))
        if not any(reading.box is box for reading in regular.readings.values()):
            regular.attach(box, random.choice((0, 1, 4, 50)))

    def _settle(self, random: Random, regular: Regular) -> None:
        readings = [one for one in regular.readings.values() if one.box and one.held]
        if not readings:
            return
        reading = random.choice(readings)
        if reading.ending:
            return
        held = list(reading.held)
        kind = random.random()
        if kind < 0.5:  # all up to one of them
            sequences = held[: random.randint(1, len(held))]
        elif kind < 0.7:
            sequences = held
        else:
            sequences = random.sample(held, random.randint(1, len(held)))
        regular.settle(reading, sequences, random.random() < 0.6)

    def _listen(self, random: Random, regular: Regular) -> None:
        if sum(reading.live is not None for reading in regular.readings.values()) < 2:
            regular.listen(random.choice(PATTERNS))

    def _replay(self, random: Random, regular: Regular) -> None:
        replays = [one for one in regular.readings.values() if not one.box and not one.live]
        if len(replays) < 2:
            least = random.choice((0, 0, 6))
            if random.random() < 0.3:
                regular.replay(time_us=self.world.now().wall_us - 100_000, least=least)
            else:
                highest = max(self.ledger.stream.letters, default=1)
                regular.replay(sequence=random.randint(1, highest + 3), least=least)

    def _unsubscribe(self, random: Random, regular: Regular) -> None:
        readings = [one for one in regular.readings.values() if not one.ending]
        if readings:
            reading = random.choice(readings)
            regular.end(reading, random.random() < 0.2 and not self._awaited(reading.box))

    def _awaited(self, box: Box | None) -> bool:
        """Whether somebody else wants to read it, and does not know yet that this is so."""
        return any(
            reading.box is box and not reading.stands
            for regular in self.regulars
            for reading in regular.readings.values()
        )

    def _pause(self, random: Random, regular: Regular) -> None:
        if not regular.calm and regular.pipe is not None:
            regular.pipe.reading = not regular.pipe.reading

    def _leave(self, random: Random, regular: Regular) -> None:
        how = random.random()
        if how < 0.4:
            regular.go()
        elif how < 0.7:
            regular.take_leave()
        elif not self.broker.stopped:
            self.come(regular)  # while the node still has the old connection

    # ------------------------------------------------------------------------------- faults

    def _fault(self, random: Random) -> None:
        disk = self.disk
        if self.broker.stopped:
            return
        soon = random.randint(1, 4)
        kind = random.random()
        if kind < 0.2:
            self.end(power=False)
        elif kind < 0.4:
            self.end(power=True)
        elif kind < 0.6:
            what = random.choice(("write", "sync"))
            power = random.random() < 0.5
            self.broker.on_halt = lambda: self.end(power)
            disk.halt(what, disk.counts[what] + soon, random.random() < 0.5)
        elif kind < 0.72:
            what = random.choice(("write", "sync", "create"))
            disk.fail(what, disk.counts[what] + soon, errno.EIO)
        elif kind < 0.82:
            self._fill_disk(random)
        elif kind < 0.9:
            disk.fail("write", disk.counts["write"] + soon, errno.ENOSPC)
        elif kind < 0.94:
            disk.fail("read", disk.counts["read"] + soon, errno.EIO)
        else:
            self._count("stop")
            self.broker.stop()

    def _fill_disk(self, random: Random) -> None:
        disk = self.disk
        disk.capacity = disk.used

        def clear() -> None:
            self.disk.capacity = None

        self.world.after(random.choice((5, 300, 3000)) * 1_000_000, clear)

    # ------------------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Heal everything, let everybody have what is theirs, and judge."""
        self._heal()
        if self.over:
            return
        waited = 0
        while waited < PATIENCE_MS and any(map(self._waits, self.regulars)):
            self.world.advance(50)
            waited += 50
            for regular in self.regulars:
                if not regular.here:
                    self.come(regular)
        for regular in self.regulars:
            if problem := self._waits(regular):
                self.ledger.complain(f"{regular.name} waits for {problem} in vain")
            regular.go()
        self.end(power=True)
        self._audit(final=False)
        self._audit(final=True)
        judge(self.ledger)

    def _heal(self) -> None:
        if self.ledger.broken or not self.broker.accepting:
            self.end(power=True)
        self.restart()
        self.disk.mend()
        self.disk.capacity = None
        self.world.advance(20)
        for regular in self.regulars:
            if regular.pipe is not None:
                regular.pipe.reading = True
            if not regular.here and not self.over:
                self.come(regular)

    def _waits(self, regular: Regular) -> str:
        """What a regular still waits for."""
        if regular.unconfirmed:
            return f"{len(regular.unconfirmed)} confirmations"
        for reading in regular.readings.values():
            if reading.tokens:
                return "a settlement"
            if not reading.stands or reading.ending:
                return "a subscription"
        return ""

    def _audit(self, final: bool) -> None:
        """See what is there after all."""
        self.restart()
        if self.over:
            return
        auditor = Regular("auditor", self.ledger)
        self.come(auditor)
        self._check_replay(audit(auditor, self.broker, BOXES, final))
        self.end(power=final)

    def _check_replay(self, replay: Reading) -> None:
        if replay.first > 1 and not self.retention and not self._expiring:
            self.ledger.complain(f"the stream begins with {replay.first}")
        self.ledger.stream_first = max(1, replay.first)


ACTIONS: tuple[tuple[float, Callable[[DurableStory, Random, Regular], None]], ...] = (
    (0.40, DurableStory._publish),
    (0.55, DurableStory._attach),
    (0.75, DurableStory._settle),
    (0.80, DurableStory._listen),
    (0.84, DurableStory._replay),
    (0.89, DurableStory._unsubscribe),
    (0.94, DurableStory._pause),
    (1.01, DurableStory._leave),
)
