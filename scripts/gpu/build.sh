#!/usr/bin/env bash
# Gathers in one folder everything that a machine with a GPU, but without cargo and without a network, needs to test and
# measure this tree: release programs, stripped, the peers' programs, and run.sh.
#
#   scripts/gpu/build.sh [FOLDER]        default: target/gpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder="${1:-target/gpu}"
readonly MOST_MB=50
# Bindings that fit a driver of CUDA 13; without it they would be those of the toolkit here, if there is one.
export CUDARC_CUDA_VERSION="${CUDARC_CUDA_VERSION:-13000}"
release="$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release"

rm -rf "$folder"
mkdir -p "$folder/examples" "$folder/tests"

# Apart, so that the hooks of the feature `testing` are not in what is measured.
cargo build --release -p tensorpost-benches --bin gpu_bench
cargo build --release -p tensorpost-examples --bins --features candle
cp "$release/gpu_bench" "$folder/"
cargo build --release -p tensorpost-cli
cp "$release/tensorpost" "$folder/"
for source in examples/src/bin/*; do
    name="$(basename "$source" .rs)"
    # A service runs until it is stopped, and one is two hosts: they compute on the host. Two have modules in Python beside their sources.
    case "$name" in 16-torch-stage | 17-python-trainer | 18-two-hosts | 20-service) continue ;; esac
    cp "$release/$name" "$folder/examples/"
    # What run.sh, which has no sources to look at, is to call it with, and what it is to print.
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

# To find out which call of the driver takes how long; see benches/gpu/README.md.
cargo build --release -p tensorpost-driver-calls
cp "$release/libdriver_calls.so" "$folder/"

cargo build --release -p tensorpost-tests --bin gpu_conformance
cp "$release/gpu_conformance" "$folder/"
# Prints `Executable tests/gpu_suite.rs (…/gpu_suite-0123456789abcdef)`.
executable() {
    local path
    path="$(cargo test --release --no-run "$@" 2>&1 | tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p' | tail -1)"
    [[ -x "$path" ]] || { echo "cargo named no executable for: $*" >&2; return 1; }
    echo "$path"
}
cp "$(executable -p tensorpost-tests --test gpu_suite)" "$folder/tests/gpu_suite"
cp "$(executable -p tensorpost-core --lib --features testing,cuda,ndarray)" "$folder/tests/framework"

# The package for Python, for every version from 3.11 on. Its tests need nothing of the tree.
readonly MOST_WHEEL_MB=20
if command -v "${MATURIN:-maturin}" >/dev/null; then
    mkdir "$folder/python"
    wheel="$(realpath "$folder")/python"
    target="$(dirname "$release")"
    (cd framework/python && CARGO_TARGET_DIR="$target" "${MATURIN:-maturin}" build --release --strip --locked --compatibility linux --out "$wheel")
    # The program in Rust whose pipelines have a stage of PyTorch.
    (cd framework/python && CARGO_TARGET_DIR="$target" cargo build --release --locked -p tensorpost-python-peer)
    cp "$release/tensorpost-python-peer" "$folder/python/"
    strip "$folder/python/tensorpost-python-peer"
    cp framework/python/tests/{test_gpu,gpu_actors,gpu_stages,gpu_times,loader_times}.py "$folder/python/"
    if (($(du -sm "$folder/python" | cut -f1) >= MOST_WHEEL_MB)); then
        echo "what is for Python has more than $MOST_WHEEL_MB MB" >&2
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
# Many programs that are mostly the same: xz sees that where it looks back over several of them, which -9 does (64 MiB).
tar -C "$folder" -c examples tests | xz -9 -T1 >"$folder/programs.txz"
rm -r "$folder/examples" "$folder/tests"
megabytes="$(du -sm "$folder" | cut -f1)"
echo "$folder: $megabytes MB"
if ((megabytes >= MOST_MB)); then
    echo "that is more than $MOST_MB MB" >&2
    exit 1
fi
