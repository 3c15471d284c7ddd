"""Text to ids and back: ends, stops, templates, first tokens."""

from __future__ import annotations

import pytest

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team.codec import Codec


def test_codec_prompt_with_chat_template_is_whole_though_padding_is_the_end() -> None:
    """The published library cuts such a prompt at its first end of sequence."""
    codec = Codec(toy_team.tokenizer(), chat_template=True)
    ids = codec.encode("Hi", "here")
    assert codec.tokenizer.decode(ids) == "<user>Hi<eos><bot>"
    assert ids.count(256) == 1


def test_codec_completion_is_decoded_without_its_end_and_knows_it() -> None:
    codec = Codec(toy_team.tokenizer())
    ids = [*codec.encode("done", "here"), 256]
    assert codec.decode(ids) == "done"
    assert codec.ended(ids)
    assert not codec.ended(ids[:-1])
    assert codec.decode([256]) == ""


def test_codec_stop_ends_with_the_token_that_holds_it_and_is_not_told() -> None:
    codec = Codec(toy_team.tokenizer(), stop="\n")
    (newline,) = codec.tokenizer("\n").input_ids
    assert codec.ends == {256, newline}
    assert codec.decode(codec.encode("one\ntwo", "here")) == "one"


def test_codec_first_token_is_not_put_twice() -> None:
    made = toy_team.tokenizer()
    made.bos_token = "<bot>"
    from tokenizers.processors import TemplateProcessing

    made.backend_tokenizer.post_processor = TemplateProcessing(single="<bot> $A", special_tokens=[("<bot>", 258)])
    codec = Codec(made)
    assert codec.encode("x", "here") == codec.encode("<bot>x", "here")


def test_codec_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match=r"agent 0: the prompt '' has no token"):
        Codec(toy_team.tokenizer()).encode("", "agent 0")


def test_codec_template_that_fails_is_told() -> None:
    made = toy_team.tokenizer()
    made.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="chat template fails: roles must alternate"):
        Codec(made, chat_template=True).encode("x", "agent 0")


def test_codec_digest_covers_vocabulary_and_template() -> None:
    one, other, third = toy_team.tokenizer(), toy_team.tokenizer(shifted=True), toy_team.tokenizer()
    third.chat_template = "{{ 1 }}"
    digests = {Codec(each).digest() for each in (one, other, third, toy_team.tokenizer())}
    assert len(digests) == 3
