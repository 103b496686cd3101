"""Mailboxes that move to another node, with what they have not delivered.

Somebody asks for a mailbox at another node than the one that has it. The new one makes a mailbox of
the same name that takes nothing but what the old one hands over; the old one goes on taking what it
took, and hands all of it over. Whoever read it there is told where it is.

    new home                                       old home
    makes a mailbox that comes from there
      persisted            -- MOVE asked -->       its members go; where it is is written down
    what comes is expected <-- MOVE given --         persisted
      persisted            -- TAKEN -->            from now on it is handed over
    is recorded            <-- CARRIED --          what is not settled, and what it gets
      persisted            -- TAKEN -->            settles it

Why nothing is lost and nothing comes twice, whoever dies when:

- Each side persists its part before it speaks, and says it again until it has an answer, over
  restarts too: the new home ASKED, the old one GIVEN. Before the old one has persisted that the
  mailbox is elsewhere, nothing has happened; behind that, it delivers nothing any more.
- A move is named by a journal and a number at both ends, and numbers are never used again. So
  what is said twice, or late, is known: GIVEN is answered with TAKEN again, ASKED with GIVEN.
- Handing over is what origins do for homes (`consigning`, `receiving`): sequences of one stream, in
  order, counted by the very record that keeps them. Only the mailbox is given, not matched.
- Who does not have the mailbox says GONE. If the old home has heard a TAKEN of it before, it was
  removed there, and the rest goes, too. If not, the move was called off, and the mailbox stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from regraft.errors import CODES, LocalError, PeerError, RegraftError
from regraft.journal.format import Elsewhere, MailboxMoved
from regraft.journal.streams import Mailbox
from regraft.kernels.plan import Plan
from regraft.node.connection import OPEN, Connection
from regraft.node.consigning import RETRY_NS, RETRY_NS_MAX, Consigning, Consignment
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.mailroom import OWN, Mailroom, check_filter, check_name, read_options
from regraft.node.outflow import Outflow
from regraft.node.reading import FOREVER
from regraft.node.receiving import Receiving
from regraft.routing.filters import Filter
from regraft.routing.homes import Homes
from regraft.wire import native, peers
from regraft.wire.peers import Step

WAIT_NS = 8_000_000_000  # for an answer, before who asked is told that there is none yet
FOLLOWED_MAX = 1000  # nodes that a mailbox has moved on to, asked one after the other
JOURNAL_BYTES = 16

HELD_FORGOTTEN = "held-forgotten"  # a planted bug: what members had in their hands is settled

Send = Callable[[bytes, peers.Move, Now], bool]
Told = Callable[[RegraftError | None, Now], None]  # why it was not moved, if so


@dataclass(slots=True, eq=False)
class Asked:
    """A mailbox that was asked for and is not given yet."""

    mailbox: Mailbox
    due_ns: int = 0  # to be asked for again
    tries: int = 0
    followed: int = 0
    waiting: list[tuple[int, Told]] = field(default_factory=list)  # until when, and who


class Relocating:
    """The mailboxes of a node that come from others, or have gone to others."""

    def __init__(
        self,
        node: str,
        mailroom: Mailroom,
        consigning: Consigning,
        receiving: Receiving,
        homes: Homes,
        outflow: Outflow,
        effects: list[Effect],
        send: Send,
        now: Now,
    ) -> None:
        self._node = node  # its name
        self._mailroom = mailroom
        self._journal = mailroom.journal
        self._own = bytes.fromhex(mailroom.journal.state.journal_id)
        self._consigning = consigning
        self._receiving = receiving
        self._homes = homes
        self._outflow = outflow
        self._effects = effects
        self._send = send
        self._asked: dict[int, Asked] = {}  # by number
        self._given_ns: dict[int, int] = {}  # when to say again that it is given
        self.bugs: frozenset[str] = frozenset()
        mailroom.relocate, mailroom.move = self._subscribe, self._move
        mailroom.on_removal = self._removed
        consigning.on_known = self._is_taken
        receiving.unexpected = self._unexpected
        receiving.returned = mailroom.boxes.came_back_elsewhere
        for stream in list(self._journal.state.streams.values()):
            if isinstance(stream, Mailbox):
                self._resume(stream, now)

    def _resume(self, mailbox: Mailbox, now: Now) -> None:
        """Go on after a restart."""
        if mailbox.home is not None:
            self._consigning.hand_over(mailbox, mailbox.home, now)
        if mailbox.came is not None and not self._comes(mailbox):
            self._asked[mailbox.number] = Asked(mailbox)

    def _comes(self, mailbox: Mailbox) -> bool:
        """Whether it was given to this node."""
        came = mailbox.came
        if came is None:
            return False
        return (bytes.fromhex(came.journal), mailbox.number) in self._receiving.all

    # ------------------------------------------------------------------------ who asks

    def _subscribe(
        self,
        c: Connection,
        wanted: native.Subscribe,
        plan: Plan | None,
        mailbox: Mailbox | None,
        now: Now,
    ) -> bool:
        """Whether a subscription has to wait until its mailbox is here."""
        asked = self._asked.get(mailbox.number) if mailbox is not None else None
        if asked is None:
            if not wanted.move or (mailbox is not None and mailbox.home is None):
                return False
            assert c.session is not None
            text = plan.text if plan is not None else ""
            same = None if wanted.existing else Filter(wanted.pattern, wanted.exact, text)
            asked = self._ask(wanted.durable, mailbox, "", c.session.client_id, now, same)
            if asked is None:
                return False
        key, waiting = (c.key, wanted.id), object()
        self._mailroom.waiting[key] = waiting

        def told(error: RegraftError | None, now: Now) -> None:
            if self._mailroom.waiting.get(key) is not waiting:
                return  # it has unsubscribed, or is gone
            del self._mailroom.waiting[key]
            try:
                if error is not None:
                    raise error
                self._mailroom.open_mailbox(c, replace(wanted, move=False), plan, now)
            except RegraftError as error:
                if c.state is OPEN:
                    report = native.Error.of(error, subscription=wanted.id)
                    self._outflow.send_in_place(c, report, now)

        asked.waiting.append((now.ns + WAIT_NS, told))
        return True

    def _move(self, name: str, node: str, told: Told, now: Now) -> None:
        """An administrator wants a mailbox to be here."""
        mailbox = self._journal.state.mailboxes.get(name)
        asked = self._asked.get(mailbox.number) if mailbox is not None else None
        if asked is None:
            if mailbox is not None and mailbox.home is None:
                told(None, now)  # it is
                return
            asked = self._ask(name, mailbox, node, "", now)
            if asked is None:
                where = f"node {node}" if node else "any other node"
                raise LocalError("unknown-mailbox", f"there is no mailbox {name!r} at {where}")
        asked.waiting.append((now.ns + WAIT_NS, told))

    def _ask(
        self,
        name: str,
        known: Mailbox | None,
        node: str,
        owner: str,
        now: Now,
        same: Filter | None = None,
    ) -> Asked | None:
        """Have a mailbox come here, wherever it is, if it is the `same`; None: there is none."""
        self._mailroom.check_journal()
        check_name(name)
        if known is not None and known.home is not None and not node:
            came = known.home._replace(taken=False)
            filter = Filter(known.pattern, known.exact, known.selector)
        else:
            found = self._find(name, node)
            if found is None:
                return None
            came, filter = found
        if same is not None:
            check_filter(name, filter, same)
        about = (name, *filter[:3], owner, now.wall_us)
        mailbox = self._journal.make_mailbox(*about, came=came)
        asked = self._asked[mailbox.number] = Asked(mailbox)
        self._ask_when_safe(asked, now)
        return asked

    def _ask_when_safe(self, asked: Asked, now: Now) -> None:
        asked.due_ns, asked.tries = FOREVER, 0
        self._mailroom.when_safe(partial(self._say_asked, asked), now, None)

    def _find(self, name: str, node: str) -> tuple[Elsewhere, Filter] | None:
        """The mailbox of this name at another node, or at that one; None if there is none."""
        found = [
            (Elsewhere(home.journal.hex(), durable.number, home.name), durable.filter)
            for home in self._homes.known.values()
            if home is not self._homes.mine and not home.gone
            for durable in home.interests.values()
            if durable.name == name and node in ("", home.name, home.journal.hex())
        ]
        if len(found) > 1:
            text = ", ".join(came.node for came, _ in found[:3])
            raise LocalError(
                "mailbox-differs", f"several nodes have a mailbox {name!r}: say which of {text}"
            )
        return found[0] if found else None

    def _say_asked(self, asked: Asked, now: Now) -> None:
        mailbox = asked.mailbox
        if self._asked.get(mailbox.number) is not asked or mailbox.came is None:
            return
        self._say(bytes.fromhex(mailbox.came.journal), mailbox.came.number, mailbox.number, now)
        asked.due_ns = now.ns + min(RETRY_NS << min(asked.tries, 3), RETRY_NS_MAX)
        asked.tries += 1

    def _say(
        self,
        journal: bytes,
        stream: int,
        mailbox: int,
        now: Now,
        step: Step = Step.ASKED,
        **more: Any,
    ) -> None:
        head = peers.Move(self._own, self._node, stream, mailbox, step)
        self._send(journal, replace(head, **more), now)

    # ---------------------------------------------------------------------- what is said

    def hear(self, message: peers.Move, now: Now) -> None:
        """Another node speaks of a move."""
        numbers = message.stream, message.mailbox, message.heir_mailbox, message.first >> 31
        if len(message.journal) != JOURNAL_BYTES or any(one >> 31 for one in numbers):
            raise PeerError("malformed-envelope", "a mailbox that cannot be")
        if message.heir and len(message.heir) != JOURNAL_BYTES:
            raise PeerError("malformed-envelope", "a journal that cannot be")
        if not self._journal.broken:  # else it is said again, when that is mended
            STEPS[message.step](self, message, now)

    def _is_asked(self, message: peers.Move, now: Now) -> None:
        """Another node wants to have a mailbox."""
        mailbox = self._journal.state.streams.get(message.stream)
        to = Elsewhere(message.journal.hex(), message.mailbox, message.node)
        if not isinstance(mailbox, Mailbox) or mailbox.name.startswith(OWN):
            error = LocalError("unknown-mailbox", f"node {self._node} has no such mailbox")
            self._refuse(message, error, None, now)
        elif mailbox.home is not None and mailbox.home[:2] == to[:2]:
            if self._given_ns.get(mailbox.number) != FOREVER:  # else it is said once it is safe
                self._say_given(mailbox, now)
        elif mailbox.home is not None:
            text = f"mailbox {mailbox.name!r} has moved to node {mailbox.home.node}"
            self._refuse(message, LocalError("mailbox-moved", text), mailbox.home, now)
        elif self._in_doubt(mailbox):
            text = f"a transaction that is prepared at node {self._node} settles or removes"
            error = LocalError("in-doubt", f"{text} mailbox {mailbox.name!r} or some of it")
            self._refuse(message, error, None, now)
        elif mailbox.number not in self._asked and self._is_left(mailbox, to, now):
            self._give(mailbox, to, now)

    def _refuse(
        self, message: peers.Move, error: LocalError, heir: Elsewhere | None, now: Now
    ) -> None:
        more: dict[str, Any] = {"name": error.code.name, "text": error.text}
        if heir is not None:
            more |= {"heir": bytes.fromhex(heir.journal), "heir_mailbox": heir.number}
            more["heir_node"] = heir.node
        place = (message.journal, message.stream, message.mailbox)
        self._say(*place, now, Step.REFUSED, **more)

    def _in_doubt(self, mailbox: Mailbox) -> bool:
        """Whether a transaction that is prepared will do something with it."""
        return any(
            mailbox.name in one.what.removed
            or any(accepted.number == mailbox.number for accepted in one.what.accepted)
            for one in self._journal.state.prepared.values()
        )

    def _is_left(self, mailbox: Mailbox, to: Elsewhere, now: Now) -> bool:
        """End whatever reads it; False: some of it becomes dead letters, which takes a moment."""
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is None:
            return True
        held = [piece[:2] for member in box.members.values() for piece in member.hand]
        text = f"mailbox {mailbox.name!r} has moved to node {to.node}"
        self._mailroom.end_members(box, LocalError("mailbox-moved", text), now)
        if HELD_FORGOTTEN in self.bugs:
            self._journal.settle(mailbox.number, held, now.wall_us)
        if box.dying:
            return False
        self._mailroom.boxes.rest(box, now)
        self._mailroom.boxes.forget(box)
        return True

    def _give(self, mailbox: Mailbox, to: Elsewhere, now: Now) -> None:
        """It is there from now on."""
        moved = MailboxMoved(mailbox.number, mailbox.came, to)
        self._journal.control(moved, now.wall_us)
        self._journal.refresh(mailbox)
        self._consigning.hand_over(mailbox, to, now)
        text = f"mailbox {mailbox.name} moves to node {to.node}; {mailbox.waiting} messages wait"
        self._effects.append(Note("info", text))
        self._given_ns[mailbox.number] = FOREVER
        self._mailroom.when_safe(partial(self._say_given, mailbox), now, None)

    def _say_given(self, mailbox: Mailbox, now: Now) -> None:
        home = mailbox.home
        if home is None or mailbox.number not in self._consigning.all:
            return
        self._given_ns[mailbox.number] = now.ns + RETRY_NS
        place = (bytes.fromhex(home.journal), mailbox.number, home.number)
        options = msgspec.json.encode(mailbox.options)
        self._say(*place, now, Step.GIVEN, first=mailbox.floor, options=options)

    def _is_given(self, message: peers.Move, now: Now) -> None:
        """What was asked for comes."""
        mailbox = self._mine(message)
        if mailbox is None:
            self._say_gone(message.journal, message.stream, message.mailbox, now)
            return
        origin = self._receiving.all.get((message.journal, mailbox.number))
        if origin is None:
            try:
                options = read_options(message.options)
            except LocalError as error:  # of a newer version
                self._mailroom.remove(mailbox, now, error)
                return
            self._journal.change_mailbox(mailbox.number, mailbox.name, options, now.wall_us)
            first = max(message.first, 1)
            place = (message.journal, message.stream, first, mailbox.number)
            origin = self._receiving.expect(*place, now)
            text = f"mailbox {mailbox.name} comes from node {message.node}"
            self._effects.append(Note("info", text))
        asked = self._asked.pop(mailbox.number, None)

        def safe(now: Now) -> None:
            if self._receiving.all.get((message.journal, mailbox.number)) is origin:
                self._receiving.confirm(origin, now)
            for _, told in asked.waiting if asked is not None else ():
                told(None, now)

        self._mailroom.when_safe(safe, now, None)

    def _mine(self, message: peers.Move) -> Mailbox | None:
        """The mailbox here that another node speaks of."""
        mailbox = self._journal.state.streams.get(message.mailbox)
        if not isinstance(mailbox, Mailbox) or mailbox.came is None:
            return None
        return mailbox if mailbox.came[:2] == (message.journal.hex(), message.stream) else None

    def _is_refused(self, message: peers.Move, now: Now) -> None:
        """It does not come; or from another node."""
        mailbox = self._mine(message)
        asked = self._asked.get(message.mailbox)
        if mailbox is None or asked is None:
            return  # of another life, or late
        asked.followed += 1
        code = message.name if message.name in CODES else "not-supported"
        error = LocalError(code, message.text[:500])
        if message.heir and asked.followed <= FOLLOWED_MAX:
            heir = Elsewhere(message.heir.hex(), message.heir_mailbox, message.heir_node)
            local = self._journal.state.streams.get(heir.number)
            if message.heir == self._own and isinstance(local, Mailbox):
                error = LocalError("mailbox-in-use", f"it is here, as mailbox {local.name!r}")
                heir = local.home or heir
            if heir.journal != self._own.hex():
                moved = MailboxMoved(mailbox.number, heir._replace(taken=False), None)
                self._journal.control(moved, now.wall_us)
                self._ask_when_safe(asked, now)
                return
        self._call_off(asked, error, now)

    def _call_off(self, asked: Asked, error: LocalError, now: Now) -> None:
        """It does not come: there is no mailbox here."""
        self._mailroom.remove(asked.mailbox, now, error)

    def _removed(self, mailbox: Mailbox, error: LocalError, now: Now) -> None:
        """A mailbox of this node is about to be removed."""
        asked = self._asked.pop(mailbox.number, None)
        for _, told in asked.waiting if asked is not None else ():
            self._mailroom.when_safe(partial(told, error), now, None)
        if mailbox.came is not None:
            came = mailbox.came
            self._say_gone(bytes.fromhex(came.journal), came.number, mailbox.number, now)
        self._consigning.take_back(mailbox.number)
        self._given_ns.pop(mailbox.number, None)
        self._receiving.forget(mailbox)

    def _say_gone(self, journal: bytes, stream: int, mailbox: int, now: Now) -> None:
        def say(now: Now) -> None:
            self._say(journal, stream, mailbox, now, Step.GONE)

        self._mailroom.when_safe(say, now, None)

    def _unexpected(self, message: peers.Carried, now: Now) -> None:
        """Something comes for a mailbox that is not there, or not from there."""
        if not self._journal.broken:
            self._say_gone(message.journal, message.stream, message.mailbox, now)

    def _is_gone(self, message: peers.Move, now: Now) -> None:
        """A mailbox that has moved there is there no more, or never was."""
        mailbox = self._journal.state.streams.get(message.stream)
        if not isinstance(mailbox, Mailbox) or mailbox.home is None:
            return
        if mailbox.home[:2] != (message.journal.hex(), message.mailbox):
            return
        if not mailbox.home.taken:
            self._keep_here(mailbox, now)
            return
        self._journal.refresh(mailbox)
        text = f"mailbox {mailbox.name} was removed at node {message.node}"
        text += f"; {mailbox.waiting} messages that had to go there are dropped"
        self._effects.append(Note("warning", text))
        self._mailroom.remove(mailbox, now)

    def _keep_here(self, mailbox: Mailbox, now: Now) -> None:
        """It has not moved after all."""
        home = mailbox.home
        self._consigning.take_back(mailbox.number)
        self._given_ns.pop(mailbox.number, None)
        moved = MailboxMoved(mailbox.number, mailbox.came, None)
        self._journal.control(moved, now.wall_us)
        if self._journal.state.mailboxes.get(mailbox.name) is not mailbox:  # it had come back
            name = f"{mailbox.name}-{mailbox.number}"
            self._journal.change_mailbox(mailbox.number, name, mailbox.options, now.wall_us)
        text = f"mailbox {mailbox.name} is not at node {home.node if home else ''} any more"
        self._effects.append(Note("warning", f"{text}, and stays here"))

    def _is_taken(self, one: Consignment, now: Now) -> None:
        """The new home expects what is handed over."""
        mailbox, home = one.mailbox, one.mailbox.home
        self._given_ns.pop(mailbox.number, None)
        if home is not None and not home.taken and not self._journal.broken:
            moved = MailboxMoved(mailbox.number, mailbox.came, home._replace(taken=True))
            self._journal.control(moved, now.wall_us)

    # -------------------------------------------------------------------------- time

    def forgotten(self, journal: bytes, now: Now) -> None:
        """A node will never come back: what was there stays here, what came from there, too."""
        if self._journal.broken:
            return
        for mailbox in list(self._journal.state.streams.values()):
            if not isinstance(mailbox, Mailbox):
                continue
            if mailbox.home is not None and mailbox.home.journal == journal.hex():
                self._keep_here(mailbox, now)
            if mailbox.came is None or mailbox.came.journal != journal.hex():
                continue
            asked = self._asked.get(mailbox.number)
            if asked is not None:
                text = f"node {mailbox.came.node} will never come back"
                self._call_off(asked, LocalError("unknown-mailbox", text), now)
                continue
            self._receiving.forget(mailbox)
            moved = MailboxMoved(mailbox.number, None, mailbox.home)
            self._journal.control(moved, now.wall_us)
            self._mailroom.route(mailbox)

    @property
    def asked(self) -> int:
        """Mailboxes that are to come here, and of which nothing is heard yet."""
        return len(self._asked)

    @property
    def busy(self) -> bool:
        """Whether something has to be said again."""
        return bool(self._asked) or any(
            one.target and not one.known for one in self._consigning.all.values()
        )

    def linked(self) -> None:
        """The tree has changed: there may be a way now."""
        for asked in self._asked.values():
            if asked.due_ns < FOREVER:
                asked.due_ns = asked.tries = 0
        for number, due_ns in self._given_ns.items():
            self._given_ns[number] = due_ns if due_ns == FOREVER else 0

    def tick(self, now: Now) -> None:
        """Say again what is not answered; tell who waits for too long."""
        for asked in list(self._asked.values()):
            if now.ns >= asked.due_ns:
                self._say_asked(asked, now)
            late = [told for until_ns, told in asked.waiting if until_ns <= now.ns]
            asked.waiting = [one for one in asked.waiting if one[0] > now.ns]
            came = asked.mailbox.came
            text = f"node {came.node if came else ''} has not said yet whether mailbox "
            text += f"{asked.mailbox.name!r} can move here: it is away, or too old for that. It is "
            text += "asked again and again, unless the mailbox is removed here"
            for told in late:
                told(LocalError("timed-out", text), now)
        for number, one in list(self._consigning.all.items()):
            if one.target and not one.known and now.ns >= self._given_ns.get(number, 0):
                self._say_given(one.mailbox, now)


STEPS: dict[Step, Callable[[Relocating, peers.Move, Now], None]] = {
    Step.ASKED: Relocating._is_asked,
    Step.GIVEN: Relocating._is_given,
    Step.REFUSED: Relocating._is_refused,
    Step.GONE: Relocating._is_gone,
}
