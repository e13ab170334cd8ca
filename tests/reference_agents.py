"""A second opinion: PPO, V-trace and DQN on CartPole, SAC on Pendulum, once more and shortly, from the papers alone.

Nothing here comes from the package: environments are Gymnasium's, returns are loops over NumPy arrays in float64, Adam
is the four lines of its paper. Gradients alone are JAX's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """Settings, by the names that they have in the package."""

    unroll_length: int = 32
    batch_size: int = 16
    minibatches: int = 4
    reuse: int = 4
    learning_rate: float = 1e-3
    discount: float = 0.98
    trace_lambda: float = 0.95
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    gradient_clip: float = 0.5
    adam_eps: float = 1e-5


def layers(rng: np.random.Generator, sizes: list[int], last: float) -> list[Any]:
    """Weights and biases: orthogonal, of gain sqrt(2) but for the last."""
    made = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        q, r = np.linalg.qr(rng.normal(size=(max(inputs, outputs), min(inputs, outputs))))
        q = q * np.sign(np.diag(r))
        q = q if inputs >= outputs else q.T
        gain = last if index == len(sizes) - 2 else np.sqrt(2)
        made.append((np.float32(gain * q), np.zeros(outputs, np.float32)))
    return made


def forward(net: list[Any], x: Any) -> Any:
    for weight, bias in net[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ net[-1][0] + net[-1][1]


@jax.jit
def decide(nets: Any, x: Any) -> tuple[Any, Any]:
    """Log-probabilities and value of each observation."""
    return jax.nn.log_softmax(forward(nets["policy"], x)), forward(nets["value"], x)[..., 0]


class Adam:
    """Kingma and Ba 2015, algorithm 1, on gradients of which the global norm is clipped."""

    def __init__(self, params: Any, recipe: Any) -> None:
        self.mean = jax.tree.map(np.zeros_like, params)
        self.square, self.count, self.recipe = self.mean, 0, recipe

    def step(self, params: Any, gradient: Any) -> Any:
        norm = np.sqrt(sum(float(np.sum(np.square(g))) for g in jax.tree.leaves(gradient)))
        scale = min(1.0, self.recipe.gradient_clip / norm)
        gradient = jax.tree.map(lambda g: np.asarray(g) * scale, gradient)
        self.count += 1
        self.mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mean, gradient)
        self.square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, self.square, gradient)

        def moved(p: Any, m: Any, v: Any) -> Any:
            root = np.sqrt(v / (1 - 0.999**self.count)) + self.recipe.adam_eps
            return np.float32(p - self.recipe.learning_rate * m / (1 - 0.9**self.count) / root)

        return jax.tree.map(moved, params, self.mean, self.square)


class Worlds:
    """Several environments. The step after the end of an episode begins the next one and is no transition."""

    def __init__(
        self, count: int, seed: int, name: str = "CartPole-v1", how: str = "vector_entry_point"
    ) -> None:
        self.env = gymnasium.make_vec(name, count, vectorization_mode=how)
        self.x = np.float32(self.env.reset(seed=seed)[0])
        self.over = np.zeros(count, bool)
        self.sums = np.zeros(count)
        self.returns: list[float] = []

    def unroll(self, choose: Callable[[Any], Arrays], length: int) -> Arrays:
        """``[T, B]`` of every step, with what was chosen there, and ``[T + 1, B]`` observations."""
        rows: dict[str, list[Any]] = {"x": [self.x]}
        for _ in range(length):
            chosen = choose(self.x)
            x, reward, terminated, truncated, _ = self.env.step(chosen["action"])
            valid = ~self.over
            row = {
                **chosen,
                "reward": np.where(valid, reward, 0.0),
                "terminated": terminated & valid,
                "valid": valid,
            }
            self.sums = np.where(valid, self.sums + reward, 0.0)
            self.over = (terminated | truncated) & valid
            self.returns += self.sums[self.over].tolist()
            self.x = np.float32(x)
            for name, array in {**row, "x": self.x}.items():
                rows.setdefault(name, []).append(array)
        return {name: np.stack(arrays) for name, arrays in rows.items()}


def advantages(recipe: Recipe, unroll: Arrays, values: Any) -> Any:
    """Generalized advantages (Schulman et al. 2016), one step after the other from the end."""
    found, after = np.zeros_like(values[:-1]), np.zeros(values.shape[1])
    for t in reversed(range(len(found))):
        discount = np.where(unroll["terminated"][t], 0.0, recipe.discount)
        delta = unroll["reward"][t] + discount * values[t + 1] - values[t]
        after = np.where(unroll["valid"][t], delta + discount * recipe.trace_lambda * after, 0.0)
        found[t] = after
    return found


def ppo(recipe: Recipe, steps: int, seed: int, clip: float = 0.2) -> list[float]:
    """Schulman et al. 2017: returns of all episodes in about so many steps."""

    def loss(nets: Any, part: Arrays) -> Any:
        log_probs, values = decide(nets, part["x"])
        log_prob = jnp.take_along_axis(log_probs, part["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(log_prob - part["mu"])
        gain = jnp.minimum(ratio * part["advantage"], jnp.clip(ratio, 1 - clip, 1 + clip) * part["advantage"])
        return _total(recipe, gain, values - part["target"], log_probs, part["valid"])

    def update(nets: Any, adam: Adam, unroll: Arrays, rng: np.random.Generator) -> Any:
        values = np.float64(decide(nets, unroll["x"])[1])
        found = advantages(recipe, unroll, values)
        valid = unroll["valid"]
        mean, deviation = found[valid].mean(), found[valid].std()
        rows = {
            "x": unroll["x"][:-1],
            "action": unroll["action"],
            "mu": unroll["mu"],
            "valid": valid,
            "advantage": np.float32(np.where(valid, (found - mean) / (deviation + 1e-8), 0.0)),
            "target": np.float32(found + values[:-1]),
        }
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in rows.items()}
        for _ in range(recipe.reuse):
            for part in np.split(rng.permutation(valid.size), recipe.minibatches):
                nets = adam.step(nets, gradient(nets, {name: array[part] for name, array in flat.items()}))
        return nets

    gradient = jax.jit(jax.grad(loss))
    return _train(recipe, steps, seed, update)


def vtrace(recipe: Recipe, steps: int, seed: int) -> list[float]:
    """Espeholt et al. 2018, with all clips at 1: returns of all episodes in about so many steps."""

    def loss(nets: Any, unroll: Arrays) -> Any:
        log_probs, values = decide(nets, unroll["x"][:-1])
        log_prob = jnp.take_along_axis(log_probs, unroll["action"][..., None], 2)[..., 0]
        return _total(
            recipe, log_prob * unroll["advantage"], values - unroll["target"], log_probs, unroll["valid"]
        )

    def corrected(nets: Any, unroll: Arrays) -> Arrays:
        log_probs, values = (np.float64(array) for array in decide(nets, unroll["x"]))
        log_prob = np.take_along_axis(log_probs[:-1], unroll["action"][..., None], 2)[..., 0]
        ratio = np.where(unroll["valid"], np.minimum(1.0, np.exp(log_prob - unroll["mu"])), 0.0)
        targets, advantage = values.copy(), np.zeros_like(ratio)
        for t in reversed(range(len(ratio))):
            discount = np.where(unroll["terminated"][t], 0.0, recipe.discount)
            delta = ratio[t] * (unroll["reward"][t] + discount * values[t + 1] - values[t])
            trace = recipe.trace_lambda * ratio[t]
            targets[t] = values[t] + delta + discount * trace * (targets[t + 1] - values[t + 1])
            advantage[t] = ratio[t] * (unroll["reward"][t] + discount * targets[t + 1] - values[t])
        return {**unroll, "target": np.float32(targets[:-1]), "advantage": np.float32(advantage)}

    def update(nets: Any, adam: Adam, unroll: Arrays, rng: np.random.Generator) -> Any:
        for _ in range(recipe.reuse):
            for part in np.split(rng.permutation(recipe.batch_size), recipe.minibatches):
                rows = {name: array[:, part] for name, array in unroll.items()}
                nets = adam.step(nets, gradient(nets, corrected(nets, rows)))
        return nets

    gradient = jax.jit(jax.grad(loss))
    return _train(recipe, steps, seed, update)


def _total(recipe: Recipe, gain: Any, error: Any, log_probs: Any, valid: Any) -> Any:
    """A loss of the gain, the value's error and the entropy; what is not valid counts as 0 in each mean."""
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    cost = 0.5 * recipe.baseline_cost * jnp.square(error) - recipe.entropy_cost * entropy - gain
    return jnp.mean(jnp.where(valid, cost, 0.0))


def _train(recipe: Recipe, steps: int, seed: int, update: Callable[..., Any]) -> list[float]:
    rng = np.random.default_rng(seed)
    nets: Any = {"policy": layers(rng, [4, 64, 64, 2], 0.01), "value": layers(rng, [4, 64, 64, 1], 1.0)}
    adam, worlds = Adam(nets, recipe), Worlds(recipe.batch_size, seed)

    def choose(x: Any) -> Arrays:
        log_probs = np.asarray(decide(nets, x)[0])
        action = (rng.random(len(x)) > np.exp(log_probs[:, 0])).astype(np.int64)
        return {"action": action, "mu": np.take_along_axis(log_probs, action[:, None], 1)[:, 0]}

    for _ in range(steps // (recipe.unroll_length * recipe.batch_size)):
        nets = update(nets, adam, worlds.unroll(choose, recipe.unroll_length), rng)
    return worlds.returns


@dataclass(frozen=True)
class Replayed:
    """Settings of DQN, by the names that they have in the package."""

    unroll_length: int = 8
    batch_size: int = 64
    learning_rate: float = 1e-3
    discount: float = 0.98
    gradient_clip: float = 40.0
    adam_eps: float = 1e-5
    target_period: int = 50
    replay_min_size: int = 1_024
    replay_ratio: float = 8.0
    epsilon_base: float = 0.4
    epsilon_exponent: float = 7.0


def dqn(recipe: Replayed, steps: int, seed: int, worlds_at_once: int = 8) -> list[float]:
    """Mnih et al. 2015 with the two networks of van Hasselt et al. 2016 and the epsilons of Horgan et al. 2018.

    Nothing is overwritten in the replay: there are fewer steps than it holds.
    """
    rng = np.random.default_rng(seed)
    net = target = layers(rng, [4, 64, 64, 2], 0.1)
    adam, worlds = Adam(net, recipe), Worlds(worlds_at_once, seed)
    ranks = np.arange(worlds_at_once) / (worlds_at_once - 1)
    epsilons = recipe.epsilon_base ** (1 + recipe.epsilon_exponent * ranks)
    values = jax.jit(forward)

    @jax.jit
    @jax.grad
    def gradient(net: Any, target: Any, part: Arrays) -> Any:
        best = jnp.argmax(forward(net, part["later"]), axis=1)
        after = jnp.take_along_axis(forward(target, part["later"]), best[:, None], 1)[:, 0]
        goal = part["reward"] + recipe.discount * jnp.where(part["terminated"], 0.0, after)
        q = jnp.take_along_axis(forward(net, part["x"]), part["action"][:, None], 1)[:, 0]
        return 0.5 * jnp.mean(jnp.square(jax.lax.stop_gradient(goal) - q))

    def choose(x: Any) -> Arrays:
        by_chance = rng.random(len(x)) < epsilons
        return {"action": np.where(by_chance, rng.integers(0, 2, len(x)), np.argmax(values(net, x), axis=1))}

    kept: list[Arrays] = []
    updates, owed = 0, 0.0
    for _ in range(steps // (recipe.unroll_length * worlds_at_once)):
        new = worlds.unroll(choose, recipe.unroll_length)
        new["later"], new["x"] = new["x"][1:], new["x"][:-1]
        kept.append({name: array[new["valid"]] for name, array in new.items()})
        size = sum(len(part["reward"]) for part in kept)
        if size < recipe.replay_min_size:
            continue
        memory = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
        kept = [memory]
        owed += len(new["reward"].ravel()) * recipe.replay_ratio / recipe.batch_size
        while owed >= 1:
            rows = rng.integers(0, size, recipe.batch_size)
            net = adam.step(net, gradient(net, target, {name: array[rows] for name, array in memory.items()}))
            updates, owed = updates + 1, owed - 1
            target = net if updates % recipe.target_period == 0 else target
    return worlds.returns


@dataclass(frozen=True)
class Soft:
    """Settings of SAC, by the names that they have in the package."""

    unroll_length: int = 4
    batch_size: int = 64
    learning_rate: float = 1e-3
    discount: float = 0.98
    gradient_clip: float = 100.0
    adam_eps: float = 1e-8
    target_rate: float = 0.02
    replay_min_size: int = 1_024
    replay_ratio: float = 64.0


def sac(recipe: Soft, steps: int, seed: int, worlds_at_once: int = 4) -> list[float]:
    """Haarnoja et al. 2018, algorithm 1, on Pendulum, whose torques are twice the elements of an action."""
    rng = np.random.default_rng(seed)
    nets: Any = {
        "policy": layers(rng, [3, 64, 64, 2], 0.01),
        "critics": [layers(rng, [4, 64, 64, 1], 0.1) for _ in range(2)],
    }
    weight = {"log": np.float32(0.0)}
    target, adams = nets["critics"], {name: Adam(nets[name], recipe) for name in nets}
    of_weight, worlds = Adam(weight, recipe), Worlds(worlds_at_once, seed, "Pendulum-v1", "sync")

    def drawn(policy: Any, x: Any, noise: Any) -> tuple[Any, Any]:
        mean, log_deviation = jnp.split(forward(policy, x), 2, axis=-1)
        before = mean + jnp.exp(log_deviation) * noise
        normal = -(noise**2) / 2 - log_deviation - jnp.log(2 * jnp.pi) / 2
        # d tanh(u) / du = 4 / (e^u + e^-u)^2
        slope = jnp.log(4.0) - 2 * jnp.logaddexp(before, -before)
        return jnp.tanh(before), (normal - slope)[:, 0]

    def least(critics: Any, x: Any, elements: Any) -> Any:
        both = jnp.concatenate([x, elements], axis=-1)
        return jnp.minimum(*(forward(critic, both)[:, 0] for critic in critics))

    def of_critics(critics: Any, nets: Any, target: Any, alpha: Any, part: Arrays) -> Any:
        after, log_density = drawn(nets["policy"], part["later"], part["noise"][0])
        follows = least(target, part["later"], after) - alpha * log_density
        goal = part["reward"] + recipe.discount * jnp.where(part["terminated"] > 0, 0.0, follows)
        both = jnp.concatenate([part["x"], part["action"] / 2], axis=-1)
        return sum(jnp.mean((goal - forward(critic, both)[:, 0]) ** 2) / 2 for critic in critics)

    def of_policy(policy: Any, nets: Any, alpha: Any, part: Arrays) -> Any:
        elements, log_density = drawn(policy, part["x"], part["noise"][1])
        return jnp.mean(alpha * log_density - least(nets["critics"], part["x"], elements)), log_density.mean()

    by_critics, by_policy = jax.jit(jax.grad(of_critics)), jax.jit(jax.grad(of_policy, has_aux=True))
    draw = jax.jit(drawn)

    def followed(old: Any, new: Any) -> Any:
        return (1 - recipe.target_rate) * old + recipe.target_rate * new

    def choose(x: Any) -> Arrays:
        anything = rng.uniform(-1, 1, (len(x), 1))
        elements = np.asarray(draw(nets["policy"], x, rng.normal(size=(len(x), 1)).astype(np.float32))[0])
        return {"action": np.float32(2 * (elements if updates else anything))}

    kept: list[Arrays] = []
    updates, owed, size = 0, 0.0, 0
    for _ in range(steps // (recipe.unroll_length * worlds_at_once)):
        new = worlds.unroll(choose, recipe.unroll_length)
        new["later"], new["x"] = new["x"][1:], new["x"][:-1]
        kept.append({name: np.float32(array[new["valid"]]) for name, array in new.items()})
        before, size = size, size + len(kept[-1]["reward"])
        memory = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
        kept = [memory]
        if size < recipe.replay_min_size:
            continue
        owed += (size - max(before, recipe.replay_min_size)) * recipe.replay_ratio / recipe.batch_size
        while owed >= 1:
            rows = rng.integers(0, size, recipe.batch_size)
            part = {name: array[rows] for name, array in memory.items()}
            part["noise"] = rng.normal(size=(2, recipe.batch_size, 1)).astype(np.float32)
            alpha = np.exp(weight["log"])
            critics = by_critics(nets["critics"], nets, target, alpha, part)
            policy, log_density = by_policy(nets["policy"], nets, alpha, part)
            weight = of_weight.step(weight, {"log": alpha * (-float(log_density) + 1)})
            nets = {
                "policy": adams["policy"].step(nets["policy"], policy),
                "critics": adams["critics"].step(nets["critics"], critics),
            }
            target = jax.tree.map(followed, target, nets["critics"])
            updates, owed = updates + 1, owed - 1
    return worlds.returns
