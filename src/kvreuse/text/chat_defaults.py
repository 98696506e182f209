"""Chat templates for files that have none, chosen by the tokens of the vocabulary.

Only where the tokens that delimit turns are there was a model made for these turns; without any of
them there is no template, and so no chat. The three formats are those of the models' own templates,
without their extras: ChatML (Qwen, SmolLM), Llama 3's headers, Gemma's turns, in which a system
message goes into the first turn of the user, as Gemma has none.
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
    """The template for turns whose tokens the vocabulary has, ``None`` where it has none."""
    for tokens, template in DEFAULTS:
        if all(tokenizer.literal_id(token) is not None for token in tokens):
            return template
    return None
