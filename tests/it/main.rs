//! The only integration-test binary.

// What fits on which GPU, against published models.
mod capacity;
// The command line from outside: help, messages, exit codes, dry runs.
mod cli;
// The user's own prompts.
mod custom;
// Conversations, thinking and several groups at once on a tiny model.
mod dialogue;
// Outputs with known faults, and whole ones.
mod detectors;
// Models, prefill, decode, forks, threads and chunks against recorded numbers.
mod engine;
// Error rates of the gate by simulation.
mod gate;
// Filler: variety, needles that do not stand out, the user's own text.
mod haystack;
// What a whole engine stores: scales, skipped layers, capacity, noise.
mod kv_cache;
// Model files against attacks.
mod model_files;
// Downloads against a server on the loopback.
mod model_store;
// The client against a server that plays every engine and every fault.
mod openai;
// The journal: cuts, flips, resumes, locks.
mod record;
// A collapse in one bin and a loss in every bin, from counts to the page.
mod recorded_cases;
// The page and the other documents.
mod report;
// The default model against another engine's numbers, where it is in the cache.
mod smollm2;
// Managed launches, probes and evidence against played servers and a real one.
mod serving;
// How every task is solved, by rules.
mod solvers;
// Start-up logs of every engine against what people read out of them.
mod startup_logs;
// Suites from file to items on a real vocabulary.
mod suites;
// Every task in every bin and language: budgets, depths, solvability, names of faults.
mod tasks;
// The architecture rules: who imports whom, homes of crates and of `unsafe`, complete registries.
mod tidy;
// Ids, templates and counts against recorded ones.
mod tokenizer;
