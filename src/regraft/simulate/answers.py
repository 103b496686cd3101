"""Judges questions and replies by what clients saw. It knows nothing of nodes.

Rules:

- Nobody is asked twice, and nothing is replied that nobody said, twice, or in another order.
- What is called complete is: everybody who was asked is done, and all they said has come. Its
  counts are right.
- What is complete is called so, if nothing went wrong meanwhile, or shortly before.
- Every question has an end in its time.
- Nobody is asked who cannot have had the context that a question is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from regraft.simulate.checkers import Complaint
from regraft.simulate.floors import ANY, MS, Floors


@dataclass(slots=True)
class Asked:
    """One client was asked."""

    ns: int
    said: int = 0  # replies that it sent
    done_ns: int = -1  # when it said the last word
    failed: bool = False
    got: int = 0  # replies of it that came to the asker


@dataclass(slots=True)
class Inquiry:
    """One question, as everybody saw it."""

    label: str
    asker: str
    ns: int
    lasts_ms: int
    floor: int  # that repliers are to be on
    quiet: bool = False  # asked when all was well again
    owed: frozenset[str] = frozenset()  # who has to be asked, if it is quiet
    asked: dict[str, Asked] = field(default_factory=dict)
    expected: int = -1
    ended_ns: int = -1
    complete: bool = False
    repliers: int = 0
    replies: int = 0
    reason: str = ""


class Answers:
    """Takes down what happens, and judges it."""

    def __init__(self, floors: Floors | None = None) -> None:
        self.inquiries: dict[str, Inquiry] = {}
        self.floors = floors if floors is not None else Floors()
        self.gone: dict[str, int] = {}
        self.wrong: list[Complaint] = []
        self.counts = dict.fromkeys(("asked", "replies", "complete", "incomplete"), 0)

    def _complain(self, kind: str, text: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(Complaint(kind, text))

    # ----------------------------------------------------------------- what happens

    def ask(self, inquiry: Inquiry) -> None:
        """Somebody asks."""
        self.inquiries[inquiry.label] = inquiry
        self.counts["asked"] += 1

    def came(self, label: str, client: str, ns: int) -> Asked:
        """A question came to somebody who replies."""
        inquiry = self.inquiries[label]
        if client in inquiry.asked:
            self._complain("asked twice", f"{client} was asked {label} twice")
        if inquiry.floor != ANY and not self.floors.may_be_on(client, inquiry.floor, ns):
            self._complain("context", f"{client} was asked {label}, on another floor")
        asked = inquiry.asked[client] = Asked(ns)
        return asked

    def replied(self, label: str, client: str, number: int) -> None:
        """A reply came to the asker."""
        inquiry = self.inquiries[label]
        self.counts["replies"] += 1
        asked = inquiry.asked.get(client)
        if inquiry.ended_ns >= 0:
            self._complain("late reply", f"a reply of {client} to {label} came after the end")
        elif asked is None or number >= asked.said:
            self._complain("invented", f"a reply of {client} to {label}, who said nothing")
        elif number < asked.got:
            self._complain("repeated", f"reply {number} of {client} to {label} came twice")
        else:
            asked.got = number + 1
            inquiry.replies += 1

    def counted(self, label: str, repliers: int) -> None:
        """The asker was told how many there are."""
        self.inquiries[label].expected = repliers

    def ended(
        self, label: str, repliers: int, replies: int, complete: bool, reason: str, ns: int
    ) -> None:
        """The asker was told that it is over."""
        inquiry = self.inquiries[label]
        if inquiry.ended_ns >= 0:
            self._complain("ended twice", f"{label} ended twice")
        inquiry.ended_ns, inquiry.complete, inquiry.reason = ns, complete, reason
        inquiry.repliers = repliers
        self.counts["complete" if complete else "incomplete"] += 1
        if not complete:
            return
        if replies != inquiry.replies:
            text = f"{label}: {inquiry.replies} replies came, and {replies} were counted"
            self._complain("count", text)
        if inquiry.expected >= 0 and inquiry.expected != repliers:
            self._complain("count", f"{label}: {inquiry.expected} expected, {repliers} in the end")

    # -------------------------------------------------------------------- the verdict

    def judge(self, end_ns: int, disturbed: list[tuple[int, int]]) -> Iterator[Complaint]:
        """What was wrong. `disturbed` are times, from and until, when nothing is promised."""
        yield from self.wrong
        for inquiry in self.inquiries.values():
            yield from self._judge(inquiry, end_ns, disturbed)

    def _judge(
        self, inquiry: Inquiry, end_ns: int, disturbed: list[tuple[int, int]]
    ) -> Iterator[Complaint]:
        label = inquiry.label
        if inquiry.ended_ns < 0:
            late = end_ns > inquiry.ns + inquiry.lasts_ms * MS + 1000 * MS
            if late and inquiry.asker not in self.gone:
                yield Complaint("endless", f"{label} of {inquiry.asker} never ended")
            return
        undone = [
            client
            for client, asked in inquiry.asked.items()
            if not 0 <= asked.done_ns <= inquiry.ended_ns or asked.failed
        ]
        if inquiry.complete:
            if undone:
                text = f"{label} is called complete, and {undone[0]} is not done"
                yield Complaint("not complete", text)
            if inquiry.repliers != len(inquiry.asked):
                text = f"{label}: {inquiry.repliers} were counted, {len(inquiry.asked)} asked"
                yield Complaint("not complete", text)
            for client, asked in inquiry.asked.items():
                if asked.got != asked.said:
                    text = f"{label}: {asked.got} of {asked.said} replies of {client} came"
                    yield Complaint("not complete", text)
            missing = inquiry.owed - inquiry.asked.keys()
            if missing:
                yield Complaint("not asked", f"{label}: {', '.join(sorted(missing))}")
            return
        calm = not any(a <= inquiry.ended_ns and b >= inquiry.ns for a, b in disturbed)
        if calm and not undone:
            text = f"{label} is complete, and called not so: {inquiry.reason}"
            yield Complaint("complete", text)
