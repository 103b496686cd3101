"""A random story of one node and its guests, told by a seed, and the checkers that watch it.

Guests come, subscribe, publish, stop reading, go on, unsubscribe, and hang up. The checkers know
nothing of the node: they look at what was sent and what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from regraft.limits import Limits
from regraft.model.message import Message
from regraft.model.topics import matches
from regraft.simulate.guest import Guest
from regraft.simulate.world import Broker, World
from regraft.wire import native

LEVELS = ("a", "b", "c", "$x")
LIMITS = Limits(queue_messages=40, queue_bytes=8192, stall_ms=500, window_bytes_first=4096)


@dataclass(slots=True)
class Story:
    """What happened, for the checkers."""

    seed: int
    steps: int = 120
    guests: list[Guest] = field(default_factory=list)
    left: set[str] = field(default_factory=set)  # guests that hung up, or were hung up on
    published: dict[str, list[str]] = field(default_factory=dict)  # topics by publisher, in order
    calm: set[str] = field(default_factory=set)  # guests that always read, and stay
    trace_hash: str = ""
    counters: dict[str, int] = field(default_factory=dict)

    def tell(self) -> None:
        """Let it happen."""
        world = World(self.seed)
        broker = world.broker(limits=LIMITS)
        for _ in range(self.steps):
            self._act(world.random, broker)
            if world.random.random() < 0.5:
                world.advance(world.random.choice((0.05, 0.2, 1, 30)))
        for guest in self.guests:
            guest.pipe.reading = True
        world.advance(3000)
        self.left |= {guest.name for guest in self.guests if guest.pipe.closed}
        self.trace_hash = world.trace_hash
        snapshot = broker.node.snapshot()
        self.counters = {
            "deliveries": snapshot["deliveries"],
            "dropped": sum(snapshot["dropped"].values()),
            "expired": snapshot["expired"],
            "queued": snapshot["queued_bytes"],
        }

    def _act(self, random: Random, broker: Broker) -> None:
        alive = [guest for guest in self.guests if not guest.pipe.closed]
        what = random.random()
        if not alive or (what < 0.08 and len(alive) < 6):
            self._arrive(random, broker)
            return
        guest = random.choice(alive)
        if what < 0.25:
            self._subscribe(random, guest)
        elif what < 0.30 and guest.confirmed and guest.name not in self.calm:
            id = random.choice(sorted(guest.confirmed))
            if guest.asked.pop(id, None) is not None:
                guest.unsubscribe(id)
                guest.asked[-id] = ("", False)
        elif what < 0.38 and guest.name not in self.calm:
            guest.pipe.reading = not guest.pipe.reading
        elif what < 0.40 and guest.name not in self.calm:
            guest.pipe.close()
            self.left.add(guest.name)
        else:
            for _ in range(random.choice((1, 1, 3, 20))):
                self._publish(random, guest)

    def _arrive(self, random: Random, broker: Broker) -> None:
        name = f"guest-{len(self.guests)}"
        calm = random.random() < 0.5
        hello = native.Hello(
            version_min=1,
            version_max=1,
            client_id=name,
            passive=True,
            when_stalled=random.choice(list(native.StallPolicy)),
        )
        guest = Guest(name, broker, hello, capacity=1 << 20 if calm else 2048)
        self.guests.append(guest)
        if calm:
            self.calm.add(name)

    def _subscribe(self, random: Random, guest: Guest) -> None:
        levels = [random.choice((*LEVELS, "+")) for _ in range(random.randint(1, 3))]
        if random.random() < 0.3:
            levels.append("#")
        id = len(guest.asked) + len(guest.confirmed) + 1
        while id in guest.asked or -id in guest.asked or id in guest.confirmed:
            id += 1
        guest.subscribe(id, "/".join(levels), random.random() < 0.3)

    def _publish(self, random: Random, guest: Guest) -> None:
        topic = "/".join(random.choice(LEVELS) for _ in range(random.randint(1, 3)))
        mine = self.published.setdefault(guest.name, [])
        body = f"{guest.name} {len(mine)} ".encode() + b"." * random.choice((0, 10, 300, 3000))
        mine.append(topic)
        guest.publish(Message(topic, body))


def complaints(story: Story) -> Iterator[str]:
    """What the checkers find wrong; nothing, if all is well."""
    for guest in story.guests:
        yield from _order(guest)
        yield from _subscriptions(story, guest)
        if guest.name in story.calm:
            yield from _completeness(story, guest)
    yield from _accounts(story)


def _order(guest: Guest) -> Iterator[str]:
    """Per publisher in order, and never twice."""
    last: dict[bytes, int] = {}
    for sighting in guest.seen:
        publisher, number, *_ = sighting.message.body.split(b" ")
        if int(number) <= last.get(publisher, -1):
            yield f"{guest.name} saw {publisher!r} {number!r} after {last[publisher]}"
        last[publisher] = int(number)


def _subscriptions(story: Story, guest: Guest) -> Iterator[str]:
    """Nothing that was not subscribed to, and exactly the ids that match."""
    for sighting in guest.seen:
        topic = sighting.message.topic
        wanted = {
            id
            for id, (pattern, exact) in sighting.confirmed.items()
            if matches(pattern, topic, exact)
        }
        given = set(sighting.message.subscriptions)
        if not given:
            yield f"{guest.name} got {topic} for no subscription"
        if given - wanted:
            yield f"{guest.name} got {topic} for {sorted(given - wanted)}, not confirmed"
        late = {id for id in wanted - given if id not in _being_ended(guest)}
        if late and guest.name in story.calm:
            yield f"{guest.name} got {topic} without {sorted(late)}"


def _being_ended(guest: Guest) -> set[int]:
    return {-id for id in guest.asked if id < 0}


def _completeness(story: Story, guest: Guest) -> Iterator[str]:
    """A calm guest misses nothing between two messages of one publisher that it saw in order.

    Its subscriptions only grow: once it saw a message by a subscription, every later message of
    the same publisher that matches the subscription must have come, too.
    """
    first: dict[tuple[str, int], int] = {}
    got: dict[str, set[int]] = {}
    for sighting in guest.seen:
        publisher, text, *_ = sighting.message.body.decode().split(" ")
        got.setdefault(publisher, set()).add(int(text))
        for id in sighting.message.subscriptions:
            first.setdefault((publisher, id), int(text))
    for (publisher, id), number in first.items():
        pattern, exact = guest.confirmed[id]
        sender = next(other for other in story.guests if other.name == publisher)
        until = len(story.published[publisher])
        if publisher in story.left or sender.waiting:
            until = max(got[publisher]) + 1  # the rest may never have left
        for later in range(number, until):
            topic = story.published[publisher][later]
            if matches(pattern, topic, exact) and later not in got[publisher]:
                yield f"{guest.name} missed {publisher} {later} ({topic}) by {pattern!r}"


def _accounts(story: Story) -> Iterator[str]:
    """Every delivery was written to its connection or is counted; what was written was seen."""
    written = sum(guest.pipe.messages for guest in story.guests)
    accounted = written + story.counters["dropped"] + story.counters["expired"]
    deliveries = story.counters["deliveries"]
    if accounted != deliveries:
        yield f"{deliveries} deliveries, but {accounted} accounted for"
    for guest in story.guests:
        if guest.name not in story.left and len(guest.seen) != guest.pipe.messages:
            yield f"{guest.name} saw {len(guest.seen)} of {guest.pipe.messages} messages"
    if story.counters["queued"]:
        yield f"{story.counters['queued']} bytes still queued at the end"
    for guest in story.guests:
        if guest.waiting and not guest.pipe.closed:
            yield f"{guest.name} still waits for credit with {guest.waiting} messages"
