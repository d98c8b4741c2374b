"""The page of `twinkle rollouts`: one file with its data in it, for a browser without a network.

Short: what it looks like, and what it does, is in rollouts.html.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path


def rollout_page(path: str | Path) -> str:
    """The page of a file that a `RolloutSink` has written.

    The rows are lines of text in it, of which the browser reads one when it is opened; what lists and sorts them is a
    short entry for each: step, prompt and rewards.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no row of a `RolloutSink`; the error has its number. A last line that was cut off is left
            out.
    """
    lines, index = Path(path).read_text(encoding="utf-8").splitlines(), []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rewards = [one.get("reward") for one in row["sequences"]]
            index.append([row["step"], _begin(row["prompt"]), rewards])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise ValueError(f"line {number} of {path} is no row of a RolloutSink: {error!r:.80}") from error
    page = files("twinkle.cli").joinpath("rollouts.html").read_text(encoding="utf-8")
    texts = {"INDEX": json.dumps(index), "ROWS": "\n".join(lines[: len(index)]), "NAME": json.dumps(Path(path).name)}
    # a row may have any text, also one that ends a script
    return re.sub("__(INDEX|ROWS|NAME)__", lambda found: texts[found[1]].replace("<", "\\u003c"), page)


def _begin(prompt: object) -> str:
    """The last words that were said before the answer, in a line."""
    said = prompt[-1].get("content") if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) else prompt
    return " ".join(str(said).split())[-120:]
