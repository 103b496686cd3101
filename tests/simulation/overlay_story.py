"""Random stories of overlays: they start, break, crash, sleep, are parted and come back."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from overlay_world import MS, Host, S, World

BOUND_S = 30  # of virtual time, from the end of all troubles to one tree


class Story:
    """What happens in one world, by seed: troubles for a while, then calm."""

    def __init__(
        self,
        seed: int,
        bugs: frozenset[str] = frozenset(),
        count: int | None = None,
        troubles: int = 25,
        pace_ms: float = 300,
        crowded: bool = False,
        **options: Any,
    ) -> None:
        self.random = Random(f"story {seed}")
        if count is None:
            count = self.random.choice([3, 4, 5, 6, 6, 8, 8, 10, 12, 16, 24, 40])
        slow = self.random.random() < 0.3 or crowded
        options.setdefault("max_degree", self.random.choice([3, 4, 8, 8]))
        if crowded:
            options.update(ask_ms=self.random.choice([60, 1000]), retry_ms=5, search_ms=300)
        self.world = World(seed, count, bugs, (1.0, 200.0) if slow else (0.1, 20.0), **options)
        self.crowded = crowded
        self.troubles = troubles
        self.pace_ms = pace_ms
        self.happened: list[str] = []

    def pick(self, fits: Callable[[Host], bool]) -> Host | None:
        hosts = [host for host in self.world.hosts if fits(host)]
        return self.random.choice(hosts) if hosts else None

    def tell(self) -> World:
        """The whole story; raises what the checker sees."""
        world = self.world
        for host in world.hosts:
            world.at(int(self.random.random() * 2 * S), lambda host=host: self.begin(host))
        world.run(int((1 + self.random.random() * 4) * S))
        for _ in range(self.troubles):
            self.trouble()
            world.run(world.now_ns + int(self.random.expovariate(1 / self.pace_ms) * MS))
        if not self.crowded:
            self.calm()
        return world

    def begin(self, host: Host) -> None:
        if host.tree is None:
            self.world.start(host)

    def trouble(self) -> None:
        """One thing goes wrong, or several at the same moment."""
        if self.crowded:
            self.random.choice([self.attach, self.break_, self.shatter])()
            return
        kinds = ["break"] * 6 + ["crash"] * 3 + ["start"] * 4 + ["silence"] + ["sleep"] * 2
        kinds += ["part"] + ["heal"] * 2 + ["attach", "detach", "leave"]
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            kind = self.random.choice(kinds)
            self.happened.append(kind)
            getattr(self, kind)()

    def calm(self) -> None:
        """All troubles are over: there has to be one tree before long, and it stays as it is."""
        world = self.world
        self.heal()
        for host in world.hosts:
            if host.silent:
                world.bury(host)
            if host.tree is not None and host.tree.snapshot()["leaving"]:
                world.crash(host)
            if host.tree is None:
                world.start(host)
        world.run(world.now_ns + 500 * MS)  # what broke last is noticed everywhere
        world.counters["converged_ms"] = int(1000 * world.converge(BOUND_S))
        before = world.counters["added"]
        world.run(world.now_ns + self.random.choice([2, 2, 8]) * S)
        if not world.whole or world.counters["added"] != before:
            raise AssertionError("the tree changed though nothing happened")

    # ----------------------------------------------------------------- troubles

    def break_(self) -> None:
        host = self.pick(lambda host: host.up and bool(host.ends))
        if host is not None:
            links = [end for end in host.ends.values() if end.key in host.links]
            ends = links if links and self.random.random() < 0.8 else list(host.ends.values())
            self.world.break_link(self.random.choice(ends))

    def shatter(self) -> None:
        """All links break at the same moment: every node is a root, and asks."""
        for host in self.world.hosts:
            for end in list(host.ends.values()):
                if end.key in host.links and host.up:
                    self.world.break_link(end)

    def crash(self) -> None:
        host = self.pick(lambda host: host.up)
        if host is not None:
            self.world.crash(host)
            if self.random.random() < 0.5:
                self.later(host)

    def later(self, host: Host) -> None:
        delay_ns = int(self.random.expovariate(1 / 500) * MS)
        self.world.at(self.world.now_ns + delay_ns, lambda: self.begin(host))

    def start(self) -> None:
        host = self.pick(lambda host: host.tree is None)
        if host is not None:
            self.world.start(host)

    def silence(self) -> None:
        host = self.pick(lambda host: host.up)
        if host is not None:
            self.world.crash(host, silent=True)

    def sleep(self) -> None:
        host = self.pick(lambda host: host.up)
        if host is not None:
            self.world.pause(host)
            life = host.life
            delay_ns = int(self.random.expovariate(1 / 1000) * MS)

            def resume() -> None:
                if host.silent and host.life == life and host.tree is not None:
                    self.world.resume(host)

            self.world.at(self.world.now_ns + delay_ns, resume)

    def part(self) -> None:
        parts = {host.number: self.random.randrange(2) for host in self.world.hosts}
        self.world.cut(parts)

    def heal(self) -> None:
        self.world.cut({})

    def attach(self) -> None:
        host, other = self.pick(lambda host: host.up), self.random.choice(self.world.hosts)
        if host is not None and host is not other:
            assert host.tree is not None
            if other.node not in host.links.values() and not host.tree.snapshot()["leaving"]:
                host.tree.attach(other.address, self.world.now_ns)
                self.world.after(host)

    def detach(self) -> None:
        host = self.pick(lambda host: host.up and bool(host.links))
        if host is not None:
            assert host.tree is not None
            if not host.tree.snapshot()["leaving"]:
                node = self.random.choice(sorted(host.links.values()))
                host.tree.detach(node, self.world.now_ns)
                self.world.after(host)

    def leave(self) -> None:
        host = self.pick(lambda host: host.up)
        if host is None:
            return
        assert host.tree is not None
        if host.tree.snapshot()["leaving"]:
            return
        world, life = self.world, host.life
        host.tree.leave(world.now_ns)
        world.after(host)

        def part() -> None:
            if host.up and host.life == life and host.tree is not None:
                host.tree.part(world.now_ns)
                world.after(host)
                world.at(world.now_ns + 1, stop)

        def stop() -> None:
            if host.up and host.life == life:
                world.crash(host)
                self.later(host)

        world.at(world.now_ns + int(self.random.random() * 300 * MS), part)


setattr(Story, "break", Story.break_)
