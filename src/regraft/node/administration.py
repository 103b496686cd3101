"""Commands about mailboxes, dead letters, delayed messages and topics. The table is at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from regraft.errors import DiskError, LocalError, RegraftError
from regraft.journal.format import Options, Range, TopicMade
from regraft.journal.streams import HOME, Mailbox
from regraft.kernels.plan import plan_of
from regraft.kernels.replay import Reader
from regraft.limits import Limits
from regraft.model.topics import check_pattern
from regraft.node.box import Box
from regraft.node.event import Now
from regraft.node.mailroom import Mailroom, check_here, check_name, check_same, read_options
from regraft.node.reading import FOREVER, Reading
from regraft.node.router import Router

Arguments = dict[str, Any]
Answer = dict[str, Any]
Done = Callable[[Answer | RegraftError, Now], None]

ROWS_MAX = 1000
QUESTIONS = ("queue-list", "queue-show", "delayed-list", "topic-list", "topic-show")


class Administration:
    """What an administrator can have done with what a node keeps."""

    def __init__(self, mailroom: Mailroom, router: Router, limits: Limits, name: str) -> None:
        self._mailroom = mailroom
        self._journal = mailroom.journal
        self._router = router
        self._limits = limits
        self._name = name  # of the node
        self._see_topics()

    def command(self, what: str, data: bytes, now: Now, done: Done) -> None:
        """Do what somebody wants, and say what came of it, at once or later; or raise why not."""
        arguments = _Arguments(what, data)
        if what not in QUESTIONS:
            self._mailroom.check_journal()
        answer = COMMANDS[what](self, arguments, now, done)
        arguments.check()
        if answer is not None:
            self._mailroom.when_safe(lambda now: done(answer, now), now, None)

    # ------------------------------------------------------------------------ mailboxes

    def _create(self, given: _Arguments, now: Now, done: Done) -> Answer:
        name, text = given.text("name"), given.text("where", "")
        topic, exact = given.text("topic", ""), given.flag("exact")
        options = self._options(given.value("options", {}))
        given.check()
        check_pattern(topic)
        plan = plan_of(text, self._limits.selector_bytes) if text else None
        mailbox = self._journal.state.mailboxes.get(name)
        if mailbox is None:
            if plan is not None:
                self._router.check_cost(plan)
            mailbox = self._mailroom.make(name, topic, exact, plan, "", options, now)
        else:
            check_same(mailbox, topic, exact, plan.text if plan else "", options)
        return {"queue": self._row(mailbox)}

    def _options(self, value: Any) -> Options:
        return read_options(json.dumps(value).encode())

    def _change(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailbox = self._mailroom.mailbox(given.text("name"))
        changed = given.value("options", {})
        given.check()
        _not_own(mailbox)
        if not isinstance(changed, dict):
            raise LocalError("bad-message", "options are a JSON object")
        known = msgspec.to_builtins(mailbox.options)
        options = self._options({**known, **changed})
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is not None and len(box.members) > 1 and not options.many:
            raise LocalError("mailbox-in-use", f"several read mailbox {mailbox.name!r} now")
        self._journal.change_mailbox(mailbox.number, mailbox.name, options, now.wall_us)
        if box is not None:
            self._mailroom.boxes.changed(box, now)
        return {"queue": self._row(mailbox)}

    def _list(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailboxes = self._journal.state.boxes
        return {"queues": [self._row(one) for one in mailboxes if not one.name.startswith(HOME)]}

    def _move(self, given: _Arguments, now: Now, done: Done) -> None:
        name, node = given.text("name"), given.text("from", "")
        given.check()
        if self._mailroom.move is None:
            raise LocalError("not-supported", "this node takes part in no network")

        def told(error: RegraftError | None, now: Now) -> None:
            mailbox = self._journal.state.mailboxes.get(name)
            gone = LocalError("unknown-mailbox", f"mailbox {name!r} was removed meanwhile")
            if error is None and mailbox is not None:
                done({"queue": self._row(mailbox)}, now)
            else:
                done(error or gone, now)

        self._mailroom.move(name, node, told, now)

    def _show(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailbox = self._mailroom.mailbox(given.text("name"))
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        members: list[Answer] = []
        if box is not None:
            active = list(box.active())
            members = [
                {
                    "client": member.client,
                    "subscription": member.id,
                    "held": member.hand.count,
                    "in_flight": member.in_flight,
                    "active": member in active,
                }
                for member in box.members.values()
            ]
        return {"queue": self._row(mailbox), "members": members}

    def _row(self, mailbox: Mailbox) -> Answer:
        self._journal.refresh(mailbox)
        number, places = mailbox.number, self._journal.places
        box = self._mailroom.boxes.boxes.get(number) or Box(mailbox, 0, 0)
        return {
            "name": mailbox.name,
            "topic": mailbox.pattern or "#",
            "where": mailbox.selector,
            "exact": mailbox.exact,
            "options": msgspec.to_builtins(mailbox.options),
            "owner": mailbox.owner,
            "next": mailbox.next_sequence,
            "floor": mailbox.floor,
            "waiting": mailbox.waiting,
            "waiting_bytes": mailbox.waiting * mailbox.average,
            "held": box.held,
            "returned": box.returned,
            "members": len(box.members),
            "full": number in self._journal.quotas.full,
            "dead": box.dead,
            "expired": box.expired,
            "oldest_us": places.about(number, mailbox.floor) if mailbox.waiting else 0,
            "moved_from": mailbox.came.node if mailbox.came is not None else "",
            "moved_to": mailbox.home.node if mailbox.home is not None else "",
        }

    def _purge(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailbox = self._mailroom.mailbox(given.text("name"))
        given.check()
        _not_own(mailbox)
        box = self._mailroom.boxes.box(mailbox)
        return {"purged": self._mailroom.settlements.purge(box, now)}

    def _remove(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailbox = self._mailroom.mailbox(given.text("name"))
        force = given.flag("force")
        given.check()
        _not_own(mailbox)
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is not None and box.members and not force:
            raise LocalError("mailbox-in-use", f"mailbox {mailbox.name!r} has members; use force")
        self._mailroom.remove(mailbox, now)
        return {}

    def _rename(self, given: _Arguments, now: Now, done: Done) -> Answer:
        mailbox, to = self._mailroom.mailbox(given.text("name")), given.text("to")
        given.check()
        _not_own(mailbox)
        check_name(to)
        if to in self._journal.state.mailboxes:
            raise LocalError("mailbox-in-use", f"there is a mailbox {to!r} already")
        self._journal.change_mailbox(mailbox.number, to, mailbox.options, now.wall_us)
        return {}

    def _seek(self, given: _Arguments, now: Now, done: Done) -> Answer | None:
        mailbox = self._mailroom.mailbox(given.text("name"))
        sequence, time_us = given.number("sequence", 0), given.number("time_us", 0)
        given.check()
        _not_own(mailbox)
        if (sequence > 0) == (time_us > 0):
            raise LocalError("bad-message", "queue-seek needs a sequence, or a time_us")
        self._check_alone(mailbox)
        if sequence:
            return self._begin_at(mailbox, sequence, now)

        def found(sequence: int, now: Now) -> None:
            try:
                self._mailroom.mailbox(mailbox.name)  # much may have happened meanwhile
                self._check_alone(mailbox)
            except LocalError as error:
                done(error, now)
                return
            answer = self._begin_at(mailbox, sequence, now)
            self._mailroom.when_safe(lambda now: done(answer, now), now, None)

        self._find_time(mailbox, time_us, found, done, now)
        return None

    def _check_alone(self, mailbox: Mailbox) -> None:
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is not None and box.members:
            raise LocalError("mailbox-in-use", f"mailbox {mailbox.name!r} has members")

    def _begin_at(self, mailbox: Mailbox, sequence: int, now: Now) -> Answer:
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is not None:
            self._mailroom.boxes.forget(box)
        return {"next": self._journal.seek(mailbox.number, sequence, now.wall_us)}

    def _find_time(
        self,
        mailbox: Mailbox,
        time_us: int,
        found: Callable[[int, Now], None],
        done: Done,
        now: Now,
    ) -> None:
        """Find the first message that is as new as that; or, if none is, the one to come."""
        readings = self._mailroom.boxes.readings
        reader = Reader([mailbox.number], None, None)
        reader.since_us = time_us

        def go_on(now: Now) -> None:
            began = now._replace(wall_us=0)  # so that nothing has expired
            while (place := readings.look(reading, now)) is not None:
                if not readings.fill(reading, place, FOREVER, 1, FOREVER, b"", began):
                    break
                if reader.messages:
                    readings.end(reading)
                    found(reader.runs[0][0], now)
                    return
            if reading.idle:
                readings.end(reading)
                found(FOREVER, now)

        def fail(text: str, now: Now) -> None:
            readings.end(reading)
            done(DiskError("journal-failed", text), now)

        reading = Reading(mailbox, reader, mailbox.first_sequence(), go_on, fail)
        reading.from_us = time_us
        go_on(now)

    # ------------------------------------------------------------ delayed, dead letters

    def _delayed(self, given: _Arguments, now: Now, done: Done) -> Answer:
        delays = self._mailroom.delays
        rows = min(given.number("rows", 100), ROWS_MAX)
        return {"delayed": delays.rows(rows), "count": delays.count}

    def _cancel(self, given: _Arguments, now: Now, done: Done) -> Answer:
        id = given.number("id")
        given.check()
        return {"cancelled": self._mailroom.delays.cancel(id, now)}

    def _retry(self, given: _Arguments, now: Now, done: Done) -> None:
        mailbox = self._mailroom.mailbox(given.text("mailbox"))
        ranges, everything = given.value("ranges", []), given.flag("all")
        to = given.text("to", "")
        given.check()
        if everything:
            ranges = [[mailbox.floor, mailbox.next_sequence - 1]]
        if not _are_ranges(ranges):
            raise LocalError("bad-message", "dlq-retry needs ranges, [[first, last], ...], or all")
        _not_own(mailbox)
        if to:
            _not_own(self._mailroom.mailbox(to))
        self._check_alone(mailbox)
        wanted: list[Range] = [(first, last) for first, last in ranges]
        self._mailroom.graves.retry(mailbox, wanted, to, now, done)

    # --------------------------------------------------------------------------- topics

    def _topic_create(self, given: _Arguments, now: Now, done: Done) -> Answer:
        name = given.text("name")
        topic = TopicMade(
            name,
            given.text("topic", "") or name,
            given.flag("exact"),
            given.flag("retain"),
            given.number("keep_s", 0),
            given.number("keep_bytes", 0),
            given.flag("persistent"),
            given.number("quota_messages", 0),
            given.number("quota_bytes", 0),
            given.text("holder", ""),
        )
        given.check()
        check_name(name)
        check_pattern(topic.topic)
        if topic.holder not in ("", self._name):
            raise LocalError(
                "not-supported", f"this node is {self._name!r}; it holds its own streams only"
            )
        known = self._journal.state.names.get(name)
        if topic.retain and known is None:
            stream = self._journal.make_stream(name, topic.topic, topic.exact, now.wall_us)
            self._mailroom.route(stream)
        elif known is not None and (known.pattern, known.exact) != (topic.topic, topic.exact):
            raise LocalError("mailbox-differs", f"stream {name!r} retains {known.pattern!r}")
        self._journal.administer(topic, now.wall_us)
        self._see_topics()
        return {"topic": self._topic_row(topic)}

    def _topic_list(self, given: _Arguments, now: Now, done: Done) -> Answer:
        return {"topics": [self._topic_row(one) for one in self._journal.state.topics.values()]}

    def _topic_show(self, given: _Arguments, now: Now, done: Done) -> Answer:
        return {"topic": self._topic_row(self._topic(given.text("name")))}

    def _topic_remove(self, given: _Arguments, now: Now, done: Done) -> Answer:
        topic = self._topic(given.text("name"))
        given.check()
        stream = self._journal.state.names.get(topic.name)
        if topic.retain and stream is not None:
            self._mailroom.end_stream(stream, now)
        self._journal.forget_topic(topic.name, now.wall_us)
        self._see_topics()
        return {}

    def _topic(self, name: str) -> TopicMade:
        topic = self._journal.state.topics.get(name)
        if topic is None:
            known = ", ".join(sorted(self._journal.state.topics)) or "none is"
            raise LocalError("unknown-topic", f"no topic {name!r} is administered here: {known}")
        return topic

    def _topic_row(self, topic: TopicMade) -> Answer:
        stream = self._journal.state.names.get(topic.name)
        if stream is not None:
            self._journal.refresh(stream)
        row = msgspec.to_builtins(topic)
        row.pop("type", None)
        row["next"] = stream.next_sequence if stream is not None else 0
        row["bytes"] = stream.size if stream is not None else 0
        return dict(row)

    def _see_topics(self) -> None:
        """Tell the router which topics keep what is published to them, whatever it says."""
        topics = self._journal.state.topics.values()
        self._router.set_persistent([(one.topic, one.exact) for one in topics if one.persistent])


class _Arguments:
    """What a command was given, each looked at once."""

    def __init__(self, what: str, data: bytes) -> None:
        self._what = what
        try:
            given = json.loads(data or b"{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise LocalError("bad-message", f"{what} needs a JSON object")
        self._given = given

    def value(self, name: str, default: Any = None) -> Any:
        """Whatever it is."""
        found = self._given.pop(name, default)
        return default if found is None else found

    def text(self, name: str, default: str | None = None) -> str:
        found = self.value(name, default)
        if not isinstance(found, str) or (default is None and not found):
            raise LocalError("bad-message", f"{self._what} needs a text: {name}")
        return found

    def number(self, name: str, default: int | None = None) -> int:
        found = self.value(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 64:
            raise LocalError("bad-message", f"{self._what} needs a number: {name}")
        return found

    def flag(self, name: str) -> bool:
        found = self.value(name, False)
        if not isinstance(found, bool):
            raise LocalError("bad-message", f"{self._what}: {name} is true or false")
        return found

    def check(self) -> None:
        """Nothing may be left that nobody has looked at."""
        if self._given:
            names = ", ".join(sorted(self._given))
            raise LocalError("bad-message", f"{self._what} does not know {names}")


def _are_ranges(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(one, list)
            and len(one) == 2
            and all(isinstance(end, int) and 0 <= end < 1 << 62 for end in one)
            for one in value
        )
    )


def _not_own(mailbox: Mailbox) -> None:
    if mailbox.name.startswith("$"):
        raise LocalError("not-authorized", f"mailbox {mailbox.name} is the node's own")
    check_here(mailbox)


Command = Callable[[Administration, _Arguments, Now, Done], Answer | None]

COMMANDS: dict[str, Command] = {
    "queue-create": Administration._create,
    "queue-list": Administration._list,
    "queue-show": Administration._show,
    "queue-change": Administration._change,
    "queue-move": Administration._move,
    "queue-purge": Administration._purge,
    "queue-remove": Administration._remove,
    "queue-rename": Administration._rename,
    "queue-seek": Administration._seek,
    "delayed-list": Administration._delayed,
    "delayed-cancel": Administration._cancel,
    "dlq-retry": Administration._retry,
    "topic-create": Administration._topic_create,
    "topic-list": Administration._topic_list,
    "topic-show": Administration._topic_show,
    "topic-remove": Administration._topic_remove,
}
