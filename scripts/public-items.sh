#!/usr/bin/env bash
# Lists the public items of `tensorpost`: every item of the front door as rustdoc lists it, one a line, and
# the names in the prelude.
#
#   scripts/public-items.sh            writes framework/public-items.txt
#   scripts/public-items.sh --check    fails, and prints the difference, if the file is out of date
#
# Both forms fail if an item shows a type that users cannot name, or if a module has no example
# (scripts/front-door.py).
#
# The list is of the default features. rustdoc writes its pages from scratch, so that an older run or another
# set of features cannot show through.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LIST=framework/public-items.txt
readonly MOST=204

case "${1:-}" in
    "" | --check) ;;
    *)
        echo "usage: $0 [--check]" >&2
        exit 2
        ;;
esac

target="${CARGO_TARGET_DIR:-target}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# rustdoc's JSON is not stable, but its form is fixed with the toolchain. Only rustdoc sees RUSTC_BOOTSTRAP.
# In the environment of a whole build, the variable would make build scripts run again, and everything would
# be built again.
cat >"$work/rustdoc" <<'END'
#!/bin/sh
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
END
chmod +x "$work/rustdoc"
RUSTDOC="$work/rustdoc" RUSTDOCFLAGS="-Z unstable-options --output-format json" \
    cargo doc --quiet --no-deps -p tensorpost -p tensorpost-core -p tensorpost-pipeline -p tensorpost-watch
scripts/front-door.py "$target/doc"

rm -rf "$target/doc/tensorpost"
cargo doc --quiet -p tensorpost --no-deps
pages="$target/doc/tensorpost"

# An item's page is `module/kind.Name.html`, and all.html links to each page.
items="$(grep -oE 'href="[a-zA-Z0-9_/]+\.[A-Za-z0-9_]+\.html"' "$pages/all.html" |
    sed -E 's|^href="(.*)\.html"$|\1|; s|^([a-z_/]*/)?([a-z]+)\.(.*)$|\1\3 (\2)|; s|/|::|g' |
    LC_ALL=C sort -u)"
# The prelude re-exports items of other modules, so it has no pages of its own.
prelude="$(grep -oE 'id="reexport\.[A-Za-z0-9_]+"' "$pages/prelude/index.html" |
    sed -E 's|^id="reexport\.(.*)"$|prelude::\1|' |
    LC_ALL=C sort -u)"
number="$(wc -l <<<"$items")"
[[ -n "$items" && -n "$prelude" ]] || {
    echo "$0: rustdoc's pages look different than expected: nothing was found in $pages" >&2
    exit 1
}

list="$(
    echo "# Written by scripts/public-items.sh: the $number public items of tensorpost, and what the prelude brings into scope."
    echo "$items"
    echo
    echo "$prelude"
)"
if [[ "${1:-}" == --check ]]; then
    diff -u "$LIST" - <<<"$list" || {
        echo "$LIST differs from the items that tensorpost shows. If the change is intended, run scripts/public-items.sh" >&2
        exit 1
    }
else
    echo "$list" >"$LIST"
fi
if ((number > MOST)); then
    echo "tensorpost shows $number items, but at most $MOST are allowed, because a user has to take them in" >&2
    exit 1
fi
