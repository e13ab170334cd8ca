"""One function that makes every environment, and the wrapper that all of them get."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from seedbed.envs.atari import is_atari, make_atari
from seedbed.envs.claims import claim, release
from seedbed.envs.contract import looks
from seedbed.envs.foreign import PREFIX as FOREIGN
from seedbed.envs.foreign import is_foreign, make_foreign
from seedbed.envs.interface import Environment
from seedbed.envs.masks import mask_rule
from seedbed.envs.options import Options, arguments, taken_by, whole
from seedbed.envs.own import is_own, make_own
from seedbed.envs.pool import PREFIX, Pool
from seedbed.envs.rules import StepRules, broken_array
from seedbed.envs.standard import make_standard
from seedbed.envs.toys import TOYS
from seedbed.errors import (
    ConfigError,
    EnvironmentFault,
    SeedbedError,
    SpecError,
    described,
    listed,
    unknown_name,
)
from seedbed.installation import extra_line
from seedbed.metrics.final_info import FinalInfo
from seedbed.types import ACTION_MASK, EnvSpec, TimeStep, leaves

NATIVE = ("gymnax", "brax", "craftax", "pgx", "jaxmarl")
"""Libraries of JAX-native environments, by the prefix of their ids; :mod:`seedbed.envs.on_device.makers` makes them."""

_FIELDS = {"reward": "float32", "terminated": "bool", "truncated": "bool", "first": "bool"}
"""Dtypes of the parts of a step with one element for each environment."""


def make(
    env_id: str,
    num_envs: int,
    options: Options = (),
    *,
    render: bool = False,
    first: int = 0,
    rounded_up: bool = False,
) -> Guarded:
    """Makes a batch of ``num_envs`` environments.

    ============================  ==========================================================================
    ``ALE/Pong-v5``               Atari (:class:`seedbed.envs.atari.Atari`); also ``PongNoFrameskip-v4``
    ``envpool:Pong-v5``           EnvPool (:class:`seedbed.envs.pool.Pool`)
    ``gymnax:CartPole-v1``        JAX-native environments (:mod:`seedbed.envs.on_device`), stepped on the CPU; also
                                  ``brax:``, ``craftax:``, ``pgx:`` (games) and ``jaxmarl:`` (several agents)
    ``toy:catch``                 the toys (:mod:`seedbed.envs.toys`); ``toy:doors`` is a JAX function too
    ``foreign:FILE.json``         stepped by another program (:mod:`seedbed.envs.foreign`); not made here
    ``dm_env:module:factory``     an environment of dm_env (:mod:`seedbed.envs.deepmind`)
    ``pettingzoo:module:factory`` several agents in one environment (:mod:`seedbed.envs.many_agents`)
    ``module:factory``            the user's own (:mod:`seedbed.envs.own`)
    anything else                 Gymnasium (:mod:`seedbed.envs.standard`)
    ============================  ==========================================================================

    Args:
      env_id: the environment's name.
      num_envs: number of environments, or of agents where an environment has several: each is a row of the batch; at
        least 1.
      options: keyword arguments of the environment itself, see :mod:`seedbed.envs.options`; an unknown name is
        refused.
      render: whether ``render()`` will be called.
      first: number of the first of them, for messages.
      rounded_up: whether the batch may have more rows, where environments have several agents.

    Raises:
      ConfigError: a name, an option or a package is wrong or missing, or the environment could not be made; or
        ``num_envs`` agents are no whole number of environments.
      SpecError: an action mask is none of the environment's actions.
    """
    whole(env_id, "the number of environments", num_envs, 1)
    try:
        made = _maker(env_id)(env_id, num_envs, options, render=render)
        try:
            if not rounded_up:
                require_whole(made.spec, num_envs)
            return Guarded(made, first)
        except SeedbedError:
            made.close()
            raise
    except SeedbedError:
        raise
    except (Exception, SystemExit) as error:
        if (command := _extra_for(env_id, error)) is not None:
            raise ConfigError(f"{env_id} needs a package that is not installed: {command}") from error
        given = f" with {options}" if options else ""
        raise ConfigError(f"{env_id} cannot be made{given}: {described(error)}") from error


_OF_GYMNASIUM = {"mujoco": "", "box2d": " (it is compiled where it has no wheel: pip install swig first)"}
"""Gymnasium's folders of environments that an extra of the same name brings, with more to say about it."""


def _extra_for(env_id: str, error: BaseException) -> str | None:
    """Returns the command for the extra that an environment of Gymnasium's misses; None if ``error`` is another."""
    import gymnasium
    from gymnasium.error import DependencyNotInstalled

    known = gymnasium.registry.get(env_id.rpartition(":")[2])
    if known is None or not isinstance(error, DependencyNotInstalled):
        return None
    of = re.match(r"gymnasium\.envs\.(\w+)", str(known.entry_point))
    extra = of[1] if of else ""
    return extra_line(extra) + _OF_GYMNASIUM[extra] if extra in _OF_GYMNASIUM else None


def spec_of(env_id: str, options: Options = (), num_envs: int = 1) -> EnvSpec:
    """The spec of an environment; makes ``num_envs`` and closes them."""
    environment = make(env_id, num_envs, options, rounded_up=True)
    environment.close()
    return environment.spec


def require_whole(spec: EnvSpec, rows: int) -> None:
    """Raises :class:`ConfigError` unless ``rows`` agents are a whole number of environments."""
    if rows % spec.rows:
        raise ConfigError(
            f"{spec.id} has {spec.rows} agents in each environment ({listed(spec.agents)}), each a row, and "
            f"{rows} rows are no whole number of environments: give a multiple of {spec.rows} (of {2 * spec.rows} "
            "where actors step their environments in halves) for --envs-per-actor, or --batch-size without it"
        )


class Guarded:
    """Any environment, with every fault named in one line and the order of calls checked.

    ``send`` and ``receive`` take turns, since an environment with threads would wait forever for a step without
    actions; ``reset`` drops a step that is under way. Exceptions of the environment become
    :class:`~seedbed.errors.EnvironmentFault` with the original as its cause, and so do numbers that break
    :mod:`seedbed.envs.rules`.

    Args:
      environment: the batch.
      first: number of its first environment, for messages.

    Attributes:
      watch: context manager that is entered around every call of the environment.
    """

    def __init__(self, environment: Environment, first: int = 0) -> None:
        self.spec = environment.spec
        self.num_envs = environment.num_envs
        self._environment = environment
        self._mask_rule = mask_rule(self.spec)
        claim(self.spec.id, [environment])
        self._action_shape = (self.num_envs, *self.spec.action.shape)
        self._leaves = [
            (path, leaf.dtype, (self.num_envs, *leaf.shape)) for path, leaf in leaves(self.spec.observation)
        ]
        self._rules = StepRules(self.spec)
        self._first = first
        self._started = self._under_way = False
        self._steps = 0
        self.watch: AbstractContextManager[Any] = nullcontext()

    @property
    def on_device(self) -> bool:
        """True if the environments are JAX functions."""
        batch = sys.modules.get("seedbed.envs.on_device.batch")
        return batch is not None and isinstance(self._environment, batch.NativeBatch)

    def __repr__(self) -> str:
        return f"<{self.num_envs} × {self.spec.id}>"

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew; a step that is under way is dropped."""
        if self._under_way:
            self.receive()
        step = self._call("reset", self._environment.reset, seed)
        self._started = True
        return self._as_declared(step, "reset")

    def send(self, action: Any) -> None:
        """Hands over one action for every environment, ``[num_envs, *action shape]``."""
        if self._under_way or not self._started:
            missing = "receive() of the step before" if self._under_way else "reset()"
            raise EnvironmentFault(f"{self.spec.id}: send() without {missing}")
        if np.shape(action) != self._action_shape:
            raise SpecError(
                f"{self.spec.id}: actions have the shape {np.shape(action)}; {self._action_shape} is needed"
            )
        self._require_finite(action)
        self._call("send", self._environment.send, action)
        self._under_way = True

    def _require_finite(self, action: Any) -> None:
        """Raises :class:`SpecError` if an action is not finite: an environment would be blamed for the consequences."""
        if self.spec.action.num_values or (fine := np.isfinite(action)).all():
            return
        row = int(np.argwhere(~fine)[0][0])
        raise SpecError(
            f"{self.spec.id}: the policy's action for environment {self._first + row} is not finite "
            f"({np.asarray(action)[row].tolist()}), though all that it was shown is: its weights have grown too large; "
            "try a lower --learning-rate"
        )

    def receive(self) -> TimeStep:
        """Returns the step that the last ``send`` began."""
        if not self._under_way:
            raise EnvironmentFault(f"{self.spec.id}: receive() without send()")
        self._under_way = False
        self._steps += 1
        step = self._call("receive", self._environment.receive)
        return self._as_declared(step, "step")

    def _as_declared(self, step: Any, moment: str) -> TimeStep:
        """The step, if it keeps the rules of :mod:`seedbed.envs.rules`."""
        if not isinstance(step, TimeStep):
            raise self._fault(f": {moment}() gave {looks(step)}; it must give a seedbed.types.TimeStep")
        for name, dtype in _FIELDS.items():
            if (broken := broken_array(getattr(step, name), dtype, (self.num_envs,))) is not None:
                raise self._fault(f": {name} of a step {broken}")
        shown = leaves(step.observation)
        if [path for path, _ in shown] != [path for path, *_ in self._leaves]:
            raise self._broken(moment, f"the observation has {[path for path, _ in shown]}")
        for (path, array), (_, dtype, shape) in zip(shown, self._leaves, strict=True):
            if (broken := broken_array(array, dtype, shape)) is not None:
                raise self._broken(moment, f"{f'observation {path}'.strip()} {broken}")
        if (broken := self._rules.broken(step, self._first)) is not None:
            raise self._fault(f": {moment}() gave a number that is not taken: {broken}")
        if self._mask_rule and (broken := self._mask_rule(step)) is not None:
            raise self._fault(f": {moment}() breaks the rule of masks: {ACTION_MASK} {broken}")
        kept: TimeStep = step
        return kept

    def _broken(self, moment: str, broken: str) -> EnvironmentFault:
        return self._fault(f": {moment}() shows what is not declared: {broken}")

    @property
    def render_fps(self) -> int | None:
        """Pictures a second at which the environment is to be shown; None if it does not say."""
        told = getattr(self._environment, "render_fps", None)
        return int(told) if isinstance(told, int | float) and told >= 1 else None

    def render(self) -> Any:
        """The picture of environment 0."""
        # Looked up inside: an environment need not have it.
        return self._call("render", lambda: self._environment.render())  # noqa: PLW0108

    def tell(self) -> dict[str, list[float]]:
        """Numbers of ``info`` at the ends of episodes since the last call, as :class:`FinalInfo` gives them."""
        told: FinalInfo | None = getattr(self._environment, "told", None)
        return told.take() if isinstance(told, FinalInfo) else {}

    def close(self) -> None:
        """Closes the environments."""
        self._started = self._under_way = False
        release([self._environment])
        self._call("close", self._environment.close)

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self.watch:
                return method(*arguments)
        except EnvironmentFault as fault:
            if fault.environment is not None:
                raise self._fault_of(fault, fault.environment) from fault
            fault.step = self._steps
            raise
        except SeedbedError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(f" failed in {name}(): {described(error)}") from error

    def _fault_of(self, fault: EnvironmentFault, environment: int) -> EnvironmentFault:
        # Before the rest, whose end may be a line to be pasted.
        said = str(fault).removeprefix(f"{self.spec.id}: ")
        return self._fault(f": environment {self._first + environment}: {said}")

    def _fault(self, text: str) -> EnvironmentFault:
        fault = EnvironmentFault(self.spec.id + text)
        fault.step = self._steps
        return fault


def told_by(environment: Environment) -> dict[str, list[float]]:
    """Returns the numbers that an environment told at episodes' ends since the last call; none if it tells none."""
    return environment.tell() if isinstance(environment, Guarded) else {}


def _maker(env_id: str) -> Callable[..., Environment]:
    if env_id.startswith("toy:"):
        return _make_toy
    if env_id.startswith(PREFIX):
        return Pool
    if is_foreign(env_id):
        return make_foreign
    if env_id.startswith("dm_env:"):
        return _make_deepmind
    if env_id.partition(":")[0] in NATIVE:
        return _make_native
    if is_atari(env_id):
        return make_atari
    if env_id.startswith("pettingzoo:"):
        return _make_many
    if is_own(env_id):
        return make_own
    return make_standard


def imports_module(name: str) -> bool:
    """Returns whether making ``name`` imports a module that it names: ``module:factory`` and ``module:Id-v0`` do."""
    scheme, separator, _ = name.partition(":")
    return bool(separator) and scheme not in ("toy", PREFIX.rstrip(":"), FOREIGN.rstrip(":"), *NATIVE)


def _make_toy(env_id: str, num_envs: int, options: Options, *, render: bool) -> Environment:
    del render  # A toy can always be drawn.
    if env_id not in TOYS:
        raise ConfigError(unknown_name("toy", env_id, TOYS))
    takes = taken_by(TOYS[env_id], "env_id", "num_envs")
    return TOYS[env_id](env_id, num_envs, **arguments(env_id, options, takes))


def _make_deepmind(env_id: str, num_envs: int, options: Options, *, render: bool) -> Environment:
    # Here, since it imports Gymnasium, which other environments do not need.
    from seedbed.envs.deepmind import make_deepmind

    return make_deepmind(env_id, num_envs, options, render=render)


def _make_many(env_id: str, num_envs: int, options: Options, *, render: bool) -> Environment:
    # Here, since it imports Gymnasium, which other environments do not need.
    from seedbed.envs.many_agents import make_many

    return make_many(env_id, num_envs, options, render=render)


def _make_native(env_id: str, num_envs: int, options: Options, *, render: bool) -> Environment:
    del render  # An observation can always be drawn.
    # Here, since it imports JAX, which no other environment needs.
    from seedbed.envs.on_device.batch import NativeBatch
    from seedbed.envs.on_device.makers import make_native

    return NativeBatch(make_native(env_id, options), num_envs)
