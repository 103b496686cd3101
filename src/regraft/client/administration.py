"""What a client can have a node do with queues, topics, delayed messages and dead letters.

Each is one command; what the node answers is returned as it is. Rows are dicts, as `regraft queue`
and `regraft topic` print them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Unpack

from regraft.client.payload import microseconds
from regraft.client.queue import QueueOptions, made_options, mailbox_options
from regraft.errors import LocalError
from regraft.kernels.inbox import ReceivedMessage

DEAD_LETTERS = "dead-letters"  # the mailbox that a node makes for them, if nobody else does

Row = dict[str, Any]


def stretches(sequences: Iterable[int]) -> list[list[int]]:
    """Sequences as pairs of a first and a last one."""
    found: list[list[int]] = []
    for sequence in sorted(set(sequences)):
        if found and found[-1][1] + 1 == sequence:
            found[-1][1] = sequence
        else:
            found.append([sequence, sequence])
    return found


class Administration:
    """The part of a client that sends commands."""

    async def command(
        self, what: str, *, timeout: float | None = 10.0, **arguments: Any
    ) -> dict[str, Any]:
        """Have the node do something."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------- queues

    async def create_queue(
        self,
        name: str,
        topic: str = "",
        *,
        where: str = "",
        exact: bool = False,
        in_flight: int = 0,
        **options: Unpack[QueueOptions],
    ) -> Row:
        """Make a queue for a topic pattern, by default its name; to make it again does no harm.

        `in_flight` is how many messages each member may hold, unless it says otherwise.
        """
        told = made_options(options) | ({"in_flight": in_flight} if in_flight else {})
        answer = await self.command(
            "queue-create", name=name, topic=topic or name, where=where, exact=exact, options=told
        )
        row: Row = answer["queue"]
        return row

    async def queues(self) -> list[Row]:
        """All queues and durable subscriptions of the node."""
        rows: list[Row] = (await self.command("queue-list"))["queues"]
        return rows

    async def show_queue(self, name: str) -> Row:
        """One of them, with its `members`."""
        answer = await self.command("queue-show", name=name)
        return {**answer["queue"], "member_rows": answer["members"]}

    async def change_queue(
        self, name: str, *, in_flight: int | None = None, **options: Unpack[QueueOptions]
    ) -> Row:
        """Change some options of a queue."""
        told = mailbox_options(options)
        if in_flight is not None:
            told["in_flight"] = in_flight
        row: Row = (await self.command("queue-change", name=name, options=told))["queue"]
        return row

    async def purge(self, name: str) -> int:
        """Drop all that waits in a queue, and say how many; what members hold stays theirs."""
        return int((await self.command("queue-purge", name=name, timeout=60.0))["purged"])

    async def remove_queue(self, name: str, *, force: bool = False) -> None:
        """Remove a queue with all that is in it; with `force`, though somebody reads it."""
        await self.command("queue-remove", name=name, force=force)

    async def move_queue(self, name: str, *, source: str = "") -> Row:
        """Have a queue or durable subscription come to this node, with all that waits in it.

        `source` is the name of the node that has it, if several have one of this name.
        """
        more = {"from": source} if source else {}
        row: Row = (await self.command("queue-move", name=name, timeout=15.0, **more))["queue"]
        return row

    async def rename_queue(self, name: str, to: str) -> None:
        """Give a queue another name."""
        await self.command("queue-rename", name=name, to=to)

    async def seek(
        self, name: str, sequence: int | None = None, *, time: datetime | float | None = None
    ) -> int:
        """Have a queue go on elsewhere: with a sequence, or with what was persisted since then.

        What stands before it counts as settled, what stands behind it comes again as far as the
        journal still has it. The sequence that comes next is returned. Nobody may read meanwhile.
        """
        if (sequence is None) == (time is None):
            raise LocalError("bad-message", "say where to: a sequence, or a time")
        place: dict[str, int] = {"sequence": sequence} if sequence is not None else {}
        if time is not None:
            place = {"time_us": microseconds(time)}
        return int((await self.command("queue-seek", name=name, **place))["next"])

    # ----------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        topic: str = "",
        *,
        exact: bool = False,
        retain: bool = False,
        keep: float = 0.0,
        keep_bytes: int = 0,
        persistent: bool = False,
        quota_messages: int = 0,
        quota_bytes: int = 0,
        holder: str = "",
    ) -> Row:
        """Administer a topic under a logical name, which is the topic itself if none is given.

        With `retain` it can be read again, for `keep` seconds or up to `keep_bytes`. `persistent`:
        what is published there is kept as if its publisher had said so.
        """
        answer = await self.command(
            "topic-create",
            name=name,
            topic=topic,
            exact=exact,
            retain=retain,
            keep_s=math.ceil(keep),
            keep_bytes=keep_bytes,
            persistent=persistent,
            quota_messages=quota_messages,
            quota_bytes=quota_bytes,
            holder=holder,
        )
        row: Row = answer["topic"]
        return row

    async def topics(self) -> list[Row]:
        """The topics that are administered at the node."""
        rows: list[Row] = (await self.command("topic-list"))["topics"]
        return rows

    async def show_topic(self, name: str) -> Row:
        """One of them, by its logical name."""
        row: Row = (await self.command("topic-show", name=name))["topic"]
        return row

    async def topic(self, name: str) -> str:
        """The topic that has a logical name."""
        return str((await self.show_topic(name))["topic"])

    async def remove_topic(self, name: str) -> None:
        """Administer a topic no more; what is retained of it goes."""
        await self.command("topic-remove", name=name)

    # ----------------------------------------------------------- delayed and dead messages

    async def delayed(self, rows: int = 100) -> list[Row]:
        """What was published and is to be delivered later: the next ones first."""
        found: list[Row] = (await self.command("delayed-list", rows=rows))["delayed"]
        return found

    async def cancel(self, message_id: int) -> int:
        """Cancel a message that was published to be delivered later; how many had this id.

        An error of code `not-waiting` if none does: it was delivered, cancelled, or never there.
        """
        return int((await self.command("delayed-cancel", id=message_id))["cancelled"])

    async def retry_dead(
        self,
        *which: ReceivedMessage | int,
        mailbox: str = DEAD_LETTERS,
        everything: bool = False,
        to: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Give dead letters back to the mailboxes in which they died, or `to` another one.

        `which` are messages that were browsed, or their sequences; or `everything`. They leave
        the dead-letter mailbox in the same moment. How many went back is returned; `progress` is
        called with that, and with how many are left, now and then.
        """
        if bool(which) == everything:
            raise LocalError("bad-message", "say which dead letters: some of them, or everything")
        where: dict[str, Any] = {"all": True}
        if which:
            numbers = (one if isinstance(one, int) else one.sequence for one in which)
            where = {"ranges": stretches(numbers)}
        retried = 0
        while True:  # the node does so many at a time that nobody else has to wait for it
            answer = await self.command("dlq-retry", mailbox=mailbox, to=to, timeout=60.0, **where)
            retried += int(answer["retried"])
            if progress is not None:
                progress(retried, answer["left"])
            if which or not answer["left"] or not answer["retried"]:
                return retried
