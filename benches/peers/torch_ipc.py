#!/usr/bin/env python3
"""Measures PyTorch between two processes on one GPU: CUDA IPC through torch.multiprocessing, spawn.

    torch_ipc.py --mode isolated            as it is
    torch_ipc.py --mode mps                 the same; the caller has put both processes under an MPS daemon

Writes lines of a name and a number, as gpu_bench reads them with --peer: medians in microseconds for round
trips (trip), messages per second for streams.

The round trips are the ones of gpu_bench, with one favour: PyTorch cannot send a tensor on that it received,
so where no kernel runs the other side answers with a word instead of the tensor.
"""

import argparse
import statistics
import sys
import time

SMALL = 1 << 10
SIZES = {"4KiB": SMALL, "64MiB": 16 << 20, "1GiB": 256 << 20}


def answer(requests, replies):
    """Runs the other side: uses each received tensor, and replies."""
    import torch

    torch.zeros(1, device="cuda")
    replies.put("ready")
    while True:
        message = requests.get()
        if message is None:
            return
        kernels, tensor = message
        if kernels:
            replies.put(tensor + 1)
        else:
            replies.put("seen")
        del message, tensor


def produce(requests, items, acknowledged):
    """Runs the source of streams: fresh tensors, filled by a kernel."""
    import torch

    torch.zeros(1, device="cuda")
    items.put("ready")
    while True:
        request = requests.get()
        if request is None:
            return
        count, elements = request
        for number in range(count):
            items.put(torch.full((elements,), float(number), device="cuda"))
        # A sent tensor has to stay until it was received.
        acknowledged.get()


def trips(torch, requests, replies, elements, kernels, rounds):
    """Returns the median of the round trips in microseconds."""
    made = torch.zeros(elements, device="cuda")
    torch.cuda.synchronize()
    times = []
    for number in range(rounds + rounds // 5):
        start = time.perf_counter()
        tensor = torch.full((elements,), float(number), device="cuda") if kernels else made
        requests.put((kernels, tensor))
        reply = replies.get()
        if kernels:
            torch.cuda.synchronize()
        if number >= rounds // 5:
            times.append((time.perf_counter() - start) * 1e6)
        if kernels and number == rounds:
            assert reply[-1].item() == number + 1, reply
        del reply, tensor
    return statistics.median(times)


def stream(torch, requests, items, acknowledged, elements, count):
    """Returns the messages per second of one stream."""
    requests.put((count, elements))
    start = None
    total = torch.zeros(1, device="cuda")
    for number in range(count):
        tensor = items.get()
        if start is None:
            start = time.perf_counter()
        total += tensor[0]
        del tensor
    torch.cuda.synchronize()
    rate = (count - 1) / (time.perf_counter() - start)
    wanted = sum(float(number) for number in range(count))
    assert abs(total.item() - wanted) <= 1e-3 * wanted, (total.item(), wanted)
    acknowledged.put("seen")
    return rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["isolated", "mps"], default="isolated")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--messages", type=int, default=2000)
    options = parser.parse_args()

    import torch
    import torch.multiprocessing as multiprocessing

    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")
    context = multiprocessing.get_context("spawn")

    def line(what, value):
        print(f"torch.{options.mode}.{what} {value:.3f}", flush=True)

    queues = [context.SimpleQueue() for _ in range(5)]
    requests, replies, orders, items, acknowledged = queues
    peer = context.Process(target=answer, args=(requests, replies), daemon=True)
    source = context.Process(target=produce, args=(orders, items, acknowledged), daemon=True)
    peer.start()
    source.start()
    assert replies.get() == "ready" and items.get() == "ready"

    for size, elements in SIZES.items():
        line(f"trip.{size}", trips(torch, requests, replies, elements, False, options.rounds))
    for size in ("4KiB", "64MiB"):
        line(f"trip.kernels.{size}", trips(torch, requests, replies, SIZES[size], True, options.rounds))
    for size, count in (("4KiB", options.messages), ("64MiB", options.messages // 4)):
        rates = [stream(torch, orders, items, acknowledged, SIZES[size], count) for _ in range(3)]
        line(f"stream.{size}", statistics.median(rates))

    requests.put(None)
    orders.put(None)
    peer.join(10)
    source.join(10)


if __name__ == "__main__":
    main()
