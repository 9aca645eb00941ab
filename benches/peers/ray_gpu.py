#!/usr/bin/env python3
"""Hands tensors of one GPU to another process with Ray's GPU objects, by CUDA IPC: the work of
`torch_ipc.py`, in Ray's way.

    ray_gpu.py [--rounds 200] [--messages 1000]

Two actors share a GPU. A method of the first returns a tensor, which stays on the GPU
(`tensor_transport="cuda_ipc"`). Its reference is an argument of a method of the second, and the caller of
both waits for the second's result. Without kernels the tensor was made before; with kernels the first actor
makes a fresh one, and the second computes with it and waits for the GPU. In a stream the second computes with
each of many fresh tensors, and no more of them are under way than a mailbox of `hand_over` holds. Prints
lines of a name and a number: medians in microseconds for round trips, messages a second for streams.
"""

import argparse
import os
import statistics
import sys
import time

SIZES = {"4KiB": 1 << 10, "64MiB": 16 << 20}
WARM = 20
# As many as a mailbox of `hand_over` takes.
WINDOW = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--messages", type=int, default=1000)
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import torch
    except ImportError as error:
        sys.exit(f"{error}; `pip install ray torch` has it")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")

    @ray.remote(num_gpus=0.5, num_cpus=0, enable_tensor_transport=True)
    class Sender:
        def make(self, elements):
            self.made = torch.zeros(elements, device="cuda")
            torch.cuda.synchronize()

        @ray.method(tensor_transport="cuda_ipc")
        def give(self):
            return self.made

        @ray.method(tensor_transport="cuda_ipc")
        def fill(self, number, elements):
            return torch.full((elements,), float(number), device="cuda")

    # Without the option no actor fetches its methods' arguments.
    @ray.remote(num_gpus=0.5, num_cpus=0, enable_tensor_transport=True)
    class Receiver:
        def take(self, tensor):
            return tensor.numel()

        def add(self, tensor):
            # Waits for the GPU.
            return (tensor + 1)[-1].item()

    ray.init(include_dashboard=False, log_to_driver=False, num_gpus=1)
    sender, receiver = Sender.remote(), Receiver.remote()

    def trips(rounds, call, wanted):
        times = []
        for number in range(rounds + WARM):
            start = time.perf_counter()
            got = ray.get(call(number))
            if number >= WARM:
                times.append((time.perf_counter() - start) * 1e6)
            if got != wanted(number):
                raise ValueError(f"trip {number}: {got}")
        return statistics.median(times)

    for size, elements in SIZES.items():
        ray.get(sender.make.remote(elements))
        value = trips(options.rounds, lambda _: receiver.take.remote(sender.give.remote()), lambda _, elements=elements: elements)
        print(f"ray.trip.{size} {value:.3f}", flush=True)
    for size, elements in SIZES.items():

        def computed(number, elements=elements):
            return receiver.add.remote(sender.fill.remote(number, elements))

        print(f"ray.trip.kernels.{size} {trips(options.rounds, computed, lambda number: number + 1):.3f}", flush=True)
        rounds, pending, start = options.messages if elements <= 1 << 20 else options.messages // 4, [], time.perf_counter()
        for number in range(rounds):
            if len(pending) == WINDOW:
                ray.get(pending.pop(0))
            pending.append(computed(number))
        for result in pending:
            ray.get(result)
        print(f"ray.stream.{size} {rounds / (time.perf_counter() - start):.1f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
