"""Chat templates for models without one, chosen by the tokens in the vocabulary.

A vocabulary with the tokens that delimit the turns of a format belongs to a model that was trained
on that format; without such tokens there is no template, and so no chat. The formats are those of
the models' own templates, without their extras: ChatML (Qwen, SmolLM), Llama 3's headers, and
Gemma's turns. Gemma has no system turn: a system message goes into the first turn of the user.
"""

from __future__ import annotations

from kvreuse.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{% set first = '' %}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] | trim + '\n\n' %}{% set messages = messages[1:] %}"
    "{% endif %}"
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# The tokens that a vocabulary must have -> the template, the first that fits.
DEFAULTS = (
    (("<|im_start|>", "<|im_end|>"), CHATML),
    (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), LLAMA3),
    (("<start_of_turn>", "<end_of_turn>"), GEMMA),
)


def default_template(tokenizer: Tokenizer) -> str | None:
    """The first template all of whose tokens the vocabulary has; ``None`` if there is none."""
    for tokens, template in DEFAULTS:
        if all(tokenizer.literal_id(token) is not None for token in tokens):
            return template
    return None
