"""A session: who the client is, what it subscribed to, and how far its deliveries are."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.session.backlog import Backlog, Taken

DISCONNECT, DROP_OLDEST, DROP_NEWEST = 0, 1, 2  # as on the wire: StallPolicy
UNLIMITED = 1 << 62


@dataclass(slots=True)
class Delivery:
    """How far one subscriber is: its credit, what waits for it, whether it moves at all.

    `sent_*` and `credit_*` are cumulative. A subscriber that makes no progress for too long is
    *stalled*: from then on it holds up nobody, and its policy says what happens to what comes.
    """

    backlog: Backlog
    policy: int
    credit_messages: int = UNLIMITED
    credit_bytes: int = UNLIMITED
    sent_messages: int = 0
    sent_bytes: int = 0
    frozen: bool = False  # nothing more is sent, whatever is allowed
    awaited: bool = False  # a write is under way whose end will be reported
    watched: bool = False  # somebody will look whether it makes progress
    stalled: bool = False
    progress_ns: int = 0
    dropped_messages: int = 0  # since the last report to the subscriber,
    dropped_bytes: int = 0
    dropped_total: int = 0  # and since the session began

    def near_credit(self, messages: int, size: int) -> bool:
        """Whether a batch of this size could go beyond what the subscriber allows."""
        return (
            self.frozen
            or self.credit_messages - self.sent_messages < messages
            or self.credit_bytes - self.sent_bytes < size
        )

    def allow(self, messages: int, size: int) -> bool:
        """The subscriber allows this much in all; whether that is more. Credit only grows."""
        before = self.credit_messages, self.credit_bytes
        self.credit_messages = max(self.credit_messages, min(messages, UNLIMITED))
        self.credit_bytes = max(self.credit_bytes, min(size, UNLIMITED))
        return (self.credit_messages, self.credit_bytes) != before

    def keep(self, runs: list[tuple[bytes, int, bytes, int, int]]) -> int:
        """Put runs into the backlog, as the policy allows; the number of messages dropped."""
        backlog = self.backlog
        before = self.dropped_total
        grown = False
        for ids, count, body, expiration, first in runs:
            if self.stalled and self.policy == DROP_NEWEST and backlog.full:
                self._dropped(count, len(body))
            else:
                backlog.put(ids, count, body, expiration, first)
                grown = True
        if self.stalled and grown:
            self._shrink()
        return self.dropped_total - before

    def take(self, enough: int, now_us: int) -> Taken:
        """The next write, of about so many bytes, within the subscriber's credit."""
        if self.frozen:
            return Taken([], 0, 0)
        taken = self.backlog.take(
            self.credit_messages - self.sent_messages,
            self.credit_bytes - self.sent_bytes,
            now_us,
            enough,
        )
        self.sent(taken.messages, taken.size)
        return taken

    def sent(self, messages: int, size: int) -> None:
        """Count what was given to the connection."""
        self.sent_messages += messages
        self.sent_bytes += size

    def stall(self) -> int:
        """Fall to the policy; the number of messages dropped by that."""
        self.stalled = True
        before = self.dropped_total
        self._shrink()
        return self.dropped_total - before

    def _shrink(self) -> None:
        if self.policy == DROP_OLDEST:
            self._dropped(*self.backlog.drop_oldest())
        elif self.backlog.full:
            self._dropped(*self.backlog.drop_newest())

    def give_up(self) -> int:
        """Drop all that waits; the number of messages."""
        before = self.dropped_total
        self._dropped(*self.backlog.drop_all())
        return self.dropped_total - before

    def _dropped(self, messages: int, size: int) -> None:
        self.dropped_messages += messages
        self.dropped_bytes += size
        self.dropped_total += messages


@dataclass(slots=True)
class Session:
    """What a client has with this node, for as long as it lasts."""

    key: int
    session_id: int
    client_id: str
    token: bytes
    principal: str
    delivery: Delivery
