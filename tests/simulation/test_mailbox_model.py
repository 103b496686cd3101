"""One mailbox against a small model of what it promises, whatever happens to it.

REGRAFT_MAILBOX_RUNS=5000 tries more, and other things each time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from harness import WALL_US, Client, Delivered, KeepingWorld
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from queues import ACCEPT, EXTEND, REJECT, RELEASE, command, letter, options

from regraft.node.effect import Write
from regraft.node.event import Event
from regraft.wire import native

RUNS = int(os.environ.get("REGRAFT_MAILBOX_RUNS", "0"))
MS = 1_000_000  # in nanoseconds
NEVER = 1 << 62

# What a message is:
DELAYED = "delayed"
COMING = "coming"  # published, and not persisted
WAITING = "waiting"
HELD = "held"
BACK = "back"
SETTLED = "settled"
DEAD = "dead"
GONE = "gone"  # cancelled, or expired while it was delayed
OVER = (SETTLED, DEAD, GONE)


class Watched(KeepingWorld):
    """A world that notes who gets what when, in the order in which it happens."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.log: list[tuple[int, Client, Delivered]] = []
        super().__init__(*given, **more)

    def write(self, effect: Write, answers: list[Event]) -> None:
        super().write(effect, answers)
        client = self.clients[effect.connection]
        seen = len(client.delivered)
        client._parse()
        self.log += [(self.ns, client, one) for one in client.delivered[seen:]]

    def again(self, power: bool = False, **limits: int) -> Watched:
        left = self.disk.power_off() if power else self.disk.crash()
        return Watched(self.streams, left, self.ns + MS, **limits)


@dataclass(repr=False, eq=False)
class Letter:
    """A message, as the model sees it."""

    text: str
    priority: int
    expires_us: int
    due_us: int = 0  # of one that is delayed, or came back
    state: str = WAITING
    sequence: int = 0
    tried: tuple[int, int] = (0, 0)  # how often before: at least, at most
    holder: Client | None = None
    lease_ns: int = NEVER
    shy: bool = False  # somebody did not want it
    delivered: bool = False  # ever
    back: tuple[int, int] | None = None  # when it last came back: due, tried
    known: tuple[str, int, int, int] = (COMING, 0, 0, 0)  # what the disk has of it

    def __repr__(self) -> str:
        due, expires = (
            us - WALL_US if 0 < us < NEVER else 0 for us in (self.due_us, self.expires_us)
        )
        about = (
            f"{self.state} p{self.priority} #{self.sequence} tried {self.tried} known {self.known}"
        )
        return f"<{self.text} {about} due {due} expires {expires}>"


@dataclass(repr=False)
class Member:
    client: Client
    room: int
    held: list[Letter] = field(default_factory=list)
    barred: list[Letter] = field(default_factory=list)  # it cannot deal with these

    def __repr__(self) -> str:
        return f"<{self.client.key} room {self.room} {self.held}>"


class MailboxModel(RuleBasedStateMachine):
    """Rules do something with the node, and say what it should mean."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Watched()
        self.letters: dict[str, Letter] = {}
        self.members: dict[Client, Member] = {}
        self.next = 1  # sequence
        self.next_known = 1
        self.token = 0
        self.attached = False  # somebody is, as far as the disk knows
        self.holding = False  # nothing is persisted for now

    @initialize(
        lease=st.sampled_from([0, 0, 700]),
        retry=st.sampled_from([0, 0, 100]),
        most=st.sampled_from([0, 0, 3]),
    )
    def make(self, lease: int, retry: int, most: int) -> None:
        self.lease_ms, self.retry_ms, self.most = lease, retry, most
        given = options(lease_ms=lease, retry_ms=retry, retry_max_ms=250, max_deliveries=most)
        self.options = given
        client = self.world.reader("q", "t", options=given)
        client.leave()
        self.world.persist()
        self.world.log.clear()

    # -------------------------------------------------------------------------- the model

    @property
    def now_us(self) -> int:
        return WALL_US + self.world.ns // 1000

    def by_state(self, *states: str) -> list[Letter]:
        return [one for one in self.letters.values() if one.state in states]

    def comes_back(
        self, one: Letter, ns: int, delay_ms: int, counts: bool, backs_off: bool
    ) -> None:
        """A letter leaves a hand unsettled."""
        assert one.holder is not None
        self.members[one.holder].held.remove(one)
        one.holder, one.lease_ns = None, NEVER
        tried = one.tried[0] + 1 if counts else one.tried[0]
        if counts and 0 < self.most <= tried:
            one.state = DEAD
            return
        one.state, one.tried = BACK, (tried, tried)
        if not delay_ms and counts and backs_off and self.retry_ms:
            delay_ms = min(self.retry_ms << tried - 1, 250)
        one.due_us = WALL_US + ns // 1000 + delay_ms * 1000
        one.back = one.due_us, tried

    def pass_time(self, ns: int) -> None:
        """Leases end."""
        late = [one for one in self.by_state(HELD) if one.lease_ns <= ns]
        for one in sorted(late, key=lambda one: one.lease_ns):
            self.comes_back(one, one.lease_ns, 0, True, True)

    def publish_due(self, since_us: int) -> None:
        """The time of delayed messages has come; they get their sequences."""
        due = [one for one in self.by_state(DELAYED) if one.due_us <= self.now_us]
        for one in sorted(due, key=lambda one: (one.due_us, one.sequence)):
            if one.expires_us <= max(one.due_us, since_us):
                one.state = GONE
            else:
                one.state, one.sequence = COMING, self.next
                self.next += 1

    def persist(self) -> None:
        """Have all that was done persisted, unless the disk is to be slow; look at what came."""
        if not self.holding:
            self.world.persist()
        self.look()
        if not self.holding:
            for one in self.by_state(COMING):
                one.state = WAITING
            for one in self.letters.values():
                self.remember(one)
            self.next_known = self.next
            self.attached = bool(self.members)

    def remember(self, one: Letter) -> None:
        """What the disk has of a letter: what is held is not known to be so."""
        state = WAITING if one.state == HELD else one.state
        due, tried = one.due_us, one.tried[0]
        if one.state == HELD and one.back is not None:
            state, (due, tried) = BACK, one.back
        one.known = state, due, tried, one.sequence

    def look(self) -> None:
        """Check all that was delivered, in the order in which it was."""
        log, self.world.log = self.world.log, []
        for ns, client, delivered in log:
            if client in self.members and delivered.subscriptions == (1,):
                self.pass_time(ns)
                self.check_delivery(ns, self.members[client], delivered)
        self.pass_time(self.world.ns)

    def check_delivery(self, ns: int, member: Member, delivered: Delivered) -> None:
        now_us = WALL_US + ns // 1000
        one = self.letters[delivered.text]
        about = f"{one} comes to {member.client.key} as {delivered[2:]}"
        assert one.state in (WAITING, COMING, BACK), about
        assert one.state != BACK or one.due_us <= now_us, about
        assert one.expires_us > now_us, about
        assert one.sequence == delivered.sequence, about
        assert one.tried[0] <= delivered.attempts <= one.tried[1], about
        assert len(member.held) < member.room, about
        assert one not in member.barred, about
        for other in self.by_state(WAITING, BACK):
            ready = other.state == WAITING or other.due_us <= now_us
            if other is not one and ready and not other.shy and other.expires_us > now_us:
                assert self.is_before(one, other), f"{about}, and not {other}"
        one.tried = delivered.attempts, delivered.attempts
        one.state, one.holder, one.delivered = HELD, member.client, True
        one.shy = any(one in other.barred for other in self.members.values())
        one.lease_ns = ns + self.lease_ms * MS if self.lease_ms else NEVER
        member.held.append(one)

    @staticmethod
    def is_before(one: Letter, other: Letter) -> bool:
        """Whether a letter may be delivered though another one waits."""
        first, second = (
            (-letter.priority, letter.state != BACK, letter.sequence) for letter in (one, other)
        )
        return first < second

    # --------------------------------------------------------------------------- publishing

    @rule(
        priority=st.sampled_from([4, 4, 4, 0, 2, 9]),
        count=st.integers(1, 4),
        ttl=st.sampled_from([0, 0, 0, 300]),
        delay=st.sampled_from([0, 0, 0, 200, 1000]),
    )
    def publish(self, priority: int, count: int, ttl: int, delay: int) -> None:
        expires = self.now_us + ttl * 1000 if ttl else NEVER
        due = self.now_us + delay * 1000 if delay else 0
        messages = []
        for _ in range(count):
            text = str(len(self.letters) + 1)
            one = Letter(text, priority, expires, due, DELAYED if delay else COMING)
            self.letters[text] = one
            if not delay:
                one.sequence, self.next = self.next, self.next + 1
            else:
                one.sequence = len(self.letters)  # those that are due at once come in this order
            more = {"expiration_us": expires if ttl else None, "deliver_at_us": due or None}
            messages.append(letter(text, priority=priority, id=int(text), **more))
        client = self.world.connect()
        client.send(*messages)
        client.leave()
        self.persist()

    @precondition(lambda self: self.by_state(DELAYED))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.by_state(DELAYED)), "whom")
        if one.expires_us <= self.now_us:
            return
        assert self.command("delayed-cancel", id=int(one.text)) == {"cancelled": 1}
        one.state = GONE
        self.persist()

    def command(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Commands are answered when all is persisted."""
        self.sync()
        answer = command(self.world, what, **arguments)
        return answer

    # ----------------------------------------------------------------------------- members

    @precondition(lambda self: len(self.members) < 3)
    @rule(room=st.integers(1, 4))
    def join(self, room: int) -> None:
        self.sync()
        client = self.world.connect(passive=True)
        self.members[client] = Member(client, room)
        wanted = native.Subscribe(1, "t", durable="q", options=self.options, in_flight=room)
        client.send(wanted)
        self.persist()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), polite=st.booleans())
    def kill(self, data: st.DataObject, polite: bool) -> None:
        self.end(data.draw(st.sampled_from(list(self.members.values())), "whom"), polite)

    def end(self, member: Member, polite: bool) -> None:
        for one in list(member.held):
            self.comes_back(one, self.world.ns, 0, not polite, False)
        del self.members[member.client]
        if polite:
            member.client.send(native.Unsubscribe(1))
        else:
            member.client.leave()
        self.persist()

    @precondition(lambda self: self.by_state(HELD))
    @rule(
        data=st.data(),
        outcome=st.sampled_from([ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, EXTEND]),
        delay=st.sampled_from([0, 0, 150]),
        uncounted=st.booleans(),
        undeliverable=st.sampled_from([False, False, True]),
    )
    def settle(
        self, data: st.DataObject, outcome: Any, delay: int, uncounted: bool, undeliverable: bool
    ) -> None:
        holders = [one for one in self.members.values() if one.held]
        member = data.draw(st.sampled_from(holders), "who")
        chosen = data.draw(st.lists(st.sampled_from(member.held), min_size=1, unique_by=id), "what")
        for one in chosen:
            if outcome == RELEASE:
                self.comes_back(one, self.world.ns, delay, not uncounted, True)
                one.shy = one.shy or undeliverable
                member.barred += [one] if undeliverable else []
            elif outcome == EXTEND:
                lease = delay or self.lease_ms
                one.lease_ns = self.world.ns + lease * MS if lease else one.lease_ns
            else:
                member.held.remove(one)
                one.holder, one.state = None, SETTLED if outcome == ACCEPT else DEAD
        self.token += 1
        ranges = tuple(end for one in chosen for end in (one.sequence, one.sequence))
        extra = {"uncounted": uncounted, "undeliverable": undeliverable}
        more = extra if outcome == RELEASE else {}
        member.client.take()
        member.client.send(
            native.Settle(1, ranges, self.token, outcome=outcome, delay_ms=delay, **more)
        )
        self.persist()
        if not self.holding:
            told = [one for one in member.client.take() if isinstance(one, native.Settled)]
            assert told[-1:] == [native.Settled(1, self.token)]

    @precondition(lambda self: self.by_state(HELD))
    @rule(data=st.data(), count=st.integers(0, 3), commits=st.sampled_from([True, True, False]))
    def transact(self, data: st.DataObject, count: int, commits: bool) -> None:
        """Accept some and publish others, all or nothing."""
        member = data.draw(st.sampled_from([m for m in self.members.values() if m.held]), "who")
        chosen = data.draw(st.lists(st.sampled_from(member.held), min_size=1, unique_by=id), "what")
        self.token += 1
        texts = [str(len(self.letters) + 1 + n) for n in range(count)]
        ranges = tuple(end for one in chosen for end in (one.sequence, one.sequence))
        frames = b"".join(native.encode(letter(text, id=int(text))) for text in texts)
        part = native.Transact(self.token, frames, settle=(native.Settle(1, ranges),))
        decision = native.Decision.COMMIT if commits else native.Decision.ROLLBACK
        for text in texts if commits else ():
            one = self.letters[text] = Letter(text, 4, NEVER, 0, COMING)
            one.sequence, self.next = self.next, self.next + 1
        for one in chosen if commits else ():
            member.held.remove(one)
            one.holder, one.state = None, SETTLED
        member.client.take()
        member.client.send(part, native.Decide(self.token, decision=decision, parts=1))
        self.persist()
        if not self.holding:
            (told,) = [one for one in member.client.take() if isinstance(one, native.Decided)]
            states = native.TransactionState
            wanted = states.COMMITTED if commits else states.ROLLED_BACK
            assert told.state == wanted and not told.code, told

    # ------------------------------------------------------------------------------- time

    @rule(ms=st.sampled_from([1, 50, 100, 300, 1100]))
    def wait(self, ms: int) -> None:
        since_us = self.now_us
        self.world.advance(ms)
        self.look()
        self.publish_due(since_us)
        self.persist()

    @rule()
    def slow_disk(self) -> None:
        self.holding = True

    @rule()
    def sync(self) -> None:
        if self.holding:
            self.holding = False
            self.persist()

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.members = {}
        self.holding = False
        self.world = self.world.again(power)
        for one in list(self.letters.values()):
            state, due, tried, sequence = one.known
            if state == COMING:  # its publisher was not told
                del self.letters[one.text]
                continue
            one.state, one.due_us, one.sequence = state, due, sequence
            one.holder, one.lease_ns, one.shy = None, NEVER, False
            one.back = (due, tried) if state == BACK else None
            if state == BACK:
                one.tried = tried, tried
            elif one.delivered:
                one.tried = 1, 1
            elif state == WAITING:
                one.tried = 0, max(one.tried[1], int(self.attached))
        self.next = self.next_known
        self.publish_due(self.now_us)
        self.persist()

    # ---------------------------------------------------------------------------- commands

    @rule()
    def purge(self) -> None:
        self.sync()
        waiting = self.by_state(WAITING, BACK)
        purged = self.command("queue-purge", name="q")["purged"]
        certain = [one for one in waiting if one.expires_us > self.now_us]
        assert len(certain) <= purged <= len(waiting)
        for one in waiting:
            one.state = SETTLED
        self.persist()

    @precondition(lambda self: not self.members and self.next > 1)
    @rule(data=st.data(), seldom=st.integers(0, 3))
    def seek(self, data: st.DataObject, seldom: int) -> None:
        if seldom:
            return
        self.sync()
        there = [one for one in self.letters.values() if one.state not in (DELAYED, GONE)]
        floor = self.command("queue-show", name="q")["queue"]["floor"]
        sequence = data.draw(st.integers(1, self.next), "where")
        answer = self.command("queue-seek", name="q", sequence=sequence)
        assert answer == {"next": max(sequence, 1)} or sequence >= floor
        for one in there:
            if one.sequence < sequence:
                one.state = one.state if one.state in OVER else SETTLED
            elif sequence < floor:
                one.state, one.shy, one.back = WAITING, False, None
                one.tried = int(one.delivered), 1
        self.persist()

    @rule()
    def browse(self) -> None:
        self.sync()
        client = self.world.reader("q", "", browse=True)
        news = client.take()
        seen = [one.text for one in news if isinstance(one, Delivered)]
        known = [one for one in self.by_state(WAITING, BACK, HELD) if one.expires_us > self.now_us]
        assert seen == [one.text for one in sorted(known, key=lambda one: one.sequence)]
        assert news[-1] == native.Unsubscribed(1)
        client.leave()
        self.persist()

    # -------------------------------------------------------------------------- in the end

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """If somebody has room, there is nothing that could be delivered."""
        if self.holding or not any(len(one.held) < one.room for one in self.members.values()):
            return
        for one in self.by_state(WAITING, BACK):
            ready = one.state == WAITING or one.due_us <= self.now_us
            assert not ready or one.shy or one.expires_us <= self.now_us, f"{one} is forgotten"

    @invariant()
    def the_node_knows_who_has_what(self) -> None:
        storage = self.world.node._storage
        assert storage is not None
        for client, member in self.members.items():
            found = storage.mailroom.boxes.get(client.key, 1)
            if found is not None:
                hand = found[1].hand
                held = [n for first, last, _ in hand for n in range(first, last + 1)]
                assert held == sorted(one.sequence for one in member.held)

    def teardown(self) -> None:
        self.sync()
        for member in list(self.members.values()):
            self.end(member, polite=False)
        self.wait(5000)
        self.join(1000)
        for _ in range(3):
            self.wait(5000)
            (member,) = self.members.values()
            self.accept_all(member)
        left = [one for one in self.letters.values() if one.state not in OVER]
        assert all(one.expires_us <= self.now_us for one in left), left
        assert self.command("queue-show", name="q")["queue"]["waiting"] == 0
        self.check_dead()

    def accept_all(self, member: Member) -> None:
        for one in list(member.held):
            member.held.remove(one)
            one.state, one.holder = SETTLED, None
            member.client.send(native.Settle(1, (one.sequence, one.sequence)))
        self.persist()

    def check_dead(self) -> None:
        """Each that died has a dead letter; one that was sought again may have died twice."""
        client = self.world.reader("dead-letters", "", browse=True)
        found = {one.text for one in client.take() if isinstance(one, Delivered)}
        assert {one.text for one in self.by_state(DEAD)} <= found


MailboxModel.TestCase.settings = settings(
    max_examples=RUNS or 200,
    stateful_step_count=50,
    derandomize=not RUNS,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestMailbox = MailboxModel.TestCase


@pytest.mark.parametrize("seed", range(RUNS // 10 or 20))
def test_members_that_die_with_messages_in_their_hands(seed: int) -> None:
    """Each message is settled exactly once, and none is left."""
    random = Random(seed)
    world = KeepingWorld(segment_bytes=262_144)
    given = options(lease_ms=random.choice([0, 500]))
    world.reader("q", "t", options=given).leave()
    publisher = world.connect("p", passive=True)
    members: list[Client] = []
    done: list[str] = []
    published = 0
    while len(done) < 300:
        act = random.random()
        if act < 0.3 and published < 300:
            some = range(published, min(300, published + random.randint(1, 30)))
            publisher.send(*(letter(n, priority=random.choice([4, 9])) for n in some))
            published = some.stop
        elif act < 0.5 and len(members) < 6:
            more = {"options": given, "in_flight": random.randint(1, 20), "passive": True}
            members.append(world.reader("q", "t", **more))
        elif act < 0.6 and members:
            members.pop(random.randrange(len(members))).leave()
        elif act < 0.62:
            world = world.again(random.random() < 0.5)
            publisher, members = world.connect("p", passive=True), []
        elif members:
            done += settle_some(world, random.choice(members), random)
        world.advance(random.choice([0, 1, 30]))
        world.persist()
    assert sorted(map(int, done)) == list(range(300))
    assert command(world, "queue-show", name="q")["queue"]["waiting"] == 0


def settle_some(world: KeepingWorld, client: Client, random: Random) -> list[str]:
    """Accept some of what a member has in its hands; what it was."""
    storage = world.node._storage
    assert storage is not None
    found = storage.mailroom.boxes.get(client.key, 1)
    assert found is not None
    held = {n for first, last, _ in found[1].hand for n in range(first, last + 1)}
    client._parse()
    texts = {one.sequence: one.text for one in client.delivered}
    assert held <= set(texts)
    chosen = [sequence for sequence in sorted(held) if random.random() < 0.5]
    client.send(*(native.Settle(1, (sequence, sequence), 1) for sequence in chosen))
    world.persist()
    return [texts[sequence] for sequence in chosen]
