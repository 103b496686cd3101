"""What one event says, in the form that the match index asks for.

A *dimension* is a name together with a class of values: `price` as a number is one, `price` as a
string another, and `price` as anything at all a third. An event gives each dimension that somebody
asks about a number in `x`, or none (NaN):

    number, timestamp   itself (an integer beyond 2^53 is rounded, which `plan` allows for)
    boolean             0 or 1
    string, bytes       the number of the text among those that somebody compares with, or -1
    any                 0

so that an equality, a range and the question whether something is there are all the same:
`low <= x[dimension] <= high`.

Dimensions also keep what is observed: how often events have them, some of the values they had, and
some of the bounds they are compared with. That is what the index chooses by.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Reals, Texts, text_is
    from regraft.kernels.envelope import NAMES_MAX, Scan
    from regraft.kernels.operands import as_double, as_signed

    ANY = 0
    BOOL = 1
    NUMBER = 2
    STRING = 3
    BYTES = 4
    TIMESTAMP = 5
    CLASSES = 6

    ATTRIBUTE = 10
    CONTEXT = 19
    HEADERS = 10
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3
    TYPE = 4
    SENDER = 5
    CORRELATION = 6
    REPLY_TO = 7

    SAMPLES = 64
    SAMPLE_EVERY = 8
    EPOCH = 512
    BOUNDS = 4096
    WIDE_SHARE = 0.05

    NAN = float("nan")
    INFINITY = float("inf")

    def send_for_samples(a: Any, first: int) -> None:
        """Nothing to do ahead of time."""


class Facts:
    """The dimensions in use, and what the event at hand says about each."""

    def __init__(self) -> None:
        self.names = Texts()
        self.contexts = Texts()
        self.texts = Texts()  # what strings and bytes are compared with
        self.by_slot = Ints()  # [name and class] -> dimension + 1, or 0
        self.by_header = Ints()  # the same for headers
        self.by_header.reserve(HEADERS * CLASSES)
        self.headers = 0  # how many of those there are
        self.count = 0
        self.top = 0  # dimensions ever made at one time
        self.free = Ints()
        # Per dimension:
        self.made = Longs()  # the ordinal of the event before it
        self.held = Ints()  # how many terms speak of it
        self.slot = Ints()  # where it stands in `by_slot`, or -1 - (where it stands in `by_header`)
        self.texts_held = Ints()  # how many texts it is compared with
        self.x = Reals()
        self.at = Longs()  # where the bytes of a string begin and end
        self.end = Longs()
        self.seen = Ints()
        self.seen_epoch = Ints()
        self.samples = Reals()
        self.sample_count = Ints()
        self.bounds: list[Reals | None] = []
        self.bounds_count = Ints()
        # Of the event:
        self.usual = Ints()  # the name that stood in each place the last time
        self.usual.reserve(NAMES_MAX)
        self.active = Ints()  # the dimensions that it has
        self.now = 0  # its ordinal
        self.sampled = 0
        self.epoch = 0
        # One dimension that every event has.
        self.x.a[self.make(-1)] = 0.0
        self.held.a[0] = 1

    # ---------------------------------------------------------------------- dimensions

    def dimension(self, where: int, name: bytes, kind: int) -> int:
        """The dimension of a name and a class, held once more."""
        if where in (ATTRIBUTE, CONTEXT):
            texts = self.names if where == ATTRIBUTE else self.contexts
            number = texts.number(name)
            slot = (number * 2 + (where == CONTEXT)) * CLASSES + kind
            found = self.by_slot.a[slot] if number >= 0 else 0
            if found == 0:  # a dimension holds its name once
                number = texts.add(name)
                slot = (number * 2 + (where == CONTEXT)) * CLASSES + kind
                self.by_slot.reserve((number + 1) * 2 * CLASSES)
                found = self.make(slot) + 1
                self.by_slot.a[slot] = found
        else:
            slot = where * CLASSES + kind
            found = self.by_header.a[slot]
            if found == 0:
                found = self.make(-1 - slot) + 1
                self.by_header.a[slot] = found
                self.headers += 1
        self.held.a[found - 1] += 1
        return found - 1

    def make(self, slot: int) -> int:
        """A dimension that nobody holds yet."""
        if self.free.n:
            self.free.n -= 1
            dimension = self.free.a[self.free.n]
        else:
            dimension = self.top
            self.top += 1
            self.grow(self.top)
            self.bounds.append(None)
        self.made.a[dimension] = self.now
        self.held.a[dimension] = 0
        self.slot.a[dimension] = slot
        self.texts_held.a[dimension] = 0
        self.x.a[dimension] = NAN
        self.seen.a[dimension] = 0
        self.seen_epoch.a[dimension] = self.epoch
        self.sample_count.a[dimension] = 0
        self.bounds[dimension] = None
        self.bounds_count.a[dimension] = 0
        self.count += 1
        return dimension

    def grow(self, n: int) -> None:
        """Room for n dimensions."""
        self.made.reserve(n)
        self.held.reserve(n)
        self.slot.reserve(n)
        self.texts_held.reserve(n)
        self.x.reserve(n)
        self.at.reserve(n)
        self.end.reserve(n)
        self.seen.reserve(n)
        self.seen_epoch.reserve(n)
        self.samples.reserve(n * SAMPLES)
        self.sample_count.reserve(n)
        self.bounds_count.reserve(n)

    def release(self, dimension: int) -> bool:
        """Hold a dimension once less; whether it is gone."""
        self.held.a[dimension] -= 1
        if self.held.a[dimension]:
            return False
        slot = self.slot.a[dimension]
        if slot >= 0:
            number = slot // CLASSES
            texts = self.contexts if number & 1 else self.names
            self.by_slot.a[slot] = 0
            texts.release(number >> 1)
        else:
            self.by_header.a[-1 - slot] = 0
            self.headers -= 1
        self.bounds[dimension] = None
        self.free.push(dimension)
        self.count -= 1
        return True

    def send_for(self, dimension: int) -> None:
        """`share` will be asked about this dimension soon."""
        send_for_samples(self.samples.a, dimension * SAMPLES)
        bounds = self.bounds[dimension]
        if bounds is not None:
            send_for_samples(bounds.a, 0)

    def kind(self, dimension: int) -> int:
        """The class of a dimension."""
        slot = self.slot.a[dimension]
        return (slot if slot >= 0 else -1 - slot) % CLASSES

    def name(self, dimension: int) -> tuple[int, bytes]:
        """Where a dimension is looked up, and its name (none for a header), to look at."""
        slot = self.slot.a[dimension]
        if slot < 0:
            return (-1 - slot) // CLASSES, b""
        number = slot // CLASSES
        texts = self.contexts if number & 1 else self.names
        return CONTEXT if number & 1 else ATTRIBUTE, texts.texts[number >> 1] or b""

    def hold_text(self, dimension: int, text: bytes) -> int:
        """A string or bytes dimension is compared with this text; the text's number."""
        self.texts_held.a[dimension] += 1
        return self.texts.add(text)

    def release_text(self, dimension: int, number: int) -> None:
        """Once less."""
        self.texts_held.a[dimension] -= 1
        self.texts.release(number)

    # ---------------------------------------------------------------------- one event

    def load(self, scan: Scan, p: Any) -> None:
        """Take in the event that was just scanned."""
        self.now += 1
        by_slot = self.by_slot.a
        for k in range(scan.names):
            field = scan.name_field[k]
            at = scan.name_at[k]
            end = at + scan.name_length[k]
            if field == ATTRIBUTE:
                number = self.usual.a[k]  # events of one sort have their names in one order
                if not text_is(self.names, number, p, at, end):
                    number = self.names.get(p, at, end)
                    self.usual.a[k] = number
                number *= 2
            else:
                number = self.contexts.get(p, at, end) * 2 + 1
            if number < 0:
                continue
            slot = number * CLASSES
            dimension = by_slot[slot] - 1
            if dimension >= 0:
                self.x.a[dimension] = 0.0
                self.active.push(dimension)
            kind = scan.value_kind[k]
            dimension = by_slot[slot + (kind - 1 if kind < 4 else kind - 2)] - 1
            if dimension >= 0:
                self.active.push(dimension)
                raw = scan.value_raw[k]
                if kind == 4:
                    self.x.a[dimension] = as_double(raw) + 0.0  # no -0.0
                elif kind == 3:
                    self.x.a[dimension] = float(as_signed(raw))
                elif kind == 5 or kind == 6:
                    end = scan.value_end[k]
                    self.text(dimension, p, end - raw, end)
                else:
                    self.x.a[dimension] = float(as_moment(raw))
        if self.headers:
            self.load_headers(scan, p)
        if self.now % SAMPLE_EVERY == 0:
            self.observe()

    def load_headers(self, scan: Scan, p: Any) -> None:
        """The same for the headers that have dimensions."""
        self.header_text(TOPIC, p, scan.topic_at, scan.topic_end)
        self.header_number(PRIORITY, scan.priority)
        self.header_number(SIZE, scan.body_end - scan.body_at)
        if not self.header_field(TYPE, scan, p, 18):  # a type has a name, or a number
            self.header_number(TYPE, scan.field_raw[4] if scan.seen >> 4 & 1 else 0)
        self.header_field(SENDER, scan, p, 2)
        self.header_field(CORRELATION, scan, p, 17)
        self.header_field(REPLY_TO, scan, p, 16)

    def header_field(self, code: int, scan: Scan, p: Any, field: int) -> bool:
        """A header that is a field of its own, NULL if that is empty; whether it is there."""
        if not scan.seen >> field & 1 or scan.field_raw[field] == 0:
            return False
        end = scan.field_end[field]
        self.header_text(code, p, end - scan.field_raw[field], end)
        return True

    def header_text(self, code: int, p: Any, at: int, end: int) -> None:
        """A header that is a string."""
        self.header_any(code)
        dimension = self.by_header.a[code * CLASSES + STRING] - 1
        if dimension >= 0:
            self.active.push(dimension)
            self.text(dimension, p, at, end)

    def header_number(self, code: int, value: int) -> None:
        """A header that is a number."""
        self.header_any(code)
        dimension = self.by_header.a[code * CLASSES + NUMBER] - 1
        if dimension >= 0:
            self.active.push(dimension)
            self.x.a[dimension] = float(value)

    def header_any(self, code: int) -> None:
        """A header that is there."""
        dimension = self.by_header.a[code * CLASSES + ANY] - 1
        if dimension >= 0:
            self.active.push(dimension)
            self.x.a[dimension] = 0.0

    def text(self, dimension: int, p: Any, at: int, end: int) -> None:
        """The value of a string or bytes dimension."""
        self.at.a[dimension] = at
        self.end.a[dimension] = end
        if self.texts_held.a[dimension]:
            self.x.a[dimension] = float(self.texts.get(p, at, end))
        else:
            self.x.a[dimension] = -1.0

    def clear(self) -> None:
        """Forget the event."""
        x = self.x.a
        for k in range(self.active.n):
            x[self.active.a[k]] = NAN
        self.active.n = 0

    # ---------------------------------------------------------------------- what was observed

    def observe(self) -> None:
        """Remember something of this event."""
        self.sampled += 1
        if self.sampled == EPOCH:  # what was long ago counts half
            self.sampled = EPOCH // 2
            self.epoch += 1
        for k in range(self.active.n):
            dimension = self.active.a[k]
            self.age(dimension)
            self.seen.a[dimension] += 1
            count = self.sample_count.a[dimension]
            self.samples.a[dimension * SAMPLES + count % SAMPLES] = self.x.a[dimension]
            self.sample_count.a[dimension] = count + 1 if count < 2 * SAMPLES - 1 else SAMPLES

    def age(self, dimension: int) -> None:
        """Let `seen` catch up with the epochs."""
        behind = self.epoch - self.seen_epoch.a[dimension]
        if behind:
            self.seen.a[dimension] >>= behind if behind < 30 else 30
            self.seen_epoch.a[dimension] = self.epoch

    def note_bounds(self, dimension: int, low: float, high: float) -> None:
        """A range was asked for: remember some of the bounds, to divide the dimension by."""
        bounds = self.bounds[dimension]
        if bounds is None:
            bounds = self.bounds[dimension] = Reals()
        for value in (low, high):
            if -INFINITY < value < INFINITY:
                count = self.bounds_count.a[dimension]
                if bounds.n < BOUNDS:
                    bounds.push(value)
                else:
                    bounds.a[count % BOUNDS] = value
                self.bounds_count.a[dimension] = count + 1 if count < 1 << 30 else BOUNDS

    def presence(self, dimension: int) -> float:
        """The share of events that have a dimension."""
        sampled = self.sampled
        since = (self.now - self.made.a[dimension]) // SAMPLE_EVERY
        if since < sampled:
            sampled = since
        if sampled < 16:  # too little is known: events are small
            return 1.0 if self.count <= 20 else 20.0 / self.count
        self.age(dimension)
        return (self.seen.a[dimension] + 0.5) / (sampled + 1.0)

    def share(self, dimension: int, low: float, high: float) -> float:
        """The share of events with low <= x[dimension] <= high, estimated."""
        if low != low:
            return 1.0  # absence: no way to reach anything by it
        present = self.presence(dimension)
        if low == -INFINITY and high == INFINITY:
            return present
        n = self.sample_count.a[dimension]
        if n > SAMPLES:
            n = SAMPLES
        if n >= 8:
            within = 0
            samples = self.samples.a
            first = dimension * SAMPLES
            for k in range(first, first + n):
                within += (low <= samples[k]) & (samples[k] <= high)  # without branches
            if low == high:
                return present * (within + 0.25) / (n + 0.5)
            # Few samples may miss a range that is not rare: what bounds say counts, too.
            guess = (within + 32.0 * self.guess(dimension, low, high)) / (n + 32.0)
        else:
            guess = self.guess(dimension, low, high)
        # A narrow range is reached by a cell that may be four times as wide, which also takes more
        # looking up: no better than a value, unless that is known to be frequent.
        if low < high and guess < WIDE_SHARE:
            guess = guess * 4.0 if guess * 4.0 < WIDE_SHARE else WIDE_SHARE
        return present * guess

    def guess(self, dimension: int, low: float, high: float) -> float:
        """The same for a dimension that no event had yet."""
        if self.kind(dimension) == BOOL:
            return 0.5
        if low == high:
            return 0.01
        bounds = self.bounds[dimension]
        if bounds is None or bounds.n < 16:
            return 0.5 if low == -INFINITY or high == INFINITY else 0.25
        within = 0
        n = bounds.n if bounds.n < SAMPLES else SAMPLES
        some = bounds.a
        for k in range(n):
            within += (low <= some[k]) & (some[k] <= high)
        return (within + 0.25) / (n + 0.5)


if not cython.compiled:

    def as_moment(raw: int) -> int:
        """The raw value of a boolean or of a timestamp."""
        return raw
