"""Why prompts share no more than they do: two of them, or a whole log, without computing."""
