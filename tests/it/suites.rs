//! Suites from their file to items, on a real vocabulary.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::LazyLock;

use kvgauge::hint::Hint;
use kvgauge::rng::hash_name;
use kvgauge::sample::{Bin, Item};
use kvgauge::stats::paired::{Cluster, clustered_95, tango_95};
use kvgauge::suite::{BUILTIN, CellPolicy, GroupSpec, Suite, SuiteError, TaskGroup, Tier};
use kvgauge::tasks::{Ground, TASKS};
use kvgauge::tokenizer::{TokenCounter, Tokenizer, WordTokenizer};

use crate::smollm2;

static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| smollm2::tokenizer(None));
static LLAMA_CUT: LazyLock<Tokenizer> = LazyLock::new(|| smollm2::tokenizer(Some("llama-bpe")));

fn items(suite: &Suite, counter: &dyn TokenCounter) -> Vec<Item> {
    items_of(suite, &suite.plan().groups, counter)
}

fn items_of(suite: &Suite, groups: &[GroupSpec], counter: &dyn TokenCounter) -> Vec<Item> {
    let of_group = |group: &GroupSpec| {
        let name = &suite.name;
        suite.generate(group, counter).unwrap_or_else(|error| panic!("{name}, {}: {error}", group.items[0].task))
    };
    groups.iter().flat_map(of_group).collect()
}

fn check_items(suite: &Suite, counter: &dyn TokenCounter) {
    let items = items(suite, counter);
    assert_eq!(items.len(), suite.plan().item_count());
    check_budgets(suite, &items, counter);
}

fn check_budgets(suite: &Suite, items: &[Item], counter: &dyn TokenCounter) {
    let mut longest: BTreeMap<&str, (Bin, u32)> = BTreeMap::new();
    let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
    for item in items {
        let plan = suite.bins.iter().find(|plan| plan.bin == item.bin).expect("a planned bin");
        let messages: Vec<(&str, &str)> =
            item.messages.iter().map(|message| (message.role.name(), message.content.as_str())).collect();
        assert_eq!(counter.count_chat(&messages), item.prompt_tokens as usize, "{} in {}", item.task, item.bin);
        assert!(item.prompt_tokens <= item.bin.tokens() - plan.output_reserve);
        assert!(item.max_output_tokens <= plan.output_reserve);
        assert!(counter.count(&item.expected.answer) < item.max_output_tokens as usize);
        let fill = longest.entry(&item.haystack_id).or_insert((item.bin, 0));
        fill.1 = fill.1.max(item.prompt_tokens);
        let marks = ["\n\nQuestion: ", "\n\n问题："];
        let prefix = marks.iter().find_map(|mark| messages[0].1.rsplit_once(mark)).expect("a question").0;
        assert_eq!(*prefixes.entry(&item.haystack_id).or_insert(prefix), prefix);
        let excerpt = item.excerpt.len();
        // 200 tokens on each side of the needle, which is a passage of up to 600.
        assert!(excerpt < 6000 && excerpt > 0, "{} in {}: excerpt of {excerpt} bytes", item.task, item.bin);
    }
    for (bin, tokens) in longest.values() {
        let budget =
            bin.tokens() - suite.bins.iter().find(|plan| plan.bin == *bin).expect("a planned bin").output_reserve;
        let least = if bin.tokens() < 2048 { 0.90 } else { 0.97 };
        assert!(f64::from(*tokens) >= least * f64::from(budget), "{tokens} of {budget} in {bin}");
    }
    let ids: HashSet<&str> = items.iter().map(|item| item.item_id.as_str()).collect();
    assert_eq!(ids.len(), items.len(), "ids are unique");
    assert!(ids.iter().all(|id| id.len() == 32));
}

/// The default profiles whole, on several tokenizers.
#[test]
fn quick_suites_generate_within_their_budgets_on_real_and_counted_tokens() {
    for name in ["quick", "smoke"] {
        let suite = Suite::builtin(name).unwrap();
        check_items(&suite, &*SMOLLM2);
        check_items(&suite, &*LLAMA_CUT);
        check_items(&suite, &WordTokenizer);
    }
}

/// The others have thousands of items: of every bin the first text of each task, and the last text.
#[test]
fn every_built_in_suite_generates_within_its_budgets() {
    for (name, _) in BUILTIN {
        let suite = Suite::builtin(name).unwrap();
        assert_eq!(suite.name, *name);
        let groups = suite.plan().groups;
        let mut seen: HashSet<(Bin, &str)> = HashSet::new();
        let mut chosen: Vec<GroupSpec> = groups
            .iter()
            .filter(|group| group.items.iter().filter(|item| seen.insert((group.bin, &item.task))).count() > 0)
            .cloned()
            .collect();
        chosen.extend(groups.last().filter(|last| !chosen.contains(last)).cloned());
        check_budgets(&suite, &items_of(&suite, &chosen, &*SMOLLM2), &*SMOLLM2);
    }
}

/// Texts whose questions are answered as before; sizes as equal as they can be.
fn unchanged(pairs: usize, texts: usize) -> Vec<Cluster> {
    (0..texts).map(|i| Cluster { sum: 0.0, size: (pairs / texts + usize::from(i < pairs % texts)) as u64 }).collect()
}

#[test]
fn the_profiles_ask_what_their_names_say() {
    let generated: Vec<&str> = TASKS.iter().filter(|task| task.ground != Ground::Given).map(|task| task.id).collect();
    for (name, left_out) in [("nightly", &[][..]), ("zh", &[("frequent_codes", Bin(512))])] {
        let suite = Suite::builtin(name).unwrap();
        for task in &generated {
            let plan = suite.tasks.iter().find(|plan| plan.task == *task);
            for bin in suite.bins.iter().map(|plan| plan.bin).filter(|bin| !left_out.contains(&(*task, *bin))) {
                assert!(plan.is_some_and(|plan| plan.bins.contains(&bin)), "{name} does not ask {task} in {bin}");
            }
        }
    }
    for name in ["nightly", "lite", "long", "zh"] {
        let suite = Suite::builtin(name).unwrap();
        let mut pairs: BTreeMap<(Bin, &str), (usize, HashSet<String>)> = BTreeMap::new();
        for group in suite.plan().groups {
            for item in &group.items {
                let cell = pairs.entry((group.bin, TaskGroup::of_task(&item.task).name())).or_default();
                cell.0 += 1;
                cell.1.insert(group.haystack_id.clone());
            }
        }
        for (cell, (pairs, texts)) in pairs {
            assert!(pairs >= suite.gate.min_pairs as usize, "{name}, {cell:?}: {pairs} pairs");
            assert!(texts.len() >= suite.gate.min_haystacks as usize, "{name}, {cell:?}: {} texts", texts.len());
            if ["nightly", "zh"].contains(&name) {
                // Where nothing changes: the fewest that exclude a drop of the margin.
                let upper = match texts.len() == pairs {
                    true => tango_95(pairs as f64, 0.0, 0.0).unwrap().upper,
                    false => clustered_95(&unchanged(pairs, texts.len()), 0, 0).unwrap().upper,
                };
                assert!(upper < suite.gate.margin, "{name}, {cell:?}: {pairs} pairs on {} texts: {upper}", texts.len());
            }
        }
    }
}

#[test]
fn every_task_and_profile_is_in_the_documents() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let read = |path: &str| std::fs::read_to_string(docs.join(path)).unwrap_or_default();
    let suites = read("suites.md");
    for task in TASKS {
        let page = read(&format!("tasks/{}.md", task.id));
        let is_complete = page.starts_with(&format!("# `{}`", task.id)) && page.contains("## Example");
        assert!(is_complete && (task.ground == Ground::Given || page.contains(task.scorer)), "page of {}", task.id);
        assert!(suites.contains(&format!("tasks/{}.md", task.id)), "docs/suites.md does not name {}", task.id);
    }
    for (name, _) in BUILTIN {
        let suite = Suite::builtin(name).unwrap();
        let bins: Vec<String> = suite.bins.iter().map(|plan| plan.bin.to_string()).collect();
        let row = format!("| `{name}` | {} | {} |", bins.join(" "), suite.plan().item_count());
        assert!(suites.contains(&row), "docs/suites.md has no row {row}");
    }
}

#[test]
fn items_are_the_same_bytes_for_ever() {
    let suite = Suite::builtin("smoke").unwrap();
    let text = serde_json::to_string(&items(&suite, &*SMOLLM2)).unwrap();
    // A change of this value means other items: then count up the generator's version.
    let expected = "dc378fdbff7c43d6";
    assert_eq!(&hash_name(&[&text]).to_hex()[..16], expected);
}

#[test]
fn a_long_document_of_lookalikes_is_the_same_bytes_for_ever() {
    for (language, expected) in [("en", "31d46ecf3c689eb5"), ("zh", "27f1628768b6f66d")] {
        let text = format!(
            "schema_version = 1\nname = \"long\"\ndescription = \"\"\nlanguage = \"{language}\"\n\
             [[bins]]\ncontext = \"128K\"\nsamples = 1\n[[tasks]]\nkind = \"lookalike\"\n"
        );
        let items = items(&Suite::parse(&text, "long").unwrap(), &*SMOLLM2);
        assert_eq!(&hash_name(&[&serde_json::to_string(&items).unwrap()]).to_hex()[..16], expected, "{language}");
    }
}

#[test]
fn another_seed_gives_other_items_and_more_samples_keep_the_first() {
    let suite = Suite::builtin("smoke").unwrap();
    let ids = |suite: &Suite| -> HashSet<String> {
        suite.plan().groups.into_iter().flat_map(|group| group.items).map(|item| item.item_id).collect()
    };
    let reseeded = suite.select(None, None, None, Some(8)).unwrap();
    assert!(ids(&suite).is_disjoint(&ids(&reseeded)));
    let larger = suite.select(None, None, Some(9), None).unwrap();
    assert!(ids(&suite).is_subset(&ids(&larger)));
    assert_eq!(ids(&larger).len(), 9 * 6 * 2);
    check_items(&suite.select(Some(&[Bin(512)]), None, Some(9), None).unwrap(), &*SMOLLM2);
}

#[test]
fn a_plan_goes_from_short_to_long_and_keeps_the_tasks_at_one_pace() {
    let suite = Suite::builtin("quick").unwrap();
    let plan = suite.plan();
    assert!(plan.groups.windows(2).all(|pair| pair[0].bin <= pair[1].bin));
    let short: Vec<&str> =
        plan.groups.iter().filter(|group| group.bin == Bin(512)).map(|group| group.items[0].task.as_str()).collect();
    let first_half: HashSet<&&str> = short.iter().take(short.len() / 2).collect();
    let all: HashSet<&&str> = short.iter().collect();
    assert_eq!(first_half, all, "{short:?}");
    for group in &plan.groups {
        let tasks: HashSet<&str> = group.items.iter().map(|item| item.task.as_str()).collect();
        let is_mixed = group.bin >= Bin(2048);
        assert!(is_mixed || tasks.len() == 1);
        assert!(!tasks.contains("lookalike") || tasks.len() == 1);
        if tasks.len() == 1 && tasks.contains("needle") {
            let slots: HashSet<u8> = group.items.iter().map(|item| item.slot_percent).collect();
            assert_eq!(slots.len(), group.items.len(), "needles of one text stand at different depths");
        }
    }
}

#[test]
fn the_fingerprint_follows_items_and_not_layout_or_gate() {
    let (_, text) = BUILTIN.iter().find(|(name, _)| *name == "quick").unwrap();
    let suite = Suite::parse(text, "quick").unwrap();
    let reformatted: String =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}  # x\n")).collect();
    assert_eq!(Suite::parse(&reformatted, "quick").unwrap().fingerprint(), suite.fingerprint());
    let other_gate = text.replace("margin = 5.0", "margin = 7.5");
    let other = Suite::parse(&other_gate, "quick").unwrap();
    assert_eq!(other.fingerprint(), suite.fingerprint());
    assert!((other.gate.margin - 0.075).abs() < 1e-12);
    for (from, to) in
        [("seed = 2024", "seed = 2025"), ("samples = 8", "samples = 9"), ("version = 1\nd", "version = 2\nd")]
    {
        assert!(text.contains(from), "{from}");
        assert_ne!(
            Suite::parse(&text.replacen(from, to, 1), "quick").unwrap().fingerprint(),
            suite.fingerprint(),
            "{to}"
        );
    }
    let with_params = format!("{text}\n[[tasks]]\nkind = \"needle\"\n");
    assert!(Suite::parse(&with_params, "quick").is_err());
    assert!(suite.versions().contains_key("generator.needle") && suite.versions().contains_key("lexicon.en"));
}

#[test]
fn a_selection_names_what_does_not_exist() {
    let suite = Suite::builtin("quick").unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let error = suite.select(None, Some(&names(&["needel"])), None, None).unwrap_err();
    assert_eq!(error.to_string(), "suite quick: there is no task `needel`");
    assert_eq!(error.hints(), ["did you mean `needle`?"]);
    assert!(error.is_selection());
    let error = suite.select(Some(&[Bin(4096)]), None, None, None).unwrap_err();
    assert_eq!(error.to_string(), "suite quick: there is no bin 4K");
    assert_eq!(error.hints(), ["known: 512, 2K, 8K, 32K"]);
    let error = suite.select(Some(&[Bin(32_768)]), Some(&names(&["lookalike"])), None, None).unwrap_err();
    assert!(matches!(error, SuiteError::NothingSelected { .. }) && error.is_selection());
    let cut = suite.select(Some(&[Bin(512), Bin(32_768)]), Some(&names(&["lookalike"])), None, None).unwrap();
    assert_eq!(cut.bins.iter().map(|plan| plan.bin).collect::<Vec<_>>(), [Bin(512)]);
    assert!(matches!(suite.select(None, None, Some(0), None), Err(SuiteError::NothingSelected { .. })));
    let limit = |samples| match suite.select(None, None, Some(samples), None) {
        Err(SuiteError::Limit { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!((limit(10_001).as_str(), limit(10_000).as_str()), ("samples", "items"));
    let mut gated = suite.clone();
    for cell in ["retrieval", "retrieval/2K", "retrieval/8K", "structure/2K"] {
        gated.gate.cells.insert(cell.into(), CellPolicy::default());
    }
    let cut = gated.select(Some(&[Bin(2048)]), Some(&names(&["needle"])), None, None).unwrap();
    assert_eq!(cut.gate.cells.keys().collect::<Vec<_>>(), ["retrieval", "retrieval/2K"]);
    let error = Suite::builtin("qick").unwrap_err();
    assert_eq!(error.hints()[0], "did you mean `quick`?");
}

const VALID: &str = r#"schema_version = 1
name = "own"
description = "x"
[[bins]]
context = 2048
samples = 3
[[tasks]]
kind = "enumerate"
bins = ["2K"]
params = { count = { 2K = 5 } }
[gate.cells."long_output/2K"]
max_drop = 10.0
"#;

#[test]
fn a_users_suite_is_read_and_its_parameters_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(&path, VALID).unwrap();
    let suite = Suite::load(&path).unwrap();
    assert_eq!(suite.gate.cells["long_output/2K"].max_drop, Some(0.1));
    let items = items(&suite, &*SMOLLM2);
    assert_eq!(items.len(), 3);
    assert!(items.iter().all(|item| item.expected.answer.lines().count() == 5));
    let error = Suite::load(&folder.path().join("none.toml")).unwrap_err();
    assert!(error.to_string().contains("none.toml"));
    std::fs::write(&path, vec![b'#'; 300 * 1024]).unwrap();
    assert!(matches!(Suite::load(&path), Err(SuiteError::Limit { .. })));
}

#[test]
fn a_gate_names_cells_that_are_asked_and_says_all_it_can_of_them() {
    let two_bins =
        VALID.replace("[[tasks]]", "[[bins]]\ncontext = 512\nsamples = 3\n[[tasks]]\nkind = \"needle\"\n[[tasks]]");
    let with = |cell: &str, keys: &str| {
        Suite::parse(&two_bins.replace("long_output/2K", cell).replace("max_drop = 10.0", keys), "own.toml")
    };
    let error = with("long_output/512", "tier = \"critical\"").unwrap_err();
    assert!(error.to_string().contains("there is no bin with this group `512`"), "{error}");
    assert!(error.is_selection(), "exit 4");
    assert!(error.hints()[0].contains("2K"), "{:?}", error.hints());
    let keys = "tier = \"supporting\"\nmax_drop = 10\nmax_relative_drop = 30\nrelative_guard_below = 15\nmin_effect = 3\n\
                min_pairs = 40\nmin_haystacks = 12\nbaseline_floor = 50\nmin_valid_share = 95\nrequired = false";
    let suite = with("retrieval/512", keys).unwrap();
    let expected = CellPolicy {
        tier: Some(Tier::Supporting),
        max_drop: Some(0.1),
        max_relative_drop: Some(0.3),
        relative_guard_below: Some(0.15),
        min_effect: Some(0.03),
        min_pairs: Some(40),
        min_haystacks: Some(12),
        baseline_floor: Some(0.5),
        min_valid_share: Some(0.95),
        required: Some(false),
    };
    assert_eq!(suite.gate.cells["retrieval/512"], expected);
    // A selection drops what it no longer asks: the group is there and the bin is, but not the one in the other.
    let both = suite.select(Some(&[Bin(512), Bin(2048)]), Some(&["enumerate".to_owned()]), None, None).unwrap();
    assert!(both.gate.cells.is_empty());
    assert_eq!(suite.select(Some(&[Bin(512)]), None, None, None).unwrap().gate.cells.len(), 1);
}

#[test]
fn broken_suites_say_where_and_what_to_do() {
    let cases = [
        ("samples = 3", "sample = 3", "own.toml:6: unknown field `sample`", "did you mean `samples`?"),
        (
            "kind = \"enumerate\"",
            "kind = \"enumerat\"",
            "own.toml: there is no task `enumerat`",
            "did you mean `enumerate`?",
        ),
        ("count", "cuont", "own.toml: task `enumerate`: unknown field `cuont`", "did you mean `count`?"),
        ("{ 2K = 5 }", "5000", "own.toml: task `enumerate`: params.count = 5000 is not between 2 and 1000", ""),
        ("[\"2K\"]", "[\"4K\"]", "own.toml: there is no bin 4K", "known: 2K"),
        ("context = 2048", "context = \"2X\"", "own.toml: bins[0].context: `2X` is not a context length", ""),
        ("context = 2048", "context = 100", "own.toml: bins[0].context: 100 is not between 256 and 1048576", ""),
        ("samples = 3", "samples = 0", "own.toml: bins[0].samples: 0 is not between 1 and 10000", ""),
        ("samples = 3", "samples = 3\ndepth_slots = [50, 50]", "own.toml: bins[0].depth_slots: expected different", ""),
        (
            "long_output/2K",
            "longoutput/2K",
            "gate.cells.\"longoutput/2K\": there is no task group `longoutput`",
            "did you mean `long_output`?",
        ),
        ("long_output/2K", "structure/2K", "there is no task group `structure`", "known: long_output"),
        (
            "long_output/2K",
            "long_output/4K",
            "gate.cells.\"long_output/4K\": there is no bin `4K`",
            "did you mean `2K`?",
        ),
        (
            "max_drop = 10.0",
            "max_drop = -1.0",
            "gate.cells.\"long_output/2K\".max_drop: -1 is not between 0 and 100",
            "",
        ),
        ("max_drop = 10.0", "max_drop = 0", "max_drop: 0 is not between 0 and 100 points", ""),
        ("[gate.cells", "[gate]\nmin_pairs = 0\n[gate.cells", "gate.min_pairs: 0 would judge cells without", ""),
        ("[gate.cells", "[gate]\nmin_haystacks = 0\n[gate.cells", "gate.min_haystacks: 0 would judge", ""),
        ("[gate.cells", "[gate]\nmin_valid_share = 0\n[gate.cells", "gate.min_valid_share: 0 would judge a run", ""),
        ("[gate.cells", "[gate]\nalpha = 0.5\n[gate.cells", "gate.alpha: 0.5 is not between 0 and 0.5", ""),
        ("schema_version = 1", "schema_version = 2", "schema_version is 2, this version reads 1", "start the file"),
        ("schema_version = 1\n", "", "schema_version is missing", "start the file"),
        ("name = \"own\"", "name = \"../own\"", "own.toml: name: `../own` is not a name", ""),
        ("name = \"own\"", "name = own", "own.toml:2: ", ""),
        ("name = \"own\"", "name = \"own\"\nlanguage = \"xx\"", "own.toml:", ""),
    ];
    for (from, to, message, hint) in cases {
        let text = VALID.replacen(from, to, 1);
        assert_ne!(text, VALID, "{from}");
        let error = Suite::parse(&text, "own.toml").unwrap_err();
        assert!(error.to_string().contains(message), "{to}: {error}");
        assert!(hint.is_empty() || error.hints().iter().any(|line| line.contains(hint)), "{to}: {:?}", error.hints());
    }
}
