#!/usr/bin/env bash
# Gathers in one folder everything that a machine with a GPU needs to test and measure this tree: stripped
# release programs, the peers' programs, and run.sh. That machine needs neither cargo nor a network.
#
#   scripts/gpu/build.sh [FOLDER]        default: target/gpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder="${1:-target/gpu}"
readonly MOST_MB=50
# The bindings must fit a driver of CUDA 13. Without this variable they would fit the toolkit on this machine,
# if there is one.
export CUDARC_CUDA_VERSION="${CUDARC_CUDA_VERSION:-13000}"
release="$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release"

rm -rf "$folder"
mkdir -p "$folder/examples" "$folder/tests"

# These builds are apart from those of the tests, so that the measured programs lack the hooks of the feature
# `testing`.
cargo build --release -p tensorpost-benches --bin gpu_bench
cargo build --release -p tensorpost-examples --bins --features candle
cp "$release/gpu_bench" "$folder/"
cargo build --release -p tensorpost-cli
cp "$release/tensorpost" "$folder/"
for source in examples/src/bin/*; do
    name="$(basename "$source" .rs)"
    # The service runs until it is stopped, and 18-two-hosts needs two hosts; both compute on the host. The
    # other two have Python modules beside their sources.
    case "$name" in 16-torch-stage | 17-python-trainer | 18-two-hosts | 20-service) continue ;; esac
    cp "$release/$name" "$folder/examples/"
    # run.sh has no sources to look at, so these files give it the example's arguments and the expected
    # output.
    arguments=()
    for option in images photographs; do
        if grep -rq "$option: PathBuf" "$source"; then arguments+=("--$option" examples/data); fi
    done
    if grep -rq 'tensorpost_examples::Place' "$source"; then arguments+=(--device DEVICE --sharing SHARING); fi
    echo "${arguments[*]}" >"$folder/examples/$name.arguments"
    awk -v title="## $name" '
        /^## / { here = $0 == title }
        here && block && /^```$/ { exit }
        block { print }
        here && /^```text$/ { block = 1 }
    ' examples/README.md >"$folder/examples/$name.expected"
    [[ -s "$folder/examples/$name.expected" ]] || { echo "examples/README.md does not say what $name prints" >&2; exit 1; }
done

# This library shows how long each call of the driver takes; see benches/gpu/README.md.
cargo build --release -p tensorpost-driver-calls
cp "$release/libdriver_calls.so" "$folder/"

cargo build --release -p tensorpost-tests --bin gpu_conformance
cp "$release/gpu_conformance" "$folder/"
# executable ARGUMENTS…: builds a test program and prints its path. Cargo prints, for example,
# `Executable tests/gpu_suite.rs (…/gpu_suite-0123456789abcdef)`.
executable() {
    local path
    path="$(cargo test --release --no-run "$@" 2>&1 | tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p' | tail -1)"
    [[ -x "$path" ]] || { echo "cargo named no executable for: $*" >&2; return 1; }
    echo "$path"
}
cp "$(executable -p tensorpost-tests --test gpu_suite)" "$folder/tests/gpu_suite"
cp "$(executable -p tensorpost-core --lib --features testing,cuda,ndarray)" "$folder/tests/framework"

# One wheel of the Python package fits every version from 3.11 on. Its tests need no other file of the tree.
readonly MOST_WHEEL_MB=20
if command -v "${MATURIN:-maturin}" >/dev/null; then
    mkdir "$folder/python"
    wheel="$(realpath "$folder")/python"
    target="$(dirname "$release")"
    (cd framework/python && CARGO_TARGET_DIR="$target" "${MATURIN:-maturin}" build --release --strip --locked --compatibility linux --out "$wheel")
    # The pipelines of this Rust program have a PyTorch stage.
    (cd framework/python && CARGO_TARGET_DIR="$target" cargo build --release --locked -p tensorpost-python-peer)
    cp "$release/tensorpost-python-peer" "$folder/python/"
    strip "$folder/python/tensorpost-python-peer"
    cp framework/python/tests/{test_gpu,gpu_actors,gpu_stages,gpu_times,loader_times}.py "$folder/python/"
    if (($(du -sm "$folder/python" | cut -f1) >= MOST_WHEEL_MB)); then
        echo "the files for Python take more than $MOST_WHEEL_MB MB" >&2
        exit 1
    fi
else
    echo "maturin is not there (pip install maturin, or MATURIN=..): the folder gets no wheel for Python" >&2
fi

find "$folder" -type f -perm -u+x -exec strip {} +
cp benches/peers/*.py scripts/gpu/run.sh "$folder/"
if [[ -d examples/data ]]; then
    cp -r examples/data "$folder/examples/"
fi
# The programs are mostly the same. xz sees that only if it looks back over several of them, which -9 does (64
# MiB).
tar -C "$folder" -c examples tests | xz -9 -T1 >"$folder/programs.txz"
rm -r "$folder/examples" "$folder/tests"
megabytes="$(du -sm "$folder" | cut -f1)"
echo "$folder: $megabytes MB"
if ((megabytes >= MOST_MB)); then
    echo "that is more than $MOST_MB MB" >&2
    exit 1
fi
