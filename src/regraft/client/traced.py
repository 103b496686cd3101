"""What nodes report about a trace, put together: who gets a message, why not, how a filter went.

A report is a dict, one for each node: see `docs/trace.md`. What nodes do not say is not guessed: a
node that was asked and reported nothing is `missing`, and the whole is not `complete`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from regraft.model.reasons import reason_text

Report = dict[str, Any]
Row = dict[str, Any]
Step = tuple[Report, tuple[bool, ...]]  # a report, and whether it and those above it are last

TOLD = ("told", "covered", "kept-told")


@dataclass(slots=True)
class Traced:
    """What all nodes said."""

    reports: list[Report]
    complete: bool  # every node that was to report did
    reason: str = ""  # why not

    @property
    def by_node(self) -> dict[str, Report]:
        """The reports, by the ids of their nodes."""
        return {str(report["node"]): report for report in self.reports}

    @property
    def missing(self) -> list[str]:
        """Nodes that were asked, and said nothing: their names, or the beginnings of their ids."""
        known, found = self.by_node, {}
        for report in self.reports:
            names = {row["node"]: row["name"] for row in neighbours(report)}
            for node in report["asked"]:
                if node not in known:
                    found[node] = names.get(node) or node[:8]
        return sorted(found.values())

    @property
    def receivers(self) -> list[Row]:
        """Who gets it: rows of all nodes, each with the name of its node as `at`."""
        found = []
        for report in self.reports:
            rows = [row for row in report.get("takers", ()) if row["gets"]]
            if any(row["kind"] == "member" for row in rows):  # who was chosen is known
                rows = [row for row in rows if row["reason"] != "one-of"]
            found += [{**row, "at": name_of(report)} for row in rows]
        return found

    def walk(self, start: str = "") -> Iterator[Step]:
        """Each report once, beginning with that of the first node, or of another one."""
        known = self.by_node
        if not known:
            return
        beside: dict[str, list[str]] = {node: [] for node in known}
        for node, report in known.items():
            if report["from"] in known:
                beside[node].append(report["from"])
                beside[report["from"]].append(node)
        first = start or next((n for n in known if not known[n]["from"]), next(iter(known)))
        seen = {first}
        stack: list[tuple[str, tuple[bool, ...]]] = [(first, ())]
        while stack:
            node, lasts = stack.pop()
            yield known[node], lasts
            below = sorted(
                (one for one in beside[node] if one not in seen),
                key=lambda one: (known[one]["name"], one),
            )
            seen.update(below)
            for place, one in reversed(list(enumerate(below))):
                stack.append((one, (*lasts, place == len(below) - 1)))

    def way_to(self, node: str) -> list[Report]:
        """The reports from the first node to another one."""
        known = self.by_node
        way: list[Report] = []
        while node in known and len(way) <= len(known):
            way.append(known[node])
            node = known[node]["from"]
        return way[::-1]

    def as_data(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "complete": self.complete,
            "reason": self.reason,
            "missing": self.missing,
            "reports": [report for report, _ in self.walk()],
        }


@dataclass(slots=True)
class Travelled(Traced):
    """How one subscription travelled: what each node told its neighbours of it."""

    home: str = ""  # the id of the node where it was made
    row: Row = field(default_factory=dict)  # the subscription

    def as_data(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {"home": self.home, "subscription": self.row, **Traced.as_data(self)}


@dataclass(slots=True)
class Why(Traced):
    """Why a subscriber gets a message, or does not."""

    subscriber: str = ""  # as it was asked for
    travelled: Travelled | None = None  # of a subscription that would take it, but is not reached

    @property
    def subject(self) -> list[Row]:
        """Its subscriptions, each with what becomes of the message there, and the node as `at`."""
        found = []
        for report in self.reports:
            for row in report.get("subject", ()):
                row = {**row, "at": name_of(report), "node": report["node"]}
                if row["gets"] and self.stopped:
                    row |= {"gets": False, "reason": "stopped"}
                elif row["reason"] == "kept" and report["from"] and not self._keeps(row["name"]):
                    row |= {"gets": False, "reason": "home-unknown"}
                found.append(row)
        return found

    @property
    def stopped(self) -> list[Row]:
        """What keeps the message from going anywhere, where it is published."""
        return [stop for one in self.reports if not one["from"] for stop in one["stopped"]]

    def _keeps(self, mailbox: str) -> bool:
        """Whether the node where it is published keeps it for this mailbox of another one."""
        return any(
            row["gets"] and row.get("name") == mailbox
            for report in self.reports
            if not report["from"]
            for row in report.get("takers", ())
        )

    @property
    def found(self) -> bool:
        """Whether there is such a subscriber."""
        return bool(self.subject)

    @property
    def gets(self) -> bool:
        """Whether it would get the message."""
        return any(row["gets"] for row in self.subject)

    def reasons(self) -> list[str]:
        """It in sentences."""
        subject = self.subject
        if not subject:
            where = "at the nodes that answered" if not self.complete else "anywhere"
            return [f"{self.subscriber} has no subscription {where}"]
        lines: list[str] = []
        for row in subject:
            lines += explain_row(row)
        lines += [f"where it is published: {stop_text(stop)}" for stop in self.stopped]
        if any(row["reason"] == "unreached" for row in subject):
            lines += self._unreached(subject[0]["node"])
        return lines

    def _unreached(self, node: str) -> Iterator[str]:
        """Where on its way the message ends."""
        way = self.way_to(node)
        for here, there in pairwise(way):
            for row in here.get("links", ()):
                if row["node"] == there["node"] and not row["goes"]:
                    to = f"node {name_of(here)} does not send it to node {name_of(there)}"
                    yield f"{to}: {reason_text(row['reason'])}"
                    if row["reason"] == "no-interest":
                        yield from self._untold(there["node"], here["node"])
                    return

    def _untold(self, teller: str, told: str) -> Iterator[str]:
        report = self.travelled.by_node.get(teller) if self.travelled is not None else None
        for row in (report or {}).get("told", ()):
            if row["node"] == told:
                said = f"what node {name_of(report or {})} told it of the subscription"
                yield f"{said}: {reason_text(row['reason'])}"

    def as_data(self) -> dict[str, Any]:
        """All of it, for programs."""
        found = {"gets": self.gets, "found": self.found, "subject": self.subject}
        travelled = self.travelled.as_data() if self.travelled is not None else None
        rest = Traced.as_data(self)
        return {**found, "reasons": self.reasons(), "travelled": travelled, **rest}


def neighbours(report: Report) -> list[Row]:
    """The neighbours that a report names."""
    return [*report.get("links", ()), *report.get("told", ())]


def name_of(report: Report) -> str:
    """A node's name for people."""
    return str(report.get("name") or str(report.get("node", ""))[:8])


def stop_text(stop: Row) -> str:
    """What stops a message, for people."""
    more = f": {stop['text']}" if stop.get("text") else ""
    return f"{reason_text(stop['reason'])}{more}"


def filter_text(row: Row) -> str:
    """A filter for people."""
    if "pattern" not in row:
        return ""
    exact = " exactly" if row.get("exact") else ""
    where = f" where {row['selector']}" if row.get("selector") else ""
    return f"{row['pattern'] or '#'}{exact}{where}"


def subject_text(row: Row) -> str:
    """A subscription for people."""
    number = f" {row['subscription']}" if row.get("subscription") else ""
    name = f" {row['name']}" if row.get("name") else ""
    filter = filter_text(row)
    return f"{row['kind']}{name or number}{' to ' + filter if filter else ''}"


def explain_row(row: Row) -> Iterator[str]:
    """A subscription and what becomes of the message there; then the parts that are not true."""
    more = f": {row['text']}" if row.get("text") else ""
    mark = "gets it" if row["gets"] else "does not get it"
    head = f"{subject_text(row)} at node {row['at']} {mark}"
    why = "" if row["reason"] == "delivered" else f": {reason_text(row['reason'])}"
    yield f"{head}{why}{more}"
    for culprit in row.get("culprits", ()):
        values = ", ".join(f"{name} is {value}" for name, value in culprit["values"].items())
        yield f"  {culprit['part']} is {culprit['result']}{': ' + values if values else ''}"
