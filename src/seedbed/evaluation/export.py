"""The trained policy of a run as one file for programs without Seedbed: StableHLO or ONNX, and its contract beside it.

(Format ``run`` is for programs with Seedbed: see :mod:`seedbed.evaluation.playable`.)

The file holds one function, in which parameters, normalization, frame stack and the network's memory are inside::

    inputs:  observation[/KEY …] [B, …], reward float32 [B], first bool [B], state/… [B, …]
    outputs: action [B, …], state/… [B, …]

Its state is given back at the next step. Where ``first`` is true an episode begins, and neither state nor reward
count: zeros will do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedbed import __version__, regular_files
from seedbed.acting.unrolls import step_fields, timestep_of
from seedbed.errors import ConfigError, cause_of
from seedbed.evaluation.playable import write_playable
from seedbed.evaluation.policy import Policy, load
from seedbed.installation import extra_line
from seedbed.launch.surroundings import held
from seedbed.nets.cpu import library
from seedbed.types import Agent, EnvSpec, Tree, leaves, rebuild

FORMATS = ("stablehlo", "onnx")
"""Formats of files."""
RUN = "run"
"""Format of a folder that Seedbed plays."""
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that a StableHLO file is lowered for."""


@dataclass(frozen=True)
class Port:
    """An input or an output of the function.

    Attributes:
      name: its name.
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
    """Returns, for each leaf of an agent's state, whether a step may change it."""
    shown = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in step_fields(spec, 1)]

    def after(state: Tree, arrays: list[Any]) -> list[Any]:
        _, state = agent.mode(params, timestep_of(spec, arrays), state)
        return [leaf for _, leaf in leaves(state)]

    traced = jax.make_jaxpr(after)(memory, shown).jaxpr
    return [out is not given for given, out in zip(traced.invars, traced.outvars, strict=False)]


def _step(spec: EnvSpec) -> tuple[Port, ...]:
    """Returns the inputs of a step: observation, reward, and the flag of a first step."""
    names = [name for name, _ in leaves(spec.observation, "observation")]
    *observation, reward, _, _, first = (Port("", shape[1:], dtype) for shape, dtype in step_fields(spec, 1))
    shown = [Port(name, port.shape, port.dtype) for name, port in zip(names, observation, strict=True)]
    return (*shown, Port("reward", reward.shape, reward.dtype), Port("first", first.shape, first.dtype))


def _ports(name: str, tree: Tree) -> tuple[Port, ...]:
    """Returns the ports of a tree of arrays ``[1, ...]``."""
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
      ConfigError: the converter is not installed, or knows no way to write the policy.
    """
    try:
        import jax2onnx
    except ImportError as error:
        raise ConfigError(f"ONNX needs jax2onnx ({error}): {extra_line('onnx')}") from error
    try:
        with library.portable(), _quiet("onnx_ir", "jax2onnx"):
            model = jax2onnx.to_onnx(
                _each_apart(function.call),
                [jax.ShapeDtypeStruct(("batch", *port.shape), port.dtype) for port in function.inputs],
                input_names=_names(function.inputs),
                output_names=_names(function.outputs, "next_"),
            )
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"jax2onnx cannot write this policy ({cause_of(error)}): use --format stablehlo"
        ) from error
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _quiet(*packages: str) -> Iterator[None]:
    """Hides the warnings of packages: the converter warns of each open number of a shape."""
    loggers = [logging.getLogger(name) for name in packages]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _each_apart(call: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Returns the function with no array twice among its results, since the converter gives none two names."""

    def apart(*arrays: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        for result in call(*arrays):
            twice = any(result is other for other in results)
            results.append(jnp.maximum(result, result) if twice else result)
        return tuple(results)

    return apart


def _described(ports: Sequence[Port], form: str, state: str = "") -> list[dict[str, Any]]:
    """Returns ports as JSON values, with their names in a file."""
    names = _names(ports, state) if form == "onnx" else [port.name for port in ports]
    return [port.to_json() | {"name": name} for port, name in zip(ports, names, strict=True)]


def _names(ports: Sequence[Port], state: str = "") -> list[str]:
    """Returns the names of ports in an ONNX file; ``state`` stands before the names of a state."""
    plain = [re.sub(r"\W", "_", port.name) for port in ports]
    return [state * name.startswith("state") + name for name in plain]


_WRITERS: dict[str, Callable[[Function], bytes]] = {"stablehlo": stablehlo, "onnx": onnx}


@held()
def export(
    path: str | Path,
    *,
    format: str = "stablehlo",  # noqa: A002
    out: str | Path | None = None,
    trust: Collection[str] | None = (),
) -> Path:
    """Writes the policy of a run, which takes its most likely action, as one file, and its contract beside it.

    Args:
      path: the run folder.
      format: ``stablehlo`` or ``onnx``; or ``run``, a run folder that only plays, which may draw its actions too.
      out: the file or folder; None: ``policy.FORMAT`` in the run folder. The contract has ``.json`` added to its name.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.

    Returns:
      The file or folder.

    Raises:
      ConfigError: there is no such run or format, the converter is not installed, or the file cannot be written.
      CheckpointError: no checkpoint of the run is intact.
    """
    if format not in (*FORMATS, RUN):
        raise ConfigError(f"format {format!r}: choose {', '.join(FORMATS)} or {RUN}")
    target = Path(out) if out else Path(path) / f"policy.{format}"
    if format == RUN:
        return write_playable(path, target, trust=trust)
    policy = load(path, greedy=True, trust=trust)
    function = function_of(policy)
    content = _WRITERS[format](function)
    inputs, outputs = _described(function.inputs, format), _described(function.outputs, format, "next_")
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
        "decides": "the most likely action",
        "inputs": inputs,
        "outputs": outputs,
        # All outputs but the action are states.
        "state": [
            {"input": given["name"], "output": after["name"], "begins_with": "zeros"}
            for given, after in zip(inputs[len(inputs) - len(outputs) + 1 :], outputs[1:], strict=True)
        ],
        "first": "true where an episode begins: there neither reward nor state counts",
    }
    beside = target.with_name(target.name + ".json")
    try:
        regular_files.write_whole(target, content)
        regular_files.write_whole(beside, json.dumps(contract, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or target}: {error.strerror}") from error
    return target
