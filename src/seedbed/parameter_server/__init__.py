"""Gradients up, parameters down: shards of the parameters and the workers that push to them."""
