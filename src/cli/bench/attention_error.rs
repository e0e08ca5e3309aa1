//! `kvgauge bench attention-error`: what each way of storing K and V and each way of computing attention does to the output of
//! one head, by the number of keys. Everything is compared with f64 on the unquantized K and V.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use kvgauge::engine::attention::{StoredKv, simulate};
use kvgauge::report::{LinePanel, PlotLine, PlotScale};
use kvgauge::units::format_token_count;
use serde::Serialize;

use super::heads::{HEAD_DIM, Head, Spread, relative_error};
use super::model_heads;
use super::options::AttentionErrorArgs;
use super::outputs::{self, Presented, markdown_table};
use super::subjects::{BACKEND, CODEC, MECHANISM, Subject, subjects};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::{model, settings, table};

/// Version of the JSON document. Changelog: 1 first version.
const FORMAT_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document {
    format_version: u32,
    kvgauge_version: &'static str,
    head_dim: usize,
    /// Heads per number: the error of a row is the root of their mean square.
    heads: u32,
    /// The model of the rows whose attention is `model`.
    model: Option<ModelFacts>,
    key_counts: Vec<u32>,
    rows: Vec<Row>,
}

/// Which heads of a model were used.
#[derive(Serialize)]
struct ModelFacts {
    name: String,
    layers: Vec<usize>,
    n_kv_head: usize,
    head_dim: usize,
}

/// Errors of one subject on one kind of heads.
#[derive(Serialize)]
struct Row {
    kind: &'static str,
    name: String,
    kv_cache_dtype: String,
    /// What is computed, in words.
    arithmetic: String,
    attention: String,
    /// By key count: relative L2 distance of the output.
    errors: Vec<f64>,
}

pub(super) fn execute(args: &AttentionErrorArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    outputs::check(&args.results)?;
    let _interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let mut key_counts = args.lengths.clone();
    key_counts.sort_unstable();
    key_counts.dedup();
    let subjects = subjects();
    let mut rows = Vec::new();
    // The model first: what is wrong with it is said before anything is measured.
    let model = args.with_model.then(|| model_rows(&subjects, &key_counts, args, config)).transpose()?;
    for spread in [Spread::Diffuse, Spread::Peaked] {
        let heads = |n_key: u32| (0..args.heads).map(move |seed| Head::synthetic(spread, seed.into(), n_key as usize));
        let errors = errors_by_length(&subjects, &key_counts, &mut |at| heads(key_counts[at]).collect())?;
        rows.extend(subjects.iter().zip(errors).map(|(subject, errors)| Row::new(subject, spread.name(), errors)));
    }
    let (model, of_model) = model.unzip();
    rows.extend(of_model.into_iter().flatten());
    let document = Document {
        format_version: FORMAT_VERSION,
        kvgauge_version: env!("CARGO_PKG_VERSION"),
        head_dim: HEAD_DIM,
        heads: args.heads,
        model,
        key_counts,
        rows,
    };
    outputs::deliver(&document, &args.results)?;
    Ok(Exit::Success)
}

fn model_rows(
    subjects: &[Subject],
    key_counts: &[u32],
    args: &AttentionErrorArgs,
    config: &ConfigFile,
) -> Result<(ModelFacts, Vec<Row>), Failure> {
    let settings = settings::model(&args.model, config);
    let loaded = model::open(&settings)?;
    let mut of_model = model_heads::of_model(&loaded, &settings, &args.layers, key_counts)?;
    let errors = errors_by_length(subjects, key_counts, &mut |at| std::mem::take(&mut of_model.heads[at]))?;
    let rows = subjects.iter().zip(errors).map(|(subject, errors)| Row::new(subject, "model", errors)).collect();
    let model_heads::ModelHeads { layers, n_kv_head, head_dim, .. } = of_model;
    Ok((ModelFacts { name: settings.name, layers, n_kv_head, head_dim }, rows))
}

/// Root of the mean squared error over heads, `[subject][key count]`.
fn errors_by_length(
    subjects: &[Subject],
    key_counts: &[u32],
    heads: &mut dyn FnMut(usize) -> Vec<Head>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut found = vec![Vec::new(); subjects.len()];
    for (at, n_key) in key_counts.iter().enumerate() {
        let heads = heads(at);
        let mut sums = vec![0.0; subjects.len()];
        for head in &heads {
            for (sum, error) in sums.iter_mut().zip(errors(subjects, head)?) {
                *sum += error * error;
            }
        }
        found.iter_mut().zip(sums).for_each(|(found, sum)| found.push((sum / heads.len() as f64).sqrt()));
        note(&format!("{} keys done", format_token_count(*n_key)));
    }
    Ok(found)
}

/// The error of every subject on one head.
fn errors(subjects: &[Subject], head: &Head) -> Result<Vec<f64>, Failure> {
    let exact = head.exact();
    let n_key = head.k.len() / head.head_dim;
    let mut stored: BTreeMap<(&str, bool), StoredKv> = BTreeMap::new();
    let mut errors = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let truncating = subject.arithmetic.truncating_codec;
        let kv = match stored.entry((subject.dtype, truncating)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(subject.store(head)?),
        };
        let found = simulate(&subject.arithmetic, &head.q, head.head_dim, kv, n_key, head.softmax_scale);
        errors.push(relative_error(&found, &exact));
    }
    Ok(errors)
}

/// Kinds of subjects with the heading of each.
const KINDS: [(&str, &str); 3] = [
    (MECHANISM, "each mechanism alone, over BF16 arithmetic and a BF16 cache (truncating_codec: an fp8_e4m3 cache)"),
    (CODEC, "each KV dtype alone, under f32 arithmetic"),
    (BACKEND, "each backend with a KV dtype"),
];

impl Row {
    fn new(subject: &Subject, attention: &str, errors: Vec<f64>) -> Self {
        Self {
            kind: subject.kind,
            name: subject.name.clone(),
            kv_cache_dtype: subject.dtype.into(),
            arithmetic: subject.arithmetic.to_string(),
            attention: attention.into(),
            errors,
        }
    }

    /// The name in tables and legends; the dtype where it does not say it.
    fn label(&self) -> String {
        if self.kind == BACKEND { format!("{}: {}", self.kv_cache_dtype, self.name) } else { self.name.clone() }
    }

    /// The last error over the first: what the length does.
    fn growth(&self) -> String {
        match (self.errors.first(), self.errors.last()) {
            (Some(first), Some(last)) if *first > 0.0 => format!("×{:.2}", last / first),
            _ => "–".into(),
        }
    }
}

impl Document {
    fn attentions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.attention.as_str()) {
                names.push(&row.attention);
            }
        }
        names
    }

    fn header(&self, first: &str) -> Vec<String> {
        let mut header = vec![first.to_owned()];
        header.extend(self.key_counts.iter().map(|keys| format_token_count(*keys)));
        header.push("growth".into());
        header
    }

    /// Every table: its heading, and the rows under the header.
    fn tables(&self) -> Vec<(String, Vec<Vec<String>>)> {
        let mut tables = Vec::new();
        for attention in self.attentions() {
            for (kind, title) in KINDS {
                let rows = self.rows.iter().filter(|row| row.kind == kind && row.attention == attention);
                let cells = rows.map(|row| {
                    let mut cells = vec![row.label()];
                    cells.extend(row.errors.iter().map(|error| format!("{error:.1e}")));
                    cells.push(row.growth());
                    cells
                });
                tables.push((format!("{attention} attention: {title}"), cells.collect()));
            }
        }
        tables
    }

    fn conditions(&self) -> String {
        let mut text = format!(
            "relative L2 distance of the output to f64 on the unquantized K and V, root mean square over heads; \
             diffuse and peaked: {} synthetic heads of {} dimensions",
            self.heads, self.head_dim
        );
        if let Some(ModelFacts { name, layers, n_kv_head, head_dim }) = &self.model {
            text += &format!(
                "; model: {name}, all {n_kv_head} KV heads of {head_dim} dimensions of layers {}, queries of the last position",
                layers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        text
    }
}

/// A label that fits the legend.
fn shortened(label: &str) -> String {
    const LEGEND_CHARS: usize = 56;
    if label.chars().count() <= LEGEND_CHARS {
        return label.into();
    }
    label.chars().take(LEGEND_CHARS - 1).chain(['…']).collect()
}

impl Presented for Document {
    fn text(&self) -> String {
        let tables = self.tables().into_iter().map(|(title, rows)| {
            let mut table = table::empty(self.header("keys"));
            table.add_rows(rows);
            format!("{title}\n\n{}\n", table::finished(table))
        });
        tables.collect::<String>() + &self.conditions() + "\n"
    }

    fn markdown(&self) -> String {
        let tables = self.tables().into_iter().map(|(title, rows)| {
            let heading = title[..1].to_uppercase() + &title[1..];
            format!("\n## {heading}\n\n{}", markdown_table(&self.header("keys"), &rows))
        });
        format!("# Error of attention by the number of keys\n\n{}\n", self.conditions()) + &tables.collect::<String>()
    }

    fn panels(&self) -> Vec<LinePanel> {
        let mut panels = Vec::new();
        for attention in self.attentions() {
            for (kind, title) in KINDS {
                let rows = self.rows.iter().filter(|row| row.kind == kind && row.attention == attention);
                let lines = rows.map(|row| PlotLine {
                    label: shortened(&row.label()),
                    points: self.key_counts.iter().copied().zip(row.errors.iter().copied()).collect(),
                });
                let title = format!("{attention}: {title}");
                panels.push(LinePanel { title, scale: PlotScale::Log10, lines: lines.collect() });
            }
        }
        panels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a subject at 512 and at 16K keys.
    fn measured(kind: &str, name: &str, spread: Spread) -> (f64, f64) {
        let subject = subjects().into_iter().find(|it| it.kind == kind && it.name == name).unwrap();
        let head = |seed, n_key| Head::synthetic(spread, seed, n_key);
        let key_counts = [512, 16_384];
        let mut heads = |at: usize| (0..2).map(|seed| head(seed, key_counts[at])).collect();
        let errors = errors_by_length(&[subject], &key_counts.map(|n| n as u32), &mut heads).unwrap();
        (errors[0][0], errors[0][1])
    }

    #[test]
    fn one_short_register_gets_worse_with_length_and_two_levels_do_not() {
        let fa3 =
            |levels: &str| measured(BACKEND, &format!("FLASH_ATTN (Q fp8, P·256 fp8, {levels})"), Spread::Diffuse);
        let ((one_short, one_long), (two_short, two_long)) = (fa3("one register"), fa3("two levels"));
        assert!(one_long > 5.0 * two_long, "{one_long} {two_long}");
        assert!(one_short < 2.0 * two_short, "{one_short} {two_short}");
        assert!(two_long < two_short, "{two_short} {two_long}");
    }

    #[test]
    fn unscaled_fp8_weights_lose_what_is_spread_beside_a_needle() {
        let (_, unscaled) = measured(MECHANISM, "p_fp8", Spread::Peaked);
        let (_, scaled) = measured(MECHANISM, "p_fp8_256", Spread::Peaked);
        assert!(unscaled > 5.0 * scaled && unscaled > 0.1, "{unscaled} {scaled}");
    }
}
