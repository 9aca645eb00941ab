"""Shows the docstrings of the Python package, which use a few roles of reStructuredText, as Markdown."""

import re

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|exc|data):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Makes `` :func:`x` `` into `` `x` ``, and a paragraph that ends in `::` into one that ends in `:`."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
            obj.docstring.value = re.sub(r"(?<=\w)::$| ::$", lambda end: ":" if end[0] == "::" else "", text, flags=re.MULTILINE)
