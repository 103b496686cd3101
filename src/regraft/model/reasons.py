"""Why a message went somewhere, or did not: the table of reasons that traces give.

A node says a reason by its name; what people read is here, and in `docs/trace.md`. A reason that a
newer node gives and this table does not have is shown by its name.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    # a neighbour
    "forwarded": "it wants this, by one of its filters",
    "no-interest": "no filter of this neighbour matches",
    "came-from": "it came from there",
    "link-muted": "the tree is being changed: nothing goes by this link yet",
    "link-frozen": "this neighbour is about to leave: what is for it is kept, and goes another way",
    "link-stalled": "this neighbour takes nothing: messages for it are dropped",
    "link-waits": "messages wait for this neighbour, and this one waits behind them",
    # a subscriber
    "delivered": "it gets it",
    "waits": "it is slow: this waits behind other messages for it",
    "stalled": "it takes nothing: messages for it are dropped, as its policy says",
    "context": "its context does not satisfy the message's `where`",
    "no-context": "the message has a `where` and this is no client: it has no context",
    "kept": "it is kept there",
    "kept-elsewhere": "it is kept here until the node with this mailbox has it",
    "home-unknown": "the node where it is published keeps nothing for this mailbox now",
    "not-persistent": "only what is persistent is kept there",
    "read-now": "it is not persistent, and comes because somebody reads the mailbox now",
    "by-mailbox": "it is persistent, and comes by the mailbox",
    "kept-by-origin": "it is persistent: the node where it is published sees to this mailbox",
    "not-by-trace": "what is published there is kept at this node, but not what a trace publishes",
    "mailbox-full": "this mailbox is full: the message is refused for all",
    "one-of": "one of the members gets it",
    "picked": "it is the member that was chosen",
    "member": "it is a member of the group, of which one gets it",
    "sent-on": "nobody is there at this node: it is sent on to one of another node",
    "nobody": "the group has no members",
    "group-full": "all members have as much in their hands as they may",
    "chosen": "the node where it is published has chosen a member",
    "own-filter": "a filter that the application brought does not let it pass",
    "pattern": "its pattern does not match the topic",
    "selector-false": "its selector is false",
    "selector-unknown": "its selector is unknown, which is not true",
    "index": "its selector is true, and the match index does not find it: a mistake of the node",
    "unreached": "the message does not come to this node",
    "stopped": "the message goes nowhere",
    # what stops a message at a node
    "expired": "it has expired",
    "bad-topic": "its topic is none that can be published to",
    "not-authorized": "the publisher may not publish to this topic",
    "not-advertised": "the network routes by advertisements, and the publisher has none for it",
    "no-journal": "it is persistent, and this node keeps no journal",
    "journal-failed": "it is persistent, and the journal takes nothing now",
    "delayed": "it waits here until it is to be delivered, and is published then",
    "not-supported": "it cannot be persistent or delayed, and for some contexts only",
    "bad-selector": "its `where` is no selector",
    "no-rule": "there is no rule for this type",
    "too-far": "it came by too many links",
    # what is to be known of a node
    "repairing": "it repairs its links: somebody may be behind one that is not there yet",
    "leaving": "it is about to leave",
    # what a neighbour was told of a filter
    "told": "it was told of this filter",
    "covered": "it was told of another filter, which takes all of this and more",
    "pending": "it is to be told, and was not yet",
    "not-offered": "it has offered nothing that overlaps this, and the network routes by offers",
    "withheld": "a reconfiguration withholds it",
    "dormant": "the link is new, and is told nothing before the old one is empty",
    "only-theirs": "nobody but this neighbour wants it, so it need not be told",
    "kept-told": "nobody wants it any more, but a reconfiguration puts off to say so",
    "not-held": "nobody here or behind another link wants it",
    "own-told": "it has a filter of the application's own, which traces do not follow",
    "durable": "mailboxes are told to all nodes, and not by filters of links",
}


def reason_text(name: str) -> str:
    """A reason for people."""
    return REASONS.get(name, name)
