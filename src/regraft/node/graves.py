"""Dead letters: what nobody could deal with, with the reason, and its way back.

A message that is rejected, was delivered too often, or has expired where that matters, is published
to a dead-letter topic, with attributes that say what happened to it. If nobody durable takes that
topic, the node makes a mailbox for it. It leaves its old mailbox with the very record that it is
published with; and so it goes back, when somebody has it sent again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from regraft.errors import DiskError, LocalError, RegraftError
from regraft.journal.format import Range
from regraft.journal.journal import Journal
from regraft.journal.ranges import Ranges
from regraft.journal.streams import Mailbox
from regraft.kernels.replay import Reader, keyed
from regraft.model.message import (
    DeliveryMode,
    Message,
    Timestamp,
    Value,
    decode_envelope,
)
from regraft.model.topics import matches
from regraft.node.box import Box, Then, Told
from regraft.node.boxes import Boxes
from regraft.node.delays import NAME as DELAYED
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.hand import Held
from regraft.node.press import Press
from regraft.node.reading import FOREVER, Reading, Readings
from regraft.wire import native

MAILBOX = "dead-letters"
TOPIC = "dead"  # and the name of the mailbox below it
OWNER = "$node"
HISTORY_MAX = 16  # deaths that a message remembers
TEXT_MAX = 500
AT_ONCE = 100  # sent again in one step


class Death(NamedTuple):
    """A message that is to become a dead letter."""

    box: Box
    sequence: int
    held: Held
    reason: str
    text: str
    then: Told | None


class Graves:
    """All that are on their way there, and back."""

    def __init__(
        self,
        journal: Journal,
        readings: Readings,
        press: Press,
        effects: list[Effect],
        when_safe: Callable[[Then, Now, Then | None], None],
        route: Callable[[Mailbox], None],
    ) -> None:
        self._journal = journal
        self._readings = readings
        self._press = press
        self._effects = effects
        self._when_safe = when_safe
        self._route = route
        self._deaths: deque[Death] = deque()
        self._going = False
        self._reading: Reading | None = None  # of the first of them
        self.boxes: Boxes | None = None

    def bury(
        self,
        box: Box,
        sequence: int,
        held: Held,
        reason: str,
        text: str,
        now: Now,
        then: Told | None,
    ) -> None:
        """Have a message become a dead letter."""
        self._deaths.append(Death(box, sequence, held, reason, text, then))
        if len(self._deaths) == 1:
            self._go_on(now)

    def _go_on(self, now: Now) -> None:
        if self._going:
            return
        self._going = True
        try:
            while self._deaths and self._bury_next(now):
                pass
        finally:
            self._going = False

    def _bury_next(self, now: Now) -> bool:
        """Whether to go on."""
        death = self._deaths[0]
        mailbox = death.box.mailbox
        frame = None
        if mailbox.number in self._journal.state.streams:
            frame = self._frame(mailbox, death.sequence, now)
            if not self._deaths or self._deaths[0] is not death:
                return True  # it cannot be read
            if frame is None:
                return False  # until it was read
        self._deaths.popleft()
        self._end_reading()
        if frame is not None:
            self._publish(death, frame, now)
        return True

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._readings.end(self._reading)
            self._reading = None

    def _frame(self, mailbox: Mailbox, sequence: int, now: Now) -> bytes | None:
        """The message; None: not yet, or it cannot be read."""
        if self._reading is None:
            reader = Reader([mailbox.number], None, None)
            self._reading = Reading(mailbox, reader, sequence, self._go_on, self._fail)
            self._reading.ahead_allowed = False
        return frame_of(self._readings, self._reading, sequence, now)

    def _fail(self, text: str, now: Now) -> None:
        death = self._deaths.popleft()
        self._end_reading()
        self._spare(death, DiskError("journal-failed", text), now)
        self._go_on(now)

    def _publish(self, death: Death, frame: bytes, now: Now) -> None:
        assert self.boxes is not None
        mailbox = death.box.mailbox
        topic = mailbox.options.dead_letter or f"{TOPIC}/{mailbox.name}"
        message = decode_envelope(frame[native.HEADER_BYTES :])
        try:
            if _is_dead(message) and matches(mailbox.pattern, topic, mailbox.exact):
                # It is a place for the dead itself: what is rejected there is gone.
                gone = [(death.sequence, death.sequence)]
                self._journal.settle(mailbox.number, gone, now.wall_us)
                text = f"a dead letter of {mailbox.name} was rejected"
                self._effects.append(Note("warning", text))
            else:
                self._provide(topic, mailbox, now)
                self._press_letter(message, topic, death, now)
        except RegraftError as error:
            self._spare(death, error, now)
            return
        self.boxes.buried(death.box, death.sequence, now)
        if death.then is not None:
            self._when_safe(partial(death.then, None), now, None)

    def _press_letter(self, message: Message, topic: str, death: Death, now: Now) -> None:
        """Publish a dead letter; if there is no room for all that could be said, with less."""
        number = death.box.mailbox.number
        letter = dead_letter(message, topic, death, now)
        try:
            self._press.publish(native.encode(letter), number, death.sequence, now.wall_us)
        except LocalError as error:
            if error.code.name not in ("limit-exceeded", "bad-message"):
                raise
            told = {**message.attributes, "dead_reason": death.reason}
            brief = replace(letter, attributes=told)
            self._press.publish(native.encode(brief), number, death.sequence, now.wall_us)

    def _spare(self, death: Death, error: RegraftError, now: Now) -> None:
        assert self.boxes is not None
        text = f"mailbox {death.box.mailbox.name}: a dead letter has to wait: {error}"
        self._effects.append(Note("warning", text))
        self.boxes.spared(death.box, death.sequence, death.held, now)
        if death.then is not None:
            self._when_safe(partial(death.then, error), now, None)

    def _provide(self, topic: str, dying: Mailbox, now: Now) -> None:
        """See to it that somebody keeps dead letters."""
        for mailbox in self._journal.state.mailboxes.values():
            takes = mailbox is not dying and mailbox.name != DELAYED and not mailbox.selector
            if takes and matches(mailbox.pattern, topic, mailbox.exact):
                return
        below = topic.startswith(TOPIC + "/")
        name, pattern = (MAILBOX, TOPIC) if below else (topic, topic)
        if dying.name == name and matches(dying.pattern, topic, dying.exact):
            return  # it keeps its own
        made = self._journal.make_mailbox(name, pattern, False, "", OWNER, now.wall_us)
        self._route(made)
        self._effects.append(Note("info", f"mailbox {name} was made, for dead letters"))

    # -------------------------------------------------------------------- sending again

    def retry(
        self,
        mailbox: Mailbox,
        ranges: list[Range],
        to: str,
        now: Now,
        done: Callable[[dict[str, Any], Now], None],
    ) -> None:
        """Send dead letters back to where they came from, or to another mailbox."""
        wanted = Ranges(part for span in ranges for part in mailbox.unsettled(*span))
        waiting = deque(one for low, high in wanted for one in range(low, high + 1))
        reader = Reader([mailbox.number], None, None)
        sent = 0

        def fail(text: str, now: Now) -> None:
            self._readings.end(reading)
            done({"retried": sent, "left": len(waiting), "why": text}, now)

        def go_on(now: Now) -> None:
            nonlocal sent
            while waiting:
                frame = frame_of(self._readings, reading, waiting[0], now)
                if frame is None:
                    return
                try:
                    self._send_back(frame, mailbox, waiting[0], to, now)
                except RegraftError as error:
                    fail(str(error), now)
                    return
                waiting.popleft()
                sent += 1
            self._readings.end(reading)
            self._when_safe(lambda now: done({"retried": sent, "left": 0}, now), now, None)

        reading = Reading(mailbox, reader, waiting[0] if waiting else 1, go_on, fail)
        go_on(now)

    def _send_back(self, frame: bytes, mailbox: Mailbox, sequence: int, to: str, now: Now) -> None:
        if mailbox.home is not None:
            text = f"mailbox {mailbox.name!r} has moved to node {mailbox.home.node}"
            raise LocalError("mailbox-moved", text)
        message = decode_envelope(frame[native.HEADER_BYTES :])
        name = to or str(message.attributes.get("dead_mailbox", ""))
        alive = native.encode(revived(message))
        target = self._journal.state.mailboxes.get(name)
        place = mailbox.number, sequence, now.wall_us
        if target is not None:
            self._press.deliver(alive, target.slot, message.priority, *place)
        elif to:
            raise LocalError("unknown-mailbox", f"there is no mailbox {to!r}")
        else:
            self._press.publish(alive, *place)


def frame_of(readings: Readings, reading: Reading, sequence: int, now: Now) -> bytes | None:
    """The frame of one message of a mailbox, expired or not; None: not yet."""
    while True:
        reading.jump(sequence)
        found = readings.look(reading, now)
        if found is None:
            return None
        began = now._replace(wall_us=0)  # so that nothing has expired
        if not readings.fill(reading, found, sequence + 1, 1, FOREVER, b"", began):
            return None
        if reading.reader.messages:
            data = b"".join(reading.reader.out())
            start, end, _ = keyed(data, b"")[0]
            return data[start:end]
        if reading.next_sequence > sequence:
            reading.fail(f"message {sequence} is not there", now)
            return None


def dead_letter(message: Message, topic: str, death: Death, now: Now) -> Message:
    """What becomes of a message."""
    attributes: dict[str, Value] = {
        name: value for name, value in message.attributes.items() if not _told(name)
    }
    attributes |= {
        "dead_reason": death.reason,
        "dead_text": death.text[:TEXT_MAX],
        "dead_mailbox": death.box.mailbox.name,
        "dead_topic": message.topic,
        "dead_deliveries": death.held.attempts,
        "dead_at": Timestamp(now.wall_us),
    }
    if "dead_history" in message.attributes:
        attributes["dead_history"] = message.attributes["dead_history"]
    return replace(
        message,
        topic=topic,
        attributes=attributes,
        expiration_us=None,
        deliver_at_us=None,
        sequence=None,
        delivery_mode=DeliveryMode.PERSISTENT,
    )


def revived(message: Message) -> Message:
    """The message as it was, but for its history."""
    attributes = {
        name: value for name, value in message.attributes.items() if not name.startswith("dead_")
    }
    told = message.attributes
    at = told.get("dead_at")
    death = {
        "mailbox": told.get("dead_mailbox", ""),
        "reason": told.get("dead_reason", ""),
        "at_us": at.us if isinstance(at, Timestamp) else 0,
    }
    history = [*_history(told.get("dead_history", "")), death]
    attributes["dead_history"] = json.dumps(history[-HISTORY_MAX:])
    topic = told.get("dead_topic", message.topic)
    return replace(message, topic=str(topic), attributes=attributes)


def _history(text: Value) -> list[Any]:
    try:
        found = json.loads(text) if isinstance(text, str) and text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _told(name: str) -> bool:
    return name.startswith("dead_")


def _is_dead(message: Message) -> bool:
    return "dead_reason" in message.attributes
