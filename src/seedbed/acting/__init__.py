"""Stage 3: from observations to actions to unrolls."""
