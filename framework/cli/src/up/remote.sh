# Runs on each host, in any POSIX sh on Linux, behind what `remote.rs` writes: the variables mark, grace, silence, head, folder,
# elsewhere, tmp, copy_as, copy_bytes, copy_sum and copy_for, the functions `secrets` and `variables`, and the program with its
# arguments as "$@".
#
# On its standard input come the secrets, the program if it is copied, and then words, a line each. Nothing secret is in a command line.
# The program is asked to end, and is killed when it does not, if that input ends or falls silent: then whoever started it is gone.

exec 3<&0 </dev/null
mask=$(umask)
umask 077
place=$(mktemp -d "${tmp:-${TMPDIR:-/tmp}}/tensorpost-up.XXXXXX") || exit 120
say() { printf '\n%s %s\n' "$mark" "$*"; }
tidy() { rm -rf -- "$place"; }
leave() { tidy; exit "$1"; }
fail() { printf '%s\n' "$*" >&2; leave 120; }
trap 'leave 143' HUP INT TERM

# Exactly so many bytes of the input: whatever reads ahead would take what comes behind them.
take() {
    [ "$(($1 / 65536))" -eq 0 ] || dd bs=65536 count="$(($1 / 65536))" iflag=fullblock 2>/dev/null <&3
    [ "$(($1 % 65536))" -eq 0 ] || dd bs="$(($1 % 65536))" count=1 iflag=fullblock 2>/dev/null <&3
}
# A file that only this user reads: its name, its bytes, and the variable by which the program finds it.
secret() {
    take "$2" >"$place/$1" || fail "the $1 cannot be written to $place: is its disk full?"
    # A short one is the end of the input.
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
# Whether it can be run, with the variables that it will see: PATH may be one of them. A shell's own `command -v` leaves some of it out.
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
# A session of its own, so that a kill finds what the program has started too.
group=
if command -v setsid >/dev/null 2>&1; then
    set -- setsid "$@"
    group=-
fi
mkfifo "$place/out" "$place/err" "$place/joined" || fail "no pipe can be made in $place"

say ready
IFS= read -r word <&3 || leave 0
[ "$word" = go ] || leave 0

# Sleeps, and wakes for a signal.
doze() {
    sleep "$1" &
    nap=$!
    wait "$nap"
}
# In its first moment it may have no session yet.
kill_program() { kill -KILL "$group$program" || kill -KILL "$program"; }
# Once: a program takes a second SIGTERM for impatience.
ask() { mkdir "$place/asked" 2>/dev/null && kill -TERM "$program"; }
# The head drains all hosts, so the others give it its time before they are asked.
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
# What the program says goes on to the connection. When that is gone it is thrown away, so that a program that is asked to end can
# still say so.
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
# Open from now on, so that the program finds somebody who reads. It says the number of its host in one line.
exec 5<>"$place/joined"
hung=
program=
# The signal may come before this shell waits, and would not wake it then.
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

# What this shell would say of a program that was killed, is in its status.
exec 6>&2 2>/dev/null
# A signal wakes it early; until it has been waited for, the program's number is nobody else's.
status=
while :; do
    wait "$program"
    found=$?
    # It was waited for before, and a signal came just then.
    [ "$found" -ne 127 ] || [ -z "$status" ] || break
    status=$found
    [ -n "$hung" ] || break
    hung=
done
exec 2>&6 6>&-
# From here on its number may be another's.
program=
kill "$obey" "$listen" 2>/dev/null
# Behind what the program has said of itself, if it has.
echo >&5
wait "$joined"
# Whoever the program has left behind may hold its pipes for ever.
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
