"""The trained policy of a run as one file for programs without Seedbed: StableHLO or ONNX, and its contract beside it.

The file holds one function, in which parameters, normalization, frame stack and the network's memory are inside::

    inputs:  observation[/KEY …] [B, …], reward float32 [B], first bool [B], state/… [B, …]
    outputs: action [B, …], state/… [B, …]

Its state is given back at the next step. Where ``first`` is true an episode begins, and neither state nor reward
count: zeros will do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedbed import __version__, atomic_folder
from seedbed.acting.unrolls import step_fields, timestep_of
from seedbed.errors import ConfigError
from seedbed.evaluation.policy import Policy, load
from seedbed.launch.surroundings import held
from seedbed.nets.cpu import library
from seedbed.types import Agent, EnvSpec, Tree, leaves, rebuild

FORMATS = ("stablehlo", "onnx")
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that a StableHLO file is lowered for."""


@dataclass(frozen=True)
class Port:
    """An input or an output of the function.

    Attributes:
      name: its name; an ONNX file has it with ``_`` for what is no letter, digit or ``_``.
      shape: its shape behind the batch axis.
      dtype: its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def to_json(self) -> dict[str, Any]:
        """The port as plain JSON values."""
        return {"name": self.name, "shape": ["batch", *self.shape], "dtype": self.dtype}


@dataclass(frozen=True)
class Function:
    """A policy as a pure function of arrays.

    Attributes:
      call: the function; takes the inputs and returns the outputs, in their order.
      inputs: inputs.
      outputs: outputs.
    """

    call: Callable[..., tuple[Any, ...]]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def example(self, batch: int) -> list[Any]:
        """Inputs of an episode's first step, of zeros."""
        zeros = [np.zeros((batch, *port.shape), port.dtype) for port in self.inputs]
        zeros[[port.name for port in self.inputs].index("first")][:] = True
        return zeros


def function_of(policy: Policy) -> Function:
    """Returns a policy's most likely action as a function of arrays.

    Parts of the agent's state that this never changes (how much an environment explores) are constants in it.
    """
    agent, spec = policy.agent, policy.spec
    step, memory = _step(spec), jax.tree.map(np.asarray, agent.initial_state(1))
    ports = _ports("state", memory)
    moves = _moving(agent, policy.params, spec, memory)

    def call(*arrays: Any) -> tuple[Any, ...]:
        *observation, reward, first = arrays[: len(step)]
        never = jnp.zeros_like(first)
        timestep = timestep_of(spec, [*observation, jnp.where(first, 0.0, reward), never, never, first])
        given = iter(arrays[len(step) :])
        rows = first.shape[0]
        state = [
            next(given) if moving else jnp.broadcast_to(leaf, (rows, *leaf.shape[1:]))
            for (_, leaf), moving in zip(leaves(memory), moves, strict=True)
        ]
        action, after = agent.mode(policy.params, timestep, rebuild(memory, state))
        return (policy.within(action, jnp), *compress((leaf for _, leaf in leaves(after)), moves))

    moving = tuple(compress(ports, moves))
    action = Port("action", spec.action.shape, spec.action.dtype)
    return Function(call, (*step, *moving), (action, *moving))


def _moving(agent: Agent, params: Tree, spec: EnvSpec, memory: Tree) -> list[bool]:
    """Which leaves of an agent's state a step may change."""
    shown = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in step_fields(spec, 1)]

    def after(state: Tree, arrays: list[Any]) -> list[Any]:
        _, state = agent.mode(params, timestep_of(spec, arrays), state)
        return [leaf for _, leaf in leaves(state)]

    traced = jax.make_jaxpr(after)(memory, shown).jaxpr
    return [out is not given for given, out in zip(traced.invars, traced.outvars, strict=False)]


def _step(spec: EnvSpec) -> tuple[Port, ...]:
    """The inputs of a step: what an environment shows."""
    names = [name for name, _ in leaves(spec.observation, "observation")]
    *observation, reward, _, _, first = (Port("", shape[1:], dtype) for shape, dtype in step_fields(spec, 1))
    shown = [Port(name, port.shape, port.dtype) for name, port in zip(names, observation, strict=True)]
    return (*shown, Port("reward", reward.shape, reward.dtype), Port("first", first.shape, first.dtype))


def _ports(name: str, tree: Tree) -> tuple[Port, ...]:
    """The ports of a tree of arrays ``[1, ...]``."""
    return tuple(Port(path, leaf.shape[1:], leaf.dtype.name) for path, leaf in leaves(tree, name))


# -- formats --------------------------------------------------------------------------------------------------


def stablehlo(function: Function) -> bytes:
    """Lowers a function for batches of any size; ``jax.export.deserialize(...).call(*inputs)`` calls it."""
    (batch,) = jax.export.symbolic_shape("batch")
    given = [jax.ShapeDtypeStruct((batch, *port.shape), port.dtype) for port in function.inputs]
    with library.portable():
        exported = jax.export.export(jax.jit(function.call), platforms=PLATFORMS)(*given)
    return bytes(exported.serialize())


def onnx(function: Function) -> bytes:
    """Converts a function for batches of any size to ONNX.

    Raises:
      ConfigError: the converter is not installed.
    """
    try:
        import jax2onnx
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs the extra onnx ({error}): pip install -c constraints.txt -e '.[onnx]'"
        ) from error
    with library.portable():
        model = jax2onnx.to_onnx(
            _each_apart(function.call),
            [jax.ShapeDtypeStruct(("batch", *port.shape), port.dtype) for port in function.inputs],
            input_names=_names(function.inputs),
            output_names=_names(function.outputs, "next_"),
        )
    return bytes(model.SerializeToString())


def _each_apart(call: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The function with results of their own: the converter gives no array two names (an action in the state)."""

    def apart(*arrays: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        for result in call(*arrays):
            twice = any(result is other for other in results)
            results.append(jnp.maximum(result, result) if twice else result)
        return tuple(results)

    return apart


def _names(ports: Sequence[Port], state: str = "") -> list[str]:
    """Names of ports as ONNX has them; those of a state begin with ``state``."""
    plain = [re.sub(r"\W", "_", port.name) for port in ports]
    return [state * name.startswith("state") + name for name in plain]


_WRITERS: dict[str, Callable[[Function], bytes]] = {"stablehlo": stablehlo, "onnx": onnx}


@held()
def export(
    path: str | Path,
    *,
    format: str = "stablehlo",  # noqa: A002
    out: str | Path | None = None,
) -> Path:
    """Writes the policy of a run, which takes its most likely action, as one file, and its contract beside it.

    Args:
      path: the run folder.
      format: ``stablehlo`` or ``onnx``.
      out: the file; None: ``policy.stablehlo`` or ``policy.onnx`` in the run folder. The contract has ``.json`` added
        to its name.

    Returns:
      The file.

    Raises:
      ConfigError: there is no such run or format, the converter is not installed, or the file cannot be written.
      CheckpointError: no checkpoint of the run is intact.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format!r}: choose {' or '.join(FORMATS)}")
    policy = load(path, greedy=True)
    function = function_of(policy)
    content = _WRITERS[format](function)
    target = Path(out) if out else Path(path) / f"policy.{format}"
    contract = {
        "format": format,
        "seedbed": __version__,
        "jax": jax.__version__,
        "env": policy.spec.id,
        "agent": policy.agent.name,
        "updates": policy.version,
        "frames_per_step": policy.spec.frames_per_step,
        "observation": policy.spec.to_json()["observation"],
        "action": policy.spec.action.to_json(),
        "inputs": [port.to_json() for port in function.inputs],
        "outputs": [port.to_json() for port in function.outputs],
    }
    beside = target.with_name(target.name + ".json")
    try:
        atomic_folder.write_whole(target, content)
        atomic_folder.write_whole(beside, (json.dumps(contract, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or target}: {error.strerror}") from error
    return target
