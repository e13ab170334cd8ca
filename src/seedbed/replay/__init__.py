"""Stage 4: memory between acting and learning."""
