"""A story of questions, replies and contexts in a network where things go wrong.

What goes wrong is that of `plan.py`; the clients are other ones. Some reply, at once or later, once
or several times, or never; some only ask. All of them move from floor to floor, which is their
context, and some questions and messages are for one floor only. `answers.py` judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message, encode_envelope
from regraft.simulate.answers import Answers, Inquiry
from regraft.simulate.checkers import NEVER, Complaint, canonical
from regraft.simulate.deliveries import Subscription, Visit
from regraft.simulate.network import MS
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import TROUBLE_MS, Act, Plan, make_plan
from regraft.wire import native, peers
from regraft.wire.questions import Context, Counted, Ended, Question, Reply

OTHERS = {"arrive", "depart", "subscribe", "unsubscribe", "publish", "keep", "box", "settle"}
PATTERNS = ("q/#", "q/#", "q/a", "q/+", "#")
TOPICS = ("q/a", "q/b", "q/a/b")
SELECTORS = ("", "", "", "n > 3", "n > 3 AND n < 9")
FLOORS = 3
AFTER_NS = 8_000 * MS  # for which a disturbance counts
QUIET_LASTS_MS = 4000


def reply_plan(seed: int) -> Plan:
    """The plan of a seed: troubles as elsewhere, and clients that ask and reply."""
    random = Random(f"replies {seed}")
    nodes = random.choice((2, 3, 4, 5, 6, 7, 9))
    plan = make_plan(seed, nodes=nodes, lasting_ms=random.choice((3000, 5000)), disks=False)
    acts = [act for act in plan.acts if act.what not in OTHERS]
    acts += _clients(random, nodes, plan.end_ms)
    acts.sort(key=lambda act: act.ms)
    return plan.without(acts)


def _clients(random: Random, nodes: int, end_ms: float) -> Iterator[Act]:
    count = random.choice((4, 6, 10))
    for client in range(count):
        ms = random.uniform(1600, 4000) if client < 4 else random.uniform(1600, end_ms)
        pattern = random.choice(PATTERNS) if client % 4 else ""
        what = (client, random.randrange(nodes), pattern, random.choice(SELECTORS))
        yield Act(ms, "come", what)
        if random.random() < 0.3:
            yield Act(random.uniform(ms, end_ms), "go", (client,))
            yield Act(random.uniform(ms, end_ms), "come", (client, *what[1:]))
        for _ in range(random.randrange(4)):
            moment = random.uniform(ms, end_ms)
            yield Act(moment, "move-to", (client, random.randrange(FLOORS)))
    for _ in range(random.choice((6, 10, 16))):
        ms = random.uniform(TROUBLE_MS - 500, end_ms)
        floor = random.choice((-1, -1, *range(FLOORS)))
        lasts = random.choice((300, 1500, 4000))
        about = (random.choice(TOPICS), random.randrange(12), floor, lasts)
        yield Act(ms, "ask", (random.randrange(count), *about))
        moment = random.uniform(3000, end_ms)
        yield Act(moment, "notice", (random.randrange(count), random.randrange(FLOORS)))


@dataclass
class ReplyStory(NetworkStory):
    """What happens as such a plan says."""

    answers: Answers = field(default_factory=Answers)
    _tokens: dict[str, str] = field(default_factory=dict)  # of a client's questions, their labels
    _replying: dict[str, Subscription] = field(default_factory=dict)
    _listening: dict[str, Subscription] = field(default_factory=dict)
    _floors: dict[tuple[str, int], Any] = field(default_factory=dict)
    _last: int = 0

    def tell(self) -> list[Complaint]:
        """Let it happen; what was wrong."""
        for act in self.plan.acts:
            self.world.advance_to(max(int(act.ms * MS), self.world.ns))
            if self.complaints:
                return self.complaints
            self._act(act)
        self.world.advance_to(max(int(self.plan.end_ms * MS), self.world.ns))
        if self.plan.mode == "liveness" and not self.complaints:
            self._make_well()
            self._await_convergence()
            if not self.complaints:
                self._last_round()
        else:
            self.world.advance(6000)
        if not self.complaints:
            self.complaints += self.answers.judge(self.world.ns, self._times())
        return self.complaints

    def _times(self) -> list[tuple[int, int]]:
        """When something was wrong: anything may be missing, a while longer."""
        times = [(ns, ns + AFTER_NS) for ns in self._disturbed]
        for trouble in self.deliveries.troubles:
            until = trouble.until_ns if trouble.until_ns < NEVER else self.world.ns
            times.append((trouble.since_ns, until + AFTER_NS))
        if self.plan.mode == "liveness":
            ns = int(self.plan.end_ms * MS)
            times.append((ns, ns + AFTER_NS))
        return times

    def _act(self, act: Act) -> None:
        how = CLIENT_ACTS.get(act.what)
        if how is None:
            NetworkStory._act(self, act)
        elif how(self, *act.args):
            self.counts[act.what] = self.counts.get(act.what, 0) + 1
            self._line(f"{act.what} {' '.join(map(str, act.args))}")

    # ------------------------------------------------------------------------ clients

    def _come(self, number: int, index: int, pattern: str, selector: str) -> bool:
        broker = self._brokers.get(index)
        if broker is None or number in self._visits:
            return False
        self._last += 1
        name = f"client-{number}@{self._last}"
        visit = self._visits[number] = Visit(self._guest(broker, name), self._keys[broker])
        visit.guest.on_seen = partial(self._got, visit)
        visit.guest.on_control = partial(self._told_client, visit)
        if pattern:
            self._replying[name] = self._wish(visit, 1, pattern, selector, True)
        self._listening[name] = self._wish(visit, 2, "n", "", False)
        return True

    def _wish(
        self, visit: Visit, id: int, pattern: str, selector: str, replies: bool
    ) -> Subscription:
        wanted = canonical(pattern, False, selector)
        wish = visit.subscriptions[id] = Subscription(visit.guest.name, id, visit.node, wanted)
        visit.guest.asked[id] = (pattern, False)
        frame = native.Subscribe(id, pattern, selector, False, replies=replies)
        visit.guest.pipe.send(native.encode(frame))
        return wish

    def _leaves(self, number: int) -> None:
        name = self._visits[number].guest.name
        self.answers.gone[name] = self.world.ns
        for among in (self._replying, self._listening):
            among.pop(name, None)
        NetworkStory._leaves(self, number)

    def _move_to(self, number: int, floor: int) -> bool:
        visit = self._visits.get(number)
        if visit is None:
            return False
        self._last += 1
        attributes = encode_envelope(Message(topic="c", context={"floor": floor}))[3:]
        said = self.answers.moves(visit.guest.name, floor, self.world.ns)
        self._floors[visit.guest.name, self._last] = said
        visit.guest.pipe.send(native.encode(Context(self._last, attributes)))
        return True

    def _notice(self, number: int, floor: int, owed: frozenset[str] = frozenset()) -> bool:
        visit = self._visits.get(number)
        if visit is None:
            return False
        self._last += 1
        label = f"notice {self._last}"
        self.answers.notice(label, floor, owed)
        where = f"ctx.floor = {floor}"
        visit.guest.publish(Message(topic="n", body=label.encode(), where=where))
        return True

    def _ask(
        self,
        number: int,
        topic: str,
        n: int,
        floor: int,
        lasts_ms: int,
        owed: frozenset[str] | None = None,
    ) -> bool:
        visit = self._visits.get(number)
        if visit is None or visit.guest.welcome is None:
            return False
        self._last += 1
        token, label = self._last, f"question {self._last}"
        asker = visit.guest.name
        inquiry = Inquiry(label, asker, self.world.ns, lasts_ms, floor, owed is not None)
        inquiry.owed = owed or frozenset()
        self.answers.ask(inquiry)
        self._tokens[f"{asker} {token}"] = label
        where = f"ctx.floor = {floor}" if floor >= 0 else ""
        message = Message(topic, label.encode(), {"n": n}, where=where)
        envelope = encode_envelope(message)
        visit.guest.pipe.send(native.encode(Question(b"", token, lasts_ms, envelope)))
        return True

    def _got(self, visit: Visit, message: ReceivedMessage) -> None:
        """A client got a message."""
        name, label = visit.guest.name, message.body.decode()
        if label.startswith("notice"):
            self.answers.noticed(label, name, self.world.ns)
            return
        if message.question <= 0:
            return
        asked = self.answers.came(label, name, self.world.ns)
        quiet = self.answers.inquiries[label].quiet
        random = Random(f"{self.plan.seed} {name} {label}")
        if not quiet and random.random() < 0.1:
            return  # it never says a word
        count = random.choice((0, 1, 1, 1, 2, 3))
        wait = random.choice((0, 0, 20, 200, 1000)) * MS
        last = random.random() < 0.5 and count > 0  # the last reply says so itself
        for place in range(count + (not last)):
            final = place == count - last
            failed = final and not last and not quiet and random.random() < 0.1
            step = partial(self._say_reply, visit, asked, message.question, label, place, final)
            self.world.after(random.randint(0, wait) if not place else wait, partial(step, failed))
            wait += random.randint(0, 20 * MS)

    def _say_reply(
        self,
        visit: Visit,
        asked: Any,
        token: int,
        label: str,
        place: int,
        final: bool,
        failed: bool,
    ) -> None:
        name = visit.guest.name
        if name in self.answers.gone or asked.done_ns >= 0:
            return
        body = b"" if failed else f"{label}|{name}|{asked.said}".encode()
        envelope = b""
        if not failed and not (final and place != asked.said):
            envelope = encode_envelope(Message("q", body))
        if final and not envelope:
            asked.failed = failed
        if envelope:
            asked.said += 1
        if final:
            asked.done_ns = self.world.ns
        visit.guest.pipe.send(native.encode(Reply(b"", token, envelope, final, failed)))

    def _told_client(self, visit: Visit, message: Any) -> None:
        name = visit.guest.name
        if isinstance(message, Reply | Counted | Ended):
            label = self._tokens[f"{name} {message.token}"]
            if isinstance(message, Reply):
                said = ReceivedMessage(message.envelope).body.decode().split("|")
                if said[0] != label:
                    text = f"a reply to {said[0]} came as one to {label}"
                    self.complaints.append(Complaint("mixed up", text))
                else:
                    self.answers.replied(label, said[1], int(said[2]))
            elif isinstance(message, Counted):
                self.answers.counted(label, message.repliers)
            else:
                counts = message.repliers, message.replies, message.complete
                self.answers.ended(label, *counts, message.reason, self.world.ns)
        elif isinstance(message, peers.Done):
            self._floors[name, message.token].known_ns = self.world.ns
        elif isinstance(message, native.Error) and message.name == "shutting-down":
            pass  # it came to a node that is about to leave
        elif isinstance(message, native.Subscribed | native.Error):
            self._answered(visit, message)

    # ------------------------------------------------------------------------ the end

    def _last_round(self) -> None:
        """All is well: everybody asks, and everybody who is concerned is asked and replies."""
        random = Random(f"last round {self.plan.seed}")
        for number in list(self._visits):
            if random.random() < 0.7:
                self._move_to(number, random.randrange(FLOORS))
        self.world.advance(500)
        for number in list(self._visits):
            floor = random.choice((-1, *range(FLOORS)))
            topic, n = random.choice(TOPICS), random.randrange(12)
            probe = Message(topic, attributes={"n": n})
            owed = {
                name
                for name, wish in self._replying.items()
                if wish.filter.takes(probe) and floor in (-1, self.answers.on(name))
            }
            self._ask(number, topic, n, floor, QUIET_LASTS_MS, frozenset(owed))
            floor = random.randrange(FLOORS)
            near = {name for name in self._listening if self.answers.on(name) == floor}
            self._notice(number, floor, frozenset(near))
        self.world.advance(QUIET_LASTS_MS + 3000)


CLIENT_ACTS: dict[str, Any] = {
    "come": ReplyStory._come,
    "go": ReplyStory._depart,
    "move-to": ReplyStory._move_to,
    "ask": ReplyStory._ask,
    "notice": ReplyStory._notice,
}
