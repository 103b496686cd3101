"""What the node itself publishes: delayed messages whose time has come, and dead letters."""

from __future__ import annotations

from regraft.errors import BY_NUMBER, LocalError
from regraft.journal.journal import Journal
from regraft.kernels.keeper import Keeper
from regraft.kernels.lane import END, Lane, Source

OWN = -1  # the key of no connection


class Press:
    """Publishes frames, and settles with the same record the message that each was made from."""

    def __init__(self, journal: Journal, keeper: Keeper, lane: Lane, frame_bytes: int) -> None:
        self._journal = journal
        self._frame_bytes = frame_bytes
        self.keeper = keeper
        self._lane = lane
        self._source = Source(OWN)
        self._source.again = True

    def publish(self, frame: bytes, number: int, sequence: int, now_us: int) -> None:
        """Publish one persistent message to whoever takes it; LocalError if it is refused.

        The message `sequence` of the mailbox `number` is done with, at the very same time.
        """
        self._check(frame)
        keeper, source = self.keeper, self._source
        keeper.settles, keeper.sequence_settled = number, sequence
        self._lane.run(source, memoryview(frame), 0, now_us)
        assert self._lane.stop == END, "what the node publishes was checked before"
        unused, keeper.settles = keeper.settles, 0
        if source.refusals:
            code = source.refusals[0][2]
            source.refusals = []
            raise _refused(code)
        if unused:  # no stream took it, so there is no record that could settle it
            self._journal.settle(number, [(sequence, sequence)], now_us)
        else:
            self._settled(number, sequence)

    def deliver(
        self, frame: bytes, slot: int, priority: int, number: int, sequence: int, now_us: int
    ) -> None:
        """The same to one mailbox, whatever it has subscribed to."""
        self._check(frame)
        if self.keeper.refusal:
            raise _refused(self.keeper.refusal)
        self._journal.recorder.append_frames(
            frame, 1, 0, [slot], now_us, priority, number, sequence
        )
        self._settled(number, sequence)

    def _check(self, frame: bytes) -> None:
        if self._journal.broken:
            raise LocalError("journal-failed", f"the journal failed: {self._journal.broken}")
        if len(frame) > self._frame_bytes:
            text = f"it would have {len(frame)} bytes; limit frame_bytes is {self._frame_bytes}"
            raise LocalError("limit-exceeded", text)

    def _settled(self, number: int, sequence: int) -> None:
        """The record says so; the state must know it, too."""
        mailbox = self._journal.state.mailbox(number)
        self._journal.refresh(mailbox)
        mailbox.settle(sequence, sequence)
        self._journal.see_quota(mailbox)


def _refused(code: int) -> LocalError:
    error = BY_NUMBER[code]
    return LocalError(error.name, f"{error.name}: {error.meaning}")
