"""Networks: convolutions, torsos, recurrent cores, frame stacks and the actor-critic that is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.nets.actor_critic import ActorCritic
    from seedbed.nets.body import Body
    from seedbed.nets.build import build_torso
    from seedbed.nets.convolutions import Conv, convolve, max_pool
    from seedbed.nets.dense import Dense
    from seedbed.nets.heads import Head
    from seedbed.nets.network import Network
    from seedbed.nets.q_network import QNetwork
    from seedbed.nets.recurrent import LSTM

__all__ = [
    "LSTM",
    "ActorCritic",
    "Body",
    "Conv",
    "Dense",
    "Head",
    "Network",
    "QNetwork",
    "build_torso",
    "convolve",
    "max_pool",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "ActorCritic": "seedbed.nets.actor_critic:ActorCritic",
        "Body": "seedbed.nets.body:Body",
        "Conv": "seedbed.nets.convolutions:Conv",
        "Dense": "seedbed.nets.dense:Dense",
        "Head": "seedbed.nets.heads:Head",
        "LSTM": "seedbed.nets.recurrent:LSTM",
        "Network": "seedbed.nets.network:Network",
        "QNetwork": "seedbed.nets.q_network:QNetwork",
        "build_torso": "seedbed.nets.build:build_torso",
        "convolve": "seedbed.nets.convolutions:convolve",
        "max_pool": "seedbed.nets.convolutions:max_pool",
    },
)
