"""`python -m regraft.simulate SEED [SEED ...]`: tell stories, and say what went wrong."""

from __future__ import annotations

import sys

from regraft.simulate.story import Story, complaints


def main(arguments: list[str]) -> int:
    """Tell one story per seed; 1 if the checkers found anything."""
    failed = 0
    for seed in map(int, arguments or ["0"]):
        story = Story(seed)
        story.tell()
        found = list(complaints(story))
        seen = sum(len(guest.seen) for guest in story.guests)
        print(f"seed {seed}: {len(story.guests)} guests, {seen} messages, {story.trace_hash[:16]}")
        for complaint in found:
            print(f"  {complaint}")
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
