"""The settings of a network, in one record that goes from the command line to the modules; imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seedbed.errors import ConfigError


@dataclass(frozen=True)
class Network:
    """The network of the policy."""

    network: str = "auto"
    """Torso: auto, mlp, tiny, small, pooled, nature, shallow, deep, or module:Class of your own."""
    hidden: tuple[int, ...] = ()
    """Sizes of the torso's dense layers; none given: the network's own (of sac's MLP: 256 256)."""
    activation: Literal["auto", "tanh", "relu", "silu"] = "auto"
    """Activation of the MLP's layers; auto: tanh, or sac's relu. (Convolutions are rectified.)"""
    lstm: int | None = None
    """Size of an LSTM between torso and heads; 0: none; None: the agent's own (r2d2: 512, others: 0)."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Dtype of the torso's convolutions; auto: bfloat16 where the device has it (see seedbed doctor)."""
    observations: Literal["auto", "bytes"] = "auto"
    """Scaling of observations; auto: by declared bounds; bytes: every uint8 by 255, as in version 0.1."""
    mask_as_input: bool = False
    """Let the network read the action mask too, as numbers; it forbids actions either way."""

    def __post_init__(self) -> None:
        if self.lstm is not None and self.lstm < 0:
            raise ConfigError(f"lstm is {self.lstm}, and has to be 0 or more")
        for size in self.hidden:
            if size < 1:
                raise ConfigError(f"hidden has a layer of size {size}, and has to have sizes of 1 or more")


AUTO = Network()
"""Every choice left to the observations and to the agent."""
