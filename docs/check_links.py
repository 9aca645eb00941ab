"""Checks every link inside a built site: that its file exists, and that its anchor does.

    check_links.py FOLDER

The Rust pages come from rustdoc, which checks them itself: below api/rust/ only the existence of a file is
checked, and only if rustdoc's pages are there.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def main():
    site = Path(sys.argv[1]).resolve()
    rustdoc = site / "api" / "rust"
    is_rustdoc = lambda path: path.is_relative_to(rustdoc) and path != rustdoc / "index.html"
    pages = {path: Page(path) for path in site.rglob("*.html") if not is_rustdoc(path)}
    bad, checked = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are absolute, for any address
        for link in page.links:
            scheme, host, to, _, anchor = urlsplit(link)
            if scheme or host:
                continue
            checked += 1
            found = (path.parent / unquote(to)).resolve() if to else path
            if is_rustdoc(found) and found != rustdoc and not (rustdoc / "tensorpost").exists():
                continue
            if found.is_dir():
                found /= "index.html"
            if not found.is_relative_to(site) or not found.exists():
                bad.append(f"{path.relative_to(site)}: {link} leads nowhere")
            elif anchor and found in pages and unquote(anchor) not in pages[found].anchors:
                bad.append(f"{path.relative_to(site)}: {link} has an anchor that is not there")
    print(*sorted(bad), f"{checked} links of {len(pages)} pages, {len(bad)} bad", sep="\n")
    sys.exit(1 if bad or not checked else 0)


main()
