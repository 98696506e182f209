"""From logits to an answer: tokens, text, log-probabilities, and when it ends."""
