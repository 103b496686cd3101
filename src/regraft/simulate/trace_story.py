"""A story of traces in a network where things go wrong.

What goes wrong is that of `plan.py`, and so are the guests. While it does, some of them trace: that
has an end, invents nobody, and what is published by it comes to nobody twice or who does not want
it. When all is well again, who would get a message must be who wants it, by what guests have
subscribed to; who gets it if it is published must be the same; why somebody gets it, too; and every
node must have told of every subscription whoever is further away from it.

It judges by what guests know and see; of nodes it knows nothing but their reports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.simulate.checkers import NEVER, Complaint
from regraft.simulate.deliveries import Visit
from regraft.simulate.network import MS
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import COLORS, TOPICS, TROUBLE_MS, Act, Plan, make_plan, message_of
from regraft.wire import native
from regraft.wire.questions import Ended, Reply
from regraft.wire.traces import Trace, TraceMode

BODY = b"trace "
LASTS_MS = 3000
LATE_NS = 1000 * MS
REPAIRED_MS = 8000  # after which nodes do not expect any more that somebody is missing
ROUND = 3  # messages that are traced in the end
TOLD = ("told", "covered")

Receiver = tuple[str, int]  # a guest, and a subscription of it


def trace_plan(seed: int) -> Plan:
    """The plan of a seed: troubles and guests as elsewhere, and traces among them."""
    random = Random(f"traces {seed}")
    nodes = random.choice((2, 3, 4, 5, 6, 7, 9))
    plan = make_plan(seed, "liveness", nodes, random.choice((2000, 4000)), 0.5, disks=False)
    acts = list(plan.acts)
    for _ in range(random.choice((4, 8))):
        ms = random.uniform(TROUBLE_MS - 500, plan.end_ms)
        mode = random.choice(list(TraceMode))
        acts.append(Act(ms, "trace", (random.randrange(8), int(mode), random.randrange(12))))
    acts.sort(key=lambda act: act.ms)
    return plan.without(acts)


@dataclass(slots=True)
class Told:
    """A trace, as its asker saw it."""

    asker: str
    mode: TraceMode
    message: Message
    ns: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    ended: Ended | None = None
    seen: dict[str, int] = field(default_factory=dict)  # who got it, and how often

    @property
    def receivers(self) -> set[Receiver]:
        """Who gets it, by the reports."""
        rows = (row for report in self.reports for row in report.get("takers", ()))
        return {(row["client"], row.get("subscription", 0)) for row in rows if row["gets"]}


@dataclass
class TraceStory(NetworkStory):
    """What happens as such a plan says."""

    traces: list[Told] = field(default_factory=list)

    def tell(self) -> list[Complaint]:
        """Let it happen; what was wrong."""
        NetworkStory.tell(self)
        if not self.complaints:
            self._judge_all()
        return self.complaints

    def _act(self, act: Act) -> None:
        if act.what != "trace":
            NetworkStory._act(self, act)
            return
        number, mode, n = act.args
        visit = self._visits.get(number)
        if visit is not None and visit.guest.welcome is not None:
            topic = TOPICS[n % len(TOPICS)]
            self.counts["trace"] = self.counts.get("trace", 0) + 1
            self._ask(visit, TraceMode(mode), message_of(topic, n, COLORS[n % 3], b""))

    def _ask(self, visit: Visit, mode: TraceMode, message: Message, **more: Any) -> Told:
        token = len(self.traces) + 1
        message = replace(message, body=BODY + str(token).encode())
        told = Told(visit.guest.name, mode, message, self.world.ns)
        self.traces.append(told)
        envelope = b"" if mode == TraceMode.FILTER else encode_envelope(message)
        if mode in (TraceMode.WHY, TraceMode.FILTER) and not more:
            more = {"client": visit.guest.name}
        frame = Trace(token=token, lasts_ms=LASTS_MS, envelope=envelope, mode=mode, **more)
        self._line(f"trace {mode.name} {message.topic} by {visit.guest.name}")
        visit.guest.pipe.send(native.encode(frame))
        return told

    def _answered(self, visit: Visit, message: Any) -> None:
        if isinstance(message, Reply):
            body = decode_envelope(message.envelope).body
            self.traces[message.token - 1].reports.append(json.loads(body))
        elif isinstance(message, Ended):
            told = self.traces[message.token - 1]
            if told.ended is not None:
                self._complain("ended twice", f"a trace of {told.asker}")
            told.ended = message
        else:
            NetworkStory._answered(self, visit, message)

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        if not message.body.startswith(BODY):
            NetworkStory._seen(self, visit, message)
            return
        told = self.traces[int(message.body.split(b" ")[1]) - 1]
        told.seen[visit.guest.name] = told.seen.get(visit.guest.name, 0) + 1
        for id in message.subscriptions:
            if not visit.subscriptions[id].filter.takes(told.message):
                self._complain("unwanted", f"{visit.guest.name} got a trace by subscription {id}")

    def _complain(self, kind: str, text: str) -> None:
        self.complaints.append(Complaint(kind, text))

    # ------------------------------------------------------------------------- verdicts

    def _judge_all(self) -> None:
        for told in self.traces:
            about = f"a trace ({told.mode.name}) of {told.asker}"
            late = self.world.ns > told.ns + LASTS_MS * MS + LATE_NS
            if told.ended is None and late and told.asker not in self._gone:
                self._complain("endless", f"{about} never ended")
            twice = [name for name, times in told.seen.items() if times > 1]
            if twice:
                self._complain("repeated", f"{twice[0]} got what {about} published twice")
            if told.seen and told.mode != TraceMode.PUBLISH:
                self._complain("published", f"{about} came to {', '.join(told.seen)}")
            nodes = [report["node"] for report in told.reports]
            if len(nodes) != len(set(nodes)):
                self._complain("reported twice", f"{about}: a node reported twice")
            ended, came = told.ended, (len(nodes), len(nodes))
            if ended and ended.complete and (ended.replies, ended.repliers) != came:
                self._complain("count", f"{about} is complete, and reports are missing")

    def _wanting(self, message: Message) -> set[Receiver]:
        """Who wants a message, by what guests have subscribed to."""
        return {
            (visit.guest.name, id)
            for visit in self._visits.values()
            for id, one in visit.subscriptions.items()
            if one.until_ns == NEVER and one.filter.takes(message)
        }

    def _last_round(self) -> None:
        """All is well: reports must be right."""
        self.world.advance(REPAIRED_MS)
        random = Random(f"last traces {self.plan.seed}")
        visits = [visit for visit in self._visits.values() if visit.guest.welcome is not None]
        asked: list[tuple[Told, Told]] = []
        whys: list[tuple[Told, str]] = []
        travels: list[tuple[Told, Visit]] = []
        for _ in range(ROUND if visits else 0):
            visit, subject = random.choice(visits), random.choice(visits)
            what = (random.choice(TOPICS), random.randrange(12), random.choice(COLORS))
            message = message_of(*what, b"")
            asked.append(
                (
                    self._ask(visit, TraceMode.WHO, message),
                    self._ask(visit, TraceMode.PUBLISH, message),
                )
            )
            name = subject.guest.name
            whys.append((self._ask(visit, TraceMode.WHY, message, client=name), name))
            wanted = [id for id, one in subject.subscriptions.items() if one.until_ns == NEVER]
            if wanted:
                id = random.choice(wanted)
                pattern, exact = subject.guest.asked[id]
                selector = subject.subscriptions[id].filter.selector
                about = {"pattern": pattern, "exact": exact, "selector": selector}
                told = self._ask(visit, TraceMode.FILTER, message, **about, filtered=True)
                travels.append((told, subject))
        self.world.advance(LASTS_MS + 1000)
        for who, real in asked:
            self._judge_who(who, real)
        for told, name in whys:
            self._judge_why(told, name)
        for told, subject in travels:
            self._judge_travel(told, subject)
        NetworkStory._last_round(self)

    def _judge_who(self, who: Told, real: Told) -> None:
        wanting = self._wanting(who.message)
        for told in (who, real):
            if told.ended is None or not told.ended.complete:
                reason = told.ended.reason if told.ended is not None else "no end"
                self._complain("incomplete", f"{told.mode.name} though all is well: {reason}")
            elif told.receivers != wanting:
                odd = sorted(told.receivers ^ wanting)
                text = f"{told.mode.name} for {told.message.topic} by {told.asker}: {odd}"
                self._complain("wrong receivers", text)
        names = {name for name, _ in wanting}
        if set(real.seen) != names:
            text = f"what {real.asker} published so: {sorted(set(real.seen) ^ names)}"
            self._complain("wrong deliveries", text)

    def _judge_why(self, told: Told, name: str) -> None:
        rows = [row for report in told.reports for row in report["subject"]]
        gets = {(name, row["subscription"]) for row in rows if row["gets"]}
        wanting = {one for one in self._wanting(told.message) if one[0] == name}
        if gets != wanting:
            self._complain("wrong reason", f"WHY of {name}: {sorted(gets ^ wanting)}")
        for row in rows:
            failed = row["reason"] in ("pattern", "selector-false", "selector-unknown")
            if not row["gets"] and not failed:
                self._complain("wrong reason", f"WHY of {name} says {row['reason']}")

    def _judge_travel(self, told: Told, subject: Visit) -> None:
        """Who is further away was told: by each node, of all but the way to the subscriber."""
        known = {report["node"]: report for report in told.reports}
        home = next(
            (one["node"] for one in told.reports if one["name"] == subject.node[0]),
            "",
        )
        if len(known) != len(self._brokers) or not home:
            self._complain("incomplete", f"FILTER came to {len(known)} of {len(self._brokers)}")
            return
        waiting, seen = [home], {home}
        while waiting:
            node = waiting.pop()
            for row in known[node]["told"]:
                if row["node"] not in seen:
                    seen.add(row["node"])
                    waiting.append(row["node"])
                    if row["reason"] not in TOLD:
                        text = f"{known[node]['name']} told {row['name']}: {row['reason']}"
                        self._complain("untold", text)
