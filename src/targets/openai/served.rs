//! What a server says of itself before anything is asked: engine, version, models, longest context.

use serde_json::Value;

use crate::targets::openai::connection::Connection;
use crate::targets::openai::{Dialect, EndpointError, EndpointSettings};

/// Names in an error message; a router may serve hundreds.
const MAX_NAMES: usize = 20;
/// Names longer than this are no names.
const MAX_NAME_BYTES: usize = 300;

/// What is served.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) dialect: Dialect,
    /// Name to ask for.
    pub(super) model: String,
    /// The shortest of all replicas.
    pub(super) max_model_len: Option<u32>,
    pub(super) max_model_len_source: &'static str,
    /// By replica.
    pub(super) versions: Vec<Option<String>>,
}

impl Served {
    /// Asks every replica; all must serve the same model with the same engine.
    pub(super) async fn ask(connection: &Connection, settings: &EndpointSettings) -> Result<Self, EndpointError> {
        let mut all: Option<Self> = None;
        for replica in 0..connection.n_replica() {
            let one = ask_one(connection, settings, replica).await?;
            let Some(served) = &mut all else {
                all = Some(one);
                continue;
            };
            if served.dialect != one.dialect || served.model != one.model || served.versions[0] != one.versions[0] {
                let reason = format!(
                    "the replicas differ: {} serves `{}`, {} serves `{}`",
                    served.label(),
                    served.model,
                    one.label(),
                    one.model
                );
                return Err(EndpointError::Setting { key: "url", reason });
            }
            served.max_model_len = [served.max_model_len, one.max_model_len].into_iter().flatten().min();
            served.versions.extend(one.versions);
        }
        all.ok_or_else(|| EndpointError::Setting { key: "url", reason: "no address".into() })
    }

    fn label(&self) -> String {
        format!("{} {}", self.dialect, self.versions[0].as_deref().unwrap_or("of unknown version"))
    }
}

async fn ask_one(
    connection: &Connection,
    settings: &EndpointSettings,
    replica: usize,
) -> Result<Served, EndpointError> {
    let models = match connection.facts(replica, "/v1/models").await {
        Ok(models) => models,
        // Not every server has a list; then the model must be named.
        Err(EndpointError::Status { status: 404 | 405 | 501, .. }) if settings.model.is_some() => Value::Null,
        Err(error) => return Err(error),
    };
    let entries: Vec<&Value> = models["data"].as_array().into_iter().flatten().collect();
    let entry = choose(&entries, settings.model.as_deref(), models.is_null())?;
    let model = match (&settings.model, entry) {
        (Some(model), _) => model.clone(),
        (None, Some(entry)) => name_of(entry).unwrap_or_default().to_owned(),
        (None, None) => return Err(EndpointError::WhichModel { served: Vec::new() }),
    };
    let owner = entry.or(entries.first().copied()).and_then(|entry| entry["owned_by"].as_str()).unwrap_or_default();
    let dialect = match settings.dialect.or_else(|| Dialect::by_owner(owner)) {
        Some(dialect) => dialect,
        None => recognise(connection, replica).await,
    };
    let version = version(connection, replica, dialect).await;
    let (mut max_model_len, mut source) = (entry.and_then(max_model_len), "/v1/models");
    if dialect == Dialect::Tgi && max_model_len.is_none() {
        let info = connection.facts(replica, "/info").await.unwrap_or_default();
        (max_model_len, source) = (tokens(&info["max_total_tokens"]), "/info");
    }
    Ok(Served { dialect, model, max_model_len, max_model_len_source: source, versions: vec![version] })
}

fn choose<'a>(
    entries: &[&'a Value],
    wanted: Option<&str>,
    has_no_list: bool,
) -> Result<Option<&'a Value>, EndpointError> {
    let served = || {
        let names = entries.iter().filter_map(|entry| name_of(entry));
        names.take(MAX_NAMES).map(str::to_owned).collect::<Vec<_>>()
    };
    match (wanted, entries) {
        (Some(_), _) if has_no_list => Ok(None),
        (Some(model), _) => match entries.iter().find(|entry| is_named(entry, model)) {
            Some(entry) => Ok(Some(entry)),
            None => Err(EndpointError::NoSuchModel { model: model.to_owned(), served: served() }),
        },
        (None, [one]) if name_of(one).is_some() => Ok(Some(one)),
        (None, _) => Err(EndpointError::WhichModel { served: served() }),
    }
}

fn name_of(entry: &Value) -> Option<&str> {
    entry["id"].as_str().filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
}

fn is_named(entry: &Value, model: &str) -> bool {
    let aliases = entry["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    name_of(entry).into_iter().chain(aliases).any(|name| name == model || name == format!("{model}:latest"))
}

fn max_model_len(entry: &Value) -> Option<u32> {
    tokens(&entry["max_model_len"]).or_else(|| tokens(&entry["meta"]["n_ctx"]))
}

fn tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|tokens| u32::try_from(tokens).ok()).filter(|tokens| *tokens > 0)
}

/// Engines whose model list does not say who they are have a route that only they have.
async fn recognise(connection: &Connection, replica: usize) -> Dialect {
    const ROUTES: [(&str, &str, Dialect); 4] = [
        ("/info", "max_total_tokens", Dialect::Tgi),
        ("/server_info", "max_total_num_tokens", Dialect::Sglang),
        ("/props", "total_slots", Dialect::LlamaCpp),
        ("/api/version", "version", Dialect::Ollama),
    ];
    for (route, field, dialect) in ROUTES {
        if connection.facts(replica, route).await.is_ok_and(|facts| !facts[field].is_null()) {
            return dialect;
        }
    }
    Dialect::Openai
}

/// The version of a replica now, where its engine tells.
pub(super) async fn version(connection: &Connection, replica: usize, dialect: Dialect) -> Option<String> {
    let (path, field) = dialect.version_source()?;
    let facts = connection.facts(replica, path).await.ok()?;
    facts[field].as_str().filter(|version| version.len() <= MAX_NAME_BYTES).map(str::to_owned)
}
