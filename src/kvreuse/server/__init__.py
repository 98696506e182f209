"""``kvreuse serve``: the OpenAI API over one engine, honest about what it reused."""
