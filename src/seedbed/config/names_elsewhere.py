"""Names of settings in other systems."""

ELSEWHERE = {
    theirs: ours
    for ours, several in {
        "frames": "total_timesteps n_timesteps timesteps steps",
        "learning_rate": "lr",
        "discount": "gamma",
        "trace_lambda": "gae_lambda lambda",
        "envs_per_actor": "num_envs n_envs",
        "actors": "num_workers num_env_runners n_workers",
        "unroll_length": "n_steps num_steps rollout_length",
        "minibatches": "num_minibatches n_minibatches",
        "reuse": "epochs n_epochs num_epochs update_epochs",
        "clip": "clip_range clip_coef clip_param",
        "entropy_cost": "ent_coef entropy_coef entropy_coeff",
        "baseline_cost": "vf_coef value_coef vf_loss_coeff",
        "gradient_clip": "max_grad_norm grad_clip",
        "replay_size": "buffer_size",
        "replay_min_size": "learning_starts",
        "target_rate": "tau",
        "hidden": "net_arch",
    }.items()
    for theirs in several.split()
}
"""Settings by their names in other systems, and their names here."""
COMING_FROM = "(docs/coming-from.md has the words of other systems)"
