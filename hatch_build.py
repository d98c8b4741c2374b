"""The README as the package index shows it: links to files of the repository are absolute there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PAGE = re.compile(r"(\]\(|\bhref=\")(?!\w+:|#)")
_FILE = re.compile(r"(!\[[^\]]*\]\(|\bsrc(?:set)?=\")(?!\w+:)")


class AbsoluteLinks(MetadataHookInterface):
    """Makes the links of README.md absolute."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        home = metadata["urls"]["Source"]
        text = _PAGE.sub(rf"\g<1>{home}/blob/main/", _FILE.sub(rf"\g<1>{home}/raw/main/", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
