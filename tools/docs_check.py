#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the built site to its promises.

    tools/docs_check.py SITE              every link and anchor inside it leads somewhere, and no page
                                          takes a script, style, font or picture from another host
    tools/docs_check.py SITE --browser    also opens pages in Chromium, light and dark, wide and
                                          narrow: no request leaves, no error, nothing is cut off

--shots FOLDER, with --browser, keeps a picture of each."""

import functools
import html.parser
import http.server
import json
import pathlib
import re
import sys
import threading
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOADS = {  # what a page takes by itself: {element: attributes}
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href", "xlink:href"),
}
FOREIGN = re.compile(r"^\s*(?:https?:)?//")
CSS_FOREIGN = re.compile(r"""(?:url\(\s*|@import\s+)["']?(?:https?:)?//""")
SHOWN = [
    "index.html",
    "operations/index.html",
    "operations/attention_forward.html",
    "operations/x_kl_indexer_backward.html",
    "headers/fovea.html",
    "headers/core.html",
    "guides/cpp.html",
    "guides/decoding.html",
    "guides/porting.html",
    "performance.html",
]
# What reaches past the right edge and cannot be scrolled to.
CUT = """
const wide = document.documentElement.clientWidth, found = [];
for (const x of document.querySelectorAll(".md-content *")) {
  const box = x.getBoundingClientRect();
  if (!box.width || box.right <= wide + 1) continue;
  let up = x;
  while (up && !/auto|scroll|hidden/.test(getComputedStyle(up).overflowX)) up = up.parentElement;
  if (!up || up === document.body) found.push(x.tagName + " " + x.textContent.trim().slice(0, 40));
}
if (document.documentElement.scrollWidth > wide) found.push("the page scrolls sideways");
return found;
"""


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") == "canonical":
            return
        for name in LOADS.get(tag, ()):
            if given.get(name):
                self.loads.append(given[name])
        if CSS_FOREIGN.search(given.get("style") or ""):
            self.loads.append("//" + given["style"])


def broken(site):
    """A sentence for each link that leads nowhere and each thing of another host."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {x}" for x in page.loads if FOREIGN.match(x)]
        local = [x for x in page.loads if not FOREIGN.match(x) and not x.startswith("data:")]
        for link in page.links + local:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (
                path
                if not parts.path
                else (path.parent / urllib.parse.unquote(parts.path)).resolve()
            )
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name} links to {link}, which is not there")
            elif parts.fragment and target in pages:
                if urllib.parse.unquote(parts.fragment) not in pages[target].ids | {
                    "__search",
                    "__drawer",
                }:
                    found.append(f"{name} links to {link}, which has no such anchor")
    for path in site.rglob("*.css"):
        if CSS_FOREIGN.search(path.read_text()):
            found.append(f"{path.relative_to(site)} loads from another host")
    if len(pages) < 40:
        found.append(f"the site has {len(pages)} pages")
    return found


class Server(http.server.ThreadingHTTPServer):
    """The site at a port of this machine."""

    def __init__(self, site):
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
        handler.func.log_message = lambda *_: None
        super().__init__(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


def visit(browser, address, page, shots, label):
    browser.log("performance"), browser.log("browser")
    browser.open(f"{address}/{page}")
    browser.until("document.readyState == 'complete'")
    found = [f"{page}, {label}: cut off: {what}" for what in browser.run(CUT)]
    for entry in browser.log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if re.match(r"(https?|wss?|ftp):", url) and not url.startswith(address + "/"):
                found.append(f"{page}, {label}: asks for {url}")
    found += [
        f"{page}, {label}: {e['message']}" for e in browser.log("browser") if e["level"] == "SEVERE"
    ]
    if shots:
        browser.screenshot(shots / f"{page.replace('/', '-').removesuffix('.html')}-{label}.png")
    return found


def searched(browser, address):
    """The search of the site knows a field and links to its page."""
    browser.open(f"{address}/index.html?q=sink_logit")
    browser.until("document.querySelectorAll('.md-search-result__link').length > 0", 20)
    links = "[...document.querySelectorAll('.md-search-result__link')].map(x => x.href).join()"
    return [] if "attention_forward" in browser.run(f"return {links}") else ["the search fails"]


def watched(site, shots):
    sys.path.insert(0, str(ROOT / "tests/python"))
    import browser

    if missing := browser.missing():
        return [f"{' and '.join(missing)} are missing"]
    found, server = [], Server(site)
    for width, height, dark in (
        (1400, 1000, False),
        (390, 844, True),
        (390, 844, False),
        (1400, 1000, True),
    ):
        label = f"{width}-{'dark' if dark else 'light'}"
        with browser.Browser(width, height, dark) as chromium:
            if width < 500:  # a window is never narrower than 500
                chromium._call("POST", "/chromium/send_command", {
                    "cmd": "Emulation.setDeviceMetricsOverride",
                    "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
                })  # fmt: skip
            for page in SHOWN if shots or dark == (width < 500) else SHOWN[:1]:
                found += visit(chromium, server.address, page, shots, label)
            found += searched(chromium, server.address) if width > 500 and not dark else []
    server.shutdown()
    return found


def main(argv):
    shots = None
    if "--shots" in argv:
        at = argv.index("--shots")
        shots = pathlib.Path(argv[at + 1])
        shots.mkdir(parents=True, exist_ok=True)
        argv = argv[:at] + argv[at + 2 :]
    site = pathlib.Path(argv[0]).resolve() if argv else None
    if argv[1:] not in ([], ["--browser"]) or not argv:
        sys.exit(__doc__)
    found = broken(site) + (watched(site, shots) if argv[1:] else [])
    if found:
        sys.exit("docs: " + "\ndocs: ".join(found))
    print(f"docs: {len(list(site.rglob('*.html')))} pages, no broken link, nothing of another host"
          + (", nothing cut off" if argv[1:] else ""))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
