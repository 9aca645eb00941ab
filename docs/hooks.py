"""Hooks of the site: they bring in the documents that lie beside the code, and tables from the sources.

A document is not copied into docs/site: INCLUDED names its page. Links in pages and documents are those of
the repository, so they also work there. The hook turns a link to an included document into one to its page,
and any other into one to the repository.
"""

import logging
import os
import re
import tomllib
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
REPOSITORY = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
LOG = logging.getLogger("mkdocs.hooks.tensorpost")  # a warning fails a strict build

INCLUDED = {
    "README.md": "index.md",
    "SEMANTICS.md": "reference/semantics.md",
    "PIPELINES.md": "reference/pipelines.md",
    "SECURITY.md": "reference/security.md",
    "ARCHITECTURE.md": "internals.md",
    "benches/README.md": "benchmarks.md",
    "docs/TESTING.md": "guides/testing.md",
    "docs/OBSERVING.md": "reference/observing.md",
    "examples/README.md": "guides/examples.md",
    "framework/cli/README.md": "reference/command.md",
    "framework/hosts/README.md": "guides/several-machines.md",
    "framework/python/README.md": "reference/python.md",
}
SOURCES = {page: source for source, page in INCLUDED.items()}
PICTURES = {"docs/live-page.png": "pictures/live-page.png", "docs/pipeline.svg": "pictures/pipeline.svg"}

FENCE = re.compile(r"^\s*(```+)\s*(\S*)")
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s]+)")
LIST = re.compile(r"^([-*]|\d+\.) ")


def on_config(config):
    config.repo_url, config.repo_name = REPOSITORY, "/".join(REPOSITORY.split("/")[-2:])
    return config


def on_files(files, config):
    for source, page in INCLUDED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for source, page in PICTURES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    source = SOURCES.get(uri, f"docs/site/{uri}")
    page.edit_url = f"{REPOSITORY}/blob/main/{source}"
    markdown = re.sub(r"<!-- (errors|constants): (.*?) -->", lambda found: TABLES[found[1]](*found[2].split()), markdown)
    if uri == "reference/environment.md":
        compare_variables(markdown)
    if uri == "reference/errors.md":
        public = re.findall(r"::(\w+(?:(?<!On)Error|Failure)) \(enum\)", (ROOT / "framework/public-items.txt").read_text())
        for name in (name for name in public if f"`{name}" not in markdown):
            LOG.warning("%s lacks the public error %s", uri, name)
    return "\n".join(lines(markdown.split("\n"), uri, source))


def lines(given, uri, source):
    """Yields the lines of a page as Python-Markdown needs them: it is stricter about lists and fences than
    GitHub."""
    fence, language, before = "", "", ""
    for line in given:
        found = FENCE.match(line)
        if found and not fence:
            fence, words = found[1], found[2].split(",")
            # Rust's words for doc tests, such as no_run, are none of a highlighter.
            is_rust = {"rust", "no_run", "standalone_crate", "compile_fail", "ignore"} & set(words)
            language = "rust" if is_rust else words[0]
            line = re.sub(r"(```+).*", rf"\1{language}", line)
        elif found and not found[2] and found[1] == fence:
            fence = ""
        elif fence and language == "rust" and re.match(r"\s*#( |$)", line):
            continue  # a line that rustdoc hides
        elif not fence:
            line = LINK.sub(lambda link: link[1] + target(link[2], uri, source), line)
        if uri in SOURCES:
            indent = len(line) - len(line.lstrip(" "))
            line = " " * ((indent + 2) // 3 * 2) + line if not fence and indent in (2, 3) else line
            if not fence and LIST.match(line) and before and not LIST.match(before) and not before.startswith(" "):
                yield ""
        before = line
        yield line


def target(link, uri, source):
    """Returns what a link of the repository is on the site."""
    if link.startswith(("https://", "http://", "#", "mailto:")):
        return link
    path, hash, anchor = link.partition("#")
    path = os.path.normpath(PurePosixPath(source).parent / path)
    page = INCLUDED.get(path) or PICTURES.get(path)
    if path.startswith("docs/site/"):
        page = path.removeprefix("docs/site/")
    if page:
        return os.path.relpath(page, PurePosixPath(uri).parent) + hash + anchor
    if not (ROOT / path).exists():
        LOG.warning("%s links to %s, and there is no %s", source, link, path)
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}{hash}{anchor}"


def cell(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def plain(docs):
    """Returns docs of Rust without the links, which lead to other docs."""
    return re.sub(r"\[([^\]]+)\](\([^)]*\))?", r"\1", docs)


def readable(text):
    """Returns a format string with `{..}` in place of each value that has no name to read."""
    return re.sub(r"\{[^}a-z]*\}", "{..}", text)


def errors(path, name):
    """Returns a table of the variants of an error, with their texts, as its source has them."""
    source = (ROOT / path).read_text()
    found = re.search(rf"^pub enum {name}\b.*?^}}", source, re.MULTILINE | re.DOTALL)
    if not found:
        LOG.warning("%s has no enum %s", path, name)
        return ""
    rows, docs, text = ["| variant | when | text |", "|---|---|---|"], [], ""
    attributes = re.compile(r'^    #\[error\(\s*(?:"((?:[^"\\]|\\.)*)"|transparent).*?\)\]\n', re.MULTILINE | re.DOTALL)
    # Each attribute becomes one line, which has its text.
    for line in attributes.sub(lambda said: "    =" + re.sub(r"\\\n\s*", "", said[1] or "") + "\n", found[0]).split("\n"):
        if line.startswith("    /// "):
            docs.append(line[8:])
        elif line.startswith("    ="):
            text = line[5:].replace('\\"', '"').replace("{INHERITED}", "{..}")
        elif variant := re.match(r"    ([A-Z]\w*)", line):
            rows.append(f"| `{variant[1]}` | {cell(plain(' '.join(docs)))} | {cell(readable(text)) or 'that of its cause'} |")
            docs, text = [], ""
    if len(rows) == 2:
        LOG.warning("%s: no variant of %s was found", path, name)
    return "\n".join(rows)


def constants(*paths):
    """Returns a table of the public constants that these files define."""
    public = set(re.findall(r"(\w+) \(constant\)", (ROOT / "framework/public-items.txt").read_text()))
    rows = ["| constant | value | meaning |", "|---|---|---|"]
    for path in paths:
        source = (ROOT / path).read_text()
        for docs, name, value in re.findall(r"((?:^ *///.*\n)+)(?:^ *#.*\n)*^ *pub const (\w+): \w+ =\s*([^;]+);", source, re.MULTILINE):
            if name in public:
                docs = plain(docs.replace("///", ""))
                rows.append(f"| `{name}` | {shown(value, 'ytes' in docs)} | {cell(docs)} |")
    return "\n".join(rows)


def shown(value, is_bytes):
    if seconds := re.fullmatch(r"Duration::from_secs\((\d+)\)", value):
        return f"{seconds[1]} s"
    if not re.fullmatch(r"[\d_ <*+]+", value):
        return f"`{value}`"
    number = eval(value)
    for unit, size in {"GiB": 1 << 30, "MiB": 1 << 20}.items():
        if is_bytes and number >= size:
            return f"{number // size} {unit}"
    return f"{number:,}"


TABLES = {"errors": errors, "constants": constants}


def compare_variables(page):
    """Compares the variables that the page describes with those that the sources read."""
    read = set()
    for path in [*ROOT.glob("framework/*/src/**/*.rs"), *ROOT.glob("framework/python/python/**/*.py")]:
        if "test" not in path.name and "tests" not in path.parts:
            read |= set(re.findall(r'"(TENSORPOST_(?!TEST)\w+)"', path.read_text()))
    described = set(re.findall(r"`(TENSORPOST_\w+)", page))
    for name in sorted(read - described):
        LOG.warning("reference/environment.md lacks %s, which the sources read", name)
    everything = "".join(path.read_text() for path in [*ROOT.glob("*/**/*.rs"), *ROOT.glob("*/**/*.py"), *ROOT.glob("scripts/**/*")]
                         if path.is_file() and path.suffix in (".rs", ".py", ".sh", "") and "target" not in path.parts)
    for name in sorted(name for name in described if name not in everything):
        LOG.warning("reference/environment.md has %s, which nothing reads", name)
