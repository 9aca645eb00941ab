#!/usr/bin/env python3
"""Checks two promises of the front door of Tensorpost that rustdoc's JSON can tell:

- Users can name every type and trait that it shows in a signature, a field or a variant. It
  ignores traits that seal others, items that rustdoc hides, and an `impl` of a trait for arguments that
  cannot be named, because nobody has a value for the call.
- Every public module opens with an example.

    scripts/front-door.py FOLDER

It reads the JSON of these crates in FOLDER: tensorpost, tensorpost_core, tensorpost_pipeline and
tensorpost_watch.

Each breach is a line, and the exit status is 1 if there are any.
"""

import json
import sys
from pathlib import Path

# The crates that users reach, and the modules in each at which they begin.
DOORS = {"tensorpost": [], "tensorpost_core": ["api"], "tensorpost_pipeline": [], "tensorpost_watch": ["api"]}
# Traits that seal others, and the bound whose error names a remedy: no other crate names them.
SEALED = {"Sealed", "Scalar", "CapturesNothing"}


class Crate:
    """A crate as rustdoc describes it: its items by number, and the paths where they are defined."""

    def __init__(self, folder, name, start):
        described = json.loads((folder / f"{name}.json").read_text())
        self.index, self.paths = described["index"], described["paths"]
        self.start = str(described["root"])
        for step in start:
            self.start = next(str(n) for n in self.children(self.start) if self.index[str(n)]["name"] == step)

    def children(self, number):
        return self.index[str(number)]["inner"]["module"]["items"]

    def path(self, number):
        found = self.paths.get(str(number))
        return "::".join(found["path"]) if found else None

    def door(self):
        """Returns the numbers of the items here that users can name. The other crate has to show the items
        that it defines."""
        found, todo = set(), [self.start]
        while todo:
            number = todo.pop()
            item = self.index.get(number)
            if item is None or number in found:
                continue
            found.add(number)
            inner = item["inner"]
            if "module" in inner:
                todo += map(str, inner["module"]["items"])
            elif "use" in inner and inner["use"]["id"] is not None:
                todo.append(str(inner["use"]["id"]))
        return found

    def is_bare_module(self, number):
        """Returns whether users meet a module here whose docs have no example. `api` is not met: its modules
        are."""
        item = self.index[number]
        return "module" in item["inner"] and item["name"] != "api" and "```" not in (item["docs"] or "")

    def parts(self, number, can_be_named):
        """Yields the pieces of JSON in which an item shows other types: its own, its public fields and
        variants, its methods."""
        item = self.index.get(str(number))
        # A type's private items are not in the index, and `default` is the visibility of variants and of a
        # trait's items.
        if item is None or item["visibility"] not in ("public", "default"):
            return
        (kind, inner), = item["inner"].items()
        if kind in ("module", "use"):
            return
        if kind == "impl":
            if inner["blanket_impl"] or inner["is_synthetic"]:
                return
            if not all(can_be_named(self.path(other)) for other in named(inner["trait"])):
                return
            yield inner["generics"]
            below = inner["items"]
        elif kind == "struct":
            yield inner["generics"]
            below = inner["impls"] + fields(inner["kind"])
        elif kind == "enum":
            yield inner["generics"]
            below = inner["impls"] + inner["variants"]
        elif kind == "variant":
            below = fields(inner["kind"])
        elif kind == "trait":
            yield {key: inner[key] for key in ("generics", "bounds")}
            below = inner["items"]
        else:
            yield inner
            return
        for each in below:
            yield from self.parts(each, can_be_named)


def fields(kind):
    if isinstance(kind, str):
        return []
    (shape, inner), = kind.items()
    numbers = inner if shape == "tuple" else inner["fields"]
    return [number for number in numbers if number is not None]


def named(part):
    """Yields the numbers of the types and traits that are named anywhere in a piece of JSON."""
    if isinstance(part, dict):
        if isinstance(part.get("id"), int) and "path" in part:
            yield part["id"]
        for value in part.values():
            yield from named(value)
    elif isinstance(part, list):
        for value in part:
            yield from named(value)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    crates = [Crate(Path(sys.argv[1]), name, start) for name, start in DOORS.items()]
    doors = [(crate, crate.door()) for crate in crates]
    reachable = {crate.path(number) for crate, door in doors for number in door}

    def can_be_named(path):
        if path is None or path.split("::")[0] not in DOORS:
            return True  # of another crate, or a parameter
        return path in reachable or path.split("::")[-1] in SEALED

    shown = {}
    for crate, door in doors:
        for number in door:
            for part in crate.parts(number, can_be_named):
                for path in map(crate.path, named(part)):
                    if not can_be_named(path):
                        shown.setdefault(path, set()).add(crate.path(number) or crate.index[number]["name"])
    for path, items in sorted(shown.items()):
        print(f"{path} cannot be named, and is shown by {', '.join(sorted(items))}: export it, or box or flatten it")
    bare = {crate.path(number) for crate, door in doors for number in door if crate.is_bare_module(number)}
    for path in sorted(bare):
        print(f"{path} opens without an example")
    sys.exit(1 if shown or bare else 0)


if __name__ == "__main__":
    main()
