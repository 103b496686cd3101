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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.simulate.checkers import NEVER
from regraft.simulate.deliveries import Subscription, Visit
from regraft.simulate.network import MS
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import COLORS, TOPICS, TROUBLE_MS, Act, Plan, make_plan
from regraft.wire import native
from regraft.wire.questions import Counted, Ended, Reply
from regraft.wire.traces import Trace, TraceMode

BODY = b"trace "
LASTS_MS = 3000
LATE_NS = 1000 * MS
REPAIRED_MS = 8000  # after which nodes do not expect any more that somebody is missing
ROUND = 3  # messages that are traced in the end
TOLD = ("told", "covered")
MISMATCHES = ("pattern", "selector-false", "selector-unknown")

Receiver = tuple[str, int]  # a guest, and a subscription of it
Judgement = Callable[[], None]


def trace_plan(seed: int) -> Plan:
    """The plan of a seed: troubles and guests as elsewhere, and traces among them."""
    random = Random(f"traces {seed}")
    nodes = random.choice((2, 3, 4, 5, 6, 7, 9))
    plan = make_plan(seed, "liveness", nodes, random.choice((2000, 4000)), 0.5, disks=False)
    acts = [*plan.acts, *tracing(random, plan.end_ms, random.choice((4, 8)))]
    acts.sort(key=lambda act: act.ms)
    return plan.without(acts)


def tracing(random: Random, end_ms: float, count: int) -> Iterator[Act]:
    """So many traces while things go wrong."""
    for _ in range(count):
        ms = random.uniform(TROUBLE_MS - 500, end_ms)
        mode = random.choice(list(TraceMode))
        yield Act(ms, "trace", (random.randrange(8), int(mode), random.randrange(12)))


@dataclass(slots=True)
class Told:
    """A trace, as its asker saw it."""

    asker: str
    mode: TraceMode
    message: Message
    ns: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    ended: Ended | None = None
    seen: dict[Receiver, int] = field(default_factory=dict)  # who got it, and how often

    @property
    def receivers(self) -> set[Receiver]:
        """Who gets it, by the reports."""
        rows = (row for report in self.reports for row in report.get("takers", ()))
        return {(row["client"], row.get("subscription", 0)) for row in rows if row["gets"]}


@dataclass
class TraceStory(NetworkStory):
    """What happens as such a plan says."""

    traces: dict[int, Told] = field(default_factory=dict)  # by token

    @property
    def about(self) -> str:
        """It in a line."""
        reports = sum(len(told.reports) for told in self.traces.values())
        return f"traces at {self.plan.nodes} nodes, {len(self.traces)} traces, {reports} reports"

    def _trace(self, number: int, mode: int, n: int) -> bool:
        visit = self._visits.get(number)
        if visit is None or visit.guest.welcome is None:
            return False
        message = self._compose(visit, TOPICS[n % len(TOPICS)], n, COLORS[n % 3])
        self._send_trace(visit, TraceMode(mode), message)
        return True

    def _send_trace(self, visit: Visit, mode: TraceMode, message: Message, **more: Any) -> Told:
        token = self._next()
        message = replace(message, body=BODY + str(token).encode())
        told = self.traces[token] = Told(visit.guest.name, mode, message, self.world.ns)
        envelope = b"" if mode == TraceMode.FILTER else encode_envelope(message)
        if mode in (TraceMode.WHY, TraceMode.FILTER) and not more:
            more = {"client": visit.guest.name}
        frame = Trace(token=token, lasts_ms=LASTS_MS, envelope=envelope, mode=mode, **more)
        self._line(f"trace {mode.name} {message.topic} by {visit.guest.name}")
        visit.guest.pipe.send(native.encode(frame))
        return told

    def _answered(self, visit: Visit, message: Any) -> None:
        if not isinstance(message, Reply | Counted | Ended) or message.token not in self.traces:
            super()._answered(visit, message)
            return
        told = self.traces[message.token]
        if isinstance(message, Reply):
            told.reports.append(json.loads(decode_envelope(message.envelope).body))
        elif isinstance(message, Ended):
            if told.ended is not None:
                self._complain("ended twice", f"a trace of {told.asker}")
            told.ended = message

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        if not message.body.startswith(BODY):
            super()._seen(visit, message)
            return
        told, name = self.traces[int(message.body.removeprefix(BODY))], visit.guest.name
        for id in message.subscriptions:
            told.seen[name, id] = told.seen.get((name, id), 0) + 1
            if not self._takes(visit.subscriptions[id], told.message)[1]:
                self._complain("unwanted", f"{name} got a trace by subscription {id}")

    def _takes(self, one: Subscription, message: Message) -> tuple[bool, bool]:
        """Whether a node must give a message to a subscription, and whether it may."""
        return (one.filter.takes(message),) * 2

    # ------------------------------------------------------------------------- verdicts

    def _judge(self) -> None:
        super()._judge()
        for told in self.traces.values():
            about = f"a trace ({told.mode.name}) of {told.asker}"
            late = self.world.ns > told.ns + LASTS_MS * MS + LATE_NS
            if told.ended is None and late and told.asker not in self._gone:
                self._complain("endless", f"{about} never ended")
            twice = [name for (name, _), times in told.seen.items() if times > 1]
            if twice:
                self._complain("repeated", f"{twice[0]} got what {about} published twice")
            if told.seen and told.mode != TraceMode.PUBLISH:
                self._complain("published", f"{about} came to {sorted(told.seen)}")
            nodes = [report["node"] for report in told.reports]
            if len(nodes) != len(set(nodes)):
                self._complain("reported twice", f"{about}: a node reported twice")
            ended, came = told.ended, (len(nodes), len(nodes))
            if ended and ended.complete and (ended.replies, ended.repliers) != came:
                self._complain("count", f"{about} is complete, and reports are missing")

    def _given(self, message: Message) -> tuple[set[Receiver], set[Receiver]]:
        """Who is given a message, by what guests have subscribed to, at least and at most."""
        least: set[Receiver] = set()
        most: set[Receiver] = set()
        for visit in self._visits.values():
            for one in visit.subscriptions.values():
                if one.until_ns == NEVER:
                    must, may = self._takes(one, message)
                    least.update([(one.guest, one.id)] if must else ())
                    most.update([(one.guest, one.id)] if may else ())
        return least, most

    def _last_round(self) -> None:
        """All is well: reports must be right."""
        self.world.advance(REPAIRED_MS)
        random = Random(f"last traces {self.plan.seed}")
        visits = [visit for visit in self._visits.values() if visit.guest.welcome is not None]
        judgements: list[Judgement] = []
        for _ in range(ROUND if visits else 0):
            visit = random.choice(visits)
            what = (random.choice(TOPICS), random.randrange(12), random.choice(COLORS))
            judgements += self._trace_all(random, visit, self._compose(visit, *what))
        self.world.advance(LASTS_MS + 1000)
        for judge in judgements:
            judge()
        super()._last_round()

    def _trace_all(self, random: Random, visit: Visit, message: Message) -> Iterator[Judgement]:
        """Trace a message and a subscription in all ways; what is to be judged a while later."""
        for mode in (TraceMode.WHO, TraceMode.PUBLISH):
            yield partial(self._judge_receivers, self._send_trace(visit, mode, message))
        subject = random.choice(list(self._visits.values()))
        why = self._send_trace(visit, TraceMode.WHY, message, client=subject.guest.name)
        yield partial(self._judge_why, why, subject)
        wanted = [
            one
            for one in subject.subscriptions.values()
            if one.until_ns == NEVER and not one.filter.band  # filters of guests are not followed
        ]
        if wanted:
            one = random.choice(wanted)
            pattern, exact = subject.guest.asked[one.id]
            about = {"pattern": pattern, "exact": exact, "selector": one.filter.selector}
            told = self._send_trace(visit, TraceMode.FILTER, message, **about, filtered=True)
            yield partial(self._judge_travel, told, one)

    def _judge_receivers(self, told: Told) -> None:
        what = f"{told.mode.name} for {told.message.topic} by {told.asker}"
        if told.ended is None or not told.ended.complete:
            reason = told.ended.reason if told.ended is not None else "no end"
            self._complain("incomplete", f"{what} though all is well: {reason}")
            return
        self._compare("wrong receivers", what, told.receivers, self._given(told.message))
        if told.mode == TraceMode.PUBLISH and set(told.seen) != told.receivers:
            odd = sorted(set(told.seen) ^ told.receivers)
            self._complain("wrong deliveries", f"{what}: {odd}")

    def _compare(
        self, kind: str, what: str, said: set[Receiver], true: tuple[set[Receiver], set[Receiver]]
    ) -> None:
        least, most = true
        if not least <= said <= most:
            self._complain(kind, f"{what}: without {sorted(least - said)}, {sorted(said - most)}")

    def _judge_why(self, told: Told, subject: Visit) -> None:
        name = subject.guest.name
        rows = [row for report in told.reports for row in report["subject"]]
        gets = {(name, row["subscription"]) for row in rows if row["gets"]}
        least, most = self._given(told.message)
        mine = {(name, id) for id in subject.subscriptions}
        self._compare("wrong reason", f"WHY of {name}", gets, (least & mine, most & mine))
        for row in rows:
            one = subject.subscriptions[row["subscription"]]
            if not row["gets"] and row["reason"] not in self._reasons(one, told.message):
                self._complain("wrong reason", f"WHY of {name} says {row['reason']}")

    def _reasons(self, one: Subscription, message: Message) -> tuple[str, ...]:
        """Why a subscription may not get a message."""
        return MISMATCHES

    def _judge_travel(self, told: Told, one: Subscription) -> None:
        """Who is further away was told: by each node, of all but the way to the subscriber."""
        known = {report["node"]: report for report in told.reports}
        home = next((row["node"] for row in told.reports if row["name"] == one.node[0]), "")
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
                    if row["reason"] not in self._tellings(node, row["node"], one):
                        text = f"{known[node]['name']} told {row['name']}: {row['reason']}"
                        self._complain("untold", text)

    def _tellings(self, node: str, other: str, one: Subscription) -> tuple[str, ...]:
        """What a node may have told another that is further away of a subscription."""
        return TOLD
