# Runs on each host, in any POSIX sh on Linux. `remote.rs` writes the head of the script: the variables mark,
# grace, silence, head, folder, elsewhere, tmp, copy_as, copy_bytes, copy_sum and copy_for, the functions
# `secrets` and `variables`, and the program with its arguments as "$@".
#
# Standard input brings the secrets, the program if it is copied, and then words, a line each. No secret is in
# a command line. An input that ends or falls silent means that `tensorpost up` is gone: the script then asks
# the program to end, and kills it if it does not.

exec 3<&0 </dev/null
mask=$(umask)
umask 077
place=$(mktemp -d "${tmp:-${TMPDIR:-/tmp}}/tensorpost-up.XXXXXX") || exit 120
say() { printf '\n%s %s\n' "$mark" "$*"; }
tidy() { rm -rf -- "$place"; }
leave() { tidy; exit "$1"; }
fail() { printf '%s\n' "$*" >&2; leave 120; }
trap 'leave 143' HUP INT TERM

# Copies exactly $1 bytes of the input. A tool that reads ahead would swallow the bytes behind them.
take() {
    [ "$(($1 / 65536))" -eq 0 ] || dd bs=65536 count="$(($1 / 65536))" iflag=fullblock 2>/dev/null <&3
    [ "$(($1 % 65536))" -eq 0 ] || dd bs="$(($1 % 65536))" count=1 iflag=fullblock 2>/dev/null <&3
}
# Writes a secret to a file that only this user reads: $1 is its name, $2 its size in bytes, and $3 the
# variable that tells the program its path.
secret() {
    take "$2" >"$place/$1" || fail "the $1 cannot be written to $place: is its disk full?"
    # A short file means that the input has ended.
    [ "$(wc -c <"$place/$1")" -eq "$2" ] || leave 120
    export "$3=$place/$1"
}
secrets
cd -- "$folder" 2>/dev/null || {
    [ -n "$elsewhere" ] || fail "there is no folder $folder, in which the program was to run: name another with --dir"
    cd || fail "there is neither a folder $folder nor a home"
}
if [ -n "$copy_as" ]; then
    [ -z "$copy_for" ] || [ "$(uname -m)" = "$copy_for" ] ||
        fail "this host is $(uname -m), and the program is for $copy_for: build one for it, and start it without --copy"
    mkdir "$place/copy"
    take "$copy_bytes" >"$place/copy/$copy_as"
    found=$(sha256sum <"$place/copy/$copy_as") || fail "the copy cannot be checked: sha256sum is missing"
    [ "${found%% *}" = "$copy_sum" ] || fail "the copy in $place is not the program: its SHA-256 is ${found%% *} and not $copy_sum; \
is the disk full, or was the program built anew meanwhile?"
    chmod 700 "$place/copy/$copy_as"
    [ -x "$place/copy/$copy_as" ] || fail "the copy in $place cannot be run, because that disk is mounted noexec: name a folder of \
another with --env TMPDIR=.."
    shift
    set -- "$place/copy/$copy_as" "$@"
fi
# Checks that the program can be run, with the variables that it will see, because PATH may be one of them.
# The `command -v` of some shells does not check that a file exists and is executable.
(
    variables
    none="$1 is no program that can be run in $(pwd): --copy brings it along"
    case $1 in
    */*) found=$1 ;;
    *) found=$(command -v "$1") || fail "$none" ;;
    esac
    case $found in
    */*)
        [ -e "$found" ] || fail "$none"
        [ -f "$found" ] && [ -x "$found" ] || fail "$1 in $(pwd) is no file that this user may execute: \`chmod +x\` it"
        ;;
    esac
) || exit
# The program gets a session of its own, so that a kill also reaches the processes that it starts.
group=
if command -v setsid >/dev/null 2>&1; then
    set -- setsid "$@"
    group=-
fi
mkfifo "$place/out" "$place/err" "$place/joined" || fail "no pipe can be made in $place"

say ready
IFS= read -r word <&3 || leave 0
[ "$word" = go ] || leave 0

# Sleeps for $1 seconds; a signal ends the sleep early.
doze() {
    sleep "$1" &
    nap=$!
    wait "$nap"
}
# Kills the program's group, or the program alone if it has no session yet.
kill_program() { kill -KILL "$group$program" || kill -KILL "$program"; }
# Asks the program to end, once only: a second SIGTERM would make it end at once.
ask() { mkdir "$place/asked" 2>/dev/null && kill -TERM "$program"; }
# Ends the program. The head drains all hosts, so the others wait for the head's grace before they ask
# their own program.
end() {
    trap 'kill "$nap"; exit 0' TERM
    [ -n "$head" ] || [ -e "$place/asked" ] || doze "$grace"
    ask
    doze "$grace"
    kill_program
}
obey() {
    while IFS= read -r word <&3; do
        case $word in
        term) ask ;;
        kill) kill_program ;;
        *) : >"$place/beat" ;;
        esac
    done
    end
}
listen() {
    trap 'kill "$nap"; exit 0' TERM
    while doze "$silence" && [ -e "$place/beat" ]; do rm -f -- "$place/beat"; done
    end
}
# Passes the program's output on to the connection. Without a connection it discards the output, so that a
# program that is asked to end can still write.
relay() {
    exec 4<"$place/$1"
    trap 'kill "$nap"; exit 0' TERM
    cat <&4 2>/dev/null &
    nap=$!
    wait "$nap"
    cat <&4 >/dev/null 2>&1 &
    nap=$!
    wait "$nap"
}

relay out 3<&- &
out=$!
relay err >&2 3<&- &
err=$!
# Keeps the pipe open, so that the program finds a reader. The program writes its host's number to it, in one
# line.
exec 5<>"$place/joined"
hung=
program=
# A signal that comes before this shell waits would not wake it, so `hung` records it.
trap 'hung=yes; [ -z "$program" ] || ask' HUP INT TERM
{ IFS= read -r word <&5 && [ -n "$word" ] && say "joined $word"; } 2>/dev/null 3<&- &
joined=$!
(
    umask "$mask"
    variables
    TENSORPOST_JOINED_FILE=$place/joined
    export TENSORPOST_JOINED_FILE
    exec "$@"
) >"$place/out" 2>"$place/err" 3<&- 5<&- &
program=$!
[ -z "$hung" ] || ask
obey >/dev/null 2>&1 5<&- &
obey=$!
listen >/dev/null 2>&1 3<&- 5<&- &
listen=$!
trap '' PIPE
say started

# Silences the shell's own message about a killed program; the status says the same.
exec 6>&2 2>/dev/null
# A signal ends `wait` early, so wait again. Until the program has been waited for, no other process gets its
# process id.
status=
while :; do
    wait "$program"
    found=$?
    # 127 means that the previous `wait` got the status, although a signal came at that moment.
    [ "$found" -ne 127 ] || [ -z "$status" ] || break
    status=$found
    [ -n "$hung" ] || break
    hung=
done
exec 2>&6 6>&-
# From here on another process may get the program's process id.
program=
kill "$obey" "$listen" 2>/dev/null
# Wakes the reader of `joined` with an empty line, behind the program's own line if it wrote one.
echo >&5
wait "$joined"
# Processes that the program has left behind may hold its pipes for ever, so end the relays after 2 s.
(
    trap 'kill "$nap"; exit 0' TERM
    doze 2
    kill "$out" "$err"
) >/dev/null 2>&1 3<&- 5<&- &
late=$!
wait "$out" "$err"
kill "$late" 2>/dev/null
say "ended $status"
leave "$status"
