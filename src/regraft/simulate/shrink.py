"""The smallest plan that still fails: acts are left out as long as the complaint stays the same."""

from __future__ import annotations

from collections.abc import Callable

from regraft.simulate.plan import Act, Plan

TRIES_MAX = 400


def shrink(
    plan: Plan, fails: Callable[[Plan], bool], tries_max: int = TRIES_MAX
) -> tuple[Plan, int]:
    """Leave out acts of a plan that fails, many at first, then one by one.

    What is left fails, and none of its acts can be left out alone, unless there were more than
    `tries_max` tries. Comes with the number of tries.
    """
    acts = list(plan.acts)
    tries = 0
    size = max(1, len(acts) // 2)
    while True:
        shorter = False
        start = 0
        while start < len(acts):
            if tries >= tries_max:
                return plan.without(acts), tries
            some: list[Act] = acts[:start] + acts[start + size :]
            tries += 1
            if fails(plan.without(some)):
                acts = some
                shorter = True
            else:
                start += size
        if size > 1:
            size = size // 2
        elif not shorter:
            return plan.without(acts), tries
