"""From text to tokens and back: tokenizers, chat templates, and where the parts of a chat lie."""
