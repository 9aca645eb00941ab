#!/usr/bin/env python3
"""Hands host arrays to other processes with Ray: the work of `hand_over`, in Ray's way.

    ray_host.py [--rounds 200] [--compiled]

A fresh NumPy array, its first and last bytes written, is an argument of an actor's method: Ray copies it into
its object store, and the actor reads it there (up to 100 KB it goes along with the call instead). To more
than one actor goes an object that was put into the store once. A trip waits for the method's result; a stream
has no more calls under way than a mailbox of `hand_over` holds, braked with `ray.wait`. With --compiled it
measures the same (but to one actor only) by a compiled graph, whose channels are shared memory that is made
once. Prints lines of a name and a number: microseconds a trip, messages a second, microseconds of processor
time a message of all of Ray's processes, microseconds a message and receiver.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

SIZES = {"4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}
RECEIVERS = [1, 8]
FAN_OUT = 1 << 20
WARM = 50
# As many as a mailbox of `hand_over` takes.
WINDOW = 16
# The default of a compiled graph.
IN_FLIGHT = 10
# The size of an array's header in a channel.
HEADER = 64 << 10
STORE = 4 << 30
TICKS = os.sysconf("SC_CLK_TCK")


def family():
    """Returns the ticks of each process below this one, Ray's servers and workers included."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append((int(stat.parent.name), int(fields[11]) + int(fields[12])))
    found, look = {}, [os.getpid()]
    while look:
        for child, ticks in children.get(look.pop(), []):
            found[child] = ticks
            look.append(child)
    return found


def used():
    """Returns microseconds of processor time; that of others is in ticks of the clock, of which a stream
    takes many."""
    return time.process_time() * 1e6 + sum(family().values()) * 1e6 / TICKS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import numpy
        import ray
        from ray.dag import InputNode
    except ImportError as error:
        sys.exit(f"{error}; `pip install ray numpy` has it")

    @ray.remote(num_cpus=0)
    class Receiver:
        def frame(self, number, data):
            if data[0] != number % 251 or data[-1] != number % 251:
                raise ValueError(f"the marks of array {number} are wrong")
            return number

        def numbered(self, item):
            return self.frame(*item)

    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=STORE)
    receivers = [Receiver.remote() for _ in range(1 if options.compiled else max(RECEIVERS))]

    def fresh(number, count):
        data = numpy.empty(count, dtype=numpy.uint8)
        data[0] = data[-1] = number % 251
        return data

    def stream(rounds, most, send):
        """Returns the microseconds until all messages are handled. `send` returns the references of a
        message's results, at most `most` of them."""
        pending, start = [], time.perf_counter()
        for number in range(rounds):
            if len(pending) > (WINDOW - 1) * most:
                done, pending = ray.wait(pending, num_returns=len(pending) // 2)
                ray.get(done)
            pending += send(number)
        ray.get(pending)
        return (time.perf_counter() - start) * 1e6

    def compiled_stream(rounds, send):
        pending, start = [], time.perf_counter()
        for number in range(rounds):
            if len(pending) == IN_FLIGHT:
                ray.get(pending.pop(0))
            pending.append(send(number))
        for result in pending:
            ray.get(result)
        return (time.perf_counter() - start) * 1e6

    def hand_over(who, size, count, send, stream):
        rounds, times = options.rounds if count <= 1 << 20 else options.rounds // 20, []
        for number in range(rounds + WARM):
            start = time.perf_counter()
            if ray.get(send(number)) != number:
                raise ValueError("another call's answer")
            if number >= WARM:
                times.append((time.perf_counter() - start) * 1e6)
        print(f"{who}.trip.{size} {statistics.median(times):.3f}", flush=True)
        before, took = used(), stream(rounds, send)
        print(f"{who}.rate.{size} {rounds * 1e6 / took:.0f}", flush=True)
        print(f"{who}.cpu.{size} {(used() - before) / rounds:.3f}", flush=True)

    first = receivers[0]
    for size, count in SIZES.items():

        def call(number, count=count):
            return first.frame.remote(number, fresh(number, count))

        def call_stream(rounds, send):
            return stream(rounds, 1, lambda number: [send(number)])

        if not options.compiled:
            hand_over("ray", size, count, call, call_stream)
            continue
        with InputNode() as item:
            graph = first.numbered.bind(item)
        graph = graph.experimental_compile(_buffer_size_bytes=count + HEADER, _max_inflight_executions=IN_FLIGHT)

        def execute(number, count=count, graph=graph):
            return graph.execute((number, fresh(number, count)))

        hand_over("ray compiled graph", size, count, execute, compiled_stream)
        graph.teardown()
    if options.compiled:
        return

    for some in RECEIVERS:

        def to_some(number):
            data = ray.put(fresh(number, FAN_OUT))
            return [receiver.frame.remote(number, data) for receiver in receivers[:some]]

        stream(WARM, some, to_some)
        print(f"ray.fanout.{some} {stream(options.rounds, some, to_some) / options.rounds / some:.3f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
