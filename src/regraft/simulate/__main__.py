"""`python -m regraft.simulate SEED [SEED ...]`: tell stories, and say what went wrong."""

from __future__ import annotations

import sys

from regraft.simulate.durable_story import DurableStory
from regraft.simulate.story import Story, complaints


def tell(seed: int) -> list[str]:
    """A story of a node without a journal; the complaints."""
    story = Story(seed)
    story.tell()
    seen = sum(len(guest.seen) for guest in story.guests)
    print(f"seed {seed}: {len(story.guests)} guests, {seen} messages, {story.trace_hash[:16]}")
    return list(complaints(story))


def tell_durable(seed: int) -> list[str]:
    """A story of a node with one; the complaints."""
    story = DurableStory(seed)
    story.tell()
    happened = {**story.events, **story.ledger.counts}
    told = ", ".join(f"{count} {what}" for what, count in sorted(happened.items()) if count)
    print(f"seed {seed}: {len(story.regulars)} regulars, {told}, {story.trace_hash[:16]}")
    return story.complaints


def main(arguments: list[str]) -> int:
    """Tell two stories per seed; 1 if the checkers found anything."""
    failed = 0
    for seed in map(int, arguments or ["0"]):
        for found in (tell(seed), tell_durable(seed)):
            for complaint in found:
                print(f"  {complaint}")
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
