"""The PyTorch stage of `peer times`, which needs only the installed package; without a GPU it computes on the
host."""

from __future__ import annotations

import time

import torch

import tensorpost as tp


@tp.message
class Frame:
    data: tp.Tensor[tp.f32]
    value: tp.f32


@tp.stage
class Bump:
    """Keeps its device busy for so many microseconds, and then adds one; without a number it passes items on
    as they are."""

    def __init__(self, env: tp.Env, micros: tp.u64 | None) -> None:
        self.micros, self.device = micros, env.device
        self.cycles = 0

    def warmup(self) -> None:
        if self.micros is None or self.device == "cpu":
            return
        x = torch.zeros(1 << 14, device=self.device)
        stream = torch.cuda.current_stream()
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cycles = 1_000_000
        # The first ones warm up the GPU's clock.
        for _ in range(20):
            began.record(stream)
            torch.cuda._sleep(cycles)
            ended.record(stream)
            x = x + 1
            ended.synchronize()
        self.cycles = int(cycles * self.micros / (began.elapsed_time(ended) * 1000))

    def process(self, frame: Frame) -> Frame:
        if self.micros is None:
            return frame
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        else:
            until = time.perf_counter() + self.micros / 1e6
            while time.perf_counter() < until:
                pass
        return Frame(frame.data.torch() + 1, frame.value + 1)
