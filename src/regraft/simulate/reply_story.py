"""A story of questions, replies and contexts in a network where things go wrong.

What goes wrong is that of `plan.py`; the clients are other ones. Some reply, at once or later, once
or several times, or never; some only ask. All of them move from floor to floor, which is their
context, and some questions and messages are for one floor only. `answers.py` judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message, encode_envelope
from regraft.simulate.answers import Answers, Asked, Inquiry
from regraft.simulate.checkers import NEVER, canonical
from regraft.simulate.deliveries import Subscription, Visit
from regraft.simulate.floors import ANY, FLOORS, Floor, where
from regraft.simulate.network import MS
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import TROUBLE_MS, Act, Plan, make_plan
from regraft.wire import native, peers
from regraft.wire.questions import Context, Counted, Ended, Question, Reply

OTHERS = {"arrive", "depart", "subscribe", "unsubscribe", "publish", "keep", "box", "settle"}
PATTERNS = ("q/#", "q/#", "q/a", "q/+", "#")
TOPICS = ("q/a", "q/b", "q/a/b")
SELECTORS = ("", "", "", "n > 3", "n > 3 AND n < 9")
NOTICES = "n"
REPLYING, LISTENING = 1, 2  # subscriptions
BODY = b"question "
AFTER_NS = 8_000 * MS  # for which a disturbance counts
REPAIRED_MS = 8000  # after which nodes do not expect any more that somebody is missing
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
            yield Act(random.uniform(ms, end_ms), "depart", (client,))
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

    answers: Answers = field(init=False)
    _tokens: dict[int, str] = field(default_factory=dict)  # of questions, their labels
    _replying: dict[str, list[Subscription]] = field(default_factory=dict)  # by guest
    _moving: dict[int, Floor] = field(default_factory=dict)  # by token

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers = Answers(self.deliveries.floors)

    @property
    def about(self) -> str:
        """It in a line."""
        told = ", ".join(f"{count} {what}" for what, count in self.answers.counts.items())
        return f"questions at {self.plan.nodes} nodes, {self.plan.mode}, {told}"

    def _judge(self) -> None:
        if self.plan.mode == "safety":
            for index in list(self._paused):  # so that questions have an end
                self._resume(index)
            self.world.advance(6000)
        super()._judge()
        self.complaints += self.answers.judge(self.world.ns, self._times())

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

    # ------------------------------------------------------------------------ clients

    def _come(self, number: int, index: int, pattern: str, selector: str) -> bool:
        if not self._arrive(number, index):
            return False
        if pattern:
            self._listen(number, REPLYING, pattern, False, selector)
        return self._subscribe(number, LISTENING, NOTICES, False, "")

    def _listen(self, number: int, id: int, pattern: str, exact: bool, selector: str) -> bool:
        """A guest subscribes to something, and replies if it is a question."""
        visit = self._visits.get(number)
        if visit is None or id in visit.subscriptions:
            return False
        wanted = canonical(pattern, exact, selector)
        wish = visit.subscriptions[id] = Subscription(visit.guest.name, id, visit.node, wanted)
        self.deliveries.subscriptions.append(wish)
        self._replying.setdefault(visit.guest.name, []).append(wish)
        visit.guest.asked[id] = (pattern, exact)
        frame = native.Subscribe(id, pattern, selector, exact, replies=True)
        visit.guest.pipe.send(native.encode(frame))
        return True

    def _leaves(self, number: int) -> None:
        name = self._visits[number].guest.name
        self.answers.gone[name] = self.world.ns
        super()._leaves(number)

    def _move_to(self, number: int, floor: int) -> bool:
        visit = self._visits.get(number)
        if visit is None:
            return False
        token = self._next()
        attributes = encode_envelope(Message(topic="c", context={"floor": floor}))[3:]
        moving = self.deliveries.floors.moves(visit.guest.name, floor, self.world.ns)
        self._moving[token] = moving
        visit.guest.pipe.send(native.encode(Context(token, attributes)))
        return True

    def _compose(self, visit: Visit, topic: str, n: int, color: str) -> Message:
        """With the context of who says it."""
        message = super()._compose(visit, topic, n, color)
        floor = self.deliveries.floors.on(visit.guest.name)
        return replace(message, context={"floor": floor}) if floor != ANY else message

    def _notice(self, number: int, floor: int) -> bool:
        visit = self._visits.get(number)
        if visit is not None:
            self._utter(visit, Message(topic=NOTICES, where=where(floor)))
        return visit is not None

    def _ask(self, number: int, topic: str, n: int, floor: int, lasts_ms: int) -> bool:
        visit = self._visits.get(number)
        if visit is None or visit.guest.welcome is None:
            return False
        message = replace(self._compose(visit, topic, n, ""), where=where(floor))
        self._put(visit, message, floor, lasts_ms)
        return True

    def _put(self, visit: Visit, message: Message, floor: int, lasts_ms: int) -> Inquiry:
        """A guest puts a question."""
        token = self._next()
        label = f"question {token}"
        inquiry = Inquiry(label, visit.guest.name, self.world.ns, lasts_ms, floor)
        self.answers.ask(inquiry)
        self._tokens[token] = label
        envelope = encode_envelope(replace(message, body=label.encode()))
        visit.guest.pipe.send(native.encode(Question(b"", token, lasts_ms, envelope)))
        return inquiry

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        if not message.body.startswith(BODY):
            super()._seen(visit, message)
        elif message.question > 0:
            self._is_asked(visit, message)

    def _is_asked(self, visit: Visit, message: ReceivedMessage) -> None:
        """A question has come to somebody who replies."""
        name, label = visit.guest.name, message.body.decode()
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
        asked: Asked,
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

    def _answered(self, visit: Visit, message: Any) -> None:
        if isinstance(message, Reply | Counted | Ended):
            self._told_asker(self._tokens[message.token], message)
        elif isinstance(message, peers.Done):
            self._moving[message.token].known_ns = self.world.ns
        else:
            super()._answered(visit, message)

    def _told_asker(self, label: str, message: Reply | Counted | Ended) -> None:
        if isinstance(message, Reply):
            said = ReceivedMessage(message.envelope).body.decode().split("|")
            if said[0] != label:
                self._complain("mixed up", f"a reply to {said[0]} came as one to {label}")
            else:
                self.answers.replied(label, said[1], int(said[2]))
        elif isinstance(message, Counted):
            self.answers.counted(label, message.repliers)
        else:
            counts = message.repliers, message.replies, message.complete
            self.answers.ended(label, *counts, message.reason, self.world.ns)

    # ------------------------------------------------------------------------ the end

    def _last_round(self) -> None:
        """All is well: everybody asks, and everybody who is concerned is asked and replies."""
        self._move_about()
        self.world.advance(REPAIRED_MS)
        random = Random(f"last round {self.plan.seed}")
        for number, visit in self._visits.items():
            floor = random.choice((ANY, *range(FLOORS)))
            topic, n = random.choice(TOPICS), random.randrange(12)
            message = replace(self._compose(visit, topic, n, ""), where=where(floor))
            self._put_quietly(visit, message, floor)
            self._notice(number, random.randrange(FLOORS))
        self.world.advance(QUIET_LASTS_MS + 3000)

    def _move_about(self) -> None:
        """Contexts are others, and count soon."""
        random = Random(f"last moves {self.plan.seed}")
        for number in self._visits:
            if random.random() < 0.7:
                self._move_to(number, random.randrange(FLOORS))

    def _put_quietly(self, visit: Visit, message: Message, floor: int) -> None:
        """Ask when all is well: it is known who has to be asked."""
        inquiry = self._put(visit, message, floor, QUIET_LASTS_MS)
        inquiry.quiet = True
        floors = self.deliveries.floors
        inquiry.owed = frozenset(
            name
            for name, wishes in self._replying.items()
            if name not in self._gone
            and floor in (ANY, floors.on(name))
            and any(one.until_ns == NEVER and one.filter.takes(message) for one in wishes)
        )
