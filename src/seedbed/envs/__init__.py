"""Stage 1, the world: every environment behind one batched interface."""
