"""Every bound of the system, with its default.

Nothing grows without one of these. What exceeds a limit is refused with a sentence that names it,
or counted as dropped with a reason; nothing is dropped in silence. A node's configuration may
change any of them (`[limits]` in the file, `REGRAFT_LIMITS__NAME` in the environment,
`--limit name=value` on the command line); the relations between them are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from regraft.errors import LocalError

KIB = 1024
MIB = 1024 * KIB

TOPIC_BYTES_MAX = 1024
TOPIC_LEVELS_MAX = 64
ATTRIBUTES_MAX = 256  # of one envelope, and again of its context
NAME_BYTES_MAX = 255  # of an attribute
CLIENT_ID_BYTES_MAX = 128
FRAME_BYTES_CEILING = 64 * MIB  # no configuration goes above it
CHUNK_BYTES = 256 * KIB  # what a node takes in before it is delivered, beside one frame
GID_BYTES_MAX = 200  # of the name that a coordinator gives a transaction
DECIDED_MAX = 10_000  # transactions of two phases whose end is remembered
SEGMENT_BYTES_MIN = 16 * KIB  # a snapshot's row of a publisher has 12 KiB at most


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one node."""

    connections: int = 10_000
    handshake_ms: int = 10_000  # from the first byte to WELCOME
    frame_bytes: int = 1 * MIB  # one frame, its header included
    control_frame_bytes: int = 64 * KIB  # any frame but a message
    inflated_bytes: int = 16 * MIB  # a gzip body, once inflated
    subscriptions_per_session: int = 10_000
    subscriptions: int = 2_000_000
    link_filters: int = 2_000_000  # what one neighbour may want
    link_window_messages: int = 524_288  # and send ahead
    link_window_bytes: int = 32 * MIB
    selector_bytes: int = 8 * KIB
    predicates_cost: int = 4_000_000  # of all subscriptions, for one message, in comparisons
    queue_messages: int = 65_536  # what waits for one subscriber
    queue_bytes: int = 8 * MIB
    queue_bytes_total: int = 1024 * MIB  # what waits for all of them
    write_bytes: int = 256 * KIB  # handed to one connection at a time; 4 x for who is slow
    window_messages: int = 65_536  # what one publisher may send ahead
    window_bytes: int = 1 * MIB
    window_bytes_first: int = 64 * KIB  # before it has shown that it uses it
    windows_bytes_total: int = 256 * MIB  # shared by all publishers
    topics_cached: int = 65_536  # routes remembered, for all
    topics_cached_per_session: int = 256
    variants_cached: int = 1024  # outcomes of the selectors of a topic, remembered
    heartbeat_ms_min: int = 100
    heartbeat_ms_max: int = 300_000
    stall_ms: int = 5_000  # without progress, a subscriber falls to its policy
    drain_ms: int = 10_000  # from GOAWAY to the end
    segment_bytes: int = 64 * MIB  # one file of the journal; counts from the next one on
    journal_bytes: int = 64 * 1024 * MIB  # all of them
    journal_tail_bytes: int = 16 * MIB  # the newest of it, kept in memory for those who keep up
    journal_pending_bytes: int = 8 * MIB  # on its way to the disk, before publishers have to wait
    index_cache_bytes: int = 16 * MIB  # what is known of where messages are in closed segments
    streams: int = 1_000  # retained topics
    mailboxes: int = 100_000  # durable subscriptions
    mailbox_messages: int = 10_000_000  # what waits in one, unless it says otherwise
    mailbox_bytes: int = 16 * 1024 * MIB  # the same, estimated by the average message
    delayed: int = 1_000_000  # messages that wait for their time
    topics: int = 10_000  # administered ones
    in_flight: int = 10_000  # messages of a mailbox delivered and not settled, at most
    publishers_remembered: int = 100_000  # the longest idle is forgotten first
    publisher_idle_s: int = 604_800  # after which what a publisher sent is forgotten
    bulk_connections: int = 64  # that read tables or stage messages, at the same time
    staged_bytes: int = 16 * 1024 * MIB  # messages that wait for their batch to be committed
    staged_s: int = 86_400  # after which they are dropped, if nobody does
    questions: int = 10_000  # asked through a node and not over,
    questions_per_session: int = 1_000  # and by one client of it
    question_branches: int = 1_000_000  # all to whom they went from there
    question_ms: int = 600_000  # after which they are over
    reply_bytes: int = 16 * MIB  # questions and replies that wait for one connection
    context_bytes: int = 4 * KIB  # of one client
    trace_bytes: int = 64 * KIB  # of what one node reports about a trace
    offers: int = 100_000  # advertisements of all clients of a node,
    offers_per_session: int = 1_000  # of one of them,
    link_offers: int = 1_000_000  # and what one neighbour may offer
    filter_bytes: int = 8 * KIB  # the encoding of a filter that an application brought
    filters_per_message: int = 1_000  # of those that a node asks about one message
    filter_us: int = 5_000  # processor time of one evaluation
    filter_failures: int = 10  # in a row, raised or slow, after which it is asked no more
    sinks_remembered: int = 10_000  # whose batches are recognised; the longest idle goes first
    transaction_messages: int = 10_000  # of one transaction: publications and settlements,
    transaction_bytes: int = 16 * MIB  # bytes of what it publishes,
    transaction_ms: int = 60_000  # and time until it is decided or prepared
    transactions_per_session: int = 64  # that are open at the same time
    transactions_bytes_total: int = 256 * MIB  # of all that are open
    transactions_prepared: int = 1_000  # that wait for their coordinators,
    transactions_prepared_bytes: int = 64 * MIB  # and their bytes
    transaction_doubt_s: int = 300  # after which people are told of one that waits

    homes: int = 1_000  # nodes that keep messages for mailboxes, and that send such
    home_interests: int = 1_000_000  # what all of these keep messages for
    home_bytes: int = 4 * 1024 * MIB  # what waits for one of them, estimated
    homes_bytes: int = 16 * 1024 * MIB  # and for all of them
    home_s: int = 604_800  # for how long, before messages for it are refused or dropped
    home_window_bytes: int = 1 * MIB  # sent to one of them and not confirmed

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise _refuse(f"limit {field.name} must be a whole number above 0, not {value!r}")
        if self.frame_bytes > FRAME_BYTES_CEILING:
            raise _refuse(f"limit frame_bytes may be {FRAME_BYTES_CEILING} at most")
        for small, large in (
            ("control_frame_bytes", "frame_bytes"),
            ("window_bytes_first", "window_bytes"),
            ("window_bytes", "windows_bytes_total"),
            ("queue_bytes", "queue_bytes_total"),
            ("selector_bytes", "control_frame_bytes"),
            ("subscriptions_per_session", "subscriptions"),
            ("heartbeat_ms_min", "heartbeat_ms_max"),
            ("home_bytes", "homes_bytes"),
            ("frame_bytes", "reply_bytes"),
            ("questions_per_session", "questions"),
            ("offers_per_session", "offers"),
        ):
            if getattr(self, small) > getattr(self, large):
                raise _refuse(f"limit {small} must not be above limit {large}")
        if self.segment_bytes % 8 or not SEGMENT_BYTES_MIN <= self.segment_bytes <= 1024 * MIB:
            least = SEGMENT_BYTES_MIN // KIB
            raise _refuse(f"limit segment_bytes must be a multiple of 8, from {least} KiB to 1 GiB")
        if 2 * self.frame_bytes > self.segment_bytes:
            raise _refuse("limit segment_bytes must be twice limit frame_bytes, or more")
        if 4 * self.segment_bytes > self.journal_bytes:
            raise _refuse("limit journal_bytes must be four times limit segment_bytes, or more")


def _refuse(text: str) -> LocalError:
    return LocalError("bad-configuration", text)


# Of one selector. Its length is `Limits.selector_bytes`; these do not depend on the node, so that
# a selector that one node takes is taken by all.
SELECTOR_DEPTH_MAX = 50  # how deep its tree is
SELECTOR_NODES_MAX = 1024  # names, literals and operators of its canonical form
SELECTOR_IN_MAX = 1000  # values of one IN
PATTERN_TEXT_MAX = 16 * KIB  # bytes of a string that LIKE and REGEXP are evaluated on
SELECTOR_COST_MAX = 10_000  # what it may cost per message, in about one comparison
REGEX_PROGRAM_MAX = 2000  # instructions that a regular expression is compiled to
REGEX_STEPS_MAX = 3 * MIB  # instructions of a regular expression, times bytes of a string
REGEX_MEMORY_BYTES = 256 * KIB  # what the engine may use for one of them
PATTERNS_CACHED = 128  # compiled regular expressions, and again LIKE patterns, that are kept
