"""Stage 6: the way back, from the learner to acting."""
