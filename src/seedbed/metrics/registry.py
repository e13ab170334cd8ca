"""The names of everything that Seedbed measures: one name, one unit, one sentence.

The same name stands in ``metrics.jsonl``, in TensorBoard (below its group), on the console and in ``docs/metrics.md``,
which is generated from here. A name that ends in ``/*`` is a family: any name that begins like it belongs to it, so
that an agent's loss may report anything under ``loss/``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from seedbed.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Metric:
    """One thing that is measured.

    Attributes:
      name: key in a row; ``"prefix/*"`` for a family.
      unit: unit of the number (``"steps"``, ``"frames/s"``); ``"1"`` for plain numbers and fractions.
      sentence: meaning, for the docs.
      group: group of metrics that belong together; empty for a family, whose prefix is its group.
    """

    name: str
    unit: str
    sentence: str
    group: str = ""

    @property
    def is_family(self) -> bool:
        """True if it stands for every name with its prefix."""
        return self.name.endswith("/*")


_metrics: dict[str, Metric] = {}


def register(name: str, unit: str, sentence: str, *, group: str = "") -> Metric:
    """Adds a metric, or a family if ``name`` ends in ``/*``.

    Registering the same thing twice is allowed; raises :class:`ConfigError` if the name means something else.
    """
    metric = Metric(name, unit, sentence, group)
    known = _metrics.setdefault(name, metric)
    if known != metric:
        raise ConfigError(
            f"metric {name!r} is registered already, as {known.sentence!r} in {known.unit!r}: rename it"
        )
    return metric


def find(name: str) -> Metric:
    """The metric that ``name`` belongs to; raises :class:`ConfigError` with the nearest names if none."""
    metric = _metrics.get(name) or _metrics.get(name.rpartition("/")[0] + "/*")
    if metric is None or (metric.is_family and name.endswith(("/", "/*"))):
        raise ConfigError(unknown_name("metric", name, _metrics))
    return metric


def check(names: Iterable[str]) -> None:
    """Raises :class:`ConfigError` for the first name that is not registered."""
    for name in names:
        find(name)


def in_group(name: str) -> str:
    """Returns ``name`` below its group, as ``agent/mean_return``; raises :class:`ConfigError` if it is unknown."""
    group = find(name).group
    return f"{group}/{name}" if group else name


def registered() -> tuple[Metric, ...]:
    """All metrics, in the order in which they were registered."""
    return tuple(_metrics.values())


_progress = partial(register, group="progress")
_speed = partial(register, group="speed")
_agent = partial(register, group="agent")
_stages = partial(register, group="stages")
_books = partial(register, group="books")
_learning = partial(register, group="learning")

# How far the run is.
_progress("seconds", "s", "Training time, excluding pauses between sessions.")
_progress(
    "agent_steps",
    "steps",
    "Decisions that environments carried out, over all of them; one that only resets is none.",
)
_progress("session", "1", "Number of resumptions of the run before the row.")
_progress("env_frames", "frames", "Frames that the environments simulated: agent steps times frame skip.")
_progress("updates", "updates", "Gradient updates, including skipped ones.")
_progress("weights_version", "updates", "Version of the newest published weights.")

# How fast it goes.
_speed("agent_steps_per_second", "steps/s", "Agent steps a second, over the last seconds.")
_speed("frames_per_second", "frames/s", "Environment frames a second, over the last seconds.")
_speed("cpu_seconds", "s", "Processor time that all processes of this session have taken.")

# How well it plays.
_agent("mean_return", "return", "Mean undiscounted, unclipped return of the last 100 episodes.")
_agent("best_mean_return", "return", "The highest mean return over 100 episodes so far.")
_agent("episodes", "episodes", "Episodes that ended, by their own rules or by a time limit.")
register(
    "env/*",
    "1",
    "A number that environments tell in `info` at the end of an episode; mean over episodes since the last row.",
)
_agent("elo", "points", "Elo rating of the policy in self-play; the first version had 1000.")
register("elo/*", "points", "Elo rating of a frozen version, by its number of updates.")
_agent("opponents", "versions", "Frozen versions of the policy that play against it.")
_agent(
    "opponent_score",
    "1",
    "Score of the policy against frozen versions: 1 a win, 1/2 a draw; mean over versions.",
)
_agent("steps_opponents", "steps", "Decisions of frozen versions, which are none of the policy's.")
_agent("episode_length", "steps", "Mean length of the last 100 episodes, in agent steps.")

# How the stages keep up with one another.
_stages(
    "policy_lag_batches",
    "batches",
    "Batches that were trained on since the weights that acted, without the step's own; mean, 0 in lockstep.",
)
_stages(
    "policy_lag_mean",
    "updates",
    "Updates between the weights that acted and the trained ones, its own batch's earlier ones included; mean.",
)
_stages("policy_lag_max", "updates", "The same; most.")
_stages("pbt_rounds", "rounds", "Rounds of population-based training since the run began.")
_stages("pbt_replaced", "agents", "Agents that went on with another one's parameters since the run began.")
_stages("sample_reuse", "1", "Updates computed from each agent step that was learned from.")
_stages("batch_fill", "1", "Observations in an inference batch, as a share of a full one.")
_stages("inference_batch", "rows", "Observations in an inference batch; mean.")
_stages("inference_milliseconds", "ms", "Time from closing an inference batch to its actions; mean.")
_stages(
    "action_wait_p50",
    "ms",
    "Time from an observation to its action, as actors see it, but at the beginnings of unrolls; half are shorter.",
)
_stages("action_wait_p99", "ms", "The same; 99 of 100 are shorter.")
_stages(
    "bytes_from_actors",
    "bytes",
    "Arrays that actors have sent in this session; gradients that workers have pushed.",
)
_stages(
    "bytes_to_actors",
    "bytes",
    "Arrays that were sent to actors in this session; parameters that workers fetched.",
)
_stages("queue_fill", "1", "Share of the unroll queue that is in use.")
_stages("replay_fill", "1", "Share of the replay's memory that is in use.")
_stages("replay_transitions", "steps", "Agent steps in the replay that can be sampled.")
_stages(
    "replay_late_priorities",
    "items",
    "Priorities that came when their item had been overwritten, and changed nothing.",
)
_stages(
    "replay_ignored_priorities",
    "items",
    "Priorities that were no numbers, infinite or negative, and changed nothing.",
)
_stages("learner_busy", "1", "Share of time in which the learner computed an update.")
_stages("actors", "actors", "Actors that are connected.")
_stages("actor_restarts", "restarts", "Actors that were started again after they died.")

# Where every place in an unroll went: received = trained + open + queued + dropped. Those that only reset are among
# them: agent_steps = steps_received - steps_resets.
_books("steps_received", "places", "Places in unrolls, one for each action that was chosen.")
_books("steps_resets", "places", "Places whose action only reset an environment, at the end of an episode.")
_books("steps_trained", "places", "Places that an update was computed from, each counted once.")
_books("steps_open", "places", "Places in unrolls that are not yet complete.")
_books(
    "steps_queued",
    "places",
    "Places in complete unrolls, or in the replay, that were not trained on yet.",
)
_books(
    "steps_dropped",
    "places",
    "Places never trained on: their actor left, the run was resumed, they only evaluated, a replay overwrote "
    "them before they were sampled, or (where workers send gradients) theirs was too stale or not finite.",
)

# How the learning goes.
_learning(
    "gradient_staleness_mean",
    "gradients",
    "Gradients that a shard has taken between the parameters that one was computed at and that one; mean.",
)
_learning("gradient_staleness_max", "gradients", "The same; most.")
_learning(
    "gradients_dropped",
    "gradients",
    "Gradients that changed nothing, since they were staler than allowed, or their shard was gone.",
)
_learning(
    "gradient_outliers", "gradients", "Gradients that were not pushed, since their loss was an outlier."
)
_learning("skipped_updates", "updates", "Updates that were skipped because loss or gradient was not finite.")
_learning(
    "checkpoint_pause_seconds",
    "s",
    "Pause of learning for the newest checkpoint of this session.",
)
_learning(
    "checkpoint_seconds",
    "s",
    "Time to write the newest checkpoint of this session to the disk.",
)
_learning("memory_bytes", "bytes", "Resident memory of the learner's process.")
_learning(
    "actors_memory_bytes",
    "bytes",
    "Resident memory of the processes that the run started (actors, servers, shards, workers) and of their guards.",
)
register("loss/total", "1", "The loss that is differentiated.")
register("loss/policy_loss", "1", "The policy's part of the loss.")
register("loss/value_loss", "1", "The value function's part of the loss.")
register("loss/entropy", "nats", "Entropy of the policy; mean over steps.")
register("loss/entropy_cost", "1", "Weight of the entropy in the loss.")
register("loss/gradient_norm", "1", "Norm of the gradient before it is clipped.")
register("loss/*", "1", "Other values that the agent's loss reports.")
