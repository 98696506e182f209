"""``kvreuse serve``: the OpenAI API over one engine; replies say what was reused."""
