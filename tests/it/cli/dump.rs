//! `suite dump`: the items of a run with their answers, for use elsewhere.

use kvgauge::suite::Suite;
use kvgauge::tokenizer::WordTokenizer;
use serde_json::Value;

use super::Desk;

fn dumped(desk: &Desk, more: &[&str]) -> Vec<Value> {
    let mut args = vec!["suite", "dump", "--suite", "smoke", "--dry-run"];
    args.extend(more);
    let said = desk.run(&args);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_item_of_the_suite_is_dumped_with_the_answer_that_scores_one() {
    let desk = Desk::new();
    let lines = dumped(&desk, &[]);
    let suite = Suite::builtin("smoke").unwrap();
    let groups = suite.plan().groups;
    let items: Vec<_> = groups.iter().flat_map(|group| suite.generate(group, &WordTokenizer).unwrap()).collect();
    assert_eq!(lines.len(), items.len());
    for (line, item) in lines.iter().zip(&items) {
        assert_eq!(line["item_id"], item.item_id.as_str());
        assert_eq!(line["haystack_id"], item.haystack_id.as_str());
        assert_eq!(line["answer"], item.expected.answer.as_str());
        assert_eq!(line["messages"], serde_json::to_value(&item.messages).unwrap());
        assert_eq!(line["follow_ups"].as_array().map_or(0, Vec::len), item.follow_ups.len());
        assert!(line["generator_version"].is_u64(), "{line}");
    }
}

#[test]
fn a_range_of_seeds_makes_the_suite_anew_for_each() {
    let desk = Desk::new();
    let both = dumped(&desk, &["--seeds", "5..6"]);
    let one_by_one: Vec<Value> = ["5", "6"].iter().flat_map(|seed| dumped(&desk, &["--seeds", seed])).collect();
    assert_eq!(both, one_by_one);
    assert_eq!(dumped(&desk, &["--seed", "6"]), dumped(&desk, &["--seeds", "6"]));
    assert_ne!(dumped(&desk, &["--seeds", "5"]), dumped(&desk, &["--seeds", "6"]));
}

#[test]
fn what_cannot_be_dumped_is_said() {
    let desk = Desk::new();
    for (args, parts) in [
        (&["suite", "dump", "--dry-run", "--seeds", "5..1"][..], &["5..1", "ends before it begins"][..]),
        (&["suite", "dump", "--dry-run", "--seeds", "1..9", "--seed", "2"], &["--seed"]),
        (&["suite", "dump", "--tokenizer", "nowhere"], &["nowhere", "tokenizer.json"]),
        (&["suite", "dump", "--dry-run", "--suite", "absent.toml"], &["absent.toml"]),
    ] {
        desk.run(args).expect_error(2, parts);
    }
}
