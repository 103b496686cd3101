"""Contexts: what clients say of themselves, and messages that are for some of them only.

A client's context is a set of attributes. What it publishes carries them: a subscription's selector
asks for `ctx.NAME`. A message may have a selector of its own, `where`, which the *receiver* has to
satisfy; in it `ctx.NAME` is of the receiver's context, and other names are the message's own. The
node of each receiver looks at it, for every such message; so a context that changes counts at once.

Verdicts are remembered where a selector asks for nothing but the context, until that changes.

A bug that tests plant: "stale-context", verdicts outlive the context that they were made of.
"""

from __future__ import annotations

from dataclasses import replace

from regraft.errors import CODES, LocalError, RegraftError
from regraft.kernels.envelope import FAULTS, examine, fields_of
from regraft.kernels.matching import Index
from regraft.kernels.outlet import Outlet, Route
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.message import Message, decode_envelope
from regraft.model.selector import Selector
from regraft.model.selector.ast import NameKind
from regraft.model.varint import BYTES, LEN, write_varint

CONTEXT, WHERE = 19, 26  # fields of an envelope
TESTS_MAX = 256  # selectors of messages that are kept ready,
VERDICTS_MAX = 100_000  # and what each of them says of so many clients
PROBE = b"\x4a\x01c"  # a topic, as an envelope must have one
BAD_SELECTOR = CODES["bad-selector"].number


class Test:
    """A selector of messages, ready to be asked of contexts."""

    __test__ = False  # for pytest: it is none of its tests

    def __init__(self, text: str, bytes_max: int) -> None:
        self.selector = selector = Selector.parse(text, bytes_max)
        self.index = Index()
        self.index.add(plan_of(text, bytes_max), b"#", False)
        self.lasting = all(name.kind is NameKind.CONTEXT for name in selector.names)
        self.verdicts: dict[int, bool] = {}


class Contexts:
    """Knows the context of each client of a node."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._contexts: dict[int, bytes] = {}  # by connection, encoded as envelopes have them
        self._tests: dict[str, Test] = {}
        self.bugs: frozenset[str] = frozenset()
        self.narrowed = 0  # messages that were for some receivers only,
        self.spared = 0  # and deliveries that were not made for that

    def set(self, key: int, attributes: bytes) -> None:
        """A client has another context; LocalError if it cannot be one."""
        size = len(attributes)
        if size > self._limits.context_bytes:
            text = f"a context of {size} bytes; limit context_bytes is {self._limits.context_bytes}"
            raise LocalError("limit-exceeded", text)
        found = fields_of(attributes)
        if found is None or any((number, wire) != (CONTEXT, LEN) for number, wire, _ in found):
            raise LocalError("bad-message", "a context consists of attributes (field 19)")
        fault = examine(PROBE + attributes)[0]
        if fault:
            raise LocalError("bad-message", f"a context is not well formed: {FAULTS[fault]}")
        if attributes:
            self._contexts[key] = attributes
        else:
            self._contexts.pop(key, None)
        self._reconsider(key)

    def forget(self, key: int) -> None:
        """A client is gone."""
        if self._contexts.pop(key, None) is not None:
            self._reconsider(key)

    def _reconsider(self, key: int) -> None:
        if "stale-context" not in self.bugs:
            for test in self._tests.values():
                test.verdicts.pop(key, None)

    def message_for(self, key: int, message: Message) -> Message:
        """A message as its `where` sees it: with the context of a receiver."""
        context = decode_envelope(PROBE + self._contexts.get(key, b"")).context
        return replace(message, context=context)

    def narrow(self, envelope: bytes, route: Route) -> Route | int:
        """The route to those takers whom a message is for, or an error's number.

        Other nodes look for themselves.
        """
        fields = fields_of(envelope) or []
        where = next((value for number, _, value in fields if number == WHERE), b"")
        try:
            test = self._test(where.decode())
        except RegraftError:
            return BAD_SELECTOR
        probe = PROBE if test.lasting else _without_context(envelope, fields)
        takers: list[tuple[Outlet, bytes]] = []
        for outlet, ids in zip(route.outlets, route.subscriptions, strict=True):
            if outlet.link or self._fits(test, outlet.key, probe):
                takers.append((outlet, ids))
            else:
                self.spared += 1
        self.narrowed += 1
        return Route(takers)

    def _test(self, text: str) -> Test:
        test = self._tests.get(text)
        if test is None:
            test = Test(text, self._limits.selector_bytes)
            if len(self._tests) >= TESTS_MAX:
                self._tests.pop(next(iter(self._tests)))
            self._tests[text] = test
        return test

    def _fits(self, test: Test, key: int, probe: bytes) -> bool:
        if not test.lasting:
            whole = probe + self._contexts.get(key, b"")
            if examine(whole)[1].startswith(b"$"):  # the index would want to be asked by name
                return test.selector.matches(decode_envelope(whole))
            return bool(test.index.match(whole))
        verdict = test.verdicts.get(key)
        if verdict is None:
            if len(test.verdicts) >= VERDICTS_MAX:
                test.verdicts.clear()
            verdict = bool(test.index.match(probe + self._contexts.get(key, b"")))
            test.verdicts[key] = verdict
        return verdict

    def snapshot(self) -> dict[str, int]:
        """What it holds and has counted."""
        return {"contexts": len(self._contexts), "narrowed": self.narrowed, "spared": self.spared}


def _without_context(envelope: bytes, fields: list[tuple[int, int, bytes | int]]) -> bytes:
    """The envelope without its publisher's context."""
    if not any(number == CONTEXT for number, _, _ in fields):
        return envelope
    parts = []
    for number, wire, value in fields:
        if number == CONTEXT:
            continue
        if isinstance(value, int):
            parts.append(write_varint(number << 3 | wire) + write_varint(value))
        elif wire == LEN:
            parts.append(BYTES.write(number, value))
        else:
            parts.append(write_varint(number << 3 | wire) + value)
    return b"".join(parts)
