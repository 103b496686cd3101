"""The network between the brokers of a world: wires, datagrams, and what goes wrong with them.

Rules:

- A broker is reached at its address. How long a packet takes depends on where both ends are, which
  the seed decides, and on chance.
- A *wire* is a connection between two brokers, and an *end* is what each of them has of it. Bytes
  arrive in order, cut anywhere, and never more than `capacity` are on their way; what is more stays
  with the sender's driver, as with a socket.
- Packets vanish where the network is partitioned or silent. Bytes of a wire are then sent again
  until they arrive; so they are late, or, if it took longer than `break_after_ms`, the wire breaks.
  Datagrams are gone.
- Whoever ends a wire, or crashes, tells the other end behind all that was written before. Whoever
  loses power tells nobody: the other end learns it when the machine is back and does not know it.
- A machine takes connections for a broker that is paused; nobody answers on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from math import hypot
from random import Random

from regraft.node.effect import Connect, SendDatagram
from regraft.node.event import (
    Closed,
    Connected,
    ConnectFailed,
    Datagram,
    Event,
    Opened,
    Received,
    Unsent,
)
from regraft.simulate.world import Broker, World

MS = 1_000_000
REST_NS = 50_000  # until the rest of what was cut arrives
LINGER_NS = 2_000 * MS  # for what is still to be sent when a connection is closed
SYN_MS = (0, 1000, 3000)  # when a connection is tried, as kernels do
MISSED_MAX = 256  # datagrams that a machine keeps for a paused broker


@dataclass(slots=True)
class Conditions:
    """What a network is like."""

    nearest_ms: float = 0.2  # between brokers at one place
    spread_ms: float = 15.0  # from one side of the world to the other, more
    jitter: float = 0.1
    loss: float = 0.0  # of datagrams
    cuts: float = 0.1  # how often what arrives is cut
    capacity: int = 65_536
    connect_timeout_ms: int = 5000
    break_after_ms: int = 6000


@dataclass(slots=True, eq=False)
class Host:
    """A machine with an address. It may be that nobody runs there."""

    address: str
    place: tuple[float, float]
    broker: Broker | None = None
    dark: bool = False  # without power

    @property
    def listening(self) -> Broker | None:
        """Whoever takes connections there."""
        broker = self.broker
        if broker is None or self.dark or broker.stopped or not broker.accepting:
            return None
        return broker


@dataclass(slots=True, eq=False)
class Stream:
    """One direction of a wire."""

    network: Network
    source: End
    target: End
    segments: deque[tuple[int, bytes]] = field(default_factory=deque)  # when they arrive
    in_flight: int = 0
    last_ns: int = 0
    stalled_ns: int = -1  # since when nothing gets through
    broken: bool = False
    _due: bool = False

    def put(self, data: bytes) -> None:
        """Send bytes; none at all is the end."""
        if self.broken:
            return
        network = self.network
        ns = network.world.ns + network.delay_ns(self.source.address, self.target.address)
        self.last_ns = ns = max(ns, self.last_ns)
        self.segments.append((ns, data))
        self.in_flight += len(data)
        self.look()

    def look(self) -> None:
        """Be there when the next bytes arrive."""
        if self.segments and not self._due and self.stalled_ns < 0:
            self._due = True
            world = self.network.world
            world.after(self.segments[0][0] - world.ns, self._arrive)

    def again(self) -> None:
        """What did not get through is sent once more."""
        network = self.network
        now = network.world.ns
        stalled, self.stalled_ns = now - self.stalled_ns, -1
        if self.source.dark:
            self.segments.clear()
        elif stalled > network.conditions.break_after_ms * MS:
            network.break_wire(self.source)
        elif self.segments:
            wait = network.random.randint(0, min(stalled, 1000 * MS))
            first, data = self.segments.popleft()
            trip = network.delay_ns(self.source.address, self.target.address)
            first = max(first, now + wait + trip)
            self.segments.appendleft((first, data))
            self.last_ns = max(self.last_ns, first)
            self.look()

    def _arrive(self) -> None:
        self._due = False
        network, target = self.network, self.target
        if not self.segments:
            return
        if not network.passes(self.source.address, target.address):
            if self.source.dark:
                self.segments.clear()
            else:
                self.stalled_ns = network.world.ns
                network.stalled[self] = None
        elif not target.open:
            self.segments.clear()
            back = network.delay_ns(target.address, self.source.address)
            network.world.after(back, partial(self.source.gone, "reset"))
        elif not target.held and not target.broker.paused:
            self._deliver()

    def _deliver(self) -> None:
        """All that is here goes to the target, or a part of it."""
        network, target, segments = self.network, self.target, self.segments
        now = network.world.ns
        data = segments.popleft()[1]
        if not data:
            target.gone("closed by the peer")
            return
        more = [data]
        while segments and segments[0][0] <= now and segments[0][1]:
            more.append(segments.popleft()[1])
        if len(more) > 1:
            data = b"".join(more)
        if len(data) > 1 and network.random.random() < network.conditions.cuts:
            size = network.random.randint(1, len(data) - 1)
            segments.appendleft((now + REST_NS, data[size:]))
            data = data[:size]
        self.in_flight -= len(data)
        if self.source.waiting:
            network.world.after(
                network.delay_ns(target.address, self.source.address), self.source.has_room
            )
        self.look()
        network.world.trace(f"{self.source.address}>{target.address}", target.key, data)
        target.broker.step([Received(target.key, memoryview(data))])


class End:
    """What a broker has of a wire."""

    def __init__(self, network: Network, broker: Broker, wire: int) -> None:
        self.network = network
        self.broker = broker
        self.address = broker.address
        self.key = broker.new_key()
        self.wire = wire  # the same number at both ends
        self.open = False  # its broker knows it and may use it
        self.dark = False
        self.held = False
        self.out: Stream
        self.into: Stream
        self._unsent = bytearray()
        self._closing = ""

    @property
    def other(self) -> End:
        """The other end."""
        return self.out.target

    @property
    def waiting(self) -> int:
        """Bytes for which there was no room."""
        return len(self._unsent)

    # ------------------------------------------------------------------ broker's side

    def write(self, data: bytes, report: bool) -> list[Event]:
        """Send as much as there is room for."""
        if not self.open or self._closing:
            return []
        room = self.network.conditions.capacity - self.out.in_flight
        if not self._unsent and len(data) <= room:
            if data:
                self.out.put(data)
            return [Unsent(self.key, 0)] if report else []
        self._unsent += data
        self._move()
        return [Unsent(self.key, len(self._unsent))]

    def hold(self, held: bool) -> None:
        """The broker wants no bytes, or wants them again."""
        self.held = held
        if not held:
            self.into.look()

    def resume(self) -> None:
        """The broker is awake again."""
        self.into.look()

    def finish(self, reason: str, flush: bool) -> list[Event]:
        """The broker ends it, perhaps when all is sent; or it crashes."""
        if not self.open or self._closing:
            return []
        if flush and self._unsent:
            self._closing = reason
            self.held = True
            self.network.world.after(LINGER_NS, self._give_up)
            return []
        self._say_goodbye()
        self.broker.lines.pop(self.key, None)
        return [Closed(self.key, reason)]

    # ----------------------------------------------------------------- network's side

    def has_room(self) -> None:
        """Some bytes have arrived: others can follow."""
        if not self.open or not self._unsent:
            return
        self._move()
        if self._closing and not self._unsent:
            self._give_up()
        else:
            self.broker.step([Unsent(self.key, len(self._unsent))])

    def gone(self, reason: str) -> None:
        """It is over; the broker learns it, if it is still there."""
        if self.open:
            self.open = False
            self.broker.gone(self.key, self._closing or reason)

    def _move(self) -> None:
        room = self.network.conditions.capacity - self.out.in_flight
        if room > 0 and self._unsent:
            self.out.put(bytes(self._unsent[:room]))
            del self._unsent[:room]

    def _give_up(self) -> None:
        if self.open:
            self._say_goodbye()
            self.broker.gone(self.key, self._closing)

    def _say_goodbye(self) -> None:
        self.open = False
        self._unsent.clear()
        self.out.put(b"")


class Network:
    """Brokers, and all that is between them."""

    def __init__(self, world: World, seed: int = 0, conditions: Conditions | None = None) -> None:
        self.world = world
        self.conditions = conditions or Conditions()
        self.random = Random(f"network {seed}")
        self.hosts: dict[str, Host] = {}
        self.ends: dict[Broker, dict[int, End]] = {}  # by key, of brokers that run
        self.stalled: dict[Stream, None] = {}
        self.counts = dict.fromkeys(("wires", "failed", "datagrams", "lost", "broken"), 0)
        self._seed = seed
        self._sides: dict[str, int] = {}
        self._silent: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], int] = {}

    # ------------------------------------------------------------------------ brokers

    def add(self, broker: Broker, address: str) -> Host:
        """Have a broker at an address, where none runs any more."""
        host = self.hosts.get(address)
        if host is None:
            places = Random(f"place {self._seed} {address}")
            host = Host(address, (places.random(), places.random()))
            self.hosts[address] = host
        assert host.broker is None or host.broker.stopped, f"somebody runs at {address}"
        if host.broker is not None:
            self.ends.pop(host.broker, None)
        host.broker = broker
        host.dark = False
        broker.address = address
        broker.wires = self
        self.ends[broker] = {}
        self._retry()
        return host

    def broker_at(self, address: str) -> Broker | None:
        """Who runs there, if anybody does."""
        host = self.hosts.get(address)
        if host is None or host.broker is None or host.broker.stopped:
            return None
        return host.broker

    def end(self, broker: Broker, key: int) -> End | None:
        """A broker's end of a wire."""
        return self.ends.get(broker, {}).get(key)

    def delay_ns(self, source: str, target: str) -> int:
        """How long a packet takes now."""
        base = self._delays.get((source, target))
        if base is None:
            one, other = self.hosts[source].place, self.hosts[target].place
            far = hypot(one[0] - other[0], one[1] - other[1])
            ms = self.conditions.nearest_ms + far * self.conditions.spread_ms
            base = self._delays[source, target] = int(ms * MS)
        return base + int(base * self.conditions.jitter * self.random.random())

    def set_delay(self, one: str, other: str, ms: float) -> None:
        """How long packets take between two, both ways."""
        self._delays[one, other] = self._delays[other, one] = int(ms * MS)

    # -------------------------------------------------------------------- connections

    def connect(self, broker: Broker, effect: Connect) -> None:
        """Open a connection for a broker."""
        if effect.address not in self.hosts:
            self._fail(broker, effect, "unknown host", MS)
            return
        self._try(broker, effect, 0)

    def _try(self, broker: Broker, effect: Connect, attempt: int) -> None:
        delay = self.delay_ns(broker.address, effect.address)
        self.world.after(delay, partial(self._knock, broker, effect, attempt))

    def _knock(self, broker: Broker, effect: Connect, attempt: int) -> None:
        """A wish to be connected reaches a host, or does not."""
        host = self.hosts[effect.address]
        there = self.passes(broker.address, effect.address)
        if not there or not self.passes(effect.address, broker.address):
            if attempt + 1 < len(SYN_MS):
                wait = (SYN_MS[attempt + 1] - SYN_MS[attempt]) * MS
                self.world.after(wait, partial(self._try, broker, effect, attempt + 1))
            else:
                left = self.conditions.connect_timeout_ms - SYN_MS[-1]
                self._fail(broker, effect, "timed out", left * MS)
            return
        back = self.delay_ns(effect.address, broker.address)
        listening = host.listening
        if listening is None:
            self._fail(broker, effect, "refused", back)
            return
        self.world.after(back, partial(self._made, broker, listening, effect))

    def _made(self, broker: Broker, listening: Broker, effect: Connect) -> None:
        """The answer is back. The other broker learns it from what is sent next."""
        if broker.stopped:
            return
        if listening.stopped and not self.hosts[effect.address].dark:
            self._fail(broker, effect, "reset", 0)
            return
        self.counts["wires"] += 1
        near = End(self, broker, self.counts["wires"])
        far = End(self, listening, self.counts["wires"])
        near.out = far.into = Stream(self, near, far)
        far.out = near.into = Stream(self, far, near)
        near.open = True
        far.open = not listening.stopped
        self._plug(near)
        if far.open:
            self._plug(far)
            # It cannot be later than the first bytes, as they are sent after this.
            delay = self.delay_ns(broker.address, effect.address)
            near.out.last_ns = self.world.ns + delay
            self.world.after(delay, partial(self._opened, far))
        else:
            far.dark = True
        broker.step([Connected(near.key, effect.ticket, effect.address)])

    def _plug(self, end: End) -> None:
        end.broker.lines[end.key] = end
        mine = self.ends[end.broker]
        for key in [key for key, old in mine.items() if not old.open]:
            del mine[key]
        mine[end.key] = end

    def _opened(self, end: End) -> None:
        if end.open:
            end.broker.step([Opened(end.key, end.other.address)])

    def _fail(self, broker: Broker, effect: Connect, reason: str, wait_ns: int) -> None:
        self.counts["failed"] += 1
        event = ConnectFailed(effect.ticket, reason)
        self.world.after(wait_ns, partial(broker.step, [event]))

    # ---------------------------------------------------------------------- datagrams

    def cast(self, broker: Broker, effect: SendDatagram) -> None:
        """Send a datagram, which may be lost, late, or overtaken."""
        self.counts["datagrams"] += 1
        target = effect.address
        if target not in self.hosts or self.random.random() < self.conditions.loss:
            self.counts["lost"] += 1
            return
        delay = self.delay_ns(broker.address, target)
        self.world.after(delay, partial(self._land, broker.address, target, effect.data))

    def _land(self, source: str, target: str, data: bytes) -> None:
        broker = self.hosts[target].broker
        full = broker is not None and broker.paused and len(broker.missed) >= MISSED_MAX
        if broker is None or broker.stopped or full or not self.passes(source, target):
            self.counts["lost"] += 1
        else:
            self.world.trace(f"{source}:{target}", 0, data)
            broker.step([Datagram(source, data)])

    # ------------------------------------------------------------------------- faults

    def passes(self, source: str, target: str) -> bool:
        """Whether a packet from one address gets to the other, now."""
        if self.hosts[target].dark:
            return False
        if self._sides and self._sides.get(source, -1) != self._sides.get(target, -1):
            return False
        return not self._silent or (source, target) not in self._silent

    def partition(self, *groups: Iterable[str]) -> None:
        """Let packets pass within groups only; all that are in none are one more."""
        self._sides = {address: side for side, group in enumerate(groups) for address in group}
        self._retry()

    def silence(self, source: str, target: str) -> None:
        """Let no packet through from one to the other; the way back is open."""
        self._silent.add((source, target))

    def hear(self, source: str, target: str) -> None:
        """Let packets through again."""
        self._silent.discard((source, target))
        self._retry()

    def heal(self) -> None:
        """End every partition and all silence."""
        self._sides = {}
        self._silent.clear()
        self._retry()

    def power_off(self, broker: Broker) -> None:
        """A machine goes dark: nothing breaks, and nothing answers."""
        self.hosts[broker.address].dark = True
        for end in self.ends[broker].values():
            end.open = False
            end.dark = True
        broker.go_dark()

    def break_wire(self, end: End) -> None:
        """A wire breaks: what is on its way is lost, and both ends learn it, each in a while."""
        self.counts["broken"] += 1
        for one in (end, end.other):
            one.out.broken = True
            one.out.segments.clear()
            delay = self.random.randint(0, self.delay_ns(one.address, one.other.address))
            self.world.after(delay, partial(one.gone, "broken"))

    def wires_between(self, one: Broker, other: Broker) -> list[End]:
        """The ends that a broker has of wires to another one."""
        return [end for end in self.ends[one].values() if end.open and end.other.broker is other]

    def _retry(self) -> None:
        for stream in [s for s in self.stalled if self._can_go_on(s)]:
            del self.stalled[stream]
            stream.again()

    def _can_go_on(self, stream: Stream) -> bool:
        return self.passes(stream.source.address, stream.target.address)
