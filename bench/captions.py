"""Put the figures, with the captions of what was measured, into the pages that show them.

    python bench/captions.py docs/kv-cache.md docs/kv-cache.zh.md [--check]

A page has a place ``<!-- figure NAME -->`` ... ``<!-- /figure -->`` for each figure; what stands
in it comes from ``figures/NAME.json`` beside the page. Pages named
``*.zh.md`` get the Chinese caption.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from pathlib import Path

PLACE = re.compile(r"(<!-- figure (\w+) -->\n).*?(<!-- /figure -->)", re.DOTALL)
PICTURE = """<p align="center"><picture>
  <source media="(prefers-color-scheme: dark)" srcset="figures/{name}-dark.svg">
  <img src="figures/{name}-light.svg" alt="{alt}" width="880">
</picture></p>

"""
SOURCES = {
    "en": "Measured by `kvreuse figure {name}`; the numbers: [{name}.json](figures/{name}.json).\n",
    "zh": "**{title}。** {text}\n\n由 `kvreuse figure {name}` 测得；原始数据："
    "[{name}.json](figures/{name}.json)。\n",
}


def block(name: str, page: Path) -> str | None:
    """What stands in the place of a figure; None where it has not been measured."""
    path = page.parent / "figures" / f"{name}.json"
    if not path.exists():
        return None
    language = "zh" if page.name.endswith(".zh.md") else "en"
    caption = json.loads(path.read_text(encoding="utf-8"))["captions"][language]
    colon = "：" if language == "zh" else ": "
    alt = html.escape(caption["title"] + colon + caption["text"])
    return PICTURE.format(name=name, alt=alt) + SOURCES[language].format(name=name, **caption)


def filled(page: Path) -> str:
    """The page with the captions of the figures that were measured; other places as they are."""

    def fill(place: re.Match[str]) -> str:
        found = block(place[2], page)
        return place[0] if found is None else f"{place[1]}{found}{place[3]}"

    return PLACE.sub(fill, page.read_text(encoding="utf-8"))


def main() -> int:
    """Fill the pages, or say which are not what would be written; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is stale")
    options = parser.parse_args()
    stale = [page for page in options.pages if filled(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if not options.check:
            page.write_text(filled(page), encoding="utf-8")
        print(f"{page}: {'is stale' if options.check else 'new captions'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
