"""The stage of `16-torch-stage` with a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import tensorpost as tp


@tp.message
class Photograph:
    name: str
    pixels: tp.Tensor[tp.f32, 3, ..., ...]


@tp.message
class Found:
    name: str
    strength: tp.Tensor[tp.f32, ..., ...]


@tp.stage
class Edges:
    """Sobel's two filters as a convolution: the change of colours from left to right and downwards."""

    def __init__(self, env: tp.Env) -> None:
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
        self.net = torch.nn.Conv2d(3, 2, 3, bias=False).requires_grad_(False)
        self.net.weight.copy_(torch.stack([sobel, sobel.T])[:, None].expand(2, 3, 3, 3))
        self.net.to(env.device)
        self.device = env.device

    def warmup(self) -> None:
        self.net(torch.zeros(1, 3, 8, 8, device=self.device))

    def process(self, photograph: Photograph) -> Iterator[Found]:
        strength = self.net(photograph.pixels.torch()[None])[0].abs().sum(0)
        yield Found(photograph.name, strength)
