"""The trainer of `17-python-trainer`: it trains with PyTorch, and others read the weights meanwhile."""

from __future__ import annotations

import torch

import tensorpost as tp


@tp.message
class Weights:
    step: tp.u64
    factors: tp.Tensor[tp.f32, 3, 4]
    offsets: tp.Tensor[tp.f32, 3]


@tp.message(reply=float)
class Train:
    """The reply is the last loss."""

    steps: tp.u64
    lengths: tp.Tensor[tp.f32, ..., 4]
    species: list[tp.u32]


@tp.actor
class Trainer:
    def __init__(self, topic: tp.Address[Weights]) -> None:
        self.topic = topic

    @tp.handler
    def train(self, train: Train) -> float:
        torch.manual_seed(1)
        lengths, species = train.lengths.torch(), torch.tensor(train.species).to(tp.env().device)
        model = torch.nn.Linear(4, 3).to(tp.env().device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(1, train.steps + 1):
            loss = torch.nn.functional.cross_entropy(model(lengths), species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Send new tensors each time: versions that readers have do not change.
            self.topic.send(Weights(step, model.weight.detach().clone(), model.bias.detach().clone()))
        return float(loss.detach())
