"""A driver in a process group of its own, which can be killed with all that belongs to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from spark.serving import PATIENCE_S, Served

RUN_S = 240.0


class Driver:
    """Python, Java, and the workers, running a job: URL ROOT and what else it wants."""

    def __init__(self, node: Served, root: Path, *arguments: str, job: Path) -> None:
        command = [sys.executable, str(job), node.url, str(root), *arguments]
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.log = root.with_name("driver.log").open("ab")
        self.popen = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            start_new_session=True, text=True, bufsize=1,
        )  # fmt: skip

    def begin(self) -> None:
        """Let the job begin; all before is the same for all jobs, and takes long."""
        assert self.wait_for("ready")
        assert self.popen.stdin is not None
        self.popen.stdin.write("begin\n")
        self.popen.stdin.flush()

    def wait_for(self, word: str) -> bool:
        """Read what it says up to this word; False if it ends before."""
        assert self.popen.stdout is not None
        return any(line.startswith(word) for line in self.popen.stdout)

    def kill(self) -> None:
        """End all of it without a word."""
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(PATIENCE_S)
        self.close()

    def close(self) -> None:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.log.close()

    def end(self) -> None:
        """Let it come to its end."""
        assert self.popen.stdout is not None
        self.popen.stdout.read()
        code = self.popen.wait(RUN_S)
        self.close()
        assert code == 0, Path(self.log.name).read_text()[-2000:]
