"""The page for people from other systems: every setting of theirs has a row, and every flag of ours is one."""

import re
from pathlib import Path

import pytest

from seedbed.config.resolve import flat
from seedbed.config.settings import RunConfig

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
COMMON = (
    "n_timesteps env_wrapper frame_stack policy:MlpPolicy policy:CnnPolicy batch_size learning_rate gamma "
    "policy_kwargs:net_arch"
)
ZOO = {
    "ppo": f"{COMMON} n_envs n_steps n_epochs clip_range gae_lambda ent_coef vf_coef max_grad_norm normalize use_sde "
    "sde_sample_freq policy_kwargs:activation_fn policy_kwargs:log_std_init policy_kwargs:ortho_init",
    "dqn": f"{COMMON} buffer_size learning_starts train_freq gradient_steps target_update_interval "
    "exploration_fraction exploration_final_eps",
}
"""All settings in the zoo's files of 2024-04, those of `policy_kwargs` by their names."""


def rows(heading: str) -> list[tuple[str, str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*?`) \| (.*) \|$", section, re.M)[1:]


@pytest.mark.parametrize("agent", ZOO)
def test_every_setting_of_the_zoo_has_a_row(agent: str) -> None:
    said = [theirs for theirs, _ in rows(f"rl-baselines3-zoo: {agent.upper()}")]
    names = []
    for theirs in said:
        name, _, value = theirs.strip("`").partition(": ")
        several = name.startswith("policy")
        names.append(f"{name}:{value.strip(chr(39))}" if several else name)
    assert sorted(names) == sorted(ZOO[agent].split())


HEADINGS = re.findall(r"^## (.*)$", PAGE, re.M)


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_flag_is_one(heading: str) -> None:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    known = {name for agent in ("ppo", "dqn", "pqn", "vtrace") for name in flat(RunConfig(agent=agent))} | {
        "preset",
        "greedy",  # of eval
    }
    for flag in re.findall(r"(?<![-|])--([a-z][a-z-]*)", section):
        name = flag.removeprefix("no-").replace("-", "_")
        assert name in known, f"{heading}: --{flag}"
