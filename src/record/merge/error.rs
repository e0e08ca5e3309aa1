//! Why shards do not make a run.

use std::path::PathBuf;

use crate::hint::Hint;
use crate::record::RecordError;
use crate::record::manifest::Difference;
use crate::suite::Shard;

/// Things listed in one message: more do not help to find the cause.
const MAX_LISTED: usize = 5;

/// Why shards do not make a run.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A record cannot be read, or the merged one cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Nothing was given.
    #[error("no shard was given")]
    Nothing,
    /// The folder is not the run folder of a shard.
    #[error("`{}` is not the run folder of a shard: {reason}", dir.display())]
    NotAShard {
        /// The folder.
        dir: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// Two folders hold the same shard.
    #[error("shard {shard} is there twice: in `{}` and in `{}`", first.display(), second.display())]
    Twice {
        /// The shard.
        shard: Shard,
        /// One folder.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// Shards that no folder holds.
    #[error("{} of {of} shards are missing: {}", shards.len(), listed(shards))]
    ShardsMissing {
        /// How many there should be.
        of: u16,
        /// Those that are not there.
        shards: Vec<Shard>,
    },
    /// Two shards are not of the same run.
    #[error("`{}` and `{}` are not shards of one run: {}", first.display(), second.display(),
        differing(differences, first, second))]
    Differs {
        /// One folder: of a run or of an arm in it.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// Field by field: `recorded` is the first folder's, `asked` the second's.
        differences: Vec<Difference>,
    },
    /// A planned arm has no record in a shard.
    #[error("arm `{arm}` is planned in `{}`, but: {source}", dir.display())]
    ArmMissing {
        /// The arm.
        arm: String,
        /// The shard's folder.
        dir: PathBuf,
        /// What is there instead.
        source: RecordError,
    },
    /// A shard has the record of an arm that is not in its plan.
    #[error("`{}` holds the record of an arm `{name}` that its run.json does not name", dir.display())]
    Stranger {
        /// The shard's folder.
        dir: PathBuf,
        /// The arm's folder in it.
        name: String,
    },
    /// A record holds an item that its shard does not have.
    #[error("`{}` holds item {item_id}, {reason}", dir.display())]
    ForeignItem {
        /// The arm's folder.
        dir: PathBuf,
        /// The item.
        item_id: String,
        /// Where it belongs, or what it contradicts.
        reason: String,
    },
    /// Items of a shard that have no record.
    #[error("`{}` lacks {} of its items: {}", dir.display(), items.len(), listed(items))]
    ItemsMissing {
        /// The arm's folder.
        dir: PathBuf,
        /// Each with its task and bin.
        items: Vec<String>,
    },
    /// There is something where the merged run should go.
    #[error("`{}` is there already and not an empty folder", path.display())]
    OutExists {
        /// The place.
        path: PathBuf,
    },
}

fn listed(things: &[impl ToString]) -> String {
    let mut text = things.iter().take(MAX_LISTED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if things.len() > MAX_LISTED {
        text.push_str(&format!(" and {} more", things.len() - MAX_LISTED));
    }
    text
}

fn differing(differences: &[Difference], first: &std::path::Path, second: &std::path::Path) -> String {
    let shown = |value: &Option<String>| value.as_ref().map_or("nothing".into(), |text| format!("`{text}`"));
    let one = |it: &Difference| {
        let (ours, theirs) = (shown(&it.recorded), shown(&it.asked));
        format!("{} is {ours} in `{}` and {theirs} in `{}`", it.field, first.display(), second.display())
    };
    let mut text = differences.iter().take(MAX_LISTED).map(one).collect::<Vec<_>>().join("; ");
    if differences.len() > MAX_LISTED {
        text.push_str(&format!("; and {} more", differences.len() - MAX_LISTED));
    }
    text
}

impl Hint for MergeError {
    fn hints(&self) -> Vec<String> {
        let hints: &[&str] = match self {
            Self::Record(error) => return error.hints(),
            Self::Nothing => &["name the run folders of all shards after the folder to write"],
            Self::NotAShard { .. } => &["`kvgauge check --shard M/N` and `kvgauge run --shard M/N` write such folders"],
            Self::Twice { .. } => &["name every shard once"],
            Self::ShardsMissing { .. } => &[
                "run `kvgauge check --shard M/N` for them with the options of the others",
                "or merge what is there with `--partial`: the run then counts as unfinished until it is resumed",
            ],
            Self::Differs { differences, .. } if differences.iter().any(|it| it.field == "resolved.kernel") => &[
                "answers of different kernels are not the same bit for bit: name one that all machines have, for example `--kernel portable`",
            ],
            Self::Differs { .. } => {
                &["measure all shards with the same version, suite, model and options, each in a folder of its own"]
            }
            Self::ArmMissing { .. } | Self::ItemsMissing { .. } => &[
                "the same command with this shard and folder goes on with it",
                "or merge what is there with `--partial`: the run then counts as unfinished until it is resumed",
            ],
            Self::Stranger { .. } => &["move it elsewhere: it is not of this run"],
            Self::ForeignItem { .. } => {
                &["the folder was changed by hand, or files of shards were mixed: ask this shard again"]
            }
            Self::OutExists { .. } => &["name a folder that does not exist"],
        };
        hints.iter().map(ToString::to_string).collect()
    }
}
