#!/usr/bin/env python3
"""Hands host tensors to another process with torch.multiprocessing (spawn): the work of `hand_over`, in
PyTorch's way.

    torch_host.py [--rounds 200]

A fresh tensor, its first and last bytes written, goes through a SimpleQueue: PyTorch moves it into shared
memory, and the other process checks it. To several processes the same tensor goes through a queue for each.
Prints lines of a name and a number: microseconds a trip, messages a second, microseconds of processor time a
message of both processes, microseconds a message and receiver.
"""

import argparse
import os
import statistics
import time

SIZES = {"4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}
RECEIVERS = [1, 8]
FAN_OUT = 1 << 20
WARM = 50


def pin(number):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def answer(number, items, replies):
    """Runs the other side. The first core is the sender's."""
    import torch

    torch.set_num_threads(1)
    pin(1 + number % max(len(os.sched_getaffinity(0)) - 1, 1))
    replies.put("ready")
    while (item := items.get()) is not None:
        kind, number, data = item
        if kind == "used":
            replies.put(time.process_time())
            continue
        if data[0].item() != number % 251 or data[-1].item() != number % 251:
            raise ValueError(f"the marks of tensor {number} are wrong")
        if kind == "trip":
            replies.put(number)
        del data, item


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    import torch
    import torch.multiprocessing as multiprocessing

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")

    def start(number):
        items, replies = context.SimpleQueue(), context.SimpleQueue()
        other = context.Process(target=answer, args=(number, items, replies), daemon=True)
        other.start()
        return items, replies, other

    # The other processes are started before this one keeps to a core.
    receivers = [start(number) for number in range(max(RECEIVERS))]
    for _, replies, _ in receivers:
        if replies.get() != "ready":
            raise RuntimeError("another process did not start")
    pin(0)
    items, replies, _ = receivers[0]

    def fresh(number, count):
        data = torch.empty(count, dtype=torch.uint8)
        data[0] = data[-1] = number % 251
        return data

    for size, count in SIZES.items():
        rounds = options.rounds if count <= 1 << 20 else options.rounds // 20
        times = []
        for number in range(rounds + WARM):
            start = time.perf_counter()
            items.put(("trip", number, fresh(number, count)))
            assert replies.get() == number
            if number >= WARM:
                times.append((time.perf_counter() - start) * 1e6)
        print(f"torch.multiprocessing.trip.{size} {statistics.median(times):.3f}", flush=True)

        def used():
            items.put(("used", 0, None))
            return replies.get()

        others, own, start = used(), time.process_time(), time.perf_counter()
        for number in range(rounds):
            items.put(("stream", number, fresh(number, count)))
        others = used() - others
        took = time.perf_counter() - start
        print(f"torch.multiprocessing.rate.{size} {rounds / took:.0f}", flush=True)
        print(f"torch.multiprocessing.cpu.{size} {(time.process_time() - own + others) * 1e6 / rounds:.3f}", flush=True)

    def handled(some):
        """Waits until all tensors that were put are handled: the answers come behind them."""
        for items, _, _ in some:
            items.put(("used", 0, None))
        for _, replies, _ in some:
            replies.get()

    for count in RECEIVERS:
        some = receivers[:count]
        for rounds in (WARM, options.rounds):
            begun = time.perf_counter()
            for number in range(rounds):
                data = fresh(number, FAN_OUT)
                for items, _, _ in some:
                    items.put(("stream", number, data))
            handled(some)
            took = time.perf_counter() - begun
        print(f"torch.multiprocessing.fanout.{count} {took * 1e6 / options.rounds / count:.3f}", flush=True)
    for items, _, other in receivers:
        items.put(None)
        other.join(10)


if __name__ == "__main__":
    main()
