#!/usr/bin/env bash
# Tests and measures the programs that build.sh gathered, on a machine with a GPU. The machine needs a driver,
# the CUDA runtime libraries and python3 with PyTorch, but neither cargo nor a network. It prints one table of
# steps and one of figures; logs go to LOGS.
#
#   REQUIRE_GPU=1 ./run.sh [doctor|conformance|sanitizer|suite|examples|torch|python|bench]…       default: all
#   REQUIRE_GPU=1 ./run.sh checks       the first half: doctor, conformance, sanitizer, suite, examples
#   REQUIRE_GPU=1 ./run.sh times        the second half: torch, python, bench
#
# All of it takes more than ten minutes on a machine with two GPUs. Each half is meant to take less than
# eight; the table ends with the time that the run took.
#
# With REQUIRE_GPU=1, every step that is left out is a failure, and so is a run in which no test used a GPU.
# Without a GPU and without that variable, the steps that can run on the host do so. Nothing here waits for
# ever: every step has a deadline, and the processes that it started end with it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly REQUIRE="${REQUIRE_GPU:-0}"
readonly LOGS="${LOGS:-${OUT:-$PWD/logs}}"
wanted=()
for name in "$@"; do
    case "$name" in
        checks) wanted+=(doctor conformance sanitizer suite examples) ;;
        times) wanted+=(torch python bench) ;;
        doctor | conformance | sanitizer | suite | examples | torch | python | bench) wanted+=("$name") ;;
        *)
            echo "run.sh: there is no step \`$name\`; the usage is at its head" >&2
            exit 2
            ;;
    esac
done
mkdir -p "$LOGS"
scratch="$(mktemp -d)"
table=()
failures=0
gpu_tests=0
step_pid=""

clean_up() {
    trap - EXIT INT TERM
    if [[ -n "$step_pid" ]]; then
        kill -TERM "$step_pid" 2>/dev/null
        wait "$step_pid" 2>/dev/null
    fi
    stop_mps
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

is_wanted() {
    ((${#wanted[@]} == 0)) && return 0
    local part
    for part in "${wanted[@]}"; do [[ "$part" == "$1" ]] && return 0; done
    return 1
}

# step NAME SECONDS COMMAND…: runs the command with a deadline, and writes its output to a log. `timeout`
# ends the command's whole process group; workers end with the process that started them.
step() {
    local name="$1" seconds="$2" log start result
    shift 2
    log="$LOGS/${name//[^a-zA-Z0-9_-]/_}.log"
    start=$SECONDS
    timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1 </dev/null &
    step_pid=$!
    wait "$step_pid"
    result=$?
    step_pid=""
    case "$result" in
        0) table+=("ok|$name|$((SECONDS - start)) s") ;;
        124 | 137) table+=("FAILED|$name|stuck: ended after $seconds s") ;;
        *) table+=("FAILED|$name|exit $result after $((SECONDS - start)) s") ;;
    esac
    if ((result != 0)); then
        ((failures += 1))
        echo "-- $name failed; the end of its log:"
        tail -n 25 "$log"
    fi
    return "$result"
}

left_out() {
    if [[ "$REQUIRE" == 1 ]]; then
        ((failures += 1))
        table+=("FAILED|$1|left out: $2")
    else
        table+=("left out|$1|$2")
    fi
}

mps=""
start_mps() {
    command -v nvidia-cuda-mps-control >/dev/null || return 1
    mkdir -p "$scratch/mps"
    export CUDA_MPS_PIPE_DIRECTORY="$scratch/mps" CUDA_MPS_LOG_DIRECTORY="$scratch/mps"
    timeout 20 nvidia-cuda-mps-control -d >/dev/null 2>&1 </dev/null || { unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; return 1; }
    mps=1
}
stop_mps() {
    [[ -n "$mps" ]] || return 0
    mps=""
    # Without a time the daemon waits for its last client.
    echo "quit -t 1" | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

# For programs that use the device without a node. A node sets these variables for its workers.
readonly AS_WORKER=(env CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=8)
# PyTorch's runtime libraries may be the only ones here.
libraries="$(timeout 60 python3 - 2>/dev/null <<'PYTHON'
import glob, os, sysconfig
site = sysconfig.get_paths()["purelib"]
print(":".join(sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))))
PYTHON
)"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"

if timeout 60 nvidia-smi -L 2>/dev/null | grep -q '^GPU 0'; then
    device=cuda:0
    gpu=1
    timeout 60 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
else
    device=host
    gpu=""
    echo "nvidia-smi finds no GPU"
fi
export TENSORPOST_DEVICE="$device"

# count_tests SED-SCRIPT LOG: adds the tests that a log lists as passed, if there is a GPU.
count_tests() {
    local passed
    passed="$(sed -n "$1" "$2" | awk '{ sum += $1 } END { print sum + 0 }')"
    if [[ -n "$gpu" ]]; then gpu_tests=$((gpu_tests + passed)); fi
}

# The doctor may find that a part is slower or smaller than it could be (exit status 1), but not that it will
# not work (2). Two processes must have exchanged a tensor on the host and on the GPU.
readonly DOCTOR='
import json, subprocess, sys
ran = subprocess.run(["./tensorpost", "doctor", "--json"], stdout=subprocess.PIPE)
print(ran.stdout.decode())
report = json.loads(ran.stdout)
subprocess.run(["./tensorpost", "doctor", "--for-issue"])
wanted = ["exchange.host"] + (["exchange.cuda:0"] if sys.argv[1] != "host" else [])
ok = {check["id"] for check in report["checks"] if check["status"] == "ok"}
missing = [name for name in wanted if name not in ok]
if missing or ran.returncode not in (0, 1):
    sys.exit(f"exit status {ran.returncode}, not ok: {missing}")'

# python3 unpacks the programs, because this machine may have no xz.
python3 -c 'import sys, tarfile; tarfile.open("programs.txz").extractall(sys.argv[1])' "$scratch"
readonly tests="$scratch/tests"

if is_wanted doctor; then
    step doctor 60 python3 -c "$DOCTOR" "$device"
fi

if is_wanted conformance; then
    if [[ -n "$gpu" ]]; then
        step conformance 90 "${AS_WORKER[@]}" ./gpu_conformance && count_tests 's/^conformance: \([0-9]*\) cases passed.*/\1/p' "$LOGS/conformance.log"
    else
        left_out conformance "no GPU"
    fi
    step framework-device-tests 60 "${AS_WORKER[@]}" "$tests/framework" device::cuda && count_tests 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$LOGS/framework-device-tests.log"
fi

if is_wanted sanitizer; then
    if [[ -z "$gpu" ]]; then
        left_out sanitizer "no GPU"
    elif command -v compute-sanitizer >/dev/null; then
        # The suite makes the driver refuse calls, which is no error here.
        step sanitizer 120 "${AS_WORKER[@]}" compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 ./gpu_conformance conformance
        # Only these kernels have memory that the threads of a block share; the conformance suite has no such
        # kernel.
        step sanitizer-races 120 compute-sanitizer --tool racecheck --report-api-errors no --error-exitcode 9 "$tests/gpu_suite" --test-threads=1 statistics_agree
    else
        table+=("left out|sanitizer|compute-sanitizer is not installed")
    fi
fi

if is_wanted suite; then
    step suite 240 "$tests/gpu_suite" --test-threads=1 --nocapture && count_tests 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$LOGS/suite.log"
fi

# example ROW PROGRAM SHARING: runs the program and compares its output with the one in examples/README.md.
example() {
    local program="$2" arguments
    read -ra arguments <"$program.arguments"
    arguments=("${arguments[@]/#DEVICE/$device}")
    arguments=("${arguments[@]/#SHARING/$3}")
    arguments=("${arguments[@]/#examples/$scratch/examples}")
    step "example-$1" 40 bash -c "$SAYS_WHAT_IS_EXPECTED" example "$program" "${arguments[@]}"
}
# The outputs may differ only as follows. A tensor on a GPU prints the GPU's UUID, and a pipeline's
# description names the device of a stage that is not on the host. The README has only the last line of
# 10-image-pipeline, because the others are times. 09-cuda-kernel says that it ran no kernel where there is no
# GPU.
# shellcheck disable=SC2016 # for the bash that runs it
readonly SAYS_WHAT_IS_EXPECTED='
    "$@" >"$1.said" || { status=$?; cat "$1.said"; exit "$status"; }
    cat "$1.said"
    if [[ "$TENSORPOST_DEVICE" == host ]] && grep -q "^no kernel was run: " "$1.said"; then exit 0; fi
    sed -E "s/ on GPU-[0-9a-f-]+/ on host/g; s/ \(on cuda:[0-9]+\)//; s/, on cuda:[0-9]+\)/)/" "$1.said" | tail -n "$(wc -l <"$1.expected")" >"$1.compared"
    diff --label "examples/README.md" --label "it printed" -u "$1.expected" "$1.compared"'

if is_wanted examples; then
    for program in "$scratch"/examples/*; do
        [[ -f "$program" && -x "$program" ]] || continue
        name="$(basename "$program")"
        example "$name" "$program" isolated
        # There is nothing to share on the host.
        if [[ -n "$gpu" ]] && grep -q SHARING "$program.arguments"; then
            if command -v nvidia-cuda-mps-control >/dev/null; then
                example "$name-mps" "$program" mps
            else
                left_out "example-$name-mps" "nvidia-cuda-mps-control is not installed"
            fi
        fi
    done
fi

if is_wanted torch; then
    if [[ -z "$gpu" ]]; then
        left_out torch "no GPU"
    elif ! timeout 60 python3 -c 'import torch' 2>/dev/null; then
        left_out torch "python3 has no PyTorch"
    else
        step torch-isolated 80 python3 torch_ipc.py --mode isolated
        if start_mps; then
            step torch-mps 80 python3 torch_ipc.py --mode mps
            stop_mps
        else
            left_out torch-mps "no MPS daemon could be started"
        fi
    fi
fi

# The wheel is unpacked into a folder of its own, so that nothing is installed.
if is_wanted python; then
    if [[ -z "$gpu" ]]; then
        left_out python "no GPU"
    elif ! compgen -G 'python/*.whl' >/dev/null; then
        left_out python "there is no wheel: build.sh had no maturin"
    elif ! timeout 60 python3 -c 'import sys, torch; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        left_out python "python3 has no PyTorch, or is older than 3.11"
    else
        python3 -m zipfile -e python/*.whl "$scratch/package"
        as_package=(env PYTHONPATH="$scratch/package${PYTHONPATH:+:$PYTHONPATH}")
        step python-tensors 240 "${as_package[@]}" python3 python/test_gpu.py && count_tests 's/^ok  *\(test_\).*/1/p' "$LOGS/python-tensors.log"
        step python-times 80 "${as_package[@]}" python3 python/gpu_times.py
        cat "$LOGS/python-times.log"
        if timeout 60 python3 -c 'import PIL, torchvision' 2>/dev/null; then
            step python-loader 150 "${as_package[@]}" python3 python/loader_times.py \
                --device cuda:0 --workers 8 --turns 2 --photographs "$scratch/examples/data"
            cat "$LOGS/python-loader.log"
        else
            echo "python-loader: the loader is not measured beside DataLoader: there is no torchvision"
        fi
        if command -v nvidia-cuda-mps-control >/dev/null; then
            step python-times-mps 80 "${as_package[@]}" python3 python/gpu_times.py --mps
            cat "$LOGS/python-times-mps.log"
            step python-stages 80 "${as_package[@]}" python/tensorpost-python-peer times "$(command -v python3)" "$PWD/python" cuda:0 mps
            cat "$LOGS/python-stages.log"
        else
            left_out python-times-mps "nvidia-cuda-mps-control is not installed"
        fi
    fi
fi

if is_wanted bench; then
    arguments=(--device "$device" --out "$LOGS/figures.txt")
    if [[ -z "$gpu" ]]; then arguments+=(--quick); fi
    for mode in isolated mps; do
        if [[ -s "$LOGS/torch-$mode.log" ]]; then arguments+=(--peer "$LOGS/torch-$mode.log"); fi
    done
    step bench 200 ./gpu_bench "${arguments[@]}"
    cat "$LOGS/bench.log"
fi

if [[ "$REQUIRE" == 1 ]] && ((gpu_tests == 0)) && { is_wanted conformance || is_wanted suite; }; then
    ((failures += 1))
    table+=("FAILED|all tests|REQUIRE_GPU=1, and no test used a GPU")
fi
echo
for row in "${table[@]}"; do
    IFS='|' read -r result name note <<<"$row"
    printf '%-9s %-34s %s\n' "$result" "$name" "$note"
done
echo "$gpu_tests tests used a GPU; $failures failures; $SECONDS s"
exit $((failures > 0))
