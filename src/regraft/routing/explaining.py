"""What a neighbour was told of a filter, and why it was not: for people who look for a message.

Reasons are those of `model.reasons`: another rule of what neighbours are told is a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regraft.routing.filters import Filter
from regraft.routing.links import WAITING, Held, Link


def explain_link(
    link: Link, filter: Filter, takers: Sequence[Held], group_of: Callable[[int], int]
) -> tuple[str, Filter | None]:
    """A reason, and the filter that was told.

    `takers` are the filters that are held here and take all of the one in question: itself first,
    if it is held, and those that cover it.
    """
    for held in takers:
        if held.number and group_of(held.number) in link.told:
            told = link.sent[link.told[group_of(held.number)]]
            if not any(one.wanted_besides(link.holder) for one in takers):
                return "kept-told", told
            return ("told" if told == filter else "covered"), told
    wanted = [held for held in takers if held.wanted_besides(link.holder)]
    if not wanted:
        waits = any(one.state == WAITING for held in takers for one in held.holders)
        if any(link.holder in held.holders for held in takers):
            return "only-theirs", None
        return ("kept-told" if waits else "not-held"), None
    if link.dormant:
        return "dormant", None
    if link.gate is not None and not any(link.gate.passes(held.filter) for held in wanted):
        return "not-offered", None
    if all(held in link.tags for held in wanted):
        return "withheld", None
    return "pending", None
