//! The page's sections, one file each: what of the comparison is shown, as plain text and figures for the template.

pub(crate) mod averages;
pub(crate) mod comparability;
pub(crate) mod confirmation;
pub(crate) mod control;
pub(crate) mod flips;
pub(crate) mod history;
pub(crate) mod in_effect;
pub(crate) mod kv_record;
pub(crate) mod likelihood;
pub(crate) mod quality;
pub(crate) mod robustness;
pub(crate) mod run;
pub(crate) mod tasks;
pub(crate) mod timing;
pub(crate) mod turns;
pub(crate) mod verdict;
