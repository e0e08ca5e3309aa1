"""Trains the probe's tokenizer on dumped documents and writes it as a model folder.

    python vocabulary.py --kvgauge kvgauge OUT
"""
from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import Counter
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import suites

BOS, END, ANSWER, PAD = "<|bos|>", "<|end|>", "<|answer|>", "<|pad|>"
#: Letters of the keys of `lookalike`, in turn.
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLE = f"[{CONSONANTS}][{VOWELS}]"
KEY = f"(?:{SYLLABLE}){{3}}(?![A-Za-z])"
#: One digit or one word, with the space before it, one run of signs, or one blank: a token never reaches over two of them.
#: The space before a key stands alone, so that a key is the same three tokens in a line and in a question.
#: Merges alone cannot promise that: `sinino` became `s in in o` where `in` was merged before `ni`.
PRETOKEN = rf" ?\d| (?={KEY})| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s"
#: Inside a piece that is a key: its three syllables.
SYLLABLES = f"^{SYLLABLE}(?=(?:{SYLLABLE}){{2}}$)|(?<=^{SYLLABLE}){SYLLABLE}(?={SYLLABLE}$)|(?<=^{SYLLABLE}{SYLLABLE}){SYLLABLE}$"
#: An earlier answer ends with `<|end|>`, everything else is followed by the call for an answer.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}" + END + "{% elif message['role'] == 'user' %}" + ANSWER + "{% else %}\n\n{% endif %}{% endfor %}"
)


def train(kvgauge: str, size: int) -> Tokenizer:
    """Byte-level BPE in which words of the generators are one token and keys of `lookalike` fall into their syllables."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKEN), "isolated"),
        pre_tokenizers.Split(Regex(SYLLABLES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    texts: list[str] = []
    for recipe in suites.recipes(512):
        if recipe["name"] == "lines":
            continue
        for group in suites.dump(kvgauge, recipe, 700, 900_000, None):
            texts += [group[0]["messages"][-1]["content"]] + [item["answer"] for item in group]
            texts += [item["messages"][-1]["content"][-400:] for item in group[1:]]
    # Every word in both forms: answers begin lines and stand in quotes, texts have a blank before a word.
    words = Counter(word for text in texts for word in re.findall(r"[A-Za-z]{2,}", text))
    common = [word for word, count in words.items() if count >= 4]
    texts += ["\n".join(common) + "\n " + " ".join(common)] * 400
    print(f"{len(common)} words")
    syllables = ["".join(pair) for pair in itertools.product(CONSONANTS, VOWELS)]
    texts += ["\n".join(syllables)] * 1000
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BOS, END, ANSWER, PAD], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END, "pad_token": PAD,
              "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 262_144,
              "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvgauge", default="kvgauge")
    parser.add_argument("--size", type=int, default=6144)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    tokenizer = train(options.kvgauge, options.size)
    write(tokenizer, options.out)
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
