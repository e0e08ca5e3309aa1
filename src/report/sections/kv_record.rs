//! The KV quantization record of every candidate, as YAML to be copied.

use minijinja::value::Value;

use crate::report::kv_record::{kv_records, yaml};
use crate::report::page::Page;
use crate::report::{ReportError, fields};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let records: Vec<Value> = kv_records(page.input)
        .iter()
        .map(|record| fields! { arm => record.arm, status => record.status.name(), yaml => yaml(record, false) })
        .collect();
    Ok((!records.is_empty()).then(|| fields! { records => records }))
}
