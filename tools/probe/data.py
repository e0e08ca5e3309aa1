"""From dumped documents to packed training sequences.

A sequence is a conversation: document and first question, answer, next question, answer. A question does not depend on those
before it, so every answer is worth as much as one asked alone.
"""
from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import suites
from vocabulary import ANSWER, BOS, END, PAD, PRETOKEN

#: What a text states, with the key it is stated of: a distractor must not answer what a document is asked.
FACTS = [
    re.compile(r"for the ([a-z][a-z -]*?) is \d+\."),
    re.compile(r"of the ([a-z-]+ list) is \d+\."),
    re.compile(r"[Tt]he ([a-z-]+ (?:register|shipment|plan))\b[^.]*\."),
    re.compile(r"Here begins the ([a-z-]+ passage):.*?Here ends the \1\.", re.S),
    re.compile(r"^([a-z]+): \d+$", re.M),
]


class Encoder:
    """Encodes as the tokenizer does: no token reaches over two pieces, so pieces are encoded alone and remembered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pieces = re.compile(PRETOKEN)
        self.known: dict[str, list[int]] = {}
        self.bos, self.end, self.answer, self.pad = (tokenizer.token_to_id(it) for it in (BOS, END, ANSWER, PAD))

    def __call__(self, text: str) -> list[int]:
        return self.with_starts(text)[0]

    def with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids, and for each the character it starts at (that of its piece)."""
        ids: list[int] = []
        starts: list[int] = []
        for piece in self.pieces.finditer(text):
            found = self.known.get(piece[0])
            if found is None:
                found = self.known[piece[0]] = self.tokenizer.encode(piece[0]).ids
            ids += found
            starts += [piece.start()] * len(found)
        return ids, starts


@dataclass
class Turn:
    """A question with its answer as tokens, the calling and the ending token included."""

    task: str
    question: list[int]
    answer: list[int]
    asked: set[str] = field(default_factory=set)


@dataclass
class Document:
    """A document with its questions; `facts` are `(first token, end, key)`."""

    ids: list[int]
    facts: list[tuple[int, int, str]]
    turns: list[Turn]


def document(group: list[dict], encode: Encoder) -> Document:
    """A dumped group of items as tokens."""
    texts = [item["messages"][-1]["content"] for item in group]
    cut = texts[0].rfind("\n\nQuestion:") + 1
    text = texts[0][:cut]
    ids, starts = encode.with_starts(text)
    where = np.asarray(starts)
    facts = []
    for pattern in FACTS:
        for match in pattern.finditer(text):
            first, end = np.searchsorted(where, [match.start(), match.end()])
            facts.append((int(first) + 1, int(end) + 1, match[1]))
    keys = {key for _, _, key in facts}
    turns = []
    for item, whole in zip(group, texts):
        assert whole.startswith(text), item["item_id"]
        question = whole[cut:]
        asked = {key for key in keys if re.search(rf"\b{re.escape(key)}\b", question)}
        turns.append(Turn(item["task"], encode(question) + [encode.answer], encode(item["answer"]) + [encode.end], asked))
    return Document([encode.bos] + ids, facts, turns)


def load(kvgauge: str, tokenizer: Path, length: int, documents: int, seed: int) -> list[Document]:
    """About `documents` documents for sequences of `length` tokens in the shares of the recipes, shuffled."""
    encode = Encoder(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))
    recipes = suites.recipes(length)
    total = sum(recipe["weight"] for recipe in recipes)
    found: list[Document] = []
    for recipe in recipes:
        wanted = max(1, int(documents * recipe["weight"] / total))
        for group in suites.dump(kvgauge, recipe, wanted, seed, tokenizer):
            made = document(group, encode)
            if len(made.ids) + len(made.turns[0].question) + len(made.turns[0].answer) <= length:
                found.append(made)
    random.Random(seed).shuffle(found)
    return found


@dataclass
class Row:
    """A packed sequence: ids, weight of the loss per token, end of the document, the answers as `(start, end, task)`."""

    ids: np.ndarray
    answers: list[tuple[int, int, str]]
    end_of_document: int
    facts: list[tuple[int, int, str]]
    asked: set[str]


def pack(made: Document, length: int, pad: int, draw: random.Random) -> Row:
    """As many questions as fit, in random order."""
    ids = list(made.ids)
    answers, asked = [], set()
    for turn in draw.sample(made.turns, len(made.turns)):
        if len(ids) + len(turn.question) + len(turn.answer) > length:
            continue
        ids += turn.question
        answers.append((len(ids), len(ids) + len(turn.answer), turn.task))
        ids += turn.answer
        asked |= turn.asked
    out = np.full(length, pad, dtype=np.int64)
    out[: len(ids)] = ids
    return Row(out, answers, len(made.ids), made.facts, asked)


def batches(source: Callable[[], list[Document]], length: int, rows: int, pad: int, seed: int) -> Iterator[list[Row]]:
    """Batches without end; after the last document it asks `source` for fresh ones.

    The first rows are the distractors of all: where there is one, the first is nothing but look-alike lines.
    """
    draw = random.Random(seed)
    while True:
        documents = source()
        for start in range(0, len(documents) - rows + 1, rows):
            some = documents[start : start + rows]
            lines = next((i for i, made in enumerate(some) if made.turns[0].task == "lookalike"), 0)
            some[0], some[lines] = some[lines], some[0]
            yield [pack(made, length, pad, draw) for made in some]
