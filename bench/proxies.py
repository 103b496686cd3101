"""What stands between publisher and subscriber for libraries that come without a server.

python -m bench.proxies zmq PORT PORT    an XSUB for publishers, an XPUB for subscribers
python -m bench.proxies zenoh PORT PORT  a router; the second port is not used
"""

from __future__ import annotations

import json
import sys
import threading

HIGH_WATER = 65_536


def run_zmq(port: int, second_port: int) -> None:
    """Forward in native code, and wait rather than drop."""
    import zmq

    context = zmq.Context()
    inward, outward = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    outward.setsockopt(zmq.XPUB_NODROP, 1)
    for sock, each in ((inward, port), (outward, second_port)):
        sock.set_hwm(HIGH_WATER)
        sock.bind(f"tcp://127.0.0.1:{each}")
    zmq.proxy(inward, outward)


def run_zenoh(port: int, second_port: int) -> None:
    """A session in router mode, on the loopback only."""
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config):
        threading.Event().wait()


if __name__ == "__main__":
    {"zmq": run_zmq, "zenoh": run_zenoh}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
