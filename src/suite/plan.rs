//! From a suite to the ordered list of documents with their questions, and from there to items.

use super::{BinPlan, GroupSpec, ItemSpec, Plan, Suite, TaskPlan};
use crate::rng::hash_name;
use crate::sample::{Bin, Item, Perturbation, VariantOf};
use crate::tasks::{self, Depth, Ground, GroupRequest, QuestionRequest, Task, TaskError, UserText, perturbations};
use crate::tokenizer::TokenCounter;

/// Hex digits of an id: 128 bits, so that no two items of any number of suites meet.
const ID_DIGITS: usize = 32;

impl Suite {
    /// Everything to ask: shortest bin first, inside a bin all tasks at the same pace, so that an unfinished run has
    /// something of each.
    pub fn plan(&self) -> Plan {
        Plan { groups: self.bins.iter().flat_map(|bin| self.bin_groups(bin)).collect() }
    }

    /// Generates the items of one document. All its questions are needed, because each leaves its trace in the text.
    ///
    /// # Errors
    /// When its text or a right answer does not fit the bin, or the group is not as [`Suite::plan`] made it.
    pub fn generate(&self, group: &GroupSpec, counter: &dyn TokenCounter) -> Result<Vec<Item>, TaskError> {
        let unknown = |task: &str| TaskError::UnknownTask { task: task.to_owned() };
        if haystack_id(group.bin, &group.items) != group.haystack_id {
            return Err(TaskError::PartialGroup { haystack_id: group.haystack_id.clone() });
        }
        let custom = |item: &ItemSpec| self.tasks.iter().find(|plan| plan.task == item.task)?.custom.as_ref();
        if let Some(file) = group.items.first().and_then(custom) {
            return self.custom_items(group, file, counter);
        }
        let bin = self.bins.iter().find(|plan| plan.bin == group.bin);
        let output_reserve = bin.map_or_else(|| tasks::default_output_reserve(group.bin), |plan| plan.output_reserve);
        let questions = group.items.iter().map(|item| {
            let plan = self.tasks.iter().find(|plan| plan.task == item.task).ok_or_else(|| unknown(&item.task))?;
            Ok(QuestionRequest {
                item_id: &item.item_id,
                task: tasks::find(&item.task).ok_or_else(|| unknown(&item.task))?,
                slot_percent: item.slot_percent,
                index: item.index,
                params: &plan.params,
                variant_of: item.variant_of.as_ref(),
            })
        });
        let request = GroupRequest {
            haystack_id: &group.haystack_id,
            language: self.language,
            bin: group.bin,
            output_reserve,
            haystack: self.haystack.as_ref(),
            thinking_reserve: bin.map_or(0, |plan| plan.thinking_reserve),
            questions: questions.collect::<Result<_, TaskError>>()?,
        };
        let mut items = tasks::generate(&request, counter)?;
        for item in &mut items {
            let plan = self.tasks.iter().find(|plan| plan.task == item.task);
            if let Some(scorer) = plan.and_then(|plan| plan.scorer.as_ref()) {
                item.scorer.clone_from(scorer);
            }
        }
        Ok(items)
    }

    fn bin_groups(&self, bin: &BinPlan) -> Vec<GroupSpec> {
        let asked: Vec<(&TaskPlan, &'static Task)> = self
            .tasks
            .iter()
            .filter(|plan| plan.bins.contains(&bin.bin))
            .filter_map(|plan| tasks::find(&plan.task).map(|task| (plan, task)))
            .collect();
        let (given, asked): (Vec<_>, Vec<_>) = asked.into_iter().partition(|(_, task)| task.ground == Ground::Given);
        let mut streams: Vec<(Ground, Vec<ItemSpec>)> = Vec::new();
        if bin.mixed {
            for ground in [Ground::Prose, Ground::Pairs] {
                let of_ground = asked.iter().filter(|(_, task)| task.ground == ground);
                streams.push((ground, interleave(of_ground.map(|(plan, task)| self.items(bin, plan, task)).collect())));
            }
        } else {
            streams.extend(asked.iter().map(|(plan, task)| (task.ground, self.items(bin, plan, task))));
        }
        let of_chunk = |items: &[ItemSpec]| {
            let items = self.with_variants(items);
            GroupSpec { haystack_id: haystack_id(bin.bin, &items), bin: bin.bin, items }
        };
        let mut queues: Vec<Vec<GroupSpec>> = streams
            .iter()
            .map(|(_, items)| items.chunks(bin.shared_prefix.max(1) as usize).map(of_chunk).collect())
            .collect();
        queues.extend(given.into_iter().map(|(plan, _)| self.custom_groups(bin, plan)));
        let mut groups: Vec<(f64, GroupSpec)> = Vec::new();
        for queue in queues {
            let count = queue.len() as f64;
            groups.extend(queue.into_iter().enumerate().map(|(number, group)| ((number as f64 + 0.5) / count, group)));
        }
        // Stable: at equal progress the order of the file holds.
        groups.sort_by(|(left, _), (right, _)| left.total_cmp(right));
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn items(&self, bin: &BinPlan, plan: &TaskPlan, task: &Task) -> Vec<ItemSpec> {
        let count = plan.samples_in(bin);
        let slots = match task.depth {
            Depth::AtSlot => slot_order(&bin.depth_slots, task.id),
            Depth::Spread => vec![0],
        };
        (0..count as usize)
            .map(|number| {
                let slot_percent = slots[number % slots.len()];
                let index = (number / slots.len()) as u32;
                ItemSpec {
                    item_id: self.item_id(bin, task, slot_percent, index),
                    task: task.id.into(),
                    slot_percent,
                    index,
                    variant_of: None,
                }
            })
            .collect()
    }

    /// Every item, and right behind those of robust tasks the same question in other words: variants are asked of the
    /// document of their original and count neither as its questions nor as samples.
    fn with_variants(&self, items: &[ItemSpec]) -> Vec<ItemSpec> {
        let is_robust = |item: &ItemSpec| self.tasks.iter().any(|plan| plan.robustness && plan.task == item.task);
        let mut all = Vec::with_capacity(items.len());
        for item in items {
            all.push(item.clone());
            if is_robust(item) {
                all.extend(perturbations(self.language).map(|perturbation| variant(item, perturbation)));
            }
        }
        all
    }

    fn item_id(&self, bin: &BinPlan, task: &Task, slot_percent: u8, index: u32) -> String {
        let numbers = [self.version, task.generator_version, bin.bin.tokens(), slot_percent.into(), index];
        let [version, generator, tokens, slot, index] = numbers.map(|number| number.to_string());
        let seed = self.seed.to_string();
        let mut parts =
            vec![self.name.as_str(), &version, task.id, &generator, self.language.tag(), &tokens, &slot, &index, &seed];
        // Other filler, other items.
        parts.extend(self.haystack.as_ref().map(UserText::hash));
        id_of(&parts)
    }
}

/// The recipe of an item's variant; its id follows from the original's.
fn variant(original: &ItemSpec, perturbation: Perturbation) -> ItemSpec {
    let hash = hash_name(&["variant", &original.item_id, perturbation.name()]);
    ItemSpec {
        item_id: hash.to_hex()[..ID_DIGITS].to_owned(),
        variant_of: Some(VariantOf { item_id: original.item_id.clone(), perturbation }),
        ..original.clone()
    }
}

/// The id of what has this name.
pub(super) fn id_of(name: &[&str]) -> String {
    hash_name(name).to_hex()[..ID_DIGITS].to_owned()
}

/// Names a document by all its questions.
pub(super) fn haystack_id(bin: Bin, items: &[ItemSpec]) -> String {
    let ids: Vec<&str> = items.iter().map(|item| item.item_id.as_str()).collect();
    id_of(&["haystack", &bin.tokens().to_string(), &ids.join(" ")])
}

/// The slots in an order in which a few of them already span the depth: in strides of nearly half their number, starting at
/// a place of the task's own so that the tasks of one document do not all stand at one depth.
fn slot_order(slots: &[u8], task: &str) -> Vec<u8> {
    let count = slots.len();
    let stride = (1..=count / 2).rev().find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
    let start = usize::from(hash_name(&["slot order", task]).as_bytes()[0]) % count;
    (0..count).map(|step| slots[(start + step * stride) % count]).collect()
}

fn gcd(left: usize, right: usize) -> usize {
    if right == 0 { left } else { gcd(right, left % right) }
}

/// First items first, task by task; tasks with fewer items end earlier.
fn interleave(streams: Vec<Vec<ItemSpec>>) -> Vec<ItemSpec> {
    let longest = streams.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|number| streams.iter().filter_map(move |items| items.get(number).cloned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::WordTokenizer;

    #[test]
    fn a_few_slots_already_span_the_depth() {
        let slots = [0, 10, 25, 50, 75, 90, 100];
        for task in tasks::ids() {
            let order = slot_order(&slots, task);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, slots, "every slot once");
            let first = &order[..4];
            assert!(first.iter().max().unwrap() - first.iter().min().unwrap() >= 65, "{task}: {first:?}");
        }
        assert_eq!(slot_order(&[40], "needle"), [40]);
        assert_eq!(slot_order(&[0, 100], "needle").len(), 2);
    }

    #[test]
    fn half_a_group_is_not_generated() {
        let suite = Suite::builtin("smoke").unwrap();
        let mut group = suite.plan().groups.pop().unwrap();
        assert!(suite.generate(&group, &WordTokenizer).is_ok());
        group.items.pop();
        assert!(matches!(suite.generate(&group, &WordTokenizer), Err(TaskError::PartialGroup { .. })));
    }

    #[test]
    fn variants_follow_their_original_and_ask_the_same_of_the_same_text() {
        let text = "schema_version = 1\nname = \"robust\"\ndescription = \"\"\n\
                    [[bins]]\ncontext = 2048\nsamples = 4\nshared_prefix = 2\nmixed = true\n\
                    [[tasks]]\nkind = \"needle\"\nrobustness = true\n[[tasks]]\nkind = \"ledger\"\n";
        let suite = Suite::parse(text, "robust").unwrap();
        let plan = suite.plan();
        assert_eq!(plan.item_count(), 4 * 5 + 4);
        for group in &plan.groups {
            let items = suite.generate(group, &WordTokenizer).unwrap();
            let originals = items.iter().filter(|item| item.variant_of.is_none()).count();
            assert_eq!(originals, 2, "variants are no questions of the haystack");
            for item in &items {
                let Some(variant) = &item.variant_of else { continue };
                let original = items.iter().find(|other| other.item_id == variant.item_id).unwrap();
                assert_eq!((&item.expected, &item.excerpt), (&original.expected, &original.excerpt));
                let parts = |item: &Item| {
                    let (text, question) = item.messages[0].content.rsplit_once("Question: ").unwrap();
                    (text.to_owned(), question.to_owned())
                };
                assert_eq!(parts(item).0, parts(original).0);
                assert_ne!(parts(item).1, parts(original).1, "{variant:?}");
                let at = |id: &str| items.iter().position(|item| item.item_id == id).unwrap();
                assert!((1..=4).contains(&(at(&item.item_id) - at(&original.item_id))));
            }
        }
    }
}
