#!/usr/bin/env python3
"""Looks at a node's live page in headless Chromium, and compares its contents with the node's figures.

    check.py [--screenshot FILE] PROGRAM [ARGUMENT ...]

Starts the program with TENSORPOST_HTTP at a free port, and dumps the page's document once it has its figures.
Compares each row of actors, memory and processes with /figures.json, asked before and after: each count has
to lie between the two. Needs Chromium, `apt-get install chromium` for example; says so and ends with 2 where
there is none. CI has none.
"""

import argparse
import html.parser
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

DEADLINE = 60


class Tables(html.parser.HTMLParser):
    """The rows of each table of the document, as texts, by the table's heading."""

    def __init__(self):
        super().__init__()
        self.tables, self.heading, self.cell, self.in_heading = {}, "", None, False

    def handle_starttag(self, tag, attributes):
        if tag == "h2":
            self.heading, self.in_heading = "", True
        elif tag == "tr":
            self.tables.setdefault(self.heading, []).append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag == "h2":
            self.in_heading = False
        elif tag in ("td", "th") and self.cell is not None:
            self.tables[self.heading][-1].append(self.cell.strip())
            self.cell = None

    def handle_data(self, data):
        if self.in_heading:
            self.heading += data
        elif self.cell is not None:
            self.cell += data

    def rows(self, heading):
        """Returns each row as {column: text}."""
        first, *rest = self.tables.get(heading, [[]])
        return [dict(zip(first, row)) for row in rest]


def figures(address):
    with urllib.request.urlopen(f"http://{address}/figures.json", timeout=10) as answer:
        return json.load(answer)


def wait_for(address, program):
    """Waits until the node answers, and all its actors run."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        if program.poll() is not None:
            sys.exit(f"the program ended with {program.returncode} before its page was there")
        try:
            now = figures(address)
            if now["actors"] and all(actor["state"] == "running" for actor in now["actors"]):
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)  # there is no event of another program to wait for
    sys.exit(f"no page at http://{address}/ within {DEADLINE} s")


def compare(page, before, after):
    """Returns the differences."""
    wrong = []

    def expect(what, shown, said):
        if str(shown) != str(said):
            wrong.append(f"{what}: the page shows {shown!r}, the node says {said!r}")

    def expect_between(what, shown, low, high):
        if not shown.isdigit() or not low <= int(shown) <= high:
            wrong.append(f"{what}: the page shows {shown!r}, the node said {low}, later {high}")

    for heading, key in (("Actors", "actors"), ("Memory", "memory"), ("Processes", "processes")):
        expect(f"rows of {heading}", len(page.rows(heading)), len(after[key]))
    actors = {(row["actor"], row["process"]): row for row in page.rows("Actors")}
    for early, late in zip(before["actors"], after["actors"]):
        name = (late["name"], late["process"])
        row = actors.get(name)
        if row is None:
            wrong.append(f"the page does not show actor {name[0]!r} of process {name[1]!r}")
            continue
        for column in ("device", "restarts", "state"):
            if late.get(column) is not None:
                expect(f"{column} of {name[0]}", row[column], late[column])
        expect(f"capacity of {name[0]}", row["queue"].split("/")[1], late["capacity"])
        if late.get("handled") is not None:
            expect_between(f"handled of {name[0]}", row["handled"].replace(",", ""), early["handled"] or 0, late["handled"])
    pids = {row["process"]: row["pid"] for row in page.rows("Processes")}
    for process in after["processes"]:
        expect(f"pid of {process['name']}", pids.get(process["name"]), process["pid"])
    return wrong


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--screenshot", help="also writes a picture of the page there")
    options.add_argument("program", nargs=argparse.REMAINDER)
    options = options.parse_args()
    if not options.program:
        sys.exit("name the program, target/debug/20-service for example")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("there is no Chromium: install it, `apt-get install chromium` for example", file=sys.stderr)
        return 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = subprocess.Popen(options.program, env={**os.environ, "TENSORPOST_HTTP": address}, stdout=subprocess.DEVNULL)
    try:
        wait_for(address, program)
        browse = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
        browse += ["--window-size=1400,1000"]
        before = figures(address)
        page = f"http://{address}/"
        dumped = subprocess.run([*browse, "--dump-dom", page], capture_output=True, text=True, timeout=DEADLINE, check=True)
        after = figures(address)
        if options.screenshot:
            shot = [*browse, f"--screenshot={os.path.abspath(options.screenshot)}", page]
            subprocess.run(shot, capture_output=True, timeout=DEADLINE, check=True)
    finally:
        program.send_signal(signal.SIGINT)
        program.wait(DEADLINE)
    tables = Tables()
    tables.feed(dumped.stdout)
    wrong = compare(tables, before, after)
    print("\n".join(wrong) or f"the page shows what the node says: {len(after['actors'])} actors, "
          f"{len(after['memory'])} pools, {len(after['processes'])} processes")
    return 1 if wrong else 0


sys.exit(main())
