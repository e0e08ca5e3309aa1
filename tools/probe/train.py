"""Trains the probe on CPU. One command goes through all stages; `--resume` goes on where it was stopped.

    python train.py --kvgauge kvgauge --minutes 80 FOLDER

FOLDER holds the tokenizer of vocabulary.py and gets `checkpoint.pt` and the model folder `export`.
"""
from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import export
import suites
from model import NEVER, Config, Context, Optimizer, Probe


@dataclass
class Stage:
    """A part of the time with one length; rates and the cap of R go from the first value to the second."""

    share: float
    length: int
    rows: int
    rate: tuple[float, float]
    repeats: tuple[float, float]


STAGES = [
    Stage(0.20, 384, 12, (0.020, 0.016), (1, 8)),
    Stage(0.38, 512, 8, (0.016, 0.008), (8, 300)),
    Stage(0.42, 1024, 4, (0.008, 0.0002), (100, 1000)),
]
#: Rows whose documents are distractors of all others.
DISTRACTORS = 2
#: Weight of predicting the text itself.
TEXT_LOSS = 0.05
#: Log-weight of a document's own facts that nobody asks about, at most.
OWN_MOST = 4.0
#: Documents dumped at a time.
DOCUMENTS = 2400
#: Steps of each stage of a smoke run.
SMOKE_STEPS = 3
EXPORT_SECONDS = 300


def feed(kvgauge: str, folder: Path, stage: Stage, documents: int, pad: int, seed: int, out: multiprocessing.Queue) -> None:
    """Fills the queue from fresh documents; a process of its own."""
    os.nice(5)
    seeds = iter(range(seed, 1 << 40, 1000))
    source = lambda: data.load(kvgauge, folder, stage.length, documents, next(seeds))
    for rows in data.batches(source, stage.length, stage.rows, pad, seed):
        out.put(rows)


def biases(rows: list[data.Row], context: Context, cap: float, draw: random.Random) -> None:
    """How much each row's other facts and the distractors count."""
    length, count = len(rows[0].ids), len(rows)
    own, other = torch.zeros(count, length), torch.full((count, DISTRACTORS * length), NEVER)
    for i, row in enumerate(rows):
        if draw.random() < 0.2:
            continue
        weight = draw.uniform(0.0, cap)
        if draw.random() < 0.6:
            own_weight = draw.uniform(0.0, min(cap, OWN_MOST))
            for first, end, key in row.facts:
                if key not in row.asked:
                    own[i, first:end] = own_weight
        for j in range(DISTRACTORS):
            if j == i:
                continue
            start = j * length
            other[i, start + 1 : start + rows[j].end_of_document] = weight
            for first, end, key in rows[j].facts:
                if key in row.asked:
                    other[i, start + first : start + end] = NEVER
    context.distractors, context.own_bias, context.other_bias = DISTRACTORS, own, other


class Counts:
    """Exact matches per task since the last line."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}
        self.losses: list[tuple[float, float]] = []

    def add(self, rows: list[data.Row], right: torch.Tensor) -> None:
        """`right`: per row and position whether the next token was predicted."""
        for row, ok in zip(rows, right.tolist()):
            for start, end, task in row.answers:
                seen = self.of.setdefault(task, [0, 0])
                seen[0] += all(ok[start - 1 : end - 1])
                seen[1] += 1

    def line(self) -> str:
        tasks = " ".join(f"{task} {right / count:.2f}" for task, (right, count) in sorted(self.of.items()))
        answer, text = (sum(values) / len(values) for values in zip(*self.losses))
        self.of, self.losses = {}, []
        return f"loss {answer:.4f} text {text:.2f} | {tasks}"


def one_step(model: Probe, rows: list[data.Row], context: Context, pad: int, counts: Counts) -> None:
    """Forward and backward."""
    ids = torch.stack([torch.from_numpy(row.ids) for row in rows])
    count, length = ids.shape
    is_answer = torch.zeros(count, length, dtype=torch.bool)
    for i, row in enumerate(rows):
        for start, end, _ in row.answers:
            is_answer[i, start - 1 : end - 1] = True
    flat = is_answer.reshape(-1)
    answers = flat.nonzero()[:, 0]
    following = torch.cat([ids[:, 1:], torch.full((count, 1), pad)], 1).reshape(-1)
    text = ((~flat) & (following != pad)).nonzero()[:, 0]
    text = text[torch.randint(0, len(text), (max(64, count * length // 8),))]
    wanted = torch.cat([answers, text])
    logits = model(ids, wanted, context)
    losses = F.cross_entropy(logits, following[wanted], reduction="none")
    answer_loss, text_loss = losses[: len(answers)].mean(), losses[len(answers) :].mean()
    (answer_loss + TEXT_LOSS * text_loss).backward()
    right = torch.zeros(count * length, dtype=torch.bool)
    right[answers] = logits[: len(answers)].argmax(-1) == following[answers]
    counts.add(rows, right.view(count, length))
    counts.losses.append((answer_loss.item(), text_loss.item()))


def save(folder: Path, model: Probe, optimizer: Optimizer, history: dict) -> None:
    """Writes the checkpoint in one step, and the model folder that can be tried."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state(), "history": history}, folder / "checkpoint.tmp")
    os.replace(folder / "checkpoint.tmp", folder / "checkpoint.pt")
    export.write(folder, folder / "export")


def run_stage(options: argparse.Namespace, number: int, model: Probe, optimizer: Optimizer, history: dict, pad: int) -> None:
    """Trains until the stage's share of the time is used up."""
    stage = STAGES[number]
    minutes = options.minutes * stage.share
    spent = history["stage_minutes"].get(str(number), 0.0)
    if spent >= minutes:
        return
    context = Context(stage.length, Config)
    ready: multiprocessing.Queue = multiprocessing.Queue(maxsize=8)
    seed = options.seed * 10_000_000 + number * 1_000_000 + history["steps"] * 13
    documents = 60 if options.smoke else DOCUMENTS
    feeder = multiprocessing.Process(
        target=feed, args=(options.kvgauge, options.folder, stage, documents, pad, seed, ready), daemon=True)
    feeder.start()
    draw, counts = random.Random(seed), Counts()
    rows = ready.get()
    step, last = 0, time.time()
    line_at = save_at = last
    while spent < minutes and not (options.smoke and step == SMOKE_STEPS):
        part = spent / minutes
        between = lambda pair: pair[0] + (pair[1] - pair[0]) * part
        low, high = (math.log(value) for value in stage.repeats)
        biases(rows, context, low + (high - low) * part, draw)
        one_step(model, rows, context, pad, counts)
        rate = between(stage.rate) * min(1.0, (history["steps"] + 1) / 20, (step + 1) / 5)
        optimizer.step(rate, rate * 0.25)
        rows = ready.get(timeout=300)
        now = time.time()
        spent, last, step = spent + (now - last) / 60, now, step + 1
        history["steps"] += 1
        history["tokens"] += stage.length * stage.rows
        history["stage_minutes"][str(number)] = spent
        if step % 50 == 0:
            speed = 50 * stage.length * stage.rows / (now - line_at)
            print(f"T {stage.length} step {history['steps']} min {spent:.1f}/{minutes:.0f} tok/s {speed:.0f} {counts.line()}", flush=True)
            line_at = now
        if now - save_at > EXPORT_SECONDS:
            save(options.folder, model, optimizer, history)
            save_at = now
    feeder.terminate()
    save(options.folder, model, optimizer, history)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvgauge", default="kvgauge")
    parser.add_argument("--minutes", type=float, default=120.0, help="training time over all stages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a few steps of each stage, to try it out")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    Config.vocab_size = (tokenizer.get_vocab_size() + 63) // 64 * 64
    model = Probe()
    model.start_with_equal_forms(tokenizer.get_vocab())
    model.start_at_question_mark(tokenizer.token_to_id(data.ANSWER), tokenizer.encode("?").ids[0])
    optimizer = Optimizer(model)
    history = {"seed": options.seed, "steps": 0, "tokens": 0, "stage_minutes": {}, **suites.versions(options.kvgauge)}
    if options.resume:
        kept = torch.load(options.folder / "checkpoint.pt")
        model.load_state_dict(kept["model"])
        optimizer.load(kept["optimizer"])
        history = kept["history"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {history}", flush=True)
    for number in range(len(STAGES)):
        run_stage(options, number, model, optimizer, history, tokenizer.token_to_id(data.PAD))


if __name__ == "__main__":
    main()
