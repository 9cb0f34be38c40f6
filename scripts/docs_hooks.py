"""What mkdocs calls while it builds: parts of the README, with links as a page needs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r'^--8<-- "README\.md:(\w+)"$', re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a marked part of the README where a page asks for it; its links begin at `docs/`."""
    return _PART.sub(lambda found: _part(found[1]), markdown)


def _part(name: str) -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start, end = (f"<!-- --8<-- [{word}:{name}] -->" for word in ("start", "end"))
    part = readme[readme.index(start) + len(start) : readme.index(end)]
    return part.replace("](docs/", "](")
