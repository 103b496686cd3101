"""What the site has besides the pages of this folder: files of the repository that they link to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
# Where a file is in the repository, and what it is called in the site.
FILES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/alerts.py": "files/alerts.py",
    "examples/blocking.py": "files/blocking.py",
    "examples/hello.py": "files/hello.py",
    "examples/minimal_client.py": "files/minimal_client.py",
    "examples/workers.py": "files/workers.py",
    "src/regraft/wire/regraft.proto": "files/regraft.proto",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the files."""
    for source, target in FILES.items():
        if target not in files.src_uris:
            files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of this folder lead to where the files are in the site."""
    up = "../" * page.file.src_uri.count("/")
    for source, target in FILES.items():
        markdown = markdown.replace(f"]({up}../{source})", f"]({up}{target})")
    return markdown
