"""Real nodes without a real world: virtual time, connections in memory, one seed, one story.

The node's code is the same as in production and so are the bytes on its connections; only the room
that performs its effects is another. What happens when is decided by the seed alone: the same seed
gives the same trace, to the byte.
"""

from regraft.simulate.disk import Disk
from regraft.simulate.network import Conditions, Network
from regraft.simulate.world import Broker, Pipe, World

__all__ = ["Broker", "Conditions", "Disk", "Network", "Pipe", "World"]
