"""The suites that training documents are dumped from, and `kvgauge suite dump` itself.

A stage has one length T of packed sequences. Documents take about half of it, so that several questions fit behind one text.
"""
from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Shortest context that a suite may have.
MIN_CONTEXT = 256


def recipes(length: int) -> list[dict]:
    """Suites for packed sequences of `length` tokens. Each is a dict of the fields that `toml` writes.

    `json_extract` has one record, because layers without positions cannot see which of two records stands first.
    Codes of `enumerate` are numbered, so that the next line is found by its number.
    """
    part, most, whole = (max(MIN_CONTEXT, int(length * share)) for share in (0.62, 0.78, 0.92))

    def recipe(name: str, weight: float, context: int, reserve: int, shared: int, **tasks: str) -> dict:
        return dict(name=name, weight=weight, context=context, reserve=reserve, shared=shared, mixed=len(tasks) > 1, tasks=tasks)

    counts = {384: (4, 8), 512: (4, 8, 14), 1024: (4, 12, 22, 32)}[length]
    spans = {384: (24, 48), 512: (24, 64), 1024: (24, 80, 160)}[length]
    keys = {384: (2,), 512: (2, 3), 1024: (2, 4)}[length]
    made = [
        recipe("lines", 4.0, part, 32, length // 72, lookalike='value_kind = "digits"'),
        recipe("needles", 2.5, part, 32, length // 76, needle=""),
        recipe("records", 1.5, most, 48, max(2, length // 190), json_extract="records = 1"),
    ]
    made += [recipe(f"queries_{n}", 1.5 / len(keys), part if n == 2 else most, 24 * n, max(2, length // 200), multiquery=f"keys = {n}")
             for n in keys]
    made += [recipe(f"list_{n}", 2.5 / len(counts), whole, 32 + 8 * n, 1, enumerate=f"count = {n}") for n in counts]
    made += [recipe(f"passages_{n}", 1.5 / len(spans), whole, 24 + 2 * n, 1 + length // (6 * n + 300), verbatim=f"span_tokens = {n}")
             for n in spans]
    if length >= 512:
        made.append(recipe("mixed", 3.0, whole, 80, 5, needle="", multiquery="keys = 2", json_extract="records = 1",
                           enumerate="count = 4", verbatim="span_tokens = 24"))
    return made


def toml(recipe: dict, samples: int) -> str:
    """A recipe as a suite file."""
    tasks = "".join(f'[[tasks]]\nkind = "{task}"\nparams = {{ {params} }}\n' for task, params in recipe["tasks"].items())
    return (f'schema_version = 1\nname = "{recipe["name"]}"\ndescription = "Training documents of the probe"\n'
            f'[[bins]]\ncontext = {recipe["context"]}\nsamples = {samples}\noutput_reserve = {recipe["reserve"]}\n'
            f'shared_prefix = {recipe["shared"]}\nmixed = {str(recipe["mixed"]).lower()}\n{tasks}')


def dump(kvgauge: str, recipe: dict, documents: int, seed: int, tokenizer: Path | None) -> Iterator[list[dict]]:
    """About `documents` documents of a recipe, each as the list of its items."""
    per_task = min(2000, max(1, documents * recipe["shared"] // len(recipe["tasks"])))
    runs = max(1, documents * recipe["shared"] // len(recipe["tasks"]) // per_task)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(toml(recipe, per_task))
        file.flush()
        count = ["--tokenizer", str(tokenizer)] if tokenizer else ["--dry-run"]
        command = [kvgauge, "suite", "dump", "--suite", file.name, "--seeds", f"{seed}..{seed + runs - 1}", *count]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            group: list[dict] = []
            assert process.stdout
            for line in process.stdout:
                item = json.loads(line)
                if group and item["haystack_id"] != group[0]["haystack_id"]:
                    yield group
                    group = []
                group.append(item)
            if group:
                yield group
        if process.returncode:
            raise SystemExit(f"`{' '.join(command)}` failed")


def versions(kvgauge: str) -> dict:
    """Versions of the generators and of the lexicon that the documents come from."""
    tasks, lexicon = {}, ""
    for recipe in recipes(512):
        for group in dump(kvgauge, recipe, 1, 1, None):
            tasks |= {item["task"]: item["generator_version"] for item in group}
            lexicon = group[0]["lexicon_version"]
    return {"tasks": dict(sorted(tasks.items())), "lexicon_version": lexicon}
