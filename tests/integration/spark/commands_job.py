"""The shell's commands, one after the other in one process, as Java takes long to start: FOLDER.

FOLDER/commands has their arguments; N.out and N.err get what the Nth says. The last line of the
output has their exit codes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from regraft.cli import main


def run(arguments: list[str], out: Path, err: Path) -> int:
    """One command, with the output of all that it starts."""
    before = [os.dup(1), os.dup(2)]
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["regraft", *arguments]
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)
    return code if isinstance(code, int) else int(code is not None)


def all_of_them(folder: Path) -> None:
    commands = json.loads((folder / "commands").read_text())
    codes = [
        run(one, folder / f"{number}.out", folder / f"{number}.err")
        for number, one in enumerate(commands)
    ]
    print(json.dumps(codes))


if __name__ == "__main__":
    all_of_them(Path(sys.argv[1]))
