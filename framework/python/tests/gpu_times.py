"""Round trips and streams of PyTorch's tensors between two processes on one GPU, next to
torch.multiprocessing and the floor in the same run.

    python gpu_times.py [--mps] [--rounds 500] [--messages 2000] [--tensorpost]

Medians in microseconds, and messages per second. --mps starts an MPS daemon for all processes. The floor is
the same exchange without messages: two tensors that both processes have mapped, clock writes and waits of the
driver, and a word in shared memory that each side polls without a pause.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SIZES = {"4KiB": 1 << 10, "64MiB": 16 << 20}
SIZE = SIZES["4KiB"]
TIMEOUT = 300.0


def answer(requests: Any, replies: Any) -> None:
    """The other side of torch.multiprocessing."""
    import torch

    torch.zeros(1, device="cuda")
    replies.put("ready")
    while (message := requests.get()) is not None:
        kernels, tensor = message
        replies.put(tensor + 1 if kernels else "seen")
        del message, tensor


def peer_trips(torch: Any, requests: Any, replies: Any, elements: int, kernels: bool, rounds: int) -> float:
    made = torch.zeros(elements, device="cuda")
    torch.cuda.synchronize()
    times = []
    for number in range(rounds + rounds // 5):
        start = time.perf_counter()
        requests.put((kernels, torch.full((elements,), float(number), device="cuda") if kernels else made))
        reply = replies.get()
        if kernels:
            torch.cuda.synchronize()
        if number >= rounds // 5:
            times.append((time.perf_counter() - start) * 1e6)
        del reply
    return statistics.median(times)


class Words:
    """The shared words of the two sides of the floor. Each side has a word, which the other polls, and a
    clock, which the GPU writes."""

    PAGE = 4096
    CLOCKS = (128, 192)

    def __init__(self, torch: Any, name: str | None, own: int) -> None:
        self.shared = SharedMemory(name, create=name is None, size=self.PAGE)
        self.buffer = (ctypes.c_char * self.PAGE).from_buffer(self.shared.buf)
        self.base = ctypes.addressof(self.buffer)
        assert int(torch.cuda.cudart().cudaHostRegister(self.base, self.PAGE, 0)) == 0
        self.torch, self.own, self.other = torch, own, 1 - own
        self.words = (ctypes.c_uint64 * 2).from_buffer(self.shared.buf)
        # PyDLL keeps the interpreter, which is right for calls that are so frequent.
        driver = ctypes.PyDLL("libcuda.so.1")
        self.write, self.wait = driver.cuStreamWriteValue64_v2, driver.cuStreamWaitValue64_v2
        for call in (self.write, self.wait):
            call.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
        self.stream = torch.cuda.current_stream().cuda_stream

    def close(self) -> None:
        self.torch.cuda.synchronize()
        assert int(self.torch.cuda.cudart().cudaHostUnregister(self.base)) == 0
        # The memory is released after the last object that refers to it.
        del self.buffer, self.words
        self.shared.close()

    def tell(self, number: int) -> None:
        """Publishes `number` for the work that this side's stream has got so far."""
        assert self.write(self.stream, self.base + self.CLOCKS[self.own], number, 0) == 0
        self.words[self.own] = number

    def hear(self, number: int, peer: Any) -> None:
        """Waits until the other side publishes `number`; this side's stream waits for its work."""
        words, other, looks = self.words, self.other, 0
        while words[other] != number:
            looks += 1
            if looks % 1_000_000 == 0 and peer is not None and not peer.is_alive():
                raise RuntimeError("the other side has ended")
        assert self.wait(self.stream, self.base + self.CLOCKS[other], number, 0) == 0


def floor_answers(name: str, tensors: Any, ready: Any, rounds: int) -> None:
    """The other side of the floor: first without kernels, then with them."""
    import torch

    torch.cuda.set_stream(torch.cuda.Stream())
    a, b = tensors.get()
    words = Words(torch, name, 1)
    ready.put("ready")
    for number in range(1, 2 * rounds + 1):
        words.hear(number, None)
        if number > rounds:
            torch.add(a, 1, out=b)
        words.tell(number)
    words.close()


def floor(torch: Any, context: Any, rounds: int, line: Callable[[str, str, float], None]) -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    a, b = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    words, tensors, ready = Words(torch, None, 0), context.SimpleQueue(), context.SimpleQueue()
    peer = context.Process(target=floor_answers, args=(words.shared.name, tensors, ready, rounds), daemon=True)
    peer.start()
    tensors.put((a, b))
    assert ready.get() == "ready"
    for kernels in (False, True):
        times = []
        for number in range(1 + rounds * kernels, 1 + rounds + rounds * kernels):
            start = time.perf_counter()
            if kernels:
                a.fill_(number)
            words.tell(number)
            words.hear(number, peer)
            if kernels:
                torch.cuda.current_stream().synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        line("floor", f"trip{'.kernels' if kernels else ''}.4KiB", statistics.median(times[rounds // 6 :]))
    assert b[-1].item() == 2 * rounds + 1, b
    peer.join(10)
    words.close()
    words.shared.unlink()
    torch.cuda.set_stream(torch.cuda.default_stream())


@contextlib.contextmanager
def daemon(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    if shutil.which("nvidia-cuda-mps-control") is None:
        sys.exit("nvidia-cuda-mps-control is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        running = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while not told("get_server_list"):
                if running.poll() is not None or time.monotonic() > until:
                    sys.exit("the MPS daemon does not answer")
                time.sleep(0.05)  # another program gets ready, and tells nobody
            yield
        finally:
            # This process is a client itself, and without a time limit the daemon waits for its last client.
            told("quit -t 1")
            try:
                running.wait(15)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def told(command: str) -> bool:
    """Sends the daemon a command, and returns whether it has answered."""
    try:
        return subprocess.run(["nvidia-cuda-mps-control"], input=f"{command}\n".encode(), capture_output=True, timeout=15).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mps", action="store_true", help="start an MPS daemon, whose clients all processes are")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--tensorpost", action="store_true", help="leave the floor and torch.multiprocessing out")
    options = parser.parse_args()
    mode = "mps" if options.mps else "isolated"
    with daemon(options.mps):
        import gpu_actors as app
        import torch
        import torch.multiprocessing as multiprocessing

        import tensorpost as tp

        if not torch.cuda.is_available():
            if os.environ.get("REQUIRE_GPU") == "1":
                sys.exit("PyTorch sees no GPU")
            print("left out: PyTorch sees no GPU")
            return 0

        def line(whose: str, what: str, value: float) -> None:
            print(f"{whose}.{mode}.{what} {value:.3f}", flush=True)

        with tp.Node(console=False) as node:
            back = node.spawn(app.Back, device="cuda:0")
            front = node.spawn(app.Front, back, device="cuda:0")
            for what in ("echo", "kernels"):
                for size, elements in SIZES.items():
                    times = front.ask(app.Run(what, elements, options.rounds), timeout=TIMEOUT)
                    line("tensorpost", f"trip{'.kernels' if what == 'kernels' else ''}.{size}", statistics.median(times))
            for size, elements in SIZES.items():
                # All of them may be alive at a time, because the GPU is behind its handlers: they must fit
                # into the pool.
                count = options.messages if size == "4KiB" else options.messages // 8
                times = front.ask(app.Run("stream", elements, count), timeout=TIMEOUT)
                line("tensorpost", f"stream.{size}", 1e6 / statistics.median(times))
            parts = front.ask(app.Run("parts", 1 << 10, options.messages), timeout=TIMEOUT)
            for what, time_of_it in zip(("full", "add", "send", "ask", "show", "drop"), parts, strict=True):
                line("tensorpost", f"part.{what}", time_of_it)
            for name, actor in (("front", front), ("back", back)):
                print(f"tensorpost.{mode}.{name}: {tp.Tensors(*actor.ask(app.Counts(), timeout=TIMEOUT))}", flush=True)

        if options.tensorpost:
            return 0
        context = multiprocessing.get_context("spawn")
        floor(torch, context, options.rounds, line)
        requests, replies = context.SimpleQueue(), context.SimpleQueue()
        peer = context.Process(target=answer, args=(requests, replies), daemon=True)
        peer.start()
        assert replies.get() == "ready"
        for kernels in (False, True):
            for size, elements in SIZES.items():
                value = peer_trips(torch, requests, replies, elements, kernels, options.rounds)
                line("torch.multiprocessing", f"trip{'.kernels' if kernels else ''}.{size}", value)
        requests.put(None)
        peer.join(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
